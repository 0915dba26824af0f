package shmcast

import (
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// readerPage shows the place and the counts of a reader to tools (SPEC.md 4). Only its reader writes it.
type readerPage struct {
	mapped []byte
	remove func()
	slept  uint64
}

const (
	pageMagic     = 0x3144_4145_524d_4853
	pagePosition  = 8
	pageSequence  = 9
	pageReceived  = 10
	pageLapped    = 11
	pageMissed    = 12
	pageConflated = 13
	pageHeartbeat = 16
	pageAsleep    = 17
)

// newPage maps file, which remove closes, as the page of a reader of s.
func newPage(file *os.File, remove func(), s *segment, at place) (*readerPage, error) {
	stat, err := file.Stat()
	if err == nil && stat.Size() < headerBytes {
		err = reserve(file, headerBytes)
	}
	if err != nil {
		return nil, err
	}
	mapped, err := syscall.Mmap(int(file.Fd()), 0, headerBytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	p := &readerPage{mapped: mapped, remove: remove}
	p.set(1, 1)
	p.set(2, uint64(os.Getpid()))
	p.set(3, at.sequence)
	p.set(4, s.UUID[0])
	p.set(5, s.UUID[1])
	p.set(pagePosition, at.position)
	p.set(pageSequence, at.sequence)
	p.set(0, pageMagic)
	return p, nil
}

func (p *readerPage) word(i int) *uint64 {
	return (*uint64)(unsafe.Pointer(&p.mapped[8*i]))
}

func (p *readerPage) set(i int, value uint64) { atomic.StoreUint64(p.word(i), value) }

func (p *readerPage) add(i int, value uint64) { atomic.AddUint64(p.word(i), value) }

// sleeps says that the reader waits for a record at position. The low bits differ from sleep to sleep.
func (p *readerPage) sleeps(position uint64) {
	p.slept++
	p.set(pageAsleep, position&^(granule-1)|(2*p.slept+1)%64)
}

func (p *readerPage) close() {
	if p == nil {
		return
	}
	_ = syscall.Munmap(p.mapped)
	p.remove()
}
