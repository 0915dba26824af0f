package shmcast;

import java.io.IOException;
import java.lang.invoke.VarHandle;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.time.Duration;
import shmcast.Locator.Outcome;
import shmcast.ShmcastException.Code;

/**
 * Receives the messages of a channel, in their order. One thread at a time uses a subscriber. No call that receives allocates, locks, or
 * makes a system call, unless it waits, or a daemon's channel moves to new memory.
 *
 * <p>The owner of the channel can shorten its file. A reader then gets {@link Code#CORRUPT}, or, where the JVM notices it only later, an
 * {@link InternalError} behind the call.
 *
 * <p>With Java 22 and newer there are daemons' channels too, tools list these readers, and the death of a publisher can be told. Java 17
 * has no calls for that: it reads channels that are files.
 */
public final class Subscriber implements AutoCloseable {
    private static final int ATTEMPTS = 100;
    static final Handler NOBODY = message -> {};
    /** The pause between two looks at a lock, which are system calls. */
    private static final long LOCK_PAUSE = 10_000_000;
    /** In the place of a sequence in {@link #behind}: events come from the board. */
    static final long ON_BOARD = -1;

    private final Resume resume;
    private final Wait wait;
    /** This is null unless the reader waits by {@link Wait#BURST}. */
    private final Burst burst;
    Ring ring;
    Locator locator;
    long known;
    private long beganIn;
    /** Whether the publisher of that epoch had closed the channel, without a message for this reader. */
    private boolean awaitsNext;
    boolean isInDoubt;
    /** If not 0, the sequence from which on messages are lost, untold; or {@link #ON_BOARD}. */
    long behind;
    /** Of a reader that begins with the board or conflates, else null. */
    private Boarding boarding;
    /** The gate that this reader holds, or null. */
    private HeldGate gate;
    /** Whether each message is noted, for the gate or for conflation. */
    boolean isNoted;
    /** How often the channel has gone on in another segment. */
    private long moves;

    /** Of a daemon's channel, else null. */
    final Hosted hosted;

    /** Of a channel that is a file, else null. */
    Name name;

    Page page;
    private final boolean recordsLatency;
    /** Messages that the page does not count yet. */
    private long noted;

    private final boolean watches;
    /** Of a channel that is a file and watched, else null. */
    Lock lock;

    private long watchedAt;
    /** Generation and epoch of the last death told. */
    private long goneIn;

    private long gone;

    Subscriber(Builder builder, Ring ring, Hosted hosted) {
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
        /** As {@link Joining} takes it. */
        long conflateBehind = -1;

        boolean readsBoard;
        String gate;

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
         * Reads a channel of the daemon at this socket. Needs Java 22.
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
         * Has tools not list this reader.
         *
         * @return this
         */
        public Builder hidden() {
            isHidden = true;
            return this;
        }

        /**
         * Tells of the publisher's death by {@link Handler#publisherGone}. Needs Java 22, and of a channel that is a file, the right to
         * open its lock.
         *
         * @return this
         */
        public Builder watchPublisher() {
            watches = true;
            return this;
        }

        /**
         * Shows latencies to tools, where the channel's clock is CLOCK_MONOTONIC. It takes one reading of the clock a message.
         *
         * @return this
         */
        public Builder recordLatency() {
            recordsLatency = true;
            return this;
        }

        /**
         * Leaves out what is no longer the newest of its key while the reader cannot keep up. A reader that was lapped, or is more than half
         * of the ring behind, gets the newest message of each key that changed, from the board; then {@link Handler#live}, and every later
         * message. {@link Message#conflated} counts exactly what was left out. What the board cannot bridge, such as messages without a key,
         * is told by {@link Handler#lapped}. A removed key comes as the message that removed it, or as one with the key alone if the board has
         * forgotten that message. If the board was full and refused keys, some removals are only counted by {@link Handler#lapped}. The channel
         * must have a board. It takes a look at the key of each message, and memory for a copy of the board.
         *
         * @return this
         */
        public Builder conflate() {
            return conflateBehind(0);
        }

        /**
         * As {@link #conflate}, for a reader that is more than so many bytes of the ring behind. The publisher announces its work in chunks,
         * by which a reader may count as farther behind than it is. A chunk is a 64th of the ring, but at least 64 KiB, and in a ring below 512 KiB it is an eighth.
         *
         * @param bytes how many; 0: half of the ring
         * @return this
         */
        public Builder conflateBehind(long bytes) {
            conflateBehind = Math.max(bytes, 0);
            return this;
        }

        /**
         * Takes this gate of the channel: the publisher waits for this reader, within the gate's limit. The gate is free again behind {@link
         * #close}. Needs Java 22.
         *
         * @param name what the publisher, or the daemon's configuration, calls it
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
         * @throws IOException as {@link #open}, and {@link Code#NO_BOARD}
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

        /** Whether boards of segments are mapped. */
        boolean wantsBoard() {
            return readsBoard || joins();
        }

        /** Whether the subscriber gets messages of the board. */
        boolean joins() {
            return start == Start.BOARD && sequence == 0 || conflateBehind >= 0;
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
                    return Opening.open(this);
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
    }

    /** Shows this reader to tools on a page, unless that is null. */
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

    /** Tells the gate's page the place of the next record. Everything before it was copied, or will never be. */
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

    static ShmcastException superseded() {
        return new ShmcastException(Code.SUPERSEDED, "the channel has moved to new memory; open it again");
    }

    /** Begins with the board, or with what it has counted, if the builder says so. */
    void board(Builder builder) throws ShmcastException {
        if (builder.joins()) {
            boarding = new Boarding(this, builder.conflateBehind);
            boarding.begin(builder.start);
            notePassed();
        }
    }

    /** The segment that is read now. A board, which receives nothing, goes on in the newest first. */
    Segment follow() throws ShmcastException {
        Ring ring = open();
        if (hosted == null) {
            if (ring.segment.state() == Segment.SUPERSEDED) {
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

    /** The ring of a subscriber that is open. */
    Ring open() {
        if (ring == null) {
            throw new IllegalStateException("the subscriber is closed");
        }
        return ring;
    }

    /**
     * Hands out what is there, in order, up to an end of the stream. It never waits, except that with {@link Wait#BURST} it may first let
     * the publisher get ahead.
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

    /** The JVM gives this error where a mapped file was shortened. It has no type of its own. */
    ShmcastException shortened(InternalError e) {
        if (String.valueOf(e.getMessage()).contains("unsafe memory access")) {
            return corrupt();
        }
        throw e;
    }

    private int pollRing(Handler handler, int most) throws ShmcastException {
        int events = 0;
        // Records that are no events are passed over; a bound of their number bounds the call.
        int passed = 0;
        while (events < most) {
            Ring ring = this.ring; // another one, where the channel goes on
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
                    return events;
                }
                notePassed();
                if (++passed == 64) {
                    return events;
                }
            } else if (tell(found, handler, events)) {
                events++;
                if (found == Ring.Found.END) {
                    return events; // a program that wants no more has not got more
                }
            } else if (found != Ring.Found.EPOCH) {
                return events;
            }
        }
        return events;
    }

    /** Notes a message that was copied, before it is handed out. */
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

    /** Brings the page up to date. */
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

    /** Whether what was just polled must not be handed out, or not yet (CONTROL.md 3). */
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

    /** Whether a daemon holds back some of a strict channel's messages. */
    private boolean isWithheld() {
        return hosted != null && hosted.isStrict && hosted.verdict() != Hosted.Verdict.OPEN;
    }

    /** Does what is due where a poll found nothing. Returns whether an event was handed out. */
    private boolean tellIdle(Handler handler) throws ShmcastException {
        if (isInDoubt && tellHiddenEpoch(handler) || goOn(handler)) {
            return true;
        }
        if (page != null && noted > 0 && ring.hasLooked()) {
            note();
        }
        return watches && tellGone(handler);
    }

    /** Goes on in the next segment of a daemon's channel, if this one is over. A failure leaves the reader where it is. */
    boolean goOn(Handler handler) throws ShmcastException {
        if (hosted == null || !hosted.wasHere() || !hosted.isOtherCharter() && hosted.verdict() != Hosted.Verdict.CUT) {
            return false;
        }
        Segment segment;
        try {
            segment = hosted.next();
        } catch (IOException e) {
            return false; // it tries again later
        }
        if (segment == null) {
            return false;
        }
        long expected = hosted.isRestarted() ? 1 : behind > 0 ? behind : ring.sequence;
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

    /** Tells of the publisher's death once, after all that it committed (SPEC.md 4.1, CONTROL.md 5). */
    private boolean tellGone(Handler handler) throws ShmcastException {
        long word = ring.segment.word(Segment.STATE);
        int state = Segment.stateOf(word);
        long epoch = word >>> 8;
        long generation = hosted == null ? 0 : hosted.generation;
        boolean isAlive = state != Segment.ACTIVE && state != Segment.RECOVERING || gone == epoch && goneIn == generation;
        if (isAlive || !hasDied(epoch) || ring.segment.word(Segment.STATE) != word) {
            return false;
        }
        // All that was committed before comes first.
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

    /** Tells of what is no message. Returns whether an event was handed out. */
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
        if (hosted != null) {
            // Messages of a publisher that was cut off must not count as missed. The valid loss is counted where the channel goes on.
            Hosted.Verdict verdict = hosted.verdict();
            long reached = Math.max(locator.sequence, due);
            boolean isCut = verdict == Hosted.Verdict.CUT && (outcome != Outcome.FOUND || reached >= hosted.cut);
            if (verdict == Hosted.Verdict.CLOSING || isCut) {
                return goOn(handler);
            }
        }
        check(outcome, due);
        if (locator.sequence < due) {
            // The search ended at a place that is overwritten as well. A reader never goes back.
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
        handler.lapped(ring.sequence - due, ring.sequence);
        return true;
    }

    /** Whether an epoch is above those told or known. A record may have told any number. */
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

    /** Tells of an epoch whose record was overwritten. */
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
     * Waits for events and hands them out, up to an end of the stream.
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
            boolean isTimeToLook = wait == Wait.SLEEP || wait == Wait.PARK || (idle & 63) == 63;
            long left = events == 0 && isTimeToLook ? ns - (System.nanoTime() - began) : 1;
            if (events > 0 || left <= 0) {
                return events;
            }
            pause(left);
        }
    }

    /** Waits between two polls that found nothing, as the builder was told. */
    public void idle() {
        pause(Long.MAX_VALUE);
    }

    /** Waits once. Where it sleeps until the daemon rings, that is so long at most. */
    private void pause(long nanos) {
        if (wait == Wait.PARK) {
            park(nanos);
        } else {
            wait.pause();
        }
    }

    /** Sleeps until the daemon rings (CONTROL.md 6). */
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
        awaitsNext = false;
        behind = 0;
        isInDoubt = false;
        ring.jump(locator.position, locator.sequence);
        notePassed();
    }

    /**
     * Says whether the channel is over as things stand: an end was received last, nobody publishes, and nothing lies behind. Each publisher
     * that has closed gives an end, so ask this behind each of them. A subscriber that begins with the latest message of a closed
     * channel waits for the next publisher.
     *
     * @return whether it is over
     */
    public boolean isOver() {
        boolean isBehindEnd = open().isEnded() && behind == 0 && !isWithheld();
        if (!isBehindEnd || hosted != null && hosted.hasNews()) {
            return false;
        }
        long word = ring.segment.word(Segment.STATE);
        int state = Segment.stateOf(word);
        // A publisher sets the state behind the end that it wrote.
        boolean isLast = state == Segment.CLOSED || state == Segment.ACTIVE;
        return isLast && !(awaitsNext && word >>> 8 == beganIn) && !ring.hasMore();
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

    /** Detaches. On Java 17 the map goes with the next collection of garbage, as its maps do. */
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
