package shmcast

import (
	"errors"
	"time"
)

// ErrConflation is the error of a conflating subscriber whose start is an older message. It would not know which messages it was given.
var ErrConflation = errors.New("a reader that conflates begins with the latest message or with the board")

// boardStep is the next thing that a subscriber returns from the board.
type boardStep uint8

const (
	stepRing      boardStep = iota // the messages of the ring
	stepDue                        // the reader fell behind, and joins at the next call for an event
	stepForgotten                  // keys whose removal the board has forgotten
	stepMessages                   // the listed messages
)

// joining is a subscriber's copy of the board, with the messages that it has not returned yet. Until all are returned, the subscriber's
// place is the one at which it continues in the ring. behind is then the sequence there, so each call comes here first. A message of the
// ring costs nothing more.
type joining struct {
	snapshot *snapshot
	ledger   *ledger // nil unless the reader conflates
	behind   uint64  // lag in bytes, if the reader conflates
	step     boardStep
	next     int    // of the listed messages
	missed   uint64 // missed messages that the board does not replace
}

// newJoining makes what a subscriber needs for joins; nil if the segment has no board.
func (s *Subscriber) newJoining() *joining {
	if s.board == nil {
		return nil
	}
	j := &joining{snapshot: newSnapshot(s.segment)}
	if s.opts.conflates {
		j.ledger = newLedger(j.snapshot)
		if j.behind = s.opts.behind; j.behind == 0 {
			j.behind = s.Capacity / 2
		}
	}
	return j
}

func (s *Subscriber) isConflating() bool { return s.joining != nil && s.joining.ledger != nil }

func (s *Subscriber) isOnBoard() bool { return s.joining != nil && s.joining.step != stepRing }

// followBoard continues with the board of the segment in which the channel continues. The messages that the reader was given stay known.
func (s *Subscriber) followBoard(isRestarted bool) {
	j := s.joining
	if j == nil {
		return
	}
	was := j.snapshot.board
	s.joining = s.newJoining()
	if s.joining == nil || j.ledger == nil {
		return
	}
	s.joining.ledger.hasMoved = true
	// A board whose keys are other bytes of the payload begins empty.
	if !isRestarted && was.KeyStart == s.board.KeyStart && was.KeyEnd == s.board.KeyEnd {
		s.joining.ledger.takeOver(j.ledger, was, s.board)
	}
}

// beginWithBoard begins with the board: with its messages if this was requested, otherwise only with its counts.
func (s *Subscriber) beginWithBoard() error {
	if s.opts.start != startBoard && !s.opts.conflates {
		return nil
	}
	if s.opts.conflates && s.opts.start != startBoard && s.opts.start != startLatest {
		return ErrConflation
	}
	for until := time.Now().Add(joinPatience); ; {
		if s.joining == nil {
			s.joining = s.newJoining()
		}
		if s.joining == nil {
			return ErrNoBoard
		}
		s.update()
		epoch, err := s.joining.snapshot.join(&s.reader, s.buffer)
		if s.hosted == nil || s.hosted.verdict(s).kind == verdictOpen {
			if err != nil {
				return err
			}
			s.joined(epoch)
			return nil
		}
		// The copied messages can be invalid. The channel continues in the next segment, and so does this reader.
		if time.Now().After(until) {
			return errTooFast
		}
		if err := s.follow(); err != nil {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

// joined prepares the board that was just joined, for a subscriber that begins.
func (s *Subscriber) joined(epoch uint64) {
	j := s.joining
	s.known, s.behind = max(s.known, epoch), 0
	if j.ledger != nil {
		j.ledger.takeFrom(j.snapshot)
	}
	if s.opts.start == startBoard {
		j.missed = j.snapshot.listLive()
		s.handOutFrom(stepMessages)
	} else {
		s.doubt()
	}
	s.passed()
}

// follow continues in the next segment if the channel has moved there. It is for a caller that receives nothing.
func (s *Subscriber) follow() error {
	if s.hosted == nil {
		return nil
	}
	var ev Event
	for range mostWaiting + 1 {
		generation := s.hosted.generation
		if _, err := s.tryNext(&ev); err != nil {
			return err
		}
		if s.hosted.generation == generation && !s.isAboutToMove() {
			return nil
		}
	}
	return nil
}

// handOutFrom makes the next events come from the board.
func (s *Subscriber) handOutFrom(step boardStep) {
	s.joining.step, s.joining.next = step, 0
	s.jump(s.place)
	s.behind = max(s.sequence, 1)
}

// leaveBoard drops the messages that were not returned yet, because the caller moves the reader.
func (s *Subscriber) leaveBoard() {
	if s.isOnBoard() {
		s.joining.step, s.behind = stepRing, 0
	}
}

// doubt records whether the last jump has possibly skipped the record of a new epoch (SPEC.md 3.3).
func (s *Subscriber) doubt() {
	acquireFence()
	epoch, _ := s.state()
	s.inDoubt = epoch > max(s.known, s.beganIn)
}

// fromBoard returns the next event of the board. isOver says that the board could not be joined, and that the reader continues at its place
// in the ring.
func (s *Subscriber) fromBoard(out []byte, ev *Event) (isOver bool, err error) {
	j := s.joining
	if j.step == stepDue {
		before := s.place
		s.leaveBoard()
		if !s.conflate(before.sequence) {
			s.jump(before)
			s.doubt()
			return true, nil
		}
	}
	if j.step == stepForgotten {
		if key := j.ledger.nextForgotten(j.snapshot); key != nil {
			return false, s.tellForgotten(key, out, ev)
		}
		j.ledger.takeFrom(j.snapshot)
		j.step = stepMessages
	}
	if j.next < len(j.snapshot.order) {
		return false, s.tellListed(j.snapshot.order[j.next].number, out, ev)
	}
	if j.missed > 0 {
		*ev = Event{Kind: KindLapped, Missed: j.missed, ResumedAt: s.sequence}
		if s.page != nil {
			s.page.add(pageLapped, 1)
		}
		s.missed(j.missed)
		j.missed = 0
		return false, nil
	}
	s.leaveBoard()
	s.jump(s.place)
	s.doubt()
	*ev = Event{Kind: KindLive, Sequence: s.sequence}
	return false, nil
}

// tellForgotten returns the removal of a key that the board has forgotten. The payload is the key, with zeros before it.
func (s *Subscriber) tellForgotten(key, out []byte, ev *Event) error {
	b := s.joining.snapshot.board
	if uint64(len(out)) < b.KeyEnd {
		s.small = TooSmallError{int(b.KeyEnd), len(out)}
		return &s.small
	}
	clear(out[:b.KeyStart])
	copy(out[b.KeyStart:b.KeyEnd], key)
	s.joining.ledger.forgotten++
	*ev = Event{
		Kind: KindMessage, FromBoard: true, Sequence: s.joining.ledger.forgottenUpTo, Tag: b.RemoveTag, Payload: out[:b.KeyEnd],
	}
	return nil
}

// tellListed returns a message of the board.
func (s *Subscriber) tellListed(number uint64, out []byte, ev *Event) error {
	n := s.joining.snapshot
	r, value := n.row(number), n.value(number)
	if len(out) < len(value) {
		s.small = TooSmallError{len(value), len(out)}
		return &s.small
	}
	s.joining.next++
	s.count()
	*ev = Event{
		Kind: KindMessage, FromBoard: true, Conflated: r.leftOut, Key: r.meta&metaKey != 0, Tag: uint16(r.meta >> 48),
		Sequence: r.sequence, Time: r.time, Payload: out[:copy(out, value)],
	}
	return nil
}

// track counts a message that was received from the ring. A conflating reader that is far behind joins the board before its next event.
func (s *Subscriber) track(ev *Event) {
	j := s.joining
	hasRoom := j.ledger.note(s.board, ev.Sequence, ev.Tag, ev.Payload)
	if s.reader.header.load(wordFrontier)-s.position > j.behind || !hasRoom {
		s.handOutFrom(stepDue)
	}
}

// conflate joins the board, and returns the newest message of each key that has a message at the sequence due or later. It returns false if
// this is not possible. The reader's place is then undefined.
func (s *Subscriber) conflate(due uint64) bool {
	if s.isWithdrawn() {
		return false
	}
	j := s.joining
	epoch, err := j.snapshot.join(&s.reader, s.buffer)
	j.ledger.seekForgotten(j.snapshot.board, s.sequence)
	// The copied messages must have been valid before and after the copy, as each message of the ring must be.
	if err != nil || s.sequence < due || s.isWithdrawn() {
		return false
	}
	messages := j.snapshot.listSince(due, func(r *row) uint64 { return j.ledger.given(j.snapshot.board, r) })
	j.missed = max(s.sequence-due, messages) - messages
	s.behind, s.known = 0, max(s.known, epoch)
	if s.page != nil {
		s.page.add(pageConflated, messages-uint64(len(j.snapshot.order)))
	}
	s.handOutFrom(stepForgotten)
	s.passed()
	return true
}

// isWithdrawn says whether the charter has closed this generation, so that messages can be invalid.
func (s *Subscriber) isWithdrawn() bool {
	return s.hosted != nil && s.hosted.verdict(s).kind != verdictOpen
}
