package shmcast;

/**
 * If a reader is close behind the publisher in a burst, lets the publisher get ahead. Otherwise cache lines near the publisher move back
 * and forth between both. A reader that stays behind finds several messages at a time.
 */
final class Burst {
    /** This many messages are a burst, if they arrive within {@link #WITHIN_NANOS}. */
    private static final int MESSAGES = 32;

    private static final long WITHIN_NANOS = 8_000;
    /** A reader that is fewer messages behind is close to the publisher. */
    private static final int CLOSE = 512;

    private static final long PAUSE_NANOS = 8_000;

    /** Whether the last call of this reader ended close to the publisher. */
    private boolean isClose;
    /** The sequence and the time at which the present burst begins. */
    private long marked;

    private long markedAt;
    /**
     * The messages below this sequence existed when the publisher last got ahead. They are received first, so no message waits for two
     * pauses.
     */
    private long target;

    /** Pauses if the last call ended close to the publisher in a burst. Ends the pause early if the reader is half a ring behind. */
    void pause(Ring ring) {
        if (!isClose) {
            return;
        }
        isClose = false;
        if (ring.sequence >= marked && ring.sequence - marked < MESSAGES) {
            return;
        }
        long start = System.nanoTime();
        long now = start;
        if (start - markedAt < WITHIN_NANOS) {
            while (now - start < PAUSE_NANOS && !ring.isFarBehind()) {
                Thread.onSpinWait();
                now = System.nanoTime();
            }
        }
        marked = ring.sequence;
        markedAt = now;
        target = ring.sequence + ring.lag();
    }

    /** Must be called after a poll. {@code isEmpty} says that there was nothing more to receive. */
    void note(Ring ring, boolean isEmpty) {
        isClose = isEmpty || ring.sequence >= target && ring.lag() < CLOSE;
    }
}
