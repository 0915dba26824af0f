package shmcast

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"testing"
)

// boarded is a segment of 64 KiB with a board, in memory of its own. It contains several laps of messages with keys.
func boarded(t testing.TB) []byte {
	t.Helper()
	dir := channels(t)
	publishKeyed(t, dir, 3000, "64KiB")
	file, err := os.ReadFile(dir + "/c/segment")
	if err != nil {
		t.Fatal(err)
	}
	return aligned(file)
}

func isOfABoard(err error) bool {
	return errors.Is(err, ErrInvalid) || errors.Is(err, ErrCorrupt) || errors.Is(err, ErrBoard) || errors.Is(err, ErrNoBoard) ||
		errors.Is(err, ErrSuperseded)
}

// consumeBoard reads a board with arbitrary contents in each way. Each call must return.
func consumeBoard(t testing.TB, memory []byte) {
	for _, with := range [][]Option{{FromBoard()}, {Conflate()}, {FromBoard(), ConflateBehind(1 << 10)}} {
		s, err := over(memory, with...)
		if err != nil {
			if !isOfABoard(err) {
				t.Fatalf("error of no class: %v", err)
			}
			continue
		}
		if s.opts.start == startLatest {
			s.jump(place{0, 1}) // the reader was lapped
		}
		var ev Event
		batch := NewBatch(50)
		for range 400 {
			there, err := s.TryRecv(&ev)
			if err == nil && !there {
				_, err = s.RecvBatch(batch)
			}
			if err != nil {
				if !isOfABoard(err) {
					t.Fatalf("error of no class: %v", err)
				}
				break
			}
			if ev.Kind == KindMessage && uint64(len(ev.Payload)) > s.largest() {
				t.Fatalf("a message of %d bytes", len(ev.Payload))
			}
		}
		consumeKeys(t, s)
	}
}

func consumeKeys(t testing.TB, s *Subscriber) {
	b, length := &Board{s: s}, int(s.board.KeyEnd-s.board.KeyStart)
	for key := range uint64(3) {
		entry, there, err := b.Get(append(binary.LittleEndian.AppendUint64(nil, key), make([]byte, length)...)[:length])
		if err != nil && !isOfABoard(err) || there && len(entry.Key) != length || uint64(len(entry.Payload)) > max(s.board.Value, s.MaxMessage) {
			t.Fatalf("%+v %t %v", entry, there, err)
		}
	}
	all, err := b.Entries()
	if err != nil && !isOfABoard(err) {
		t.Fatal(err)
	}
	for i := range all {
		if len(all[i].Key) != length || uint64(len(all[i].Payload)) > s.MaxMessage {
			t.Fatalf("%+v", all[i])
		}
	}
	b.Counters()
}

func TestRandomWordsOnABoardHarmNobody(t *testing.T) {
	whole := boarded(t)
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 2))
	t.Logf("seed %d", seed)
	interesting := []uint64{0, 1, 2, 63, 1 << 16, 1<<25 - 1, 1 << 32, 1 << 36, 1<<48 - 1, 1 << 62, 1 << 63, ^uint64(0), ^uint64(1)}
	from := int(binary.LittleEndian.Uint64(whole[8*wordBoard:]) / 8)
	stands := []int{}
	for i := range len(whole) / 8 {
		if binary.LittleEndian.Uint64(whole[8*i:]) != 0 && i >= from {
			stands = append(stands, i)
		}
	}
	changing := []int{from + wordThrough, from + wordSince, from + wordHigh, from + wordLive, from + wordForgotten, from + wordMoves,
		wordFrontier, wordState, wordCount, wordBoard, from + 2, from + 3, from + 5}
	rounds := 1_500
	if testing.Short() {
		rounds = 300
	}
	memory := aligned(whole)
	for range rounds {
		copy(memory, whole)
		for range 1 + random.IntN(5) {
			at := stands[random.IntN(len(stands))]
			if random.IntN(3) == 0 {
				at = changing[random.IntN(len(changing))]
			}
			damage(random, memory, at, stands, interesting)
		}
		if random.IntN(4) != 0 {
			sumBoard(memory[8*from:])
		}
		consumeBoard(t, memory)
	}
}

// sumBoard computes the checksum of a board's header again after a change.
func sumBoard(page []byte) {
	binary.LittleEndian.PutUint64(page[120:], uint64(crc32.Checksum(page[8:120], castagnoli)))
}

// A writer can make boards that take long to read. Each call returns nevertheless.
func TestBoardThatIsMadeToBeSlowEnds(t *testing.T) {
	whole := boarded(t)
	from := binary.LittleEndian.Uint64(whole[8*wordBoard:])
	page := append([]byte{}, whole[from:from+boardFixed]...)
	b, err := parseBoard(page)
	if err != nil {
		t.Fatal(err)
	}
	memory := aligned(whole)
	word := func(i uint64) []byte { return memory[from+8*i:] }
	heads := b.headsOffset() / 8
	identity := [2]uint64{1, 0}
	for name, change := range map[string]func(){
		"every slot is in a store": func() {
			for slot := range b.Keys {
				binary.LittleEndian.PutUint64(word(heads+8*slot), 7)
			}
		},
		"every slot has the same key": func() {
			for slot := range b.Keys {
				binary.LittleEndian.PutUint64(word(heads+8*slot+6), identity[0])
				binary.LittleEndian.PutUint64(word(heads+8*slot+7), identity[1])
			}
		},
		"every slot has the same key, and none": func() {
			for slot := range b.Keys {
				binary.LittleEndian.PutUint64(word(heads+8*slot+3), metaEmpty)
				binary.LittleEndian.PutUint64(word(heads+8*slot+6), identity[0])
			}
		},
		"the index is full and moves": func() {
			for entry := range b.entries {
				binary.LittleEndian.PutUint64(word(headerBytes/8+entry), b.fingerprint(identity)<<32|(entry%b.Keys+1))
			}
			binary.LittleEndian.PutUint64(word(wordMoves), 1)
		},
		"the index names slots that are none": func() {
			for entry := range b.entries {
				binary.LittleEndian.PutUint64(word(headerBytes/8+entry), b.fingerprint(identity)<<32|0xffff_ffff)
			}
		},
		"THROUGH is far ahead":  func() { binary.LittleEndian.PutUint64(word(wordThrough), ^uint64(0)) },
		"THROUGH is far behind": func() { binary.LittleEndian.PutUint64(word(wordThrough), 0) },
		"every message is as large as a word can say": func() {
			for slot := range b.Keys {
				binary.LittleEndian.PutUint64(word(heads+8*slot+3), 0x1ff_ffff)
			}
		},
	} {
		copy(memory, whole)
		change()
		t.Run(name, func(t *testing.T) { consumeBoard(t, memory) })
	}
}

func TestBoardsOfNoCreatorAreRefused(t *testing.T) {
	whole := boarded(t)
	from := binary.LittleEndian.Uint64(whole[8*wordBoard:])
	memory := aligned(whole)
	for _, c := range []struct {
		word   int
		value  uint64
		reason Reason
	}{
		{0, 1, ReasonForeign}, {1, 2 << 16, ReasonField}, {2, 0, ReasonField}, {2, mostKeys + 1, ReasonField}, {2, ^uint64(0), ReasonField},
		{3, 7, ReasonField}, {3, mostValue + 1, ReasonField}, {3, ^uint64(0), ReasonField}, {4, 8, ReasonField}, {5, 300, ReasonField},
		{5, ^uint64(0), ReasonField}, {7, 1, ReasonField}, {7, 1 << 63, ReasonField}, {2, 512, ReasonTruncated}, {3, 4096, ReasonTruncated},
	} {
		copy(memory, whole)
		binary.LittleEndian.PutUint64(memory[from+8*uint64(c.word):], c.value)
		if c.word == 2 && c.reason == ReasonTruncated {
			binary.LittleEndian.PutUint64(memory[from+8*7:], 1024)
		}
		sumBoard(memory[from:])
		var invalid *InvalidError
		if _, err := over(memory, FromOldest()); !errors.As(err, &invalid) || invalid.Reason != c.reason {
			t.Errorf("word %d is %#x: %v", c.word, c.value, err)
		}
	}
	copy(memory, whole)
	memory[from+8*3] ^= 1
	var invalid *InvalidError
	if _, err := over(memory, FromOldest()); !errors.As(err, &invalid) || invalid.Reason != ReasonField {
		t.Error(err)
	}
	for _, offset := range []uint64{8, from - 8, from + 8, ^uint64(0)} {
		copy(memory, whole)
		binary.LittleEndian.PutUint64(memory[8*wordBoard:], offset)
		if _, err := over(memory, FromOldest()); !errors.As(err, &invalid) || invalid.Reason != ReasonField {
			t.Errorf("a board at %d: %v", offset, err)
		}
	}
	// In a segment of version 2.0 this word has no meaning.
	copy(memory, whole)
	binary.LittleEndian.PutUint64(memory[8*wordBoard:], ^uint64(0))
	memory[8] = 0
	sum(memory[:headerBytes])
	if s, err := over(memory, FromOldest()); err != nil || s.board != nil {
		t.Error(err)
	}
}
