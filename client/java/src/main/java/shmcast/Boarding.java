package shmcast;

/**
 * A subscriber's use of the board: it begins with the newest message of each key, and continues with the board if it cannot keep up. While
 * events come from the board, {@link Subscriber#behind} is {@link Subscriber#ON_BOARD}. The subscriber's ring then stays at the place at
 * which the subscriber will continue.
 */
final class Boarding {
    private static final int ATTEMPTS = 100;
    /** The time for which a new reader waits for the segment in which a channel continues. */
    static final long PATIENCE = 5_000_000_000L;

    private final Subscriber of;
    /** Null if the channel continues in a segment without a board. */
    private Joining joining;

    Boarding(Subscriber of, long behindBytes) throws ShmcastException {
        this.of = of;
        joining = new Joining(of.ring.segment, behindBytes);
        of.isNoted |= joining.conflates();
    }

    private boolean isOpen() {
        return of.hosted == null || of.hosted.verdict() == Hosted.Verdict.OPEN;
    }

    /** Begins with the messages of the board, or only with its counts. */
    void begin(Start start) throws ShmcastException {
        long began = System.nanoTime();
        for (int attempt = 0; !beginOnce(start); attempt++) {
            if (attempt >= ATTEMPTS && System.nanoTime() - began > PATIENCE) {
                throw Joining.failure(Snapshot.Result.TOO_FAST);
            }
        }
        of.behind = start == Start.BOARD ? Subscriber.ON_BOARD : 0;
        of.known = Math.max(of.known, joining.epoch());
        returnTo(of.ring.position, of.ring.sequence);
    }

    private boolean beginOnce(Start start) throws ShmcastException {
        if (joining == null) {
            throw Joining.noBoard(of.ring.segment);
        }
        long position = of.ring.position;
        long sequence = of.ring.sequence;
        Snapshot.Result result = joining.join(of.ring, of.locator);
        if (!isOpen()) {
            // The data that was read can be void. The channel continues in the next segment, and this reader follows.
            of.ring.jump(position, sequence);
            if (!of.hosted.wasHere() || !of.goOn(Subscriber.NOBODY)) {
                Wait.SLEEP.pause();
            }
            return false;
        }
        if (result != Snapshot.Result.JOINED) {
            throw Joining.failure(result);
        }
        joining.begin(start == Start.BOARD);
        return true;
    }

    /** Continues in the ring. A jump can have skipped the record of a takeover. */
    private void returnTo(long position, long sequence) {
        of.ring.jump(position, sequence);
        of.isInDoubt = of.isUntold(of.ring.segment.epoch());
    }

    /** Notes the message of the ring that the handler gets next. A reader that is far behind gets the board after this message. */
    void note() {
        if (joining != null && joining.conflates() && joining.note(of.ring)) {
            of.behind = Subscriber.ON_BOARD;
        }
    }

    /** Notes that a loss was reported to the reader. */
    void noteLoss() {
        if (joining != null) {
            joining.noteLoss();
        }
    }

    /** Continues with the board of another segment. */
    void goOn(Segment segment, boolean isRestarted) throws ShmcastException {
        Joining before = joining;
        joining = null;
        if (before != null) {
            if (isRestarted) {
                before.forget();
            }
            joining = before.in(segment);
        }
    }

    /** Passes the next part of the board to the handler. Returns whether this was an event. */
    boolean tell(Handler handler) {
        if (joining.isDue() && !conflate()) {
            of.behind = 0;
            returnTo(of.ring.position, of.ring.sequence);
            return false;
        }
        if (joining.next()) {
            if (of.page != null) {
                of.count(joining.message);
            }
            handler.message(joining.message);
            return true;
        }
        long next = of.ring.sequence;
        long missed = joining.takeMissed();
        if (missed > 0) {
            if (of.page != null) {
                of.page.add(Page.LAPPED, 1);
            }
            of.noteMissed(missed);
            handler.lapped(missed, next);
            return true;
        }
        of.behind = 0;
        returnTo(of.ring.position, next);
        handler.live(next);
        return true;
    }

    /** Replaces the ring's next messages with messages of the board. If this is not possible, the ring stays at its place. */
    boolean conflate() {
        if (joining == null || !joining.conflates()) {
            return false;
        }
        long position = of.ring.position;
        long due = of.ring.sequence;
        // The channel must not have moved before or after the join. Otherwise the data could be void.
        boolean isValid = isOpen();
        isValid &= joining.join(of.ring, of.locator) == Snapshot.Result.JOINED && of.ring.sequence >= due && isOpen();
        if (!isValid) {
            of.ring.jump(position, due);
            return false;
        }
        long leftOut = joining.bridge(due, of.ring.sequence);
        of.known = Math.max(of.known, joining.epoch());
        of.behind = Subscriber.ON_BOARD;
        if (of.page != null) {
            of.page.add(Page.CONFLATED, leftOut);
            of.note();
        }
        of.notePassed();
        return true;
    }
}
