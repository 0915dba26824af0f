package shmcast;

import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import shmcast.ShmcastException.Code;

/** Publishes to one channel, with Java 22 or newer and the C library, libshmcast.so.0. One thread at a time uses a publisher. */
public final class Publisher implements AutoCloseable {
    private final Outlet outlet;

    private Publisher(Outlet outlet) {
        this.outlet = outlet;
    }

    /**
     * Begins to open a channel for publishing.
     *
     * @param channel its name
     * @return what sets the options, and opens
     */
    public static Builder of(String channel) {
        return new Builder(channel);
    }

    /** Says how a publisher opens its channel. */
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
         * Makes the channel in this directory, in the place of $SHMCAST_DIR or the usual one.
         *
         * @param directory where
         * @return this
         */
        public Builder dir(Path directory) {
            this.directory = directory;
            return this;
        }

        /**
         * Publishes to a channel of the daemon at this socket.
         *
         * @param socket its path; null: $SHMCAST_SOCKET, or the usual one
         * @return this
         */
        public Builder daemon(Path socket) {
            isDaemons = true;
            this.socket = socket;
            return this;
        }

        /**
         * The size of the ring; 64 MiB by default, or what the channel has.
         *
         * @param bytes a power of two
         * @return this
         */
        public Builder capacity(long bytes) {
            capacity = bytes;
            return this;
        }

        /**
         * The largest payload; an eighth of the ring by default, and 16 MiB at most.
         *
         * @param bytes how many
         * @return this
         */
        public Builder maxMessage(long bytes) {
            maxMessage = bytes;
            return this;
        }

        /**
         * The permissions of a new channel; 0700 by default.
         *
         * @param mode as of its directory
         * @return this
         */
        public Builder mode(int mode) {
            this.mode = mode;
            return this;
        }

        /**
         * Gives up the memory that is there. Sequences begin at 1 again.
         *
         * @return this
         */
        public Builder anew() {
            flags |= 1;
            return this;
        }

        /**
         * Has a new channel stamp its messages by CLOCK_MONOTONIC, for readers in Java, which can tell their age then.
         *
         * @return this
         */
        public Builder monotonic() {
            flags |= 2;
            return this;
        }

        /**
         * Gives a new channel a board: the last message of each key. One that is there has its own.
         *
         * @param spec what it holds
         * @return this
         */
        public Builder board(BoardSpec spec) {
            board = spec;
            return this;
        }

        /**
         * Adds a gate to a channel that is a file: a reader that this publisher waits for. The gates of a daemon's channel are in its
         * configuration.
         *
         * @param gate its name and limits
         * @return this
         */
        public Builder gate(Gate gate) {
            gates.add(gate);
            return this;
        }

        /**
         * Makes the channel, or takes over the one that is there, with the sequences going on.
         *
         * @return the publisher
         * @throws IOException a {@link ShmcastException}; {@link Code#UNSUPPORTED} before Java 22
         */
        public Publisher open() throws IOException {
            return new Publisher(Native.outlet(this));
        }
    }

    /**
     * Publishes a message. It waits for nothing but gates.
     *
     * @param payload its bytes
     * @return its sequence
     * @throws ShmcastException {@link Code#TOO_LARGE}, {@link Code#CUT_OFF}, or a {@link FullException}
     */
    public long publish(byte[] payload) throws ShmcastException {
        return publish(payload, 0, payload.length, 0, false);
    }

    /**
     * Publishes a message with marks. It waits for nothing but gates, and allocates nothing.
     *
     * @param bytes an array with its bytes
     * @param from where they begin
     * @param length how many
     * @param tag a mark of your own, 0 to 65535
     * @param key whether a reader may start afresh from it
     * @return its sequence
     * @throws ShmcastException {@link Code#TOO_LARGE}, {@link Code#CUT_OFF}, or a {@link FullException}
     */
    public long publish(byte[] bytes, int from, int length, int tag, boolean key) throws ShmcastException {
        return outlet.publish(bytes, from, length, tag, key);
    }

    /**
     * Publishes a message, and never waits for a gate.
     *
     * @param payload its bytes
     * @return its sequence, or 0 if the reader of a gate is too far behind: nothing was published then
     * @throws ShmcastException {@link Code#TOO_LARGE}, {@link Code#CUT_OFF}
     */
    public long tryPublish(byte[] payload) throws ShmcastException {
        return tryPublish(payload, 0, payload.length, 0, false);
    }

    /**
     * Publishes a message with marks, and never waits for a gate.
     *
     * @param bytes an array with its bytes
     * @param from where they begin
     * @param length how many
     * @param tag a mark of your own, 0 to 65535
     * @param key whether a reader may start afresh from it
     * @return its sequence, or 0 if the reader of a gate is too far behind: nothing was published then
     * @throws ShmcastException {@link Code#TOO_LARGE}, {@link Code#CUT_OFF}
     */
    public long tryPublish(byte[] bytes, int from, int length, int tag, boolean key) throws ShmcastException {
        return outlet.tryPublish(bytes, from, length, tag, key);
    }

    /**
     * The channel's gates, with what this publisher has counted. It allocates, and calls the system once a gate.
     *
     * @return the gates, none if the publisher waits for nobody
     * @throws ShmcastException what the system said
     */
    public List<GateStatus> gates() throws ShmcastException {
        return outlet.gates();
    }

    /** {@return the sequence that the next message gets} */
    public long nextSequence() {
        return outlet.nextSequence();
    }

    /** {@return this publisher's incarnation: 1 for the first of a channel} */
    public long epoch() {
        return outlet.epoch();
    }

    /** {@return how many bytes a message may have} */
    public long maxMessage() {
        return outlet.maxMessage();
    }

    /** {@return whether a daemon has given the channel to another publisher} */
    public boolean isCutOff() {
        return outlet.isCutOff();
    }

    /** Closes the channel: readers get what was published, and then the end. */
    @Override
    public void close() {
        outlet.close();
    }
}
