package shmcast

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"time"
)

// Errors of a subscriber.
var (
	// ErrSuperseded says that the channel's file was removed or replaced. Subscribe again.
	ErrSuperseded = errors.New("the channel has moved to new memory; subscribe again")
	// ErrClosed says that the subscriber was closed.
	ErrClosed = errors.New("the subscriber is closed")
)

// TooSmallError says that a buffer is smaller than the message. The message is still the next one.
type TooSmallError struct{ Needed, Available int }

func (e *TooSmallError) Error() string {
	return fmt.Sprintf("the message has %d bytes, and the buffer %d", e.Needed, e.Available)
}

// Subscriber receives the messages of a channel, in their order.
type Subscriber struct {
	reader
	buffer []byte
	page   *readerPage
	hosted *hosted // of a daemon's channel
	name   *named  // the name of the channel's file
	watch  *watch
	opts   options
	// isChecked: each message is more than read, because its publisher may be cut off, a gate's page must be told, or its key is counted
	isChecked bool
	joining   *joining  // for a reader that begins with the board, or conflates
	gate      *heldGate // the gate that this reader holds

	noted   uint64 // messages that the page does not count yet
	known   uint64 // the last reported epoch
	beganIn uint64 // the epoch in force where this reader began
	// awaitsNext: the publisher of that epoch had closed the channel, and there was no message
	awaitsNext bool
	inDoubt    bool   // the record of a new epoch has possibly been overwritten
	behind     uint64 // if not 0: first sequence of an unreported loss, or the ring's sequence after the board
	isClosed   bool
	burst      burst
	found      polled
	small      TooSmallError // the last such error, reused so that no error is allocated
	heard      [64]byte      // bytes read from the bell
}

// Subscribe attaches to a channel.
func Subscribe(channel string, with ...Option) (*Subscriber, error) {
	s := &Subscriber{}
	for _, option := range with {
		option(&s.opts)
	}
	if err := checkName(channel); err != nil {
		return nil, err
	}
	if s.opts.wait == waitPark && !s.opts.daemon {
		return nil, errors.New("WaitPark needs a daemon that wakes the reader; use Socket, or another way to wait")
	}
	if s.opts.gate != "" {
		if err := checkGate(s.opts.gate); err != nil {
			return nil, err
		}
	}
	s.opts.since = time.Now()
	until := s.opts.since.Add(s.opts.patience)
	pause := firstPause
	for {
		err := s.attach(channel)
		if err == nil {
			return s, nil
		}
		isAbsent := errors.Is(err, ErrNoChannel)
		left := time.Until(until)
		if left <= 0 || !(isAbsent || isLimit(err) || s.opts.daemon && isPassing(err)) {
			return nil, fmt.Errorf("subscribe to %s: %w", channel, err)
		}
		s.beginLate(isAbsent)
		time.Sleep(min(pause, left))
		if s.opts.daemon {
			pause = min(2*pause, longestPause) // a daemon limits the requests of each user
		}
	}
}

// beginLate sets the start of a reader with [FromLatest] that must wait. All messages of a channel that did not exist are new. A channel of a
// daemon that gave no answer can be older than the wait.
func (s *Subscriber) beginLate(isAbsent bool) {
	switch start := s.opts.start; {
	case s.opts.conflates || start != startLatest && start != startSince:
	case isAbsent:
		s.opts.start = startOldest
	default:
		s.opts.start = startSince
	}
}

const (
	firstPause   = 10 * time.Millisecond
	longestPause = 500 * time.Millisecond
)

func isLimit(err error) bool {
	var refused *RefusedError
	return errors.As(err, &refused) && refused.Code == "limit"
}

func (s *Subscriber) attach(channel string) error {
	if s.opts.daemon {
		return s.attachHosted(channel)
	}
	dir, err := directory(s.opts.dir)
	if err != nil {
		return err
	}
	for range attempts {
		if err = s.attachFile(dir, channel); !errors.Is(err, ErrSuperseded) {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	return err
}

func (s *Subscriber) attachFile(dir, channel string) (err error) {
	files, err := openChannel(dir, channel)
	if err != nil {
		return err
	}
	defer files.dir.Close()
	segment, info, err := files.openSegment()
	if err != nil {
		return err
	}
	s.segment, s.name = segment, nameOf(filepath.Join(files.path, "segment"), info)
	defer func() {
		if err != nil {
			s.page.close()
			s.gate.close()
			s.watch.close()
			s.segment.unmap()
			s.page, s.gate, s.watch, s.joining = nil, nil, nil, nil
		}
	}()
	if err = s.begin(); err != nil {
		return err
	}
	if _, state := s.state(); state == StateSuperseded {
		return ErrSuperseded
	}
	if s.opts.watch {
		lock, err := files.open("lock", os.O_RDONLY, 0)
		if err != nil {
			return err
		}
		s.watch = &watch{lock: lock}
	}
	if !s.opts.hidden {
		// A reader without a page works. Tools do not list it.
		if file, remove, err := files.showPage(); err == nil {
			if s.page, err = newPage(file, remove, s.segment, s.place); err != nil {
				remove()
			}
		}
	}
	if s.opts.gate != "" {
		if s.gate, err = files.takeGate(s.opts.gate, s.UUID); err != nil {
			return err
		}
	}
	return s.attached()
}

// attached is the last step of an attachment: it writes the place to the gate's page, and joins the board.
func (s *Subscriber) attached() error {
	s.update()
	s.passed()
	return s.beginWithBoard()
}

// update computes whether messages must be checked.
func (s *Subscriber) update() { s.isChecked = s.isStrict() || s.gate != nil || s.isConflating() }

// begin finds the place to start from in a segment that was just mapped (SPEC.md 3.0).
func (s *Subscriber) begin() (err error) {
	s.beganIn, _ = s.state()
	s.known, s.behind = 0, 0
	var at place
	switch s.opts.start {
	case startOldest:
		at, err = s.oldest()
	case startSince:
		at, err = s.firstSince(s.opts.since)
	case startSequence:
		var old *TooOldError
		if at, err = s.seek(s.opts.sequence); errors.As(err, &old) {
			s.behind, err = max(s.opts.sequence, 1), nil
			at = place{0, s.behind}
		}
	default:
		at, err = s.tail()
	}
	if err != nil {
		return err
	}
	if s.opts.start == startLatest || s.opts.start == startBoard || s.beganIn == 1 {
		s.known = s.beganIn
	}
	s.jump(at)
	if _, state := s.state(); state == StateClosed && s.opts.start == startLatest {
		end, err := s.tail()
		s.awaitsNext = err == nil && s.sequence >= end.sequence
	}
	s.grow()
	return nil
}

// grow makes room for the largest message of the segment.
func (s *Subscriber) grow() {
	if uint64(len(s.buffer)) < s.largest() {
		s.buffer = make([]byte, s.largest())
	}
}

// largest is the size of the largest payload that can be returned: a message, or a key with the bytes before it.
func (s *Subscriber) largest() uint64 {
	if s.board != nil && s.opts.conflates {
		return max(s.MaxMessage, s.board.KeyEnd)
	}
	return s.MaxMessage
}

// Close detaches.
func (s *Subscriber) Close() error {
	if s.isClosed {
		return nil
	}
	s.isClosed, s.runFrom, s.inARow = true, noRun, 0
	s.note()
	s.page.close()
	s.gate.close()
	s.hosted.close()
	s.watch.close()
	return s.unmap()
}

// TryRecv receives the next event if there is one. ev.Payload is valid until the next call.
func (s *Subscriber) TryRecv(ev *Event) (bool, error) {
	if s.fromRun(&s.run, s.runFrom, ev) || s.inARow >= far && s.nextRun() && s.fromRun(&s.run, s.runFrom, ev) {
		s.count()
		return true, nil
	}
	return s.receive(s.buffer, ev)
}

// nextRun copies records for the next calls, if this reader is behind.
func (s *Subscriber) nextRun() bool {
	if s.isClosed || s.behind != 0 || s.isChecked || !s.canRun() {
		return false
	}
	if !s.copyRun(&s.run) {
		s.runFrom = noRun
		return false
	}
	s.runFrom = s.position
	return true
}

// TryRecvInto does the same with the payload at the start of out. After a [TooSmallError], the message is still the next one.
func (s *Subscriber) TryRecvInto(out []byte, ev *Event) (bool, error) {
	return s.receive(out, ev)
}

func (s *Subscriber) receive(out []byte, ev *Event) (bool, error) {
	s.runFrom = noRun // bytes copied from after a record that is no message are not used
	if s.isClosed {
		return false, ErrClosed
	}
	if s.behind != 0 {
		if there, err := s.receiveBehind(out, ev); there || err != nil || s.behind != 0 {
			return there, err
		}
	}
	if s.isChecked {
		return s.receiveChecked(out, ev)
	}
	if s.glance(out, ev) {
		s.count()
		return true, nil
	}
	before := s.place
	return s.tell(s.poll(out, &s.found), before, out, ev)
}

// receiveBehind returns what comes before the place in the ring: the board, or a loss. If there is no event, the caller can poll the ring.
func (s *Subscriber) receiveBehind(out []byte, ev *Event) (there bool, err error) {
	if s.isOnBoard() {
		isOver, err := s.fromBoard(out, ev)
		return !isOver && err == nil, err
	}
	s.jump(place{0, s.behind})
	there, err = s.lapped(out, ev)
	s.passed()
	return there, err
}

// receiveChecked is receive for messages that must be checked.
func (s *Subscriber) receiveChecked(out []byte, ev *Event) (there bool, err error) {
	if !s.isStrict() && s.glance(out, ev) {
		s.count()
		there = true
	} else {
		before := s.place
		there, err = s.tell(s.poll(out, &s.found), before, out, ev)
	}
	s.passed()
	if there && ev.Kind == KindMessage && !ev.FromBoard && s.isConflating() {
		s.track(ev)
	}
	return there, err
}

// count counts a message that is returned.
func (s *Subscriber) count() {
	if s.noted++; s.noted == 1024 {
		s.note()
	}
}

// Recv waits for the next event. It returns the context's error if the context is done first.
func (s *Subscriber) Recv(ctx context.Context, ev *Event) error {
	_, err := s.recvBefore(ctx, ev, false)
	return err
}

// recvBefore waits for the next event; after an end, until the channel is over.
func (s *Subscriber) recvBefore(ctx context.Context, ev *Event, isBehindEnd bool) (bool, error) {
	for idle := uint(1); ; idle++ {
		if there, err := s.TryRecv(ev); there || err != nil {
			return there, err
		}
		if s.opts.wait != waitSpin && s.opts.wait != waitBurst || idle%64 == 0 {
			if err := ctx.Err(); err != nil {
				return false, err
			}
		}
		if isBehindEnd && s.IsOver() {
			return false, nil
		}
		s.idle(ctx)
	}
}

// Events returns all events until the channel is over, the context is done, or after an error. It reuses the same Event each time. The ends
// of earlier publishers are ordinary events, and so is the last end.
func (s *Subscriber) Events(ctx context.Context) iter.Seq2[*Event, error] {
	return func(yield func(*Event, error) bool) {
		var ev Event
		isBehindEnd := false
		for {
			there, err := s.recvBefore(ctx, &ev, isBehindEnd)
			if err != nil {
				if ctx.Err() == nil {
					yield(nil, err)
				}
				return
			}
			if !there || !yield(&ev, nil) {
				return
			}
			isBehindEnd = ev.Kind == KindEnd
			if isBehindEnd && s.IsOver() {
				return
			}
		}
	}
}

// IsOver says whether the channel is at its end now: the last event was an end, nobody publishes, and there is nothing more to receive.
// Call this after each end, because each publisher that closes the channel causes one. A subscriber that begins with the latest message of
// a closed channel waits for the next publisher.
func (s *Subscriber) IsOver() bool {
	if s.isClosed || !s.ended || s.behind != 0 || s.isWithheld() || s.isAboutToMove() {
		return false
	}
	epoch, state := s.state()
	if s.awaitsNext && epoch == s.beganIn {
		return false
	}
	// A publisher sets the state after the end that it wrote.
	return (state == StateClosed || state == StateActive) && !s.hasMore()
}

// Seek continues at a message, forwards or backwards. After a [TooOldError] or a [NotYetError] the subscriber keeps its place.
func (s *Subscriber) Seek(sequence uint64) error {
	if s.isClosed {
		return ErrClosed
	}
	epoch, _ := s.state()
	at, err := s.seek(sequence)
	if err != nil {
		return err
	}
	s.leaveBoard()
	s.known, s.beganIn, s.behind, s.inDoubt, s.awaitsNext = 0, epoch, 0, false, false
	s.jump(at)
	s.passed()
	return nil
}

// NextSequence returns the sequence of the next message.
func (s *Subscriber) NextSequence() uint64 { return s.sequence }

// Epoch returns the publisher's epoch, as the stream last reported it; 0 until the stream has reported one.
func (s *Subscriber) Epoch() uint64 { return s.known }

// Lag returns the number of messages that are published and not yet received. It can be up to 64 too low.
func (s *Subscriber) Lag() uint64 {
	if s.isClosed {
		return 0
	}
	count := s.reader.header.load(wordCount)
	return max(count+1, s.sequence) - s.sequence
}

// PublisherState returns the epoch and the state that the memory has now.
func (s *Subscriber) PublisherState() (uint64, State) {
	if s.isClosed {
		return 0, StateUnknown
	}
	return s.state()
}

// Session returns the remote session that the channel carries, if it carries one.
func (s *Subscriber) Session() (identity [10]byte, there bool) {
	if s.isClosed {
		return identity, false
	}
	return s.session()
}

// Info returns the properties with which the channel was made.
func (s *Subscriber) Info() Header { return s.segment.Header }
