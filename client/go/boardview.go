package shmcast

import "unsafe"

// Limits of reading a board (SPEC.md 8.3). A store takes some nanoseconds. Without these limits, a publisher that was stopped in a store
// would keep a reader for ever.
const (
	mostLooks  = 256
	mostCopies = 16
	mostSteps  = 4096 // steps of one search through an index that is at most half full
)

// head is the head of a slot. All of its words are claims of another process.
type head struct {
	version  uint64
	sequence uint64
	base     uint64
	meta     uint64
	time     uint64
	born     uint64
	identity [2]uint64
}

// count is the number of messages of the present key, up to this one.
func (h *head) count() uint64 { return h.version/2 + h.version&1 - h.base }

func (h *head) isWhole() bool { return h.meta&(metaTooLarge|metaUnknown|metaEmpty) == 0 }

// isLive says whether the slot has a key that was not removed.
func (h *head) isLive() bool { return h.version != 0 && h.meta&(metaRemoved|metaEmpty) == 0 }

// seen is the result of reading a slot.
type seen uint8

const (
	seenWhole    seen = iota // the slot's message
	seenChanging             // the slot changes faster than its value can be copied; the head is whole
	seenBusy                 // the publisher is in the middle of a store, or was stopped there
)

func (b *board) version(slot uint64) uint64 { return b.heads.load(headWords * slot) }

func (b *board) named(slot uint64) [2]uint64 {
	return [2]uint64{b.heads.load(headWords*slot + 6), b.heads.load(headWords*slot + 7)}
}

// load copies the words of a head except its version. slot is below Keys.
func (b *board) load(slot uint64, h *head) {
	at := headWords * slot
	h.sequence, h.base, h.meta = b.heads.load(at+1), b.heads.load(at+2), b.heads.load(at+3)
	h.time, h.born, h.identity = b.heads.load(at+4)&(1<<48-1), b.heads.load(at+5), b.named(slot)
}

// through is the sequence up to which each message is on the board. All later loads see these messages.
func (b *board) through() uint64 {
	through := b.header.load(wordThrough)
	acquireFence() // SYNC through
	return through
}

// high is the number of slots that were ever used.
func (b *board) high() uint64 { return min(b.header.load(wordHigh), b.Keys) }

// stored is the number of bytes of a message that its value has.
func (b *board) stored(meta uint64) uint64 {
	switch {
	case meta&metaEmpty != 0:
		return 0
	case meta&metaUnknown != 0:
		return b.KeyEnd
	case meta&metaTooLarge != 0:
		return min(meta&0x1ff_ffff, b.KeyEnd)
	}
	return min(meta&0x1ff_ffff, b.Value)
}

// copyValue copies the part of a message that the slot's value has, for a message with this meta. slot is below Keys, and out has Value
// bytes.
func (b *board) copyValue(slot, meta uint64, out []byte) {
	n := min(b.stored(meta), uint64(len(out)))
	copy(out, unsafe.Slice((*byte)(unsafe.Add(b.values, slot*b.stride())), n))
}

// isStill says whether no store began in a slot since its version was loaded. It is called after all loads of the slot's words.
func (b *board) isStill(slot, version uint64) bool {
	acquireFence() // SYNC store
	return b.version(slot) == version
}

// look copies a slot, and its value to the start of out. slot is below Keys.
func (b *board) look(slot uint64, out []byte, h *head) seen {
	var first, busy uint64
	hasFirst, copies := false, 0
	for range mostLooks {
		h.version = b.version(slot)
		acquireFence() // SYNC stored
		if h.version&1 == 1 {
			busy = h.version
			continue
		}
		b.load(slot, h)
		if !hasFirst {
			first, hasFirst = h.version, true
		}
		// One line is read faster than it changes.
		isWhole := first != h.version && b.isStill(slot, h.version)
		b.copyValue(slot, h.meta, out)
		if b.isStill(slot, h.version) {
			return seenWhole
		}
		if copies++; isWhole && copies >= mostCopies {
			return seenChanging
		}
	}
	// Another key can be about to get the slot. The key's words are stored after the number from which its messages are counted.
	identity := b.named(slot)
	acquireFence() // SYNC named
	b.load(slot, h)
	h.version, h.identity = busy|1, identity
	return seenBusy
}

// sought is the result of a search for a key.
type sought uint8

const (
	soughtNone sought = iota
	soughtFound
	soughtBusy // the slot is in the middle of a store: the newest message is in the ring
)

// find searches for a key, and copies the slot's head and value. The number of loads is bounded, whatever the board holds.
func (b *board) find(identity [2]uint64, out []byte, h *head) sought {
	budget := 2*b.entries + 1<<16
	for range mostLooks {
		moves := b.header.load(wordMoves)
		acquireFence() // SYNC moved
		result, isOver := b.findByIndex(identity, out, h, &budget)
		if isOver {
			return result
		}
		acquireFence() // SYNC moved
		if moves&1 == 0 && b.header.load(wordMoves) == moves {
			return soughtNone
		}
	}
	// The index is being changed, or its publisher died during the change. The head of each slot names the slot's key.
	for slot := range b.high() {
		if result, isOver := b.belongs(slot, identity, out, h); isOver {
			return result
		}
	}
	return soughtNone
}

// findByIndex reads each slot that the index has for a key, as long as the budget of loads lasts.
func (b *board) findByIndex(identity [2]uint64, out []byte, h *head, budget *uint64) (result sought, isOver bool) {
	fingerprint := b.fingerprint(identity)
	for at := fingerprint; *budget > 0; at++ {
		*budget--
		entry := b.index.load(at & (b.entries - 1))
		slot := entry & 0xffff_ffff
		if slot == 0 || at-fingerprint == b.entries {
			break
		}
		if entry>>32 != fingerprint || slot > b.Keys {
			continue
		}
		if result, isOver = b.belongs(slot-1, identity, out, h); isOver {
			return result, true
		}
	}
	return soughtNone, false
}

// belongs copies a slot if it belongs to a key.
func (b *board) belongs(slot uint64, identity [2]uint64, out []byte, h *head) (result sought, isOver bool) {
	if b.named(slot) != identity {
		return soughtNone, false
	}
	kind := b.look(slot, out, h)
	switch {
	case h.identity != identity:
		return soughtNone, false
	case kind != seenWhole:
		return soughtBusy, true
	case h.meta&metaEmpty != 0:
		return soughtNone, false
	case h.isLive():
		return soughtFound, true
	}
	return soughtNone, true
}

// bornOf is the sequence of the first message of a key since the key got its slot, even if the key was removed since; 0 if no slot has the
// key. isWhole is false if this is unknown, such as in the middle of a store. The number of loads is small, whatever the board holds.
func (b *board) bornOf(identity [2]uint64) (born uint64, isWhole bool) {
	var h head
	budget := uint64(mostSteps)
	for range mostCopies {
		moves := b.header.load(wordMoves)
		acquireFence() // SYNC moved
		result, isOver := b.findByIndex(identity, nil, &h, &budget)
		if isOver {
			return h.born, result != soughtBusy // a key that was removed still has its slot
		}
		acquireFence() // SYNC moved
		if moves&1 == 0 && b.header.load(wordMoves) == moves {
			return 0, budget > 0
		}
	}
	return 0, false
}
