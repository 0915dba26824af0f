// Package shmcast receives messages that one publisher sends to many processes of the same Linux host through shared memory.
//
// It is written in Go alone, after the documents shm-layout/SPEC.md and CONTROL.md, whose sections the comments name. To publish, use
// package shmcast/publisher, which needs the C library.
//
// A [Subscriber] maps the channel's memory read-only and polls it. No call of a method that receives allocates, takes a lock or makes a
// system call, unless it waits, or the channel goes on in other memory. One goroutine at a time uses a Subscriber.
//
// The owner of a channel that is a file can truncate the file, which ends the program. A channel of a daemon is sealed against this.
package shmcast
