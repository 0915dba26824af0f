package shmcast

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestGoldenSegmentIsReadWordForWord(t *testing.T) {
	memory := golden(t)
	s, err := over(memory, FromOldest())
	if err != nil {
		t.Fatal(err)
	}
	lines := drained(t, s)
	t.Log(strings.Join(lines, "\n"))
	if s.Info().Channel != "ticks" || s.Info().Schema != "itch-5.0" || s.Info().SchemaID != 7 {
		t.Errorf("names and schema: %+v", s.Info())
	}
	if id, there := s.Session(); !there || string(id[:]) != "SESSION-42" {
		t.Errorf("session %q", id)
	}
	if !slices.Contains(lines, "message 15 tag 4 key false time 1107 length 8100") || !slices.Contains(lines, "new-epoch 2") {
		t.Errorf("not what the listing says: %q", lines)
	}
	if last := lines[len(lines)-1]; last != "message 16 tag 5 key false time 3001 length 5" {
		t.Errorf("the last event is %q", last)
	}
	var ev Event
	if err := s.Seek(15); err != nil {
		t.Fatal(err)
	}
	if there, err := s.TryRecv(&ev); !there || err != nil || ev.Sequence != 15 {
		t.Errorf("after seek: %v %v %+v", there, err, ev)
	}
	var notYet *NotYetError
	if err := s.Seek(18); !errors.As(err, &notYet) || notYet.Next != 17 {
		t.Errorf("seek ahead: %v", err)
	}
	var old *TooOldError
	if err := s.Seek(1); !errors.As(err, &old) {
		t.Errorf("seek back: %v", err)
	}
}

func TestEachRuleOfTheHeaderRefuses(t *testing.T) {
	memory := golden(t)
	word := func(i int, value uint64) func([]byte) {
		return func(page []byte) { binary.LittleEndian.PutUint64(page[8*i:], value) }
	}
	for _, c := range []struct {
		what   string
		reason Reason
		change func([]byte)
		sums   bool
	}{
		{"no magic", ReasonForeign, word(0, 0), false},
		{"major 3", ReasonVersion, word(1, 3<<16), false},
		{"sum", ReasonChecksum, word(2, 1<<17), false},
		{"granule", ReasonField, word(3, 32), true},
		{"capacity", ReasonGeometry, word(2, 3<<16), true},
		{"large capacity", ReasonGeometry, word(2, 1<<63), true},
		{"chunk", ReasonGeometry, word(4, 1<<14), true},
		{"index", ReasonGeometry, word(5, 1<<62), true},
		{"max message", ReasonGeometry, word(6, 1<<14), true},
		{"data", ReasonGeometry, word(7, 4096), true},
		{"clock", ReasonField, word(1, 2<<32|2<<16), true},
		{"rate", ReasonField, word(13, 999), true},
		{"name", ReasonField, word(64, 1<<63), true},
		{"long name", ReasonField, word(64, 3577), true},
		{"text", ReasonField, word(65, 0xff), true},
	} {
		page := bytes.Clone(memory[:headerBytes])
		c.change(page)
		if c.sums {
			sum(page)
		}
		_, err := ParseHeader(page, uint64(len(memory)))
		var invalid *InvalidError
		if !errors.As(err, &invalid) || invalid.Reason != c.reason || !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	for _, size := range []uint64{0, 4095, 77823} {
		var invalid *InvalidError
		if _, err := ParseHeader(memory[:headerBytes], size); !errors.As(err, &invalid) || invalid.Reason != ReasonTruncated {
			t.Errorf("size %d: %v", size, err)
		}
	}
	minor := bytes.Clone(memory[:headerBytes])
	binary.LittleEndian.PutUint64(minor[8:], 2<<16|9)
	sum(minor)
	if _, err := ParseHeader(minor, uint64(len(memory))); err != nil {
		t.Errorf("minor version 9: %v", err)
	}
}

// numbered are messages of many sizes. Each contains its own sequence, as far as it has room.
func numbered(from, to int) [][]byte {
	var messages [][]byte
	for n := from; n <= to; n++ {
		message := bytes.Repeat([]byte{byte(n)}, n*37%700)
		copy(message, fmt.Sprint(n))
		messages = append(messages, message)
	}
	return messages
}

func TestWhatShmcastPubPublishesIsReceived(t *testing.T) {
	dir := channels(t)
	messages := numbered(1, 300)
	publish(t, dir, "ticks", messages, "--capacity", "1MiB")
	publish(t, dir, "ticks", numbered(301, 320))
	s, err := Subscribe("ticks", Dir(dir), FromOldest())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var kinds []string
	var ev Event
	all := numbered(1, 320)
	for range 320 + 4 {
		if err := s.Recv(context.Background(), &ev); err != nil {
			t.Fatal(err)
		}
		if ev.Kind != KindMessage {
			kinds = append(kinds, transcript(&ev))
		} else if !bytes.Equal(ev.Payload, all[ev.Sequence-1]) {
			t.Fatalf("message %d has other bytes", ev.Sequence)
		} else if age := s.Age(ev.Time); age <= 0 || age > time.Minute {
			t.Fatalf("age %v", age)
		}
		if len(kinds) == 3 {
			break
		}
	}
	if want := []string{"end", "new-epoch 2", "end"}; !slices.Equal(kinds, want) {
		t.Errorf("events %q", kinds)
	}
	if s.NextSequence() != 321 || s.Epoch() != 2 {
		t.Errorf("next %d, epoch %d", s.NextSequence(), s.Epoch())
	}
	// Each start and each way to receive gives the same events.
	for _, from := range []uint64{1, 64, 65, 299, 301, 320} {
		other, err := Subscribe("ticks", Dir(dir), FromSequence(from))
		if err != nil {
			t.Fatal(err)
		}
		batch := NewBatch(7)
		next := from
		for {
			n, err := other.RecvBatch(batch)
			if err != nil {
				t.Fatal(err)
			}
			if n == 0 {
				break
			}
			for i := range batch.Events {
				if ev := &batch.Events[i]; ev.Kind == KindMessage {
					if ev.Sequence != next || !bytes.Equal(ev.Payload, all[next-1]) {
						t.Fatalf("message %d in the place of %d", ev.Sequence, next)
					}
					next++
				}
			}
		}
		if next != 321 {
			t.Errorf("from %d on, %d is next", from, next)
		}
		other.Close()
		if _, err := other.TryRecv(&ev); !errors.Is(err, ErrClosed) {
			t.Errorf("after close: %v", err)
		}
	}
	var notYet *NotYetError
	if _, err := Subscribe("ticks", Dir(dir), FromSequence(400)); !errors.As(err, &notYet) || notYet.Next != 321 {
		t.Errorf("a sequence to come: %v", err)
	}
}

func TestSmallBufferLeavesTheMessage(t *testing.T) {
	dir := channels(t)
	publish(t, dir, "c", [][]byte{[]byte("0123456789")}, "--capacity", "64KiB")
	s, err := Subscribe("c", Dir(dir), FromOldest())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var ev Event
	var small *TooSmallError
	for range 2 {
		// A new channel's first epoch is not reported to a reader that joined in this epoch.
		if _, err := s.TryRecvInto(make([]byte, 9), &ev); !errors.As(err, &small) || small.Needed != 10 {
			t.Fatal(err)
		}
	}
	out := make([]byte, 10)
	if there, err := s.TryRecvInto(out, &ev); !there || err != nil || string(out) != "0123456789" {
		t.Fatal(there, err, out)
	}
}

func TestLostMessagesAreCounted(t *testing.T) {
	dir := channels(t)
	publish(t, dir, "c", numbered(1, 10), "--capacity", "64KiB")
	s, err := Subscribe("c", Dir(dir), FromOldest())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	publish(t, dir, "c", numbered(11, 2000))
	var ev Event
	received, missed := uint64(0), uint64(0)
	lastEpoch := uint64(0)
	for {
		there, err := s.TryRecv(&ev)
		if err != nil {
			t.Fatal(err)
		}
		if !there && s.NextSequence() == 2001 && lastEpoch != 0 {
			break
		}
		switch {
		case !there:
		case ev.Kind == KindMessage:
			received++
		case ev.Kind == KindLapped:
			missed += ev.Missed
		case ev.Kind == KindNewEpoch:
			lastEpoch = ev.Epoch
		case ev.Kind == KindEnd && s.NextSequence() == 2001:
			lastEpoch = 2 // closed meanwhile, so its epoch is not reported
		}
	}
	if received+missed != 2000 || missed == 0 || received == 0 {
		t.Errorf("%d received, %d missed", received, missed)
	}
	old, err := Subscribe("c", Dir(dir), FromSequence(1))
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if there, err := old.TryRecv(&ev); !there || err != nil || ev.Kind != KindLapped || ev.ResumedAt != ev.Missed+1 {
		t.Errorf("a start that is gone: %v %v %+v", there, err, ev)
	}
}

func TestErrorsSayWhatIsWrong(t *testing.T) {
	dir := channels(t)
	if _, err := Subscribe("none", Dir(dir)); !errors.Is(err, ErrNoChannel) {
		t.Error(err)
	}
	var name *NameError
	for _, bad := range []string{"", ".a", "-a", "a/b", "a b", strings.Repeat("a", 201), "é"} {
		if _, err := Subscribe(bad, Dir(dir)); !errors.As(err, &name) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if _, err := Subscribe("c", Socket(dir+"/none")); !errors.Is(err, ErrNoDaemon) {
		t.Error(err)
	}
	plain := dir + "/plain"
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, advice := range map[string]string{plain: "not a daemon's socket", strings.Repeat("/x", 60): "at most 107 bytes", dir + "/none": "start shmcastd"} {
		if _, err := Subscribe("c", Socket(path)); !errors.Is(err, ErrNoDaemon) || !strings.Contains(err.Error(), advice) {
			t.Error(err)
		}
	}
	if _, err := Subscribe("c", Dir(dir), WaitPark()); err == nil {
		t.Error("a file cannot wake anybody")
	}
}

func TestPublisherThatIsKilledIsToldOf(t *testing.T) {
	dir := channels(t)
	cmd := command(t, "shmcast", "pub", "c", "--dir", dir, "--capacity", "64KiB")
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s, err := Subscribe("c", Dir(dir), FromOldest(), WatchPublisher(), WaitForChannel(10*time.Second), WaitSleep(time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	fmt.Fprintln(input, "one")
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var ev Event
	if err := s.Recv(ctx, &ev); err != nil || string(ev.Payload) != "one" {
		t.Fatal(err, ev)
	}
	cmd.Process.Kill()
	cmd.Wait()
	if err := s.Recv(ctx, &ev); err != nil || ev.Kind != KindPublisherGone || ev.Epoch != 1 {
		t.Fatal(err, ev)
	}
	publish(t, dir, "c", [][]byte{[]byte("two")})
	var told []string
	for ev, err := range s.Events(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		told = append(told, ev.Kind.String()+string(ev.Payload))
	}
	if want := []string{"new-epoch", "messagetwo", "end"}; !slices.Equal(told, want) {
		t.Errorf("%q", told)
	}
}

func TestChannelBegunAnewIsToldAsSuperseded(t *testing.T) {
	dir := channels(t)
	publish(t, dir, "c", numbered(1, 3), "--capacity", "64KiB")
	s, err := Subscribe("c", Dir(dir), Hidden())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := command(t, "shmcast", "rm", "c", "--dir", dir).Run(); err != nil {
		t.Fatal(err)
	}
	var ev Event
	until := time.Now().Add(10 * time.Second)
	for {
		_, err := s.TryRecv(&ev)
		if errors.Is(err, ErrSuperseded) {
			return
		}
		if err != nil || time.Now().After(until) {
			t.Fatal(err)
		}
	}
}

func TestIterationEndsWithTheLastPublisher(t *testing.T) {
	dir := channels(t)
	publish(t, dir, "c", numbered(1, 3), "--capacity", "64KiB")
	publish(t, dir, "c", numbered(4, 5))
	kinds := func(with ...Option) (*Subscriber, func() []Kind) {
		s, err := Subscribe("c", append(with, Dir(dir), Hidden())...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s, func() (told []Kind) {
			for ev, err := range s.Events(context.Background()) {
				if err != nil {
					t.Fatal(err)
				}
				told = append(told, ev.Kind)
			}
			return told
		}
	}
	s, all := kinds(FromOldest())
	m := KindMessage
	if told := all(); !slices.Equal(told, []Kind{m, m, m, KindEnd, KindNewEpoch, m, m, KindEnd}) || !s.IsOver() {
		t.Errorf("%v", told)
	}
	// A subscriber that begins with the latest message of a closed channel waits for the next publisher.
	s, all = kinds()
	var ev Event
	if err := s.Recv(context.Background(), &ev); err != nil || ev.Kind != KindEnd || s.IsOver() {
		t.Errorf("%v %v", ev, err)
	}
	publish(t, dir, "c", numbered(6, 6))
	if told := all(); !slices.Equal(told, []Kind{KindNewEpoch, m, KindEnd}) {
		t.Errorf("%v", told)
	}
}

func TestReaderWaitsForADaemonOfItsProtocol(t *testing.T) {
	path := channels(t) + "/socket"
	served := make(chan error, 1)
	time.AfterFunc(50*time.Millisecond, func() {
		served <- func() error {
			listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
			if err != nil {
				return err
			}
			defer listener.Close()
			c, err := listener.Accept()
			if err != nil {
				return err
			}
			defer c.Close()
			if _, err = c.Read(make([]byte, 1000)); err == nil {
				_, err = c.Write([]byte(`{"reply":"welcome","version":99}`))
			}
			return err
		}()
	})
	_, err := Subscribe("c", Socket(path), WaitForChannel(time.Minute))
	if err == nil || !strings.Contains(err.Error(), "version 99") {
		t.Fatal(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func TestReaderThatWaitedForTheDaemonBeginsAtTheTimeOfTheCall(t *testing.T) {
	dir := channels(t)
	publish(t, dir, "c", numbered(1, 9))
	for name, want := range map[string]struct {
		since time.Duration
		next  uint64
	}{"before": {time.Hour, 1}, "after": {-time.Hour, 10}} {
		s := &Subscriber{opts: options{dir: dir, since: time.Now().Add(-want.since)}}
		s.beginLate(false)
		if err := s.attach("c"); err != nil || s.NextSequence() != want.next {
			t.Errorf("%s: %v, next %d", name, err, s.NextSequence())
		}
		s.Close()
		if s.beginLate(true); s.opts.start != startOldest {
			t.Errorf("%s: a new channel has only new messages", name)
		}
		if s.beginLate(false); s.opts.start != startOldest {
			t.Errorf("%s: the channel did not exist before", name)
		}
	}
}
