package shmcast

import _ "unsafe" // for the name of another package

// nanotime reads CLOCK_MONOTONIC in ns, without a system call. Package time offers this clock only as the difference of two values.
//
//go:linkname nanotime runtime.nanotime
func nanotime() int64

// monotonic reads CLOCK_MONOTONIC in ns.
func monotonic() uint64 { return uint64(nanotime()) }
