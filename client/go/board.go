package shmcast

import (
	"bytes"
	"fmt"
	"time"
)

// Limits of a search for a key whose slot is being changed.
const (
	keyTries     = 64
	ringRecords  = 4096
	ringSearched = 32 << 20 // bytes of the ring
)

// Board is the last message of each key of a channel. A program can read it at any time. It reads through a read-only map, so nobody
// notices it. It receives nothing: to get the board and every later message, use a [Subscriber] that begins with [FromBoard]. On a channel
// of a daemon it follows the channel to its next memory. One goroutine at a time can use a Board.
type Board struct {
	s        *Subscriber
	value    []byte
	snapshot *snapshot // a copy of the whole board, made at the first call of Entries
	entries  []BoardEntry
	of       *segment // the segment whose board was read last
	isClosed bool
}

// BoardEntry is a key of a board and its newest message. Its bytes are valid until the next call of the board.
type BoardEntry struct {
	Key        []byte
	Payload    []byte // nil if the message is too large, or if its publisher does not update the board
	Sequence   uint64 // the sequence of the newest message
	Count      uint64 // number of messages of this key, removals included, since the key got its slot on the board
	Tag        uint16
	KeyMessage bool   // a reader can start afresh from this message
	Time       uint64 // the time of publication, for [Board.Age]
}

// BoardCounters has the counters of a board.
type BoardCounters struct {
	Through  uint64 // the sequence up to which each message is on the board
	Since    uint64 // the board is complete for keys whose newest message is at this sequence or later
	Keys     uint64 // keys on the board
	NoRoom   uint64 // number of messages left out because there was no room for their keys
	TooLarge uint64 // number of messages left out because they were larger than a value
	NoKey    uint64 // number of messages left out because they were too short to have a key
}

// OpenBoard opens the board of a channel. It returns [ErrNoBoard] if the channel has none. Options that concern receiving have no effect.
func OpenBoard(channel string, with ...Option) (*Board, error) {
	with = append(append([]Option{}, with...), func(o *options) {
		o.start, o.conflates, o.gate, o.hidden, o.watch, o.wait = startLatest, false, "", true, false, waitYield
	})
	s, err := Subscribe(channel, with...)
	if err != nil {
		return nil, err
	}
	b := &Board{s: s}
	if err := b.follow(); err != nil {
		s.Close()
		return nil, fmt.Errorf("open the board of %s: %w", channel, err)
	}
	return b, nil
}

// follow continues with the board of the segment in which the channel continues.
func (b *Board) follow() error {
	if b.isClosed {
		return ErrClosed
	}
	s := b.s
	if err := s.follow(); err != nil {
		return err
	}
	if _, state := s.state(); state == StateSuperseded && s.hosted == nil {
		return ErrSuperseded
	}
	if s.name != nil && s.name.look(true) {
		return ErrSuperseded
	}
	if s.board == nil {
		return ErrNoBoard
	}
	if b.of != s.segment {
		b.value = make([]byte, s.board.Value)
		b.snapshot, b.entries, b.of = nil, nil, s.segment
	}
	return nil
}

// Get returns the entry of a key; there is false if the board does not have the key. A key of another length than the board's is never on
// the board. Get allocates nothing and makes no system call, with two exceptions: the channel continues in other memory, or it is a file,
// whose name Get checks once a second. ErrSuperseded says that the file was removed or moved.
//
// While a channel moves to other memory, its last publisher can still write messages that are not valid. Get then waits for the new memory.
func (b *Board) Get(key []byte) (entry BoardEntry, there bool, err error) {
	var until time.Time
	for {
		entry, there, err = b.look(key)
		if err != nil || !b.s.isWithdrawn() {
			return entry, there, err
		}
		if err = b.waitUntil(&until); err != nil {
			return BoardEntry{}, false, err
		}
	}
}

// waitUntil waits a moment for the channel's new memory, until a time that the first call sets.
func (b *Board) waitUntil(until *time.Time) error {
	switch now := time.Now(); {
	case until.IsZero():
		*until = now.Add(joinPatience)
	case now.After(*until):
		return errTooFast
	}
	time.Sleep(100 * time.Microsecond)
	return nil
}

// look returns the board's entry of a key. The entry can be invalid.
func (b *Board) look(key []byte) (entry BoardEntry, there bool, err error) {
	if err = b.follow(); err != nil {
		return entry, false, err
	}
	board := b.s.board
	if uint64(len(key)) != board.KeyEnd-board.KeyStart {
		return entry, false, nil
	}
	identity, through := board.identity(key), board.through()
	for range keyTries {
		var h head
		switch board.find(identity, b.value, &h) {
		case soughtNone:
			return entry, false, nil
		case soughtFound:
			return b.entry(b.value[:board.stored(h.meta)], b.value, &h, h.count()), true, nil
		}
		if length, isFound := b.findInRing(key, &h); isFound {
			if board.isRemoval(length, uint16(h.meta>>48)) {
				return entry, false, nil
			}
			payload := b.s.buffer[:length]
			return b.entry(payload, payload, &h, h.count()), true, nil
		}
	}
	if board.through() == through {
		return entry, false, nil // the publisher was stopped while it gave this removed key's slot to another key
	}
	return entry, false, errTooFast
}

// entry makes the entry of a message. bytes begin with the part of the payload that has the key.
func (b *Board) entry(payload, bytes []byte, h *head, count uint64) BoardEntry {
	spec := &b.s.board.BoardSpec
	entry := BoardEntry{
		Key: bytes[spec.KeyStart:spec.KeyEnd:spec.KeyEnd], Sequence: h.sequence, Count: count,
		Tag: uint16(h.meta >> 48), KeyMessage: h.meta&metaKey != 0, Time: h.time,
	}
	if h.isWhole() {
		entry.Payload = payload[:len(payload):len(payload)]
	}
	return entry
}

// findInRing finds the newest message of a key whose slot is being changed, or whose publisher was stopped during the change. THROUGH does
// not count this message yet. The payload is in the subscriber's buffer. h is the head of the slot, which keeps its count.
func (b *Board) findInRing(key []byte, h *head) (length uint64, isFound bool) {
	s, board := b.s, b.s.board
	at, err := s.seek(min(board.through(), maxSequence-1) + 1)
	if err != nil {
		return 0, false
	}
	before := s.place
	defer func() { s.jump(before) }()
	s.jump(at)
	var p polled
	for range ringRecords {
		from := s.place
		kind := s.poll(s.buffer, &p)
		switch {
		case kind == foundMessage && p.length >= board.KeyEnd && bytes.Equal(s.buffer[board.KeyStart:board.KeyEnd], key):
			h.sequence, h.time = from.sequence, p.meta&(1<<48-1)
			h.meta = p.length | p.meta>>48<<48
			if p.commit&flagKey != 0 {
				h.meta |= metaKey
			}
			return p.length, true
		case kind == foundCorrupt || kind == foundLapped || kind == foundSuperseded || kind == foundTooSmall:
			return 0, false
		case s.place == from || s.position-at.position > ringSearched:
			return 0, false
		}
	}
	return 0, false
}

// Entries returns all keys with their newest messages, as they were at one moment, in the order of their sequences. The first call
// allocates a copy of the board. Later calls copy what has changed.
func (b *Board) Entries() ([]BoardEntry, error) {
	var until time.Time
	for {
		if err := b.follow(); err != nil {
			return nil, err
		}
		s := b.s
		if b.snapshot == nil {
			b.snapshot = newSnapshot(s.segment)
		}
		before := s.place
		_, err := b.snapshot.join(&s.reader, s.buffer)
		s.jump(before)
		if b.s.isWithdrawn() {
			if err = b.waitUntil(&until); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		return b.listAll(), nil
	}
}

// listAll makes the entries of the snapshot.
func (b *Board) listAll() []BoardEntry {
	n := b.snapshot
	n.list(0, func(r *row) bool { return r.meta&metaRemoved == 0 })
	b.entries = b.entries[:0]
	for _, l := range n.order {
		r := n.row(l.number)
		b.entries = append(b.entries, b.entry(n.value(l.number), n.room(l.number), &r.head, r.count))
	}
	return b.entries
}

// Counters returns the board's counters, of the memory that Get or Entries read last. It costs a few loads.
func (b *Board) Counters() BoardCounters {
	if b.isClosed || b.s.board == nil {
		return BoardCounters{}
	}
	at := &b.s.board.header
	return BoardCounters{
		Through: b.s.board.through(), Since: at.load(wordSince), Keys: min(at.load(wordLive), b.s.board.Keys),
		NoRoom: at.load(wordRefused), TooLarge: at.load(wordTooLarge), NoKey: at.load(wordNoKey),
	}
}

// Spec returns the properties of the board.
func (b *Board) Spec() BoardSpec {
	if b.s.board == nil {
		return BoardSpec{}
	}
	return b.s.board.BoardSpec
}

// Age returns the time since a message was published; 0 if that time is in the future, or if the publisher gave no time.
func (b *Board) Age(ticks uint64) time.Duration { return b.s.Age(ticks) }

// Close ends the use of the board.
func (b *Board) Close() error {
	b.isClosed = true
	return b.s.Close()
}
