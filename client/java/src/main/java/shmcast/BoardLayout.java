package shmcast;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.zip.CRC32C;
import shmcast.ShmcastException.Code;

/** The sizes of a board, and the words that identify a key on the board (SPEC.md 8.1). */
final class BoardLayout {
    /** The size of a board's header in bytes. */
    static final int HEADER = 4096;
    /** The size of a slot's head in bytes. */
    static final int HEAD = 64;

    /** A reader can start with the message, without earlier ones. */
    static final long KEY = 1L << 32;
    /** The message removed its key. */
    static final long REMOVED = 1L << 33;
    /** The message is longer than a value. */
    static final long TOO_LARGE = 1L << 34;
    /** The newest message of the key is not known. */
    static final long UNKNOWN = 1L << 35;
    /** The slot has no key. */
    static final long EMPTY = 1L << 36;

    private static final long MAGIC = 0x3144_524f_424d_4853L;
    private static final long GOLDEN = 0x9e37_79b9_7f4a_7c15L;
    private static final long HAS_TAG = 1 << 16;
    private static final int MAX_KEYS = 1 << 24;
    private static final int MAX_KEY = 256;
    private static final int MAX_MESSAGE = 16 << 20;
    private static final long MAX_VALUES = 16L << 30;
    private static final VarHandle LONG = MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);

    final int keys;
    final int value;
    final int keyStart;
    final int keyEnd;
    /** The tag that removes a key; -1 if there is none. */
    final int removeTag;

    final long entries;
    final long seed;
    final int stride;

    private BoardLayout(ByteBuffer words) {
        keys = (int) words.getLong(16);
        value = (int) words.getLong(24);
        keyStart = (int) words.getLong(32);
        keyEnd = (int) words.getLong(40);
        long tag = words.getLong(48);
        removeTag = (tag & HAS_TAG) == 0 ? -1 : (int) (tag & 0xffff);
        entries = words.getLong(56);
        seed = words.getLong(64);
        stride = value + 63 & -64;
    }

    /** Checks a private copy of a board's header. The file has {@code size} bytes from the board's first byte on. */
    static BoardLayout parse(byte[] page, long size) throws ShmcastException {
        ByteBuffer words = ByteBuffer.wrap(page).order(ByteOrder.LITTLE_ENDIAN);
        refuse(words.getLong(0) != MAGIC, Code.FOREIGN, "it does not begin with the magic");
        refuse(words.getLong(8) >>> 16 != 1, Code.FIELD, "its version");
        CRC32C sum = new CRC32C();
        sum.update(page, 8, 112);
        refuse(words.getLong(120) != sum.getValue(), Code.FIELD, "its checksum");
        long keys = words.getLong(16);
        long value = words.getLong(24);
        long start = words.getLong(32);
        long end = words.getLong(40);
        refuse(keys < 1 || keys > MAX_KEYS, Code.FIELD, "the number of keys");
        refuse(start < 0 || end <= start || end > MAX_MESSAGE || end - start > MAX_KEY, Code.FIELD, "the place of the key");
        refuse(value < end || value > MAX_MESSAGE || keys * (value + 63 & -64) > MAX_VALUES, Code.FIELD, "the size of a value");
        refuse(words.getLong(56) != Long.highestOneBit(2 * keys - 1) << 1, Code.FIELD, "its index");
        BoardLayout layout = new BoardLayout(words);
        refuse(size < layout.bytes(), Code.TRUNCATED, "the file ends before it");
        return layout;
    }

    private static void refuse(boolean isWrong, Code code, String what) throws ShmcastException {
        if (isWrong) {
            throw new ShmcastException(code, "not a board that can be read: " + what);
        }
    }

    long headsAt() {
        return HEADER + 8 * entries + 63 & -64;
    }

    long valuesAt() {
        return headsAt() + (long) HEAD * keys;
    }

    long bytes() {
        return valuesAt() + (long) stride * keys + 4095 & -4096;
    }

    int keyBytes() {
        return keyEnd - keyStart;
    }

    boolean isRemoval(int length, int tag) {
        return length == keyEnd || tag == removeTag;
    }

    /** Returns how many bytes of the message are in the slot's value. */
    int stored(long meta) {
        if ((meta & UNKNOWN) != 0) {
            return keyEnd;
        }
        return (int) Math.min(meta & 0x1ff_ffff, isWhole(meta) ? value : keyEnd);
    }

    static boolean isWhole(long meta) {
        return (meta & (TOO_LARGE | UNKNOWN | EMPTY)) == 0;
    }

    /** Returns the first word that identifies the key at this place of the array. */
    long first(byte[] bytes, int at) {
        int length = keyBytes();
        return length > 16 ? hash(seed, bytes, at, length) : word(bytes, at, Math.min(length, 8));
    }

    /** Returns the second word that identifies the key at this place of the array. */
    long second(byte[] bytes, int at) {
        int length = keyBytes();
        if (length > 16) {
            return hash(~seed, bytes, at, length);
        }
        return length > 8 ? word(bytes, at + 8, length - 8) : 0;
    }

    int fingerprint(long first, long second) {
        return (int) (mix(mix(seed, first), second) >>> 32);
    }

    /** Mixes a word into a hash: multiplies, and combines both halves of the product. */
    static long mix(long before, long word) {
        long a = before ^ word;
        long high = Math.multiplyHigh(a, GOLDEN) + (a >> 63 & GOLDEN) + a; // GOLDEN is negative as a signed number
        return a * GOLDEN ^ high;
    }

    private static long hash(long seed, byte[] bytes, int at, int length) {
        long hash = seed;
        for (int i = 0; i < length; i += 8) {
            hash = mix(hash, word(bytes, at + i, Math.min(length - i, 8)));
        }
        return hash;
    }

    /** Returns up to eight bytes as a little-endian word. */
    private static long word(byte[] bytes, int at, int count) {
        if (count == 8) {
            return (long) LONG.get(bytes, at);
        }
        long word = 0;
        for (int i = count - 1; i >= 0; i--) {
            word = word << 8 | bytes[at + i] & 0xff;
        }
        return word;
    }
}
