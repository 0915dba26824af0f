package shmcast;

import java.util.ArrayList;
import java.util.List;
import shmcast.ShmcastException.Code;

/**
 * The last message of each key of a channel, which can be read at any time. {@link Subscriber.Builder#openBoard} opens a board. A board
 * receives no messages, and nobody notices that it is read. For the board and every later message, use {@link Start#BOARD}. Only one thread
 * at a time can use a board. If a daemon's channel moves to new memory, the board follows it.
 */
public final class Board implements AutoCloseable {
    /** The number of times that a key is looked up again because its slot changes faster than it can be copied. */
    private static final int TRIES = 64;
    /** The greatest number of records in the ring that are searched for such a key. */
    private static final int RECORDS = 4096;

    private final Subscriber subscriber;
    private final BoardEntry entry = new BoardEntry();
    private Segment segment;
    private BoardView view;
    private Message message;
    /** A copy of the whole board, which is made when it is first needed. */
    private Snapshot snapshot;

    Board(Subscriber subscriber) throws ShmcastException {
        this.subscriber = subscriber;
        try {
            follow();
        } catch (ShmcastException e) {
            subscriber.close();
            throw e;
        }
    }

    /** Follows the channel to the board of its newest segment. */
    private void follow() throws ShmcastException {
        Segment now = subscriber.follow();
        if (now == segment) {
            return;
        }
        if (now.board == null) {
            throw Joining.noBoard(now);
        }
        segment = now;
        view = now.board;
        message = new Message(view.layout.stride);
        snapshot = null;
    }

    /**
     * Looks up a key. Reads three or four cache lines if values are small. Allocates nothing and makes no system call, with two exceptions:
     * a daemon's channel has moved to new memory, or the channel is a file, whose name is checked once a second. While a channel moves, its
     * last publisher can still write messages that are void. This method then waits for the new memory.
     *
     * @param key the bytes of the key. A key of another length than the board's keys is never found
     * @return the entry of the key, or null if the board does not have the key. The entry is the same object each time, and is valid until
     *     the next call
     * @throws ShmcastException {@link Code#SUPERSEDED}, {@link Code#NO_BOARD}, {@link Code#BOARD} if another program wrote to the board, or
     *     {@link Code#CORRUPT}
     */
    public BoardEntry get(byte[] key) throws ShmcastException {
        try {
            long began = 0;
            while (true) {
                follow();
                BoardEntry found = key.length == view.layout.keyBytes() ? look(key) : null;
                if (!isVoid()) {
                    return found;
                }
                began = pause(began);
            }
        } catch (InternalError e) {
            throw subscriber.shortened(e);
        }
    }

    /** Whether the data that was just read can be void, because the channel is moving to other memory. */
    private boolean isVoid() {
        Hosted hosted = subscriber.hosted;
        return hosted != null && hosted.verdict() != Hosted.Verdict.OPEN;
    }

    /**
     * Waits for a moment for the channel's new memory. Fails if all waits together take too long. {@code began} is the result of the
     * previous call, or 0.
     */
    private static long pause(long began) throws ShmcastException {
        long now = System.nanoTime();
        if (began != 0 && now - began > Boarding.PATIENCE) {
            throw Joining.failure(Snapshot.Result.TOO_FAST);
        }
        Wait.SLEEP.pause();
        return began == 0 ? now | 1 : began;
    }

    private BoardEntry look(byte[] key) throws ShmcastException {
        BoardLayout layout = view.layout;
        long first = layout.first(key, 0);
        long second = layout.second(key, 0);
        long through = view.through();
        for (int attempt = 0; attempt < TRIES; attempt++) {
            BoardView.Found found = view.get(first, second, message.own);
            if (found == BoardView.Found.NOTHING) {
                return null;
            }
            long count = view.count();
            if (found == BoardView.Found.VALUE) {
                lend();
                return fill(entry, message, BoardLayout.isWhole(view.meta), count);
            }
            Message newest = findInRing(first, second);
            if (newest != null) {
                return layout.isRemoval(newest.length, newest.tag()) ? null : fill(entry, newest, newest.length <= layout.value, count);
            }
        }
        if (view.through() == through) {
            return null; // the publisher was stopped while it gave the slot of this removed key to another key
        }
        throw Joining.failure(Snapshot.Result.TOO_FAST);
    }

    private void lend() {
        message.bytes = message.own;
        message.start = 0;
        message.length = view.layout.stored(view.meta);
        message.sequence = view.sequence;
        message.meta = view.meta & 0xffff_0000_0000_0000L | view.time & 0xffff_ffff_ffffL;
        message.key = (view.meta & BoardLayout.KEY) != 0;
    }

    private BoardEntry fill(BoardEntry entry, Message message, boolean isWhole, long count) {
        entry.bytes = message.bytes;
        entry.keyAt = message.start + view.layout.keyStart;
        entry.keyBytes = view.layout.keyBytes();
        entry.message = isWhole ? message : null;
        entry.sequence = message.sequence;
        entry.count = count;
        return entry;
    }

    /**
     * Searches the ring for the newest message of a key. This is for a slot in which a store is unfinished, so that the board does not
     * count the message yet. Returns null if the message is not found.
     */
    private Message findInRing(long first, long second) {
        BoardLayout layout = view.layout;
        Ring ring = subscriber.open();
        Locator locator = subscriber.locator;
        long through = view.through();
        boolean isThere = through >= 0 && through < Segment.MAX_SEQUENCE && locator.seek(through + 1) == Locator.Outcome.FOUND;
        if (!isThere) {
            return null;
        }
        ring.jump(locator.position, locator.sequence);
        for (int record = 0; record < RECORDS; record++) {
            long before = ring.position;
            if (ring.poll() == Ring.Found.MESSAGE) {
                Message m = ring.message;
                int at = m.start + layout.keyStart;
                if (m.length >= layout.keyEnd && layout.first(m.bytes, at) == first && layout.second(m.bytes, at) == second) {
                    return m;
                }
            } else if (ring.position == before) {
                return null;
            }
        }
        return null;
    }

    /**
     * Copies all keys with their newest messages, as they were at one moment. The first call allocates a copy of the board. Later calls
     * copy only what has changed, and the entries.
     *
     * @return the entries in the order of their sequences. The entries stay valid
     * @throws ShmcastException the same as for {@link #get}
     */
    public List<BoardEntry> entries() throws ShmcastException {
        try {
            long began = 0;
            while (true) {
                follow();
                if (snapshot == null) {
                    snapshot = new Snapshot(view);
                }
                Snapshot.Result result = snapshot.join(subscriber.open(), subscriber.locator);
                if (isVoid()) {
                    began = pause(began);
                } else if (result == Snapshot.Result.JOINED) {
                    break;
                } else {
                    throw Joining.failure(result);
                }
            }
        } catch (InternalError e) {
            throw subscriber.shortened(e);
        }
        int listed = snapshot.list(0, false, true);
        List<BoardEntry> entries = new ArrayList<>(listed);
        for (int number = 0; number < listed; number++) {
            int row = snapshot.row(number);
            snapshot.lend(row, message);
            entries.add(fill(new BoardEntry(), message.copy(view.layout.keyEnd), snapshot.isWhole(row), snapshot.count(row)));
        }
        message.conflated = -1;
        return entries;
    }

    /**
     * Reads the board's counters. This costs only a few loads.
     *
     * @return the sequence up to which the board is complete, and the counts
     * @throws ShmcastException the same as for {@link #get}
     */
    public BoardCounters counters() throws ShmcastException {
        try {
            follow();
            return view.counters();
        } catch (InternalError e) {
            throw subscriber.shortened(e);
        }
    }

    /** {@return the properties of the board} */
    public BoardSpec spec() {
        BoardLayout layout = view.layout;
        return new BoardSpec(layout.keyStart, layout.keyEnd, layout.keys, layout.value, layout.removeTag);
    }

    /**
     * Returns the age of a message, like {@link Subscriber#ageNanos}.
     *
     * @param time {@link Message#time()}
     * @return the ns since the message was published; 0 if its time is in the future; -1 if the age is not known
     */
    public long ageNanos(long time) {
        return subscriber.ageNanos(time);
    }

    /** Closes the board. */
    @Override
    public void close() {
        subscriber.close();
    }
}
