package publisher

/*
#cgo noescape publish_gated
#cgo nocallback publish_gated
#include <shmcast.h>
#include <stdlib.h>
#include <string.h>

typedef struct { int32_t code, os; uint64_t sequence, behind; char gate[32]; } gated_outcome;

static gated_outcome publish_gated(shmcast_publisher *p, const uint8_t *data, size_t length, uint16_t tag, int32_t key, int waits, char *why) {
	gated_outcome o = {0};
	o.code = waits ? shmcast_publish_with(p, data, length, tag, key, &o.sequence) : shmcast_try_publish(p, data, length, tag, key, &o.sequence);
	if (o.code < 0) {
		o.os = shmcast_error_os(), o.behind = shmcast_error_behind();
		strncpy(why, shmcast_error_message(), 1023);
		strncpy(o.gate, shmcast_error_gate(), sizeof o.gate - 1);
	}
	return o;
}

static gated_outcome gates_why(shmcast_publisher *p, shmcast_gate_status *gates, size_t room, char *why) {
	int64_t found = shmcast_publisher_gates(p, gates, room);
	gated_outcome o = {.code = found < 0 ? (int32_t)found : 0, .sequence = found < 0 ? 0 : (uint64_t)found};
	if (found < 0) strncpy(why, shmcast_error_message(), 1023);
	return o;
}
*/
import "C"

import (
	"bytes"
	"fmt"
	"syscall"
	"time"
	"unsafe"
)

// Gate is a reader that the publisher waits for, within a limit. A field with zero has its default.
type Gate struct {
	Name       string
	LagBytes   uint64        // largest lag of the gate's reader, in bytes of the ring
	LagPercent uint32        // largest lag as a percentage of the ring; default 50
	Wait       time.Duration // longest wait of one message; default 200 us
	NeverWaits bool          // no message waits
	// Refuses says that the message is not published after the wait. Otherwise the gate is dropped: its reader can be lapped until it has
	// caught up to half of the lag.
	Refuses bool
}

// put fills the struct that C reads.
func (g *Gate) put(t *texts, to *C.shmcast_gate) {
	to.name = t.text(g.Name, true)
	to.lag_bytes, to.lag_percent = C.uint64_t(g.LagBytes), C.uint32_t(g.LagPercent)
	to.wait_ns = C.uint64_t(max(g.Wait, 0))
	if g.Refuses {
		to.flags |= C.SHMCAST_GATE_REFUSES
	}
	if g.NeverWaits {
		to.flags |= C.SHMCAST_GATE_NEVER_WAITS
	}
}

// FullError says that the reader of a gate is too far behind. Nothing was published: publish the message again later. The next refused
// message reuses the same error value.
type FullError struct {
	Gate   string
	Behind uint64 // bytes of the ring
}

func (e *FullError) Error() string {
	return fmt.Sprintf("gate %s holds the message up: its reader is %d B behind; publish it again later", e.Gate, e.Behind)
}

// gated is the publisher's state for gates. A call that can wait is made by cgo, so that the scheduler knows about the wait.
type gated struct {
	why   *C.char // memory for C's sentence
	names []string
	full  FullError
}

func (g *gated) close() {
	if g != nil {
		C.free(unsafe.Pointer(g.why))
	}
}

// openGates reads which gates the channel has.
func (p *Publisher) openGates() error {
	gates, err := p.Gates()
	if err != nil || len(gates) == 0 {
		return err
	}
	p.gated = &gated{why: (*C.char)(C.calloc(messageLength, 1))}
	for i := range gates {
		p.gated.names = append(p.gated.names, gates[i].Name)
	}
	return nil
}

// TryPublish does the same as [Publisher.PublishWith], but never waits for a gate: it returns a [FullError] if the gate's reader is too far
// behind.
func (p *Publisher) TryPublish(payload []byte, tag uint16, key bool) (uint64, error) {
	if p.gated == nil {
		return p.PublishWith(payload, tag, key)
	}
	return p.publishGated(payload, C.uint16_t(tag), number(key), false)
}

func (p *Publisher) publishGated(payload []byte, tag C.uint16_t, key C.int32_t, waits bool) (uint64, error) {
	mayWait := C.int(0)
	if waits {
		mayWait = 1
	}
	o := C.publish_gated(p.handle, start(payload), C.size_t(len(payload)), tag, key, mayWait, p.gated.why)
	switch {
	case o.code >= 0:
		return uint64(o.sequence), nil
	case o.code == C.SHMCAST_ERROR_FULL:
		return 0, p.gated.fullError(&o)
	}
	return 0, &Error{Code(o.code), C.GoString(p.gated.why), syscall.Errno(o.os)}
}

// fullError is the error of a message that a gate has refused.
func (g *gated) fullError(o *C.gated_outcome) error {
	name := unsafe.Slice((*byte)(unsafe.Pointer(&o.gate[0])), len(o.gate))
	name = name[:max(bytes.IndexByte(name, 0), 0)]
	g.full = FullError{Behind: uint64(o.behind)}
	for _, known := range g.names {
		if string(name) == known {
			g.full.Gate = known
		}
	}
	return &g.full
}

// GateState is the state of a gate.
type GateState uint32

// The states of gates.
const (
	GateAbsent  GateState = C.SHMCAST_GATE_ABSENT   // nobody holds the gate
	GateJoining GateState = C.SHMCAST_GATE_JOINING  // the gate's reader has not caught up yet, and can be lapped
	GateInForce GateState = C.SHMCAST_GATE_IN_FORCE // the publisher waits for the gate's reader, which is not lapped
	GateDropped GateState = C.SHMCAST_GATE_DROPPED  // the gate's reader took too long, and can be lapped until it has caught up to half of the lag
)

var gateStates = [...]string{"absent", "joining", "in-force", "dropped"}

func (s GateState) String() string {
	if int(s) < len(gateStates) {
		return gateStates[s]
	}
	return "unknown"
}

// GateStatus is a gate as its publisher knows it.
type GateStatus struct {
	Name       string
	State      GateState
	LagBytes   uint64        // largest lag of the gate's reader, in bytes of the ring
	Behind     uint64        // present lag of the gate's reader; 0 also if nobody holds the gate
	PID        uint64        // the process id that the gate's reader claims; 0 if nobody holds the gate
	Held       uint64        // number of messages that waited for the gate
	Longest    time.Duration // the longest of these waits
	Total      time.Duration // the sum of these waits
	Dropped    uint64        // number of times that the gate was dropped
	Refused    uint64        // number of messages that were refused after a wait
	TurnedAway uint64        // number of messages that TryPublish refused
}

// Gates returns the channel's gates, with the counts of this publisher. It allocates, and makes one system call for each gate.
func (p *Publisher) Gates() ([]GateStatus, error) {
	if p.handle == nil {
		return nil, ErrClosed
	}
	const most = 15
	var found [most]C.shmcast_gate_status
	var why [messageLength]C.char
	o := C.gates_why(p.handle, &found[0], most, &why[0])
	if o.code < 0 {
		return nil, &Error{Code: Code(o.code), Message: C.GoString(&why[0])}
	}
	gates := make([]GateStatus, min(int(o.sequence), most))
	for i := range gates {
		from := &found[i]
		gates[i] = GateStatus{
			Name: C.GoString(&from.name[0]), State: GateState(from.state), LagBytes: uint64(from.lag_bytes), Behind: uint64(from.behind_bytes),
			PID: uint64(from.pid), Held: uint64(from.held), Longest: time.Duration(from.longest_ns), Total: time.Duration(from.total_ns),
			Dropped: uint64(from.dropped), Refused: uint64(from.refused), TurnedAway: uint64(from.turned_away),
		}
	}
	return gates, nil
}
