package publisher

/*
#cgo pkg-config: shmcast
#include <shmcast.h>
#include <stdlib.h>
#include <string.h>

// A call and its error together, because a goroutine can be on another thread at the next call.
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

static outcome open_why(const char *channel, const shmcast_publish_options *options, shmcast_publisher **p, char *why) {
	outcome o = {shmcast_publisher_open(channel, options, p), 0, 0};
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
	"strings"
	"syscall"
	"unsafe"
)

// Code is the number of an error in shmcast.h.
type Code int32

// The codes that programs act on. shmcast.h has all codes.
const (
	CodeInUse     Code = C.SHMCAST_ERROR_IN_USE
	CodeMismatch  Code = C.SHMCAST_ERROR_MISMATCH
	CodeDenied    Code = C.SHMCAST_ERROR_DENIED
	CodeTooLarge  Code = C.SHMCAST_ERROR_TOO_LARGE
	CodeCutOff    Code = C.SHMCAST_ERROR_CUT_OFF
	CodeNoRoom    Code = C.SHMCAST_ERROR_NO_ROOM
	CodeNoDaemon  Code = C.SHMCAST_ERROR_NO_DAEMON
	CodeArgument  Code = C.SHMCAST_ERROR_ARGUMENT
	CodeNoBoard   Code = C.SHMCAST_ERROR_NO_BOARD
	CodeGate      Code = C.SHMCAST_ERROR_GATE
	CodeFull      Code = C.SHMCAST_ERROR_FULL
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

// Options are those of shmcast_publish_options in shmcast.h. A field with zero has its default.
type Options struct {
	Dir        string // directory of channels
	Daemon     bool   // the channel is a daemon's, at Socket
	Socket     string // the daemon's socket; "": $SHMCAST_SOCKET, or the default socket
	Capacity   uint64 // bytes of the ring, a power of two
	MaxMessage uint64 // bytes of the largest payload
	Mode       uint32 // of a new channel's directory
	Anew       bool   // replace the existing memory; sequences begin at 1 again
	Board      Board  // new channel: the last message of each key; for a daemon's channel, its configuration has the board
	Gates      []Gate // only for a channel that is a file: at most 15 readers that the publisher waits for
}

// check refuses what C would read as something else.
func (o *Options) check(channel string) error {
	if o.Socket != "" && !o.Daemon {
		return errors.New("Socket is the socket of a daemon: set Daemon, too")
	}
	texts := []string{channel, o.Dir, o.Socket}
	for _, gate := range o.Gates {
		texts = append(texts, gate.Name)
	}
	for _, text := range texts {
		if strings.IndexByte(text, 0) >= 0 {
			return fmt.Errorf("%q: a name cannot have a zero", text)
		}
	}
	return nil
}

// Board says which bytes of a payload are its key, and how much room a new channel's board has. Zero means no board, or the board that the
// channel has.
type Board struct {
	KeyStart, KeyEnd uint32 // the first byte of the key, and the byte after the last: 1 to 256 bytes
	Keys             uint64 // number of keys for which there is room; 0 means 1024
	Value            uint64 // bytes of the largest message on the board, key included; 0 means 256
	RemovesByTag     bool   // messages with the tag RemoveTag remove their key; a message that ends right after its key always does
	RemoveTag        uint16
}

// Publisher publishes to one channel.
type Publisher struct {
	handle *C.shmcast_publisher
	caller caller // calls C: in call_amd64.go, and in call_cgo.go for other processors
	gated  *gated // for a channel with gates, for which a call can wait
}

// Open makes a channel, or takes over an existing channel and continues its sequences.
func Open(channel string, options Options) (*Publisher, error) {
	if err := options.check(channel); err != nil {
		return nil, fmt.Errorf("publish to %q: %w", channel, err)
	}
	var memory texts
	defer memory.free()
	with := C.shmcast_publish_options{
		size: C.sizeof_shmcast_publish_options, dir: memory.text(options.Dir, options.Dir != ""), socket: memory.text(options.Socket, options.Daemon),
		capacity: C.uint64_t(options.Capacity), max_message: C.uint64_t(options.MaxMessage), mode: C.uint32_t(options.Mode),
		board_start: C.uint32_t(options.Board.KeyStart), board_stop: C.uint32_t(options.Board.KeyEnd),
		board_keys: C.uint64_t(options.Board.Keys), board_value: C.uint64_t(options.Board.Value),
		board_remove_tag: C.uint16_t(options.Board.RemoveTag), gates: memory.gates(options.Gates), gate_count: C.size_t(len(options.Gates)),
	}
	if options.Anew {
		with.flags |= C.SHMCAST_ANEW
	}
	if options.Board.RemovesByTag {
		with.flags |= C.SHMCAST_REMOVE_BY_TAG
	}
	var handle *C.shmcast_publisher
	var why [messageLength]C.char
	o := C.open_why(memory.text(channel, true), &with, &handle, &why[0])
	if err := failure(o, &why); err != nil {
		return nil, fmt.Errorf("publish to %s: %w", channel, err)
	}
	p := &Publisher{handle: handle}
	err := p.caller.open()
	if err == nil {
		err = p.openGates()
	}
	if err != nil {
		_ = p.Close()
		return nil, fmt.Errorf("publish to %s: %w", channel, err)
	}
	return p, nil
}

// texts are the texts that C reads while a channel is opened.
type texts []unsafe.Pointer

func (t *texts) free() {
	for _, c := range *t {
		C.free(c)
	}
}

func (t *texts) text(s string, isThere bool) *C.char {
	if !isThere {
		return nil
	}
	c := C.CString(s)
	*t = append(*t, unsafe.Pointer(c))
	return c
}

func (t *texts) gates(gates []Gate) *C.shmcast_gate {
	if len(gates) == 0 {
		return nil
	}
	c := C.calloc(C.size_t(len(gates)), C.sizeof_shmcast_gate)
	*t = append(*t, c)
	all := unsafe.Slice((*C.shmcast_gate)(c), len(gates))
	for i := range gates {
		gates[i].put(t, &all[i])
	}
	return &all[0]
}

// Publish publishes one message and returns its sequence. It waits only for gates, and allocates nothing. It returns a [FullError] if a
// gate refuses the message.
func (p *Publisher) Publish(payload []byte) (uint64, error) { return p.PublishWith(payload, 0, false) }

// PublishWith does the same with a tag of your own. If key is true, a reader can start afresh from this message.
func (p *Publisher) PublishWith(payload []byte, tag uint16, key bool) (uint64, error) {
	if p.handle == nil {
		return 0, ErrClosed
	}
	if p.gated != nil {
		return p.publishGated(payload, C.uint16_t(tag), number(key), true)
	}
	sequence, isDone := p.caller.publish(p.handle, payload, C.uint16_t(tag), number(key))
	if !isDone {
		return p.publishAgain(payload, tag, number(key))
	}
	return sequence, nil
}

// PublishAll publishes each of the payloads, with the same tag and key. It returns the number of published messages: all, or those before
// the error. It costs less than a call for each message.
func (p *Publisher) PublishAll(payloads [][]byte, tag uint16, key bool) (int, error) {
	if p.handle == nil {
		return 0, ErrClosed
	}
	for done := 0; ; done++ {
		if p.gated != nil && done < len(payloads) {
			if _, err := p.PublishWith(payloads[done], tag, key); err != nil {
				return done, err
			}
			continue
		}
		done += p.caller.publishAll(p.handle, payloads[done:], C.uint16_t(tag), number(key))
		if done == len(payloads) {
			return done, nil
		}
		if _, err := p.PublishWith(payloads[done], tag, key); err != nil { // the call fails again, and returns the reason
			return done, err
		}
	}
}

// start is the address of the first byte, in a type for which cgo checks nothing.
func start(payload []byte) *C.uint8_t { return (*C.uint8_t)(unsafe.SliceData(payload)) }

func number(key bool) C.int32_t {
	if key {
		return 1
	}
	return 0
}

// publishAgain repeats a call that failed, to get the reason. Such a call has published nothing.
func (p *Publisher) publishAgain(payload []byte, tag uint16, key C.int32_t) (uint64, error) {
	var why [messageLength]C.char
	o := C.publish_why(p.handle, start(payload), C.size_t(len(payload)), C.uint16_t(tag), key, &why[0])
	return uint64(o.sequence), failure(o, &why)
}

// Gap tells readers that the messages from the next one up to the sequence to will never come.
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

// Epoch returns this publisher's epoch: 1 for the first publisher of a channel.
func (p *Publisher) Epoch() uint64 { return uint64(C.shmcast_publisher_epoch(p.handle)) }

// MaxMessage returns the largest size of a message in bytes.
func (p *Publisher) MaxMessage() int { return int(C.shmcast_publisher_max_message(p.handle)) }

// IsCutOff says whether a daemon has given the channel to another publisher.
func (p *Publisher) IsCutOff() bool {
	return p.handle != nil && C.shmcast_publisher_is_cut_off(p.handle) == 1
}

// Close closes the channel: readers get everything that was published, and then the end.
func (p *Publisher) Close() error {
	if p.handle == nil {
		return nil
	}
	var why [messageLength]C.char
	err := failure(C.close_why(p.handle, &why[0]), &why)
	p.handle = nil
	p.caller.close()
	p.gated.close()
	p.gated = nil
	return err
}
