package shmcast;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.Random;
import java.util.Set;
import java.util.zip.CRC32C;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import shmcast.ShmcastException.Code;

/**
 * With random words in a board, a reader gets an entry, an event, or an error of this package. There is no other exception, and no call
 * hangs.
 */
class HostileBoardTest {
    private static final Ticks TICKS = new Ticks(40);
    private static final long[] INTERESTING = {
        0, 1, 2, 3, 63, 64, 1 << 16, 1 << 24, 1L << 32, 1L << 33, 1L << 36, (1L << 48) - 1, 1L << 48, Long.MAX_VALUE, Long.MIN_VALUE, -1, -2
    };
    private static final Set<Code> REFUSALS = EnumSet.of(Code.FOREIGN, Code.FIELD, Code.TRUNCATED, Code.BOARD, Code.CORRUPT, Code.LIMIT);

    /** Makes the header of a board for 4 keys. */
    static byte[] header(int start, int end, long seed) {
        ByteBuffer page = ByteBuffer.allocate(BoardLayout.HEADER).order(ByteOrder.LITTLE_ENDIAN);
        page.put(0, "SHMBORD1".getBytes());
        page.putLong(8, 1 << 16).putLong(16, 4).putLong(24, 64).putLong(32, start).putLong(40, end).putLong(56, 8).putLong(64, seed);
        return sealed(page, 0).array();
    }

    private static ByteBuffer sealed(ByteBuffer memory, int board) {
        CRC32C sum = new CRC32C();
        sum.update(memory.array(), board + 8, 112);
        return memory.putLong(board + 120, sum.getValue());
    }

    /** Returns a segment that a publisher wrote. */
    private static ByteBuffer written(Publishers publishers) throws Exception {
        TICKS.publish(publishers, 1, 900, "--capacity", "64KiB", "--set", "board.key=4..8", "--set", "board.keys=32", "--set", "board.value=48");
        byte[] bytes = Files.readAllBytes(publishers.directory.resolve("c/segment"));
        return ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN);
    }

    @Test
    @Timeout(200)
    void randomWordsHarmNobody() throws Exception {
        int rounds = Publishers.isLong() ? 2_000 : 500;
        long seed = System.nanoTime();
        System.out.println("seed " + seed);
        Random random = new Random(seed);
        try (Publishers publishers = new Publishers()) {
            ByteBuffer whole = written(publishers);
            int board = (int) whole.getLong(8 * 60);
            assertTrue(board > 65_536, "the segment has a board");
            Path segment = publishers.directory.resolve("c/segment");
            int accepted = 0;
            int refused = 0;
            for (int round = 0; round < rounds; round++) {
                ByteBuffer memory = ByteBuffer.wrap(whole.array().clone()).order(ByteOrder.LITTLE_ENDIAN);
                damage(memory, board, random);
                Files.write(segment, random.nextInt(40) == 0 ? Arrays.copyOf(memory.array(), board + random.nextInt(8192)) : memory.array());
                if (consume(publishers.directory, random)) {
                    accepted++;
                } else {
                    refused++;
                }
            }
            System.out.println(accepted + " accepted, " + refused + " refused");
            assertTrue(accepted > rounds / 7 && refused > rounds / 20, accepted + " accepted, " + refused + " refused");
        }
    }

    private static void damage(ByteBuffer memory, int board, Random random) {
        int heads = board + 4096 + 64 * 8;
        for (int changes = 1 + random.nextInt(6); changes > 0; changes--) {
            int at =
                    switch (random.nextInt(8)) {
                        case 0 -> board + 8 * random.nextInt(16);
                        case 1 -> board + 8 * 16;
                        case 2 -> board + 8 * (32 + random.nextInt(8));
                        case 3 -> board + 4096 + 8 * random.nextInt(64);
                        case 4 -> 8 * (random.nextBoolean() ? 48 : 16);
                        default -> heads + 8 * random.nextInt(32 * 8);
                    };
            memory.putLong(at, changed(memory, at, heads, random));
        }
        if (random.nextInt(16) == 0) {
            for (int entry = 0; entry < 64; entry++) { // an index without an end
                memory.putLong(board + 4096 + 8 * entry, random.nextBoolean() ? -1 : memory.getLong(board + 4096) | 1);
            }
        }
        if (random.nextInt(16) == 0) {
            for (int slot = 0; slot < 32; slot++) { // a board with unfinished stores
                memory.putLong(heads + 64 * slot, memory.getLong(heads + 64 * slot) | 1);
            }
        }
        if (random.nextInt(4) > 0) {
            sealed(memory, board);
        }
    }

    private static long changed(ByteBuffer memory, int at, int heads, Random random) {
        return switch (random.nextInt(5)) {
            case 0 -> random.nextLong();
            case 1 -> INTERESTING[random.nextInt(INTERESTING.length)];
            case 2 -> memory.getLong(at) ^ 1L << random.nextInt(64);
            case 3 -> memory.getLong(at) + random.nextInt(5) - 2;
            default -> memory.getLong(heads + 8 * random.nextInt(32 * 8));
        };
    }

    /** Reads everything from a board. Returns whether nothing was refused. */
    private static boolean consume(Path directory, Random random) throws IOException {
        Subscriber.Builder builder = Subscriber.of("c").dir(directory).hidden();
        Handler handler = m -> assertTrue(m.length() <= 65_536 && m.conflated() >= -1);
        try (Board board = builder.openBoard()) {
            for (int key = 0; key < 45; key++) {
                BoardEntry entry = board.get(TICKS.keyBytes(key));
                if (entry != null) {
                    assertTrue(entry.key().length == board.spec().stop() - board.spec().start());
                    assertTrue(entry.message() == null || entry.message().length() <= board.spec().value());
                }
            }
            board.counters();
            for (BoardEntry entry : board.entries()) {
                assertTrue(entry.key().length > 0);
            }
        } catch (ShmcastException e) {
            assertTrue(REFUSALS.contains(e.code()), e.toString());
            return false;
        }
        builder = Subscriber.of("c").dir(directory).hidden().start(random.nextBoolean() ? Start.BOARD : Start.LATEST).conflateBehind(random.nextInt(3) * 900L);
        try (Subscriber s = builder.open()) {
            for (int i = 0; i < 400; i++) {
                s.poll(handler, 3);
            }
        } catch (ShmcastException e) {
            assertTrue(REFUSALS.contains(e.code()), e.toString());
            return false;
        }
        return true;
    }

    /** A board claims the largest possible sizes. The reader gets an error, and does not use this much memory or time. */
    @Test
    @Timeout(200)
    void aBoardThatClaimsMuchIsBounded() throws Exception {
        try (Publishers publishers = new Publishers()) {
            ByteBuffer whole = written(publishers);
            int board = (int) whole.getLong(8 * 60);
            Path segment = publishers.directory.resolve("c/segment");
            for (long[] sizes : new long[][] {{1 << 24, 1024}, {1024, 16 << 20}, {1 << 20, 64}}) {
                ByteBuffer memory = ByteBuffer.wrap(whole.array().clone()).order(ByteOrder.LITTLE_ENDIAN);
                memory.putLong(board + 16, sizes[0]).putLong(board + 24, sizes[1]).putLong(board + 56, 2 * sizes[0]);
                sealed(memory, board);
                Files.write(segment, memory.array());
                try (var file = java.nio.channels.FileChannel.open(segment, java.nio.file.StandardOpenOption.WRITE)) {
                    file.write(ByteBuffer.allocate(1), 30L << 30); // the file is sparse
                }
                try (Board opened = Subscriber.of("c").dir(publishers.directory).hidden().openBoard()) {
                    for (int key = 0; key < 5; key++) {
                        opened.get(TICKS.keyBytes(key));
                    }
                    opened.entries();
                } catch (ShmcastException e) {
                    assertTrue(REFUSALS.contains(e.code()), e.toString());
                }
            }
        }
    }
}
