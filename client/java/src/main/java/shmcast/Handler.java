package shmcast;

/** Takes what a subscriber receives. A loss is an event with exact numbers, never an exception. */
@FunctionalInterface
public interface Handler {
    /**
     * A message. It is valid during the call.
     *
     * @param message the message, in an object that is used again
     */
    void message(Message message);

    /**
     * The publisher overtook this reader.
     *
     * @param missed how many messages are lost
     * @param resumedAt the sequence that is due next
     */
    default void lapped(long missed, long resumedAt) {}

    /**
     * Messages that never reached this host.
     *
     * @param from the first of them
     * @param to the last of them
     */
    default void gap(long from, long to) {}

    /**
     * Another publisher took over. Sequences go on.
     *
     * @param epoch its incarnation; unsigned, where another program wrote to the channel's memory
     */
    default void newEpoch(long epoch) {}

    /**
     * The publisher behind a bridge began a session.
     *
     * @param high the first 8 bytes of its identity, the first one lowest
     * @param low the last 2, in the lowest 16 bits
     */
    default void newSession(long high, long low) {}

    /**
     * All of the board was handed out, and the stream goes on. Readers that begin with the board are told so, and those that conflate.
     *
     * @param sequence the sequence that is due next
     */
    default void live(long sequence) {}

    /** A daemon's channel began anew: sequences count from 1 again. */
    default void restarted() {}

    /**
     * The publisher died without closing the channel. Only subscribers that watch it are told. Receiving again waits for the next one.
     *
     * @param epoch its incarnation
     */
    default void publisherGone(long epoch) {}

    /**
     * A publisher closed the channel; {@link Subscriber#isOver} says whether it was the last. The call that tells of it hands out nothing
     * behind it.
     */
    default void end() {}
}
