//go:build cgo

package publisher

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"shmcast"
)

// long is far more time than any honest reader needs on a busy machine.
const long = 100 * time.Second

func open(t testing.TB, dir string, options Options) *Publisher {
	t.Helper()
	options.Dir = dir
	if options.Capacity == 0 {
		options.Capacity, options.MaxMessage = 64<<10, 1000
	}
	p, err := Open("c", options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func subscribe(t testing.TB, dir string, with ...shmcast.Option) *shmcast.Subscriber {
	t.Helper()
	s, err := shmcast.Subscribe("c", append(with, shmcast.Dir(dir))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func gate(t testing.TB, p *Publisher) GateStatus {
	t.Helper()
	gates, err := p.Gates()
	if err != nil || len(gates) != 1 {
		t.Fatal(gates, err)
	}
	return gates[0]
}

// fill publishes until a gate refuses a message, and returns the refusal and the number of published messages.
func fill(t testing.TB, p *Publisher, payload []byte) (*FullError, int) {
	t.Helper()
	for n := range 100_000 {
		_, err := p.TryPublish(payload, 0, false)
		var full *FullError
		if errors.As(err, &full) {
			return full, n
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("nothing holds this publisher up")
	return nil, 0
}

func TestPublisherWaitsForTheReaderOfAGate(t *testing.T) {
	dir := t.TempDir()
	p := open(t, dir, Options{Gates: []Gate{{Name: "risk", LagBytes: 32 << 10, Refuses: true, Wait: time.Millisecond}}})
	if g := gate(t, p); g.State != GateAbsent || g.Name != "risk" || g.LagBytes != 32<<10 || g.State.String() != "absent" {
		t.Errorf("%+v", g)
	}
	s := subscribe(t, dir, shmcast.Gate("risk"))
	var taken *shmcast.GateInUseError
	if _, err := shmcast.Subscribe("c", shmcast.Dir(dir), shmcast.Gate("risk")); !errors.As(err, &taken) || taken.PID != uint64(os.Getpid()) {
		t.Errorf("in use: %v", err)
	}
	if _, err := shmcast.Subscribe("c", shmcast.Dir(dir), shmcast.Gate("none")); !errors.Is(err, shmcast.ErrNoGate) {
		t.Errorf("unknown: %v", err)
	}
	payload := make([]byte, 100)
	full, n := fill(t, p, payload)
	if full.Gate != "risk" || full.Behind == 0 || full.Behind > 32<<10 || n == 0 {
		t.Errorf("%+v after %d messages", full, n)
	}
	next := p.NextSequence()
	_, err := p.Publish(payload)
	if !errors.As(err, &full) || p.NextSequence() != next || err.Error() == "" {
		t.Errorf("a message that waited in vain: %v", err)
	}
	if g := gate(t, p); g.State != GateInForce || g.PID != uint64(os.Getpid()) || g.Behind != full.Behind || g.Held != 1 || g.Refused != 1 ||
		g.TurnedAway != 1 || g.Longest < time.Millisecond {
		t.Errorf("%+v", g)
	}
	var ev shmcast.Event
	for range n {
		if there, err := s.TryRecv(&ev); !there || err != nil || ev.Kind != shmcast.KindMessage {
			t.Fatal(there, err, ev.Kind)
		}
	}
	if _, err := p.TryPublish(payload, 7, true); err != nil {
		t.Error(err)
	}
	if n, err := p.PublishAll([][]byte{payload, nil}, 0, false); n != 2 || err != nil {
		t.Error(n, err)
	}
	s.Close()
	for range 3000 { // nobody holds the gate
		if _, err := p.Publish(payload); err != nil {
			t.Fatal(err)
		}
	}
	if g := gate(t, p); g.State != GateAbsent || g.PID != 0 {
		t.Errorf("%+v", g)
	}
	if again := subscribe(t, dir, shmcast.Gate("risk")); again.Close() != nil {
		t.Error("the gate is not free")
	}
}

// A reader of a gate loses no message at the publisher's full speed, whether it receives one at a time, in batches, or into its own memory.
func TestReaderOfAGateLosesNothing(t *testing.T) {
	for _, how := range []string{"one", "batch", "into"} {
		t.Run(how, func(t *testing.T) {
			dir := t.TempDir()
			p := open(t, dir, Options{Gates: []Gate{{Name: "risk", LagPercent: 50, Refuses: true, Wait: long}}})
			s := subscribe(t, dir, shmcast.Gate("risk"))
			messages := uint64(50_000)
			if testing.Short() {
				messages = 10_000
			}
			done := make(chan error, 1)
			go func() {
				payload := make([]byte, 64)
				for n := range messages {
					binary.LittleEndian.PutUint64(payload, n+1)
					if _, err := p.Publish(payload[:8+n%57]); err != nil {
						done <- err
						return
					}
				}
				done <- nil
			}()
			receiveAll(t, s, how, messages)
			if err := <-done; err != nil {
				t.Error(err)
			}
			g := gate(t, p)
			if g.State != GateInForce || g.Dropped != 0 {
				t.Errorf("%+v", g)
			}
			t.Logf("%d messages waited, %v together", g.Held, g.Total)
		})
	}
}

// receiveAll receives messages 1 to last, in one of the ways.
func receiveAll(t *testing.T, s *shmcast.Subscriber, how string, last uint64) {
	t.Helper()
	due := uint64(1)
	take := func(ev *shmcast.Event) {
		if ev.Kind != shmcast.KindMessage || ev.Sequence != due || binary.LittleEndian.Uint64(ev.Payload) != due {
			t.Fatalf("%v %d in the place of %d", ev.Kind, ev.Sequence, due)
		}
		due++
	}
	var ev shmcast.Event
	batch, into := shmcast.NewBatch(200), make([]byte, 1000)
	for due <= last {
		there, err := false, error(nil)
		switch how {
		case "one":
			there, err = s.TryRecv(&ev)
		case "into":
			there, err = s.TryRecvInto(into, &ev)
		default:
			_, err = s.RecvBatch(batch)
			for i := range batch.Events {
				take(&batch.Events[i])
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		if there {
			take(&ev)
		}
	}
}

func TestGateThatIsDroppedLetsItsReaderBeLapped(t *testing.T) {
	dir := t.TempDir()
	p := open(t, dir, Options{Gates: []Gate{{Name: "risk", NeverWaits: true}}})
	s := subscribe(t, dir, shmcast.Gate("risk"))
	for range 5000 {
		if _, err := p.Publish(make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
	}
	if g := gate(t, p); g.State != GateDropped || g.Dropped != 1 {
		t.Errorf("%+v", g)
	}
	var ev shmcast.Event
	received, missed := uint64(0), uint64(0)
	for nothing := 0; nothing < 130; nothing++ {
		if there, err := s.TryRecv(&ev); err != nil {
			t.Fatal(err)
		} else if there {
			nothing = 0
			missed += ev.Missed
			if ev.Kind == shmcast.KindMessage {
				received++
			}
		}
	}
	if received+missed != 5000 || missed == 0 {
		t.Error(received, missed)
	}
	if _, err := p.Publish(nil); err != nil {
		t.Error(err)
	}
}

func TestPublishingThroughAGateAllocatesNothing(t *testing.T) {
	dir := t.TempDir()
	p := open(t, dir, Options{Gates: []Gate{{Name: "risk", Refuses: true, Wait: time.Nanosecond}}, Board: Board{KeyEnd: 8}})
	s := subscribe(t, dir, shmcast.Gate("risk"), shmcast.FromBoard())
	payload := make([]byte, 64)
	var ev shmcast.Event
	if there, err := s.TryRecv(&ev); !there || err != nil || ev.Kind != shmcast.KindLive {
		t.Fatal(there, err, ev.Kind)
	}
	n := testing.AllocsPerRun(2000, func() {
		if _, err := p.Publish(payload); err != nil {
			t.Fatal(err)
		}
		if there, err := s.TryRecv(&ev); !there || err != nil {
			t.Fatal(there, err)
		}
	})
	fill(t, p, payload)
	refused := testing.AllocsPerRun(100, func() { _, _ = p.TryPublish(payload, 0, false) })
	if n != 0 || refused != 0 {
		t.Errorf("%v allocations of a message, %v of a refusal", n, refused)
	}
}

func TestWhatGatesAndBoardsCannotBe(t *testing.T) {
	dir := t.TempDir()
	var failed *Error
	for _, wrong := range []Options{
		{Gates: []Gate{{Name: ""}}}, {Gates: []Gate{{Name: "a/b"}}}, {Gates: []Gate{{Name: "a"}, {Name: "a"}}},
		{Gates: []Gate{{Name: "a", LagBytes: 1}}}, {Gates: make([]Gate, 16)}, {Board: Board{KeyStart: 3, KeyEnd: 3}},
	} {
		wrong.Dir, wrong.Capacity = dir, 64<<10
		if p, err := Open("wrong", wrong); !errors.As(err, &failed) || failed.Message == "" {
			t.Errorf("%+v: %v %v", wrong, p, err)
		}
	}
	var name *shmcast.GateNameError
	open(t, dir, Options{Board: Board{KeyEnd: 8, Keys: 4}})
	for _, wrong := range []string{".", "..", "../c/lock", "a b", ".figures", "-x", "a123456789012345678901234567890123"} {
		if _, err := shmcast.Subscribe("c", shmcast.Dir(dir), shmcast.Gate(wrong)); !errors.As(err, &name) {
			t.Errorf("%q: %v", wrong, err)
		}
	}
	if _, err := Open("c", Options{Dir: dir, Board: Board{KeyEnd: 4}}); !errors.As(err, &failed) {
		t.Error(err)
	}
}

func TestPagesOfGatesInWhichAnythingStandsHarmNobody(t *testing.T) {
	dir := t.TempDir()
	open(t, dir, Options{Gates: []Gate{{Name: "risk", NeverWaits: true}}})
	path := filepath.Join(dir, "c", "gates", "risk")
	whole, err := os.ReadFile(path)
	if err != nil || len(whole) != 4096 {
		t.Fatal(len(whole), err)
	}
	for i, bad := range [][]byte{nil, whole[:100], whole[:4095], make([]byte, 4096), bytes.Repeat([]byte{0xff}, 4096)} {
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err := shmcast.Subscribe("c", shmcast.Dir(dir), shmcast.Gate("risk")); err == nil {
			t.Errorf("page %d is taken", i)
			s.Close()
		}
	}
	for _, is := range []func() error{
		func() error { return os.Symlink(filepath.Join(dir, "elsewhere"), path) },
		func() error { return os.Mkdir(path, 0o700) },
	} {
		_ = os.Remove(path)
		if err := os.WriteFile(filepath.Join(dir, "elsewhere"), whole, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := is(); err != nil {
			t.Fatal(err)
		}
		if s, err := shmcast.Subscribe("c", shmcast.Dir(dir), shmcast.Gate("risk")); err == nil {
			t.Error("a page that is no ordinary file is taken")
			s.Close()
		}
	}
}

// Words that another program writes to the page do not matter at the reader's next message.
func TestReaderOfAGateSaysItsPositionWhateverStandsThere(t *testing.T) {
	dir := t.TempDir()
	p := open(t, dir, Options{Gates: []Gate{{Name: "risk", NeverWaits: true}}})
	path := filepath.Join(dir, "c", "gates", "risk")
	s := subscribe(t, dir, shmcast.Gate("risk"), shmcast.FromOldest())
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var ev shmcast.Event
	for n := range uint64(1000) {
		if _, err := p.Publish(fmt.Append(nil, n)); err != nil {
			t.Fatal(err)
		}
		var junk [32]byte // position, check, sequence and process id
		for at := range junk {
			junk[at] = byte(n * 0x9e3779b97f4a7c15 >> at)
		}
		if _, err := file.WriteAt(junk[:], 8*16); err != nil {
			t.Fatal(err)
		}
		if there, err := s.TryRecv(&ev); !there || err != nil || ev.Sequence != n+1 {
			t.Fatal(there, err, ev.Sequence)
		}
		position, check := words(t, file)
		info := s.Info()
		if want := (position^info.UUID[1])*0x9e37_79b9_7f4a_7c15 ^ info.UUID[0]; check != want || position == 0 || position%64 != 0 {
			t.Fatalf("position %d with check %#x, and not %#x", position, check, want)
		}
	}
	s.Close()
	position, check := words(t, file)
	if check == (position^s.Info().UUID[1])*0x9e37_79b9_7f4a_7c15^s.Info().UUID[0] {
		t.Error("a reader that has gone still has a place")
	}
}

func words(t *testing.T, page *os.File) (position, check uint64) {
	t.Helper()
	var bytes [16]byte
	if _, err := page.ReadAt(bytes[:], 8*16); err != nil {
		t.Fatal(err)
	}
	return binary.LittleEndian.Uint64(bytes[:]), binary.LittleEndian.Uint64(bytes[8:])
}

func TestBoardIsPublishedAndRead(t *testing.T) {
	dir := t.TempDir()
	p := open(t, dir, Options{Board: Board{KeyStart: 1, KeyEnd: 4, Keys: 2, Value: 32, RemovesByTag: true, RemoveTag: 9}})
	b, err := shmcast.OpenBoard("c", shmcast.Dir(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if spec := b.Spec(); spec != (shmcast.BoardSpec{KeyStart: 1, KeyEnd: 4, Keys: 2, Value: 32, RemovesByTag: true, RemoveTag: 9}) {
		t.Errorf("%+v", spec)
	}
	for n := range 100 {
		_, err1 := p.PublishWith(fmt.Append(nil, "-EUR", n), 3, true)
		_, err2 := p.TryPublish(fmt.Append(nil, "-GBP", n), 0, false)
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
	}
	entry, there, err := b.Get([]byte("EUR"))
	if !there || err != nil || string(entry.Payload) != "-EUR99" || entry.Tag != 3 || !entry.KeyMessage || entry.Count != 100 || entry.Sequence != 199 ||
		b.Age(entry.Time) > time.Hour {
		t.Errorf("%+v %t %v", entry, there, err)
	}
	if _, err := p.PublishWith([]byte("-EUR and more"), 9, false); err != nil {
		t.Fatal(err)
	}
	if _, there, err := b.Get([]byte("EUR")); there || err != nil {
		t.Error("the tag does not remove the key", err)
	}
	if _, err := p.Publish([]byte("-JPY1")); err != nil { // this key gets the slot of the removed key
		t.Fatal(err)
	}
	all, err := b.Entries()
	if err != nil || len(all) != 2 || string(all[0].Key) != "GBP" || string(all[1].Key) != "JPY" || all[1].Count != 1 {
		t.Errorf("%+v %v", all, err)
	}
}

func TestGateAndBoardOfADaemonAreUsed(t *testing.T) {
	p, options := hosted(t, "board = { key = \"0..8\", keys = 4, value = \"128B\" }\n"+
		"[[channel.gate]]\nname = \"risk\"\nlag = \"32KiB\"\nwait = \"1ms\"\nthen = \"refuse\"\n")
	s, err := shmcast.Subscribe("ticks", shmcast.Socket(options.Socket), shmcast.FromBoard(), shmcast.Gate("risk"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	payload := make([]byte, 100)
	full, published := fill(t, p, payload)
	if g := gate(t, p); full.Gate != "risk" || g.State != GateInForce || g.LagBytes != 32<<10 || g.TurnedAway != 1 || g.PID != uint64(os.Getpid()) {
		t.Errorf("%v %+v", full, g)
	}
	var ev shmcast.Event
	for n := range published + 1 {
		want := shmcast.KindMessage
		if n == 0 {
			want = shmcast.KindLive
		}
		if there, err := s.TryRecv(&ev); !there || err != nil || ev.Kind != want {
			t.Fatal(n, there, err, ev.Kind)
		}
	}
	if _, err := p.Publish(payload); err != nil {
		t.Error(err)
	}
	b, err := shmcast.OpenBoard("ticks", shmcast.Socket(options.Socket))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if entry, there, err := b.Get(make([]byte, 8)); !there || err != nil || entry.Count != uint64(published)+1 {
		t.Errorf("%+v %t %v", entry, there, err)
	}
}
