package shmcast;

/**
 * Lets the publisher get ahead of a reader that is close behind it in a burst. Cache lines near the publisher go back and forth between both;
 * a reader that stays behind finds several messages at once in lines that are ready.
 */
final class Burst {
    /** So many messages are a burst, if they come within {@link #WITHIN_NANOS}. */
    private static final int MESSAGES = 32;

    private static final long WITHIN_NANOS = 8_000;
    /** A reader that is behind by fewer messages is close to the publisher. */
    private static final int CLOSE = 512;

    private static final long PAUSE_NANOS = 8_000;

    /** Whether the last call of this reader ended close to the publisher. */
    private boolean isClose;
    /** The sequence and the time from which messages count as a burst. */
    private long marked;

    private long markedAt;
    /** Messages below were there when the publisher had last got ahead. They are taken first, so no message waits for two pauses. */
    private long target;

    /** Pauses if the last call ended close to the publisher in a burst, but ends where the reader is half a ring behind. */
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

    /** Called behind a look. isEmpty: nothing more was there. */
    void note(Ring ring, boolean isEmpty) {
        isClose = isEmpty || ring.sequence >= target && ring.lag() < CLOSE;
    }
}
