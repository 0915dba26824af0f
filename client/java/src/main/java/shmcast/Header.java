package shmcast;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.zip.CRC32C;
import shmcast.ShmcastException.Code;

/**
 * The properties of a channel that its creator chose (SPEC.md 1.1).
 *
 * @param capacity the size of the ring in bytes
 * @param chunk the number of bytes by which the frontier advances
 * @param indexEntries the number of words in the index
 * @param maxMessage the size of the largest payload in bytes
 * @param dataOffset the offset of the ring in the file
 * @param clockKind 0 for CLOCK_MONOTONIC in ns, 1 for the CPU's counter
 * @param clockRate the number of ticks a second
 * @param schemaId the application's number for the schema; 0 if it is not used
 * @param channel the channel's name
 * @param schema the schema's name
 * @param labels lines that tools show
 * @param uuidHigh the first half of the segment's identity
 * @param uuidLow the second half of the segment's identity
 */
public record Header(
        long capacity,
        long chunk,
        long indexEntries,
        int maxMessage,
        long dataOffset,
        int clockKind,
        long clockRate,
        long schemaId,
        String channel,
        String schema,
        String labels,
        long uuidHigh,
        long uuidLow) {
    static final int BYTES = 4096;
    static final int GRANULE = 64;
    static final long MAGIC = 0x3154_5341_434d_4853L;
    private static final long HUGE = 2 << 20;

    /** Checks a private copy of a segment's first page. The file has {@code size} bytes. */
    static Header parse(byte[] page, long size) throws ShmcastException {
        if (size < BYTES || page.length < BYTES) {
            throw new ShmcastException(Code.TRUNCATED, "the file has " + size + " bytes, and a header has " + BYTES);
        }
        ByteBuffer words = ByteBuffer.wrap(page).order(ByteOrder.LITTLE_ENDIAN);
        refuse(words.getLong(0) != MAGIC, Code.FOREIGN, "it does not begin with the magic");
        long major = words.getLong(8) >>> 16 & 0xffff;
        refuse(major != 2, Code.VERSION, "layout version " + major + ", and this library reads 2");
        CRC32C sum = new CRC32C();
        sum.update(page, 8, 112);
        sum.update(page, 512, BYTES - 512);
        refuse(words.getLong(120) != sum.getValue(), Code.CHECKSUM, "the header's checksum is wrong");
        refuse(words.getLong(24) != GRANULE, Code.FIELD, "the granule");
        long capacity = words.getLong(16);
        long chunk = words.getLong(32);
        long entries = words.getLong(40);
        long max = words.getLong(48);
        long data = words.getLong(56);
        refuse(Long.bitCount(capacity) != 1 || capacity < 64 << 10 || capacity > 16L << 30, Code.GEOMETRY, "the capacity");
        refuse(Long.bitCount(chunk) != 1 || chunk < GRANULE || chunk > capacity / 8, Code.GEOMETRY, "the chunk");
        refuse(entries != capacity / GRANULE, Code.GEOMETRY, "the index");
        refuse(max < 0 || max > Math.min(capacity / 8, 16 << 20), Code.GEOMETRY, "the largest message");
        refuse(data != BYTES + 8 * entries, Code.GEOMETRY, "the place of the ring");
        long kind = words.getLong(8) >>> 32;
        long rate = words.getLong(104);
        refuse(kind < 0 || kind > 1, Code.FIELD, "the kind of clock");
        refuse(rate < 1_000 || rate > 1_000_000_000_000L, Code.FIELD, "the clock's rate");
        words.position(512);
        String channel = text(words);
        String schema = text(words);
        String labels = text(words);
        long whole = data + capacity;
        whole = whole < HUGE ? whole : (whole + HUGE - 1) & -HUGE;
        refuse(size < whole, Code.TRUNCATED, "the file has " + size + " bytes of " + whole);
        return new Header(capacity, chunk, entries, (int) max, data, (int) kind, rate, words.getLong(112), channel, schema, labels, words.getLong(64), words.getLong(72));
    }

    private static String text(ByteBuffer words) throws ShmcastException {
        refuse(words.remaining() < 8, Code.FIELD, "the names are longer than the page");
        long length = words.getLong();
        refuse(length < 0 || length > words.remaining(), Code.FIELD, "the length of a name");
        ByteBuffer bytes = words.slice(words.position(), (int) length);
        words.position(Math.min(words.limit(), words.position() + ((int) length + 7) / 8 * 8));
        try {
            return StandardCharsets.UTF_8.newDecoder().decode(bytes).toString();
        } catch (CharacterCodingException e) {
            throw new ShmcastException(Code.FIELD, "a name is not UTF-8");
        }
    }

    private static void refuse(boolean isWrong, Code code, String what) throws ShmcastException {
        if (isWrong) {
            throw new ShmcastException(code, "not a segment that can be read: " + what);
        }
    }
}
