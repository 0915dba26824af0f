package shmcast;

/**
 * A gate as its publisher knows it.
 *
 * @param name its name
 * @param state what the publisher does about it
 * @param lagBytes how far its reader may be behind
 * @param behindBytes how far it is; 0 also if nobody holds the gate
 * @param pid the process that its reader claims to be; 0 if nobody holds the gate
 * @param held messages that waited for it
 * @param longestNanos the longest of these waits
 * @param totalNanos all of them together
 * @param dropped how often it was dropped
 * @param refused messages that were refused behind a wait
 * @param turnedAway messages that {@link Publisher#tryPublish} refused
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
    /** What a publisher does about a gate. */
    public enum State {
        /** Nobody holds it. */
        ABSENT,
        /** Its reader has not caught up yet, and may be lapped. */
        JOINING,
        /** The publisher waits for its reader, which is not lapped. */
        IN_FORCE,
        /** Its reader took too long, and may be lapped until it has caught up to half of the lag. */
        DROPPED
    }
}
