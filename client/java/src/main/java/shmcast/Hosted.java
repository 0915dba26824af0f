package shmcast;

import java.io.IOException;

/** A reader's part of a daemon's channel (CONTROL.md). Java 22 and newer have one. */
abstract class Hosted {
    /** The verdicts of SPEC.md 4.2. */
    enum Verdict {
        OPEN,
        CLOSING,
        CUT
    }

    long generation;
    boolean isStrict;
    /** Of the last verdict, if it was {@link Verdict#CUT}. */
    long cut;

    boolean isEndedAtCut;

    /** The charter's word on what was read before this call. */
    abstract Verdict verdict();

    /** The segment to begin with. The caller takes it. */
    abstract Segment first();

    abstract Page page();

    /** The gate that was asked for, or null. The caller takes it. */
    abstract HeldGate gate();

    /** Whether the next segment is here. The first call that finds one only takes it: it must have been here before the poll. */
    abstract boolean wasHere();

    /** The next segment's own charter counts, so that a cut is not needed to go on. */
    abstract boolean isOtherCharter();

    /** Takes the next segment, if it is one to go on in; else null. Fills {@link #generation} and {@link #isStrict} with its own. */
    abstract Segment next() throws IOException;

    /** Whether sequences begin at 1 in the segment that {@link #next} gave. */
    abstract boolean isRestarted();

    /** The first sequence in it. */
    abstract long firstSequence();

    /** Whether the daemon told of this publisher's death. */
    abstract boolean hasDied(long epoch);

    abstract boolean isAttached();

    abstract boolean hasNews();

    /** Rings, and sleeps until the daemon rings. */
    abstract void sleep(long nanos);

    /** Empties the bell. */
    abstract void hear();

    abstract void close();
}
