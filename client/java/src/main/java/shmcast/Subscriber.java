package shmcast;

import java.io.IOException;
import java.lang.invoke.VarHandle;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.time.Duration;
import shmcast.Locator.Outcome;
import shmcast.ShmcastException.Code;

/**
 * Receives the messages of a channel that is a file, in their order. One thread at a time uses a subscriber. No call that receives
 * allocates, locks, or makes a system call, unless it waits.
 *
 * <p>The owner of the channel can shorten its file. A reader then gets {@link Code#CORRUPT}, or, where the JVM notices it only later, an
 * {@link InternalError} behind the call.
 *
 * <p>Tools do not list these readers, because Java has no locks of the kind that a reader's page needs.
 */
public final class Subscriber implements AutoCloseable {
    private static final int ATTEMPTS = 100;

    private final Resume resume;
    private final Wait wait;
    private Ring ring;
    private Locator locator;
    private long known;
    private long beganIn;
    private boolean isInDoubt;
    /** If not 0, the sequence from which on messages are lost, untold. */
    private long behind;

    private Subscriber(Builder builder, Ring ring) {
        resume = builder.resume;
        wait = builder.wait;
        this.ring = ring;
        locator = new Locator(ring.segment);
    }

    /**
     * Begins to attach to a channel.
     *
     * @param channel its name
     * @return what sets the options, and opens
     */
    public static Builder of(String channel) {
        return new Builder(channel);
    }

    /** Says how a subscriber attaches. */
    public static final class Builder {
        private final String channel;
        private Path directory;
        private Start start = Start.LATEST;
        private long sequence;
        private Resume resume = Resume.OLDEST;
        private Wait wait = Wait.YIELD;
        private Duration patience = Duration.ZERO;

        private Builder(String channel) {
            this.channel = channel;
        }

        /**
         * Reads the channels in this directory, in the place of $SHMCAST_DIR or the usual one.
         *
         * @param directory where
         * @return this
         */
        public Builder dir(Path directory) {
            this.directory = directory;
            return this;
        }

        /**
         * Where to begin; {@link Start#LATEST} by default.
         *
         * @param start where
         * @return this
         */
        public Builder start(Start start) {
            this.start = start;
            sequence = 0;
            return this;
        }

        /**
         * Begins with this message. If it is overwritten, the first event is a lap.
         *
         * @param sequence its sequence, from 1
         * @return this
         */
        public Builder from(long sequence) {
            this.sequence = Math.max(sequence, 1);
            return this;
        }

        /**
         * Where to go on after a lap; {@link Resume#OLDEST} by default.
         *
         * @param resume where
         * @return this
         */
        public Builder resume(Resume resume) {
            this.resume = resume;
            return this;
        }

        /**
         * How {@link #recv} waits; {@link Wait#YIELD} by default.
         *
         * @param wait how
         * @return this
         */
        public Builder waiting(Wait wait) {
            this.wait = wait;
            return this;
        }

        /**
         * Waits so long for the channel to appear. By default it must be there.
         *
         * @param patience how long
         * @return this
         */
        public Builder waitForChannel(Duration patience) {
            this.patience = patience;
            return this;
        }

        /**
         * Attaches.
         *
         * @return the subscriber
         * @throws IOException a {@link ShmcastException}, or what the system said
         */
        public Subscriber open() throws IOException {
            long until = System.nanoTime() + patience.toNanos();
            for (int attempt = 1; ; attempt++) {
                try {
                    return attach();
                } catch (ShmcastException e) {
                    boolean isEarly = e.code() == Code.NO_CHANNEL && System.nanoTime() < until;
                    if (!isEarly && (e.code() != Code.SUPERSEDED || attempt >= ATTEMPTS)) {
                        throw e;
                    }
                } catch (NoSuchFileException e) {
                    if (System.nanoTime() >= until) {
                        throw new ShmcastException(Code.NO_CHANNEL, "no such channel: " + e.getMessage());
                    }
                }
                Wait.SLEEP.pause();
            }
        }

        private Subscriber attach() throws IOException {
            Subscriber subscriber = new Subscriber(this, new Ring(Segment.open(Directory.segmentOf(directory, channel))));
            subscriber.begin(start, sequence);
            if (subscriber.ring.segment.state() == Segment.SUPERSEDED) {
                throw superseded();
            }
            return subscriber;
        }
    }

    private void begin(Start start, long sought) throws ShmcastException {
        beganIn = ring.segment.epoch();
        Outcome outcome = sought > 0 ? locator.seek(sought) : start == Start.OLDEST ? locator.oldest() : locator.tail();
        if (outcome == Outcome.TOO_OLD) {
            behind = sought;
            ring.jump(0, sought);
        } else {
            check(outcome, sought);
            ring.jump(locator.position, locator.sequence);
        }
        known = sought == 0 && start == Start.LATEST || beganIn == 1 ? beganIn : 0;
    }

    private void check(Outcome outcome, long sought) throws ShmcastException {
        switch (outcome) {
            case TOO_OLD -> throw new ShmcastException(
                    Code.TOO_OLD, "message " + sought + " is overwritten; the oldest is " + locator.sequence);
            case NOT_YET -> throw new ShmcastException(
                    Code.NOT_YET, "message " + sought + " is not published yet; the next one is " + locator.sequence);
            case CORRUPT, OVERRUN -> throw corrupt();
            case FOUND -> {}
        }
    }

    private ShmcastException corrupt() {
        return new ShmcastException(
                Code.CORRUPT,
                "another program wrote to the channel's memory, at position " + ring.position + ", where sequence " + ring.sequence + " is due");
    }

    private static ShmcastException superseded() {
        return new ShmcastException(Code.SUPERSEDED, "the channel has moved to new memory; open it again");
    }

    private Ring open() {
        if (ring == null) {
            throw new IllegalStateException("the subscriber is closed");
        }
        return ring;
    }

    /**
     * Hands out what is there, in order. It never waits.
     *
     * @param handler takes the events
     * @param most how many at most
     * @return how many it handed out
     * @throws ShmcastException {@link Code#CORRUPT} or {@link Code#SUPERSEDED}; nothing more can be read then. An error behind events
     *     that were handed out comes at the next call
     */
    public int poll(Handler handler, int most) throws ShmcastException {
        Ring ring = open();
        try {
            return pollRing(ring, handler, most);
        } catch (InternalError e) {
            // The JVM gives this where a mapped file was shortened. It has no type of its own.
            if (String.valueOf(e.getMessage()).contains("unsafe memory access")) {
                throw corrupt();
            }
            throw e;
        }
    }

    private int pollRing(Ring ring, Handler handler, int most) throws ShmcastException {
        int events = 0;
        // Records that are no events are passed over; a bound of their number bounds the call.
        int passed = 0;
        while (events < most) {
            if (behind != 0) {
                ring.jump(0, behind);
                if (!skip(handler)) {
                    return events;
                }
                events++;
                continue;
            }
            long before = ring.position;
            Ring.Found found = ring.poll();
            if (found == Ring.Found.MESSAGE) {
                events++;
                handler.message(ring.message);
            } else if (found == Ring.Found.NOTHING) {
                if (ring.position == before) {
                    return events + (isInDoubt && tellHiddenEpoch(handler) ? 1 : 0);
                }
                if (++passed == 64) {
                    return events;
                }
            } else if (tell(found, handler, events)) {
                events++;
            } else if (found != Ring.Found.EPOCH) {
                return events;
            }
        }
        return events;
    }

    /** Tells of what is no message. Returns whether an event was handed out. */
    private boolean tell(Ring.Found found, Handler handler, int events) throws ShmcastException {
        switch (found) {
            case EPOCH -> {
                if (ring.a == known) {
                    return false;
                }
                known = ring.a;
                handler.newEpoch(known);
            }
            case END -> handler.end();
            case GAP -> handler.gap(ring.a, ring.b);
            case SESSION -> handler.newSession(ring.a, ring.b & 0xffff);
            case LAPPED -> {
                return skip(handler);
            }
            default -> {
                if (events > 0) {
                    return false; // it comes again
                }
                throw found == Ring.Found.SUPERSEDED ? superseded() : corrupt();
            }
        }
        return true;
    }

    /** Goes on after a lap (SPEC.md 3.3). Returns whether it was told. */
    private boolean skip(Handler handler) throws ShmcastException {
        long due = ring.sequence;
        Outcome outcome = placeToResume();
        check(outcome, due);
        if (locator.sequence < due) {
            // The search ended at a place that is overwritten as well. A reader never goes back.
            return false;
        }
        ring.jump(locator.position, locator.sequence);
        VarHandle.acquireFence();
        isInDoubt = ring.segment.epoch() > Math.max(known, beganIn);
        behind = 0;
        handler.lapped(ring.sequence - due, ring.sequence);
        return true;
    }

    private Outcome placeToResume() {
        if (resume == Resume.LATEST) {
            return locator.tail();
        }
        if (resume == Resume.KEY) {
            long key = ring.segment.word(Segment.KEY);
            if (key > ring.sequence && key < Segment.MAX_SEQUENCE && locator.seek(key) == Outcome.FOUND) {
                return Outcome.FOUND;
            }
        }
        return locator.oldest();
    }

    /** Tells of an epoch whose record was overwritten. */
    private boolean tellHiddenEpoch(Handler handler) {
        long word = ring.segment.word(Segment.STATE);
        if (ring.hasMore()) {
            return false;
        }
        isInDoubt = false;
        long epoch = word >>> 8;
        if (Segment.stateOf(word) != Segment.ACTIVE || epoch <= Math.max(known, beganIn)) {
            return false;
        }
        known = epoch;
        handler.newEpoch(epoch);
        return true;
    }

    /**
     * Waits for events and hands them out.
     *
     * @param handler takes them
     * @param limit how long to wait at most
     * @return how many it handed out, 256 at most; 0 if none came
     * @throws ShmcastException as {@link #poll}
     */
    public int recv(Handler handler, Duration limit) throws ShmcastException {
        long began = System.nanoTime();
        long ns = limit.toNanos();
        for (int idle = 0; ; idle++) {
            int events = poll(handler, 256);
            boolean isTimeToLook = wait == Wait.SLEEP || (idle & 63) == 63;
            if (events > 0 || isTimeToLook && System.nanoTime() - began >= ns) {
                return events;
            }
            wait.pause();
        }
    }

    /** Waits between two polls that found nothing, as the builder was told. */
    public void idle() {
        wait.pause();
    }

    /**
     * Goes on at a message, forwards or backwards.
     *
     * @param sequence its sequence
     * @throws ShmcastException {@link Code#TOO_OLD} or {@link Code#NOT_YET}, which leave the subscriber where it is, or {@link
     *     Code#CORRUPT}
     */
    public void seek(long sequence) throws ShmcastException {
        long epoch = open().segment.epoch();
        check(locator.seek(sequence), sequence);
        known = 0;
        beganIn = epoch;
        behind = 0;
        isInDoubt = false;
        ring.jump(locator.position, locator.sequence);
    }

    /** {@return the sequence of the next message expected} */
    public long nextSequence() {
        return open().sequence;
    }

    /** {@return the publisher's incarnation as far as the stream has told; 0 as long as it has not} */
    public long epoch() {
        return known;
    }

    /** {@return how many messages are published and not yet received; it may be up to 64 too low} */
    public long lag() {
        return Math.max(open().segment.word(Segment.COUNT) + 1 - ring.sequence, 0);
    }

    /** {@return the facts that the channel was made with} */
    public Header header() {
        return open().segment.header;
    }

    /**
     * The age of a message, if the channel's clock is CLOCK_MONOTONIC. Java cannot read the CPU's counter.
     *
     * @param time {@link Message#time()}
     * @return ns since it was published; 0 if that lies ahead; -1 if it cannot be told
     */
    public long ageNanos(long time) {
        if (open().segment.header.clockKind() != 0 || time == 0) {
            return -1;
        }
        long elapsed = System.nanoTime() - time & 0xffff_ffff_ffffL;
        return elapsed > 1L << 47 ? 0 : elapsed;
    }

    /** Detaches. The map goes with the next collection of garbage, as Java's maps do. */
    @Override
    public void close() {
        ring = null;
        locator = null;
    }
}
