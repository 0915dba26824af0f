package shmcast;

/** Where a subscriber begins. {@link Subscriber.Builder#from(long)} names a sequence instead. */
public enum Start {
    /** With the next message published. */
    LATEST,
    /** With the oldest message that is safe in the ring. */
    OLDEST,
    /**
     * With the channel's board: the newest message of each key in the order of their sequences, then {@link Handler#live}, then each later
     * message. None is missing and none comes twice. Keys that were removed are left out. Keys whose newest message is too large for the board
     * are told by {@link Handler#lapped} before {@code live}.
     */
    BOARD
}
