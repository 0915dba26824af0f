package shmcast;

import java.time.Duration;

/**
 * A reader for which the publisher waits, up to a time limit: {@link Publisher.Builder#gate}, and {@link Subscriber.Builder#gate}.
 *
 * @param name the name by which the reader takes the gate: 1 to 31 of A-Z a-z 0-9 . _ - : @ +
 * @param lagBytes how far the reader can be behind before the publisher waits, in bytes of the ring; 0 to use {@code lagPercent}
 * @param lagPercent the same in percent of the ring; 0 for the default of 50
 * @param limit the longest wait of one message; with zero, no message waits
 * @param refuses whether a message is refused after the wait. Otherwise the gate is dropped, and the publisher can lap the reader until the
 *     reader is at most half of the lag behind
 */
public record Gate(String name, long lagBytes, int lagPercent, Duration limit, boolean refuses) {
    /**
     * Makes a gate with the default limits: half of the ring, and 200 us.
     *
     * @param name the gate's name
     * @return the gate
     */
    public static Gate of(String name) {
        return new Gate(name, 0, 0, Duration.ofNanos(200_000), false);
    }

    /**
     * Sets the lag in bytes.
     *
     * @param bytes how far the reader can be behind, in bytes of the ring
     * @return the changed copy
     */
    public Gate withLagBytes(long bytes) {
        return new Gate(name, bytes, 0, limit, refuses);
    }

    /**
     * Sets the lag in percent.
     *
     * @param percent how far the reader can be behind, in percent of the ring
     * @return the changed copy
     */
    public Gate withLagPercent(int percent) {
        return new Gate(name, 0, percent, limit, refuses);
    }

    /**
     * Sets the time limit of the wait.
     *
     * @param limit the longest wait of one message; with zero, no message waits
     * @return the changed copy
     */
    public Gate withLimit(Duration limit) {
        return new Gate(name, lagBytes, lagPercent, limit, refuses);
    }

    /**
     * Makes the gate refuse messages: after the wait, a message fails with a {@link FullException}.
     *
     * @return the changed copy
     */
    public Gate refusing() {
        return new Gate(name, lagBytes, lagPercent, limit, true);
    }
}
