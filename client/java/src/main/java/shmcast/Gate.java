package shmcast;

import java.time.Duration;

/**
 * A reader that the publisher waits for, within a limit: {@link Publisher.Builder#gate}, and {@link Subscriber.Builder#gate}.
 *
 * @param name what its reader asks for: 1 to 31 of A-Z a-z 0-9 . _ - : @ +
 * @param lagBytes how far its reader may be behind, in bytes of the ring; 0: by {@code lagPercent}
 * @param lagPercent the same in percent of the ring; 0: 50
 * @param limit how long one message waits at most; zero: none waits
 * @param refuses whether a message is refused behind the wait. Else the gate is dropped: its reader may be lapped until it has caught up to
 *     half of the lag
 */
public record Gate(String name, long lagBytes, int lagPercent, Duration limit, boolean refuses) {
    /**
     * A gate with the usual limits: half of the ring, and 200 us.
     *
     * @param name its name
     * @return the gate
     */
    public static Gate of(String name) {
        return new Gate(name, 0, 0, Duration.ofNanos(200_000), false);
    }

    /**
     * The same with a lag in bytes.
     *
     * @param bytes how far its reader may be behind, in bytes of the ring
     * @return the other one
     */
    public Gate withLagBytes(long bytes) {
        return new Gate(name, bytes, 0, limit, refuses);
    }

    /**
     * The same with a lag in percent.
     *
     * @param percent how far its reader may be behind, of the ring
     * @return the other one
     */
    public Gate withLagPercent(int percent) {
        return new Gate(name, 0, percent, limit, refuses);
    }

    /**
     * The same with a limit of the wait.
     *
     * @param limit how long one message waits at most; zero: none waits
     * @return the other one
     */
    public Gate withLimit(Duration limit) {
        return new Gate(name, lagBytes, lagPercent, limit, refuses);
    }

    /**
     * The same, but behind the wait a message is refused by a {@link FullException}.
     *
     * @return the other one
     */
    public Gate refusing() {
        return new Gate(name, lagBytes, lagPercent, limit, true);
    }
}
