package shmcast.peers;

import org.agrona.DirectBuffer;
import org.agrona.MutableDirectBuffer;

/** The rig's messages: number, stamp, both of them mixed, and one of 13 bodies. The bench's {@code payload.rs} has their form. */
final class Messages {
    private static final long STEP = 0x9e37_79b9_7f4a_7c15L;
    private static final int BODIES = 13;
    private static final int HEAD_WORDS = 3;

    private final int size;
    private final long[][] bodies;

    Messages(int size) {
        if (size < 8 * HEAD_WORDS || size % 8 != 0) {
            throw new IllegalArgumentException(size + " B: a size here is a multiple of 8, and at least 24");
        }
        this.size = size;
        bodies = new long[BODIES][size / 8];
        for (int body = 0; body < BODIES; body++) {
            for (int word = 0; word < size / 8; word++) {
                bodies[body][word] = (word + 1) * STEP ^ body * 0x0101_0101_0101_0101L;
            }
        }
    }

    int size() {
        return size;
    }

    void write(MutableDirectBuffer to, int at, long sequence, long sent) {
        long[] body = bodies[(int) (sequence % BODIES)];
        to.putLong(at, sequence);
        to.putLong(at + 8, sent);
        to.putLong(at + 16, mixed(sequence, sent));
        for (int word = HEAD_WORDS; word < body.length; word++) {
            to.putLong(at + 8 * word, body[word]);
        }
    }

    /** Whether every byte is right. */
    boolean isRight(DirectBuffer from, int at, int length) {
        if (length != size) {
            return false;
        }
        long sequence = from.getLong(at);
        long[] body = bodies[(int) Long.remainderUnsigned(sequence, BODIES)];
        long wrong = from.getLong(at + 16) ^ mixed(sequence, from.getLong(at + 8));
        for (int word = HEAD_WORDS; word < body.length; word++) {
            wrong |= from.getLong(at + 8 * word) ^ body[word];
        }
        return wrong == 0;
    }

    private static long mixed(long sequence, long sent) {
        return (sequence ^ Long.rotateLeft(sent, 32)) * STEP;
    }
}
