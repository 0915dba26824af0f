package shmcast

import (
	"syscall"
	"unsafe"
)

// monotonic reads CLOCK_MONOTONIC in ns.
func monotonic() uint64 {
	var at syscall.Timespec
	_, _, _ = syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&at)), 0)
	return uint64(at.Sec)*1e9 + uint64(at.Nsec)
}
