package shmcast

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

const gateTable = "\n[[channel.gate]]\nname = \"risk\"\nlag = \"32KiB\"\nwait = \"10s\"\nthen = \"refuse\"\n"

// The publisher of a daemon's channel waits for the reader of a gate, so this reader loses nothing.
func TestGateOfADaemonHoldsItsPublisher(t *testing.T) {
	d := startDaemon(t, gateTable)
	s := d.subscribe(t, Gate("risk"))
	var taken *GateInUseError
	if _, err := Subscribe("ticks", Socket(d.socket), Gate("risk")); !errors.As(err, &taken) || taken.PID != uint64(os.Getpid()) {
		t.Errorf("in use: %v", err)
	}
	if _, err := Subscribe("ticks", Socket(d.socket), Gate("none")); !errors.Is(err, ErrNoGate) {
		t.Errorf("unknown: %v", err)
	}
	cmd, input := d.publisher(t)
	const messages = 4000
	go func() {
		defer input.Close()
		for n := range messages {
			if _, err := fmt.Fprintf(input, "%d %s\n", n+1, strings.Repeat("x", 80)); err != nil {
				return
			}
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var ev Event
	for n := uint64(1); n <= messages; n++ {
		if err := s.Recv(ctx, &ev); err != nil || ev.Kind != KindMessage || ev.Sequence != n {
			t.Fatalf("%v %s in the place of %d", err, transcript(&ev), n)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	expect(t, s, "end")
	s.Close()
	again, err := Subscribe("ticks", Socket(d.socket), Gate("risk"), WaitPark())
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}

func TestBoardOfADaemonGoesOnInTheNextGeneration(t *testing.T) {
	d := startDaemon(t, "mode = \"strict\"\nboard = { key = \"0..3\", keys = 4, value = \"64B\" }\n"+gateTable)
	// The gate shows the reader's place in each of the segments.
	s := d.subscribe(t, FromBoard(), Gate("risk"))
	expect(t, s, "live 1")
	b, err := OpenBoard("ticks", Socket(d.socket))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	conflating := d.subscribe(t, Conflate())
	for life := range uint64(4) {
		cmd, input := d.publisher(t)
		for i, key := range []string{"EUR", "GBP"} {
			fmt.Fprintf(input, "%s %d\n", key, life)
			line := fmt.Sprintf("%d %s %d", 2*life+uint64(i)+1, key, life)
			expect(t, s, line)
			expect(t, conflating, line)
			eventually(t, func() bool {
				entry, there, err := b.Get([]byte(key))
				return err == nil && there && string(entry.Payload) == line[2:] && entry.Count >= 1
			})
		}
		if position, isRight := s.gate.claim(); !isRight || position != s.position || s.gate.segment != s.UUID {
			t.Errorf("in life %d the page says %d, and the reader is at %d", life, position, s.position)
		}
		late := d.subscribe(t, FromBoard())
		if lines := expect(t, late, fmt.Sprintf("live %d", 2*life+3)); len(lines) != 3 {
			t.Errorf("the board of generation %d: %q", late.hosted.generation, lines)
		}
		late.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		input.Close()
	}
	if s.hosted.generation < 4 {
		t.Errorf("the reader is in generation %d", s.hosted.generation)
	}
	all, err := b.Entries()
	if keys := []string{}; err == nil {
		for _, entry := range all {
			keys = append(keys, string(entry.Key))
		}
		if !slices.Equal(keys, []string{"EUR", "GBP"}) {
			t.Errorf("%q", keys)
		}
	} else {
		t.Error(err)
	}
}

// A reload gives the board other sizes. The board and a conflating reader continue with their counts.
func TestConflatingReaderKnowsTheCountsOfABoardWithOtherSizes(t *testing.T) {
	table := "board = { key = \"0..3\", keys = 4, value = \"64B\" }\n"
	d := startDaemon(t, table)
	s := d.subscribe(t, Conflate())
	publish := func(count int) {
		cmd, input := d.publisher(t)
		if _, err := input.WriteString(strings.Repeat("EUR 1\n", count)); err != nil {
			t.Fatal(err)
		}
		input.Close()
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	next := func() Event {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for ev := (Event{}); ; {
			if err := s.Recv(ctx, &ev); err != nil {
				t.Fatal(err)
			}
			if ev.Kind == KindMessage {
				return ev
			}
		}
	}
	publish(100)
	for n := uint64(1); n <= 100; n++ {
		if ev := next(); ev.Sequence != n || ev.FromBoard {
			t.Fatalf("%+v in the place of %d", ev, n)
		}
	}
	path := filepath.Join(d.dir, "shmcast.toml")
	config, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, bytes.Replace(config, []byte("keys = 4"), []byte("keys = 5"), 1), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	// The first publisher after the reload makes the new board.
	received := uint64(100)
	eventually(t, func() bool {
		publish(1)
		received++
		if ev := next(); ev.Sequence != received || ev.FromBoard {
			t.Fatalf("%+v in the place of %d", ev, received)
		}
		return s.board.Keys == 5
	})
	publish(5000)
	if ev := next(); !ev.FromBoard || ev.Sequence != received+5000 || ev.Conflated != 4999 {
		t.Errorf("%+v", ev)
	}
}

func eventually(t *testing.T, is func() bool) {
	t.Helper()
	for until := time.Now().Add(30 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("it never comes true")
		}
	}
}

// claim is the position on the page, and whether it is valid.
func (g *heldGate) claim() (position uint64, isRight bool) {
	position = *g.word(gatePosition)
	return position, *g.word(gateCheck) == g.check(position)
}

// pageFile is a file with these words.
func pageFile(t *testing.T, words ...uint64) *os.File {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	var bytes []byte
	for _, word := range words {
		bytes = binary.LittleEndian.AppendUint64(bytes, word)
	}
	if _, err := f.Write(bytes); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestPageOfAGateIsTakenOnlyWhole(t *testing.T) {
	rest := make([]uint64, 510)
	for name, words := range map[string][]uint64{"empty": nil, "short": {gateMagic, 1}, "foreign": append([]uint64{pageMagic, 1}, rest...),
		"version": append([]uint64{gateMagic, 2}, rest...)} {
		lock, page := pageFile(t, words...), pageFile(t, words...)
		if g, err := takeGate("risk", lock, page, [2]uint64{1, 2}); err == nil {
			t.Errorf("%s is taken", name)
			g.close()
		}
		if _, err := lock.Stat(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("the lock of %s stays", name)
		}
	}
}

func TestPageOfAGateHasAPositionOnlyInItsSegment(t *testing.T) {
	first := pageFile(t, append([]uint64{gateMagic, 1}, make([]uint64, 510)...)...)
	open := func() *os.File {
		f, err := os.OpenFile(first.Name(), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	g, err := takeGate("risk", open(), open(), [2]uint64{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	if _, isRight := g.claim(); isRight {
		t.Error("it claims a position before there is one")
	}
	g.passed(place{1 << 40, 9})
	if position, isRight := g.claim(); !isRight || position != 1<<40 || *g.word(gateSequence) != 9 || *g.word(gatePid) != uint64(os.Getpid()) {
		t.Error(position, isRight)
	}
	if locked, err := isLocked(first); !locked || err != nil {
		t.Error("it is not locked", err)
	}
	g.goOn([2]uint64{3, 4})
	if _, isRight := g.claim(); isRight {
		t.Error("a position counts in the next segment")
	}
	g.passed(place{1 << 40, 9})
	if _, isRight := g.claim(); !isRight {
		t.Error("the same position in the next segment does not count")
	}
	g.close()
	if locked, err := isLocked(first); locked || err != nil {
		t.Error("it stays locked", err)
	}
}

func TestReaderIsToldThatItsGateHasLostItsPage(t *testing.T) {
	first := pageFile(t, append([]uint64{gateMagic, 1}, make([]uint64, 510)...)...)
	open := func() *os.File {
		f, err := os.OpenFile(first.Name(), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	g, err := takeGate("risk", open(), open(), [2]uint64{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	defer g.close()
	page, err := g.lock.Stat()
	if err != nil {
		t.Fatal(err)
	}
	look := func() error {
		g.looked = time.Time{}
		return g.look(true)
	}
	g.file = nameOf(first.Name(), page)
	if err := look(); err != nil {
		t.Error("the page has its name", err)
	}
	moved := first.Name() + ".moved"
	if err := os.Rename(first.Name(), moved); err != nil {
		t.Fatal(err)
	}
	var lost *GateLostError
	if err := look(); !errors.As(err, &lost) || lost.Gate != "risk" {
		t.Error("the page was moved", err)
	}
	g.file = nil
	if err := look(); err != nil {
		t.Error("a daemon's page that was moved is not noticed", err)
	}
	if err := os.Remove(moved); err != nil {
		t.Fatal(err)
	}
	if err := look(); !errors.As(err, &lost) {
		t.Error("the page was removed", err)
	}
}

// A channel that begins anew after a journal has lost nothing before its first message.
func TestRestartBehindAJournalIsNoLap(t *testing.T) {
	s := &Subscriber{}
	s.sequence = 77
	for _, c := range []struct {
		next        reply
		isRestarted bool
		expected    uint64
	}{
		{reply{Generation: 5, First: 80, Restarted: 2}, false, 77},
		{reply{Generation: 5, First: 80, Restarted: 5}, true, 80},
		{reply{Generation: 5, First: 80, Restarted: 4}, true, 1},
	} {
		if expected := s.expectedIn(&successor{reply: c.next}, c.isRestarted); expected != c.expected {
			t.Errorf("%+v: message %d is due", c.next, expected)
		}
	}
}
