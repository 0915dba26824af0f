package shmcast;

import java.lang.invoke.VarHandle;

/**
 * Reads slots of a board by SPEC.md 8.3. Another program can write any word of a board. So slots and lengths are checked before use, and
 * each loop has a limit. The fields have the words of the last head that was read.
 */
final class BoardView {
    /** The result of reading a slot. */
    enum Look {
        /** The value is in the caller's array. */
        STORED,
        /**
         * The slot changes faster than its value can be copied. The head is complete, and belongs to a store that began during the call.
         */
        CHANGING,
        /** A publisher has not finished a store. The words can belong to different stores. */
        BUSY
    }

    /** The result of a search for a key. */
    enum Found {
        VALUE,
        NOTHING,
        /** A store to this key's slot is unfinished, so its newest message is in the ring. */
        BUSY
    }

    private static final int THROUGH = 16;
    private static final int SINCE = 32;
    private static final int HIGH = 33;
    private static final int LIVE = 34;
    private static final int REFUSED = 35;
    private static final int TOO_LARGE = 36;
    private static final int NO_KEY = 37;
    private static final int FORGOTTEN = 38;
    private static final int INDEX = 39;

    private static final int LOOKS = 256;
    private static final int COPIES = 16;
    /**
     * The number of failed readings that one search or join allows. A writer makes only one store at a time, so a valid board never reaches
     * this limit.
     */
    private static final int PATIENCE = 1 << 18;
    /** The number of failed readings that a search for a slot's first message allows. */
    private static final int BORN_PATIENCE = 1 << 12;
    /**
     * The number of entries with the same fingerprint that are checked. Of 2^24 keys, two have the same fingerprint in less than one of 2^8
     * boards.
     */
    private static final int CANDIDATES = 64;

    final BoardLayout layout;
    private final Memory board;
    private int patience = PATIENCE;

    long version;
    long sequence;
    long base;
    long meta;
    long time;
    long born;
    long first;
    long second;

    BoardView(BoardLayout layout, Memory board) {
        this.layout = layout;
        this.board = board;
    }

    void close() {
        board.close();
    }

    private long word(int number) {
        return board.word(8L * number);
    }

    /** Returns the sequence up to which the board has all messages. Later readings of slots come after this load. */
    long through() {
        long through = word(THROUGH);
        VarHandle.acquireFence(); // SYNC through
        return through;
    }

    BoardCounters counters() {
        long keys = word(LIVE);
        long live = Long.compareUnsigned(keys, layout.keys) > 0 ? layout.keys : keys;
        return new BoardCounters(through(), word(SINCE), live, word(REFUSED), word(TOO_LARGE), word(NO_KEY));
    }

    /** Returns the highest sequence of a removal that the board no longer has. */
    long forgotten() {
        return word(FORGOTTEN);
    }

    /** Returns the number of slots that were ever used. */
    int high() {
        long high = word(HIGH);
        return Long.compareUnsigned(high, layout.keys) > 0 ? layout.keys : (int) high;
    }

    /** Returns a slot's version. This load has no order with other loads. */
    long version(int slot) {
        return board.word(headAt(slot));
    }

    private long headAt(int slot) {
        return layout.headsAt() + (long) BoardLayout.HEAD * slot;
    }

    /** Begins a search or a join, which again allows all failed readings. */
    void renewPatience() {
        patience = PATIENCE;
    }

    /** Returns the number of messages of the head's key, including the message that the head names. */
    long count() {
        return (version >>> 1) + (version & 1) - base;
    }

    private void load(long at) {
        sequence = board.word(at + 8);
        base = board.word(at + 16);
        meta = board.word(at + 24);
        time = board.word(at + 32);
        born = board.word(at + 40);
        first = board.word(at + 48);
        second = board.word(at + 56);
    }

    /**
     * Copies a slot's head into the fields, and its value into an array. The array must have room for a stride at this place. If the array
     * is null, copies no value.
     */
    Look look(int slot, byte[] to, int place) {
        long at = headAt(slot);
        long value = layout.valuesAt() + (long) layout.stride * slot;
        long before = 0;
        boolean isFirst = true;
        int copies = 0;
        long busy = 0;
        for (int looks = 0; looks < LOOKS && (looks == 0 || patience > 0); looks++) {
            version = board.word(at);
            VarHandle.acquireFence(); // SYNC stored
            if ((version & 1) != 0) {
                busy = version;
                patience--;
                Thread.onSpinWait();
                continue;
            }
            load(at);
            boolean beganBefore = isFirst || before == version;
            if (isFirst) {
                before = version;
                isFirst = false;
            }
            boolean isWhole = !beganBefore && isUnchanged(at);
            if (to != null) {
                board.copyTo(value, to, place, layout.stored(meta));
            }
            if (isUnchanged(at)) {
                return Look.STORED;
            }
            patience--;
            copies++;
            if (isWhole && copies >= COPIES) {
                return Look.CHANGING;
            }
        }
        // Another key might be about to get the slot. The publisher stores this key's words after the base for the count of its messages.
        long named = board.word(at + 48);
        long rest = board.word(at + 56);
        VarHandle.acquireFence(); // SYNC named
        load(at);
        version = busy | 1;
        first = named;
        second = rest;
        return Look.BUSY;
    }

    private boolean isUnchanged(long at) {
        VarHandle.acquireFence(); // SYNC store
        return board.word(at) == version;
    }

    /** Whether the board has refused a message, because there was no room for its key. */
    boolean hasRefused() {
        return word(REFUSED) != 0;
    }

    /** Returns the sequence from which on the board is complete. */
    long since() {
        return word(SINCE);
    }

    /**
     * Returns the sequence of a key's first message since it got its slot, even if the key was removed since then. Returns 0 if no slot has
     * the key, and -1 if the answer is not known, for example during a store. The number of loads is small for any board.
     */
    long bornOf(long wanted, long rest) {
        patience = BORN_PATIENCE;
        int fingerprint = layout.fingerprint(wanted, rest);
        for (int looks = 0; looks < COPIES && patience > 0; looks++) {
            long moves = word(INDEX);
            VarHandle.acquireFence(); // SYNC moved
            Found found = search(fingerprint, wanted, rest, null);
            if (found != null) {
                return found == Found.BUSY ? -1 : born; // a removed key still has its slot
            }
            VarHandle.acquireFence(); // SYNC moved
            if ((moves & 1) == 0 && word(INDEX) == moves) {
                return patience > 0 ? 0 : -1;
            }
        }
        return -1;
    }

    /** Searches for a key, and copies its value to the start of an array that has room for a stride. */
    Found get(long wanted, long rest, byte[] to) {
        renewPatience();
        int fingerprint = layout.fingerprint(wanted, rest);
        for (int looks = 0; looks < LOOKS && patience > 0; looks++) {
            long moves = word(INDEX);
            VarHandle.acquireFence(); // SYNC moved
            Found found = search(fingerprint, wanted, rest, to);
            if (found != null) {
                return found;
            }
            VarHandle.acquireFence(); // SYNC moved
            if ((moves & 1) == 0 && word(INDEX) == moves) {
                return Found.NOTHING;
            }
        }
        // The index is being changed, or its publisher died during a change. So the heads of all slots are searched.
        int high = high();
        for (int slot = 0; slot < high; slot++) {
            Found found = inSlot(slot, wanted, rest, to);
            if (found != null) {
                return found;
            }
        }
        return Found.NOTHING;
    }

    private Found search(int fingerprint, long wanted, long rest, byte[] to) {
        int candidates = 0;
        for (long step = 0; step < layout.entries && candidates < CANDIDATES && patience > 0; step++) {
            long entry = board.word(BoardLayout.HEADER + 8 * ((fingerprint & 0xffff_ffffL) + step & layout.entries - 1));
            if ((int) entry == 0) {
                return null;
            }
            if (step >= CANDIDATES) {
                patience--; // such a long run is unlikely. In a hostile board it can be the whole index
            }
            if ((int) (entry >>> 32) == fingerprint) {
                candidates++;
                long slot = (entry & 0xffff_ffffL) - 1;
                Found found = slot < layout.keys ? inSlot((int) slot, wanted, rest, to) : null;
                if (found != null) {
                    return found;
                }
            }
        }
        return null;
    }

    /** Reads a slot for a key. Returns null if the slot belongs to another key. */
    private Found inSlot(int slot, long wanted, long rest, byte[] to) {
        long at = headAt(slot);
        if (board.word(at + 48) != wanted || board.word(at + 56) != rest) {
            return null; // if the slot is given to this key now, the board does not count its message yet
        }
        Look look = look(slot, to, 0);
        if (first != wanted || second != rest) {
            return null;
        }
        if (look != Look.STORED) {
            return Found.BUSY;
        }
        if ((meta & BoardLayout.EMPTY) != 0) {
            return null;
        }
        return version != 0 && (meta & BoardLayout.REMOVED) == 0 ? Found.VALUE : Found.NOTHING;
    }
}
