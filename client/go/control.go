package shmcast

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Limits of CONTROL.md 1 and 2.
const (
	controlVersion  = 2
	mostPacket      = 65536
	mostDescriptors = 4
	answerLimit     = 5 * time.Second
	startingLimit   = time.Minute
)

// ErrNoDaemon is the error of a socket at which no daemon answers.
var ErrNoDaemon = errors.New("no daemon answers")

// errGone says that the daemon has closed the connection.
var errGone = errors.New("it has gone")

// isPassing says whether a reader that waits for a channel goes on waiting: the daemon is restarted, or does not answer.
func isPassing(err error) bool {
	for _, passing := range []error{
		errGone, syscall.ENOENT, syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE, syscall.EAGAIN,
	} {
		if errors.Is(err, passing) {
			return true
		}
	}
	return false
}

// RefusedError is a daemon's refusal. With the code "unknown-channel" it is also [ErrNoChannel], and with "unknown-gate" [ErrNoGate].
type RefusedError struct{ Code, Why string }

func (e *RefusedError) Error() string {
	return fmt.Sprintf("the daemon refused (%s): %s", e.Code, e.Why)
}

func (e *RefusedError) Is(target error) bool {
	return target == ErrNoChannel && e.Code == "unknown-channel" || target == ErrNoGate && e.Code == "unknown-gate"
}

// socketPath finds the daemon's socket (CONTROL.md 1).
func socketPath(told string) string {
	if told != "" {
		return told
	}
	if path := os.Getenv("SHMCAST_SOCKET"); path != "" {
		return path
	}
	const usual = "/run/shmcast/control.sock"
	// A user who may not look for the system's daemon must not take another one.
	if _, err := os.Lstat(usual); errors.Is(err, os.ErrNotExist) {
		if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
			if path := filepath.Join(dir, "shmcast/control.sock"); exists(path) {
				return path
			}
		}
	}
	return usual
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

type request struct {
	Request string `json:"request"`
	Version int    `json:"version,omitempty"`
}

type subscribeRequest struct {
	Request string `json:"request"`
	Channel string `json:"channel"`
	Resume  bool   `json:"resume"`
	Park    bool   `json:"park"`
	Hidden  bool   `json:"hidden"`
	Watch   bool   `json:"watch"`
}

type reply struct {
	Reply      string `json:"reply"`
	Version    int    `json:"version"`
	Code       string `json:"code"`
	Why        string `json:"why"`
	Generation uint64 `json:"generation"`
	First      uint64 `json:"first"`
	Restarted  uint64 `json:"restarted"`
	Strict     bool   `json:"strict"`
	Epoch      uint64 `json:"epoch"`
	files      []*os.File
}

func (r *reply) closeFiles() {
	for _, file := range r.files {
		file.Close()
	}
	r.files = nil
}

// conversation is a connection to a daemon.
type conversation struct {
	fd   int
	path string
}

// advice returns what to do if no daemon answers at a socket because of this error.
func advice(path string, err error) string {
	found, statErr := os.Stat(path)
	switch {
	case len(path) > 107:
		return "the path of a socket has at most 107 bytes: give a shorter one"
	case errors.Is(err, fs.ErrPermission):
		return "the mode of the socket or of a directory keeps this user out: set socket_mode of the daemon"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return "raise the limit on open files (ulimit -n)"
	case statErr == nil && found.Mode()&fs.ModeSocket == 0, errors.Is(err, syscall.EPROTOTYPE):
		return "this is not a daemon's socket: give the path at which shmcastd listens"
	}
	return "start shmcastd, or set SHMCAST_SOCKET"
}

// converse connects and says hello.
func converse(path string) (*conversation, error) {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	c := &conversation{fd, path}
	limit := syscall.NsecToTimeval(int64(answerLimit))
	_ = syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_SNDTIMEO, &limit)
	c.limit(answerLimit)
	if err := syscall.Connect(fd, &syscall.SockaddrUnix{Name: path}); err != nil {
		c.close()
		return nil, fmt.Errorf("%w at %s: %w; %s", ErrNoDaemon, path, err, advice(path, err))
	}
	for until := time.Now().Add(startingLimit); ; {
		answer, err := c.ask(request{"hello", controlVersion}, nil)
		switch {
		case err == nil && answer.Reply == "welcome" && answer.Version == controlVersion:
			return c, nil
		case err == nil && answer.Reply == "starting" && time.Now().Before(until):
			continue
		case err == nil:
			err = fmt.Errorf("%s: the daemon answers hello with %q, version %d", path, answer.Reply, answer.Version)
		}
		c.close()
		return nil, err
	}
}

func (c *conversation) close() { syscall.Close(c.fd) }

// limit sets how long a receive waits; 0 means for ever.
func (c *conversation) limit(wait time.Duration) {
	timeval := syscall.NsecToTimeval(int64(wait))
	_ = syscall.SetsockoptTimeval(c.fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &timeval)
}

// ask sends a request and returns the answer, a refusal as a [RefusedError].
func (c *conversation) ask(what any, with []*os.File) (*reply, error) {
	packet, err := json.Marshal(what)
	if err != nil {
		return nil, err
	}
	var rights []byte
	if len(with) > 0 {
		fds := make([]int, len(with))
		for i, file := range with {
			fds[i] = int(file.Fd())
		}
		rights = syscall.UnixRights(fds...)
	}
	if err := syscall.Sendmsg(c.fd, packet, rights, nil, syscall.MSG_NOSIGNAL); err != nil && err != syscall.EPIPE {
		return nil, fmt.Errorf("ask the daemon at %s: %w", c.path, err)
	}
	// A refusal that the daemon sent before it read the request is already in the queue.
	answer, err := c.receive()
	if errors.Is(err, syscall.ECONNRESET) {
		answer, err = c.receive()
	}
	if err != nil {
		return nil, err
	}
	if answer.Reply == "refused" {
		answer.closeFiles()
		return nil, &RefusedError{answer.Code, answer.Why}
	}
	return answer, nil
}

// receive waits for a packet.
func (c *conversation) receive() (*reply, error) {
	packet, rights := make([]byte, mostPacket), make([]byte, syscall.CmsgSpace(4*mostDescriptors))
	n, m, flags, _, err := syscall.Recvmsg(c.fd, packet, rights, syscall.MSG_CMSG_CLOEXEC)
	for err == syscall.EINTR {
		n, m, flags, _, err = syscall.Recvmsg(c.fd, packet, rights, syscall.MSG_CMSG_CLOEXEC)
	}
	if err != nil {
		return nil, fmt.Errorf("hear the daemon at %s: %w", c.path, err)
	}
	answer := &reply{}
	messages, err := syscall.ParseSocketControlMessage(rights[:m])
	for i := range messages {
		fds, bad := syscall.ParseUnixRights(&messages[i])
		if bad != nil {
			err = bad
		}
		for _, fd := range fds {
			answer.files = append(answer.files, os.NewFile(uintptr(fd), "memory of the daemon at "+c.path))
		}
	}
	switch {
	case err != nil:
	case n == 0:
		err = errGone
	case flags&(syscall.MSG_TRUNC|syscall.MSG_CTRUNC) != 0:
		err = errors.New("a packet did not arrive whole")
	default:
		err = json.Unmarshal(packet[:n], answer)
	}
	if err != nil {
		answer.closeFiles()
		return nil, fmt.Errorf("hear the daemon at %s: %w", c.path, err)
	}
	return answer, nil
}
