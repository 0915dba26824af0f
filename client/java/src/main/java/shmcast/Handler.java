package shmcast;

/** Handles the events that a subscriber receives. A loss is an event with exact numbers, never an exception. */
@FunctionalInterface
public interface Handler {
    /**
     * A message. The object is valid only during the call.
     *
     * @param message the message, in an object that is used again for later messages
     */
    void message(Message message);

    /**
     * The publisher overtook this reader.
     *
     * @param missed the number of lost messages
     * @param resumedAt the sequence of the next message
     */
    default void lapped(long missed, long resumedAt) {}

    /**
     * Some messages never reached this host.
     *
     * @param from the first missing sequence
     * @param to the last missing sequence
     */
    default void gap(long from, long to) {}

    /**
     * Another publisher took over. The sequences continue.
     *
     * @param epoch the new publisher's epoch, unsigned. It can have any value if another program wrote to the channel's memory
     */
    default void newEpoch(long epoch) {}

    /**
     * The publisher at the other end of a bridge began a new session.
     *
     * @param high the first 8 bytes of the session's identity, with the first byte lowest
     * @param low the last 2 bytes, in the lowest 16 bits
     */
    default void newSession(long high, long low) {}

    /**
     * All messages of the board were passed to the handler, and the stream continues. Only readers that begin with the board, or that
     * conflate, get this event.
     *
     * @param sequence the sequence of the next message
     */
    default void live(long sequence) {}

    /** A daemon's channel restarted: its sequences count from 1 again. */
    default void restarted() {}

    /**
     * The publisher is gone and has not closed the channel. Only subscribers that watch the publisher get this event. Receiving again waits
     * for the next publisher.
     *
     * @param epoch the epoch of the publisher that is gone
     */
    default void publisherGone(long epoch) {}

    /**
     * A publisher closed the channel. {@link Subscriber#isOver} says whether this was the channel's last publisher. The call that passes
     * this event passes no event after it.
     */
    default void end() {}
}
