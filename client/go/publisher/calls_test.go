//go:build cgo

package publisher

import (
	"bytes"
	"io"
	"runtime"
	"runtime/pprof"
	"sync"
	"testing"
	"time"

	"shmcast"
)

// Calls of C must survive what Go does with goroutines meanwhile: signals of a profile and of the scheduler, garbage collections, stacks
// that grow and move, and more goroutines than running threads. Each goroutine has a publisher and reads its own channel.
func TestCallsStandSignalsCollectionsAndMovingStacks(t *testing.T) {
	dir := t.TempDir()
	if err := pprof.StartCPUProfile(io.Discard); err != nil {
		t.Log("without a profile:", err)
	} else {
		defer pprof.StopCPUProfile()
	}
	rounds := 50
	if testing.Short() {
		rounds = 10
	}
	var all sync.WaitGroup
	done := make(chan struct{})
	for g := range 8 {
		all.Add(1)
		go func() {
			defer all.Done()
			publishAndRead(t, dir, string(rune('a'+g)), rounds)
		}()
	}
	go func() { all.Wait(); close(done) }()
	collections := 0
	for isDone := false; !isDone; collections++ {
		runtime.GC()
		select {
		case <-done:
			isDone = true
		case <-time.After(100 * time.Microsecond):
		}
	}
	t.Log(collections, "collections")
}

func publishAndRead(t *testing.T, dir, channel string, rounds int) {
	p, err := Open(channel, Options{Dir: dir, Capacity: 1 << 20})
	if err != nil {
		t.Error(err)
		return
	}
	defer p.Close()
	s, err := shmcast.Subscribe(channel, shmcast.Dir(dir))
	if err != nil {
		t.Error(err)
		return
	}
	defer s.Close()
	var ev shmcast.Event
	for range rounds {
		first := p.NextSequence()
		for n := range uint64(100) {
			if sequence, err := publishDeep(p, first+n, int(n)); sequence != first+n || err != nil {
				t.Error(channel, sequence, first+n, err)
				return
			}
		}
		for n := range uint64(100) {
			there, err := s.TryRecv(&ev)
			if !there || err != nil || ev.Sequence != first+n || !bytes.Equal(ev.Payload, message(ev.Sequence)) {
				t.Error(channel, there, err, ev.Sequence, first+n)
				return
			}
		}
	}
}

// publishDeep publishes from further down a stack, where the payload can lie on the stack.
func publishDeep(p *Publisher, sequence uint64, depth int) (uint64, error) {
	var room [3000]byte
	if depth > 0 {
		room[depth]++
		defer func() { room[depth]-- }()
		return publishDeep(p, sequence, depth-1)
	}
	payload := room[:copy(room[:], message(sequence))]
	return p.Publish(payload)
}
