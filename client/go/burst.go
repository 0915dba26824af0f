package shmcast

import "time"

// Limits of [WaitBurst].
const (
	burstMessages = 32
	burstWithin   = 8 * time.Microsecond
	burstClose    = 512 // a reader that is behind by fewer messages is close to the publisher
	burstPause    = 8 * time.Microsecond
)

// burst lets the publisher get ahead of a reader that is close to it in a burst. Cache lines near the publisher move back and forth between
// the two. A reader that stays behind finds several messages together in lines that are ready.
type burst struct {
	isClose bool      // whether the last batch ended close to the publisher
	marked  uint64    // the sequence from which messages count as a burst
	at      time.Time // the time at marked
	// Messages below this sequence existed when the publisher had last got ahead. They are received first, so no message waits for two
	// pauses.
	target uint64
}

// letAhead pauses if the last batch ended close to the publisher in a burst. The pause ends when this reader is half a ring behind.
func (s *Subscriber) letAhead() {
	b := &s.burst
	if !b.isClose || s.isClosed {
		return
	}
	b.isClose = false
	if s.sequence >= b.marked && s.sequence-b.marked < burstMessages {
		return
	}
	start := time.Now()
	if start.Sub(b.at) < burstWithin {
		for time.Since(start) < burstPause && s.reader.header.load(wordFrontier)-s.position <= s.Capacity/2 {
		}
	}
	b.marked, b.at, b.target = s.sequence, time.Now(), s.sequence+s.Lag()
}

// noteBurst is called after a batch. isEmpty says that there was nothing more.
func (s *Subscriber) noteBurst(isEmpty bool) {
	if !s.isClosed {
		s.burst.isClose = isEmpty || s.sequence >= s.burst.target && s.Lag() < burstClose
	}
}
