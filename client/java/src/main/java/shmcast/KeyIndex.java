package shmcast;

import java.util.Arrays;
import java.util.concurrent.ThreadLocalRandom;

/**
 * A reader's own index from the words of keys to numbers of rows. It uses open addressing, and is at most half full. Its hash has a secret
 * value, so that nobody can choose keys that collide.
 */
final class KeyIndex {
    /** The rows, which have the two words of their keys. */
    interface Rows {
        boolean isOf(int row, long first, long second);
    }

    private final long secret = ThreadLocalRandom.current().nextLong();
    private final Rows rows;
    private int[] places;
    private int place;

    KeyIndex(Rows rows, int most) {
        this.rows = rows;
        places = new int[room(most)];
    }

    private static int room(int most) {
        return Integer.highestOneBit(Math.max(2 * most - 1, 1)) << 1;
    }

    /** Removes all rows, and makes room for {@code most} rows. */
    void clear(int most) {
        if (room(most) > places.length) {
            places = new int[room(most)];
        } else {
            Arrays.fill(places, 0);
        }
    }

    /** Returns the row of a key, or -1. A call of {@link #put} can follow. */
    int find(long first, long second) {
        int mask = places.length - 1;
        place = (int) (BoardLayout.mix(BoardLayout.mix(secret, first), second) >>> 32) & mask;
        while (places[place] != 0) {
            int row = places[place] - 1;
            if (rows.isOf(row, first, second)) {
                return row;
            }
            place = place + 1 & mask;
        }
        return -1;
    }

    /** Assigns a row to the key of the last {@link #find}. */
    void put(int row) {
        places[place] = row + 1;
    }
}
