package shmcast;

import java.util.Arrays;

/**
 * Counts how many messages of each key a conflating reader received. The board also counts the messages of each key. The difference is the
 * number of skipped messages.
 *
 * <p>A full board refuses the messages of new keys, and does not count them. So if a board has refused messages, the ledger looks up the
 * slot of each new key at every message. The slot names the message from which the board counts.
 *
 * <p>Memory is allocated when the reader opens, and again if there are more keys.
 */
final class Ledger {
    private static final int FIRST = 0;
    private static final int SECOND = 1;
    /** The sequence of the key's first message since the key got its slot; 0 if the board does not count the key's messages. */
    private static final int BORN = 2;
    /** The number of the key's messages from {@link #BORN} on that the reader received, or that were reported to it as skipped. */
    private static final int GIVEN = 3;
    /** The key's first message after its last removal. The board might have forgotten the key before this message. */
    private static final int AGAIN = 4;
    /** Like {@link #GIVEN}, but counted from {@link #AGAIN} on. */
    private static final int GIVEN_AGAIN = 5;

    private static final int IS_REMOVED = 6;
    /** The key's last message that the reader received, or that was reported to it as skipped. */
    private static final int LAST = 7;

    /** 1 if the board certainly had the key at the key's last message. */
    private static final int IS_THERE = 8;

    private static final int WORDS = 9;
    private static final int FIRST_ROOM = 1 << 14;

    private int most;
    private final int keyBytes;
    private final KeyIndex index;
    private long[] rows;
    private byte[] keys;
    private int count;
    /** The next row for the search for keys that the board has forgotten. */
    private int forgotten;
    /** The highest sequence of a removal that the board had forgotten at the last join. */
    private long forgottenUpTo;
    /** Whether each key that this reader knows was on the board at the last join. */
    private boolean hadAll;
    /** Whether a loss was reported to the reader since the last join. The board has counted the lost messages, and the ledger has not. */
    private boolean hasLost;
    /** Whether the reader has not joined the present segment's board yet. It is then not known which messages an earlier board refused. */
    private boolean hasMoved;

    /** Makes a ledger for twice as many keys as a copy of the board can have. */
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
    boolean note(BoardView board, Message message) {
        BoardLayout layout = board.layout;
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
                return true; // the board did not have the key
            }
            if (!add(first, second, message.sequence, 1, message.sequence, false, false, message.bytes, at)) {
                return false;
            }
            locate(board, count - 1);
            return true;
        }
        if (get(row, IS_REMOVED) != 0 && !isRemoval) {
            set(row, AGAIN, message.sequence);
            set(row, GIVEN_AGAIN, 0);
            set(row, IS_THERE, 0);
        }
        set(row, LAST, message.sequence);
        set(row, IS_REMOVED, isRemoval ? 1 : 0);
        set(row, GIVEN, get(row, GIVEN) + 1);
        set(row, GIVEN_AGAIN, get(row, GIVEN_AGAIN) + 1);
        if (get(row, IS_THERE) == 0) {
            locate(board, row);
        }
        return true;
    }

    /** Whether the board might have had no room for a message that this reader received. */
    private boolean mayRefuse(BoardView board) {
        return hasMoved || board.hasRefused();
    }

    /** Finds the message from which the board counts the messages of a key. The key's last message is already counted here. */
    private void locate(BoardView board, int row) {
        long last = get(row, LAST);
        long through = board.through();
        if (!mayRefuse(board)) {
            // The board had room for every message that was posted to it.
            set(row, IS_THERE, get(row, AGAIN) != last || through >= last ? 1 : 0);
            return;
        }
        long born = board.bornOf(get(row, FIRST), get(row, SECOND));
        if (born < 0) {
            if (get(row, BORN) == 0) {
                count(row, last, 1);
            }
        } else if (born != 0 && (born == get(row, BORN) || born == get(row, AGAIN))) {
            set(row, IS_THERE, 1);
        } else if (born == last) {
            count(row, last, 1);
            set(row, IS_THERE, 1);
        } else if (born == 0 && through < last) {
            count(row, last, 1); // the board does not have the message yet, and can still refuse it
        } else {
            count(row, 0, 0); // the board refused the message, or has since forgotten the key
        }
    }

    private void count(int row, long born, long given) {
        set(row, BORN, born);
        set(row, GIVEN, given);
        set(row, AGAIN, born);
        set(row, GIVEN_AGAIN, given);
    }

    private boolean add(long first, long second, long born, long given, long last, boolean isRemoved, boolean isThere, byte[] bytes, int at) {
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
        count(row, born, given);
        set(row, LAST, last);
        set(row, IS_REMOVED, isRemoved ? 1 : 0);
        set(row, IS_THERE, isThere ? 1 : 0);
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

    /**
     * Returns the number of messages of a key that the reader received, or that were reported to it as skipped. Counts from {@code born},
     * as the board does. After a loss, no message counts as skipped in favor of a newer one: the caller counts the skipped ones as lost.
     */
    long given(long first, long second, long born, long counted) {
        if (hasLost) {
            return counted - 1;
        }
        int row = index.find(first, second);
        if (row < 0) {
            return 0;
        }
        if (get(row, BORN) == born) {
            return get(row, GIVEN);
        }
        // In the other case, the board forgot the key, and the key came back in a message that was skipped.
        return get(row, AGAIN) == born ? get(row, GIVEN_AGAIN) : 0;
    }

    /** Notes that a loss was reported to the reader. */
    void noteLoss() {
        hasLost = true;
    }

    /**
     * Begins the search for keys that the board has forgotten. Call it after a join and before the verdict on the join.
     *
     * @param place the sequence after the join
     */
    void seekForgotten(BoardView board, long place) {
        forgotten = 0;
        forgottenUpTo = Math.min(board.forgotten(), place - 1);
        hadAll = !mayRefuse(board);
    }

    /**
     * Makes a message that removes the next key that the reader knows and the board has forgotten. The payload is the key with zeros before
     * it.
     */
    boolean nextForgotten(Snapshot snapshot, Message message) {
        BoardLayout layout = snapshot.layout;
        while (forgotten < count) {
            int row = forgotten++;
            // A key that never had room on the board is not on it, but was not removed.
            boolean wasThere = get(row, IS_THERE) != 0 || hadAll;
            if (!wasThere || get(row, IS_REMOVED) != 0 || forgottenUpTo <= get(row, LAST) || snapshot.has(get(row, FIRST), get(row, SECOND))) {
                continue;
            }
            message.bytes = message.own;
            message.start = 0;
            message.length = layout.keyEnd;
            Arrays.fill(message.own, 0, layout.keyStart, (byte) 0);
            System.arraycopy(keys, row * keyBytes, message.own, layout.keyStart, keyBytes);
            message.sequence = forgottenUpTo;
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
        hasLost = false;
        index.clear(rows.length / WORDS);
    }

    /**
     * Takes over the counts for the board of the segment in which the channel continues. All rows are made again, because each segment has
     * its own seed, and its board can have another size.
     */
    void takeOver(Ledger old, BoardLayout was, BoardView now) {
        most = Math.max(most, old.count);
        hasMoved = true;
        hasLost = old.hasLost;
        long since = now.since();
        for (int row = 0; row < old.count; row++) {
            int at = row * keyBytes;
            long first = now.layout.first(old.keys, at);
            long second = now.layout.second(old.keys, at);
            if (index.find(first, second) >= 0) {
                continue;
            }
            // A smaller board might have had no room for the key. A board that lacks earlier messages might lack the key.
            boolean isThere = old.get(row, IS_THERE) != 0 && now.layout.keys >= was.keys && old.get(row, LAST) >= since;
            boolean isRemoved = old.get(row, IS_REMOVED) != 0;
            add(first, second, old.get(row, BORN), old.get(row, GIVEN), old.get(row, LAST), isRemoved, isThere, old.keys, at);
            set(count - 1, AGAIN, old.get(row, AGAIN));
            set(count - 1, GIVEN_AGAIN, old.get(row, GIVEN_AGAIN));
        }
    }

    /** Notes that the channel continues in a segment whose board the reader has not joined yet. */
    void move() {
        hasMoved = true;
    }

    /** Takes over the counts of the board after a join. */
    void takeFrom(Snapshot snapshot) {
        forget();
        hasMoved = false;
        int keyStart = snapshot.layout.keyStart;
        for (int row = snapshot.next(0); row >= 0; row = snapshot.next(row + 1)) {
            long first = snapshot.first(row);
            long second = snapshot.second(row);
            if (index.find(first, second) < 0) {
                int at = snapshot.placeOf(row) + keyStart;
                // The board had the key before its removal, and might have had no slot for it when it came back.
                boolean isThere = snapshot.isSlot(row) && snapshot.again(row) == 0;
                add(first, second, snapshot.born(row), snapshot.count(row), snapshot.sequence(row), snapshot.isRemoved(row), isThere, snapshot.page(row), at);
                if (snapshot.again(row) != 0) {
                    set(count - 1, AGAIN, snapshot.again(row));
                    set(count - 1, GIVEN_AGAIN, snapshot.countAgain(row));
                }
            }
        }
    }
}
