package shmcast

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// words is mapped memory, as aligned words of 8 bytes. Another process can write it at any time.
type words struct {
	base unsafe.Pointer
	n    uint64 // words, at least 1
}

// load returns word i, which must be below n.
func (w words) load(i uint64) uint64 {
	return atomic.LoadUint64((*uint64)(unsafe.Add(w.base, 8*i)))
}

// segment is a mapped segment whose header was checked.
type segment struct {
	Header
	mapped []byte
	header words
	index  words
	data   words
	board  *board // nil if there is none
	device uint64
	inode  uint64
}

// openSegment maps f read-only and checks it as SPEC.md 1.1 says. It does not keep f.
func openSegment(f *os.File) (*segment, error) {
	var stat syscall.Stat_t
	if err := syscall.Fstat(int(f.Fd()), &stat); err != nil {
		return nil, fmt.Errorf("look at %s: %w", f.Name(), err)
	}
	size := uint64(max(stat.Size, 0))
	var page [headerBytes]byte
	if size >= headerBytes {
		if _, err := f.ReadAt(page[:], 0); err != nil {
			return nil, fmt.Errorf("read %s: %w", f.Name(), err)
		}
	}
	header, err := ParseHeader(page[:], size)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	board, err := findBoard(page[:], &header, size, f.ReadAt)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	length := header.DataOffset + header.Capacity
	if board != nil {
		length += board.size()
	}
	mapped, err := syscall.Mmap(int(f.Fd()), 0, int(length), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", f.Name(), err)
	}
	s := segmentOf(header, mapped, board)
	s.device, s.inode = stat.Dev, stat.Ino
	return s, nil
}

// segmentOf makes a segment of memory that begins at a multiple of 8. The memory has at least DataOffset + Capacity bytes, and those of the
// board if there is one.
func segmentOf(header Header, memory []byte, board *board) *segment {
	base := unsafe.Pointer(unsafe.SliceData(memory))
	if board != nil {
		board.lend(unsafe.Add(base, header.DataOffset+header.Capacity))
	}
	return &segment{
		Header: header,
		mapped: memory,
		header: words{base, headerBytes / 8},
		index:  words{unsafe.Add(base, headerBytes), header.IndexEntries},
		data:   words{unsafe.Add(base, header.DataOffset), header.Capacity / 8},
		board:  board,
	}
}

func (s *segment) unmap() error {
	if s.mapped == nil {
		return nil
	}
	err := syscall.Munmap(s.mapped)
	s.mapped = nil
	return err
}

// State is the publisher's state, as the publisher wrote it.
type State uint8

// The states of SPEC.md 1.1. A publisher that died still counts as active.
const (
	StateUnknown State = iota
	StateActive
	StateRecovering
	StateClosed
	StateSuperseded
)

// state returns the epoch and the state; (0, StateUnknown) if the word has none.
func (s *segment) state() (uint64, State) {
	word := s.header.load(wordState)
	if state := State(word & 0xff); state >= StateActive && state <= StateSuperseded {
		return word >> 8, state
	}
	return 0, StateUnknown
}

// first returns the first sequence of the ring.
func (s *segment) first() uint64 {
	return min(max(s.header.load(wordFirst), 1), maxSequence)
}

// session returns the remote session that the channel carries.
func (s *segment) session() (identity [10]byte, there bool) {
	high, low := s.header.load(wordSession), s.header.load(wordSession+1)
	return sessionOf(high, low), low>>63 == 1
}

func sessionOf(high, low uint64) (identity [10]byte) {
	for i := range 8 {
		identity[i] = byte(high >> (8 * i))
	}
	identity[8], identity[9] = byte(low), byte(low>>8)
	return identity
}

var errCorrupt = errors.New("another program wrote to the channel's memory")
