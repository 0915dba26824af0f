package shmcast

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"os/exec"
	"sync"
	"testing"
	"time"
)

// checked is a message that contains its own number. Each of its bytes follows from the number.
func checked(number uint64, length int) []byte {
	message := make([]byte, length)
	for i := range message {
		message[i] = byte(number*131 + uint64(i)*7 + number>>8)
	}
	return message
}

// lengthOfNumber is the length of a checked message: 0 to 64 KiB, most of them short.
func lengthOfNumber(number uint64) int {
	random := rand.New(rand.NewPCG(number, 7))
	return random.IntN(1 << random.IntN(17))
}

// isChecked says whether payload is the checked message of this number.
func isChecked(payload []byte, number uint64) bool {
	if len(payload) != lengthOfNumber(number) {
		return false
	}
	for i, b := range payload {
		if b != byte(number*131+uint64(i)*7+number>>8) {
			return false
		}
	}
	return true
}

// feed writes messages from a number on in the form that `shmcast pub` reads, until count messages are written or the publisher dies.
func feed(to io.WriteCloser, from, count uint64) {
	defer to.Close()
	var packet []byte
	for n := from; n < from+count; n++ {
		message := checked(n, lengthOfNumber(n))
		packet = append(binary.LittleEndian.AppendUint32(packet[:0], uint32(len(message))), message...)
		if _, err := to.Write(packet); err != nil {
			return
		}
	}
}

// A real publisher at full speed uses a ring of 1 MiB. Readers that wait in each way check every byte. Publishers are killed meanwhile, and
// the next one continues. Received and missed messages together are all that were published.
func TestNothingIsLostSilentlyBehindPublishersThatAreKilled(t *testing.T) {
	dir := channels(t)
	lives, each := 12, uint64(60_000)
	if testing.Short() {
		lives, each = 4, 10_000
	}
	publisher := func(from, count uint64) *exec.Cmd {
		cmd := command(t, "shmcast", "pub", "c", "--dir", dir, "--capacity", "1MiB", "--set", "max_message=65536", "--framing", "u32le", "--set", "prepare=none")
		input, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		go feed(input, from, count)
		return cmd
	}
	// The first message is published before a reader begins, so that sequences and numbers agree.
	publish(t, dir, "c", [][]byte{checked(1, lengthOfNumber(1))}, "--capacity", "1MiB", "--set", "max_message=65536")
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	var readers sync.WaitGroup
	last := make(chan uint64)
	type result struct {
		name             string
		received, missed uint64
		err              error
	}
	waits := map[string]Option{"yield": WaitYield(), "spin": WaitSpin(), "burst": WaitBurst(), "sleep": WaitSleep(50 * time.Microsecond)}
	results := make(chan result, len(waits))
	for name, wait := range waits {
		s, err := Subscribe("c", Dir(dir), FromOldest(), wait)
		if err != nil {
			t.Fatal(err)
		}
		readers.Add(1)
		go func() {
			defer readers.Done()
			defer s.Close()
			r := result{name: name}
			r.received, r.missed, r.err = count(ctx, s, last, name == "yield" || name == "burst")
			results <- r
		}()
	}
	next := uint64(2)
	for life := range lives {
		// The successor of a killed publisher publishes the rest. Its first sequence says which message comes next.
		cmd := publisher(next, each)
		if life < lives-1 {
			time.Sleep(time.Duration(20+rand.IntN(150)) * time.Millisecond)
			_ = cmd.Process.Kill()
		}
		_ = cmd.Wait()
		look, err := Subscribe("c", Dir(dir), Hidden())
		if err != nil {
			t.Fatal(err)
		}
		next = look.NextSequence()
		look.Close()
	}
	final = next - 1
	close(last)
	readers.Wait()
	close(results)
	for r := range results {
		t.Logf("%s: %d received, %d missed, %d published", r.name, r.received, r.missed, final)
		if r.err != nil || r.received+r.missed != final || r.received == 0 {
			t.Errorf("%s: %v: %d received, %d missed, %d published", r.name, r.err, r.received, r.missed, final)
		}
	}
}

// final is the last published sequence. It is written before the readers are told to end.
var final uint64

var errWrongBytes = errors.New("a message has wrong bytes")

// count receives until done is closed and nothing is left. It checks every byte.
func count(ctx context.Context, s *Subscriber, done <-chan uint64, inBatches bool) (received, missed uint64, err error) {
	batch := NewBatch(64)
	one := make([]Event, 1)
	for ctx.Err() == nil {
		isOver := false
		select {
		case <-done:
			isOver = true
		default:
		}
		events := one
		if inBatches {
			if _, err := s.RecvBatch(batch); err != nil {
				return received, missed, err
			}
			events = batch.Events
		} else if there, err := s.TryRecv(&one[0]); err != nil {
			return received, missed, err
		} else if !there {
			events = nil
		}
		for i := range events {
			switch ev := &events[i]; ev.Kind {
			case KindMessage:
				if received++; !isChecked(ev.Payload, ev.Sequence) {
					return received, missed, errWrongBytes
				}
			case KindLapped:
				missed += ev.Missed
			}
		}
		if len(events) == 0 {
			if isOver && s.NextSequence() == final+1 {
				return received, missed, nil
			}
			s.idle(ctx)
		}
	}
	return received, missed, ctx.Err()
}
