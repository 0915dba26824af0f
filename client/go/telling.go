package shmcast

import (
	"os"
	"time"
)

// mostSkipped is the largest number of records without an event that one call skips.
const mostSkipped = 64

// tell decides what the program gets for the result of a poll (SPEC.md 3.5).
func (s *Subscriber) tell(kind found, before place, out []byte, ev *Event) (bool, error) {
	for range mostSkipped {
		there, again, err := s.tellOnce(kind, before, out, ev)
		if !again {
			return there, err
		}
		before = s.place
		kind = s.poll(out, &s.found)
	}
	return false, nil
}

// tellOnce does one step of tell. again says that there is no event, and that the ring can have more.
func (s *Subscriber) tellOnce(kind found, before place, out []byte, ev *Event) (there, again bool, err error) {
	if s.isStrict() && s.withholds(kind, before) {
		s.jump(before)
		there, err = s.tryNext(ev)
		return there, false, err
	}
	p := &s.found
	switch kind {
	case foundNothing:
		if s.place != before {
			return false, true, nil
		}
		there, err = s.tellIdle(ev)
		return there, false, err
	case foundMessage:
		ev.message(p.commit, p.meta, before.sequence, out[:p.length])
		s.count()
	case foundEpoch:
		if p.a == s.known {
			return false, true, nil
		}
		s.known = p.a
		*ev = Event{Kind: KindNewEpoch, Epoch: p.a}
	case foundEnd:
		*ev = Event{Kind: KindEnd}
	case foundGap:
		*ev = Event{Kind: KindGap, From: p.a, To: p.b}
		s.missed(p.b - p.a + 1)
	case foundSession:
		*ev = Event{Kind: KindNewSession, Session: sessionOf(p.a, p.b)}
	case foundLapped:
		there, err = s.lapped(out, ev)
		return there, false, err
	case foundTooSmall:
		s.small = TooSmallError{int(p.length), len(out)}
		return false, false, &s.small
	default:
		there, err = s.tellLost(kind, ev)
		return there, false, err
	}
	return true, false, nil
}

// tellLost handles a segment in which nothing more can be read. For a daemon's channel the charter decides.
func (s *Subscriber) tellLost(kind found, ev *Event) (bool, error) {
	if s.hosted != nil && (kind == foundSuperseded || s.hosted.verdict(s).kind == verdictCut) {
		return s.tryNext(ev)
	}
	if kind == foundSuperseded {
		return false, ErrSuperseded
	}
	return false, s.corrupt()
}

// tellIdle is called when a poll found nothing.
func (s *Subscriber) tellIdle(ev *Event) (bool, error) {
	if s.inDoubt && s.hiddenEpoch(ev) {
		return true, nil
	}
	if there, err := s.tryNext(ev); there || err != nil {
		return there, err
	}
	if s.empties%64 == 0 {
		s.note()
	}
	if s.watch != nil {
		if there, err := s.watch.look(s, ev); there || err != nil {
			return there, err
		}
	}
	if s.name != nil && (s.name.isLost || s.empties%16 == 0) && s.name.look(s.empties%16 == 0) {
		return false, ErrSuperseded
	}
	if s.gate != nil && (s.gate.isLost || s.empties%16 == 0) {
		return false, s.gate.look(s.empties%16 == 0)
	}
	return false, nil
}

// hasMore says whether there is a record that was committed before the state that the caller has read was set.
func (s *Subscriber) hasMore() bool {
	acquireFence()
	return s.data.load((s.position&(s.Capacity-1))/8) != 0 || s.reader.header.load(wordFrontier)-s.position > s.Capacity
}

// hiddenEpoch returns the event of an epoch whose record was overwritten.
func (s *Subscriber) hiddenEpoch(ev *Event) bool {
	epoch, state := s.state()
	if s.hasMore() || s.isWithheld() {
		return false
	}
	s.inDoubt = false
	if state != StateActive || epoch <= max(s.known, s.beganIn) {
		return false
	}
	s.known = epoch
	*ev = Event{Kind: KindNewEpoch, Epoch: epoch}
	return true
}

// lapped continues after a lap (SPEC.md 3.3): with the board, if the reader conflates.
func (s *Subscriber) lapped(out []byte, ev *Event) (bool, error) {
	before := s.place
	if s.isConflating() {
		if s.conflate(before.sequence) {
			isOver, err := s.fromBoard(out, ev)
			return !isOver && err == nil, err
		}
		s.jump(before)
	}
	at, err := s.placeToResume()
	if s.hosted != nil {
		// Messages of a publisher that was cut off must not count as missed. The next segment counts the loss of valid messages.
		v := s.hosted.verdict(s)
		reached := max(at.sequence, before.sequence)
		if v.kind == verdictClosing || v.kind == verdictCut && (err != nil || reached >= v.cut) {
			return s.tryNext(ev)
		}
	}
	if err != nil {
		return false, err
	}
	if at.sequence < before.sequence {
		// The search ended at a place that is overwritten as well. A reader never goes back.
		return false, nil
	}
	s.jump(at)
	s.doubt()
	s.behind = 0
	missed := at.sequence - before.sequence
	if s.page != nil {
		s.page.add(pageLapped, 1)
	}
	s.missed(missed)
	if s.isConflating() {
		s.joining.ledger.hasLost = true
	}
	*ev = Event{Kind: KindLapped, Missed: missed, ResumedAt: at.sequence}
	return true, nil
}

func (s *Subscriber) placeToResume() (place, error) {
	switch s.opts.resume {
	case resumeLatest:
		return s.tail()
	case resumeKey:
		if key := s.reader.header.load(wordKey); key > s.sequence && key < maxSequence {
			if at, err := s.seek(key); err == nil {
				return at, nil
			}
		}
	}
	return s.oldest()
}

// note updates the reader page.
func (s *Subscriber) note() {
	if s.page == nil {
		return
	}
	s.page.set(pagePosition, s.position)
	s.page.set(pageSequence, s.sequence)
	s.page.add(pageReceived, s.noted)
	s.page.set(pageHeartbeat, s.now())
	s.noted = 0
}

func (s *Subscriber) missed(messages uint64) {
	if s.page != nil {
		s.page.add(pageMissed, messages)
		s.note()
	}
}

// watch detects that the publisher died: by its lock, or by the daemon's report.
type watch struct {
	lock       *os.File // of a channel that is a file
	looked     time.Time
	generation uint64 // generation of the last reported death; epoch has its epoch
	epoch      uint64
}

// lockPause is the pause between two checks of a lock, which are system calls.
const lockPause = 10 * time.Millisecond

func (w *watch) close() {
	if w != nil && w.lock != nil {
		w.lock.Close()
	}
}

// look returns the event of the publisher's death once, after all that the publisher committed (SPEC.md 4.1, CONTROL.md 5).
func (w *watch) look(s *Subscriber, ev *Event) (bool, error) {
	epoch, state := s.state()
	if state != StateActive && state != StateRecovering {
		return false, nil
	}
	generation := uint64(0)
	if s.hosted != nil {
		generation = s.hosted.generation
	}
	if w.epoch == epoch && w.generation == generation {
		return false, nil
	}
	if s.hosted != nil {
		if !s.hosted.link.hasDied(generation, epoch) {
			return false, nil
		}
	} else {
		if time.Since(w.looked) < lockPause {
			return false, nil
		}
		w.looked = time.Now()
		locked, err := isLocked(w.lock)
		if err != nil || locked {
			return false, err
		}
		if e, st := s.state(); e != epoch || st != state {
			return false, nil
		}
	}
	before := s.place
	kind, again := s.reader.look()
	if s.inDoubt || kind != foundNothing || again || s.place != before || s.isWithheld() {
		w.looked = time.Time{}
		return false, nil
	}
	w.generation, w.epoch = generation, epoch
	*ev = Event{Kind: KindPublisherGone, Epoch: epoch}
	return true, nil
}

// Batch holds events that were received together, with their payloads.
type Batch struct {
	// Events are valid until the batch is used again.
	Events []Event
	room   []Event
	bytes  []byte
}

// NewBatch makes a batch of up to most events.
func NewBatch(most int) *Batch {
	return &Batch{room: make([]Event, max(most, 1)), bytes: make([]byte, granule*max(most, 1)+runBytes)}
}

// RecvBatch fills b with the available events, in order, and returns their number. It never waits, but with [WaitBurst] it can first let
// the publisher get ahead. An error comes alone, after everything that was received before it.
func (s *Subscriber) RecvBatch(b *Batch) (int, error) {
	if s.opts.wait != waitBurst {
		return s.recvBatch(b)
	}
	s.letAhead()
	n, err := s.recvBatch(b)
	s.noteBurst(n < len(b.room))
	return n, err
}

func (s *Subscriber) recvBatch(b *Batch) (int, error) {
	b.Events = b.room[:0]
	if uint64(len(b.bytes)) < s.largest() {
		b.bytes = make([]byte, s.largest())
	}
	used := 0
	for len(b.Events) < len(b.room) {
		if len(b.room)-len(b.Events) >= runMessages && len(b.bytes)-used >= runBytes && s.runInto(b, &used) {
			continue
		}
		ev := &b.room[len(b.Events)]
		there, err := s.receive(b.bytes[used:], ev)
		_, isSmall := err.(*TooSmallError)
		switch {
		case err != nil && (len(b.Events) > 0 || isSmall):
			return len(b.Events), nil // the message comes again, when the batch has room for the largest message
		case err != nil:
			return 0, err
		case !there:
			return len(b.Events), nil
		}
		b.Events = b.room[:len(b.Events)+1]
		used += len(ev.Payload)
	}
	return len(b.Events), nil
}

// runInto receives messages that are copied together into the batch's memory, if this reader is behind.
func (s *Subscriber) runInto(b *Batch, used *int) bool {
	if s.isClosed || s.behind != 0 || s.isChecked && (s.isStrict() || s.isConflating()) || !s.canRun() {
		return false
	}
	run, from := (*[runBytes]byte)(b.bytes[*used:]), s.position
	if !s.copyRun(run) {
		return false
	}
	events := b.room[len(b.Events):]
	taken := 0
	for taken < len(events) && s.fromRun(run, from, &events[taken]) {
		s.count()
		taken++
	}
	b.Events = b.room[:len(b.Events)+taken]
	*used += int(s.position - from)
	s.passed()
	if taken == 0 {
		s.inARow = 0 // one by one from here
	}
	return taken > 0
}
