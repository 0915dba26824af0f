// Package shmcast receives messages that one publisher sends to many processes of the same Linux host through shared memory.
//
// It is written in Go alone, after the documents shm-layout/SPEC.md and CONTROL.md, whose sections the comments name. To publish, use
// package shmcast/publisher, which needs the C library.
//
// A [Subscriber] maps the channel's memory read-only and polls it. No call of a method that receives allocates, takes a lock or makes a
// system call, unless it waits, or the channel goes on in other memory. One goroutine at a time uses a Subscriber.
//
// A channel may have a board, the last message of each key: [FromBoard] begins with it, [Conflate] goes on with it, and [OpenBoard] reads single keys.
// A channel may have gates, readers that its publisher waits for: [Gate] takes one.
//
// The owner of a channel that is a file can truncate the file, which ends the program. So can all who may read such a channel with the page of a gate
// that the program holds. A channel of a daemon is sealed against the first.
package shmcast
