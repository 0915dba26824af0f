#include "textflag.h"

// func acquireFence()
TEXT ·acquireFence(SB), NOSPLIT, $0-0
	DMB	$0x9 // ISHLD
	RET

// func dataBarrier()
TEXT ·dataBarrier(SB), NOSPLIT, $0-0
	DMB	$0xb // ISH
	RET

// func counter() uint64
TEXT ·counter(SB), NOSPLIT, $0-8
	ISB	$0xf
	MRS	CNTVCT_EL0, R0
	MOVD	R0, ret+0(FP)
	RET
