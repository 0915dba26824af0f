#include "textflag.h"

// func call(function, top, a, b unsafe.Pointer, c, d, e uintptr, f unsafe.Pointer) int32
//
// C wants its arguments in these registers, and a stack pointer that is a multiple of 16. It keeps R12 for its caller. Go expects nothing of a
// function in assembly to be kept, but the stack pointer and BP, which C keeps too.
TEXT ·call(SB), NOSPLIT, $0-68
	MOVQ function+0(FP), AX
	MOVQ top+8(FP), R10
	MOVQ a+16(FP), DI
	MOVQ b+24(FP), SI
	MOVQ c+32(FP), DX
	MOVQ d+40(FP), CX
	MOVQ e+48(FP), R8
	MOVQ f+56(FP), R9
	MOVQ SP, R12
	MOVQ R10, SP
	CALL AX
	MOVQ R12, SP
	MOVL AX, ret+64(FP)
	RET
