package shmcast;

import java.io.IOException;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.channels.FileChannel.MapMode;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Set;

/** A mapped segment whose header was checked. Another process may write it at any time, so each word is a claim. */
final class Segment {
    static final int FRONTIER = 16;
    static final int STATE = 32;
    static final int COUNT = 48;
    static final int KEY = 50;
    private static final int FIRST = 56;
    static final long MAX_SEQUENCE = (1L << 48) - 1;
    static final long MAX_POSITION = 1L << 62;
    static final int ACTIVE = 1;
    static final int CLOSED = 3;
    static final int SUPERSEDED = 4;

    private static final VarHandle WORD = MethodHandles.byteBufferViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);
    /** A map of Java ends at 2 GiB, so larger rings lie in several pieces. */
    private static final int PIECE_BITS = 30;

    private static final long PIECE = 1L << PIECE_BITS;

    final Header header;
    final long capacity;
    final int maxMessage;
    private final ByteBuffer page;
    private final ByteBuffer[] index;
    private final ByteBuffer[] data;

    private Segment(Header header, ByteBuffer page, ByteBuffer[] index, ByteBuffer[] data) {
        this.header = header;
        this.page = page;
        this.index = index;
        this.data = data;
        capacity = header.capacity();
        maxMessage = header.maxMessage();
    }

    /** Maps a file read-only and checks it by SPEC.md 1.1. */
    static Segment open(Path path) throws IOException {
        try (FileChannel file = FileChannel.open(path, Set.of(StandardOpenOption.READ, LinkOption.NOFOLLOW_LINKS))) {
            long size = file.size();
            ByteBuffer page = ByteBuffer.allocate(Header.BYTES);
            while (page.hasRemaining() && file.read(page, page.position()) > 0) {
                // A file that is too short is refused below.
            }
            Header header = Header.parse(page.array(), Math.min(size, page.hasRemaining() ? page.position() : size));
            return new Segment(
                    header,
                    file.map(MapMode.READ_ONLY, 0, Header.BYTES),
                    pieces(file, Header.BYTES, 8 * header.indexEntries()),
                    pieces(file, header.dataOffset(), header.capacity()));
        }
    }

    private static ByteBuffer[] pieces(FileChannel file, long from, long bytes) throws IOException {
        ByteBuffer[] pieces = new ByteBuffer[(int) ((bytes + PIECE - 1) >>> PIECE_BITS)];
        for (int i = 0; i < pieces.length; i++) {
            long at = i * PIECE;
            pieces[i] = file.map(MapMode.READ_ONLY, from + at, Math.min(PIECE, bytes - at));
        }
        return pieces;
    }

    long word(int number) {
        return (long) WORD.getOpaque(page, 8 * number);
    }

    /** The word at a ring offset, which must be a multiple of 8 and below the capacity. */
    long data(long offset) {
        return (long) WORD.getOpaque(data[(int) (offset >>> PIECE_BITS)], (int) (offset & (PIECE - 1)));
    }

    /** The position in the index for a sequence. */
    long indexed(long sequence) {
        long offset = 8 * (sequence & (header.indexEntries() - 1));
        return (long) WORD.getOpaque(index[(int) (offset >>> PIECE_BITS)], (int) (offset & (PIECE - 1))) & -Header.GRANULE;
    }

    /** Copies bytes of the ring, which must not cross its end. */
    void copy(long offset, byte[] to, int length) {
        int piece = (int) (offset >>> PIECE_BITS);
        int at = (int) (offset & (PIECE - 1));
        int here = (int) Math.min(length, PIECE - at);
        data[piece].get(at, to, 0, here);
        if (here < length) {
            data[piece + 1].get(0, to, here, length - here);
        }
    }

    /** The state, 0 if the word holds none. */
    int state() {
        return stateOf(word(STATE));
    }

    static int stateOf(long word) {
        int state = (int) (word & 0xff);
        return state <= SUPERSEDED ? state : 0;
    }

    /** The epoch in force, 0 if the word holds none. */
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

    /** Whether a commit word may stand where a sequence is due and {@code rest} bytes are left in the ring. */
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
