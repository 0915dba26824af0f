package shmcast

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"
	"unsafe"
)

// aligned copies bytes to memory that begins at a multiple of 8.
func aligned(from []byte) []byte {
	store := make([]uint64, (len(from)+7)/8)
	memory := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(store))), len(from))
	copy(memory, from)
	return memory
}

// damage changes word `at` of memory: to any value, to a special value, in one bit, or to the value of another word.
func damage(random *rand.Rand, memory []byte, at int, stands []int, interesting []uint64) {
	word := binary.LittleEndian.Uint64(memory[8*at:])
	switch random.IntN(4) {
	case 0:
		word = random.Uint64()
	case 1:
		word = interesting[random.IntN(len(interesting))]
	case 2:
		word ^= 1 << random.IntN(64)
	case 3:
		word = binary.LittleEndian.Uint64(memory[8*stands[random.IntN(len(stands))]:])
	}
	binary.LittleEndian.PutUint64(memory[8*at:], word)
}

// consume receives from memory with arbitrary contents. Each call must return: an event, an error of this package, or nothing.
func consume(t testing.TB, memory []byte) {
	for _, from := range []Option{FromOldest(), FromLatest(), FromSequence(15), FromSequence(1 << 40)} {
		for _, resume := range []Option{ResumeOldest(), ResumeLatest(), ResumeKey()} {
			s, err := over(memory, from, resume)
			var old *TooOldError
			var early *NotYetError
			if err != nil {
				if !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrCorrupt) && !errors.As(err, &early) && !errors.As(err, &old) {
					t.Fatalf("error of no class: %v", err)
				}
				continue
			}
			var ev Event
			for range 300 {
				if _, err := s.TryRecv(&ev); err != nil {
					if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrSuperseded) {
						t.Fatalf("error of no class: %v", err)
					}
					break
				}
				if ev.Kind == KindMessage && uint64(len(ev.Payload)) > s.MaxMessage {
					t.Fatalf("a message of %d bytes", len(ev.Payload))
				}
			}
		}
	}
}

func TestRandomWordsInASegmentHarmNobody(t *testing.T) {
	whole := golden(t)
	interesting := []uint64{0, 1, 63, 64, 1 << 16, 1<<48 - 1, 1 << 48, 1 << 62, 1<<62 + 1, 1<<63 - 1, 1 << 63, ^uint64(0), ^uint64(63)}
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 1))
	t.Logf("seed %d", seed)
	stands := []int{}
	for i := range len(whole) / 8 {
		if binary.LittleEndian.Uint64(whole[8*i:]) != 0 && i >= 16 {
			stands = append(stands, i)
		}
	}
	rounds := 20_000
	if testing.Short() {
		rounds = 2_000
	}
	memory := aligned(whole)
	for range rounds {
		copy(memory, whole)
		for range 1 + random.IntN(4) {
			at := stands[random.IntN(len(stands))]
			damage(random, memory, at, stands, interesting)
		}
		if random.IntN(2) == 0 {
			sum(memory[:headerBytes])
		}
		consume(t, memory)
	}
}

func FuzzHeader(f *testing.F) {
	whole := golden(f)
	f.Add(bytes.Clone(whole[:headerBytes]), uint64(len(whole)))
	f.Fuzz(func(t *testing.T, page []byte, size uint64) {
		if len(page) >= headerBytes {
			sum(page)
		}
		h, err := ParseHeader(page, size)
		if err != nil && !errors.Is(err, ErrInvalid) {
			t.Fatal(err)
		}
		if err == nil && (h.DataOffset+h.Capacity > size || h.MaxMessage > h.Capacity/8 || h.Chunk > h.Capacity/8) {
			t.Fatalf("accepted %+v in %d bytes", h, size)
		}
	})
}

// FuzzRecords takes groups of four bytes: two choose a word, the third chooses a byte of the word, and the fourth is this byte's new value.
func FuzzRecords(f *testing.F) {
	whole := golden(f)
	f.Add([]byte{0x08, 0x00, 3, 0xff})
	f.Add([]byte{0x00, 0x02, 0, 0x04, 0x00, 0x03, 1, 0x10})
	f.Fuzz(func(t *testing.T, changes []byte) {
		memory := aligned(whole)
		for ; len(changes) >= 4; changes = changes[4:] {
			word := int(binary.LittleEndian.Uint16(changes)) % (len(memory) / 8)
			if word >= 16 { // the words before have a checksum; FuzzHeader changes them
				memory[8*word+int(changes[2]&7)] = changes[3]
			}
		}
		sum(memory[:headerBytes])
		consume(t, memory)
	})
}
