package shmcast;

import shmcast.ShmcastException.Code;

/**
 * A subscriber's copy of the board, and the messages of the board that the handler has not got yet. Meanwhile the ring stays at the place
 * at which the subscriber will continue.
 */
final class Joining {
    private enum Step {
        /** The reader is far behind, and must join the board before its next event. */
        DUE,
        /** The next events are removals that the board has forgotten. */
        FORGOTTEN,
        MESSAGES
    }

    final Message message;
    private final Snapshot snapshot;
    /** The ledger of a conflating reader; otherwise null. */
    private final Ledger ledger;

    private final long behindBytes;
    private Step step = Step.MESSAGES;
    private int listed;
    private int next;
    /** The number of messages that the board could not replace. */
    private long missed;

    /** Allocates the memory that joins need. {@code behindBytes} is -1 for a reader that does not conflate, and 0 for half of the ring. */
    Joining(Segment segment, long behindBytes) throws ShmcastException {
        if (segment.board == null) {
            throw noBoard(segment);
        }
        this.behindBytes = behindBytes;
        snapshot = new Snapshot(segment.board);
        ledger = behindBytes < 0 ? null : new Ledger(snapshot);
        message = new Message(snapshot.layout.stride);
        message.conflated = 0;
    }

    static ShmcastException noBoard(Segment segment) {
        return new ShmcastException(Code.NO_BOARD, "channel " + segment.header.channel() + " has no board: its first publisher makes one");
    }

    static ShmcastException failure(Snapshot.Result result) {
        String why =
                switch (result) {
                    case TOO_FAST -> "the ring holds less than what is published while the board is read: make it larger";
                    case LEFT -> "the publisher does not keep the board: use the same release";
                    case DAMAGED -> "it names messages that the ring does not have: remove the channel, or begin it anew";
                    default -> "another program wrote to the channel's memory";
                };
        return new ShmcastException(result == Snapshot.Result.CORRUPT ? Code.CORRUPT : Code.BOARD, "the board cannot be joined: " + why);
    }

    /**
     * Makes the copy for the segment in which the channel continues. Returns null if this segment has no board. The counts of received
     * messages are kept.
     */
    Joining in(Segment segment) throws ShmcastException {
        if (segment.board == null) {
            return null;
        }
        Joining after = new Joining(segment, behindBytes);
        if (ledger != null) {
            after.ledger.move();
            // If the new board has keys at other bytes, its ledger begins empty.
            BoardLayout was = snapshot.layout;
            if (was.keyStart == after.snapshot.layout.keyStart && was.keyEnd == after.snapshot.layout.keyEnd) {
                after.ledger.takeOver(ledger, was, segment.board);
            }
        }
        return after;
    }

    /** Forgets which messages the reader has received, because sequences begin again. */
    void forget() {
        if (ledger != null) {
            ledger.forget();
        }
    }

    boolean conflates() {
        return ledger != null;
    }

    /** Returns the epoch in the last record of a takeover that was merged. */
    long epoch() {
        return snapshot.epoch;
    }

    Snapshot.Result join(Ring ring, Locator locator) {
        Snapshot.Result result = snapshot.join(ring, locator);
        if (ledger != null) {
            ledger.seekForgotten(snapshot.view, ring.sequence);
        }
        return result;
    }

    /** Notes that a loss was reported to the reader. */
    void noteLoss() {
        if (ledger != null) {
            ledger.noteLoss();
        }
    }

    /** Begins after a join: with the messages of the board, or only with their counts. */
    void begin(boolean isTold) {
        listed = isTold ? snapshot.list(0, false, false) : 0;
        missed = isTold ? snapshot.notWhole : 0;
        next = 0;
        step = Step.MESSAGES;
        if (ledger != null) {
            ledger.takeFrom(snapshot);
        }
    }

    /** Notes a received message. Returns whether the reader is so far behind that it must join the board before its next event. */
    boolean note(Ring ring) {
        boolean hasRoom = ledger.note(snapshot.view, ring.message);
        boolean isFar = behindBytes == 0 ? ring.isFarBehind() : ring.bytesBehind() > behindBytes;
        if (isFar || !hasRoom) {
            step = Step.DUE;
            return true;
        }
        return false;
    }

    boolean isDue() {
        return step == Step.DUE;
    }

    /**
     * After a join, lists the newest message of each key that has a message at {@code due} or later.
     *
     * @param place the sequence after the newest message that was merged
     * @return the number of skipped messages of the same keys
     */
    long bridge(long due, long place) {
        listed = snapshot.listSince(due, ledger);
        missed = Math.max(place - due - snapshot.bridged, 0);
        next = 0;
        step = Step.FORGOTTEN;
        return snapshot.bridged - listed;
    }

    /** Puts the next message into {@link #message}. Returns false if there is no further message. */
    boolean next() {
        if (step == Step.FORGOTTEN) {
            if (ledger.nextForgotten(snapshot, message)) {
                return true;
            }
            ledger.takeFrom(snapshot);
            step = Step.MESSAGES;
        }
        if (next >= listed) {
            return false;
        }
        snapshot.lend(snapshot.row(next++), message);
        return true;
    }

    /** Returns the number of messages that could not be replaced, and sets it to 0. */
    long takeMissed() {
        long was = missed;
        missed = 0;
        return was;
    }
}
