package shmcast.peers;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import org.agrona.BufferUtil;
import org.agrona.DirectBuffer;
import org.agrona.concurrent.UnsafeBuffer;

/**
 * Messages that prove themselves: the sequence number in the first word, then one of 13 bodies, by the number. The bodies
 * are made once, because a publisher that writes each anew would be slower than some recorders.
 */
final class Payloads {
    static final int SMALLEST = 16;
    /** The most bytes that fit into one frame of Aeron with an MTU of 8 KiB. */
    static final int LARGEST = 8160;
    private static final int BODIES = 13;
    private static final int LINE = 64;

    final int size;
    /** All the messages, each from the start of a cache line. */
    final ByteBuffer bytes;
    final UnsafeBuffer buffer;
    private final int stride;

    Payloads(int size) {
        this.size = size;
        stride = (size + LINE - 1) / LINE * LINE;
        bytes = BufferUtil.allocateDirectAligned(BODIES * stride, LINE).order(ByteOrder.LITTLE_ENDIAN);
        buffer = new UnsafeBuffer(bytes);
        long state = 1;
        for (int at = 0; at < bytes.capacity(); at++) {
            state = state * 6364136223846793005L + 1442695040888963407L;
            bytes.put(at, (byte) (state >>> 56));
        }
    }

    /** Makes the message of this number, and returns its place in `buffer`. */
    int make(long sequence) {
        int offset = place(sequence);
        buffer.putLong(offset, sequence, ByteOrder.LITTLE_ENDIAN);
        return offset;
    }

    private int place(long sequence) {
        return (int) (sequence % BODIES) * stride;
    }

    /** Whether this is the message of this number, with each byte as it was published. */
    boolean is(long sequence, DirectBuffer message, int offset, int length) {
        if (length != size || message.getLong(offset, ByteOrder.LITTLE_ENDIAN) != sequence) {
            return false;
        }
        int body = place(sequence);
        int at = Long.BYTES;
        long differences = 0;
        for (; at <= length - Long.BYTES; at += Long.BYTES) {
            differences |= message.getLong(offset + at) ^ buffer.getLong(body + at);
        }
        for (; at < length; at++) {
            differences |= message.getByte(offset + at) ^ buffer.getByte(body + at);
        }
        return differences == 0;
    }
}
