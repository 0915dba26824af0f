package shmcast

// acquireFence keeps earlier loads before later loads. An atomic load of Go orders only what follows it, so this is DMB ISHLD.
func acquireFence()

func dataBarrier()

// fullFence also keeps earlier stores and loads before later loads.
func fullFence(_ *uint64) { dataBarrier() }

// counter reads CNTVCT_EL0.
func counter() uint64
