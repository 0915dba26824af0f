package shmcast;

/** Where a subscriber begins. {@link Subscriber.Builder#from(long)} names a sequence instead. */
public enum Start {
    /** With the next message published. */
    LATEST,
    /** With the oldest message that is safe in the ring. */
    OLDEST
}
