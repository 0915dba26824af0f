package shmcast;

import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.invoke.VarHandle;
import java.util.concurrent.locks.LockSupport;

/**
 * A reader's part of a daemon's channel: the charter (the daemon's decisions), the page, the bell that wakes the reader, and the link to
 * the daemon.
 */
final class Channel extends Hosted {
    private static final long CHARTER_BYTES = 8192;
    private static final long CHARTER_MAGIC = 0x3154_5248_434d_4853L;
    private static final long CHARTER_VERSION = 2;
    private static final long LONGEST_NAP = 100_000_000;
    private static final long ALONE_NAP = 1_000_000;

    private final Link link;
    private final int near;
    private final int far;
    /** Whether the boards of segments are mapped. */
    private final boolean withBoard;
    private final Arena arena = Arena.ofShared();
    private final MemorySegment room = arena.allocate(80, 8);
    private Memory charter;
    private Segment first;
    private Page page;
    private HeldGate gate;
    private Link.Successor next;
    private boolean isRestarted;
    private boolean beginsStream;
    private long firstSequence;

    private Channel(Link link, int near, int far, boolean withBoard) {
        this.link = link;
        this.withBoard = withBoard;
        this.near = near;
        this.far = far;
        room.set(java.lang.foreign.ValueLayout.JAVA_BYTE, 72, (byte) 1);
    }

    static Channel attach(String path, Subscriber.Builder builder) throws IOException {
        int[] bell = builder.parks() ? Libc.pair() : new int[] {-1, -1};
        Channel[] made = new Channel[1];
        Link link = new Link(path, builder.channel, builder.isHidden, builder.watches, bell[1], () -> made[0].wake());
        made[0] = new Channel(link, bell[0], bell[1], builder.wantsBoard());
        made[0].begin(builder.gate);
        return made[0];
    }

    private void begin(String gateName) throws IOException {
        Reply reply;
        try {
            reply = link.begin();
        } catch (IOException e) {
            Libc.close(near, far);
            arena.close();
            throw e;
        }
        generation = reply.number("generation");
        isStrict = reply.is("strict");
        try {
            charter = mapCharter(reply.descriptors[3]);
            first = open(reply.descriptors[0]);
            page = new Native.MappedPage(reply.descriptors[2]);
            gate = gateName == null ? null : link.gate(gateName, first.header);
        } catch (IOException e) {
            if (first != null) {
                first.close();
            }
            close();
            throw e;
        } finally {
            Libc.close(reply.descriptors[3]);
        }
        link.keep();
    }

    /** Checks a copy of a segment's first page, and maps the segment. */
    private Segment open(int fd) throws IOException {
        long size = Libc.stat(fd).size();
        byte[] page = new byte[Header.BYTES];
        if (size >= Header.BYTES) {
            Memory mapped = Memory.map(fd, 0, Header.BYTES, false);
            mapped.copy(0, page, Header.BYTES);
            mapped.close();
        }
        return Segment.of(Header.parse(page, size), page, withBoard ? size : 0, (from, bytes) -> Memory.map(fd, from, bytes, false));
    }

    private static Memory mapCharter(int fd) throws IOException {
        if (Libc.stat(fd).size() < CHARTER_BYTES) {
            throw new IOException("the daemon's charter is too short");
        }
        Memory charter = Memory.map(fd, 0, CHARTER_BYTES, false);
        if (charter.word(0) != CHARTER_MAGIC || charter.word(8) != CHARTER_VERSION) {
            charter.close();
            throw new IOException("the daemon's charter is of another version");
        }
        return charter;
    }

    @Override
    Verdict verdict() {
        VarHandle.fullFence(); // SYNC of SPEC.md 4.2
        long word = charter.word(8 * (512 + 16 * (generation & 31)));
        int kind = (int) (word >>> 62);
        if ((word >>> 48 & 0x1fff) != (generation & 0x1fff) || kind == 0) {
            cut = 0;
            isEndedAtCut = false;
            return Verdict.CUT;
        }
        if (kind == 1) {
            return Verdict.OPEN;
        }
        if (kind == 2) {
            return Verdict.CLOSING;
        }
        cut = word & Segment.MAX_SEQUENCE;
        isEndedAtCut = (word >>> 61 & 1) == 1;
        return Verdict.CUT;
    }

    @Override
    Segment first() {
        return first;
    }

    @Override
    Page page() {
        return page;
    }

    @Override
    HeldGate gate() {
        HeldGate taken = gate;
        gate = null;
        return taken;
    }

    @Override
    boolean wasHere() {
        if (next != null) {
            return true;
        }
        next = link.takeMoved();
        return false;
    }

    @Override
    boolean isOtherCharter() {
        return next.charter() >= 0;
    }

    @Override
    Segment next() throws IOException {
        boolean isOther = isOtherCharter();
        if (!isOther && next.generation() <= generation) {
            next.close();
            next = null;
            return null;
        }
        Memory newCharter = isOther ? mapCharter(next.charter()) : charter;
        Segment segment;
        try {
            segment = open(next.segment());
        } catch (IOException e) {
            if (isOther) {
                newCharter.close();
            }
            throw e;
        }
        if (isOther) {
            charter.close();
            charter = newCharter;
        }
        isRestarted = isOther || next.restarted() > generation;
        beginsStream = next.restarted() == next.generation();
        firstSequence = Math.min(Math.max(next.first(), 1), Segment.MAX_SEQUENCE);
        generation = next.generation();
        isStrict = next.isStrict();
        next.close();
        next = null;
        return segment;
    }

    @Override
    boolean isRestarted() {
        return isRestarted;
    }

    @Override
    boolean beginsStream() {
        return beginsStream;
    }

    @Override
    long firstSequence() {
        return firstSequence;
    }

    @Override
    boolean hasDied(long epoch) {
        return link.hasDied(generation, epoch);
    }

    @Override
    boolean isAttached() {
        return link.isAttached;
    }

    @Override
    boolean hasNews() {
        return next != null || link.hasMoved;
    }

    @Override
    void sleep(long nanos) {
        if (!link.isAttached) {
            LockSupport.parkNanos(Math.min(nanos, ALONE_NAP));
            return;
        }
        Libc.ring(near, room.asSlice(72, 1));
        long nap = Math.min(nanos, LONGEST_NAP);
        Libc.hear(near, room, (int) ((nap + 999_999) / 1_000_000));
    }

    @Override
    void hear() {
        Libc.hear(near, room, 0);
    }

    /** Wakes this reader by its own bell. */
    private void wake() {
        if (far >= 0) {
            Libc.ring(far, room.asSlice(72, 1));
        }
    }

    @Override
    void close() {
        link.close();
        if (gate != null) {
            gate.close();
        }
        if (next != null) {
            next.close();
        }
        if (page != null) {
            page.close();
        }
        if (charter != null) {
            charter.close();
        }
        Libc.close(near, far);
        arena.close();
    }
}
