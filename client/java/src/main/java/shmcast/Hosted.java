package shmcast;

import java.io.IOException;

/** A reader's part of a daemon's channel (CONTROL.md). It needs Java 22 or newer. */
abstract class Hosted {
    /** The daemon's decisions about a generation of a channel (SPEC.md 4.2). */
    enum Verdict {
        OPEN,
        CLOSING,
        CUT
    }

    long generation;
    boolean isStrict;
    /** The sequence of the last decision, if it was {@link Verdict#CUT}. */
    long cut;

    boolean isEndedAtCut;

    /** Returns the decision about the messages that were read before this call. */
    abstract Verdict verdict();

    /** Returns the first segment. The caller then owns the segment. */
    abstract Segment first();

    abstract Page page();

    /** Returns the requested gate, or null. The caller then owns the gate. */
    abstract HeldGate gate();

    /** Whether the next segment had arrived before the last poll. The first call that finds a segment only notes it, and returns false. */
    abstract boolean wasHere();

    /** Whether the next segment has another charter. The reader then continues there without a cut. */
    abstract boolean isOtherCharter();

    /**
     * Takes the next segment, if the reader can continue in it; otherwise returns null. Sets {@link #generation} and {@link #isStrict} to
     * those of the segment.
     */
    abstract Segment next() throws IOException;

    /** Whether sequences restart at 1 in the last segment that {@link #next} returned. */
    abstract boolean isRestarted();

    /** Whether a stream begins in the last segment that {@link #next} returned. Its first sequence is above 1 if it begins after a journal. */
    abstract boolean beginsStream();

    /** Returns the first sequence in the last segment that {@link #next} returned. */
    abstract long firstSequence();

    /**
     * Returns the sequence that is due in the last segment that {@link #next} returned. {@code due} is the sequence that would be due if the
     * stream continues there.
     */
    final long dueIn(long due) {
        return !isRestarted() ? due : beginsStream() ? firstSequence() : 1;
    }

    /** Whether the daemon has reported the death of the publisher with this epoch. */
    abstract boolean hasDied(long epoch);

    abstract boolean isAttached();

    abstract boolean hasNews();

    /** Tells the daemon that the reader waits, and sleeps until the daemon wakes the reader. */
    abstract void sleep(long nanos);

    /** Empties the bell, by which the daemon wakes the reader. */
    abstract void hear();

    abstract void close();
}
