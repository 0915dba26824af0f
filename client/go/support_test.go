package shmcast

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unsafe"
)

// command is a program of this project: from $SHMCAST_BIN, or the newest build in the workspace's target.
func command(t testing.TB, name string, arguments ...string) *exec.Cmd {
	t.Helper()
	newest := ""
	for _, dir := range []string{os.Getenv("SHMCAST_BIN"), "../../target/release", "../../target/debug"} {
		path := filepath.Join(dir, name)
		if stat, err := os.Stat(path); err == nil && dir != "" && stat.Mode().IsRegular() {
			newest = path
			break
		}
	}
	if newest == "" {
		t.Fatalf("%s is not built: cargo build -p shmcast-daemon, or set SHMCAST_BIN", name)
	}
	cmd := exec.Command(newest, arguments...)
	cmd.Stderr = os.Stderr
	return cmd
}

// channels is a new directory of channels.
func channels(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "shmcast-go-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// publish runs `shmcast pub` for these messages, and waits until it ends.
func publish(t testing.TB, dir, channel string, messages [][]byte, more ...string) {
	t.Helper()
	cmd := command(t, "shmcast", append([]string{"pub", channel, "--dir", dir, "--framing", "u32le", "--set", "prepare=none"}, more...)...)
	cmd.Stdin = bytes.NewReader(framed(messages))
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
}

func framed(messages [][]byte) []byte {
	var input bytes.Buffer
	for _, m := range messages {
		var length [4]byte
		binary.LittleEndian.PutUint32(length[:], uint32(len(m)))
		input.Write(length[:])
		input.Write(m)
	}
	return input.Bytes()
}

// golden is the segment of the listing beside SPEC.md, in memory of its own.
func golden(t testing.TB) []byte {
	t.Helper()
	file, err := os.Open("../../shm-layout/tests/golden/segment.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	store := make([]uint64, 77824/8)
	memory := unsafe.Slice((*byte)(unsafe.Pointer(&store[0])), 77824)
	for lines := bufio.NewScanner(file); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || fields[0] == "#" || strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		offset, err1 := strconv.ParseUint(fields[0], 0, 64)
		word, err2 := strconv.ParseUint(fields[1], 0, 64)
		if err1 != nil || err2 != nil {
			t.Fatalf("not a word: %s", lines.Text())
		}
		binary.LittleEndian.PutUint64(memory[offset:], word)
	}
	return memory
}

// over is a subscriber to a segment in memory, or the error of its opening.
func over(memory []byte, with ...Option) (*Subscriber, error) {
	header, err := ParseHeader(memory[:min(len(memory), headerBytes)], uint64(len(memory)))
	if err != nil {
		return nil, err
	}
	s := &Subscriber{}
	for _, option := range with {
		option(&s.opts)
	}
	read := func(into []byte, at int64) (int, error) { return copy(into, memory[at:]), nil }
	board, err := findBoard(memory[:headerBytes], &header, uint64(len(memory)), read)
	if err != nil {
		return nil, err
	}
	s.segment = segmentOf(header, memory, board)
	s.segment.mapped = nil
	if err := s.begin(); err != nil {
		return s, err
	}
	return s, s.attached()
}

// transcript describes an event in one line.
func transcript(ev *Event) string {
	switch ev.Kind {
	case KindMessage:
		return fmt.Sprintf("message %d tag %d key %t time %d length %d", ev.Sequence, ev.Tag, ev.Key, ev.Time, len(ev.Payload))
	case KindLapped:
		return fmt.Sprintf("lapped missed %d resumed at %d", ev.Missed, ev.ResumedAt)
	case KindGap:
		return fmt.Sprintf("gap %d to %d", ev.From, ev.To)
	case KindNewEpoch, KindPublisherGone:
		return fmt.Sprintf("%v %d", ev.Kind, ev.Epoch)
	case KindLive:
		return fmt.Sprintf("live %d", ev.Sequence)
	case KindNewSession:
		return fmt.Sprintf("new-session %s", ev.Session[:])
	}
	return ev.Kind.String()
}

// drained has all events that are available.
func drained(t testing.TB, s *Subscriber) []string {
	t.Helper()
	var lines []string
	var ev Event
	for {
		there, err := s.TryRecv(&ev)
		if err != nil {
			return append(lines, err.Error())
		}
		if !there {
			return lines
		}
		lines = append(lines, transcript(&ev))
	}
}

// sum computes the checksum of a header again after a change.
func sum(page []byte) {
	crc := crc32.Update(crc32.Checksum(page[8:120], castagnoli), castagnoli, page[512:])
	binary.LittleEndian.PutUint64(page[120:], uint64(crc))
}
