package shmcast;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import shmcast.ShmcastException.Code;

/** A mapped segment whose header was checked. Another process can write it at any time, so each word is checked before use. */
final class Segment {
    static final int FRONTIER = 16;
    static final int STATE = 32;
    static final int COUNT = 48;
    static final int KEY = 50;
    private static final int FIRST = 56;
    private static final int BOARD = 60;
    static final long MAX_SEQUENCE = (1L << 48) - 1;
    static final long MAX_POSITION = 1L << 62;
    static final int ACTIVE = 1;
    static final int RECOVERING = 2;
    static final int CLOSED = 3;
    static final int SUPERSEDED = 4;

    final Header header;
    final long capacity;
    final int maxMessage;
    private final Memory page;
    private final Memory index;
    private final Memory data;
    /** The board, if the segment has a board and the caller requested it; otherwise null. */
    final BoardView board;

    private Segment(Header header, Memory page, Memory index, Memory data, BoardView board) {
        this.board = board;
        this.header = header;
        this.page = page;
        this.index = index;
        this.data = data;
        capacity = header.capacity();
        maxMessage = header.maxMessage();
    }

    /** The source of a segment's bytes. */
    interface Source {
        Memory map(long from, long bytes) throws IOException;
    }

    /** Maps a file read-only, and checks it by SPEC.md 1.1. */
    static Segment open(Path path, boolean withBoard) throws IOException {
        try (FileChannel file = FileChannel.open(path, Set.of(StandardOpenOption.READ, LinkOption.NOFOLLOW_LINKS))) {
            long size = file.size();
            ByteBuffer page = ByteBuffer.allocate(Header.BYTES);
            while (page.hasRemaining() && file.read(page, page.position()) > 0) {
                // A file that is too short is refused later.
            }
            Header header = Header.parse(page.array(), Math.min(size, page.hasRemaining() ? page.position() : size));
            return of(header, page.array(), withBoard ? size : 0, (from, bytes) -> Memory.map(file, from, bytes));
        }
    }

    /**
     * Maps a segment with this header. {@code first} is the checked copy of the file's first page. {@code size} is the size of the file, or
     * 0 if the caller wants no board.
     */
    static Segment of(Header header, byte[] first, long size, Source source) throws IOException {
        List<Memory> maps = new ArrayList<>();
        try {
            maps.add(source.map(0, Header.BYTES));
            maps.add(source.map(Header.BYTES, 8 * header.indexEntries()));
            maps.add(source.map(header.dataOffset(), header.capacity()));
            BoardView board = size == 0 ? null : board(header, first, size, source);
            return new Segment(header, maps.get(0), maps.get(1), maps.get(2), board);
        } catch (IOException | RuntimeException e) {
            maps.forEach(Memory::close);
            throw e;
        }
    }

    /** Maps the board that the header names. Returns null if there is none. */
    private static BoardView board(Header header, byte[] first, long size, Source source) throws IOException {
        ByteBuffer words = ByteBuffer.wrap(first).order(ByteOrder.LITTLE_ENDIAN);
        long at = words.getLong(8 * BOARD);
        if (at == 0 || words.getShort(8) == 0) { // before minor version 1, this word is reserved
            return null;
        }
        if (at != header.dataOffset() + header.capacity()) {
            throw new ShmcastException(Code.FIELD, "the place of the board");
        }
        if (size - at < BoardLayout.HEADER) {
            throw new ShmcastException(Code.TRUNCATED, "the file ends before the board's header");
        }
        byte[] page = new byte[BoardLayout.HEADER];
        Memory mapped = source.map(at, BoardLayout.HEADER);
        try {
            mapped.copyTo(0, page, 0, page.length);
        } finally {
            mapped.close();
        }
        BoardLayout layout = BoardLayout.parse(page, size - at);
        return new BoardView(layout, source.map(at, layout.bytes()));
    }

    void close() {
        page.close();
        index.close();
        data.close();
        if (board != null) {
            board.close();
        }
    }

    long word(int number) {
        return page.word(8L * number);
    }

    /** Returns the word at an offset in the ring, which must be a multiple of 8 and below the capacity. */
    long data(long offset) {
        return data.word(offset);
    }

    /** Returns the position in the index entry of a sequence. */
    long indexed(long sequence) {
        return index.word(8 * (sequence & (header.indexEntries() - 1))) & -Header.GRANULE;
    }

    /** Copies bytes of the ring from a multiple of 8 on, and the rest of their last word. The bytes must not cross the end of the ring. */
    void copy(long offset, byte[] to, int length) {
        data.copy(offset, to, length);
    }

    /** Returns the state; 0 if the word has no valid state. */
    int state() {
        return stateOf(word(STATE));
    }

    static int stateOf(long word) {
        int state = (int) (word & 0xff);
        return state <= SUPERSEDED ? state : 0;
    }

    /** Returns the present epoch; 0 if the word has no valid epoch. */
    long epoch() {
        long word = word(STATE);
        return stateOf(word) == 0 ? 0 : word >>> 8;
    }

    long first() {
        long first = word(FIRST);
        return Long.compareUnsigned(first, MAX_SEQUENCE) > 0 ? MAX_SEQUENCE : Math.max(first, 1);
    }

    static long length(long commit) {
        return commit & 0x1ff_ffff;
    }

    static long bytes(long commit) {
        return (16 + length(commit) + 63) & -64;
    }

    static final long VALID = 1 << 25;
    static final long PAD = 1 << 26;
    static final long KEY_FLAG = 1 << 27;
    static final long CONTROL = 1 << 28;

    /** Whether a commit word is possible for this sequence, at a place with {@code rest} bytes before the end of the ring. */
    boolean isPlausible(long commit, long sequence, long rest) {
        long n = bytes(commit);
        if ((commit & VALID) == 0 || commit >>> 32 != (sequence & 0xffff_ffffL)) {
            return false;
        }
        if ((commit & PAD) != 0) {
            return n == rest;
        }
        return n <= rest && (length(commit) <= maxMessage || (commit & CONTROL) != 0 && length(commit) <= 24);
    }
}
