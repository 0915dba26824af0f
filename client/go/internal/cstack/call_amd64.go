package cstack

import (
	"syscall"
	"unsafe"
)

const (
	stackBytes = 256 << 10 // of which a call touches a page or two
	guardBytes = 4 << 10   // nothing may be written there: a stack that is too small ends the program and spoils nothing
)

// Stack is the stack of one call at a time.
type Stack struct {
	memory []byte
	top    unsafe.Pointer
}

// New makes a stack.
func New() (*Stack, error) {
	memory, err := syscall.Mmap(-1, 0, stackBytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON|syscall.MAP_STACK)
	if err != nil {
		return nil, err
	}
	if err := syscall.Mprotect(memory[:guardBytes], syscall.PROT_NONE); err != nil {
		_ = syscall.Munmap(memory)
		return nil, err
	}
	return &Stack{memory, unsafe.Pointer(&memory[stackBytes-64])}, nil
}

// Close frees the stack. No call can follow.
func (s *Stack) Close() error { return syscall.Munmap(s.memory) }

// Call calls a function with these arguments, and returns its result. The memory behind the pointers does not move during the call, and C
// must not keep the pointers.
func (s *Stack) Call(function, a, b unsafe.Pointer, c, d, e uintptr, f unsafe.Pointer) int32 {
	return call(function, s.top, a, b, c, d, e, f)
}

//go:noescape
func call(function, top, a, b unsafe.Pointer, c, d, e uintptr, f unsafe.Pointer) int32
