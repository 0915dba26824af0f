package shmcast

import (
	"cmp"
	"math/bits"
	"slices"
)

const (
	slotTries = 64
	toCopy    = ^uint64(0) // the version of a copy that was merged with a message of the ring: no slot has it
	changed   = toCopy - 2 // the version of a copy whose slot changed too fast: it is odd, as in a store, and no slot has it
	lentKeys  = 1 << 16    // number of keys for which memory is allocated at the start
)

// row is the copy of a slot, or a key that the ring had and the board did not have yet.
type row struct {
	head           // with the slot's version at the copy; a slot with another version is copied again
	count   uint64 // number of the key's messages up to this one
	leftOut uint64 // number of older messages that this one replaces
	// The key's first message after a removal that the join read in the ring, and the count before this message; 0 if there was none.
	again, beforeAgain uint64
}

func (r *row) hasKey() bool { return r.sequence != 0 && r.meta&metaEmpty == 0 }

// rowChunk is some rows and their values. Chunks are made at their first use, so a false number of keys alone takes no memory.
type rowChunk struct {
	rows   []row
	values []byte
}

// listedRow is a message that will be returned.
type listedRow struct{ sequence, number uint64 }

// snapshot is a reader's own copy of a board, merged with the ring. First come the rows of the slots, and then the rows of keys that only
// the ring had.
type snapshot struct {
	*board
	most     uint64 // bytes of the largest message
	chunks   []*rowChunk
	shift    uint   // a chunk has 1 << shift rows
	high     uint64 // slots that had been used when the board was copied
	firstNew uint64 // the first row after those of the slots
	more     uint64 // number of rows in use from firstNew on
	mostMore uint64
	index    []uint32 // from a key's identity to its row, plus 1: open addressing
	order    []listedRow
}

func newSnapshot(s *segment) *snapshot {
	b := s.board
	n := &snapshot{board: b, most: s.MaxMessage, mostMore: max(1024, min(b.Keys/4, 1<<20))}
	n.shift = uint(bits.Len64(min(max(1<<20/b.stride(), 1), 1024))) - 1
	each := uint64(1) << n.shift
	n.firstNew = (b.Keys + each - 1) &^ (each - 1)
	n.chunks = make([]*rowChunk, (n.firstNew+n.mostMore)>>n.shift+1)
	if b.Keys*b.stride() <= lentKeys<<10 && b.Keys <= lentKeys {
		for number := uint64(0); number < n.firstNew; number += each {
			n.row(number)
		}
		n.order = make([]listedRow, 0, n.firstNew+n.mostMore)
		n.index = make([]uint32, uint64(1)<<bits.Len64(2*(n.firstNew+n.mostMore)))
	}
	return n
}

// mostRows is the largest number of keys that a snapshot can have.
func (n *snapshot) mostRows() uint64 { return n.Keys + n.mostMore }

// row is the row with a number.
func (n *snapshot) row(number uint64) *row {
	at := &n.chunks[number>>n.shift]
	if *at == nil {
		each := uint64(1) << n.shift
		*at = &rowChunk{make([]row, each), make([]byte, each*n.stride())}
	}
	return &(*at).rows[number&(1<<n.shift-1)]
}

// room is the memory of a row's value.
func (n *snapshot) room(number uint64) []byte {
	n.row(number)
	return n.chunks[number>>n.shift].values[(number&(1<<n.shift-1))*n.stride():][:n.stride()]
}

// value is the payload of a row, or the part of it that the slot has.
func (n *snapshot) value(number uint64) []byte {
	length := n.stored(n.row(number).meta)
	return n.room(number)[:length:length]
}

// all calls each with each row that has a key.
func (n *snapshot) all(each func(number uint64, r *row)) {
	n.some(0, n.high, each)
	n.some(n.firstNew, n.firstNew+n.more, each)
}

func (n *snapshot) some(from, to uint64, each func(number uint64, r *row)) {
	for number := from; number < to; number++ {
		if n.chunks[number>>n.shift] == nil {
			number |= 1<<n.shift - 1
		} else if r := n.row(number); r.hasKey() {
			each(number, r)
		}
	}
}

// copyChanged copies each slot whose version differs from that of its copy. It returns false if a slot could not be copied.
func (n *snapshot) copyChanged(isLate func() bool) bool {
	n.more = 0
	n.high = n.board.high()
	for slot := range n.high {
		var known uint64
		if c := n.chunks[slot>>n.shift]; c != nil {
			known = c.rows[slot&(1<<n.shift-1)].version
		}
		if known != n.version(slot) && !n.copySlot(slot, isLate) {
			return false
		}
	}
	return true
}

// copySlot copies one slot. If the publisher is in the middle of a store, the copy has no value: the ring has the message.
func (n *snapshot) copySlot(slot uint64, isLate func() bool) bool {
	r, value := n.row(slot), n.room(slot)
	for range slotTries {
		var h head
		kind := n.look(slot, value, &h)
		if kind == seenWhole {
			if n.stored(h.meta) > n.most {
				h.meta |= metaUnknown // the channel has no message of that size
			}
			*r = row{head: h, count: h.count()}
			return true
		}
		count := h.count() - 1
		if kind == seenChanging {
			// THROUGH, as the caller has loaded it, is below this message. So the merge leaves out only the messages before this one.
			h.sequence, h.version = max(h.sequence, 1)-1, changed
		} else {
			// The message that is being stored is the first of its key after this one: the version did not change meanwhile.
			through := n.through()
			if n.version(slot) != h.version {
				if isLate() {
					return false
				}
				continue
			}
			h.sequence = through
		}
		h.meta = metaUnknown
		h.version |= 1
		*r = row{head: h, count: count}
		return true
	}
	return false
}

// indexRows builds the private index of all copies. It returns the highest sequence among them.
func (n *snapshot) indexRows() (newest uint64) {
	keys := uint64(0)
	n.all(func(uint64, *row) { keys++ })
	size := uint64(1) << bits.Len64(2*(keys+n.mostMore))
	if uint64(cap(n.index)) < size {
		n.index = make([]uint32, size)
	}
	n.index = n.index[:size]
	clear(n.index)
	n.all(func(number uint64, r *row) {
		newest = max(newest, r.sequence)
		at, there := n.placeOf(r.identity)
		switch {
		case there == nil:
			n.index[at] = uint32(number + 1)
		// A key was removed and came back in another slot: the two copies are of different times, and the newer copy is the right one.
		case there.sequence < r.sequence:
			*there = row{}
			n.index[at] = uint32(number + 1)
		default:
			*r = row{}
		}
	})
	return newest
}

// placeOf is the place of a key in the private index, and the row that is there. At least half of the places are free.
func (n *snapshot) placeOf(identity [2]uint64) (at uint64, there *row) {
	mask := uint64(len(n.index)) - 1
	for at = n.fingerprint(identity) & mask; n.index[at] != 0; at = (at + 1) & mask {
		if r := n.row(uint64(n.index[at]) - 1); r.identity == identity {
			return at, r
		}
	}
	return at, nil
}

// has says whether there is a copy of a key.
func (n *snapshot) has(identity [2]uint64) bool {
	_, there := n.placeOf(identity)
	return there != nil
}

// take stores a message from the ring in the row of its key. It returns false if the key is new and there is no free row.
func (n *snapshot) take(ev *taken, payload []byte) bool {
	key := n.key(payload)
	if key == nil {
		return true
	}
	identity := n.identity(key)
	at, r := n.placeOf(identity)
	isRemoval := n.isRemoval(uint64(len(payload)), ev.tag)
	if r == nil {
		if isRemoval {
			return true // the board does not know the key
		}
		if n.more == n.mostMore {
			return false
		}
		number := n.firstNew + n.more
		n.more++
		n.index[at] = uint32(number + 1)
		r = n.row(number)
		*r = row{head: head{identity: identity, born: ev.sequence}}
	}
	if ev.sequence <= r.sequence {
		return true
	}
	if r.meta&metaRemoved != 0 && !isRemoval {
		r.again, r.beforeAgain = ev.sequence, r.count
	}
	r.version = toCopy // the next join copies the slot again
	r.count++
	r.sequence, r.time = ev.sequence, ev.time
	r.meta = uint64(len(payload)) | uint64(ev.tag)<<48
	if ev.key {
		r.meta |= metaKey
	}
	if isRemoval {
		r.meta |= metaRemoved
	}
	if uint64(len(payload)) > n.Value {
		r.meta |= metaTooLarge
	}
	copy(n.room(uint64(n.index[at])-1), payload[:n.stored(r.meta)])
	return true
}

// dropUnresolved leaves out slots that were about to get another key: a store had begun there, but the ring had no message of the slot's
// key.
func (n *snapshot) dropUnresolved() {
	n.all(func(number uint64, r *row) {
		if r.version&1 == 1 && r.version != toCopy && number < n.high {
			*r = row{}
		}
	})
}

// list sorts the messages of this sequence or later that accept selects.
func (n *snapshot) list(from uint64, accept func(r *row) bool) {
	n.order = n.order[:0]
	n.all(func(number uint64, r *row) {
		if r.sequence >= from && accept(r) {
			n.order = append(n.order, listedRow{r.sequence, number})
		}
	})
	slices.SortFunc(n.order, func(a, b listedRow) int {
		return cmp.Or(cmp.Compare(a.sequence, b.sequence), cmp.Compare(a.number, b.number))
	})
}

// listLive lists the messages that did not remove their key. It returns the number of messages that were left out because they are not
// whole.
func (n *snapshot) listLive() (notWhole uint64) {
	n.list(0, func(r *row) bool {
		isLive := r.meta&metaRemoved == 0
		if isLive && !r.isWhole() {
			notWhole++
		}
		r.leftOut = 0
		return isLive && r.isWhole()
	})
	return notWhole
}

// listSince lists messages, including removals. given returns the number of messages of a key that the reader knows. The result is the
// number of listed messages plus the number of older messages that they replace.
func (n *snapshot) listSince(from uint64, given func(r *row) uint64) (messages uint64) {
	n.list(from, func(r *row) bool { return r.isWhole() })
	for _, l := range n.order {
		r := n.row(l.number)
		r.leftOut = 0
		if known := given(r); r.count > known {
			r.leftOut = r.count - known - 1
		}
		sum, over := bits.Add64(messages, r.leftOut, 1)
		if over != 0 {
			sum = toCopy
		}
		messages = sum
	}
	return messages
}
