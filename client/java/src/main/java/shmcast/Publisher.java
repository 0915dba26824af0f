package shmcast;

import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import shmcast.ShmcastException.Code;

/**
 * Publishes messages to one channel. It needs Java 22 or newer, and the C library libshmcast.so.0. Only one thread at a time can use a
 * publisher.
 */
public final class Publisher implements AutoCloseable {
    private final Outlet outlet;

    private Publisher(Outlet outlet) {
        this.outlet = outlet;
    }

    /**
     * Begins to open a channel for publishing.
     *
     * @param channel the channel's name
     * @return a builder, which sets the options and opens the channel
     */
    public static Builder of(String channel) {
        return new Builder(channel);
    }

    /** The options with which a publisher opens its channel. */
    public static final class Builder {
        final String channel;
        Path directory;
        boolean isDaemons;
        Path socket;
        long capacity;
        long maxMessage;
        int mode;
        int flags;
        BoardSpec board;
        final List<Gate> gates = new ArrayList<>();

        private Builder(String channel) {
            this.channel = channel;
        }

        /**
         * Makes the channel in this directory, instead of $SHMCAST_DIR or the default directory.
         *
         * @param directory the directory
         * @return this
         */
        public Builder dir(Path directory) {
            this.directory = directory;
            return this;
        }

        /**
         * Publishes to a channel of the daemon at this socket.
         *
         * @param socket the socket's path; null for $SHMCAST_SOCKET or the default path
         * @return this
         */
        public Builder daemon(Path socket) {
            isDaemons = true;
            this.socket = socket;
            return this;
        }

        /**
         * Sets the size of the ring. The default is 64 MiB, or the size of the existing channel.
         *
         * @param bytes a power of two
         * @return this
         */
        public Builder capacity(long bytes) {
            capacity = bytes;
            return this;
        }

        /**
         * Sets the size of the largest payload: at most an eighth of the ring, and at most 16 MiB. The default is this limit.
         *
         * @param bytes the size in bytes
         * @return this
         */
        public Builder maxMessage(long bytes) {
            maxMessage = bytes;
            return this;
        }

        /**
         * Sets the permissions of a new channel; 0700 by default.
         *
         * @param mode the mode of the channel's directory
         * @return this
         */
        public Builder mode(int mode) {
            this.mode = mode;
            return this;
        }

        /**
         * Replaces the existing memory of the channel. Sequences begin at 1 again.
         *
         * @return this
         */
        public Builder anew() {
            flags |= 1;
            return this;
        }

        /**
         * Makes a new channel use CLOCK_MONOTONIC for publish times. Readers in Java then know the age of messages.
         *
         * @return this
         */
        public Builder monotonic() {
            flags |= 2;
            return this;
        }

        /**
         * Gives a new channel a board: the last message of each key. An existing channel keeps its own board.
         *
         * @param spec the properties of the board
         * @return this
         */
        public Builder board(BoardSpec spec) {
            board = spec;
            return this;
        }

        /**
         * Adds a gate to a channel in files: a reader for which this publisher waits. The gates of a daemon's channel are in the daemon's
         * configuration.
         *
         * @param gate the gate's name and limits
         * @return this
         */
        public Builder gate(Gate gate) {
            gates.add(gate);
            return this;
        }

        /**
         * Makes the channel, or takes over the existing channel and continues its sequences.
         *
         * @return the publisher
         * @throws IOException a {@link ShmcastException}; {@link Code#UNSUPPORTED} before Java 22
         */
        public Publisher open() throws IOException {
            // C would read the name up to there.
            if (channel.indexOf('\0') >= 0) {
                throw new ShmcastException(Code.NAME, "the name of a channel cannot have a zero");
            }
            return new Publisher(Native.outlet(this));
        }
    }

    /**
     * Publishes a message. Waits only for gates.
     *
     * @param payload the bytes of the message
     * @return the sequence of the message
     * @throws ShmcastException {@link Code#TOO_LARGE}, {@link Code#CUT_OFF}, or a {@link FullException}
     */
    public long publish(byte[] payload) throws ShmcastException {
        return publish(payload, 0, payload.length, 0, false);
    }

    /**
     * Publishes a message with a tag and a key flag. Waits only for gates, and allocates nothing.
     *
     * @param bytes an array with the bytes of the message
     * @param from the index of the first byte
     * @param length the number of bytes
     * @param tag a number for the application's own use, 0 to 65535
     * @param key whether a reader can start with this message, without earlier ones
     * @return the sequence of the message
     * @throws ShmcastException {@link Code#TOO_LARGE}, {@link Code#CUT_OFF}, or a {@link FullException}
     * @throws IllegalArgumentException the tag is out of range
     */
    public long publish(byte[] bytes, int from, int length, int tag, boolean key) throws ShmcastException {
        return outlet.publish(bytes, from, length, checked(tag), key);
    }

    /**
     * Publishes a message. Never waits for a gate.
     *
     * @param payload the bytes of the message
     * @return the sequence of the message; 0 if nothing was published, because the reader of a gate is too far behind
     * @throws ShmcastException {@link Code#TOO_LARGE}, {@link Code#CUT_OFF}
     */
    public long tryPublish(byte[] payload) throws ShmcastException {
        return tryPublish(payload, 0, payload.length, 0, false);
    }

    /**
     * Publishes a message with a tag and a key flag. Never waits for a gate.
     *
     * @param bytes an array with the bytes of the message
     * @param from the index of the first byte
     * @param length the number of bytes
     * @param tag a number for the application's own use, 0 to 65535
     * @param key whether a reader can start with this message, without earlier ones
     * @return the sequence of the message; 0 if nothing was published, because the reader of a gate is too far behind
     * @throws ShmcastException {@link Code#TOO_LARGE}, {@link Code#CUT_OFF}
     */
    public long tryPublish(byte[] bytes, int from, int length, int tag, boolean key) throws ShmcastException {
        return outlet.tryPublish(bytes, from, length, checked(tag), key);
    }

    private static int checked(int tag) {
        if ((tag & ~0xffff) != 0) {
            throw new IllegalArgumentException("tag " + tag + ": give 0 to 65535");
        }
        return tag;
    }

    /**
     * Returns the channel's gates, each with the counts of this publisher. Allocates memory, and makes a system call for each gate.
     *
     * @return the gates; an empty list if the channel has no gates
     * @throws ShmcastException the system's error
     */
    public List<GateStatus> gates() throws ShmcastException {
        return outlet.gates();
    }

    /** {@return the sequence that the next message gets} */
    public long nextSequence() {
        return outlet.nextSequence();
    }

    /** {@return the epoch of this publisher: 1 for the first publisher of a channel} */
    public long epoch() {
        return outlet.epoch();
    }

    /** {@return the size of the largest message in bytes} */
    public long maxMessage() {
        return outlet.maxMessage();
    }

    /** {@return whether a daemon has given the channel to another publisher} */
    public boolean isCutOff() {
        return outlet.isCutOff();
    }

    /** Closes the channel. Readers get all published messages, and then the end. */
    @Override
    public void close() {
        outlet.close();
    }
}
