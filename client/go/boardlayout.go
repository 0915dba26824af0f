package shmcast

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/bits"
	"unsafe"
)

// Sizes and words of a board (SPEC.md 8.1).
const (
	boardMagic    = 0x3144_524f_424d_4853
	boardFixed    = 128 // bytes of the words that never change, and their checksum
	mostKeys      = 1 << 24
	mostKeyBytes  = 256
	mostValue     = 16 << 20
	mostValues    = 16 << 30
	headWords     = 8
	wordThrough   = 16
	wordSince     = 32
	wordHigh      = 33
	wordLive      = 34
	wordRefused   = 35
	wordTooLarge  = 36
	wordNoKey     = 37
	wordForgotten = 38
	wordMoves     = 39 // INDEX: odd while entries of the index move
	wordBoard     = 60 // in the segment's header: the board's offset
	minorBoard    = 1
)

// Flags of a head.
const (
	metaKey      = 1 << 32
	metaRemoved  = 1 << 33
	metaTooLarge = 1 << 34
	metaUnknown  = 1 << 35
	metaEmpty    = 1 << 36
)

// BoardSpec says which bytes of a payload are the key of a channel's board, and how much room the board has.
type BoardSpec struct {
	KeyStart, KeyEnd uint64 // the first byte of the key, and the byte after the last
	Keys             uint64 // number of keys for which there is room
	Value            uint64 // bytes of the largest message on the board, key included
	RemovesByTag     bool   // messages with the tag RemoveTag remove their key
	RemoveTag        uint16
}

// isRemoval says whether a message removes its key.
func (s *BoardSpec) isRemoval(length uint64, tag uint16) bool {
	return length == s.KeyEnd || s.RemovesByTag && tag == s.RemoveTag
}

// board is a mapped board whose sizes were checked.
type board struct {
	BoardSpec
	entries uint64
	seed    uint64
	header  words
	index   words
	heads   words
	values  unsafe.Pointer
}

func (b *board) stride() uint64 { return (b.Value + granule - 1) &^ (granule - 1) }
func (b *board) headsOffset() uint64 {
	return (headerBytes + 8*b.entries + granule - 1) &^ (granule - 1)
}
func (b *board) valuesOffset() uint64 { return b.headsOffset() + granule*b.Keys }

// size is the number of the board's bytes. It cannot overflow.
func (b *board) size() uint64 {
	return (b.valuesOffset() + b.Keys*b.stride() + headerBytes - 1) &^ (headerBytes - 1)
}

// parseBoard checks a private copy of the words of a board that never change.
func parseBoard(fixed []byte) (*board, error) {
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(fixed[8*i:]) }
	if word(0) != boardMagic {
		return nil, &InvalidError{ReasonForeign, "the board does not begin with its magic"}
	}
	b := &board{
		BoardSpec: BoardSpec{
			Keys: word(2), Value: word(3), KeyStart: word(4), KeyEnd: word(5),
			RemovesByTag: word(6)>>16&1 == 1, RemoveTag: uint16(word(6)),
		},
		entries: word(7), seed: word(8),
	}
	keys, value, start, end := b.Keys, b.Value, b.KeyStart, b.KeyEnd
	why := ""
	switch {
	case word(1)>>16 != 1:
		why = fmt.Sprintf("the board has version %#x", word(1))
	case word(15) != uint64(crc32.Checksum(fixed[8:120], castagnoli)):
		why = "the board's checksum"
	case keys < 1 || keys > mostKeys:
		why = fmt.Sprintf("a board of %d keys", keys)
	case start >= end || end-start > mostKeyBytes || end > mostValue:
		why = fmt.Sprintf("keys from byte %d to %d", start, end)
	case value < end || value > mostValue || keys*b.stride() > mostValues:
		why = fmt.Sprintf("a board with values of %d bytes", value)
	case b.entries != uint64(1)<<bits.Len64(2*keys-1):
		why = fmt.Sprintf("%d entries for %d keys", b.entries, keys)
	default:
		return b, nil
	}
	return nil, &InvalidError{ReasonField, why}
}

// findBoard checks the board that a segment of size bytes claims to have, and returns nil if the segment has none. page is a copy of the
// segment's header, and read copies bytes of the segment.
func findBoard(page []byte, h *Header, size uint64, read func(into []byte, at int64) (int, error)) (*board, error) {
	minor := binary.LittleEndian.Uint16(page[8:])
	offset := binary.LittleEndian.Uint64(page[8*wordBoard:])
	end := h.DataOffset + h.Capacity
	if minor < minorBoard || offset == 0 {
		return nil, nil
	}
	if offset != end {
		return nil, &InvalidError{ReasonField, fmt.Sprintf("a board at %d", offset)}
	}
	if size < end+headerBytes {
		return nil, &InvalidError{ReasonTruncated, fmt.Sprintf("the file has %d bytes, and its board begins at %d", size, end)}
	}
	var fixed [boardFixed]byte
	if _, err := read(fixed[:], int64(end)); err != nil {
		return nil, err
	}
	b, err := parseBoard(fixed[:])
	if err == nil && size < end+b.size() {
		return nil, &InvalidError{ReasonTruncated, fmt.Sprintf("the file has %d bytes of %d", size, end+b.size())}
	}
	return b, err
}

// lend gives the board the memory that contains it.
func (b *board) lend(base unsafe.Pointer) {
	b.header = words{base, headerBytes / 8}
	b.index = words{unsafe.Add(base, headerBytes), b.entries}
	b.heads = words{unsafe.Add(base, b.headsOffset()), headWords * b.Keys}
	b.values = unsafe.Add(base, b.valuesOffset())
}

// key is the key of a payload; nil if the payload is too short to have one.
func (b *board) key(payload []byte) []byte {
	if uint64(len(payload)) < b.KeyEnd {
		return nil
	}
	return payload[b.KeyStart:b.KeyEnd]
}

// identity is the two words that identify a key. All keys of a board have the same length.
func (b *board) identity(key []byte) [2]uint64 {
	switch {
	case len(key) <= 8:
		return [2]uint64{wordOf(key)}
	case len(key) <= 16:
		return [2]uint64{wordOf(key[:8]), wordOf(key[8:])}
	}
	return [2]uint64{hashKey(b.seed, key), hashKey(^b.seed, key)}
}

func (b *board) fingerprint(identity [2]uint64) uint64 {
	return mixWords(mixWords(b.seed, identity[0]), identity[1]) >> 32
}

// wordOf is up to eight bytes as a little-endian word.
func wordOf(bytes []byte) (word uint64) {
	if len(bytes) >= 8 {
		return binary.LittleEndian.Uint64(bytes)
	}
	for i, b := range bytes {
		word |= uint64(b) << (8 * i)
	}
	return word
}

func mixWords(before, word uint64) uint64 {
	high, low := bits.Mul64(before^word, 0x9e37_79b9_7f4a_7c15)
	return high ^ low
}

func hashKey(seed uint64, key []byte) uint64 {
	for ; len(key) > 8; key = key[8:] {
		seed = mixWords(seed, wordOf(key))
	}
	return mixWords(seed, wordOf(key))
}
