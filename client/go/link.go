package shmcast

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Pauses between two attempts to reach a daemon that has gone, and the number of successors that are kept (CONTROL.md 5).
const (
	firstKnock   = 20 * time.Millisecond
	lastKnock    = time.Second
	afterRefusal = time.Second
	mostWaiting  = 8
)

// lasts says whether another attempt soon after a refusal with this code would be refused, too. The code is empty if nothing was refused.
func lasts(code string) bool { return code != "" && code != "failed" && code != "limit" }

// successor is a segment in which the channel continues. charter is nil unless the daemon has another charter.
type successor struct {
	reply
	segment *os.File
	charter *os.File
}

func (n *successor) close() {
	n.segment.Close()
	if n.charter != nil {
		n.charter.Close()
	}
}

// identity tells files apart.
type identity struct{ device, inode uint64 }

func identify(file *os.File) (identity, error) {
	var stat syscall.Stat_t
	err := syscall.Fstat(int(file.Fd()), &stat)
	return identity{stat.Dev, stat.Ino}, err
}

// link keeps an attachment to a daemon, with a goroutine that waits for the socket. The reader uses the link only when there is nothing to
// receive.
type link struct {
	path    string
	request subscribeRequest
	charter identity

	isAttached atomic.Bool
	hasMoved   atomic.Bool
	gone       atomic.Uint64 // number of publisher-gone packets

	mutex    sync.Mutex
	to       *conversation // nil while the daemon is gone
	isClosed bool
	segment  *os.File // the descriptors that are shown to the next daemon
	lock     *os.File
	page     *os.File
	near     *os.File // the bell, if the reader parks
	far      *os.File
	moved    []successor
	deadIn   uint64 // generation and epoch of the publisher that died last
	dead     uint64
	quit     chan struct{} // closed by close
	done     chan struct{} // closed when keep has ended
}

// attachLink requests the channel. The reply has the segment, the lock, the page and the charter.
func attachLink(path string, ask subscribeRequest) (*link, *reply, error) {
	l := &link{path: path, request: ask, quit: make(chan struct{}), done: make(chan struct{})}
	if ask.Park {
		pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, nil, fmt.Errorf("make a bell: %w", err)
		}
		_ = syscall.SetNonblock(pair[0], true)
		l.near, l.far = os.NewFile(uintptr(pair[0]), "bell"), os.NewFile(uintptr(pair[1]), "bell")
	}
	to, answer, err := l.attach(false)
	if err != nil {
		l.closeFiles()
		return nil, nil, err
	}
	l.to = to
	l.segment, l.lock, l.page = answer.files[0], answer.files[1], answer.files[2]
	if l.charter, err = identify(answer.files[3]); err != nil {
		to.close()
		answer.closeFiles()
		l.closeFiles()
		return nil, nil, err
	}
	l.isAttached.Store(true)
	return l, answer, nil
}

func (l *link) attach(resume bool) (*conversation, *reply, error) {
	to, err := converse(l.path)
	if err != nil {
		return nil, nil, err
	}
	ask, with := l.request, []*os.File(nil)
	ask.Resume = resume
	if resume {
		with = append(with, l.segment, l.lock, l.page)
	}
	if l.far != nil {
		with = append(with, l.far)
	}
	answer, err := to.ask(ask, with)
	if err == nil && (answer.Reply != "subscribed" || len(answer.files) != mostDescriptors) {
		err = fmt.Errorf("%s: the daemon answers %q with %d descriptors", l.path, answer.Reply, len(answer.files))
		answer.closeFiles()
	}
	if err != nil {
		to.close()
		return nil, nil, err
	}
	to.limit(0)
	return to, answer, nil
}

// keep runs until close: it handles the daemon's packets, and attaches again to the next daemon.
func (l *link) keep() {
	defer close(l.done)
	pause := firstKnock
	for {
		l.mutex.Lock()
		to, isClosed := l.to, l.isClosed
		l.mutex.Unlock()
		switch {
		case isClosed:
			return
		case to == nil:
			select {
			case <-l.quit:
				return
			case <-time.After(pause):
			}
			pause = min(2*pause, lastKnock)
			var refused *RefusedError
			if err := l.resume(); err == nil {
				pause = firstKnock
			} else if errors.As(err, &refused) && lasts(refused.Code) {
				pause = afterRefusal
			}
			continue
		}
		if answer, err := to.receive(); err != nil || !l.heard(answer) {
			if err == nil && lasts(answer.Code) {
				pause = afterRefusal
			}
			l.isAttached.Store(false)
			l.mutex.Lock()
			l.to = nil
			to.close()
			l.mutex.Unlock()
		}
		l.wake()
	}
}

// heard handles a packet. It returns false if the connection is no longer usable.
func (l *link) heard(answer *reply) bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	switch {
	case answer.Reply == "moved" && len(answer.files) == 2:
		if l.push(answer, nil) != nil {
			break
		}
		l.segment.Close()
		l.lock.Close()
		l.segment, l.lock = answer.files[0], answer.files[1]
		return true
	case answer.Reply == "publisher-gone":
		l.deadIn, l.dead = answer.Generation, answer.Epoch
		l.gone.Add(1)
		return true
	}
	answer.closeFiles()
	return false
}

func duplicate(file *os.File) (*os.File, error) {
	fd, err := syscall.Dup(int(file.Fd()))
	if err != nil {
		return nil, err
	}
	syscall.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), file.Name()), nil
}

// push queues the segment of an answer as the next one. The reader gets a descriptor of its own, because the answer's descriptor is shown
// to daemons. After success, the charter belongs to the queue. The caller holds the mutex.
func (l *link) push(answer *reply, charter *os.File) error {
	segment, err := duplicate(answer.files[0])
	if err != nil {
		return err
	}
	next := successor{reply: *answer, segment: segment, charter: charter}
	next.files = nil
	if len(l.moved) == mostWaiting {
		// The charter is valid for the segments after the dropped one, and the daemon does not send it again.
		dropped := l.moved[0]
		l.moved = l.moved[1:]
		if l.moved[0].charter == nil {
			l.moved[0].charter, dropped.charter = dropped.charter, nil
		}
		dropped.close()
	}
	l.moved = append(l.moved, next)
	l.hasMoved.Store(true)
	return nil
}

// resume shows the reader's descriptors to a daemon that has come back. It returns nil if the reader is attached again.
func (l *link) resume() error {
	to, answer, err := l.attach(true)
	if err != nil {
		return err
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	segment, lock, page, charter := answer.files[0], answer.files[1], answer.files[2], answer.files[3]
	page.Close()
	ours, err1 := identify(l.segment)
	theirs, err2 := identify(segment)
	charterNow, err3 := identify(charter)
	isNew, isOtherCharter := ours != theirs, charterNow != l.charter
	err = errors.Join(err1, err2, err3)
	if l.isClosed {
		err = os.ErrClosed
	}
	if err == nil && (isNew || isOtherCharter) {
		var other *os.File
		if isOtherCharter {
			other = charter
		}
		err = l.push(answer, other)
	}
	if err != nil {
		to.close()
		segment.Close()
		lock.Close()
		charter.Close()
		return err
	}
	l.segment.Close()
	l.lock.Close()
	l.segment, l.lock, l.to = segment, lock, to
	l.charter = charterNow
	if isOtherCharter {
		l.deadIn, l.dead = 0, 0 // the new charter counts generations from 1 again
	} else {
		charter.Close()
	}
	l.isAttached.Store(true)
	return nil
}

// takeMoved returns the next segment, if the daemon has sent one. While it has sent none, this costs one load.
func (l *link) takeMoved() (next successor, there bool) {
	if !l.hasMoved.Load() {
		return next, false
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	next, l.moved = l.moved[0], l.moved[1:]
	l.hasMoved.Store(len(l.moved) > 0)
	return next, true
}

// hasDied says whether the daemon reported this publisher's death.
func (l *link) hasDied(generation, epoch uint64) bool {
	if l.gone.Load() == 0 {
		return false
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.deadIn == generation && l.dead == epoch
}

// wake rings the reader's own bell.
func (l *link) wake() {
	if l.far != nil {
		ring(l.far)
	}
}

// ring writes a byte and never blocks. If the bell is full, it is ringing already.
func ring(bell *os.File) {
	if raw, err := bell.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = syscall.Sendto(int(fd), []byte{1}, syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL, nil)
		})
	}
}

func (l *link) close() {
	l.mutex.Lock()
	l.isClosed = true
	close(l.quit)
	if l.to != nil {
		_ = syscall.Shutdown(l.to.fd, syscall.SHUT_RDWR)
	}
	l.mutex.Unlock()
	<-l.done
	if l.to != nil {
		l.to.close()
	}
	l.closeFiles()
}

func (l *link) closeFiles() {
	for _, file := range []*os.File{l.segment, l.lock, l.page, l.near, l.far} {
		if file != nil {
			file.Close()
		}
	}
	for i := range l.moved {
		l.moved[i].close()
	}
}
