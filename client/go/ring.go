package shmcast

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"unsafe"
)

// ErrCorrupt is the error of a ring with bytes that no publisher writes.
var ErrCorrupt = errCorrupt

// place is a position in the ring and the sequence that is due there.
type place struct{ position, sequence uint64 }

// found is the result of a poll.
type found uint8

const (
	foundNothing found = iota
	foundMessage
	foundEpoch
	foundEnd
	foundGap
	foundSession
	foundLapped
	foundTooSmall
	foundSuperseded
	foundCorrupt
)

// polled has the result of a poll. Fields that do not belong to the kind mean nothing.
type polled struct {
	length uint64 // length of a message, even if the message does not fit
	commit uint64
	meta   uint64
	a, b   uint64 // the words of a control record
}

// reader reads records as SPEC.md 3.1 says. The words that it loads from the segment are claims of another process.
type reader struct {
	*segment
	place
	empties uint8
	ended   bool
	together
}

// together is the state of a reader that is behind: it copies small records together and verifies them once (SPEC.md 3.1, several at once).
type together struct {
	run     [runBytes]byte // copies of records, also for later calls
	runFrom uint64         // the position of the first copied record, or noRun
	inARow  int            // messages since a poll found nothing, or since no run could be copied
	last    uint64         // bytes of the last message
	counted uint64         // the last count of messages that was seen
}

const (
	runBytes    = 4 << 10
	runMessages = runBytes / granule // a run has at most this many messages
	far         = 8                  // a reader that found this many messages in a row is behind
	noRun       = maxPosition + runBytes
)

func lengthOf(commit uint64) uint64 { return commit & 0x1ff_ffff }

func bytesOf(commit uint64) uint64 {
	return (recordHeader + lengthOf(commit) + granule - 1) &^ (granule - 1)
}

const (
	flagValid   = 1 << 25
	flagPad     = 1 << 26
	flagKey     = 1 << 27
	flagControl = 1 << 28
)

// Kinds of control records.
const (
	controlEpoch   = 1
	controlEnd     = 2
	controlGap     = 3
	controlSession = 4
)

// isPlausible says whether a commit word is possible where sequence is due and the ring has rest bytes left.
func (s *segment) isPlausible(commit, sequence, rest uint64) bool {
	n := bytesOf(commit)
	switch {
	case commit&flagValid == 0 || commit>>32 != sequence&0xffff_ffff:
		return false
	case commit&flagPad != 0:
		return n == rest
	case commit&flagControl != 0:
		return n <= rest && (lengthOf(commit) <= 24 || lengthOf(commit) <= s.MaxMessage)
	}
	return n <= rest && lengthOf(commit) <= s.MaxMessage
}

// glance takes the next record if it is a message that fits into out. Otherwise it changes nothing, and poll finds the reason. It is one
// function without calls, because a call costs as much as a third of a small message.
func (r *reader) glance(out []byte, ev *Event) bool {
	s := r.segment
	offset := r.position & (s.Capacity - 1)
	at := unsafe.Add(s.data.base, offset)
	w := atomic.LoadUint64((*uint64)(at))
	acquireFence() // SYNC commit
	length, n := lengthOf(w), bytesOf(w)
	isMessage := w&(flagValid|flagPad|flagControl) == flagValid && w>>32 == r.sequence&0xffff_ffff
	if !isMessage || n > s.Capacity-offset || length > s.MaxMessage || length > uint64(len(out)) {
		return false
	}
	meta := atomic.LoadUint64((*uint64)(unsafe.Add(at, 8)))
	copy(out, unsafe.Slice((*byte)(unsafe.Add(at, recordHeader)), length))
	acquireFence() // SYNC window
	if ahead := s.header.load(wordFrontier) - r.position; ahead > s.Capacity || ahead < n {
		return false
	}
	ev.message(w, meta, r.sequence, out[:length])
	r.position += n
	r.sequence++
	r.last = length
	r.inARow++
	return true
}

// canRun says whether the next run of records can be copied: enough messages are committed, and the last one was small.
func (r *reader) canRun() bool {
	s := r.segment
	if r.inARow < far || r.last > runBytes/8 || r.position&(s.Capacity-1)+runBytes > s.Capacity {
		return false
	}
	if r.counted+1 < r.sequence+runMessages {
		r.counted = min(s.header.load(wordCount), maxSequence)
		acquireFence() // SYNC lazy
		if r.counted+1 < r.sequence+runMessages {
			r.inARow = 0 // each check costs the publisher time
			return false
		}
	}
	return true
}

// copyRun copies a run of records, and says whether the copy is valid.
func (r *reader) copyRun(to *[runBytes]byte) bool {
	s := r.segment
	copy(to[:], unsafe.Slice((*byte)(unsafe.Add(s.data.base, r.position&(s.Capacity-1))), runBytes))
	acquireFence() // SYNC window
	ahead := s.header.load(wordFrontier) - r.position
	return ahead <= s.Capacity && ahead >= runBytes
}

// fromRun takes the next message from a run that was copied from this position. If there is none, it changes nothing.
func (r *reader) fromRun(run *[runBytes]byte, from uint64, ev *Event) bool {
	at := r.position - from
	if at > runBytes-granule {
		return false
	}
	record := run[at:]
	w := binary.LittleEndian.Uint64(record)
	length, n := lengthOf(w), bytesOf(w)
	isMessage := w&(flagValid|flagPad|flagControl) == flagValid && w>>32 == r.sequence&0xffff_ffff
	if !isMessage || n > uint64(len(record)) || length > r.MaxMessage {
		return false
	}
	ev.message(w, binary.LittleEndian.Uint64(record[8:]), r.sequence, record[recordHeader:][:length:length])
	r.position += n
	r.sequence++
	return true
}

// poll takes the next record. A message's payload is copied to the start of out.
func (r *reader) poll(out []byte, p *polled) found {
	kind, again := r.pollOnce(out, p)
	if again {
		kind, _ = r.pollOnce(out, p)
	}
	return kind
}

func (r *reader) pollOnce(out []byte, p *polled) (kind found, again bool) {
	offset := r.position & (r.Capacity - 1)
	w := r.data.load(offset / 8)
	if w == 0 {
		r.inARow = 0
		if r.empties++; r.empties%64 != 0 {
			return foundNothing, false
		}
		return r.look()
	}
	acquireFence() // SYNC commit
	rest := r.Capacity - offset
	n := bytesOf(w)
	p.commit, p.length = w, lengthOf(w)
	plausible := r.isPlausible(w, r.sequence, rest)
	special := w & (flagPad | flagControl)
	// A granule has eight words, and no record crosses the end of the ring. So all loaded words lie in the ring.
	fits := true
	if plausible {
		switch {
		case special == 0:
			p.meta = r.data.load(offset/8 + 1)
			if fits = p.length <= uint64(len(out)); fits {
				copy(out, unsafe.Slice((*byte)(unsafe.Add(r.data.base, offset+recordHeader)), p.length))
			}
		case special&flagPad == 0:
			p.meta, p.a, p.b = r.data.load(offset/8+2), r.data.load(offset/8+3), r.data.load(offset/8+4)
		}
	}
	acquireFence() // SYNC window
	if ahead := r.header.load(wordFrontier) - r.position; ahead > r.Capacity || ahead < n || !plausible {
		return r.outside(ahead), false
	}
	if special == 0 {
		if !fits {
			return foundTooSmall, false
		}
		r.position += n
		r.sequence++
		return foundMessage, false
	}
	return r.pollSpecial(p, n)
}

// outside returns the reason why a record cannot be taken. The record begins ahead bytes before the frontier.
func (r *reader) outside(ahead uint64) found {
	if ahead > r.Capacity && ahead <= maxPosition {
		return foundLapped
	}
	return foundCorrupt
}

// pollSpecial takes a pad or a control record that was verified.
func (r *reader) pollSpecial(p *polled, n uint64) (kind found, again bool) {
	if p.commit&flagPad != 0 {
		r.position += n
		return foundNothing, n < r.Capacity
	}
	switch p.meta {
	case controlEpoch:
		kind = foundEpoch
	case controlEnd:
		kind = foundEnd
	case controlGap:
		if p.a != r.sequence || p.a > p.b || p.b >= maxSequence {
			return foundCorrupt, false
		}
		r.sequence = p.b + 1
		kind = foundGap
	case controlSession:
		kind = foundSession
	}
	r.position += n
	if kind != foundNothing {
		r.ended = kind == foundEnd
	}
	return kind, false
}

// look finds what an empty poll does not see: a lap, the end, another segment (SPEC.md 3.2). again says that there is something by now.
func (r *reader) look() (kind found, again bool) {
	_, state := r.state()
	acquireFence() // SYNC close
	if r.data.load((r.position&(r.Capacity-1))/8) != 0 {
		return foundNothing, true
	}
	acquireFence()
	if ahead := r.header.load(wordFrontier) - r.position; ahead > r.Capacity {
		return r.outside(ahead), false
	}
	if state == StateSuperseded {
		return foundSuperseded, false
	}
	if state == StateClosed && !r.ended {
		r.ended = true
		return foundEnd, false
	}
	return foundNothing, false
}

// jump continues at another place.
func (r *reader) jump(to place) { r.place, r.ended, r.runFrom = to, false, noRun }

func (r *reader) corrupt() error {
	return fmt.Errorf("%w, at position %d, where sequence %d is due", ErrCorrupt, r.position, r.sequence)
}
