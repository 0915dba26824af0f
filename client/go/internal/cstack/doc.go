// Package cstack calls functions of C for a few nanoseconds. A call by cgo costs some 30, most of which tell the scheduler that the goroutine is
// away, as if C might wait or call back.
//
// The goroutine stays where it is, and C runs on a stack of its own. So this is for functions that end soon, never wait, and never call Go. It relies
// on this of the Go runtime:
//
//   - A goroutine in assembly is not preempted, so neither its stack nor what it points to moves, and it stays on its thread.
//   - Signals are handled on the thread's alternate stack. The handler finds no Go function at the program counter: it neither preempts there nor
//     walks that stack. A profile counts the time as external code.
//   - A garbage collection that wants to stop all goroutines waits until the function is back, as it does for a loop without a call.
//
// This is for amd64. On other processors the package is empty.
package cstack
