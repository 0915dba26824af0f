package shmcast;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/** A message that was copied out of the ring or the board, and verified. One object serves all messages of the ring, and one those of the board. */
public final class Message {
    private static final VarHandle LONG = MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);
    private static final VarHandle INT = MethodHandles.byteArrayViewVarHandle(int[].class, ByteOrder.LITTLE_ENDIAN);

    /** Room for the largest payload. */
    final byte[] own;

    private final ByteBuffer view;
    /** Where the payload is: in {@code own}, or among others that were copied together. */
    byte[] bytes;

    int start;
    int length;
    long sequence;
    long meta;
    boolean key;
    /** Stays -1 for the messages of a ring. */
    long conflated = -1;

    Message(int room) {
        this(new byte[room + 7 & ~7]); // whole words are copied
    }

    private Message(byte[] own) {
        this.own = own;
        bytes = own;
        view = ByteBuffer.wrap(own).asReadOnlyBuffer().order(ByteOrder.LITTLE_ENDIAN);
    }

    /** A copy of a message that is lent, with bytes of its own: so many at least, as the message may claim to be shorter than its key. */
    Message copy(int least) {
        Message copy = new Message(Arrays.copyOfRange(bytes, start, start + Math.max(length, least)));
        copy.length = length;
        copy.sequence = sequence;
        copy.meta = meta;
        copy.key = key;
        return copy;
    }

    /** {@return how many bytes the payload has} */
    public int length() {
        return length;
    }

    /** {@return its number in the channel, from 1} */
    public long sequence() {
        return sequence;
    }

    /** {@return the publisher's mark, 0 to 65535} */
    public int tag() {
        return (int) (meta >>> 48);
    }

    /** {@return whether a reader may start afresh from it} */
    public boolean key() {
        return key;
    }

    /** {@return when it was published: the low 48 bits of the channel's clock; 0 if the publisher gave no time} */
    public long time() {
        return meta & 0xffff_ffff_ffffL;
    }

    /**
     * {@return of a message that came from the board, how many older ones of its key this reader did not get, and was not told of before; -1
     * for a message of the stream}
     */
    public long conflated() {
        return conflated;
    }

    /**
     * Reads eight bytes, little-endian.
     *
     * @param at the first of them
     * @return their value
     */
    public long getLong(int at) {
        check(at, 8);
        return (long) LONG.get(bytes, start + at);
    }

    /**
     * Reads four bytes, little-endian.
     *
     * @param at the first of them
     * @return their value
     */
    public int getInt(int at) {
        check(at, 4);
        return (int) INT.get(bytes, start + at);
    }

    /**
     * Reads a byte.
     *
     * @param at which
     * @return its value
     */
    public byte get(int at) {
        check(at, 1);
        return bytes[start + at];
    }

    /**
     * Copies the payload.
     *
     * @param to the array to copy into
     * @param at where in it; {@link #length()} bytes must fit
     */
    public void copyTo(byte[] to, int at) {
        System.arraycopy(bytes, start, to, at, length);
    }

    /** {@return the payload, read-only and little-endian; the same object each time, valid until the next message} */
    public ByteBuffer buffer() {
        if (bytes != own) {
            System.arraycopy(bytes, start, own, 0, length);
            bytes = own;
            start = 0;
        }
        return view.clear().limit(length);
    }

    /** {@return the payload as UTF-8; this allocates} */
    public String text() {
        return new String(bytes, start, length, StandardCharsets.UTF_8);
    }

    private void check(int at, int count) {
        if (at < 0 || at > length - count) {
            throw new IndexOutOfBoundsException("byte " + at + " of a message of " + length);
        }
    }
}
