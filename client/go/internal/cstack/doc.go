// Package cstack calls functions of C in a few nanoseconds. A call by cgo costs some 30 ns. Most of this time goes to telling the scheduler
// that the goroutine is away, because C could wait or call back.
//
// The goroutine keeps its thread, and C runs on a separate stack. So this is only for functions that end soon, never wait, and never call
// Go. It relies on three properties of the Go runtime:
//
//   - A goroutine in assembly is not preempted. So its stack and the memory behind its pointers do not move, and it stays on its thread.
//   - Signals are handled on the thread's alternate stack. The handler finds no Go function at the program counter, so it neither preempts
//     there nor walks that stack. A profile counts the time as external code.
//   - A garbage collection that stops all goroutines waits until the function returns, as it does for a loop without a call.
//
// This is for amd64. On other processors the package is empty.
package cstack
