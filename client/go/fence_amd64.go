package shmcast

import "sync/atomic"

// acquireFence keeps earlier loads before later loads. On x86-64 the processor does this, and the compiler moves no load across an atomic
// load.
func acquireFence() {}

// fullFence also keeps earlier stores and loads before later loads. An atomic exchange is a locked instruction.
func fullFence(own *uint64) { atomic.SwapUint64(own, 1) }

// counter reads the CPU's counter.
func counter() uint64
