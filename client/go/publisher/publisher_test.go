//go:build cgo

package publisher

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"shmcast"
)

// This test's program is also a publisher that another test kills.
func TestMain(m *testing.M) {
	if dir := os.Getenv("SHMCAST_TEST_PUBLISH"); dir != "" {
		p, err := Open("c", Options{Dir: dir})
		for err == nil {
			_, err = p.Publish(message(p.NextSequence()))
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// message is the payload of a sequence. Each byte follows from the sequence.
func message(sequence uint64) []byte {
	payload := make([]byte, sequence*7919%3000)
	for i := range payload {
		payload[i] = byte(sequence + uint64(i))
	}
	return payload
}

func TestOptionsThatMeanSomethingElseAreRefused(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		channel string
		options Options
	}{
		{"c", Options{Socket: filepath.Join(dir, "control.sock")}},
		{"c\x00d", Options{Dir: dir}},
		{"c", Options{Dir: dir, Gates: []Gate{{Name: "g\x00h"}}}},
	} {
		if p, err := Open(c.channel, c.options); err == nil {
			p.Close()
			t.Errorf("%q, %+v: no error", c.channel, c.options)
		}
	}
	if made, _ := os.ReadDir(dir); len(made) != 0 {
		t.Error("a channel was made", made)
	}
}

func TestWhatIsPublishedIsReceived(t *testing.T) {
	dir := t.TempDir()
	p, err := Open("c", Options{Dir: dir, Capacity: 64 << 10, MaxMessage: 100})
	if err != nil {
		t.Fatal(err)
	}
	s, err := shmcast.Subscribe("c", shmcast.Dir(dir), shmcast.FromOldest())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	publish := func(payload []byte, tag uint16, key bool, sequence uint64) {
		if got, err := p.PublishWith(payload, tag, key); err != nil || got != sequence {
			t.Fatal(got, err)
		}
	}
	publish([]byte("one"), 7, true, 1)
	publish(nil, 0, false, 2)
	if err := p.Gap(4); err != nil {
		t.Fatal(err)
	}
	if err := p.Session([10]byte([]byte("SESSION-01"))); err != nil {
		t.Fatal(err)
	}
	publish([]byte("five"), 65535, false, 5)
	var failed *Error
	if _, err := p.Publish(make([]byte, 101)); !errors.As(err, &failed) || failed.Code != CodeTooLarge || failed.Message == "" {
		t.Errorf("too large: %v", err)
	}
	if _, err := Open("c", Options{Dir: dir}); !errors.As(err, &failed) || failed.Code != CodeInUse {
		t.Errorf("in use: %v", err)
	}
	all := [][]byte{[]byte("six"), []byte("seven"), {}, make([]byte, 101), []byte("never")}
	if n, err := p.PublishAll(all, 9, true); n != 3 || !errors.As(err, &failed) || failed.Code != CodeTooLarge {
		t.Error(n, err)
	}
	if p.NextSequence() != 9 || p.Epoch() != 1 || p.MaxMessage() != 100 || p.IsCutOff() {
		t.Error(p.NextSequence(), p.Epoch(), p.MaxMessage())
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Publish(nil); !errors.Is(err, ErrClosed) || p.NextSequence() != 0 {
		t.Errorf("after close: %v", err)
	}
	var told []string
	for ev, err := range s.Events(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		told = append(told, fmt.Sprintf("%v %d %d %t %s %d-%d %s", ev.Kind, ev.Sequence, ev.Tag, ev.Key, ev.Payload, ev.From, ev.To,
			bytes.Trim(ev.Session[:], "\x00")))
	}
	if want := []string{"message 1 7 true one 0-0 ", "message 2 0 false  0-0 ", "gap 0 0 false  3-4 ",
		"new-session 0 0 false  0-0 SESSION-01", "message 5 65535 false five 0-0 ",
		"message 6 9 true six 0-0 ", "message 7 9 true seven 0-0 ", "message 8 9 true  0-0 ", "end 0 0 false  0-0 "}; !slices.Equal(told, want) {
		t.Errorf("%q", told)
	}
}

func TestManyMessagesArePublishedInOrder(t *testing.T) {
	dir := t.TempDir()
	p, err := Open("c", Options{Dir: dir, Capacity: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	s, err := shmcast.Subscribe("c", shmcast.Dir(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var all [][]byte
	for n := range uint64(100) { // more bytes than one call takes, and one message that is larger than that
		all = append(all, message(n))
	}
	all = append(all, make([]byte, 48<<10), []byte("last"))
	if n, err := p.PublishAll(all, 0, false); n != len(all) || err != nil {
		t.Fatal(n, err)
	}
	var ev shmcast.Event
	for i, payload := range all {
		if there, err := s.TryRecv(&ev); !there || err != nil || ev.Sequence != uint64(i+1) || !bytes.Equal(ev.Payload, payload) {
			t.Fatal(i, there, err, ev.Sequence)
		}
	}
	if allocations := testing.AllocsPerRun(100, func() { _, _ = p.PublishAll(all[:20], 0, false) }); allocations != 0 {
		t.Error(allocations)
	}
}

// hosted opens the publisher of channel "ticks" of a new daemon, whose configuration ends with this text.
func hosted(t *testing.T, more string) (p *Publisher, options Options) {
	t.Helper()
	bin := os.Getenv("SHMCAST_BIN")
	for _, built := range []string{"../../../target/release", "../../../target/debug"} {
		if _, err := os.Stat(filepath.Join(built, "shmcastd")); bin == "" && err == nil {
			bin = built
		}
	}
	if bin == "" {
		t.Fatal("shmcastd is not built: cargo build -p shmcast-daemon, or set SHMCAST_BIN")
	}
	dir := t.TempDir()
	socket, config := filepath.Join(dir, "control.sock"), filepath.Join(dir, "shmcast.toml")
	text := fmt.Sprintf("[daemon]\nsocket = %q\n[[channel]]\nname = \"ticks\"\ncapacity = \"64KiB\"\nmlock = false\n%s", socket, more)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	daemon := exec.Command(filepath.Join(bin, "shmcastd"), "--config", config)
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = daemon.Process.Kill(); _ = daemon.Wait() })
	options = Options{Daemon: true, Socket: socket}
	var err error
	for until := time.Now().Add(20 * time.Second); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		var failed *Error
		if p, err = Open("ticks", options); !errors.As(err, &failed) || failed.Code != CodeNoDaemon {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p, options
}

func TestChannelOfADaemonIsPublishedTo(t *testing.T) {
	p, options := hosted(t, "")
	socket := options.Socket
	s, err := shmcast.Subscribe("ticks", shmcast.Socket(socket), shmcast.WaitPark())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := p.Publish([]byte("one")); err != nil {
		t.Fatal(err)
	}
	var ev shmcast.Event
	if err := s.Recv(t.Context(), &ev); err != nil || string(ev.Payload) != "one" || ev.Sequence != 1 {
		t.Fatal(err, ev)
	}
	var failed *Error
	if _, err := Open("ticks", options); !errors.As(err, &failed) || failed.Code != CodeInUse {
		t.Errorf("in use: %v", err)
	}
}

func TestPublishingAllocatesNothing(t *testing.T) {
	p, err := Open("c", Options{Dir: t.TempDir(), Capacity: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	payload := make([]byte, 32)
	if n := testing.AllocsPerRun(1_000, func() { _, _ = p.Publish(payload) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkPublish32(b *testing.B) {
	p, err := Open("c", Options{Dir: b.TempDir(), Capacity: 8 << 20})
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	payload := make([]byte, 32)
	b.ReportAllocs()
	for b.Loop() {
		_, _ = p.Publish(payload)
	}
}

// Publishers in Go are killed at full speed, and each time the next one takes over. A reader checks every byte and counts every loss.
func TestKilledPublishersLoseNothingSilently(t *testing.T) {
	dir := t.TempDir()
	first, err := Open("c", Options{Dir: dir, Capacity: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	s, err := shmcast.Subscribe("c", shmcast.Dir(dir), shmcast.FromOldest())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	first.Close()
	var received, missed, last uint64
	// A subscriber that finds nothing checks for a lap only at every 64th call. So everything was received after this many calls that find
	// nothing.
	drain := func() {
		var ev shmcast.Event
		for nothing := 0; nothing < 64; {
			there, err := s.TryRecv(&ev)
			switch {
			case err != nil:
				t.Fatal(err)
			case !there:
				nothing++
				continue
			case ev.Kind == shmcast.KindLapped:
				missed += ev.Missed
			case ev.Kind == shmcast.KindMessage:
				if received++; !bytes.Equal(ev.Payload, message(ev.Sequence)) {
					t.Fatalf("message %d has wrong bytes", ev.Sequence)
				}
			}
			nothing = 0
		}
	}
	for life := range 20 {
		cmd := exec.Command(os.Args[0])
		cmd.Env, cmd.Stderr = append(os.Environ(), "SHMCAST_TEST_PUBLISH="+dir), os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for until := time.Now().Add(10 * time.Second); s.NextSequence() == last+1 && time.Now().Before(until); {
			drain()
		}
		for range life {
			drain()
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		drain()
		last = s.NextSequence() - 1
	}
	end, err := Open("c", Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer end.Close()
	drain()
	t.Logf("%d received, %d missed, %d published, epoch %d", received, missed, end.NextSequence()-1, end.Epoch())
	if received+missed != end.NextSequence()-1 || received == 0 || end.Epoch() != 22 {
		t.Errorf("%d received, %d missed, %d published, epoch %d", received, missed, end.NextSequence()-1, end.Epoch())
	}
}
