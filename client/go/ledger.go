package shmcast

import "math/bits"

// ledger counts the messages of each key that a conflating reader was given. From the counts it computes how many messages were left out. A
// board counts the messages of each key, too. The reader knows the board's count from its last join, and adds the messages that it receives
// from the ring. The difference at the next join is the number of messages that were left out.
//
// A full board refuses the messages of new keys, and does not count them. So if the board refused messages, the ledger searches for the
// slot of each key that it has not seen on the board. The slot names the message from which the board counts.
type ledger struct {
	rows      []account
	keys      []byte // of each row
	index     []uint32
	most      int
	forgotten int // the next row in the search for keys that the board has forgotten
	// At the last join: the highest sequence of a forgotten removal, and whether each key that this reader knows was on the board.
	forgottenUpTo uint64
	hadAll        bool
	// The reader was told of a loss since the last join. The board has counted the lost messages, and the ledger has not.
	hasLost bool
	// The reader has not joined the present segment's board. It is unknown which messages an earlier board refused.
	hasMoved bool
}

// account is one key of a ledger.
type account struct {
	identity [2]uint64
	born     uint64 // the key's first message since the key got its slot; 0 if the board does not count the key
	given    uint64 // number of messages from born on that this reader got, or that it reported as left out
	// The same counts, from the first message after the last removal on. The board can have forgotten the key at that removal.
	again      uint64
	givenAgain uint64
	last       uint64 // the key's last message that this reader got, or that it reported as left out
	isRemoved  bool
	isThere    bool // the board is known to have had the key when the last message came
}

// beginAtLast makes the account begin at the key's last message, where the board begins to count.
func (a *account) beginAtLast() {
	a.born, a.given, a.again, a.givenAgain = a.last, 1, a.last, 1
}

// locate asks the board from which message on it counts the key's messages. The last message is already counted here.
func (a *account) locate(b *board, hasMoved bool) {
	through := b.through()
	if !hasMoved && b.header.load(wordRefused) == 0 {
		a.isThere = a.again != a.last || through >= a.last // the board had room for each message that it was given
		return
	}
	born, isWhole := b.bornOf(a.identity)
	switch {
	case !isWhole:
		if a.born == 0 {
			a.beginAtLast()
		}
	case born != 0 && (born == a.born || born == a.again):
		a.isThere = true
	case born == a.last:
		a.beginAtLast()
		a.isThere = true
	case born == 0 && through < a.last:
		a.beginAtLast() // the board can still refuse the message, which it does not have yet
	default:
		// The board refused the message, or has forgotten the key since.
		a.born, a.given, a.again, a.givenAgain = 0, 0, 0, 0
	}
}

func newLedger(n *snapshot) *ledger {
	l := &ledger{most: int(2 * n.mostRows())}
	lent := min(l.most, 2*lentKeys)
	l.rows = make([]account, 0, lent)
	l.keys = make([]byte, 0, lent*int(n.KeyEnd-n.KeyStart))
	l.index = make([]uint32, 1<<bits.Len(uint(2*lent)))
	return l
}

func (l *ledger) placeOf(b *board, identity [2]uint64) (at uint64, there *account) {
	mask := uint64(len(l.index)) - 1
	for at = b.fingerprint(identity) & mask; l.index[at] != 0; at = (at + 1) & mask {
		if a := &l.rows[l.index[at]-1]; a.identity == identity {
			return at, a
		}
	}
	return at, nil
}

// note counts a message that the reader received from the ring. It returns false if there is no room for its key.
func (l *ledger) note(b *board, sequence uint64, tag uint16, payload []byte) bool {
	key := b.key(payload)
	if key == nil {
		return true
	}
	identity := b.identity(key)
	isRemoval := b.isRemoval(uint64(len(payload)), tag)
	at, a := l.placeOf(b, identity)
	if a == nil {
		if isRemoval {
			return true // the board did not have the key
		}
		first := account{identity: identity, last: sequence}
		first.beginAtLast()
		first.locate(b, l.hasMoved)
		return l.add(b, at, first, key)
	}
	if a.isRemoved && !isRemoval {
		a.again, a.givenAgain, a.isThere = sequence, 0, false
	}
	a.last, a.isRemoved = sequence, isRemoval
	a.given++
	a.givenAgain++
	if !a.isThere {
		a.locate(b, l.hasMoved)
	}
	return true
}

// mayRefuse says whether the board possibly had no room for a message that this reader received.
func (l *ledger) mayRefuse(b *board) bool { return l.hasMoved || b.header.load(wordRefused) != 0 }

func (l *ledger) add(b *board, at uint64, a account, key []byte) bool {
	if len(l.rows) == l.most {
		return false
	}
	l.rows, l.keys = append(l.rows, a), append(l.keys, key...)
	l.index[at] = uint32(len(l.rows))
	if 2*len(l.rows) > len(l.index) {
		l.index = make([]uint32, 2*len(l.index))
		l.reindex(b)
	}
	return true
}

// reindex makes the index anew.
func (l *ledger) reindex(b *board) {
	clear(l.index)
	for i := range l.rows {
		at, _ := l.placeOf(b, l.rows[i].identity)
		l.index[at] = uint32(i + 1)
	}
}

// given is the number of messages of a row's key that the reader was given or told about. It counts from the same message as the board.
// After a loss, no message counts as left out in place of a newer one: the caller counts those that are left out as lost.
func (l *ledger) given(b *board, r *row) uint64 {
	if l.hasLost {
		return r.count - min(r.count, 1)
	}
	_, a := l.placeOf(b, r.identity)
	switch {
	case a == nil:
		return 0
	case a.born == r.born:
		return a.given
	case a.again == r.born:
		return a.givenAgain
	}
	return 0 // the board forgot the key, and the key came back in a message that was left out
}

// seekForgotten begins the search for keys that the board has forgotten. The caller calls it after a join and before the verdict on the join.
// next is the sequence after the join.
func (l *ledger) seekForgotten(b *board, next uint64) {
	l.forgotten = 0
	l.forgottenUpTo = min(b.header.load(wordForgotten)&maxSequence, max(next, 1)-1)
	l.hadAll = !l.mayRefuse(b)
}

// nextForgotten returns the next key that the reader knows and that the board has forgotten; nil if there is none.
func (l *ledger) nextForgotten(n *snapshot) []byte {
	for ; l.forgotten < len(l.rows); l.forgotten++ {
		a := &l.rows[l.forgotten]
		// A key that never had room on the board is not there either, but was not removed.
		wasThere := a.isThere || l.hadAll
		if wasThere && !a.isRemoved && l.forgottenUpTo > a.last && !n.has(a.identity) {
			return l.key(n.board, l.forgotten)
		}
	}
	return nil
}

func (l *ledger) key(b *board, row int) []byte {
	length := int(b.KeyEnd - b.KeyStart)
	return l.keys[row*length:][:length]
}

// forget forgets all keys.
func (l *ledger) forget() {
	l.rows, l.keys, l.hasLost = l.rows[:0], l.keys[:0], false
	clear(l.index)
}

// takeOver takes over the counts of the messages that the reader was given, for the board of the next segment. The rows of l are made
// again, because each segment has a seed of its own, and its board can have another size.
func (l *ledger) takeOver(old *ledger, was, now *board) {
	l.most, l.hasMoved, l.hasLost = max(l.most, len(old.rows)), true, old.hasLost
	since := now.header.load(wordSince)
	for i, a := range old.rows {
		key := old.key(now, i)
		a.identity = now.identity(key)
		// A smaller board can have had no room for the key. A board that lacks earlier messages can lack the key.
		a.isThere = a.isThere && now.Keys >= was.Keys && a.last >= since
		if at, there := l.placeOf(now, a.identity); there == nil {
			l.add(now, at, a, key)
		}
	}
}

// takeFrom takes the counts over from a snapshot after a join.
func (l *ledger) takeFrom(n *snapshot) {
	l.forget()
	l.hasMoved = false
	n.all(func(number uint64, r *row) {
		at, there := l.placeOf(n.board, r.identity)
		if there != nil {
			return
		}
		again := max(r.born, r.again)
		l.add(n.board, at, account{
			identity: r.identity, born: r.born, given: r.count, again: again, givenAgain: r.count - min(r.count, r.beforeAgain), last: r.sequence,
			isRemoved: r.meta&metaRemoved != 0,
			// The board had the key before its removal, and might have had no slot for it when it came back.
			isThere: number < n.firstNew && again == r.born,
		}, n.room(number)[n.KeyStart:n.KeyEnd])
	})
}
