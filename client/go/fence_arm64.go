package shmcast

// acquireFence keeps loads before it before loads after it. An atomic load of Go keeps only what follows it, so this is DMB ISHLD.
func acquireFence()

func dataBarrier()

// fullFence also keeps stores and loads before it before loads after it.
func fullFence(_ *uint64) { dataBarrier() }

// counter reads CNTVCT_EL0.
func counter() uint64
