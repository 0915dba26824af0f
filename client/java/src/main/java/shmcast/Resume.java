package shmcast;

/** The place at which a subscriber continues after a lap. */
public enum Resume {
    /** At the oldest message. This loses the fewest messages. */
    OLDEST,
    /** At the next message to be published. This loses the most messages, but leaves the most time before the next lap. */
    LATEST,
    /** At the last message with a key flag. If there is none, at the oldest message. */
    KEY
}
