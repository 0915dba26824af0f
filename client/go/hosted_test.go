package shmcast

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// daemon is a shmcastd of this test.
type daemon struct {
	dir, socket string
	cmd         *exec.Cmd
}

func startDaemon(t *testing.T, mode string) *daemon {
	t.Helper()
	dir := t.TempDir()
	d := &daemon{dir: dir, socket: filepath.Join(dir, "control.sock")}
	config := fmt.Sprintf("[daemon]\nsocket = %q\n\n[[channel]]\nname = \"ticks\"\ncapacity = \"64KiB\"\nmlock = false\n%s", d.socket, mode)
	if err := os.WriteFile(filepath.Join(dir, "shmcast.toml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	d.start(t)
	t.Cleanup(func() { d.kill() })
	return d
}

func (d *daemon) start(t *testing.T) {
	t.Helper()
	d.cmd = command(t, "shmcastd", "--config", filepath.Join(d.dir, "shmcast.toml"))
	d.cmd.Stderr = nil
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
}

func (d *daemon) kill() {
	_ = d.cmd.Process.Kill()
	_ = d.cmd.Wait()
}

// publisher runs `shmcast pub` for the daemon's channel. It publishes the lines that are written to the pipe.
func (d *daemon) publisher(t *testing.T) (*exec.Cmd, *os.File) {
	t.Helper()
	cmd := command(t, "shmcast", "pub", "ticks", "--set", "prepare=none")
	cmd.Env = append(os.Environ(), "SHMCAST_SOCKET="+d.socket, DirVariable+"=")
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin = read
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read.Close()
	return cmd, write
}

// subscribe returns the result of Subscribe once the daemon answers.
func (d *daemon) subscribe(t *testing.T, with ...Option) *Subscriber {
	t.Helper()
	for until := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		s, err := Subscribe("ticks", append(with, Socket(d.socket))...)
		if err == nil {
			t.Cleanup(func() { s.Close() })
			return s
		}
		if !errors.Is(err, ErrNoDaemon) || time.Now().After(until) {
			t.Fatal(err)
		}
	}
}

// expect receives until an event whose transcript is last. It returns all earlier events, too.
func expect(t *testing.T, s *Subscriber, last string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var ev Event
	var lines []string
	for {
		if err := s.Recv(ctx, &ev); err != nil {
			t.Fatalf("%v, after %q, and not %q", err, lines, last)
		}
		line := transcript(&ev)
		if ev.Kind == KindMessage {
			line = fmt.Sprintf("%d %s", ev.Sequence, ev.Payload)
		}
		if lines = append(lines, line); line == last {
			return lines
		}
	}
}

func TestChannelOfADaemonIsRead(t *testing.T) {
	d := startDaemon(t, "")
	for name, wait := range map[string]Option{"park": WaitPark(), "yield": WaitYield()} {
		t.Run(name, func(t *testing.T) {
			s := d.subscribe(t, wait)
			next := s.NextSequence()
			cmd, input := d.publisher(t)
			fmt.Fprintln(input, "one")
			expect(t, s, fmt.Sprintf("%d one", next))
			time.Sleep(300 * time.Millisecond) // the reader sleeps, and so does the waker
			fmt.Fprintln(input, "two")
			expect(t, s, fmt.Sprintf("%d two", next+1))
			input.Close()
			_ = cmd.Wait()
			expect(t, s, "end")
		})
	}
	var refused *RefusedError
	_, err := Subscribe("none", Socket(d.socket))
	if !errors.Is(err, ErrNoChannel) || !errors.As(err, &refused) || refused.Code != "unknown-channel" {
		t.Error(err)
	}
	s := d.subscribe(t)
	stat := command(t, "shmcast", "stat", "ticks", "--json")
	stat.Env = append(os.Environ(), "SHMCAST_SOCKET="+d.socket, DirVariable+"=")
	list, err := stat.Output()
	if err != nil || !strings.Contains(string(list), fmt.Sprintf("\"pid\":%d", os.Getpid())) {
		t.Errorf("tools do not list this reader: %v %s", err, list)
	}
	s.Close()
}

func TestReadersOutliveTheDaemonAndSeeADeadPublisher(t *testing.T) {
	d := startDaemon(t, "")
	for _, wait := range []Option{WaitPark(), WaitYield()} {
		s := d.subscribe(t, wait, WatchPublisher())
		cmd, input := d.publisher(t)
		first := s.NextSequence()
		fmt.Fprintln(input, "one")
		expect(t, s, fmt.Sprintf("%d one", first))
		d.kill()
		fmt.Fprintln(input, "two")
		expect(t, s, fmt.Sprintf("%d two", first+1))
		d.start(t)
		for until := time.Now().Add(20 * time.Second); !s.hosted.link.isAttached.Load(); time.Sleep(time.Millisecond) {
			if time.Now().After(until) {
				t.Fatal("the reader does not come back")
			}
		}
		fmt.Fprintln(input, "three")
		expect(t, s, fmt.Sprintf("%d three", first+2))
		epoch, _ := s.PublisherState()
		time.Sleep(3 * time.Second) // the publisher attaches again, too
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		input.Close()
		expect(t, s, fmt.Sprintf("publisher-gone %d", epoch))
		s.Close()
	}
}

func TestStrictChannelGoesOnInItsNextGeneration(t *testing.T) {
	d := startDaemon(t, "mode = \"strict\"\n")
	s := d.subscribe(t, FromOldest())
	for life := range 4 {
		cmd, input := d.publisher(t)
		fmt.Fprintln(input, "one")
		expect(t, s, fmt.Sprintf("%d one", 2*life+1))
		fmt.Fprintln(input, "two")
		expect(t, s, fmt.Sprintf("%d two", 2*life+2))
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		input.Close()
	}
	generation := s.hosted.generation
	if generation < 4 {
		t.Errorf("the reader is in generation %d", generation)
	}
	late := d.subscribe(t, FromSequence(1))
	cmd, input := d.publisher(t)
	fmt.Fprintln(input, "last")
	for _, reader := range []*Subscriber{s, late} {
		lines := expect(t, reader, "9 last")
		if reader == late && !slices.ContainsFunc(lines, func(line string) bool { return line[:6] == "lapped" }) {
			t.Errorf("a reader that comes late misses what older generations had: %q", lines)
		}
	}
	input.Close()
	_ = cmd.Wait()
}

func TestMoveWithoutASpareDescriptorIsNoMove(t *testing.T) {
	file := func() *os.File {
		f, err := os.CreateTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	segment, lock := file(), file()
	l := &link{segment: segment, lock: lock}
	moved := func() *reply {
		return &reply{Reply: "moved", Generation: 2, First: 1, files: []*os.File{file(), file()}}
	}
	lost := moved()
	ours := slices.Clone(lost.files)
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 0, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	isOfUse := l.heard(lost)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	// The reader shows its segment to the next daemon, which therefore sends it the new segment again.
	if isOfUse || l.segment != segment || l.lock != lock || l.hasMoved.Load() {
		t.Error("the move counts, and the reader never hears of it")
	}
	for _, f := range ours {
		if _, err := f.Stat(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("a descriptor of the answer stays open: %v", err)
		}
	}
	if _, err := segment.Stat(); err != nil {
		t.Errorf("what is shown to the next daemon is closed: %v", err)
	}
	again := moved()
	if !l.heard(again) || l.segment != again.files[0] || !l.hasMoved.Load() {
		t.Error("the move that comes again does not count")
	}
	l.moved[0].close()
}

// Another attempt soon after a refusal would only be refused again, and the daemon logs each refusal.
func TestReaderWaitsASecondAfterARefusal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.sock")
	daemon, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer daemon.Close()
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(pair[1])
	l := &link{path: path, to: &conversation{pair[0], path}, quit: make(chan struct{}), done: make(chan struct{})}
	for _, file := range []**os.File{&l.segment, &l.lock, &l.page} {
		if *file, err = os.CreateTemp(t.TempDir(), ""); err != nil {
			t.Fatal(err)
		}
	}
	go l.keep()
	defer l.close()
	const denied = `{"reply":"refused","code":"denied","why":"not in the lists"}`
	refused := time.Now()
	if err := syscall.Sendmsg(pair[1], []byte(denied), nil, nil, 0); err != nil {
		t.Fatal(err)
	}
	for attempt := range 3 {
		to, err := daemon.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		if pause := time.Since(refused); pause < time.Second {
			t.Errorf("attempt %d comes %v after a refusal", attempt, pause)
		}
		for _, answer := range []string{`{"reply":"welcome","version":2}`, denied} {
			if _, err := to.Read(make([]byte, mostPacket)); err != nil {
				t.Fatal(err)
			}
			refused = time.Now()
			if _, err := to.Write([]byte(answer)); err != nil {
				t.Fatal(err)
			}
		}
		to.Close()
	}
}

// TestWaitForAChannelOutlastsLimitsAndARestart: readers of one user wait for a channel, and use up the user's requests. The daemon is
// restarted meanwhile. Each reader gets the channel from its first message on.
func TestWaitForAChannelOutlastsLimitsAndARestart(t *testing.T) {
	d := startDaemon(t, "")
	d.subscribe(t).Close()
	config, err := os.ReadFile(filepath.Join(d.dir, "shmcast.toml"))
	if err != nil {
		t.Fatal(err)
	}
	configure := func(more string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(d.dir, "shmcast.toml"), append(slices.Clone(config), more...), 0o600); err != nil {
			t.Fatal(err)
		}
		d.kill()
		d.start(t)
	}
	configure("\n[limits]\nrequests_per_second = 5\nrequest_burst = 1\n")
	for _, err = os.Stat(d.socket); err != nil; _, err = os.Stat(d.socket) {
		time.Sleep(time.Millisecond)
	}
	type result struct {
		s   *Subscriber
		err error
	}
	results := make(chan result)
	const readers = 4
	for range readers {
		go func() {
			for {
				s, err := Subscribe("later", Socket(d.socket), WaitForChannel(60*time.Second))
				// The first attempt needs a daemon that answers.
				if errors.Is(err, ErrNoDaemon) {
					continue
				}
				results <- result{s, err}
				return
			}
		}()
	}
	// The readers wait, and are refused by the limit, until the next daemon has the channel.
	time.Sleep(time.Second)
	configure("\n[[channel]]\nname = \"later\"\ncapacity = \"64KiB\"\nmlock = false\n")
	for until := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		cmd := command(t, "shmcast", "pub", "later", "--set", "prepare=none")
		cmd.Env = append(os.Environ(), "SHMCAST_SOCKET="+d.socket, DirVariable+"=")
		cmd.Stdin, cmd.Stderr = strings.NewReader("a\nb\n"), nil
		if err := cmd.Run(); err == nil {
			break
		} else if time.Now().After(until) {
			t.Fatal(err)
		}
	}
	for range readers {
		r := <-results
		if r.err != nil {
			t.Fatal(r.err)
		}
		if lines := expect(t, r.s, "2 b"); !slices.Contains(lines, "1 a") {
			t.Errorf("the reader got %q", lines)
		}
		r.s.Close()
	}
}
