package shmcast

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// volume is a new file system in memory, of this many bytes.
func volume(t *testing.T, size int) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a file system")
	}
	dir := t.TempDir()
	mount(t, dir, "-t", "tmpfs", "-o", fmt.Sprintf("size=%d", size), "none", dir)
	return dir
}

// mount mounts something at point until the end of the test.
func mount(t *testing.T, point string, with ...string) {
	t.Helper()
	if out, err := exec.Command("mount", with...).CombinedOutput(); err != nil {
		t.Skipf("nothing can be mounted here: %v %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("umount", "--lazy", point).Run() })
}

// reads receives messages up to the last one, each in its order, and nothing else but epochs and ends.
func reads(t *testing.T, s *Subscriber, last uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	var ev Event
	for s.NextSequence() <= last {
		due := s.NextSequence()
		if err := s.Recv(ctx, &ev); err != nil {
			t.Fatalf("%v at %d", err, due)
		}
		switch ev.Kind {
		case KindMessage:
			if ev.Sequence != due || !bytes.Equal(ev.Payload, number(due)) {
				t.Fatalf("%d %q, and %d is due", ev.Sequence, ev.Payload, due)
			}
		case KindEnd, KindNewEpoch:
		default:
			t.Fatalf("%s at %d", transcript(&ev), due)
		}
	}
}

func number(sequence uint64) []byte { return numbered(int(sequence), int(sequence))[0] }

// An earlier mistake: a reader whose channel was removed or moved waited for ever. The next publisher makes another channel.
func TestFilesThatAreRemovedMovedOrHiddenAreTold(t *testing.T) {
	for _, what := range []string{"segment", "channel", "moved channel", "moved directory", "mount"} {
		t.Run(what, func(t *testing.T) {
			dir := filepath.Join(channels(t), "d")
			publish(t, dir, "c", numbered(1, 3), "--capacity", "64KiB")
			s, err := Subscribe("c", Dir(dir), FromOldest(), WaitSleep(time.Millisecond))
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			reads(t, s, 3)
			// As long as all of them have their names, there is no error.
			short, cancel := context.WithTimeout(t.Context(), 1200*time.Millisecond)
			defer cancel()
			var ev Event
			if err := s.Recv(short, &ev); err == nil && ev.Kind == KindEnd {
				err = s.Recv(short, &ev)
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Fatal(err)
				}
			}
			channel := filepath.Join(dir, "c")
			switch what {
			case "segment":
				err = os.Remove(filepath.Join(channel, "segment"))
			case "channel":
				err = os.RemoveAll(channel)
			case "moved channel":
				err = os.Rename(channel, channel+"2")
			case "moved directory":
				err = os.Rename(dir, dir+"2")
			default:
				mount(t, dir, "--bind", volume(t, 1<<20), dir)
			}
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			for range 2 {
				if err := s.Recv(ctx, &ev); !errors.Is(err, ErrSuperseded) {
					t.Fatalf("%v %v", ev.Kind, err)
				}
			}
		})
	}
}

// An earlier mistake: a page without memory counted as a page, and the first store into it killed the process.
func TestReaderOnAFullFileSystemHasNoPage(t *testing.T) {
	dir := volume(t, 1<<20)
	publish(t, dir, "c", numbered(1, 3), "--capacity", "64KiB")
	file, err := os.Create(filepath.Join(dir, "rest"))
	if err != nil {
		t.Fatal(err)
	}
	rest := make([]byte, 4096)
	for err == nil {
		_, err = file.Write(rest)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	file.Close()
	s, err := Subscribe("c", Dir(dir), FromOldest())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	reads(t, s, 3)
	if left, _ := filepath.Glob(filepath.Join(dir, "c", "readers", "*")); s.page != nil || len(left) != 0 {
		t.Errorf("a page that has no room: %q", left)
	}
}

func TestReaderOfAReadOnlyFileSystemReads(t *testing.T) {
	dir, point := volume(t, 1<<20), t.TempDir()
	publish(t, dir, "c", numbered(1, 3), "--capacity", "64KiB")
	mount(t, point, "--bind", dir, point)
	if out, err := exec.Command("mount", "-o", "remount,bind,ro", point).CombinedOutput(); err != nil {
		t.Skipf("%v %s", err, out)
	}
	s, err := Subscribe("c", Dir(point), FromOldest())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	reads(t, s, 3)
	// Messages that are published by another path arrive.
	publish(t, dir, "c", numbered(4, 6))
	reads(t, s, 6)
}

func TestLinksInPlaceOfAChannelAreRefused(t *testing.T) {
	dir := channels(t)
	publish(t, dir, "c", numbered(1, 3), "--capacity", "64KiB")
	if err := os.Symlink("c", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "other"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../c/segment", filepath.Join(dir, "other", "segment")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"link", "other"} {
		if s, err := Subscribe(name, Dir(dir)); err == nil {
			s.Close()
			t.Errorf("%s is followed", name)
		}
	}
}

const roleVariable = "SHMCAST_GO_ROLE"

// roleOf starts this test program as a reader in a process of its own.
func roleOf(t *testing.T, dir, before string) (*exec.Cmd, *os.File) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", before+`exec "$0" -test.run '^TestPlayReader$' -test.v`, self)
	cmd.Env = append(os.Environ(), roleVariable+"="+dir)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = write, write
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	write.Close()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		read.Close()
	})
	return cmd, read
}

// said waits until a reader prints these words, and returns everything that it has printed.
func said(t *testing.T, from *os.File, words string) string {
	t.Helper()
	var all []byte
	buffer := make([]byte, 4096)
	if err := from.SetReadDeadline(time.Now().Add(60 * time.Second)); err != nil {
		t.Fatal(err)
	}
	for !strings.Contains(string(all), words) {
		n, err := from.Read(buffer)
		if all = append(all, buffer[:n]...); err != nil {
			t.Fatalf("%v: %s", err, all)
		}
	}
	return string(all)
}

// TestPlayReader is the program of readers in processes of their own.
func TestPlayReader(t *testing.T) {
	dir := os.Getenv(roleVariable)
	if dir == "" {
		return
	}
	s, err := Subscribe("c", Dir(dir), FromOldest(), WaitSleep(time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	fmt.Printf("reading from %d with a page: %t\n", s.NextSequence(), s.page != nil)
	var ev Event
	received, missed := uint64(0), uint64(0)
	for {
		if err := s.Recv(context.Background(), &ev); err != nil {
			t.Fatal(err)
		}
		switch ev.Kind {
		case KindMessage:
			received++
		case KindLapped:
			missed += ev.Missed
		case KindEnd:
			fmt.Printf("received %d missed %d\n", received, missed)
		}
	}
}

// Readers are killed, stopped for more than the ring, and started again. Nobody else notices, and missed messages are counted.
func TestReadersAreKilledStoppedAndRestarted(t *testing.T) {
	dir := channels(t)
	publish(t, dir, "c", numbered(1, 100), "--capacity", "1MiB")
	other, err := Subscribe("c", Dir(dir), FromOldest())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	cmd, out := roleOf(t, dir, "")
	said(t, out, "received 100 missed 0")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	reads(t, other, 100)
	publish(t, dir, "c", numbered(101, 200))
	reads(t, other, 200)
	cmd, out = roleOf(t, dir, "")
	said(t, out, "received 200 missed 0")
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	publish(t, dir, "c", numbered(201, 20_200))
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	var received, missed int
	last := said(t, out, "missed")
	for {
		line := last[strings.LastIndex(last, "received"):]
		if n, _ := fmt.Sscanf(line, "received %d missed %d", &received, &missed); n == 2 && received+missed == 20_200 {
			break
		}
		last = said(t, out, "missed")
	}
	if missed == 0 {
		t.Error("the ring held 20,000 messages")
	}
}

// A reader whose limit of file sizes is too small has no page, and receives messages.
func TestReaderBeyondTheLimitOfSizesHasNoPage(t *testing.T) {
	dir := channels(t)
	publish(t, dir, "c", numbered(1, 3), "--capacity", "64KiB")
	_, out := roleOf(t, dir, "ulimit -f 0; ")
	if words := said(t, out, "received 3 missed 0"); !strings.Contains(words, "with a page: false") {
		t.Error(words)
	}
}

// While the daemon is stopped, messages flow. A daemon that lost its memory begins the channel anew, and readers get this as an event.
func TestDaemonIsStoppedAndMadeAnew(t *testing.T) {
	for _, mode := range []string{"", "mode = \"strict\"\n"} {
		d := startDaemon(t, mode)
		s := d.subscribe(t, FromOldest(), WaitSleep(time.Millisecond))
		cmd, input := d.publisher(t)
		fmt.Fprintln(input, "one")
		expect(t, s, "1 one")
		if err := d.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(input, "two")
		expect(t, s, "2 two")
		if err := d.cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(input, "three")
		expect(t, s, "3 three")
		d.kill()
		for _, left := range []string{"control.charters", "control.running"} {
			if err := os.RemoveAll(filepath.Join(d.dir, left)); err != nil {
				t.Fatal(err)
			}
		}
		d.start(t)
		expect(t, s, "restarted")
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		input.Close()
		cmd, input = d.publisher(t)
		fmt.Fprintln(input, "anew")
		expect(t, s, "1 anew")
		input.Close()
		_ = cmd.Wait()
		s.Close()
		d.kill()
	}
}
