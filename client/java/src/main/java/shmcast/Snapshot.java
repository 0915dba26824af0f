package shmcast;

import shmcast.Locator.Outcome;
import shmcast.ShmcastException.Code;

/** A reader's own copy of a board, merged with the ring (SPEC.md 8.3, join). All memory is allocated when the copy is made. */
final class Snapshot {
    /** The result of a join. */
    enum Result {
        JOINED,
        /** The ring is overwritten faster than the reader can read the board. */
        TOO_FAST,
        /** A publisher has published without updating the board. */
        LEFT,
        /** The board names messages that the ring does not have. */
        DAMAGED,
        /** Another program wrote to the ring. */
        CORRUPT
    }

    private static final int PASSES = 200;
    private static final int SLOT_TRIES = 64;
    /** After this many passes, a time limit also applies. */
    private static final int PASSES_AT_ANY_COST = 20;

    private static final long LONGEST = 5_000_000_000L;
    /** The least number of rows for keys that are in the ring but not yet on the board. */
    private static final int MORE_KEYS = 1024;

    private static final int MOST_MORE_KEYS = 1 << 20;
    /** The version of a copy that has a message of the ring. No slot has this version. */
    private static final long TO_COPY = -1;
    /** The version of a copy whose slot changed too fast. It is odd, as in a store, and no slot has it. */
    private static final long CHANGED = TO_COPY - 2;

    /** The index of each word in a row. */
    private static final int VERSION = 0;

    private static final int SEQUENCE = 1;
    private static final int META = 2;
    private static final int TIME = 3;
    private static final int BORN = 4;
    private static final int FIRST = 5;
    private static final int SECOND = 6;
    private static final int COUNT = 7;
    private static final int LEFT_OUT = 8;
    /** The key's first message after a removal that the join read in the ring; 0 if there was none. */
    private static final int AGAIN = 9;
    /** The count before the message {@link #AGAIN}. */
    private static final int BEFORE_AGAIN = 10;

    private static final int WORDS = 11;

    private static final int PAGE_BITS = 20;

    final BoardView view;
    final BoardLayout layout;
    private final int slots;
    private final int most;
    private final long[] rows;
    /** The values. Each page has the values of several rows. */
    private final byte[][] pages;

    private final int pageBits;
    private final KeyIndex index;
    private final int[] order;
    private int high;
    private int more;
    private int listed;
    /** The epoch in the last record of a takeover that was merged; 0 if there was none. */
    long epoch;
    /** The number of keys that the last list left out because their newest message is incomplete. */
    int notWhole;
    /** The number of messages that the last list has or replaces. */
    long bridged;

    Snapshot(BoardView view) throws ShmcastException {
        this.view = view;
        layout = view.layout;
        slots = layout.keys;
        most = slots + Math.min(Math.max(MORE_KEYS, slots / 4), MOST_MORE_KEYS);
        long bytes = most * (8L * WORDS + 12 + layout.stride);
        pageBits = Math.max(0, PAGE_BITS - (64 - Long.numberOfLeadingZeros(layout.stride - 1)));
        try {
            if (bytes > Runtime.getRuntime().maxMemory()) {
                throw new OutOfMemoryError();
            }
            rows = new long[most * WORDS];
            order = new int[most];
            index = new KeyIndex(this::isOf, most);
            pages = new byte[(most - 1 >>> pageBits) + 1][];
            for (int i = 0; i < pages.length; i++) {
                pages[i] = new byte[Math.min(1 << pageBits, most - (i << pageBits)) * layout.stride];
            }
        } catch (OutOfMemoryError e) {
            throw new ShmcastException(Code.LIMIT, "a copy of the board takes " + (bytes >> 20) + " MiB: give the JVM more by -Xmx", e);
        }
    }

    private boolean isOf(int row, long first, long second) {
        return get(row, FIRST) == first && get(row, SECOND) == second;
    }

    private long get(int row, int word) {
        return rows[row * WORDS + word];
    }

    private void set(int row, int word, long value) {
        rows[row * WORDS + word] = value;
    }

    private void clear(int row) {
        java.util.Arrays.fill(rows, row * WORDS, row * WORDS + WORDS, 0);
    }

    /** Returns the array that has the value of a row. The next method returns the value's place in this array. */
    byte[] page(int row) {
        return pages[row >>> pageBits];
    }

    int placeOf(int row) {
        return (row & (1 << pageBits) - 1) * layout.stride;
    }

    /** Returns the greatest possible number of keys. */
    int most() {
        return most;
    }

    private boolean hasKey(int row) {
        return get(row, SEQUENCE) != 0 && (get(row, META) & BoardLayout.EMPTY) == 0;
    }

    /**
     * Copies the slots that changed since the last join. Then merges the messages of the ring up to the newest one, and moves the ring to
     * the place after it. Allocates nothing, and makes no system call.
     */
    Result join(Ring ring, Locator locator) {
        long began = System.nanoTime();
        view.renewPatience();
        int ahead = 0;
        int still = 0;
        long goneAt = -1;
        int pass = 0;
        for (; pass < PASSES; pass++) {
            if (pass >= PASSES_AT_ANY_COST && System.nanoTime() - began > LONGEST) {
                break;
            }
            long through = view.through();
            if (!copyChanged()) {
                continue;
            }
            Outcome outcome = through < 0 || through >= Segment.MAX_SEQUENCE ? Outcome.NOT_YET : locator.seek(through + 1);
            long position = locator.position;
            long sequence = locator.sequence;
            if (outcome == Outcome.NOT_YET) {
                ahead++;
            } else if (outcome == Outcome.TOO_OLD || outcome == Outcome.OVERRUN) {
                still += goneAt == through ? 1 : 0;
                goneAt = through;
            } else if (outcome == Outcome.FOUND && locator.tail() == Outcome.FOUND) {
                if (indexRows() >= locator.sequence) {
                    ahead++;
                    continue;
                }
                ring.jump(position, sequence);
                outcome = merge(ring, locator.sequence);
                if (outcome == Outcome.FOUND) {
                    dropUnresolved();
                    return Result.JOINED;
                }
            } else {
                outcome = Outcome.CORRUPT;
            }
            if (outcome == Outcome.CORRUPT) {
                return Result.CORRUPT;
            }
        }
        return ahead > pass / 2 ? Result.DAMAGED : still > pass / 2 ? Result.LEFT : Result.TOO_FAST;
    }

    /** Copies each slot whose version differs from the version of its copy. Returns false if a slot could not be copied. */
    private boolean copyChanged() {
        more = 0;
        high = Math.min(slots, view.high());
        for (int slot = 0; slot < high; slot++) {
            if (get(slot, VERSION) != view.version(slot) && !copySlot(slot)) {
                return false;
            }
        }
        return true;
    }

    /** Copies a slot. If a publisher has not finished a store, the copy has no value, because the message is still in the ring. */
    private boolean copySlot(int slot) {
        for (int attempt = 0; attempt < SLOT_TRIES; attempt++) {
            BoardView.Look look = view.look(slot, page(slot), placeOf(slot));
            long last = view.sequence;
            long unread = look == BoardView.Look.STORED ? 0 : 1;
            if (look == BoardView.Look.CHANGING) {
                // This message can be after the sequence that the caller has read. Earlier messages are left out of the merge.
                last = Math.max(last - 1, 0);
            } else if (look == BoardView.Look.BUSY) {
                // If the version has not changed, the unfinished store is of the key's first message after this sequence.
                last = view.through();
                if (view.version(slot) != view.version) {
                    continue;
                }
            }
            set(slot, VERSION, look == BoardView.Look.CHANGING ? CHANGED : view.version | unread);
            set(slot, SEQUENCE, last);
            set(slot, META, unread == 0 ? view.meta : BoardLayout.UNKNOWN);
            set(slot, TIME, view.time);
            set(slot, BORN, view.born);
            set(slot, FIRST, view.first);
            set(slot, SECOND, view.second);
            set(slot, COUNT, view.count() - unread);
            set(slot, LEFT_OUT, 0);
            set(slot, AGAIN, 0);
            set(slot, BEFORE_AGAIN, 0);
            return true;
        }
        return false;
    }

    /** Makes the index of all copies. Returns their highest sequence. */
    private long indexRows() {
        index.clear(most);
        long newest = 0;
        for (int row = 0; row < high; row++) {
            if (!hasKey(row)) {
                continue;
            }
            long sequence = get(row, SEQUENCE);
            newest = sequence < 0 ? Long.MAX_VALUE : Math.max(newest, sequence);
            int there = index.find(get(row, FIRST), get(row, SECOND));
            // A removed key came back in another slot. The two copies are from different times, and the older one does not count.
            if (there >= 0 && get(there, SEQUENCE) >= sequence) {
                clear(row);
                continue;
            }
            index.put(row);
            if (there >= 0) {
                clear(there);
            }
        }
        return newest;
    }

    /** Reads the messages of the ring before sequence {@code end}. Replaces the copies of their keys. */
    private Outcome merge(Ring ring, long end) {
        epoch = 0;
        while (ring.sequence < end) {
            long before = ring.position;
            Ring.Found found = ring.poll();
            if (found == Ring.Found.MESSAGE) {
                if (!take(ring.message)) {
                    return Outcome.OVERRUN;
                }
            } else if (found == Ring.Found.CORRUPT) {
                return Outcome.CORRUPT;
            } else if (ring.position == before) {
                return Outcome.OVERRUN; // the reader was overtaken, or the segment was replaced
            } else if (found == Ring.Found.EPOCH) {
                epoch = ring.a;
            }
        }
        return Outcome.FOUND;
    }

    /** Notes a message of the ring. Returns false if its key is new and there is no row for the key. */
    private boolean take(Message message) {
        if (message.length < layout.keyEnd) {
            return true;
        }
        int at = message.start + layout.keyStart;
        long first = layout.first(message.bytes, at);
        long second = layout.second(message.bytes, at);
        boolean isRemoval = layout.isRemoval(message.length, message.tag());
        int row = index.find(first, second);
        if (row < 0) {
            if (isRemoval) {
                return true; // the board does not know the key
            }
            row = slots + more;
            if (row >= most) {
                return false;
            }
            more++;
            index.put(row);
            clear(row);
            set(row, FIRST, first);
            set(row, SECOND, second);
            set(row, BORN, message.sequence);
        }
        if (message.sequence <= get(row, SEQUENCE)) {
            return true;
        }
        long meta = message.length | (long) message.tag() << 48;
        meta |= message.key ? BoardLayout.KEY : 0;
        meta |= isRemoval ? BoardLayout.REMOVED : 0;
        meta |= message.length > layout.value ? BoardLayout.TOO_LARGE : 0;
        if (isRemoved(row) && !isRemoval) {
            set(row, AGAIN, message.sequence);
            set(row, BEFORE_AGAIN, get(row, COUNT));
        }
        set(row, VERSION, TO_COPY); // the next join must copy the slot again
        set(row, COUNT, get(row, COUNT) + 1);
        set(row, SEQUENCE, message.sequence);
        set(row, TIME, message.time());
        set(row, META, meta);
        System.arraycopy(message.bytes, message.start, page(row), placeOf(row), layout.stored(meta));
        return true;
    }

    /** Leaves out slots with an unfinished store whose key had no message in the ring. Such slots were about to get another key. */
    private void dropUnresolved() {
        for (int row = 0; row < high; row++) {
            long version = get(row, VERSION);
            if ((version & 1) == 1 && version != TO_COPY) {
                clear(row);
            }
        }
    }

    /** Returns the number after the last row in use. Rows count from 0. */
    private int end() {
        return slots + more;
    }

    /** Returns the next row that has a key, from this row on, or -1. */
    int next(int row) {
        for (int at = row; at < end(); at++) {
            at = at == high ? Math.max(at, slots) : at;
            if (at < end() && hasKey(at)) {
                return at;
            }
        }
        return -1;
    }

    /**
     * Lists the messages with at least this sequence, in order. {@link #row} then returns them by number.
     *
     * @param hasRemovals whether the list includes messages that removed their key
     * @param hasParts whether the list includes messages that are incomplete
     */
    int list(long from, boolean hasRemovals, boolean hasParts) {
        listed = 0;
        notWhole = 0;
        for (int row = next(0); row >= 0; row = next(row + 1)) {
            long meta = get(row, META);
            if (get(row, SEQUENCE) < from || !hasRemovals && (meta & BoardLayout.REMOVED) != 0) {
                continue;
            }
            if (hasParts || BoardLayout.isWhole(meta)) {
                order[listed++] = row;
            } else {
                notWhole++;
            }
        }
        sort();
        return listed;
    }

    /** Makes a list with removals, like {@link #list}. Counts how many older messages each message of the list replaces. */
    int listSince(long from, Ledger ledger) {
        list(from, true, false);
        bridged = 0;
        for (int number = 0; number < listed; number++) {
            int row = order[number];
            long leftOut = Math.max(count(row) - ledger.given(get(row, FIRST), get(row, SECOND), born(row), count(row)) - 1, 0);
            set(row, LEFT_OUT, leftOut);
            bridged = Math.max(bridged + leftOut + 1, bridged); // a hostile board can have any counts
        }
        return listed;
    }

    /** Sorts the list in place by sequence. It is a heap sort, so no input makes it slow. */
    private void sort() {
        for (int root = listed / 2 - 1; root >= 0; root--) {
            sink(root, listed);
        }
        for (int end = listed - 1; end > 0; end--) {
            int newest = order[0];
            order[0] = order[end];
            order[end] = newest;
            sink(0, end);
        }
    }

    private void sink(int from, int end) {
        int root = from;
        int row = order[root];
        long sequence = get(row, SEQUENCE);
        for (int child = 2 * root + 1; child < end; child = 2 * root + 1) {
            if (child + 1 < end && get(order[child + 1], SEQUENCE) > get(order[child], SEQUENCE)) {
                child++;
            }
            if (get(order[child], SEQUENCE) <= sequence) {
                break;
            }
            order[root] = order[child];
            root = child;
        }
        order[root] = row;
    }

    /** Returns the row of a message of the last list, by the message's number. */
    int row(int number) {
        return order[number];
    }

    long first(int row) {
        return get(row, FIRST);
    }

    long second(int row) {
        return get(row, SECOND);
    }

    long born(int row) {
        return get(row, BORN);
    }

    long count(int row) {
        return get(row, COUNT);
    }

    /** Returns the sequence of the key's first message after a removal that the join read in the ring; 0 if there was none. */
    long again(int row) {
        return get(row, AGAIN);
    }

    /** Returns the number of the key's messages from {@link #again} on. */
    long countAgain(int row) {
        return count(row) - get(row, BEFORE_AGAIN);
    }

    long sequence(int row) {
        return get(row, SEQUENCE);
    }

    boolean isRemoved(int row) {
        return (get(row, META) & BoardLayout.REMOVED) != 0;
    }

    /** Whether the row is the copy of a slot. Otherwise only the ring had its key. */
    boolean isSlot(int row) {
        return row < slots;
    }

    boolean isWhole(int row) {
        return BoardLayout.isWhole(get(row, META));
    }

    boolean has(long first, long second) {
        return index.find(first, second) >= 0;
    }

    /** Lends out the message of a row. */
    void lend(int row, Message message) {
        long meta = get(row, META);
        message.bytes = page(row);
        message.start = placeOf(row);
        message.length = layout.stored(meta);
        message.sequence = get(row, SEQUENCE);
        message.meta = meta & 0xffff_0000_0000_0000L | get(row, TIME) & 0xffff_ffff_ffffL;
        message.key = (meta & BoardLayout.KEY) != 0;
        message.conflated = get(row, LEFT_OUT);
    }
}
