package shmcast

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// Words of a gate's page (SPEC.md 4.3).
const (
	gateMagic    = 0x3145_5441_474d_4853
	gatePosition = 16
	gateCheck    = 17
	gateSequence = 18
	gatePid      = 19

	noSequence = 1<<64 - 1 // the value of gateSequence while the reader has no place in the ring
)

// ErrNoGate is the error of a gate that the channel does not have.
var ErrNoGate = errors.New("no such gate")

// GateInUseError says that another reader has the gate.
type GateInUseError struct {
	Gate string
	PID  uint64 // the process id that the other reader claims; 0 if it claims none
}

func (e *GateInUseError) Error() string {
	return fmt.Sprintf("another reader, process %d, has the gate %s: a gate has one reader at a time", e.PID, e.Gate)
}

// GateNameError is the error of a name that no gate can have.
type GateNameError struct{ Name string }

func (e *GateNameError) Error() string {
	return fmt.Sprintf("%q cannot be a gate's name: 1 to 31 of A-Z a-z 0-9 . _ - : @ +, and none of . - first", e.Name)
}

func checkGate(name string) error {
	if checkName(name) != nil || len(name) > 31 {
		return &GateNameError{name}
	}
	return nil
}

// heldGate is a gate that this process holds. Only its reader writes its page.
type heldGate struct {
	lock    *os.File // this open file holds the lock
	mapped  []byte
	segment [2]uint64
	told    place // the place on the page
	isTold  bool
	name    string
	file    *named // the name of the page, if the channel is a file
	looked  time.Time
	isLost  bool
}

// takeGate locks one of two files that were opened for this reader alone, and maps the other. From now on it owns both files.
func takeGate(name string, lock, page *os.File, segment [2]uint64) (*heldGate, error) {
	defer page.Close()
	wanted := syscall.Flock_t{Type: syscall.F_WRLCK}
	err := syscall.FcntlFlock(lock.Fd(), ofdSetLock, &wanted)
	if err == syscall.EAGAIN || err == syscall.EACCES {
		var pid [8]byte
		_, _ = lock.ReadAt(pid[:], 8*gatePid)
		err = &GateInUseError{name, binary.LittleEndian.Uint64(pid[:])}
	}
	// A publisher without this gate can have removed the page after it was opened here.
	if stat, failed := lock.Stat(); failed == nil && stat.Sys().(*syscall.Stat_t).Nlink == 0 {
		err = ErrNoGate
	}
	var mapped []byte
	if err == nil {
		mapped, err = mapGate(page)
	}
	if err != nil {
		lock.Close()
		return nil, fmt.Errorf("take the gate %s: %w", name, err)
	}
	g := &heldGate{lock: lock, mapped: mapped, segment: segment, name: name, looked: time.Now()}
	g.leave()
	g.set(gatePid, uint64(os.Getpid()))
	return g, nil
}

func mapGate(page *os.File) ([]byte, error) {
	var words [16]byte
	stat, err := page.Stat()
	if err != nil {
		return nil, err
	}
	if _, err = page.ReadAt(words[:], 0); err != nil || stat.Size() < headerBytes || binary.LittleEndian.Uint64(words[:]) != gateMagic ||
		binary.LittleEndian.Uint64(words[8:]) != 1 {
		return nil, fmt.Errorf("%s is no gate's page: start the publisher again, which makes the file anew", page.Name())
	}
	return syscall.Mmap(int(page.Fd()), 0, headerBytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
}

func (g *heldGate) word(i int) *uint64 { return (*uint64)(unsafe.Pointer(&g.mapped[8*i])) }

func (g *heldGate) set(i int, value uint64) { atomic.StoreUint64(g.word(i), value) }

// check is the word that makes a position valid in the segment.
func (g *heldGate) check(position uint64) uint64 {
	return (position^g.segment[1])*0x9e37_79b9_7f4a_7c15 ^ g.segment[0]
}

// passed says that the reader has copied everything before a place. An atomic store of Go comes after all earlier loads and stores.
func (g *heldGate) passed(at place) {
	if g.isTold && g.told == at {
		return
	}
	g.set(gateSequence, at.sequence)
	g.set(gatePosition, at.position)
	g.set(gateCheck, g.check(at.position))
	g.told, g.isTold = at, true
}

// leave says that the reader has no place in any ring.
func (g *heldGate) leave() {
	g.set(gateSequence, noSequence)
	g.invalidate()
}

// invalidate says that the reader has no place in the segment.
func (g *heldGate) invalidate() {
	g.set(gateCheck, ^g.check(atomic.LoadUint64(g.word(gatePosition))))
	g.isTold = false
}

// goOn continues in another segment: the page is invalid until the next place. If the reader had a place, it needs all of that segment, and
// the page keeps its sequence.
func (g *heldGate) goOn(segment [2]uint64) {
	if g != nil {
		g.invalidate()
		g.segment = segment
	}
}

func (g *heldGate) close() {
	if g == nil {
		return
	}
	g.leave()
	_ = syscall.Munmap(g.mapped)
	// Another process can have the same open file.
	free := syscall.Flock_t{Type: syscall.F_UNLCK}
	_ = syscall.FcntlFlock(g.lock.Fd(), ofdSetLock, &free)
	g.lock.Close()
}

// passed writes the place of the next record to the gate's page. Everything before it was copied, or will never be. A reader that must
// first report a loss has no place, and says so.
func (s *Subscriber) passed() {
	if s.gate == nil {
		return
	}
	if s.behind == 0 || s.isOnBoard() {
		s.gate.passed(s.place)
	} else {
		s.gate.leave()
	}
}

// GateLostError says that the page of the reader's gate was removed or moved. Publishers that open the channel from now on do not wait for
// this reader. Subscribe again.
type GateLostError struct{ Gate string }

func (e *GateLostError) Error() string {
	return fmt.Sprintf("the page of gate %s was removed or moved, so publishers stop waiting for this reader; subscribe again", e.Gate)
}

// look fails if the page no longer has its name. With isTime it checks at most once in lookEvery.
func (g *heldGate) look(isTime bool) error {
	if now := time.Now(); isTime && now.Sub(g.looked) >= lookEvery {
		g.looked, g.isLost = now, g.hasLostName()
	}
	if g.isLost {
		return &GateLostError{g.name}
	}
	return nil
}

func (g *heldGate) hasLostName() bool {
	page, err := g.lock.Stat()
	if err == nil && page.Sys().(*syscall.Stat_t).Nlink == 0 {
		return true
	}
	return g.file != nil && g.file.leadsElsewhere()
}

// takeGate takes the requested gate of a channel that is a file.
func (c *channelFiles) takeGate(name string, segment [2]uint64) (*heldGate, error) {
	path := filepath.Join(c.path, "gates")
	dir, err := openBelow(c.dir, c.path, "gates", os.O_RDONLY|syscall.O_DIRECTORY, 0)
	var files [2]*os.File
	if err == nil {
		defer dir.Close()
		for i := range files {
			if files[i], err = openBelow(dir, path, name, os.O_RDWR, 0); err != nil {
				break
			}
		}
	}
	if err == nil {
		gate, err := takeGate(name, files[0], files[1], segment)
		if err != nil {
			return nil, err
		}
		if page, err := gate.lock.Stat(); err == nil {
			gate.file = nameOf(filepath.Join(path, name), page)
		}
		return gate, nil
	}
	if files[0] != nil {
		files[0].Close()
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s; the channel has %s: its publisher names its gates when it opens the channel", ErrNoGate, name, gatesOf(dir))
	}
	return nil, fmt.Errorf("take the gate %s: %w", name, err)
}

// gatesOf lists the gates in a directory, which may be nil.
func gatesOf(dir *os.File) string {
	var names []string
	if dir != nil {
		all, _ := dir.Readdirnames(1000)
		for _, name := range all {
			if checkGate(name) == nil {
				names = append(names, name)
			}
		}
	}
	if names == nil {
		return "none"
	}
	return strings.Join(names, ", ")
}

type gateRequest struct {
	Request string `json:"request"`
	Gate    string `json:"gate"`
}

// askGate requests the page of a gate from the daemon, before the link has a goroutine of its own.
func (l *link) askGate(name string) (files [2]*os.File, err error) {
	l.to.limit(answerLimit)
	defer l.to.limit(0)
	answer, err := l.to.ask(gateRequest{"gate", name}, nil)
	for err == nil && answer.Reply != "gate" {
		if !l.heard(answer) { // a packet that is no answer
			return files, fmt.Errorf("%s: the daemon answers %q to a request for a gate", l.path, answer.Reply)
		}
		if answer, err = l.to.receive(); err == nil && answer.Reply == "refused" {
			answer.closeFiles()
			err = &RefusedError{answer.Code, answer.Why}
		}
	}
	if err != nil {
		return files, fmt.Errorf("take the gate %s: %w", name, err)
	}
	if len(answer.files) != len(files) {
		answer.closeFiles()
		return files, fmt.Errorf("%s: the daemon sends %d descriptors of a gate", l.path, len(answer.files))
	}
	return [2]*os.File(answer.files), nil
}
