package shmcast;

/** Where a subscriber goes on after a lap. */
public enum Resume {
    /** At the oldest message: loses least. */
    OLDEST,
    /** At the next message to come: loses most, and has the whole ring ahead. */
    LATEST,
    /** At the last key message, or as {@link #OLDEST}. */
    KEY
}
