package shmcast

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"
)

// charterBytes and charterMagic are defined in SPEC.md 4.2.
const (
	charterBytes = 8192
	charterMagic = 0x3154_5248_434d_4853
)

type verdictKind uint8

const (
	verdictOpen verdictKind = iota
	verdictClosing
	verdictCut
)

// verdict is the charter's decision about a generation.
type verdict struct {
	kind  verdictKind
	cut   uint64
	ended bool
}

// verdictOf unpacks a word of a charter.
func verdictOf(word, generation uint64) verdict {
	kind := word >> 62
	switch {
	case word>>48&0x1fff != generation&0x1fff || kind == 0:
		return verdict{kind: verdictCut}
	case kind == 1:
		return verdict{}
	case kind == 2:
		return verdict{kind: verdictClosing}
	}
	return verdict{verdictCut, word & maxSequence, word>>61&1 == 1}
}

// hosted is a reader's part of a daemon's channel.
type hosted struct {
	link       *link
	mapped     []byte
	generation uint64
	strict     bool
	next       []successor // at most one
	own        uint64      // for fences
}

func mapCharter(file *os.File) ([]byte, error) {
	var stat syscall.Stat_t
	if err := syscall.Fstat(int(file.Fd()), &stat); err != nil {
		return nil, err
	}
	if stat.Size < charterBytes {
		return nil, fmt.Errorf("the charter has %d bytes", stat.Size)
	}
	mapped, err := syscall.Mmap(int(file.Fd()), 0, charterBytes, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the charter: %w", err)
	}
	if w := charterWords(mapped); w.load(0) != charterMagic || w.load(1) != 2 {
		_ = syscall.Munmap(mapped)
		return nil, errors.New("the daemon's charter is of another version")
	}
	return mapped, nil
}

func charterWords(mapped []byte) words {
	return words{unsafe.Pointer(unsafe.SliceData(mapped)), charterBytes / 8}
}

// verdict returns the charter's decision about everything that was read before this call.
func (h *hosted) verdict(*Subscriber) verdict {
	fullFence(&h.own)
	return verdictOf(charterWords(h.mapped).load(512+16*(h.generation%32)), h.generation)
}

func (h *hosted) close() {
	if h == nil {
		return
	}
	h.link.close()
	for i := range h.next {
		h.next[i].close()
	}
	if h.mapped != nil {
		_ = syscall.Munmap(h.mapped)
	}
}

func (s *Subscriber) attachHosted(channel string) (err error) {
	park := s.opts.wait == waitPark
	l, answer, err := attachLink(socketPath(s.opts.socket),
		subscribeRequest{Request: "subscribe", Channel: channel, Park: park, Hidden: s.opts.hidden, Watch: s.opts.watch})
	if err != nil {
		return err
	}
	charter := answer.files[3]
	defer charter.Close()
	// The keeper closes its own descriptor of the segment when the channel moves.
	segmentFile, err := duplicate(answer.files[0])
	var gate [2]*os.File
	if err == nil && s.opts.gate != "" {
		gate, err = l.askGate(s.opts.gate)
	}
	go l.keep()
	h := &hosted{link: l, generation: answer.Generation, strict: answer.Strict}
	if err == nil {
		h.mapped, err = mapCharter(charter)
	}
	if err == nil {
		s.hosted = h
		err = s.attachMemory(segmentFile, answer.files[2], gate)
		gate = [2]*os.File{}
	}
	if err != nil {
		h.close()
		s.hosted, s.watch, s.joining = nil, nil, nil
	}
	closeAll(segmentFile, gate[0], gate[1])
	return err
}

// attachMemory begins to read the memory that a daemon has lent.
func (s *Subscriber) attachMemory(segmentFile, page *os.File, gate [2]*os.File) (err error) {
	if s.segment, err = openSegment(segmentFile); err != nil {
		closeAll(gate[:]...)
		return err
	}
	if err = s.begin(); err == nil {
		s.page, err = newPage(page, func() {}, s.segment, s.place)
	}
	if err == nil && gate[0] != nil {
		s.gate, err = takeGate(s.opts.gate, gate[0], gate[1], s.UUID)
		gate = [2]*os.File{}
	}
	if s.opts.watch {
		s.watch = &watch{}
	}
	if err == nil {
		err = s.attached()
	}
	if err != nil {
		closeAll(gate[:]...)
		s.page.close()
		s.gate.close()
		s.page, s.gate = nil, nil
		s.segment.unmap()
	}
	return err
}

// closeAll closes those of the files that are not nil.
func closeAll(files ...*os.File) {
	for _, file := range files {
		if file != nil {
			file.Close()
		}
	}
}

// isStrict says whether each publisher has a generation of its own, so that messages can be invalid.
func (s *Subscriber) isStrict() bool { return s.hosted != nil && s.hosted.strict }

// isWithheld says whether a strict channel must not return a message now.
func (s *Subscriber) isWithheld() bool {
	return s.isStrict() && s.hosted.verdict(s).kind != verdictOpen
}

// isAboutToMove says whether the channel continues in another segment, which has arrived.
func (s *Subscriber) isAboutToMove() bool {
	return s.hosted != nil && (len(s.hosted.next) > 0 || s.hosted.link.hasMoved.Load())
}

// withholds says whether the record that was just polled must not be returned, or not yet (CONTROL.md 3).
func (s *Subscriber) withholds(kind found, before place) bool {
	if kind == foundNothing || kind == foundLapped || kind == foundSuperseded {
		return false
	}
	v := s.hosted.verdict(s)
	switch {
	case v.kind == verdictOpen:
		return false
	case v.kind == verdictClosing:
		return true
	case kind == foundMessage:
		return before.sequence >= v.cut
	case kind == foundGap:
		return s.found.a >= v.cut
	case kind == foundEnd:
		return s.sequence > v.cut || s.sequence == v.cut && !v.ended
	}
	return s.sequence >= v.cut
}

// tryNext continues in the next segment if this one is over. The segment must have arrived before the poll that found nothing, so the first
// call only takes it.
func (s *Subscriber) tryNext(ev *Event) (bool, error) {
	h := s.hosted
	if h == nil {
		return false, nil
	}
	if len(h.next) == 0 {
		if next, there := h.link.takeMoved(); there {
			h.next = append(h.next, next)
		}
		return false, nil
	}
	if h.next[0].charter == nil && h.verdict(s).kind != verdictCut {
		return false, nil
	}
	return s.goOn(ev)
}

// expectedIn is the sequence that is due in the next segment.
func (s *Subscriber) expectedIn(next *successor, restarted bool) uint64 {
	switch {
	case restarted && next.Restarted == next.Generation:
		return max(next.First, 1) // a stream can begin after a journal
	case restarted:
		return 1
	case s.behind != 0:
		return s.behind
	}
	return s.sequence
}

// goOn continues in the next segment (CONTROL.md 3). After a failure the reader keeps its place, and tries again later.
func (s *Subscriber) goOn(ev *Event) (bool, error) {
	h := s.hosted
	next := &h.next[0]
	if next.charter == nil && next.Generation <= h.generation {
		next.close()
		h.next = h.next[:0]
		return false, nil
	}
	mapped := h.mapped
	if next.charter != nil {
		var err error
		if mapped, err = mapCharter(next.charter); err != nil {
			return false, err
		}
	}
	segment, err := openSegment(next.segment)
	if err != nil {
		if next.charter != nil {
			_ = syscall.Munmap(mapped)
		}
		return false, err
	}
	restarted := next.charter != nil || next.Restarted > h.generation
	expected := s.expectedIn(next, restarted)
	if next.charter != nil {
		_ = syscall.Munmap(h.mapped)
		h.mapped = mapped
	}
	h.generation, h.strict = next.Generation, next.Strict
	first := min(max(next.First, 1), maxSequence)
	next.close()
	h.next = h.next[:0]
	s.leaveBoard()
	s.segment.unmap()
	s.segment = segment
	s.gate.goOn(segment.UUID)
	s.grow()
	s.jump(place{0, first})
	s.followBoard(restarted)
	s.update()
	s.inDoubt, s.behind = false, 0
	if expected < first {
		s.behind = expected
	}
	if restarted {
		s.known, s.beganIn = 0, 0
		if s.watch != nil {
			s.watch.generation, s.watch.epoch = 0, 0
		}
		*ev = Event{Kind: KindRestarted}
		return true, nil
	}
	return false, nil
}
