package shmcast

import (
	"errors"
	"fmt"
	"time"
)

// Limits of a join. Each pass copies only what changed since the previous pass, so later passes are short.
const (
	mostPasses   = 200
	joinLimit    = 30 * time.Second // far longer than a whole board takes; only a hostile writer makes passes fail for so long
	mostMerged   = 256 << 20        // limit for merged bytes of the ring, or four times the ring
	joinPatience = 5 * time.Second  // longest wait of a starting reader for the channel's next segment
)

// ErrNoBoard is the error of a channel that has no board, or that continues without one.
var ErrNoBoard = errors.New("the channel has no board")

// ErrBoard is the error of a board that cannot be joined to its ring. The error that wraps it says why.
var ErrBoard = errors.New("the board and the ring cannot be joined")

var (
	errTooFast = fmt.Errorf("%w: the ring holds less than what is published while the board is read: make it larger", ErrBoard)
	errAhead   = fmt.Errorf("%w: the board names messages that the ring does not have: remove the channel, or begin it anew", ErrBoard)
	errLeft    = fmt.Errorf("%w: the board ends before the ring begins: its publisher does not keep it; use the same release", ErrBoard)
)

// taken is the part of a message that a board keeps beside its payload.
type taken struct {
	sequence uint64
	time     uint64
	tag      uint16
	key      bool
}

// failures counts the failed passes by their reasons.
type failures struct {
	ahead   int    // passes in which the board had messages that the ring did not have
	through uint64 // the message after this one was gone from the ring
	isGone  bool
	still   int // number of such passes in which the board had not changed
}

func (f *failures) gone(through uint64) {
	if f.isGone && f.through == through {
		f.still++
	}
	f.isGone, f.through = true, through
}

func (f *failures) reason(passes int) error {
	switch {
	case f.ahead > passes/2:
		return errAhead
	case f.isGone && f.still > passes/2:
		return errLeft
	}
	return errTooFast
}

// join copies the slots that have changed, and merges the ring's messages into the copies, up to the newest message. It leaves the reader
// right after the last merged message, and returns the epoch in the last epoch record; 0 if there was none. SPEC.md 8.3 has the argument.
func (n *snapshot) join(r *reader, buffer []byte) (epoch uint64, err error) {
	var f failures
	start, merged := nanotime(), uint64(0)
	isLate := func() bool { return nanotime()-start > int64(joinLimit) || merged > max(mostMerged, 4*r.Capacity) }
	pass := 0
	for pass < mostPasses && (pass == 0 || !isLate()) {
		pass++
		through := n.through()
		if !n.copyChanged(isLate) {
			continue
		}
		at, err := r.seek(min(through, maxSequence-1) + 1)
		switch err.(type) {
		case nil:
		case *NotYetError:
			f.ahead++
			continue
		case *TooOldError:
			f.gone(through)
			continue
		default:
			return 0, err
		}
		tail, err := r.tail()
		if err != nil {
			return 0, err
		}
		if n.indexRows() >= tail.sequence {
			f.ahead++
			continue
		}
		r.jump(at)
		epoch, isMerged, err := n.merge(r, tail.sequence, buffer)
		if err != nil {
			return 0, err
		}
		if isMerged {
			n.dropUnresolved()
			return epoch, nil
		}
		merged += r.position - at.position
	}
	return 0, f.reason(pass)
}

// merge reads the ring's messages below the sequence end, and replaces the copies of their keys. It returns false if the publisher was
// faster, or if there are more new keys than rows for them.
func (n *snapshot) merge(r *reader, end uint64, buffer []byte) (epoch uint64, isMerged bool, err error) {
	var p polled
	for r.sequence < end {
		before := r.place
		switch r.poll(buffer, &p) {
		case foundMessage:
			ev := taken{before.sequence, p.meta & (1<<48 - 1), uint16(p.meta >> 48), p.commit&flagKey != 0}
			if !n.take(&ev, buffer[:p.length]) {
				return 0, false, nil
			}
		case foundEpoch:
			epoch = p.a
		case foundEnd, foundGap, foundSession:
		case foundNothing:
			if r.place == before {
				return 0, false, nil
			}
		case foundCorrupt:
			return 0, false, r.corrupt()
		default: // overtaken, or the segment was replaced
			return 0, false, nil
		}
	}
	return epoch, true, nil
}
