package shmcast.peers;

/** A way of messages from one thread to another, through shared memory. The publishing thread uses the first call, the receiving one the second. */
interface Ring extends AutoCloseable {
    /** Publishes a message whose first word is `first`. Waits where the receiver is too far behind. */
    void publish(long first);

    /** Hands out what is there, at most this many messages. */
    void poll(Receiver receiver, int most);

    @Override
    void close();
}
