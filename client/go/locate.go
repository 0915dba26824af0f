package shmcast

import (
	"errors"
	"fmt"
)

// NotYetError is the error of a sequence that is not published yet.
type NotYetError struct{ Sequence, Next uint64 }

func (e *NotYetError) Error() string {
	return fmt.Sprintf("message %d is not published yet; the next one is %d", e.Sequence, e.Next)
}

// TooOldError is the error of a sequence that is overwritten.
type TooOldError struct{ Sequence, Oldest uint64 }

func (e *TooOldError) Error() string {
	return fmt.Sprintf("message %d is overwritten; the oldest is %d", e.Sequence, e.Oldest)
}

// errOverrun ends a search because the publisher overtook it. The search begins again.
var errOverrun = errors.New("overrun")

const (
	attempts  = 100
	tailSteps = 256
)

// record is the result of inspect: the sequence of the record, and the place after it. If there is false, there is no record.
type record struct {
	there    bool
	sequence uint64
	after    place
}

func damaged(at place) error {
	return fmt.Errorf("%w, at position %d, near sequence %d", ErrCorrupt, at.position, at.sequence)
}

// inspect reads the record at a place (SPEC.md 3.4).
func (s *segment) inspect(at place) (record, error) {
	offset := at.position & (s.Capacity - 1)
	w := s.data.load(offset / 8)
	acquireFence() // SYNC commit
	isControl := w&(flagControl|flagPad) == flagControl
	var kind, a, b uint64
	if isControl {
		kind, a, b = s.data.load(offset/8+2), s.data.load(offset/8+3), s.data.load(offset/8+4)
	}
	acquireFence() // SYNC window
	frontier := s.header.load(wordFrontier)
	switch {
	case at.position > frontier || frontier > maxPosition:
		return record{}, damaged(at)
	case frontier-at.position > s.Capacity:
		return record{}, errOverrun
	case w == 0:
		return record{}, nil
	}
	sequence, next := at.sequence, at.sequence+1
	if w&(flagControl|flagPad) != 0 {
		next = sequence
	}
	if isControl && kind == controlGap {
		if a > b || b >= maxSequence {
			return record{}, damaged(at)
		}
		if a <= sequence && sequence <= b+1 {
			sequence, next = a, b+1
		}
	}
	end := at.position + bytesOf(w)
	if end > frontier || !s.isPlausible(w, sequence, s.Capacity-offset) {
		return record{}, damaged(at)
	}
	return record{true, sequence, place{end, next}}, nil
}

func (s *segment) indexed(sequence uint64) uint64 {
	return s.index.load(sequence&(s.IndexEntries-1)) &^ (granule - 1)
}

func (s *segment) hint() (place, error) {
	count := s.header.load(wordCount)
	acquireFence() // SYNC lazy
	if count < s.first()-1 || count >= maxSequence {
		return place{}, damaged(place{0, count})
	}
	at := place{s.indexed(count + 1), count + 1}
	acquireFence() // SYNC index
	moved := s.header.load(wordCount) - count
	if moved == 0 {
		return at, nil
	}
	if moved < 1<<31 {
		if r, err := s.inspect(at); err == nil && r.there {
			return at, nil
		}
	}
	return place{}, errOverrun
}

// verify accepts a place whose record has the place's sequence, includes it, or ends right before it.
func (s *segment) verify(at place) (place, error) {
	r, err := s.inspect(at)
	switch {
	case err != nil || !r.there:
		return at, err
	case r.sequence < at.sequence && r.after.sequence == at.sequence:
		return r.after, nil
	}
	return place{at.position, r.sequence}, nil
}

func (s *segment) newest() (place, error) {
	at, err := s.hint()
	if err != nil {
		return place{}, err
	}
	return s.verify(at)
}

// retry repeats a search that the publisher overtook. done is false if the publisher overtook every attempt.
func retry(search func(attempt int) (place, error)) (at place, done bool, err error) {
	for attempt := range attempts {
		if at, err = search(attempt); !errors.Is(err, errOverrun) {
			return at, true, err
		}
	}
	return place{}, false, nil
}

// tail finds the place after everything that was published before the call.
func (s *segment) tail() (place, error) {
	at, done, err := retry(func(int) (place, error) {
		at, err := s.hint()
		for step := 0; err == nil && step <= tailSteps; step++ {
			var r record
			if r, err = s.inspect(at); err != nil || !r.there {
				break
			}
			at = r.after
		}
		return at, err
	})
	if done {
		return at, err
	}
	// This place is known to be overwritten: a reader there finds immediately that it was lapped.
	frontier := s.header.load(wordFrontier)
	acquireFence()
	count := s.header.load(wordCount)
	if frontier > maxPosition || count >= maxSequence {
		return place{}, damaged(place{frontier, count})
	}
	if frontier < s.Capacity+granule {
		return place{0, s.first()}, nil
	}
	return place{(frontier - s.Capacity - granule) &^ (granule - 1), count + 1}, nil
}

// oldest finds the oldest place that will not be overwritten immediately.
func (s *segment) oldest() (place, error) {
	at, done, err := retry(s.oldestNow)
	if done {
		return at, err
	}
	return s.tail()
}

func (s *segment) oldestNow(attempt int) (place, error) {
	newest, err := s.newest()
	if err != nil {
		return place{}, err
	}
	frontier := s.header.load(wordFrontier)
	room := min(s.Chunk<<min(attempt, 6), s.Capacity/2)
	if frontier > maxPosition {
		return place{}, damaged(place{frontier, newest.sequence})
	}
	if frontier+room <= s.Capacity {
		return s.verify(place{0, s.first()})
	}
	safe := frontier + room - s.Capacity
	low, high, best := uint64(1), newest.sequence, newest
	if newest.sequence > s.IndexEntries {
		low = newest.sequence - (s.IndexEntries - 1)
	}
	for low < high {
		middle := low + (high-low)/2
		if position := s.indexed(middle); safe <= position && position < newest.position {
			best, high = place{position, middle}, middle
		} else {
			low = middle + 1
		}
	}
	return s.verify(best)
}

// walk moves from a place to the record that has or includes sequence, or to the tail. there is false at the tail.
func (s *segment) walk(at place, sequence, steps uint64) (to place, there bool, err error) {
	for range steps + 1 {
		r, err := s.inspect(at)
		if err != nil {
			return place{}, false, err
		}
		if !r.there || r.after.sequence > sequence {
			return at, r.there, nil
		}
		at = r.after
	}
	return place{}, false, errOverrun
}

// seek finds the place of a sequence. It returns a [TooOldError] or a [NotYetError] if there is none.
func (s *segment) seek(sequence uint64) (place, error) {
	at, done, err := retry(func(attempt int) (place, error) { return s.seekNow(sequence, attempt) })
	if done {
		return at, err
	}
	tail, err := s.tail()
	switch {
	case err != nil:
		return place{}, err
	case sequence < tail.sequence:
		return place{}, &TooOldError{sequence, tail.sequence}
	case sequence > tail.sequence:
		return place{}, &NotYetError{sequence, tail.sequence}
	}
	return tail, nil
}

func (s *segment) seekNow(sequence uint64, attempt int) (place, error) {
	newest, err := s.newest()
	if err != nil {
		return place{}, err
	}
	if sequence >= newest.sequence {
		at, there, err := s.walk(newest, sequence, tailSteps)
		if err == nil && !there && at.sequence < sequence {
			return place{}, &NotYetError{sequence, at.sequence}
		}
		return at, err
	}
	position := s.indexed(sequence)
	if newest.sequence-sequence < s.IndexEntries && sequence >= s.first() && position < newest.position {
		if at, err := s.verify(place{position, sequence}); !errors.Is(err, errOverrun) {
			return at, err
		}
	}
	start, err := s.verify(place{0, s.first()})
	if err != nil {
		if start, err = s.oldestNow(attempt); err != nil {
			return place{}, err
		}
	}
	if sequence >= start.sequence {
		if at, _, err := s.walk(start, sequence, s.IndexEntries); err == nil {
			return at, nil
		}
	}
	return place{}, &TooOldError{sequence, start.sequence}
}
