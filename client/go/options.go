package shmcast

import "time"

type options struct {
	dir, socket string
	daemon      bool
	start       startAt
	sequence    uint64
	resume      resumeAt
	wait        waiting
	sleep       time.Duration
	watch       bool
	hidden      bool
	patience    time.Duration
	conflates   bool
	behind      uint64 // bytes, for a reader that conflates; 0: half of the ring
	gate        string
}

type (
	startAt  uint8
	resumeAt uint8
	waiting  uint8
)

const (
	startLatest startAt = iota
	startOldest
	startSequence
	startBoard
)

const (
	resumeOldest resumeAt = iota
	resumeLatest
	resumeKey
)

const (
	waitYield waiting = iota
	waitSpin
	waitSleep
	waitPark
	waitBurst
)

// Option says how [Subscribe] attaches.
type Option func(*options)

// FromLatest starts with the next message that is published. It is the default.
func FromLatest() Option { return func(o *options) { o.start = startLatest } }

// FromOldest starts with the oldest message that is safe in the ring.
func FromOldest() Option { return func(o *options) { o.start = startOldest } }

// FromSequence starts with a message. If it is overwritten, the first event is [KindLapped].
func FromSequence(sequence uint64) Option {
	return func(o *options) { o.start, o.sequence = startSequence, sequence }
}

// FromBoard starts with the channel's board: the newest message of each key, in the order of their sequences, then [KindLive], then every later
// message. No message is missing there and none comes twice, however fast the publisher is. Keys that were removed are left out. If the newest
// message of a key is too large for the board, [KindLapped] before [KindLive] counts it as missed. [ErrNoBoard] if the channel has none.
func FromBoard() Option { return func(o *options) { o.start = startBoard } }

// Conflate lets a reader that cannot keep up leave out messages that are no longer the newest of their key. While it keeps up it gets every
// message. When it is lapped, or more than half of the ring behind, it gets the newest message of each key that changed, from the channel's board,
// in the order of their sequences; then [KindLive], and every later message. Event.Conflated says for each how many were left out, exactly.
//
// Messages without a key, and those that the board does not have, cannot be bridged: [KindLapped] before [KindLive] counts them. A removed key
// comes as the message that removed it. If the board has forgotten that message, one with the key alone comes in its place, with zeros before the
// key and the sequence of the last removal that was forgotten. Such a message comes only for a key that the reader knows to have been on the board.
// If the board was full and refused keys, some removals are only among the messages that [KindLapped] counts. A seek backwards makes later counts too low by the messages that come again.
//
// The reader begins with the latest message or with the board. Each message costs a look at its key, some 30 ns.
func Conflate() Option { return ConflateBehind(0) }

// ConflateBehind is as [Conflate], for a reader that is more than so many bytes of the ring behind; 0: half of the ring. A message takes 16
// bytes more than its payload, in steps of 64. The publisher announces its work in chunks, so a reader may count as up to a chunk further behind
// than it is.
func ConflateBehind(bytes uint64) Option {
	return func(o *options) { o.conflates, o.behind = true, bytes }
}

// Gate takes a gate of the channel: the publisher waits for this subscriber, within the limit that the gate has. The publisher of a channel that
// is a file names its gates, and so does the configuration of a daemon. The subscriber keeps the gate until it is closed. [ErrNoGate] if the
// channel does not have the gate, and a [GateInUseError] if another reader has it.
//
// The gate is in force once the publisher has noticed the subscriber, and it has caught up to half of the gate's lag. From then on no message is
// overwritten before it was received, unless the publisher waits too long and drops the gate. Each message costs some 20 ns more, but for those of
// [Subscriber.RecvBatch].
func Gate(name string) Option { return func(o *options) { o.gate = name } }

// Dir reads the channels in this directory, in the place of $SHMCAST_DIR or the usual one.
func Dir(path string) Option { return func(o *options) { o.dir = path } }

// Socket reads a channel of the daemon at this path. "" stands for $SHMCAST_SOCKET, or the usual one.
func Socket(path string) Option { return func(o *options) { o.socket, o.daemon = path, true } }

// WaitSpin never pauses: lowest latency, and a core at 100 %. The goroutine should call runtime.LockOSThread.
func WaitSpin() Option { return func(o *options) { o.wait = waitSpin } }

// WaitBurst is as [WaitSpin], for the highest rate. A reader that comes close to the publisher in a burst lets it get ahead for 8 us, also in
// [Subscriber.RecvBatch]. A message that follows 32 others within 8 us may come later by that pause. At lower rates it is the same as WaitSpin.
func WaitBurst() Option { return func(o *options) { o.wait = waitBurst } }

// WaitYield gives the core to another goroutine or process after each look. It is the default.
func WaitYield() Option { return func(o *options) { o.wait = waitYield } }

// WaitSleep sleeps so long between looks.
func WaitSleep(pause time.Duration) Option {
	return func(o *options) { o.wait, o.sleep = waitSleep, max(pause, 0) }
}

// WaitPark sleeps until the daemon wakes this reader. It is for a daemon's channel only.
func WaitPark() Option { return func(o *options) { o.wait = waitPark } }

// ResumeOldest goes on at the oldest message after a lap. It is the default, and loses least.
func ResumeOldest() Option { return func(o *options) { o.resume = resumeOldest } }

// ResumeLatest goes on at the next message to come after a lap.
func ResumeLatest() Option { return func(o *options) { o.resume = resumeLatest } }

// ResumeKey goes on at the last key message after a lap, or as [ResumeOldest].
func ResumeKey() Option { return func(o *options) { o.resume = resumeKey } }

// WatchPublisher asks for [KindPublisherGone] when the publisher died without closing the channel.
func WatchPublisher() Option { return func(o *options) { o.watch = true } }

// Hidden keeps this reader out of the tools' lists.
func Hidden() Option { return func(o *options) { o.hidden = true } }

// WaitForChannel waits so long for the channel to appear. By default it must be there.
func WaitForChannel(patience time.Duration) Option {
	return func(o *options) { o.patience = patience }
}
