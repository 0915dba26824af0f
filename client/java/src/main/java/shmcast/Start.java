package shmcast;

/** The place at which a subscriber begins. {@link Subscriber.Builder#from(long)} sets a sequence instead. */
public enum Start {
    /** At the next message to be published. */
    LATEST,
    /** At the oldest message that is safe in the ring. */
    OLDEST,
    /**
     * With the channel's board: the newest message of each key in the order of their sequences, then {@link Handler#live}, then each later
     * message. No message is missing or comes twice. Removed keys are left out. If the newest message of a key is too large for the board,
     * {@link Handler#lapped} reports the key before {@code live}.
     */
    BOARD
}
