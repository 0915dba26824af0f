package shmcast

import (
	"bytes"
	"testing"
)

// full is a subscriber to a ring of 1 MiB with messages of this many bytes.
func full(tb testing.TB, bytesEach, messages int) *Subscriber {
	dir := channels(tb)
	all := make([][]byte, messages)
	for i := range all {
		all[i] = bytes.Repeat([]byte{byte(i)}, bytesEach)
	}
	publish(tb, dir, "c", all, "--capacity", "1MiB")
	s, err := Subscribe("c", Dir(dir), FromOldest())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { s.Close() })
	return s
}

func TestReceivingAllocatesNothing(t *testing.T) {
	s := full(t, 32, 10_000)
	var ev Event
	batch := NewBatch(100)
	into := make([]byte, 64)
	rewind := func() {
		if err := s.Seek(1); err != nil {
			t.Fatal(err)
		}
	}
	rewind()
	one := testing.AllocsPerRun(1_000, func() {
		if there, err := s.TryRecv(&ev); !there || err != nil {
			t.Fatal(there, err)
		}
		if there, err := s.TryRecvInto(into, &ev); !there || err != nil {
			t.Fatal(there, err)
		}
	})
	batches := testing.AllocsPerRun(50, func() {
		if n, err := s.RecvBatch(batch); n != 100 || err != nil {
			t.Fatal(n, err)
		}
	})
	for {
		if there, err := s.TryRecv(&ev); err != nil {
			t.Fatal(err)
		} else if !there {
			break
		}
	}
	empty := testing.AllocsPerRun(1_000, func() { _, _ = s.TryRecv(&ev) })
	if one != 0 || batches != 0 || empty != 0 {
		t.Errorf("allocations: %v in two calls, %v in a batch, %v in an empty call", one, batches, empty)
	}
}

func BenchmarkTryRecv32(b *testing.B) {
	const messages = 10_000
	s := full(b, 32, messages)
	var ev Event
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		if n%messages == 0 {
			_ = s.Seek(1)
		}
		if there, _ := s.TryRecv(&ev); !there {
			b.Fatal("nothing there")
		}
	}
}

func BenchmarkRecvBatch32(b *testing.B) {
	const messages = 10_000
	s := full(b, 32, messages)
	batch := NewBatch(500)
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		if n%messages == 0 {
			_ = s.Seek(1)
		}
		if n%500 == 0 {
			if got, _ := s.RecvBatch(batch); got != 500 {
				b.Fatal("not a whole batch")
			}
		}
	}
}
