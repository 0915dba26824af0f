package shmcast;

import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.channels.FileChannel.MapMode;

/** Mapped memory. It is read-only unless it is a reader page. */
final class Memory {
    private static final VarHandle WORD =
            ValueLayout.JAVA_LONG.withOrder(ByteOrder.LITTLE_ENDIAN).varHandle().withInvokeExactBehavior();

    private static final VarHandle ARRAY = MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);
    /** Up to this number of bytes, copying word by word is faster than the general call. */
    private static final int SMALL = 256;

    private final Arena arena;
    private final MemorySegment segment;

    private Memory(Arena arena, MemorySegment segment) {
        this.arena = arena;
        this.segment = segment;
    }

    static Memory map(FileChannel file, long from, long bytes) throws IOException {
        Arena arena = Arena.ofShared();
        try {
            return new Memory(arena, file.map(MapMode.READ_ONLY, from, bytes, arena));
        } catch (IOException | RuntimeException e) {
            arena.close();
            throw e;
        }
    }

    /** Maps a descriptor that a daemon has passed. */
    static Memory map(int fd, long from, long bytes, boolean isWritable) throws IOException {
        MemorySegment mapped = Libc.mmap(fd, from, bytes, isWritable);
        Arena arena = Arena.ofShared();
        return new Memory(arena, mapped.reinterpret(bytes, arena, Libc::munmap));
    }

    long word(long offset) {
        return (long) WORD.getOpaque(segment, offset);
    }

    /** Stores a word of this reader's own page, after all earlier stores. */
    void store(long offset, long value) {
        WORD.setRelease(segment, offset, value);
    }

    /** Does the same as {@code Segment.copy}. */
    void copy(long offset, byte[] to, int length) {
        if (length <= SMALL) {
            for (int i = 0; i < length; i += 8) {
                ARRAY.set(to, i, (long) WORD.get(segment, offset + i));
            }
            return;
        }
        MemorySegment.copy(segment, ValueLayout.JAVA_BYTE, offset, to, 0, length);
    }

    /** Copies bytes from any offset to a place in an array. */
    void copyTo(long offset, byte[] to, int place, int length) {
        MemorySegment.copy(segment, ValueLayout.JAVA_BYTE, offset, to, place, length);
    }

    void close() {
        arena.close();
    }
}
