// The testee in Go of the suite in client/conformance, whose README has its contract.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"log"
	"os"
	"strconv"

	"shmcast"
)

type request struct {
	Do       string          `json:"do"`
	Dir      string          `json:"dir"`
	Channel  string          `json:"channel"`
	Start    json.RawMessage `json:"start"`
	Sequence uint64          `json:"sequence"`
}

type answer struct {
	OK      bool      `json:"ok,omitempty"`
	Refused string    `json:"refused,omitempty"`
	Events  *[]string `json:"events,omitempty"`
}

// enough is how many calls in a row find nothing before a poll ends.
const enough = 130

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func main() {
	fmt.Println(`{"testee":"go","version":"0.1.0","levels":[1,2,3]}`)
	var s *shmcast.Subscriber
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			log.Fatalf("no request: %s: %v", lines.Text(), err)
		}
		var a answer
		switch r.Do {
		case "open", "close":
			if s != nil {
				s.Close()
				s = nil
			}
			var err error
			if r.Do == "open" {
				s, err = shmcast.Subscribe(r.Channel, shmcast.Dir(r.Dir), start(r.Start), shmcast.Hidden(), shmcast.WaitSpin())
			}
			a = done(err)
		case "seek":
			a = done(s.Seek(r.Sequence))
		case "poll":
			a.Events = poll(s)
		case "batch":
			a.Events = batch(s)
		default:
			log.Fatalf("no request: %s", lines.Text())
		}
		line, err := json.Marshal(a)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(string(line))
	}
}

func start(text json.RawMessage) shmcast.Option {
	if sequence, err := strconv.ParseUint(string(text), 10, 64); err == nil {
		return shmcast.FromSequence(sequence)
	}
	if string(text) == `"oldest"` {
		return shmcast.FromOldest()
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
	switch {
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
	}
	return err.Error()
}

func poll(s *shmcast.Subscriber) *[]string {
	events := []string{}
	var ev shmcast.Event
	for empty := 0; empty < enough; empty++ {
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

func batch(s *shmcast.Subscriber) *[]string {
	events := []string{}
	b := shmcast.NewBatch(64)
	for empty := 0; empty < enough; empty++ {
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
		return fmt.Sprintf("message %d tag=%d key=%d time=%d length=%d crc=%08x", ev.Sequence, ev.Tag, key, ev.Time, len(ev.Payload),
			crc32.Checksum(ev.Payload, castagnoli))
	case shmcast.KindLapped:
		return fmt.Sprintf("lapped %d %d", ev.Missed, ev.ResumedAt)
	case shmcast.KindGap:
		return fmt.Sprintf("gap %d %d", ev.From, ev.To)
	case shmcast.KindNewEpoch:
		return fmt.Sprintf("epoch %d", ev.Epoch)
	case shmcast.KindNewSession:
		return fmt.Sprintf("session %x", ev.Session)
	}
	return ev.Kind.String()
}
