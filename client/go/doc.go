// Package shmcast receives messages that one publisher sends to many processes of the same Linux host through shared memory.
//
// It is written only in Go, from the documents shm-layout/SPEC.md and CONTROL.md. The comments name sections of these documents. To
// publish, use package shmcast/publisher, which needs the C library.
//
// A [Subscriber] maps the channel's memory read-only and polls it. No method that receives allocates, takes a lock or makes a system call,
// unless it waits, or the channel continues in other memory. One goroutine at a time can use a Subscriber.
//
// A channel can have a board, the last message of each key: [FromBoard] begins with the board, [Conflate] continues with it after a lap,
// and [OpenBoard] reads single keys. A channel can have gates, readers that its publisher waits for: [Gate] takes one.
//
// The owner of a channel that is a file can truncate the file, which ends this program. Any user who can read the channel can do the same
// with the page of a gate that this program holds. No process can truncate the memory of a daemon's channel.
package shmcast
