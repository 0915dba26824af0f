package shmcast;

import java.util.regex.Pattern;
import shmcast.ShmcastException.Code;

/** A gate that this reader holds (SPEC.md 4.3). It needs Java 22 or newer, because Java 17 cannot lock the gate's file. */
abstract class HeldGate {
    static final int BYTES = 4096;
    static final long MAGIC = 0x3145_5441_474d_4853L;
    static final int POSITION = 16;
    static final int CHECK = 17;
    static final int SEQUENCE = 18;
    static final int PROCESS = 19;
    /** The value in {@link #SEQUENCE} while the reader has no place in the ring. */
    private static final long NO_SEQUENCE = -1;

    private static final Pattern NAME = Pattern.compile("[A-Za-z0-9_:@+][A-Za-z0-9._:@+-]{0,30}");

    private long high;
    private long low;
    private long position;
    /** The name of the page, or null in a daemon's channel. */
    private Name page;
    private long lookedAt = System.nanoTime();
    private boolean isLost;

    static void check(String name) throws ShmcastException {
        if (!NAME.matcher(name).matches()) {
            throw new ShmcastException(
                    Code.GATE, "'" + name + "' cannot be a gate's name: 1 to 31 of A-Z a-z 0-9 . _ - : @ +, and none of . - first");
        }
    }

    /** Stores a word of the page, after all earlier loads and stores. */
    abstract void store(int word, long value);

    /** Frees the gate. */
    abstract void close();

    /** Whether the page has no name any more. */
    abstract boolean isRemoved();

    /** Sets the name of the page in a channel that is a file. */
    void named(Name name) {
        page = name;
    }

    /**
     * Whether the name of the page no longer leads to the page, so that the next publisher does not wait for this reader. If {@code isTime},
     * the name is checked again, but at most once a second.
     */
    boolean isLost(boolean isTime) {
        long now;
        if (isTime && (now = System.nanoTime()) - lookedAt >= Name.PAUSE) {
            lookedAt = now;
            isLost = isRemoved();
        }
        return isLost || page != null && page.isLost(isTime);
    }

    /**
     * Continues in another segment. The reader's position counts only after the next {@link #passed}. If the reader had a place in the
     * ring, it needs the whole new segment, and the page keeps its sequence.
     */
    void goOn(Header header) {
        invalidate();
        high = header.uuidHigh();
        low = header.uuidLow();
    }

    /** Stores that the reader needs nothing before this place: it has copied everything there, or will never copy it. */
    void passed(long position, long sequence) {
        this.position = position;
        store(SEQUENCE, sequence);
        store(POSITION, position);
        store(CHECK, checkOf(position));
    }

    /** Stores that the reader has no place in any ring. */
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
