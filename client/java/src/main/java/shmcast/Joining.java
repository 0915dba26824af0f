package shmcast;

import shmcast.ShmcastException.Code;

/**
 * A subscriber's copy of the board, and what of it is still to be handed out. Meanwhile the ring stands behind the newest message that was
 * merged, where the subscriber goes on.
 */
final class Joining {
    private enum Step {
        /** The reader fell behind, and joins before its next event. */
        DUE,
        /** Keys whose removal the board has forgotten. */
        FORGOTTEN,
        MESSAGES
    }

    final Message message;
    private final Snapshot snapshot;
    /** Of a reader that conflates, else null. */
    private final Ledger ledger;

    private final long behindBytes;
    private Step step = Step.MESSAGES;
    private int listed;
    private int next;
    /** Messages that the board could not bridge. */
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

    /** The same for the segment in which the channel goes on; null if that has no board. What the reader was given stays known. */
    Joining in(Segment segment) throws ShmcastException {
        if (segment.board == null) {
            return null;
        }
        Joining after = new Joining(segment, behindBytes);
        if (ledger != null) {
            after.ledger.move();
            // A board whose keys are other bytes begins empty.
            BoardLayout was = snapshot.layout;
            if (was.keyStart == after.snapshot.layout.keyStart && was.keyEnd == after.snapshot.layout.keyEnd) {
                after.ledger.takeOver(ledger, was, segment.board);
            }
        }
        return after;
    }

    /** Forgets what the reader was given: sequences begin again. */
    void forget() {
        if (ledger != null) {
            ledger.forget();
        }
    }

    boolean conflates() {
        return ledger != null;
    }

    /** The epoch in the last record of one that was merged. */
    long epoch() {
        return snapshot.epoch;
    }

    Snapshot.Result join(Ring ring, Locator locator) {
        return snapshot.join(ring, locator);
    }

    /** Begins behind a join: with the messages of the board, or with what the reader knows of them. */
    void begin(boolean isTold) {
        listed = isTold ? snapshot.list(0, false, false) : 0;
        missed = isTold ? snapshot.notWhole : 0;
        next = 0;
        step = Step.MESSAGES;
        if (ledger != null) {
            ledger.takeFrom(snapshot);
        }
    }

    /** Notes a message that was received. Returns whether the reader is so far behind that it joins before its next event. */
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
     * Lists the newest message of each key that has one at or above {@code due}, behind a join.
     *
     * @param place the sequence behind the newest message that was merged
     * @return how many messages of the same keys were left out
     */
    long bridge(long due, long place) {
        listed = snapshot.listSince(due, ledger);
        missed = Math.max(place - due - snapshot.bridged, 0);
        next = 0;
        ledger.seekForgotten();
        step = Step.FORGOTTEN;
        return snapshot.bridged - listed;
    }

    /** Puts the next message into {@link #message}; false if all were handed out. */
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

    /** The messages that could not be bridged, once. */
    long takeMissed() {
        long was = missed;
        missed = 0;
        return was;
    }
}
