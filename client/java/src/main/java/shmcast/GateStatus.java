package shmcast;

/**
 * The state and the counts of a gate, as the publisher sees them.
 *
 * @param name the gate's name
 * @param state what the publisher does for the gate
 * @param lagBytes how far the gate's reader can be behind, in bytes of the ring
 * @param behindBytes how far the reader is behind, in bytes of the ring; also 0 if there is no reader
 * @param pid the process id that the reader states; 0 if there is no reader
 * @param held the number of messages that waited for the gate
 * @param longestNanos the longest wait of one message
 * @param totalNanos the sum of all waits
 * @param dropped how often the gate was dropped
 * @param refused the number of messages that were refused after a wait
 * @param turnedAway the number of messages that {@link Publisher#tryPublish} refused
 */
public record GateStatus(
        String name,
        State state,
        long lagBytes,
        long behindBytes,
        long pid,
        long held,
        long longestNanos,
        long totalNanos,
        long dropped,
        long refused,
        long turnedAway) {
    /** The state of a gate for its publisher. */
    public enum State {
        /** The gate has no reader. */
        ABSENT,
        /** The reader has not caught up yet, and can be lapped. */
        JOINING,
        /** The publisher waits for the reader, so the reader is not lapped. */
        IN_FORCE,
        /** The reader was too slow. It can be lapped until it is at most half of the lag behind. */
        DROPPED
    }
}
