package shmcast

import "sync/atomic"

// acquireFence keeps loads before it before loads after it. On x86-64 the processor does, and the compiler moves no load across an atomic
// one.
func acquireFence() {}

// fullFence also keeps stores and loads before it before loads after it. An atomic exchange is a locked instruction.
func fullFence(own *uint64) { atomic.SwapUint64(own, 1) }

// counter reads the CPU's counter.
func counter() uint64
