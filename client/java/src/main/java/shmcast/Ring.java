package shmcast;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;

/** Reads records by SPEC.md 3.1 to 3.3. Another program can write any word of the segment, so each word is checked before use. */
final class Ring {
    /** The result of a poll. */
    enum Found {
        NOTHING,
        MESSAGE,
        EPOCH,
        END,
        GAP,
        SESSION,
        LAPPED,
        SUPERSEDED,
        CORRUPT
    }

    private static final VarHandle LONG = MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);
    /** The greatest number of bytes in a run: records that are copied together. */
    private static final int RUN = 4096;
    /** The greatest number of messages in a run. */
    private static final int RUN_MESSAGES = RUN / Header.GRANULE;
    /** The position while there is no run. */
    private static final long NO_RUN = -RUN;
    /** If this many messages were available one after another, the reader is behind. */
    private static final int FAR = 8;

    static final long EPOCH = 1;
    static final long END = 2;
    static final long GAP = 3;
    static final long SESSION = 4;

    final Segment segment;
    final Message message;
    private final long mask;
    long position;
    long sequence;
    /** The first words of the control record that was found. */
    long a;

    long b;
    private int empties;
    /** A run: copies of records that were checked together, and the position of the first record. Later polls also use the run. */
    private final byte[] run = new byte[RUN];

    private long runFrom = NO_RUN;
    /** Whether records are copied in runs if the reader is behind. */
    private final boolean copiesRuns;
    /** The number of messages since a poll found nothing, or since no run could be copied. */
    private int inARow;
    /** The last count of messages that was read from the segment. */
    private long counted;
    private boolean isEnded;
    private boolean isAgain;

    Ring(Segment segment, boolean copiesRuns) {
        this.segment = segment;
        this.copiesRuns = copiesRuns;
        mask = segment.capacity - 1;
        message = new Message(segment.maxMessage);
    }

    static boolean isGap(long from, long to) {
        return from >= 0 && from <= to && to < Segment.MAX_SEQUENCE;
    }

    /** Whether the end was reported, and nothing has come after it. */
    boolean isEnded() {
        return isEnded;
    }

    /** Returns the number of messages that are published and not yet received. It can be up to 64 too low. */
    long lag() {
        long count = Math.min(segment.word(Segment.COUNT), Segment.MAX_SEQUENCE);
        return Math.max(count + 1 - sequence, 0);
    }

    /** Whether the reader is more than half of the ring behind. */
    boolean isFarBehind() {
        return segment.word(Segment.FRONTIER) - position > segment.capacity / 2;
    }

    /** Returns the number of bytes up to the frontier. The frontier is at most a chunk and some granules beyond the newest message. */
    long bytesBehind() {
        return segment.word(Segment.FRONTIER) - position;
    }

    /** Makes the next poll that finds nothing also check the state. */
    void lookNext() {
        empties = 63;
    }

    /** Whether the last empty poll checked the state. */
    boolean hasLooked() {
        return empties % 64 == 0;
    }

    /** Continues at another place. */
    void jump(long position, long sequence) {
        this.position = position;
        this.sequence = sequence;
        runFrom = NO_RUN;
        isEnded = false;
    }

    /** Searches for the next record. */
    Found poll() {
        if (nextOfRun() || inARow >= FAR && takeRun() && nextOfRun()) {
            return Found.MESSAGE;
        }
        runFrom = NO_RUN; // copies after a record that is not a message do not count
        isAgain = false;
        Found found = pollOnce();
        return isAgain ? pollOnce() : found;
    }

    private Found pollOnce() {
        long offset = position & mask;
        long w = segment.data(offset);
        if (w == 0) {
            inARow = 0;
            return ++empties % 64 == 0 ? look() : Found.NOTHING;
        }
        VarHandle.acquireFence(); // SYNC commit
        if ((w & (Segment.PAD | Segment.CONTROL)) != 0) {
            return pollSpecial(w, offset);
        }
        boolean isPlausible = segment.isPlausible(w, sequence, segment.capacity - offset);
        long meta = 0;
        int length = (int) Segment.length(w);
        if (isPlausible) {
            meta = segment.data(offset + 8);
            segment.copy(offset + 16, message.own, length);
        }
        VarHandle.acquireFence(); // SYNC window
        long n = Segment.bytes(w);
        long ahead = segment.word(Segment.FRONTIER) - position;
        if (ahead < n || ahead > segment.capacity || !isPlausible) {
            return outside(ahead);
        }
        lend(message.own, 0, w, meta);
        if (copiesRuns) {
            inARow++;
        }
        return Found.MESSAGE;
    }

    /** Lends out a message whose payload is available, and continues after it. */
    private void lend(byte[] bytes, int start, long w, long meta) {
        Message message = this.message;
        if (message.bytes != bytes) {
            message.bytes = bytes; // storing a reference costs more than reading it
        }
        message.start = start;
        message.length = (int) Segment.length(w);
        message.sequence = sequence;
        message.meta = meta;
        message.key = (w & Segment.KEY_FLAG) != 0;
        position += Segment.bytes(w);
        sequence++;
    }

    /** Copies a run of records, if enough messages are available and the last message was small (SPEC.md 3.1, several at once). */
    private boolean takeRun() {
        inARow = 0;
        long offset = position & mask;
        if (message.length > RUN / 8 || offset + RUN > segment.capacity) {
            return false;
        }
        if (counted + 1 - sequence < RUN_MESSAGES) {
            counted = Math.min(segment.word(Segment.COUNT), Segment.MAX_SEQUENCE);
            VarHandle.acquireFence(); // SYNC lazy
            if (counted + 1 - sequence < RUN_MESSAGES) {
                return false;
            }
        }
        segment.copy(offset, run, RUN);
        VarHandle.acquireFence(); // SYNC window
        long ahead = segment.word(Segment.FRONTIER) - position;
        if (ahead < RUN || ahead > segment.capacity) {
            runFrom = NO_RUN;
            return false;
        }
        runFrom = position;
        inARow = FAR; // the next run can follow this run immediately
        return true;
    }

    /** Takes the next message of the run, if the run has the whole message. */
    private boolean nextOfRun() {
        long at = position - runFrom;
        if (at < 0 || at >= RUN) {
            return false;
        }
        int start = (int) at + 16;
        long w = (long) LONG.get(run, start - 16);
        if ((w & (Segment.PAD | Segment.CONTROL)) != 0 || !segment.isPlausible(w, sequence, RUN - at)) {
            return false;
        }
        lend(run, start, w, (long) LONG.get(run, start - 8));
        return true;
    }

    /**
     * Returns why the record at this place cannot be read: it was overwritten, or the memory is damaged. {@code ahead} is the number of
     * bytes from the place to the frontier.
     */
    private Found outside(long ahead) {
        return ahead > segment.capacity && ahead <= Segment.MAX_POSITION ? Found.LAPPED : Found.CORRUPT;
    }

    private Found pollSpecial(long w, long offset) {
        boolean isPlausible = segment.isPlausible(w, sequence, segment.capacity - offset);
        boolean isPad = (w & Segment.PAD) != 0;
        long kind = 0;
        if (isPlausible && !isPad) {
            kind = segment.data(offset + 16);
            a = segment.data(offset + 24);
            b = segment.data(offset + 32);
        }
        VarHandle.acquireFence(); // SYNC window
        long n = Segment.bytes(w);
        long ahead = segment.word(Segment.FRONTIER) - position;
        if (ahead < n || ahead > segment.capacity || !isPlausible) {
            return outside(ahead);
        }
        if (isPad) {
            position += n;
            isAgain = n < segment.capacity;
            return Found.NOTHING;
        }
        Found found = Found.NOTHING;
        if (kind == GAP) {
            if (a != sequence || !isGap(a, b)) {
                return Found.CORRUPT;
            }
            sequence = b + 1;
            found = Found.GAP;
        } else if (kind == EPOCH) {
            found = Found.EPOCH;
        } else if (kind == END) {
            found = Found.END;
        } else if (kind == SESSION) {
            found = Found.SESSION;
        }
        position += n;
        if (found != Found.NOTHING) {
            isEnded = found == Found.END;
        }
        return found;
    }

    /** Finds what an empty poll does not see: a lap, the end, or another segment. */
    private Found look() {
        int state = segment.state();
        VarHandle.acquireFence(); // SYNC close
        if (segment.data(position & mask) != 0) {
            isAgain = true;
            return Found.NOTHING;
        }
        VarHandle.acquireFence();
        long ahead = segment.word(Segment.FRONTIER) - position;
        if (ahead < 0 || ahead > segment.capacity) {
            return outside(ahead);
        }
        if (state == Segment.SUPERSEDED) {
            return Found.SUPERSEDED;
        }
        if (state == Segment.CLOSED && !isEnded) {
            isEnded = true;
            return Found.END;
        }
        return Found.NOTHING;
    }

    /** Whether there is a record that was committed before the state changed to the value that the caller has read. */
    boolean hasMore() {
        VarHandle.acquireFence();
        return segment.data(position & mask) != 0 || segment.word(Segment.FRONTIER) - position > segment.capacity;
    }
}
