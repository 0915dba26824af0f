package shmcast

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"unicode/utf8"
)

// Sizes of SPEC.md 1.
const (
	granule      = 64
	headerBytes  = 4096
	recordHeader = 16
	maxSequence  = 1<<48 - 1
	maxPosition  = 1 << 62
	magic        = 0x3154_5341_434d_4853
)

// Words of the header page that change (SPEC.md 1.1).
const (
	wordFrontier = 16
	wordState    = 32
	wordCount    = 48
	wordKey      = 50
	wordFirst    = 56
	wordSession  = 58
)

// ErrInvalid is the error of memory that is no segment which this version can read. The error that wraps it says why.
var ErrInvalid = errors.New("not a segment that can be read")

// Reason is the class of a refusal, by the table in SPEC.md 1.1.
type Reason string

// The reasons to refuse a segment.
const (
	ReasonTruncated Reason = "truncated"
	ReasonForeign   Reason = "foreign"
	ReasonVersion   Reason = "version"
	ReasonChecksum  Reason = "checksum"
	ReasonField     Reason = "field"
	ReasonGeometry  Reason = "geometry"
)

// InvalidError says which rule of SPEC.md 1.1 a segment breaks. It is an [ErrInvalid].
type InvalidError struct {
	Reason Reason
	What   string
}

func (e *InvalidError) Error() string {
	return fmt.Sprintf("%v: %s: %s", ErrInvalid, e.Reason, e.What)
}

func (e *InvalidError) Unwrap() error { return ErrInvalid }

// Header has the properties with which a channel was made.
type Header struct {
	Capacity     uint64 // bytes of the ring
	Chunk        uint64
	IndexEntries uint64
	MaxMessage   uint64 // bytes of the largest payload
	DataOffset   uint64
	UUID         [2]uint64
	Stream       [2]uint64 // identity of the stream; a new one when the sequences begin at 1 again
	Created      uint64    // ns since 1970
	ClockKind    uint64    // 0 CLOCK_MONOTONIC in ns, 1 the CPU's counter
	ClockRate    uint64    // ticks a second
	SchemaID     uint64
	Channel      string
	Schema       string
	Labels       string
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ParseHeader checks a private copy of a segment's first page, of a file with size bytes. It never panics, whatever the bytes are.
func ParseHeader(page []byte, size uint64) (Header, error) {
	var h Header
	refuse := func(reason Reason, what string, values ...any) (Header, error) {
		return Header{}, &InvalidError{reason, fmt.Sprintf(what, values...)}
	}
	if size < headerBytes || len(page) < headerBytes {
		return refuse(ReasonTruncated, "the file has %d bytes, and a header has 4096", size)
	}
	page = page[:headerBytes]
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(page[8*i:]) }
	if word(0) != magic {
		return refuse(ReasonForeign, "it does not begin with the magic")
	}
	if major := word(1) >> 16 & 0xffff; major != 2 {
		return refuse(ReasonVersion, "layout version %d, and this library reads 2", major)
	}
	sum := crc32.Update(crc32.Checksum(page[8:120], castagnoli), castagnoli, page[512:])
	if word(15) != uint64(sum) {
		return refuse(ReasonChecksum, "the checksum is %#x, and not %#x", word(15), sum)
	}
	if word(3) != granule {
		return refuse(ReasonField, "granule of %d bytes", word(3))
	}
	h = Header{
		Capacity: word(2), Chunk: word(4), IndexEntries: word(5), MaxMessage: word(6), DataOffset: word(7),
		UUID: [2]uint64{word(8), word(9)}, Stream: [2]uint64{word(10), word(11)}, Created: word(12),
		ClockKind: word(1) >> 32, ClockRate: word(13), SchemaID: word(14),
	}
	isPower := func(n uint64) bool { return n != 0 && n&(n-1) == 0 }
	switch {
	case !isPower(h.Capacity) || h.Capacity < 64<<10 || h.Capacity > 16<<30:
		return refuse(ReasonGeometry, "capacity %d", h.Capacity)
	case !isPower(h.Chunk) || h.Chunk < granule || h.Chunk > h.Capacity/8:
		return refuse(ReasonGeometry, "chunk %d", h.Chunk)
	case h.IndexEntries != h.Capacity/granule:
		return refuse(ReasonGeometry, "%d index entries", h.IndexEntries)
	case h.MaxMessage > min(h.Capacity/8, 16<<20):
		return refuse(ReasonGeometry, "messages of %d bytes", h.MaxMessage)
	case h.DataOffset != headerBytes+8*h.IndexEntries:
		return refuse(ReasonGeometry, "data at %d", h.DataOffset)
	case h.ClockKind > 1:
		return refuse(ReasonField, "clock kind %d", h.ClockKind)
	case h.ClockRate < 1_000 || h.ClockRate > 1_000_000_000_000:
		return refuse(ReasonField, "clock rate %d", h.ClockRate)
	}
	rest := page[512:]
	for _, name := range []*string{&h.Channel, &h.Schema, &h.Labels} {
		if len(rest) < 8 {
			return refuse(ReasonField, "the names are longer than the page")
		}
		length := binary.LittleEndian.Uint64(rest)
		rest = rest[8:]
		if length > uint64(len(rest)) {
			return refuse(ReasonField, "a name of %d bytes", length)
		}
		if *name = string(rest[:length]); !utf8.ValidString(*name) {
			return refuse(ReasonField, "a name is not UTF-8")
		}
		rest = rest[min(uint64(len(rest)), (length+7)/8*8):]
	}
	whole := h.DataOffset + h.Capacity
	if whole >= 2<<20 {
		whole = (whole + 2<<20 - 1) &^ (2<<20 - 1)
	}
	if size < whole {
		return refuse(ReasonTruncated, "the file has %d bytes of %d", size, whole)
	}
	return h, nil
}
