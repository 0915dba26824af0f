package shmcast;

import java.lang.invoke.VarHandle;

/**
 * Finds places in a ring by SPEC.md 3.4. Every place is checked before use, and every loop has a limit. A search stores its result in
 * {@link #position} and {@link #sequence}, so it allocates nothing.
 */
final class Locator {
    /** The result of a search. */
    enum Outcome {
        FOUND,
        /** The publisher overwrote the place. The search must begin again. */
        OVERRUN,
        CORRUPT,
        /** {@link #sequence} is the oldest sequence in the ring. */
        TOO_OLD,
        /** {@link #sequence} is the sequence of the next message. */
        NOT_YET
    }

    private static final int ATTEMPTS = 100;
    private static final int TAIL_STEPS = 256;

    private final Segment segment;
    private final Header header;
    long position;
    long sequence;
    private boolean isThere;
    private long recordSequence;
    private long afterPosition;
    private long afterSequence;

    Locator(Segment segment) {
        this.segment = segment;
        header = segment.header;
    }

    private Outcome found(long position, long sequence) {
        this.position = position;
        this.sequence = sequence;
        return Outcome.FOUND;
    }

    /** Reads the record at a place. */
    private Outcome inspect(long at, long due) {
        long offset = at & (segment.capacity - 1);
        long w = segment.data(offset);
        VarHandle.acquireFence(); // SYNC commit
        boolean isControl = (w & (Segment.CONTROL | Segment.PAD)) == Segment.CONTROL;
        long kind = isControl ? segment.data(offset + 16) : 0;
        long from = isControl ? segment.data(offset + 24) : 0;
        long to = isControl ? segment.data(offset + 32) : 0;
        VarHandle.acquireFence(); // SYNC window
        long frontier = segment.word(Segment.FRONTIER);
        if (frontier < 0 || frontier > Segment.MAX_POSITION || at < 0 || at > frontier) {
            return Outcome.CORRUPT;
        }
        if (frontier - at > segment.capacity) {
            return Outcome.OVERRUN;
        }
        isThere = w != 0;
        if (!isThere) {
            return Outcome.FOUND;
        }
        recordSequence = due;
        afterSequence = (w & (Segment.CONTROL | Segment.PAD)) != 0 ? due : due + 1;
        if (kind == Ring.GAP) {
            if (!Ring.isGap(from, to)) {
                return Outcome.CORRUPT;
            }
            if (from <= due && due <= to + 1) {
                recordSequence = from;
                afterSequence = to + 1;
            }
        }
        afterPosition = at + Segment.bytes(w);
        boolean isWhole = afterPosition <= frontier && segment.isPlausible(w, recordSequence, segment.capacity - offset);
        return isWhole ? Outcome.FOUND : Outcome.CORRUPT;
    }

    private Outcome hint() {
        long count = segment.word(Segment.COUNT);
        VarHandle.acquireFence(); // SYNC lazy
        if (count < segment.first() - 1 || count >= Segment.MAX_SEQUENCE) {
            return Outcome.CORRUPT;
        }
        long at = segment.indexed(count + 1);
        VarHandle.acquireFence(); // SYNC index
        long moved = segment.word(Segment.COUNT) - count;
        if (moved == 0 || moved > 0 && moved < 1L << 31 && inspect(at, count + 1) == Outcome.FOUND && isThere) {
            return found(at, count + 1);
        }
        return Outcome.OVERRUN;
    }

    /** Accepts a place if its record has the sequence, covers it, or ends just before it. */
    private Outcome verify(long at, long due) {
        Outcome outcome = inspect(at, due);
        if (outcome != Outcome.FOUND) {
            return outcome;
        }
        if (!isThere) {
            return found(at, due);
        }
        return recordSequence < due && afterSequence == due ? found(afterPosition, afterSequence) : found(at, recordSequence);
    }

    private Outcome newest() {
        Outcome outcome = hint();
        return outcome == Outcome.FOUND ? verify(position, sequence) : outcome;
    }

    /** Finds a place after all messages that were published before the call. */
    Outcome tail() {
        for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
            Outcome outcome = hint();
            for (int step = 0; outcome == Outcome.FOUND && step <= TAIL_STEPS; step++) {
                outcome = inspect(position, sequence);
                if (outcome != Outcome.FOUND || !isThere) {
                    break;
                }
                found(afterPosition, afterSequence);
            }
            if (outcome != Outcome.OVERRUN) {
                return outcome;
            }
        }
        // This place is already overwritten, so a reader there immediately gets a lap.
        long frontier = segment.word(Segment.FRONTIER);
        VarHandle.acquireFence();
        long count = segment.word(Segment.COUNT);
        if (frontier < 0 || frontier > Segment.MAX_POSITION || count < 0 || count >= Segment.MAX_SEQUENCE) {
            return Outcome.CORRUPT;
        }
        if (frontier < segment.capacity + Header.GRANULE) {
            return found(0, segment.first());
        }
        return found(frontier - segment.capacity - Header.GRANULE & -Header.GRANULE, count + 1);
    }

    /** Finds the oldest place that the publisher will not overwrite immediately. */
    Outcome oldest() {
        for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
            Outcome outcome = oldestNow(attempt);
            if (outcome != Outcome.OVERRUN) {
                return outcome;
            }
        }
        return tail();
    }

    private Outcome oldestNow(int attempt) {
        Outcome outcome = newest();
        if (outcome != Outcome.FOUND) {
            return outcome;
        }
        long newestPosition = position;
        long newestSequence = sequence;
        long frontier = segment.word(Segment.FRONTIER);
        if (frontier < 0 || frontier > Segment.MAX_POSITION) {
            return Outcome.CORRUPT;
        }
        long room = Math.min(header.chunk() << Math.min(attempt, 6), segment.capacity / 2);
        long safe = frontier + room - segment.capacity;
        if (safe <= 0) {
            return verify(0, segment.first());
        }
        long low = Math.max(newestSequence - (header.indexEntries() - 1), 1);
        long high = newestSequence;
        long best = newestPosition;
        while (low < high) {
            long middle = low + (high - low) / 2;
            long at = segment.indexed(middle);
            if (safe <= at && at < newestPosition) {
                best = at;
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        return verify(best, high);
    }

    /** Goes from the place to the record that has or covers {@code sought}. At the tail, it stops, and {@link #isThere} is false. */
    private Outcome walk(long sought, long steps) {
        for (long step = 0; step <= steps; step++) {
            Outcome outcome = inspect(position, sequence);
            if (outcome != Outcome.FOUND || !isThere || afterSequence > sought) {
                return outcome;
            }
            found(afterPosition, afterSequence);
        }
        return Outcome.OVERRUN;
    }

    /** Finds the place of a sequence. */
    Outcome seek(long sought) {
        for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
            Outcome outcome = seekNow(sought, attempt);
            if (outcome != Outcome.OVERRUN) {
                return outcome;
            }
        }
        Outcome outcome = tail();
        if (outcome != Outcome.FOUND || sought == sequence) {
            return outcome;
        }
        return sought < sequence ? Outcome.TOO_OLD : Outcome.NOT_YET;
    }

    private Outcome seekNow(long sought, int attempt) {
        Outcome outcome = newest();
        if (outcome != Outcome.FOUND) {
            return outcome;
        }
        if (sought >= sequence) {
            outcome = walk(sought, TAIL_STEPS);
            return outcome == Outcome.FOUND && !isThere && sequence < sought ? Outcome.NOT_YET : outcome;
        }
        long at = segment.indexed(sought);
        boolean isInIndex = sequence - sought < header.indexEntries() && sought >= segment.first();
        if (isInIndex && Long.compareUnsigned(at, position) < 0) {
            outcome = verify(at, sought);
            if (outcome != Outcome.OVERRUN) {
                return outcome;
            }
        }
        if (verify(0, segment.first()) != Outcome.FOUND) {
            outcome = oldestNow(attempt);
            if (outcome != Outcome.FOUND) {
                return outcome;
            }
        }
        long oldest = sequence;
        if (sought >= oldest && walk(sought, header.indexEntries()) == Outcome.FOUND) {
            return Outcome.FOUND;
        }
        sequence = oldest;
        return Outcome.TOO_OLD;
    }
}
