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
