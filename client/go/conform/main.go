// The testee in Go of the suite in client/conformance, whose README has its contract.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"log"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"shmcast"
)

type request struct {
	Do       string          `json:"do"`
	Dir      string          `json:"dir"`
	Socket   string          `json:"socket"`
	Channel  string          `json:"channel"`
	Start    json.RawMessage `json:"start"`
	Watch    int             `json:"watch"`
	Sequence uint64          `json:"sequence"`
	Most     int             `json:"most"`
	How      string          `json:"how"`
	Longest  int             `json:"longest"`
	Capacity uint64          `json:"capacity"`
	Length   int             `json:"length"`
	Fill     byte            `json:"fill"`
	Tag      uint16          `json:"tag"`
	Key      json.RawMessage `json:"key"` // 0 or 1 of a message, or the digits of a board's key
	Conflate int             `json:"conflate"`
	Gate     string          `json:"gate"`
	Board    string          `json:"board"`
	Keys     uint64          `json:"keys"`
	Value    uint64          `json:"value"`
	Lag      uint64          `json:"lag"`
	Wait     int64           `json:"wait"`
	Refuse   int             `json:"refuse"`
	To       uint64          `json:"to"`
	Passes   int             `json:"passes"`
	Messages int             `json:"messages"`
	Bytes    int             `json:"bytes"`
}

// place is the option for the channel's place.
func (r *request) place() shmcast.Option {
	if r.Socket != "" {
		return shmcast.Socket(r.Socket)
	}
	return shmcast.Dir(r.Dir)
}

type answer struct {
	OK      bool      `json:"ok,omitempty"`
	Refused string    `json:"refused,omitempty"`
	Events  *[]string `json:"events,omitempty"`
}

// enough is the number of calls in a row that find nothing before a poll ends.
const enough = 130

// withBytes says whether messages are reported with their payloads.
var withBytes bool

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// writer publishes. Go without cgo has none.
type writer interface {
	create(r *request) error
	publish(payload []byte, tag uint16, key bool) error
	publishAll(payloads [][]byte) error
	next() uint64
	end()
	reason(err error) string
}

func main() {
	levels := "1,2,3,4,5,6,8,9"
	if theWriter != nil {
		levels = "1,2,3,4,5,6,7,8,9"
	}
	fmt.Printf("{\"testee\":\"go\",\"version\":\"0.1.0\",\"levels\":[%s]}\n", levels)
	makeTable()
	var s reader
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			log.Fatalf("no request: %s: %v", lines.Text(), err)
		}
		if r.Most == 0 {
			r.Most = math.MaxInt
		}
		var a answer
		withBytes = r.Bytes == 1
		switch r.Do {
		case "open":
			a = done(s.open(&r))
		case "close":
			s.close()
			a = done(nil)
		case "get":
			a = measured(s.get(strings.Trim(string(r.Key), `"`)))
		case "seek":
			a = done(s.Seek(r.Sequence))
		case "poll":
			a.Events = poll(s.Subscriber, r.Most)
		case "batch":
			a.Events = batch(s.Subscriber, r.Most)
		case "drain":
			a = measured(drain(s.Subscriber, &r))
		case "live":
			a = measured(live(s.Subscriber, r.Messages))
		case "fill":
			a = measured(fill(&r))
		case "consume":
			a = measured(consume(&r))
		default:
			a = done(write(&r))
		}
		line, err := json.Marshal(a)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(string(line))
	}
}

// write performs a request for the writer.
func write(r *request) error {
	switch r.Do {
	case "create":
		return theWriter.create(r)
	case "publish":
		payload := make([]byte, r.Length)
		for i := range payload {
			payload[i] = r.Fill + byte(i)
		}
		return theWriter.publish(payload, r.Tag, string(r.Key) == "1")
	case "produce":
		for next := theWriter.next(); next <= r.To; next = theWriter.next() {
			if err := theWriter.publish(checked(next, r.Longest), 0, false); err != nil {
				return err
			}
		}
	case "end":
		theWriter.end()
	default:
		log.Fatalf("no request: %s", r.Do)
	}
	return nil
}

// measured is the answer with these figures, or with the error.
func measured(events []string, err error) answer {
	if err != nil {
		return done(err)
	}
	return answer{Events: &events}
}

// drain reads the available messages from a sequence on, again and again, and measures the time.
func drain(s *shmcast.Subscriber, r *request) ([]string, error) {
	var sum, messages uint64
	add := func(payload []byte) {
		messages++
		if len(payload) >= 8 {
			sum += binary.LittleEndian.Uint64(payload)
		}
	}
	var ev shmcast.Event
	b := shmcast.NewBatch(256)
	began := time.Now()
	for range r.Passes {
		if err := s.Seek(r.Sequence); err != nil {
			return nil, err
		}
		for there := true; there; {
			if r.How == "batch" {
				n, err := s.RecvBatch(b)
				if err != nil {
					return nil, err
				}
				there = n > 0
				for i := range b.Events {
					if b.Events[i].Kind == shmcast.KindMessage {
						add(b.Events[i].Payload)
					}
				}
				continue
			}
			var err error
			if there, err = s.TryRecv(&ev); err != nil {
				return nil, err
			}
			if there && ev.Kind == shmcast.KindMessage {
				add(ev.Payload)
			}
		}
	}
	took := time.Since(began).Nanoseconds()
	return []string{fmt.Sprint("ns ", took), fmt.Sprint("messages ", messages), fmt.Sprint("sum ", sum)}, nil
}

// live receives messages as they come, and keeps their ages.
func live(s *shmcast.Subscriber, messages int) ([]string, error) {
	ages := make([]int64, 0, messages)
	var ev shmcast.Event
	for len(ages) < messages {
		there, err := s.TryRecv(&ev)
		if err != nil {
			return nil, err
		}
		if there && ev.Kind == shmcast.KindMessage {
			ages = append(ages, s.Age(ev.Time).Nanoseconds())
		}
	}
	slices.Sort(ages)
	return []string{fmt.Sprint("p50 ", ages[messages/2]), fmt.Sprint("p99 ", ages[messages*99/100])}, nil
}

// fill publishes a number of messages, and measures the time.
func fill(r *request) ([]string, error) {
	payload := make([]byte, r.Length)
	all := slices.Repeat([][]byte{payload}, 256)
	began := time.Now()
	for left := r.Messages; r.How == "batch" && left > 0; left -= len(all) {
		if err := theWriter.publishAll(all[:min(left, len(all))]); err != nil {
			return nil, err
		}
	}
	for left := r.Messages; r.How != "batch" && left > 0; left-- {
		if err := theWriter.publish(payload, 0, false); err != nil {
			return nil, err
		}
	}
	return []string{fmt.Sprint("ns ", time.Since(began).Nanoseconds())}, nil
}

// table has the bytes from which payloads are cut, as in src/payload.rs of the suite.
var table [65536 + 4093]byte

func makeTable() {
	x := uint32(1)
	for i := range table {
		x = x*1664525 + 1013904223
		table[i] = byte(x >> 24)
	}
}

func checked(sequence uint64, longest int) []byte {
	hash := uint32(sequence) * 2654435761
	n := int(hash >> 14)
	switch kind := hash >> 8 & 63; {
	case kind < 48:
		n &= 255
	case kind < 60:
		n &= 4095
	case kind < 63:
		n &= 65535
	default:
		n = 65536
	}
	from := int(sequence % 4093)
	return table[from : from+min(n, longest)]
}

// consume receives a channel from its first message to its end, and counts.
func consume(r *request) ([]string, error) {
	s, err := shmcast.Subscribe(r.Channel, r.place(), shmcast.FromSequence(1), shmcast.WaitForChannel(30*time.Second))
	if err != nil {
		return nil, err
	}
	defer s.Close()
	var received, missed, wrong uint64
	isOver := false
	count := func(ev *shmcast.Event) {
		switch ev.Kind {
		case shmcast.KindMessage:
			if bytes.Equal(ev.Payload, checked(ev.Sequence, r.Longest)) {
				received++
			} else {
				wrong++
			}
		case shmcast.KindLapped:
			missed += ev.Missed
		case shmcast.KindGap:
			missed += ev.To - ev.From + 1
		case shmcast.KindEnd:
			isOver = true
		case shmcast.KindNewEpoch:
		default:
			wrong++
		}
	}
	var ev shmcast.Event
	for b := shmcast.NewBatch(256); !isOver; {
		if r.How != "batch" {
			if err := s.Recv(context.Background(), &ev); err != nil {
				return nil, err
			}
			count(&ev)
			continue
		}
		n, err := s.RecvBatch(b)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			runtime.Gosched()
		}
		for i := range b.Events {
			count(&b.Events[i])
		}
	}
	return []string{fmt.Sprint("received ", received), fmt.Sprint("missed ", missed), fmt.Sprint("wrong ", wrong)}, nil
}

func start(text json.RawMessage) shmcast.Option {
	if sequence, err := strconv.ParseUint(string(text), 10, 64); err == nil {
		return shmcast.FromSequence(sequence)
	}
	switch string(text) {
	case `"oldest"`:
		return shmcast.FromOldest()
	case `"board"`:
		return shmcast.FromBoard()
	}
	return shmcast.FromLatest()
}

func done(err error) answer {
	if err != nil {
		return answer{Refused: reason(err)}
	}
	return answer{OK: true}
}

func reason(err error) string {
	var invalid *shmcast.InvalidError
	var old *shmcast.TooOldError
	var early *shmcast.NotYetError
	var refused *shmcast.RefusedError
	var taken *shmcast.GateInUseError
	switch {
	case errors.Is(err, shmcast.ErrNoBoard), errors.Is(err, shmcast.ErrBoard):
		return "no board"
	case errors.Is(err, shmcast.ErrNoGate):
		return "unknown gate"
	case errors.As(err, &taken):
		return "in use"
	case errors.As(err, &invalid):
		return string(invalid.Reason)
	case errors.As(err, &old):
		return "too old"
	case errors.As(err, &early):
		return "not yet"
	case errors.Is(err, shmcast.ErrCorrupt):
		return "corrupt"
	case errors.Is(err, shmcast.ErrSuperseded):
		return "superseded"
	case errors.Is(err, shmcast.ErrNoChannel):
		return "not found"
	case errors.Is(err, shmcast.ErrNoDaemon):
		return "no daemon"
	case errors.As(err, &refused):
		if word, isKnown := map[string]string{"denied": "denied", "busy": "in use", "limit": "limit"}[refused.Code]; isKnown {
			return word
		}
		return "refused"
	case theWriter != nil:
		return theWriter.reason(err)
	}
	return err.Error()
}

func poll(s *shmcast.Subscriber, most int) *[]string {
	events := []string{}
	var ev shmcast.Event
	for empty := 0; empty < enough && len(events) < most; empty++ {
		there, err := s.TryRecv(&ev)
		if err != nil {
			events = append(events, reason(err))
			break
		}
		if there {
			events, empty = append(events, tell(&ev)), -1
		}
	}
	return &events
}

func batch(s *shmcast.Subscriber, most int) *[]string {
	events := []string{}
	b := shmcast.NewBatch(64)
	for empty := 0; empty < enough && len(events) < most; empty++ {
		n, err := s.RecvBatch(b)
		if err != nil {
			events = append(events, reason(err))
			break
		}
		if n > 0 {
			empty = -1
		}
		for i := range b.Events {
			events = append(events, tell(&b.Events[i]))
		}
	}
	return &events
}

func tell(ev *shmcast.Event) string {
	switch ev.Kind {
	case shmcast.KindMessage:
		key := 0
		if ev.Key {
			key = 1
		}
		text := fmt.Sprintf("message %d tag=%d key=%d time=%d length=%d crc=%08x", ev.Sequence, ev.Tag, key, ev.Time, len(ev.Payload),
			crc32.Checksum(ev.Payload, castagnoli))
		if ev.FromBoard {
			text += fmt.Sprint(" conflated=", ev.Conflated)
		}
		if withBytes {
			text += fmt.Sprintf(" bytes=%x", ev.Payload)
		}
		return text
	case shmcast.KindLapped:
		return fmt.Sprintf("lapped %d %d", ev.Missed, ev.ResumedAt)
	case shmcast.KindGap:
		return fmt.Sprintf("gap %d %d", ev.From, ev.To)
	case shmcast.KindNewEpoch:
		return fmt.Sprintf("epoch %d", ev.Epoch)
	case shmcast.KindNewSession:
		return fmt.Sprintf("session %x", ev.Session)
	case shmcast.KindLive:
		return fmt.Sprint("live ", ev.Sequence)
	case shmcast.KindPublisherGone:
		return fmt.Sprintf("gone %d", ev.Epoch)
	}
	return ev.Kind.String()
}
