package shmcast

import "time"

type options struct {
	dir, socket string
	daemon      bool
	since       time.Time // of startSince: begins with the first message of this time or later
	start       startAt
	sequence    uint64
	resume      resumeAt
	wait        waiting
	sleep       time.Duration
	watch       bool
	hidden      bool
	patience    time.Duration
	conflates   bool
	behind      uint64 // lag in bytes, for a reader that conflates; 0: half of the ring
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
	startSince
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

// FromOldest starts with the oldest message in the ring that is not about to be overwritten.
func FromOldest() Option { return func(o *options) { o.start = startOldest } }

// FromSequence starts with this message. If it is overwritten, the first event is [KindLapped].
func FromSequence(sequence uint64) Option {
	return func(o *options) { o.start, o.sequence = startSequence, sequence }
}

// FromBoard starts with the channel's board: the newest message of each key, in the order of their sequences, then [KindLive], then every
// later message. No later message is missing and none comes twice, however fast the publisher is. Keys that were removed are left out. If
// the newest message of a key is too large for the board, [KindLapped] before [KindLive] counts it as missed. [Subscribe] returns
// [ErrNoBoard] if the channel has no board.
func FromBoard() Option { return func(o *options) { o.start = startBoard } }

// Conflate lets a reader that cannot keep up leave out messages that are no longer the newest of their key. While the reader keeps up, it
// gets every message. When it is lapped, or is more than half of the ring behind, it gets the newest message of each changed key from the
// channel's board, in the order of their sequences; then [KindLive], and every later message. Event.Conflated is the exact number of
// messages of the key that were left out.
//
// The board has no replacement for a message without a key, or for a message whose key is not on the board: [KindLapped] before [KindLive]
// counts these messages. If a key was removed, the reader gets the message that removed the key. If the board no longer has that message,
// and the reader knows that the key was on the board, the reader gets a substitute: zeros and then the key, with the sequence of the last
// forgotten removal. [KindLapped] counts all other removals. After a seek backwards, Event.Conflated is too low by the number of messages
// that come again.
//
// The reader begins with the latest message or with the board. Reading the key of each message costs some 30 ns.
func Conflate() Option { return ConflateBehind(0) }

// ConflateBehind does the same as [Conflate], for a lag of more than this many bytes of the ring; 0 means half of the ring. A message takes
// 16 bytes more than its payload, rounded up to a multiple of 64. The measured lag can be too large by one chunk of the publisher.
func ConflateBehind(bytes uint64) Option {
	return func(o *options) { o.conflates, o.behind = true, bytes }
}

// Gate takes a gate of the channel: the publisher waits for this subscriber, within the gate's limit. The channel's publisher, or the
// configuration of its daemon, sets the gates. The subscriber keeps the gate until it is closed. [Subscribe] returns [ErrNoGate] if the
// channel does not have the gate, and a [GateInUseError] if another reader has it.
//
// The gate is in force once the publisher has noticed the subscriber, and the subscriber's lag is at most half of the gate's lag. From then
// on no message is overwritten before it was received, unless the publisher waits too long and drops the gate. Each message costs some 20
// ns more, except with [Subscriber.RecvBatch].
func Gate(name string) Option { return func(o *options) { o.gate = name } }

// Dir uses the channels in this directory, instead of $SHMCAST_DIR or the default directory.
func Dir(path string) Option { return func(o *options) { o.dir = path } }

// Socket uses a channel of the daemon at this path. "" stands for $SHMCAST_SOCKET or the default socket.
func Socket(path string) Option { return func(o *options) { o.socket, o.daemon = path, true } }

// WaitSpin never pauses. It has the lowest latency, and keeps a core at 100 %. The goroutine should call runtime.LockOSThread.
func WaitSpin() Option { return func(o *options) { o.wait = waitSpin } }

// WaitBurst does the same as [WaitSpin], for the highest rate. A reader that comes close to the publisher in a burst lets the publisher get
// ahead for 8 us, also in [Subscriber.RecvBatch]. A message that follows 32 others within 8 us can be late by this pause. At lower rates
// there is no difference.
func WaitBurst() Option { return func(o *options) { o.wait = waitBurst } }

// WaitYield gives the core to another goroutine or process after each poll. It is the default.
func WaitYield() Option { return func(o *options) { o.wait = waitYield } }

// WaitSleep sleeps for this time between polls.
func WaitSleep(pause time.Duration) Option {
	return func(o *options) { o.wait, o.sleep = waitSleep, max(pause, 0) }
}

// WaitPark sleeps until the daemon wakes this reader. It is for a daemon's channel only.
func WaitPark() Option { return func(o *options) { o.wait = waitPark } }

// ResumeOldest continues at the oldest message after a lap. It is the default, and loses the fewest messages.
func ResumeOldest() Option { return func(o *options) { o.resume = resumeOldest } }

// ResumeLatest continues at the next message to come after a lap.
func ResumeLatest() Option { return func(o *options) { o.resume = resumeLatest } }

// ResumeKey continues at the last key message after a lap; without one, as [ResumeOldest].
func ResumeKey() Option { return func(o *options) { o.resume = resumeKey } }

// WatchPublisher requests [KindPublisherGone], for a publisher that is gone and has not closed the channel.
func WatchPublisher() Option { return func(o *options) { o.watch = true } }

// Hidden hides this reader from tools.
func Hidden() Option { return func(o *options) { o.hidden = true } }

// WaitForChannel waits for this time until the channel appears. By default the channel must exist. If the channel appears in this time, a
// reader with [FromLatest] begins at the oldest message in the ring. A daemon is asked at last twice a second. The wait also continues while
// the daemon does not run or does not answer, or has too many requests of this user. If the channel was there after such an error, a reader
// with [FromLatest] begins with the first message since the call.
func WaitForChannel(patience time.Duration) Option {
	return func(o *options) { o.patience = patience }
}
