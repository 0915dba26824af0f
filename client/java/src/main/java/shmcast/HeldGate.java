package shmcast;

import java.util.regex.Pattern;
import shmcast.ShmcastException.Code;

/** A gate that this reader holds (SPEC.md 4.3). Java 22 and newer have one: Java 17 cannot take its lock. */
abstract class HeldGate {
    static final int BYTES = 4096;
    static final long MAGIC = 0x3145_5441_474d_4853L;
    static final int POSITION = 16;
    static final int CHECK = 17;
    static final int SEQUENCE = 18;
    static final int PROCESS = 19;
    /** Stands in {@link #SEQUENCE} while the reader has no place in the ring. */
    private static final long NO_SEQUENCE = -1;

    private static final Pattern NAME = Pattern.compile("[A-Za-z0-9_:@+][A-Za-z0-9._:@+-]{0,30}");

    private long high;
    private long low;
    private long position;

    static void check(String name) throws ShmcastException {
        if (!NAME.matcher(name).matches()) {
            throw new ShmcastException(
                    Code.GATE, "'" + name + "' cannot be a gate's name: 1 to 31 of A-Z a-z 0-9 . _ - : @ +, and none of . - first");
        }
    }

    /** Stores a word of the page, behind all loads and stores before it. */
    abstract void store(int word, long value);

    /** Frees the gate. */
    abstract void close();

    /**
     * Goes on in a segment, in which nothing counts before the next {@link #passed}. If the reader had a place, it needs all of that segment, and the
     * page keeps its sequence.
     */
    void goOn(Header header) {
        invalidate();
        high = header.uuidHigh();
        low = header.uuidLow();
    }

    /** Says that everything before a place was copied, or will never be. */
    void passed(long position, long sequence) {
        this.position = position;
        store(SEQUENCE, sequence);
        store(POSITION, position);
        store(CHECK, checkOf(position));
    }

    /** Says that the reader has no place in the ring, whichever ring it reads. */
    void leave() {
        store(SEQUENCE, NO_SEQUENCE);
        invalidate();
    }

    private void invalidate() {
        store(CHECK, ~checkOf(position));
    }

    private long checkOf(long position) {
        return (position ^ low) * 0x9e37_79b9_7f4a_7c15L ^ high;
    }
}
