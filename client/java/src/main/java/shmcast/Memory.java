package shmcast;

import java.io.IOException;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.channels.FileChannel.MapMode;

/** Memory that is mapped read-only. This class exists twice: here with {@link ByteBuffer}, and for Java 22 with memory segments. */
final class Memory {
    private static final VarHandle WORD = MethodHandles.byteBufferViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);
    /** In Java 17, a map can have at most 2 GiB. So a larger map has several pieces. */
    private static final int PIECE_BITS = 30;

    private static final long PIECE = 1L << PIECE_BITS;

    private static final VarHandle ARRAY = MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);
    /** Up to this number of bytes, copying word by word is faster than the general call. */
    private static final int SMALL = 256;

    private final ByteBuffer[] pieces;

    private Memory(ByteBuffer[] pieces) {
        this.pieces = pieces;
    }

    static Memory map(FileChannel file, long from, long bytes) throws IOException {
        ByteBuffer[] pieces = new ByteBuffer[(int) ((bytes + PIECE - 1) >>> PIECE_BITS)];
        for (int i = 0; i < pieces.length; i++) {
            long at = i * PIECE;
            pieces[i] = file.map(MapMode.READ_ONLY, from + at, Math.min(PIECE, bytes - at));
        }
        return new Memory(pieces);
    }

    /** Returns the word at an offset, which must be a multiple of 8 inside of the map. */
    long word(long offset) {
        return (long) WORD.getOpaque(pieces[(int) (offset >>> PIECE_BITS)], (int) (offset & (PIECE - 1)));
    }

    /** Does the same as {@code Segment.copy}. */
    void copy(long offset, byte[] to, int length) {
        int piece = (int) (offset >>> PIECE_BITS);
        int at = (int) (offset & (PIECE - 1));
        if (length <= SMALL && at <= PIECE - SMALL) {
            ByteBuffer from = pieces[piece];
            for (int i = 0; i < length; i += 8) {
                ARRAY.set(to, i, (long) WORD.get(from, at + i));
            }
            return;
        }
        int here = (int) Math.min(length, PIECE - at);
        pieces[piece].get(at, to, 0, here);
        if (here < length) {
            pieces[piece + 1].get(0, to, here, length - here);
        }
    }

    /** Copies bytes from any offset to a place in an array. */
    void copyTo(long offset, byte[] to, int place, int length) {
        int done = 0;
        while (done < length) {
            long at = offset + done;
            int inPiece = (int) (at & (PIECE - 1));
            int here = (int) Math.min(length - done, PIECE - inPiece);
            pieces[(int) (at >>> PIECE_BITS)].get(inPiece, to, place + done, here);
            done += here;
        }
    }

    /** Does nothing: in Java 17, the next garbage collection removes the map. */
    void close() {}
}
