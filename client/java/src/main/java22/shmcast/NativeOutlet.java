package shmcast;

import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.List;
import java.util.Objects;
import shmcast.ShmcastException.Code;

/** A publisher that uses the C library. */
final class NativeOutlet extends Outlet {
    /** Up to this size, the library copies directly from the array. The garbage collector cannot move the array during this copy. */
    private static final int MOST_CRITICAL = 1024;

    /** A later garbage collection frees this memory. Memory that can be closed would cost two locked instructions in each call. */
    private final Arena arena;
    private final MemorySegment outcome;
    private MemorySegment staging;
    /** The last published array, and its view. Programs often publish from the same array. */
    private byte[] array = {};

    private MemorySegment view = MemorySegment.ofArray(array);
    private MemorySegment handle;
    /** Whether a call can wait for a gate. The garbage collector must not wait for such a call. */
    private final boolean waits;

    NativeOutlet(Publisher.Builder builder) throws IOException {
        handle = openHandle(builder);
        arena = Arena.ofAuto();
        outcome = arena.allocate(8, 8);
        staging = arena.allocate(MOST_CRITICAL, 64);
        waits = Shmcast.hasGates(handle);
    }

    private static MemorySegment openHandle(Publisher.Builder builder) throws IOException {
        try {
            return Shmcast.open(builder);
        } catch (ExceptionInInitializerError | NoClassDefFoundError e) {
            // The first call that needs the library throws the first of these errors, and later calls throw the second.
            throw new ShmcastException(
                    Code.OTHER, "publishing takes the C library, libshmcast.so.0: install it, or name its file by -Dshmcast.native", e);
        }
    }

    private MemorySegment open() {
        if (handle == null) {
            throw new IllegalStateException("the publisher is closed");
        }
        return handle;
    }

    @Override
    long publish(byte[] bytes, int from, int length, int tag, boolean key) throws ShmcastException {
        Objects.checkFromIndexSize(from, length, bytes.length);
        boolean isHeap = length <= MOST_CRITICAL && from == 0 && !waits;
        int code = isHeap ? publishHeap(bytes, length, tag, key) : publishCopy(bytes, from, length, tag, key);
        if (code < 0) {
            throw Shmcast.failure(code);
        }
        return outcome.get(ValueLayout.JAVA_LONG, 0);
    }

    @Override
    long tryPublish(byte[] bytes, int from, int length, int tag, boolean key) throws ShmcastException {
        if (!waits) {
            return publish(bytes, from, length, tag, key);
        }
        Objects.checkFromIndexSize(from, length, bytes.length);
        stage(bytes, from, length);
        int code = Shmcast.tryPublish(open(), staging, length, tag, key, outcome);
        if (code < 0 && code != Shmcast.FULL) {
            throw Shmcast.failure(code);
        }
        return code < 0 ? 0 : outcome.get(ValueLayout.JAVA_LONG, 0);
    }

    @Override
    List<GateStatus> gates() throws ShmcastException {
        return Shmcast.gates(open());
    }

    @Override
    long nextSequence() {
        return Shmcast.number(Shmcast.NEXT_SEQUENCE, open());
    }

    @Override
    long epoch() {
        return Shmcast.number(Shmcast.EPOCH, open());
    }

    @Override
    long maxMessage() {
        return Shmcast.number(Shmcast.MAX_MESSAGE, open());
    }

    @Override
    boolean isCutOff() {
        return Shmcast.isCutOff(open());
    }

    private int publishHeap(byte[] bytes, int length, int tag, boolean key) {
        if (bytes != array) {
            array = bytes;
            view = MemorySegment.ofArray(bytes);
        }
        return Shmcast.publishCritical(open(), view, length, tag, key, outcome);
    }

    private int publishCopy(byte[] bytes, int from, int length, int tag, boolean key) throws ShmcastException {
        MemorySegment open = open();
        stage(bytes, from, length);
        return length <= MOST_CRITICAL && !waits
                ? Shmcast.publishCritical(open, staging, length, tag, key, outcome)
                : Shmcast.publish(open, staging, length, tag, key, outcome);
    }

    private void stage(byte[] bytes, int from, int length) throws ShmcastException {
        if (staging.byteSize() < length) {
            if (length > maxMessage()) {
                throw new ShmcastException(
                        Code.TOO_LARGE, "the message has " + length + " bytes, and the channel takes " + maxMessage() + " at most");
            }
            staging = arena.allocate(maxMessage(), 64);
        }
        MemorySegment.copy(bytes, from, staging, ValueLayout.JAVA_BYTE, 0, length);
    }

    @Override
    void close() {
        if (handle != null) {
            Shmcast.close(handle);
            handle = null;
        }
    }
}
