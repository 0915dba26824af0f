package publisher

/*
#cgo pkg-config: shmcast
#include <shmcast.h>
#include <stdlib.h>
#include <string.h>

// A call and its error in one, since a goroutine may be on another thread at the next call.
typedef struct { int32_t code, os; uint64_t sequence; } outcome;

static outcome failed(int32_t code, char *why) {
	outcome o = {code, shmcast_error_os(), 0};
	strncpy(why, shmcast_error_message(), 1023);
	return o;
}

static outcome publish_why(shmcast_publisher *p, const uint8_t *data, size_t length, uint16_t tag, int32_t key, char *why) {
	outcome o = {0, 0, 0};
	o.code = shmcast_publish_with(p, data, length, tag, key, &o.sequence);
	return o.code < 0 ? failed(o.code, why) : o;
}

static outcome open_why(const char *channel, const char *dir, const char *socket, uint64_t capacity, uint64_t max_message,
                        uint32_t mode, int anew, shmcast_publisher **p, char *why) {
	shmcast_publish_options options = SHMCAST_PUBLISH_OPTIONS;
	options.dir = dir, options.socket = socket, options.capacity = capacity;
	options.max_message = max_message, options.mode = mode, options.flags = anew ? SHMCAST_ANEW : 0;
	outcome o = {shmcast_publisher_open(channel, &options, p), 0, 0};
	return o.code < 0 ? failed(o.code, why) : o;
}

static outcome gap_why(shmcast_publisher *p, uint64_t to, char *why) {
	outcome o = {shmcast_gap(p, to), 0, 0};
	return o.code < 0 ? failed(o.code, why) : o;
}

static outcome session_why(shmcast_publisher *p, const uint8_t *identity, char *why) {
	outcome o = {shmcast_session(p, identity), 0, 0};
	return o.code < 0 ? failed(o.code, why) : o;
}

static outcome close_why(shmcast_publisher *p, char *why) {
	outcome o = {shmcast_publisher_close(p), 0, 0};
	return o.code < 0 ? failed(o.code, why) : o;
}
*/
import "C"

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"
)

// Code is the number of an error in shmcast.h.
type Code int32

// The codes that programs act on. shmcast.h has all.
const (
	CodeInUse     Code = C.SHMCAST_ERROR_IN_USE
	CodeMismatch  Code = C.SHMCAST_ERROR_MISMATCH
	CodeDenied    Code = C.SHMCAST_ERROR_DENIED
	CodeTooLarge  Code = C.SHMCAST_ERROR_TOO_LARGE
	CodeCutOff    Code = C.SHMCAST_ERROR_CUT_OFF
	CodeNoRoom    Code = C.SHMCAST_ERROR_NO_ROOM
	CodeNoDaemon  Code = C.SHMCAST_ERROR_NO_DAEMON
	CodeArgument  Code = C.SHMCAST_ERROR_ARGUMENT
	messageLength      = 1024
)

// Error says what failed, where, and what to do next.
type Error struct {
	Code    Code
	Message string
	OS      syscall.Errno // the system's reason, or 0
}

func (e *Error) Error() string { return e.Message }

func (e *Error) Unwrap() error {
	if e.OS == 0 {
		return nil
	}
	return e.OS
}

// ErrClosed is the error of a publisher that was closed.
var ErrClosed = errors.New("the publisher is closed")

func failure(o C.outcome, why *[messageLength]C.char) error {
	if o.code >= 0 {
		return nil
	}
	return &Error{Code(o.code), C.GoString(&why[0]), syscall.Errno(o.os)}
}

// Options are those of shmcast_publish_options in shmcast.h. Zero stands for the default of each.
type Options struct {
	Dir        string // directory of channels
	Daemon     bool   // the channel is a daemon's, at Socket
	Socket     string // the daemon's socket; "": $SHMCAST_SOCKET, or the usual one
	Capacity   uint64 // bytes of the ring, a power of two
	MaxMessage uint64 // bytes of the largest payload
	Mode       uint32 // of a new channel's directory
	Anew       bool   // give up the memory that is there; sequences begin at 1 again
}

// Publisher publishes to one channel.
type Publisher struct {
	handle *C.shmcast_publisher
	caller caller // calls C: in call_amd64.go, and in call_cgo.go for other processors
}

// Open makes a channel, or takes over the one that is there, with the sequences going on.
func Open(channel string, options Options) (*Publisher, error) {
	var texts []*C.char
	text := func(s string, isThere bool) *C.char {
		if !isThere {
			return nil
		}
		c := C.CString(s)
		texts = append(texts, c)
		return c
	}
	defer func() {
		for _, c := range texts {
			C.free(unsafe.Pointer(c))
		}
	}()
	anew := C.int(0)
	if options.Anew {
		anew = 1
	}
	var handle *C.shmcast_publisher
	var why [messageLength]C.char
	o := C.open_why(text(channel, true), text(options.Dir, options.Dir != ""), text(options.Socket, options.Daemon),
		C.uint64_t(options.Capacity), C.uint64_t(options.MaxMessage), C.uint32_t(options.Mode), anew, &handle, &why[0])
	if err := failure(o, &why); err != nil {
		return nil, fmt.Errorf("publish to %s: %w", channel, err)
	}
	p := &Publisher{handle: handle}
	if err := p.caller.open(); err != nil {
		_ = p.Close()
		return nil, fmt.Errorf("publish to %s: %w", channel, err)
	}
	return p, nil
}

// Publish publishes one message and returns its sequence. It never waits, and allocates nothing.
func (p *Publisher) Publish(payload []byte) (uint64, error) { return p.PublishWith(payload, 0, false) }

// PublishWith does the same with a tag of your own, and if key is true as a message from which a reader may start afresh.
func (p *Publisher) PublishWith(payload []byte, tag uint16, key bool) (uint64, error) {
	if p.handle == nil {
		return 0, ErrClosed
	}
	sequence, isDone := p.caller.publish(p.handle, payload, C.uint16_t(tag), number(key))
	if !isDone {
		return p.publishAgain(payload, tag, number(key))
	}
	return sequence, nil
}

// PublishAll publishes each of the payloads, with the same tag and key, and returns how many it has published: all of them, or those before
// the error. It costs less than a call for each of them.
func (p *Publisher) PublishAll(payloads [][]byte, tag uint16, key bool) (int, error) {
	if p.handle == nil {
		return 0, ErrClosed
	}
	for done := 0; ; done++ {
		done += p.caller.publishAll(p.handle, payloads[done:], C.uint16_t(tag), number(key))
		if done == len(payloads) {
			return done, nil
		}
		if _, err := p.PublishWith(payloads[done], tag, key); err != nil { // it fails again and says why
			return done, err
		}
	}
}

// start is the address of the first byte. Of a type for which cgo has nothing to check.
func start(payload []byte) *C.uint8_t { return (*C.uint8_t)(unsafe.SliceData(payload)) }

func number(key bool) C.int32_t {
	if key {
		return 1
	}
	return 0
}

// publishAgain repeats a call that failed, for its reason. Such a call has published nothing.
func (p *Publisher) publishAgain(payload []byte, tag uint16, key C.int32_t) (uint64, error) {
	var why [messageLength]C.char
	o := C.publish_why(p.handle, start(payload), C.size_t(len(payload)), C.uint16_t(tag), key, &why[0])
	return uint64(o.sequence), failure(o, &why)
}

// Gap tells readers that the messages from the next one up to to will never come.
func (p *Publisher) Gap(to uint64) error {
	if p.handle == nil {
		return ErrClosed
	}
	var why [messageLength]C.char
	return failure(C.gap_why(p.handle, C.uint64_t(to), &why[0]), &why)
}

// Session tells readers that the remote publisher behind this channel began a new session.
func (p *Publisher) Session(identity [10]byte) error {
	if p.handle == nil {
		return ErrClosed
	}
	var why [messageLength]C.char
	return failure(C.session_why(p.handle, (*C.uint8_t)(&identity[0]), &why[0]), &why)
}

// NextSequence returns the sequence that the next message gets; 0 after Close.
func (p *Publisher) NextSequence() uint64 {
	return uint64(C.shmcast_publisher_next_sequence(p.handle))
}

// Epoch returns this publisher's incarnation: 1 for the first of a channel.
func (p *Publisher) Epoch() uint64 { return uint64(C.shmcast_publisher_epoch(p.handle)) }

// MaxMessage returns how many bytes a message may have.
func (p *Publisher) MaxMessage() int { return int(C.shmcast_publisher_max_message(p.handle)) }

// IsCutOff says whether a daemon has given the channel to another publisher.
func (p *Publisher) IsCutOff() bool {
	return p.handle != nil && C.shmcast_publisher_is_cut_off(p.handle) == 1
}

// Close closes the channel: readers get what was published, and then the end.
func (p *Publisher) Close() error {
	if p.handle == nil {
		return nil
	}
	var why [messageLength]C.char
	err := failure(C.close_why(p.handle, &why[0]), &why)
	p.handle = nil
	p.caller.close()
	return err
}
