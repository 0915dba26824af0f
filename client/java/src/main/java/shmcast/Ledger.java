package shmcast;

import java.util.Arrays;

/**
 * How many messages of each key a conflating reader was given. The board counts the messages of each key. The difference is what was left out.
 * Memory is allocated when the reader opens, and again where the number of keys grows beyond.
 */
final class Ledger {
    private static final int FIRST = 0;
    private static final int SECOND = 1;
    /** The sequence of the key's first message since it got its slot. */
    private static final int BORN = 2;
    /** How many of its messages from there on the reader was given, or told to be left out. */
    private static final int GIVEN = 3;
    /** The first message behind the last removal: the board may have forgotten the key there. */
    private static final int AGAIN = 4;
    /** As {@link #GIVEN}, from {@link #AGAIN} on. */
    private static final int GIVEN_AGAIN = 5;

    private static final int IS_REMOVED = 6;
    /** The last of its messages that the reader was given, or that was told as left out. */
    private static final int LAST = 7;

    private static final int WORDS = 8;
    private static final int FIRST_ROOM = 1 << 14;

    private final int most;
    private final int keyBytes;
    private final KeyIndex index;
    private long[] rows;
    private byte[] keys;
    private int count;
    /** The next row to look at for keys that the board has forgotten. */
    private int forgotten;

    /** A ledger for twice as many keys as a copy of the board can have. */
    Ledger(Snapshot snapshot) {
        keyBytes = snapshot.layout.keyBytes();
        most = (int) Math.min(2L * snapshot.most(), Integer.MAX_VALUE / 2 / Math.max(keyBytes, WORDS));
        int room = Math.min(most, FIRST_ROOM);
        rows = new long[room * WORDS];
        keys = new byte[room * keyBytes];
        index = new KeyIndex(this::isOf, room);
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

    /** Notes a message that the reader received from the ring. Returns false if there is no room for its key. */
    boolean note(BoardLayout layout, Message message) {
        if (message.length < layout.keyEnd) {
            return true;
        }
        int at = message.start + layout.keyStart;
        long first = layout.first(message.bytes, at);
        long second = layout.second(message.bytes, at);
        boolean isRemoval = layout.isRemoval(message.length, message.tag());
        int row = index.find(first, second);
        if (row < 0) {
            // The board does not have a key whose first message removes it.
            return isRemoval || add(first, second, message.sequence, 1, message.sequence, false, message.bytes, at);
        }
        if (message.sequence < get(row, BORN)) {
            return true; // the board does not count it
        }
        set(row, GIVEN, get(row, GIVEN) + 1);
        set(row, LAST, message.sequence);
        if (get(row, IS_REMOVED) != 0 && !isRemoval) {
            set(row, AGAIN, message.sequence);
            set(row, GIVEN_AGAIN, 0);
        }
        set(row, GIVEN_AGAIN, get(row, GIVEN_AGAIN) + 1);
        set(row, IS_REMOVED, isRemoval ? 1 : 0);
        return true;
    }

    private boolean add(long first, long second, long born, long given, long last, boolean isRemoved, byte[] bytes, int at) {
        if (count == most) {
            return false;
        }
        if ((count + 1) * WORDS > rows.length) {
            grow();
            index.find(first, second);
        }
        int row = count++;
        set(row, FIRST, first);
        set(row, SECOND, second);
        set(row, BORN, born);
        set(row, GIVEN, given);
        set(row, AGAIN, born);
        set(row, GIVEN_AGAIN, given);
        set(row, LAST, last);
        set(row, IS_REMOVED, isRemoved ? 1 : 0);
        System.arraycopy(bytes, at, keys, row * keyBytes, keyBytes);
        index.put(row);
        return true;
    }

    private void grow() {
        int room = (int) Math.min(2L * count, most);
        rows = Arrays.copyOf(rows, room * WORDS);
        keys = Arrays.copyOf(keys, room * keyBytes);
        index.clear(room);
        for (int row = 0; row < count; row++) {
            index.find(get(row, FIRST), get(row, SECOND));
            index.put(row);
        }
    }

    /** How many messages of a key the reader was given or told of, as the board counts them, which has the key since {@code born}. */
    long given(long first, long second, long born) {
        int row = index.find(first, second);
        if (row < 0) {
            return 0;
        }
        if (get(row, BORN) == born) {
            return get(row, GIVEN);
        }
        // Or the board forgot the key, and it came back among the messages that were left out.
        return get(row, AGAIN) == born ? get(row, GIVEN_AGAIN) : 0;
    }

    /** Begins the search for keys that the board has forgotten. */
    void seekForgotten() {
        forgotten = 0;
    }

    /** Makes the removal of the next key that the reader knows and the board has forgotten: the key, and zeros before it. */
    boolean nextForgotten(Snapshot snapshot, Message message) {
        BoardLayout layout = snapshot.layout;
        long removal = snapshot.view.forgotten();
        while (forgotten < count) {
            int row = forgotten++;
            // A key that never found room on the board is not there either. It was not removed if no removal was forgotten since its last message.
            if (get(row, IS_REMOVED) != 0 || removal <= get(row, LAST) || snapshot.has(get(row, FIRST), get(row, SECOND))) {
                continue;
            }
            message.bytes = message.own;
            message.start = 0;
            message.length = layout.keyEnd;
            Arrays.fill(message.own, 0, layout.keyStart, (byte) 0);
            System.arraycopy(keys, row * keyBytes, message.own, layout.keyStart, keyBytes);
            message.sequence = removal;
            message.meta = (long) Math.max(layout.removeTag, 0) << 48;
            message.key = false;
            message.conflated = 0;
            return true;
        }
        return false;
    }

    /** Forgets all keys. */
    void forget() {
        count = 0;
        index.clear(rows.length / WORDS);
    }

    /** Identifies all keys anew: each segment has a seed of its own. */
    void rekey(BoardLayout layout) {
        index.clear(rows.length / WORDS);
        for (int row = 0; row < count; row++) {
            set(row, FIRST, layout.first(keys, row * keyBytes));
            set(row, SECOND, layout.second(keys, row * keyBytes));
            index.find(get(row, FIRST), get(row, SECOND));
            index.put(row);
        }
    }

    /** Takes over the counts that a reader knows behind a join. */
    void takeFrom(Snapshot snapshot) {
        forget();
        int keyStart = snapshot.layout.keyStart;
        for (int row = snapshot.next(0); row >= 0; row = snapshot.next(row + 1)) {
            long first = snapshot.first(row);
            long second = snapshot.second(row);
            if (index.find(first, second) < 0) {
                int at = snapshot.placeOf(row) + keyStart;
                add(first, second, snapshot.born(row), snapshot.count(row), snapshot.sequence(row), snapshot.isRemoved(row), snapshot.page(row), at);
            }
        }
    }
}
