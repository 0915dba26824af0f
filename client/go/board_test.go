package shmcast

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Messages of these tests follow from their number alone. So the newest message of each key below any sequence is known without a record.
const boardKeys = 300

func mixed(n uint64) uint64 {
	n = (n ^ n>>30) * 0xbf58_476d_1ce4_e5b9
	n = (n ^ n>>27) * 0x94d0_49bb_1331_11eb
	return n ^ n>>31
}

func keyOfNumber(n uint64) uint64 { return mixed(n) % boardKeys }

// keyed is message n: its key, and its number repeated, unless the message removes the key.
func keyed(n uint64) []byte {
	message := binary.LittleEndian.AppendUint64(nil, keyOfNumber(n))
	if mixed(n)>>32&63 == 0 {
		return message
	}
	for range 1 + mixed(n)>>40%31 {
		message = binary.LittleEndian.AppendUint64(message, n)
	}
	return message
}

// newestBelow has the number of the newest message of each key below due.
func newestBelow(due uint64) map[uint64]uint64 {
	newest := map[uint64]uint64{}
	for n := uint64(1); n < due; n++ {
		newest[keyOfNumber(n)] = n
	}
	return newest
}

// keyedPublisher runs `shmcast pub` with a board over messages from a number on, until it is killed or has published count.
func keyedPublisher(t testing.TB, dir string, from, count uint64, capacity string) *exec.Cmd {
	cmd := command(t, "shmcast", "pub", "c", "--dir", dir, "--capacity", capacity, "--framing", "u32le", "--set", "prepare=none",
		"--set", "board.key=0..8", "--set", "board.keys="+fmt.Sprint(boardKeys), "--set", "board.value=256")
	input, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer input.Close()
		var packet []byte
		for n := from; n < from+count; n++ {
			message := keyed(n)
			packet = append(binary.LittleEndian.AppendUint32(packet[:0], uint32(len(message))), message...)
			if _, err := input.Write(packet); err != nil {
				return
			}
		}
	}()
	return cmd
}

// publishKeyed publishes messages 1 to count.
func publishKeyed(t testing.TB, dir string, count uint64, capacity string) {
	t.Helper()
	if err := keyedPublisher(t, dir, 1, count, capacity).Wait(); err != nil {
		t.Fatal(err)
	}
}

// joinedAt receives the board, compares it with the expected messages, and returns the sequence at which the stream continues.
func joinedAt(t testing.TB, s *Subscriber) uint64 {
	t.Helper()
	got, last := map[uint64]uint64{}, uint64(0)
	for {
		var ev Event
		if there, err := s.TryRecv(&ev); !there || err != nil {
			t.Fatal(there, err)
		}
		if ev.Kind == KindLive {
			want := newestBelow(ev.Sequence)
			maps.DeleteFunc(want, func(_, n uint64) bool { return len(keyed(n)) == 8 })
			if !maps.Equal(got, want) {
				t.Fatalf("the board below %d has %d keys, and not the %d that it should have", ev.Sequence, len(got), len(want))
			}
			return ev.Sequence
		}
		if ev.Kind != KindMessage || !ev.FromBoard || ev.Conflated != 0 || ev.Sequence <= last || !bytes.Equal(ev.Payload, keyed(ev.Sequence)) {
			t.Fatalf("not a message of the board: %+v", ev)
		}
		last = ev.Sequence
		got[keyOfNumber(ev.Sequence)] = ev.Sequence
	}
}

func TestReaderBeginsWithTheBoardAndMissesNothing(t *testing.T) {
	dir := channels(t)
	publishKeyed(t, dir, 20_000, "64KiB")
	s, err := Subscribe("c", Dir(dir), FromBoard())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if due := joinedAt(t, s); due != 20_001 {
		t.Errorf("the stream goes on with %d", due)
	}
	if rest := drained(t, s); !slices.Equal(rest, nil) && !slices.Equal(rest, []string{"end"}) {
		t.Errorf("behind the board: %q", rest)
	}
	batches, err := Subscribe("c", Dir(dir), FromBoard())
	if err != nil {
		t.Fatal(err)
	}
	defer batches.Close()
	all := NewBatch(7)
	var ones []string
	for n := 1; n > 0; {
		if n, err = batches.RecvBatch(all); err != nil {
			t.Fatal(err)
		}
		for i := range all.Events {
			ones = append(ones, transcript(&all.Events[i]))
		}
	}
	if live := slices.Index(ones, "live 20001"); live < boardKeys/2 || len(ones)-live > 2 {
		t.Errorf("in batches: %q", ones)
	}
}

// readOn reads the stream for some time, from message due on.
func readOn(t testing.TB, s *Subscriber, due uint64) {
	t.Helper()
	for range 3000 {
		var ev Event
		there, err := s.TryRecv(&ev)
		switch {
		case err != nil:
			t.Error(err)
		case there && ev.Kind == KindLapped:
			due += ev.Missed
		case there && ev.Kind == KindMessage:
			if ev.Sequence != due || ev.FromBoard || !bytes.Equal(ev.Payload, keyed(due)) {
				t.Errorf("message %d in the place of %d", ev.Sequence, due)
			}
			due++
		}
	}
}

// Readers join while a publisher at full speed is killed and the next one continues. Each reader then reads the stream.
func TestReadersJoinBesidePublishersThatAreKilled(t *testing.T) {
	dir := channels(t)
	joins, lives := 40, 6
	if testing.Short() {
		joins, lives = 8, 3
	}
	publishKeyed(t, dir, 1, "1MiB")
	var readers sync.WaitGroup
	done := make(chan struct{})
	readers.Add(1)
	go func() {
		defer readers.Done()
		defer close(done)
		for range joins {
			s, err := Subscribe("c", Dir(dir), FromBoard())
			if err != nil {
				t.Error(err)
				return
			}
			readOn(t, s, joinedAt(t, s))
			s.Close()
		}
	}()
	next, isOver := uint64(2), false
	for life := 0; !isOver; life++ {
		cmd := keyedPublisher(t, dir, next, 1<<40, "1MiB")
		look, err := Subscribe("c", Dir(dir), Hidden())
		if err != nil {
			t.Fatal(err)
		}
		// Each publisher is killed after some 3,000 messages, and the last one when the readers have finished.
		for until := time.Now().Add(20 * time.Second); look.Lag() < 3000 && time.Now().Before(until); time.Sleep(time.Millisecond) {
		}
		if life >= lives {
			<-done
			isOver = true
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		look.Close()
		if look, err = Subscribe("c", Dir(dir), Hidden()); err != nil {
			t.Fatal(err)
		}
		next = look.NextSequence()
		look.Close()
	}
	readers.Wait()
}

// A reader that does not keep up receives each message, or is told how many of its key it missed.
func TestConflatingReaderCountsEachMessageThatItLeavesOut(t *testing.T) {
	const before, last = 5_000, 40_000
	for _, behind := range []uint64{0, 8 << 10} {
		dir := channels(t)
		publishKeyed(t, dir, before, "64KiB") // the board has no replacement for the removal of a key that it never had
		s, err := Subscribe("c", Dir(dir), ConflateBehind(behind))
		if err != nil {
			t.Fatal(err)
		}
		cmd := keyedPublisher(t, dir, before+1, last-before, "64KiB")
		given, conflated, lives := map[uint64]uint64{}, uint64(0), 0
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		var ev Event
		for newest := uint64(before); newest < last; {
			if err := s.Recv(ctx, &ev); err != nil {
				t.Fatal(err)
			}
			switch ev.Kind {
			case KindLive:
				lives++
			case KindLapped:
				t.Fatalf("every message has a key, and yet %d are lost", ev.Missed)
			case KindMessage:
				if len(ev.Payload) == 8 && ev.FromBoard { // a removal, which the board has possibly forgotten
					given[binary.LittleEndian.Uint64(ev.Payload)] += 1 + ev.Conflated
					newest = max(newest, ev.Sequence)
					continue
				}
				if ev.Sequence <= newest || !bytes.Equal(ev.Payload, keyed(ev.Sequence)) || !ev.FromBoard && ev.Conflated != 0 {
					t.Fatalf("message %+v behind %d", ev, newest)
				}
				newest = ev.Sequence
				conflated += ev.Conflated
				given[keyOfNumber(ev.Sequence)] += 1 + ev.Conflated
			}
		}
		cancel()
		_ = cmd.Wait()
		s.Close()
		want := map[uint64]uint64{}
		for n := uint64(before + 1); n <= last; n++ {
			want[keyOfNumber(n)]++
		}
		if !maps.Equal(given, want) {
			t.Errorf("the counts of %d keys are not those of %d", len(given), len(want))
		}
		t.Logf("%d left out, %d times", conflated, lives)
	}
}

func TestBoardIsReadByKey(t *testing.T) {
	dir := channels(t)
	messages := [][]byte{[]byte("EUR 1.08"), []byte("GBP 1.27"), []byte("EUR 1.09"), []byte("x"), append([]byte("JPY"), make([]byte, 100)...),
		[]byte("USD 1"), []byte("USD")}
	publish(t, dir, "c", messages, "--capacity", "64KiB", "--set", "board.key=0..3", "--set", "board.keys=4", "--set", "board.value=64")
	b, err := OpenBoard("c", Dir(dir))
	if err != nil {
		t.Fatal(err)
	}
	if spec := b.Spec(); spec != (BoardSpec{KeyEnd: 3, Keys: 4, Value: 64}) {
		t.Errorf("%+v", spec)
	}
	entry, there, err := b.Get([]byte("EUR"))
	if !there || err != nil || string(entry.Key) != "EUR" || string(entry.Payload) != "EUR 1.09" || entry.Sequence != 3 || entry.Count != 2 {
		t.Errorf("%+v %t %v", entry, there, err)
	}
	if entry, there, err = b.Get([]byte("JPY")); !there || err != nil || entry.Payload != nil || entry.Sequence != 5 || string(entry.Key) != "JPY" {
		t.Errorf("too large: %+v %t %v", entry, there, err)
	}
	for _, key := range []string{"USD", "CHF", "", "EURO"} {
		if _, there, err = b.Get([]byte(key)); there || err != nil {
			t.Errorf("%q: %t %v", key, there, err)
		}
	}
	all, err := b.Entries()
	var keys []string
	for _, entry := range all {
		keys = append(keys, fmt.Sprintf("%s %d", entry.Key, entry.Sequence))
	}
	if err != nil || !slices.Equal(keys, []string{"GBP 2", "EUR 3", "JPY 5"}) {
		t.Errorf("%q %v", keys, err)
	}
	if c := b.Counters(); c != (BoardCounters{Through: 7, Since: 1, Keys: 3, TooLarge: 1, NoKey: 1}) {
		t.Errorf("%+v", c)
	}
	if n := testing.AllocsPerRun(100, func() { _, _, _ = b.Get([]byte("GBP")) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	b.Close()
	if _, _, err = b.Get([]byte("EUR")); !errors.Is(err, ErrClosed) || b.Counters() != (BoardCounters{}) {
		t.Error(err)
	}
	s, err := Subscribe("c", Dir(dir), FromBoard())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i, line := range drained(t, s) {
		if want := []string{"message 2 ", "message 3 ", "lapped missed 1 resumed at 8", "live 8", "end"}[i]; !strings.HasPrefix(line, want) {
			t.Errorf("%d: %s", i, line)
		}
	}
}

func TestChannelWithoutABoardIsRefused(t *testing.T) {
	dir := channels(t)
	publish(t, dir, "c", [][]byte{{1}}, "--capacity", "64KiB")
	if _, err := OpenBoard("c", Dir(dir)); !errors.Is(err, ErrNoBoard) {
		t.Error(err)
	}
	for _, with := range []Option{FromBoard(), Conflate()} {
		if _, err := Subscribe("c", Dir(dir), with); !errors.Is(err, ErrNoBoard) {
			t.Error(err)
		}
	}
	publishKeyed(t, dir+"/with", 1, "64KiB")
	if _, err := Subscribe("c", Dir(dir+"/with"), FromOldest(), Conflate()); !errors.Is(err, ErrConflation) {
		t.Error(err)
	}
}

func TestKeysAreIdentifiedAsTheSpecificationSays(t *testing.T) {
	b := &board{seed: 0x0123_4567_89ab_cdef}
	if id := b.identity([]byte("EUR")); id != [2]uint64{0x0052_5545, 0} || b.fingerprint(id) != 0xf8ed_909c {
		t.Errorf("%#x %#x", id, b.fingerprint(id))
	}
	if id := b.identity([]byte("EURUSD-SPOT")); id != [2]uint64{0x532d_4453_5552_5545, 0x0054_4f50} {
		t.Errorf("%#x", id)
	}
	if id := b.identity([]byte("a key of twenty-four by.")); id != [2]uint64{0x3973_25ea_5d22_50b8, 0x1d5f_710c_59e4_aec2} {
		t.Errorf("%#x", id)
	}
}

func TestJoiningAgainAllocatesNothing(t *testing.T) {
	dir := channels(t)
	publishKeyed(t, dir, 5000, "64KiB")
	s, err := Subscribe("c", Dir(dir), Conflate())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var ev Event
	n := testing.AllocsPerRun(20, func() {
		s.handOutFrom(stepDue)
		for ev.Kind = KindMessage; ev.Kind != KindLive; {
			if _, err := s.TryRecv(&ev); err != nil {
				t.Fatal(err)
			}
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}
