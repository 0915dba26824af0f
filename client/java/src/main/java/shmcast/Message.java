package shmcast;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/**
 * A message that was copied from the ring or the board, and checked. All messages of the ring use the same object, and those of the board
 * use another one.
 */
public final class Message {
    private static final VarHandle LONG = MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);
    private static final VarHandle INT = MethodHandles.byteArrayViewVarHandle(int[].class, ByteOrder.LITTLE_ENDIAN);

    /** Memory for the largest payload. */
    final byte[] own;

    private final ByteBuffer view;
    /** The array with the payload: {@code own}, or an array with several payloads that were copied together. */
    byte[] bytes;

    int start;
    int length;
    long sequence;
    long meta;
    boolean key;
    /** -1 for each message of a ring. */
    long conflated = -1;

    Message(int room) {
        this(new byte[room + 7 & ~7]); // whole words are copied
    }

    private Message(byte[] own) {
        this.own = own;
        bytes = own;
        view = ByteBuffer.wrap(own).asReadOnlyBuffer().order(ByteOrder.LITTLE_ENDIAN);
    }

    /**
     * Copies a message with its bytes. The copy has at least {@code least} bytes, because a damaged message can be shorter than its key.
     */
    Message copy(int least) {
        Message copy = new Message(Arrays.copyOfRange(bytes, start, start + Math.max(length, least)));
        copy.length = length;
        copy.sequence = sequence;
        copy.meta = meta;
        copy.key = key;
        return copy;
    }

    /** {@return the size of the payload in bytes} */
    public int length() {
        return length;
    }

    /** {@return the number of the message in the channel, from 1} */
    public long sequence() {
        return sequence;
    }

    /** {@return the tag that the publisher set, 0 to 65535} */
    public int tag() {
        return (int) (meta >>> 48);
    }

    /** {@return whether a reader can start with this message, without earlier ones} */
    public boolean key() {
        return key;
    }

    /** {@return the publish time: the low 48 bits of the channel's clock; 0 if the publisher gave no time} */
    public long time() {
        return meta & 0xffff_ffff_ffffL;
    }

    /**
     * {@return for a message of the board, the number of older messages of its key that this reader did not get and that were not reported
     * before; -1 for a message of the stream}
     */
    public long conflated() {
        return conflated;
    }

    /**
     * Reads eight bytes, little-endian.
     *
     * @param at the index of the first byte
     * @return the value
     */
    public long getLong(int at) {
        check(at, 8);
        return (long) LONG.get(bytes, start + at);
    }

    /**
     * Reads four bytes, little-endian.
     *
     * @param at the index of the first byte
     * @return the value
     */
    public int getInt(int at) {
        check(at, 4);
        return (int) INT.get(bytes, start + at);
    }

    /**
     * Reads a byte.
     *
     * @param at the index of the byte
     * @return the value
     */
    public byte get(int at) {
        check(at, 1);
        return bytes[start + at];
    }

    /**
     * Copies the payload.
     *
     * @param to the array
     * @param at the index in the array at which the copy begins. The array must have {@link #length()} bytes from there on
     */
    public void copyTo(byte[] to, int at) {
        System.arraycopy(bytes, start, to, at, length);
    }

    /** {@return the payload, read-only and little-endian. The object is the same each time, and valid until the next message} */
    public ByteBuffer buffer() {
        if (bytes != own) {
            System.arraycopy(bytes, start, own, 0, length);
            bytes = own;
            start = 0;
        }
        return view.clear().limit(length);
    }

    /** {@return the payload as UTF-8. The call allocates} */
    public String text() {
        return new String(bytes, start, length, StandardCharsets.UTF_8);
    }

    private void check(int at, int count) {
        if (at < 0 || at > length - count) {
            throw new IndexOutOfBoundsException("byte " + at + " of a message of " + length);
        }
    }
}
