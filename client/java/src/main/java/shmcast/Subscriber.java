package shmcast;

import java.io.IOException;
import java.lang.invoke.VarHandle;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.concurrent.locks.LockSupport;
import shmcast.Locator.Outcome;
import shmcast.ShmcastException.Code;

/**
 * Receives the messages of a channel, in order. Only one thread at a time can use a subscriber. A call that receives does not allocate,
 * lock, or make system calls, unless it waits, or a daemon's channel moves to new memory.
 *
 * <p>The owner of the channel can shorten its file. A reader then gets {@link Code#CORRUPT}. If the JVM notices the change late, the reader
 * gets an {@link InternalError} after the call.
 *
 * <p>Java 17 reads only channels in files. With Java 22 or newer, subscribers can also read daemons' channels, tools list the subscribers,
 * and the subscribers can get an event of the publisher's death.
 */
public final class Subscriber implements AutoCloseable {
    private static final int ATTEMPTS = 100;
    /** The first pause between two attempts at a daemon, and the longest, in nanoseconds. */
    private static final long FIRST_PAUSE_NS = 5_000_000L;

    private static final long LONGEST_PAUSE_NS = 500_000_000L;
    static final Handler NOBODY = message -> {};
    /** The time between two checks of a lock, in nanoseconds. A check is a system call. */
    private static final long LOCK_PAUSE = 10_000_000;
    /** A value of {@link #behind} in place of a sequence: events come from the board. */
    static final long ON_BOARD = -1;

    private final Resume resume;
    private final Wait wait;
    /** Null unless the reader waits by {@link Wait#BURST}. */
    private final Burst burst;
    Ring ring;
    Locator locator;
    long known;
    private long beganIn;
    /** Whether the publisher of the epoch {@code beganIn} had closed the channel, and had no message for this reader. */
    private boolean awaitsNext;
    boolean isInDoubt;
    /** If this is not 0, the first lost sequence that was not reported yet; or {@link #ON_BOARD}. */
    long behind;
    /** The board of a reader that begins with the board or conflates; otherwise null. */
    private Boarding boarding;
    /** The gate that this reader holds, or null. */
    private HeldGate gate;
    private final String gateName;
    /** Whether each message is noted for the gate or for conflation. */
    boolean isNoted;
    /** The number of times that the channel has moved to another segment. */
    private long moves;

    /** The daemon's part, if the channel belongs to a daemon; otherwise null. */
    final Hosted hosted;

    /** The name of the segment, if the channel is in files; otherwise null. */
    Name name;

    Page page;
    private final boolean recordsLatency;
    /** The number of messages that the page does not count yet. */
    private long noted;

    private final boolean watches;
    /** The publisher's lock, if the channel is in files and the publisher is watched; otherwise null. */
    Lock lock;

    private long watchedAt;
    /** The generation and the epoch of the last death that was reported. */
    private long goneIn;

    private long gone;

    Subscriber(Builder builder, Ring ring, Hosted hosted) {
        gateName = builder.gate;
        resume = builder.resume;
        wait = builder.wait;
        burst = wait == Wait.BURST ? new Burst() : null;
        recordsLatency = builder.recordsLatency;
        watches = builder.watches;
        this.hosted = hosted;
        this.ring = ring;
        locator = new Locator(ring.segment);
    }

    /**
     * Begins to open a channel for reading.
     *
     * @param channel the channel's name
     * @return a builder, which sets the options and opens the channel
     */
    public static Builder of(String channel) {
        return new Builder(channel);
    }

    /** The options with which a subscriber opens a channel. */
    public static final class Builder {
        final String channel;
        Path directory;
        Start start = Start.LATEST;
        long sequence;
        Resume resume = Resume.OLDEST;
        Wait wait = Wait.YIELD;
        private Duration patience = Duration.ZERO;
        boolean isDaemons;
        Path socket;
        boolean isHidden;
        boolean watches;
        boolean recordsLatency;
        /** The lag at which the reader conflates, in the form that {@link Joining} takes. */
        long conflateBehind = -1;

        boolean readsBoard;
        String gate;

        private Builder(String channel) {
            this.channel = channel;
        }

        /**
         * Reads the channels in this directory, instead of $SHMCAST_DIR or the default directory.
         *
         * @param directory the directory
         * @return this
         */
        public Builder dir(Path directory) {
            this.directory = directory;
            return this;
        }

        /**
         * Sets the place at which the subscriber begins; {@link Start#LATEST} by default.
         *
         * @param start the place
         * @return this
         */
        public Builder start(Start start) {
            this.start = start;
            sequence = 0;
            return this;
        }

        /**
         * Begins with this message. If the message was overwritten, the first event is a lap.
         *
         * @param sequence the sequence of the message, from 1
         * @return this
         */
        public Builder from(long sequence) {
            this.sequence = Math.max(sequence, 1);
            return this;
        }

        /**
         * Sets the place at which the subscriber continues after a lap; {@link Resume#OLDEST} by default.
         *
         * @param resume the place
         * @return this
         */
        public Builder resume(Resume resume) {
            this.resume = resume;
            return this;
        }

        /**
         * Sets the way in which {@link #recv} waits; {@link Wait#YIELD} by default.
         *
         * @param wait the way to wait
         * @return this
         */
        public Builder waiting(Wait wait) {
            this.wait = wait;
            return this;
        }

        /**
         * Waits for a channel that does not exist yet. By default, the channel must exist. If the channel appears in this time, a
         * subscriber with {@link Start#LATEST} begins at the oldest message in the ring. A daemon is asked at last twice a second. The
         * wait also continues while the daemon does not run or does not answer, or has too many requests of this user. After such a wait
         * for a channel that exists, a subscriber with {@link Start#LATEST} begins with the next message, and not with the first one since
         * the call: Java cannot read the CPU's counter, by which most channels tell the time.
         *
         * @param patience the longest wait
         * @return this
         */
        public Builder waitForChannel(Duration patience) {
            this.patience = patience;
            return this;
        }

        /**
         * Reads a channel of the daemon at this socket. Needs Java 22.
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
         * Hides this reader from tools.
         *
         * @return this
         */
        public Builder hidden() {
            isHidden = true;
            return this;
        }

        /**
         * Reports the publisher's death by {@link Handler#publisherGone}. Needs Java 22. For a channel in files, it also needs the right to
         * open the channel's lock.
         *
         * @return this
         */
        public Builder watchPublisher() {
            watches = true;
            return this;
        }

        /**
         * Shows latencies to tools, if the channel's clock is CLOCK_MONOTONIC. The clock is then read for each message.
         *
         * @return this
         */
        public Builder recordLatency() {
            recordsLatency = true;
            return this;
        }

        /**
         * Skips messages that are no longer the newest of their key, if the reader cannot keep up. This applies to a reader that was
         * lapped, or is more than half of the ring behind. The reader gets the newest message of each changed key from the board, then
         * {@link Handler#live}, and then every later message.
         *
         * <ul>
         * <li>{@link Message#conflated} is the exact number of skipped messages.
         * <li>{@link Handler#lapped} reports what the board cannot replace, such as messages without a key.
         * <li>A removed key comes as the message that removed it. If the board has forgotten that message, it comes as a message with only
         * the key. If the board was full and refused keys, {@link Handler#lapped} only counts some removals.
         * </ul>
         *
         * <p>The channel must have a board. For each message, the reader looks up its key. The reader also needs memory for a copy of the
         * board.
         *
         * @return this
         */
        public Builder conflate() {
            return conflateBehind(0);
        }

        /**
         * Does the same as {@link #conflate}, for a reader that is more than this number of bytes behind. The publisher announces its
         * progress in chunks, so a reader can count as farther behind than it is. A chunk is a 64th of the ring, but at least 64 KiB. In a
         * ring below 512 KiB, it is an eighth of the ring.
         *
         * @param bytes the number of bytes; 0 for half of the ring
         * @return this
         */
        public Builder conflateBehind(long bytes) {
            conflateBehind = Math.max(bytes, 0);
            return this;
        }

        /**
         * Takes this gate of the channel: the publisher waits for this reader, up to the gate's time limit. {@link #close} frees the gate.
         * Needs Java 22.
         *
         * @param name the gate's name, which the publisher or the daemon's configuration sets
         * @return this
         */
        public Builder gate(String name) {
            gate = name;
            return this;
        }

        /**
         * Opens the channel's board, to read single keys. Options that concern receiving have no effect.
         *
         * @return the board
         * @throws IOException the same as for {@link #open}, and {@link Code#NO_BOARD}
         */
        public Board openBoard() throws IOException {
            Builder reader = new Builder(channel);
            reader.directory = directory;
            reader.isDaemons = isDaemons;
            reader.socket = socket;
            reader.patience = patience;
            reader.isHidden = true;
            reader.readsBoard = true;
            return new Board(reader.open());
        }

        boolean parks() {
            return wait == Wait.PARK;
        }

        /** Whether the boards of segments are mapped. */
        boolean wantsBoard() {
            return readsBoard || joins();
        }

        /** Whether the subscriber gets messages of the board. */
        boolean joins() {
            return start == Start.BOARD && sequence == 0 || conflateBehind >= 0;
        }

        /**
         * Opens the channel.
         *
         * @return the subscriber
         * @throws IOException a {@link ShmcastException}, or the system's error
         */
        public Subscriber open() throws IOException {
            Start asked = start;
            try {
                return await(System.nanoTime(), patience.toNanos());
            } finally {
                start = asked;
            }
        }

        private Subscriber await(long began, long most) throws IOException {
            long pause = FIRST_PAUSE_NS;
            for (int attempt = 1; ; attempt++) {
                try {
                    return Opening.open(this);
                } catch (ShmcastException e) {
                    boolean isAbsent = e.code() == Code.NO_CHANNEL;
                    boolean isEarly = (isAbsent || e.isPassing()) && System.nanoTime() - began < most;
                    if (!isEarly && (e.code() != Code.SUPERSEDED || attempt >= ATTEMPTS)) {
                        throw e;
                    }
                    beginsLate(isAbsent);
                } catch (NoSuchFileException e) {
                    if (System.nanoTime() - began >= most) {
                        throw new ShmcastException(Code.NO_CHANNEL, "no such channel: " + e.getMessage());
                    }
                    beginsLate(true);
                }
                if (isDaemons) {
                    // A daemon limits the requests of each user.
                    LockSupport.parkNanos(Math.max(1, Math.min(pause, began + most - System.nanoTime())));
                    pause = Math.min(2 * pause, LONGEST_PAUSE_NS);
                } else {
                    Wait.SLEEP.pause();
                }
            }
        }

        /** If the channel does not exist yet, all its messages will be new. */
        private void beginsLate(boolean isAbsent) {
            if (isAbsent && start == Start.LATEST && conflateBehind < 0) {
                start = Start.OLDEST;
            }
        }
    }

    /** Shows this reader to tools on a page. Does nothing if the page is null. */
    void show(Page page) {
        this.page = page;
        if (page != null) {
            page.begin(ring.segment.header, ring.position, ring.sequence);
        }
    }

    void begin(Start start, long sought) throws ShmcastException {
        beganIn = ring.segment.epoch();
        Outcome outcome = sought > 0 ? locator.seek(sought) : start == Start.OLDEST ? locator.oldest() : locator.tail();
        if (outcome == Outcome.TOO_OLD) {
            behind = sought;
            ring.jump(0, sought);
        } else {
            check(outcome, sought);
            ring.jump(locator.position, locator.sequence);
        }
        known = sought == 0 && start != Start.OLDEST || beganIn == 1 ? beganIn : 0;
        boolean isClosed = sought == 0 && start == Start.LATEST && ring.segment.state() == Segment.CLOSED;
        awaitsNext = isClosed && locator.tail() == Outcome.FOUND && ring.sequence >= locator.sequence;
    }

    /** Takes the gate that was locked for this reader. */
    void hold(HeldGate held) {
        gate = held;
        if (held != null) {
            isNoted = true;
            notePassed();
        }
    }

    /** Stores the place of the next record on the gate's page. Everything before this place was copied, or will never be copied. */
    void notePassed() {
        if (gate == null || ring == null) {
            return;
        }
        if (behind > 0) {
            gate.leave(); // the reader has no place in the ring
        } else {
            gate.passed(ring.position, ring.sequence);
        }
    }

    void check(Outcome outcome, long sought) throws ShmcastException {
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

    private ShmcastException gateLost() {
        return new ShmcastException(
                Code.GATE, "the page of gate '" + gateName + "' was removed or moved, so publishers stop waiting for this reader; open it again");
    }

    static ShmcastException superseded() {
        return new ShmcastException(Code.SUPERSEDED, "the channel has moved to new memory; open it again");
    }

    /** Begins with the board, or only with its counts, if the builder says so. */
    void board(Builder builder) throws ShmcastException {
        if (builder.joins()) {
            boarding = new Boarding(this, builder.conflateBehind);
            boarding.begin(builder.start);
            notePassed();
        }
    }

    /** Returns the present segment. First moves to the newest segment, because a board receives no event that would move it. */
    Segment follow() throws ShmcastException {
        Ring ring = open();
        if (hosted == null) {
            if (ring.segment.state() == Segment.SUPERSEDED) {
                throw superseded();
            }
            if (name != null && name.isLost(true)) {
                throw superseded();
            }
            return ring.segment;
        }
        for (long before = -1; before != moves && (hosted.wasHere() || hosted.hasNews()); ) {
            before = moves;
            goOn(NOBODY);
        }
        return this.ring.segment;
    }

    /** Returns the ring. The subscriber must be open. */
    Ring open() {
        if (ring == null) {
            throw new IllegalStateException("the subscriber is closed");
        }
        return ring;
    }

    /**
     * Passes the available events to the handler, in order, up to an end of the stream. Never waits. Only with {@link Wait#BURST}, it can
     * first let the publisher get ahead.
     *
     * @param handler the handler of the events
     * @param most the greatest number of events
     * @return the number of events
     * @throws ShmcastException {@link Code#CORRUPT} or {@link Code#SUPERSEDED}. Nothing more can be read then. If the error comes after
     *     some events, the next call throws it
     */
    public int poll(Handler handler, int most) throws ShmcastException {
        Ring ring = open();
        try {
            if (burst == null) {
                return pollRing(handler, most);
            }
            burst.pause(ring);
            int events = pollRing(handler, most);
            if (this.ring != null) {
                burst.note(this.ring, events < most);
            }
            return events;
        } catch (InternalError e) {
            throw shortened(e);
        }
    }

    /** The JVM throws this error if a mapped file was shortened. The error has no class of its own. */
    ShmcastException shortened(InternalError e) {
        if (String.valueOf(e.getMessage()).contains("unsafe memory access")) {
            return corrupt();
        }
        throw e;
    }

    private int pollRing(Handler handler, int most) throws ShmcastException {
        int events = 0;
        // Records that are not events are skipped. Their number has a limit, so the call always ends.
        int passed = 0;
        while (events < most) {
            Ring ring = this.ring; // after a move of the channel, this is another ring
            if (ring == null) {
                return events; // the handler has closed this subscriber
            }
            if (behind != 0) {
                if (behind == ON_BOARD) {
                    events += boarding.tell(handler) ? 1 : 0;
                    continue;
                }
                ring.jump(0, behind);
                if (boarding != null && boarding.conflate()) {
                    continue;
                }
                if (!skip(handler)) {
                    return events;
                }
                events++;
                continue;
            }
            long before = ring.position;
            long due = ring.sequence;
            Ring.Found found = ring.poll();
            if (hosted != null && hosted.isStrict && withholds(found, due)) {
                ring.jump(before, due);
                return events + (goOn(handler) ? 1 : 0);
            }
            if (found == Ring.Found.MESSAGE) {
                events++;
                if (page != null) {
                    count(ring.message);
                }
                if (isNoted) {
                    noteMessage(ring);
                }
                handler.message(ring.message);
            } else if (found == Ring.Found.NOTHING) {
                if (ring.position == before) {
                    events += tellIdle(handler) ? 1 : 0;
                    if (events == 0 && name != null && name.isLost(ring.hasLooked())) {
                        throw superseded();
                    }
                    if (events == 0 && gate != null && gate.isLost(ring.hasLooked())) {
                        throw gateLost();
                    }
                    return events;
                }
                notePassed();
                if (++passed == 64) {
                    return events;
                }
            } else if (tell(found, handler, events)) {
                events++;
                if (found == Ring.Found.END) {
                    return events; // a program that stops here must not have received more events
                }
            } else if (found != Ring.Found.EPOCH) {
                return events;
            }
        }
        return events;
    }

    /** Notes a message that was copied, before the handler gets it. */
    private void noteMessage(Ring ring) {
        if (gate != null) {
            gate.passed(ring.position, ring.sequence);
        }
        if (boarding != null) {
            boarding.note();
        }
    }

    void count(Message message) {
        if (recordsLatency) {
            long age = ageNanos(message.time());
            if (age >= 0) {
                page.record(age);
            }
        }
        if (++noted == 1024) {
            note();
        }
    }

    /** Brings the reader page up to date. */
    void note() {
        if (page != null) {
            page.set(Page.POSITION, ring.position);
            page.set(Page.SEQUENCE, ring.sequence);
            page.add(Page.RECEIVED, noted);
            noted = 0;
            if (ring.segment.header.clockKind() == 0) {
                page.set(Page.HEARTBEAT, System.nanoTime());
            }
        }
    }

    void noteMissed(long messages) {
        if (page != null) {
            page.add(Page.MISSED, messages);
            note();
        }
    }

    /** Whether the event that was just polled must not be passed to the handler, or not yet (CONTROL.md 3). */
    private boolean withholds(Ring.Found found, long due) {
        if (found == Ring.Found.NOTHING || found == Ring.Found.LAPPED || found == Ring.Found.SUPERSEDED) {
            return false;
        }
        return switch (hosted.verdict()) {
            case OPEN -> false;
            case CLOSING -> true;
            case CUT -> switch (found) {
                case MESSAGE, GAP -> due >= hosted.cut;
                case END -> ring.sequence > hosted.cut || ring.sequence == hosted.cut && !hosted.isEndedAtCut;
                default -> ring.sequence >= hosted.cut;
            };
        };
    }

    /** Whether readers must not get some messages of a strict channel yet, because the daemon has not decided about them. */
    private boolean isWithheld() {
        return hosted != null && hosted.isStrict && hosted.verdict() != Hosted.Verdict.OPEN;
    }

    /** Does the work that is due if a poll found nothing. Returns whether the handler got an event. */
    private boolean tellIdle(Handler handler) throws ShmcastException {
        if (isInDoubt && tellHiddenEpoch(handler) || goOn(handler)) {
            return true;
        }
        if (page != null && noted > 0 && ring.hasLooked()) {
            note();
        }
        return watches && tellGone(handler);
    }

    /** Continues in the next segment of a daemon's channel, if the present one is over. After a failure, the reader stays at its place. */
    boolean goOn(Handler handler) throws ShmcastException {
        if (hosted == null || !hosted.wasHere() || !hosted.isOtherCharter() && hosted.verdict() != Hosted.Verdict.CUT) {
            return false;
        }
        Segment segment;
        try {
            segment = hosted.next();
        } catch (ShmcastException e) {
            throw e;
        } catch (IOException e) {
            throw new ShmcastException(Code.OTHER, "the channel's next memory cannot be mapped; receive again to try again: " + e.getMessage());
        }
        if (segment == null) {
            return false;
        }
        long expected = hosted.dueIn(behind > 0 ? behind : ring.sequence);
        ring.segment.close();
        ring = new Ring(segment, !hosted.isStrict);
        locator = new Locator(segment);
        ring.jump(0, hosted.firstSequence());
        isInDoubt = false;
        behind = expected < hosted.firstSequence() ? expected : 0;
        moves++;
        if (gate != null) {
            gate.goOn(segment.header);
            notePassed();
        }
        if (boarding != null) {
            boarding.goOn(segment, hosted.isRestarted());
        }
        if (!hosted.isRestarted()) {
            return false;
        }
        known = 0;
        beganIn = 0;
        gone = 0;
        handler.restarted();
        return true;
    }

    /** Reports the publisher's death once, after all messages that the publisher committed (SPEC.md 4.1, CONTROL.md 5). */
    private boolean tellGone(Handler handler) throws ShmcastException {
        long word = ring.segment.word(Segment.STATE);
        int state = Segment.stateOf(word);
        long epoch = word >>> 8;
        long generation = hosted == null ? 0 : hosted.generation;
        boolean isAlive = state != Segment.ACTIVE && state != Segment.RECOVERING || gone == epoch && goneIn == generation;
        if (isAlive || !hasDied(epoch) || ring.segment.word(Segment.STATE) != word) {
            return false;
        }
        // All messages that were committed before the death come first.
        if (isInDoubt || ring.hasMore() || isWithheld()) {
            watchedAt = 0;
            return false;
        }
        gone = epoch;
        goneIn = generation;
        handler.publisherGone(epoch);
        return true;
    }

    private boolean hasDied(long epoch) throws ShmcastException {
        if (hosted != null) {
            return hosted.hasDied(epoch);
        }
        long now = System.nanoTime();
        if (watchedAt != 0 && now - watchedAt < LOCK_PAUSE) {
            return false;
        }
        watchedAt = now;
        try {
            return !lock.isHeld();
        } catch (IOException e) {
            throw new ShmcastException(Code.OTHER, "the publisher's lock cannot be looked at: " + e.getMessage());
        }
    }

    /** Reports an event that is not a message. Returns whether the handler got an event. */
    private boolean tell(Ring.Found found, Handler handler, int events) throws ShmcastException {
        notePassed();
        switch (found) {
            case EPOCH -> {
                if (ring.a == known) {
                    return false;
                }
                known = ring.a;
                handler.newEpoch(known);
            }
            case END -> handler.end();
            case GAP -> {
                noteMissed(ring.b - ring.a + 1);
                handler.gap(ring.a, ring.b);
            }
            case SESSION -> handler.newSession(ring.a, ring.b & 0xffff);
            case LAPPED -> {
                if (boarding != null && boarding.conflate()) {
                    return boarding.tell(handler);
                }
                return skip(handler);
            }
            default -> {
                if (hosted != null && (found == Ring.Found.SUPERSEDED || hosted.verdict() == Hosted.Verdict.CUT)) {
                    return goOn(handler);
                }
                if (events > 0) {
                    return false; // the next call finds this error again
                }
                throw found == Ring.Found.SUPERSEDED ? superseded() : corrupt();
            }
        }
        return true;
    }

    /** Continues after a lap (SPEC.md 3.3). Returns whether the lap was reported. */
    private boolean skip(Handler handler) throws ShmcastException {
        long due = ring.sequence;
        Outcome outcome = placeToResume();
        if (hosted != null) {
            // Messages of a publisher that was cut off must not count as missed. The next segment gives the right count of lost messages.
            Hosted.Verdict verdict = hosted.verdict();
            long reached = Math.max(locator.sequence, due);
            boolean isCut = verdict == Hosted.Verdict.CUT && (outcome != Outcome.FOUND || reached >= hosted.cut);
            if (verdict == Hosted.Verdict.CLOSING || isCut) {
                return goOn(handler);
            }
        }
        check(outcome, due);
        if (locator.sequence < due) {
            // The place that was found is before the reader's place, so it is overwritten too. A reader never goes back.
            return false;
        }
        ring.jump(locator.position, locator.sequence);
        VarHandle.acquireFence();
        isInDoubt = isUntold(ring.segment.epoch());
        behind = 0;
        if (page != null) {
            page.add(Page.LAPPED, 1);
        }
        notePassed();
        noteMissed(ring.sequence - due);
        if (boarding != null) {
            boarding.noteLoss();
        }
        handler.lapped(ring.sequence - due, ring.sequence);
        return true;
    }

    /** Whether an epoch is later than those that were reported or known. A damaged record can have reported any number. */
    boolean isUntold(long epoch) {
        return Long.compareUnsigned(epoch, known) > 0 && epoch > beganIn;
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

    /** Reports an epoch whose record was overwritten. */
    private boolean tellHiddenEpoch(Handler handler) {
        long word = ring.segment.word(Segment.STATE);
        if (ring.hasMore() || isWithheld()) {
            return false;
        }
        isInDoubt = false;
        long epoch = word >>> 8;
        if (Segment.stateOf(word) != Segment.ACTIVE || !isUntold(epoch)) {
            return false;
        }
        known = epoch;
        handler.newEpoch(epoch);
        return true;
    }

    /**
     * Waits for events and passes them to the handler, up to an end of the stream.
     *
     * @param handler the handler of the events
     * @param limit the longest wait
     * @return the number of events, at most 256; 0 if none arrived
     * @throws ShmcastException the same as for {@link #poll}
     */
    public int recv(Handler handler, Duration limit) throws ShmcastException {
        long began = System.nanoTime();
        long ns = limit.toNanos();
        for (int idle = 0; ; idle++) {
            int events = poll(handler, 256);
            boolean isTimeToLook = wait == Wait.SLEEP || wait == Wait.PARK || (idle & 63) == 63;
            long left = events == 0 && isTimeToLook ? ns - (System.nanoTime() - began) : 1;
            if (events > 0 || left <= 0) {
                return events;
            }
            pause(left);
        }
    }

    /** Waits between two polls that found nothing, in the way that the builder set. */
    public void idle() {
        pause(Long.MAX_VALUE);
    }

    /** Waits once. A sleep until the daemon wakes this reader lasts at most {@code nanos}. */
    private void pause(long nanos) {
        if (wait == Wait.PARK) {
            park(nanos);
        } else {
            wait.pause();
        }
    }

    /** Sleeps until the daemon wakes this reader (CONTROL.md 6). */
    private void park(long nanos) {
        ring.lookNext();
        if (behind != 0) {
            return;
        }
        note();
        if (!hosted.isAttached()) {
            hosted.sleep(nanos);
            return;
        }
        page.sleeps(ring.position);
        VarHandle.fullFence();
        boolean isOver = ring.segment.state() == Segment.CLOSED && !ring.isEnded();
        if (!ring.hasMore() && !hosted.hasNews() && !isOver) {
            hosted.sleep(nanos);
        }
        page.wakes();
        hosted.hear();
    }

    /**
     * Continues at another message, forwards or backwards.
     *
     * @param sequence the sequence of the message
     * @throws ShmcastException {@link Code#TOO_OLD} or {@link Code#NOT_YET}, after which the subscriber stays at its place, or
     *     {@link Code#CORRUPT}
     */
    public void seek(long sequence) throws ShmcastException {
        long epoch = open().segment.epoch();
        check(locator.seek(sequence), sequence);
        known = 0;
        beganIn = epoch;
        awaitsNext = false;
        behind = 0;
        isInDoubt = false;
        ring.jump(locator.position, locator.sequence);
        notePassed();
    }

    /**
     * Whether the channel is over at the moment: the last event was an end, nobody publishes, and no message is left. Each publisher that
     * closes the channel causes an end, so call this after each end. A subscriber that begins with the latest message of a closed channel
     * waits for the next publisher.
     *
     * @return whether the channel is over
     */
    public boolean isOver() {
        boolean isBehindEnd = open().isEnded() && behind == 0 && !isWithheld();
        if (!isBehindEnd || hosted != null && hosted.hasNews()) {
            return false;
        }
        long word = ring.segment.word(Segment.STATE);
        int state = Segment.stateOf(word);
        // A publisher writes the end first, and then sets the state.
        boolean isLast = state == Segment.CLOSED || state == Segment.ACTIVE;
        return isLast && !(awaitsNext && word >>> 8 == beganIn) && !ring.hasMore();
    }

    /** {@return the sequence of the next message} */
    public long nextSequence() {
        return open().sequence;
    }

    /** {@return the publisher's epoch, as far as the received events show it; 0 if they do not show it yet} */
    public long epoch() {
        return known;
    }

    /** {@return the number of messages that are published and not yet received. It can be up to 64 too low} */
    public long lag() {
        return Math.max(open().segment.word(Segment.COUNT) + 1 - ring.sequence, 0);
    }

    /** {@return the properties that the channel's creator chose} */
    public Header header() {
        return open().segment.header;
    }

    /**
     * Returns the age of a message, if the channel's clock is CLOCK_MONOTONIC. Java cannot read the CPU's counter.
     *
     * @param time {@link Message#time()}
     * @return the ns since the message was published; 0 if its time is in the future; -1 if the age is not known
     */
    public long ageNanos(long time) {
        if (open().segment.header.clockKind() != 0 || time == 0) {
            return -1;
        }
        long elapsed = System.nanoTime() - time & 0xffff_ffff_ffffL;
        return elapsed > 1L << 47 ? 0 : elapsed;
    }

    /** Closes the subscriber. In Java 17, the next garbage collection removes the map. */
    @Override
    public void close() {
        if (ring == null) {
            return;
        }
        note();
        if (gate != null) {
            gate.close();
        }
        if (hosted != null) {
            hosted.close();
        } else if (page != null) {
            page.close();
        }
        if (lock != null) {
            lock.close();
        }
        ring.segment.close();
        ring = null;
        locator = null;
        page = null;
    }
}
