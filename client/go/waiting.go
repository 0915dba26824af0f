package shmcast

import (
	"context"
	"errors"
	"math"
	"os"
	"runtime"
	"syscall"
	"time"
)

// Limits of CONTROL.md 6.
const (
	longestNap = 100 * time.Millisecond
	aloneNap   = time.Millisecond
)

// idle waits between two empty polls, by the subscriber's strategy. Recv calls it by itself.
func (s *Subscriber) idle(ctx context.Context) {
	switch s.opts.wait {
	case waitSpin:
	case waitBurst:
		s.noteBurst(true)
		s.letAhead()
	case waitSleep:
		time.Sleep(s.opts.sleep)
	case waitPark:
		s.park(ctx)
	default:
		runtime.Gosched()
		_, _, _ = syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
	}
}

// park sleeps until the daemon rings (CONTROL.md 6).
func (s *Subscriber) park(ctx context.Context) {
	s.empties = 63 // the next empty poll also checks the state
	if s.isClosed || s.behind != 0 {
		return
	}
	s.note()
	l := s.hosted.link
	if !l.isAttached.Load() {
		time.Sleep(aloneNap)
		return
	}
	s.page.sleeps(s.position)
	fullFence(&s.hosted.own)
	if _, state := s.state(); !s.hasMore() && !s.isAboutToMove() && (state != StateClosed || s.ended) {
		ring(l.near)
		until := time.Now().Add(longestNap)
		if deadline, there := ctx.Deadline(); there && deadline.Before(until) {
			until = deadline
		}
		_ = l.near.SetReadDeadline(until)
		_, _ = l.near.Read(s.heard[:])
	}
	s.page.set(pageAsleep, 0)
	hear(l.near, s.heard[:])
}

// hear empties the bell.
func hear(bell *os.File, room []byte) {
	raw, err := bell.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		for n := len(room); n == len(room); {
			n, _, _ = syscall.Recvfrom(int(fd), room, syscall.MSG_DONTWAIT)
		}
	})
}

// now reads the channel's clock, in ticks (SPEC.md 5).
func (s *Subscriber) now() uint64 {
	if s.ClockKind == 1 {
		return counter()
	}
	return monotonic()
}

// Age returns the time since a message was published; 0 if that time is in the future, or if the publisher gave no time.
func (s *Subscriber) Age(ticks uint64) time.Duration {
	if s.isClosed || ticks == 0 {
		return 0
	}
	return ageOf(s.now(), ticks, s.ClockRate)
}

// ageOf is the time of SPEC.md 5. rate is at most 10^12.
func ageOf(now, ticks, rate uint64) time.Duration {
	elapsed := (now - ticks) & (1<<48 - 1)
	if elapsed > 1<<47 {
		return 0
	}
	if rate == 1e9 { // without a division, which costs as much as reading the clock
		return time.Duration(elapsed)
	}
	ns := float64(elapsed/rate)*1e9 + float64(elapsed%rate)*1e9/float64(rate)
	return time.Duration(min(ns, math.MaxInt64/2))
}

// firstSince finds the first message of this time or later in the ring. It moves the reader.
func (s *Subscriber) firstSince(since time.Time) (place, error) {
	age := time.Since(since)
	oldest, err := s.oldest()
	if err != nil {
		return place{}, err
	}
	tail, err := s.tail()
	if err != nil {
		return place{}, err
	}
	var old *TooOldError
	low, high := oldest.sequence, tail.sequence
	for low < high {
		middle := low + (high-low)/2
		at, err := s.seek(middle)
		if err != nil && !errors.As(err, &old) {
			return place{}, err
		}
		if s.jump(at); err != nil || s.isNextOlder(age) {
			low = middle + 1
		} else {
			high = middle
		}
	}
	if low <= oldest.sequence {
		return s.oldest()
	}
	at, err := s.seek(low)
	if errors.As(err, &old) {
		return s.oldest()
	}
	return at, err
}

// isNextOlder says whether the next message is older than this age.
func (s *Subscriber) isNextOlder(age time.Duration) bool {
	for range 64 {
		switch s.poll(nil, &s.found) {
		case foundMessage, foundTooSmall: // the payload is not wanted
			ticks := s.found.meta & (1<<48 - 1)
			return ticks != 0 && s.Age(ticks) > age
		case foundLapped:
			return true
		case foundSuperseded, foundCorrupt:
			return false
		}
	}
	return false
}
