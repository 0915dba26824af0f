package shmcast;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.List;
import java.util.Random;
import java.util.Set;
import java.util.zip.CRC32C;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import shmcast.ShmcastException.Code;

/**
 * With random words in a segment, a reader gets an event, an error of this package, or nothing. There is no other exception, and no call
 * hangs.
 */
class HostileTest {
    private static final long[] INTERESTING = {
        0, 1, 63, 64, 1 << 16, (1L << 48) - 1, 1L << 48, 1L << 62, (1L << 62) + 1, Long.MAX_VALUE, Long.MIN_VALUE, -1, -64
    };
    private static final Set<Code> HEADER =
            EnumSet.of(Code.TRUNCATED, Code.FOREIGN, Code.VERSION, Code.CHECKSUM, Code.FIELD, Code.GEOMETRY);

    @Test
    @Timeout(200)
    void randomWordsHarmNobody() throws Exception {
        int rounds = Publishers.isLong() ? 4_000 : 1_000;
        long seed = System.nanoTime();
        System.out.println("seed " + seed);
        Random random = new Random(seed);
        ByteBuffer whole = golden();
        List<Integer> stands = new ArrayList<>();
        for (int at = 16 * 8; at < whole.capacity(); at += 8) {
            if (whole.getLong(at) != 0) {
                stands.add(at);
            }
        }
        try (Publishers publishers = new Publishers()) {
            Path channel = Files.createDirectory(publishers.directory.resolve("c"));
            Path segment = channel.resolve("segment");
            int accepted = 0;
            for (int round = 0; round < rounds; round++) {
                ByteBuffer memory = ByteBuffer.allocate(whole.capacity()).order(ByteOrder.LITTLE_ENDIAN).put(0, whole.array());
                for (int changes = 1 + random.nextInt(4); changes > 0; changes--) {
                    int at = stands.get(random.nextInt(stands.size()));
                    memory.putLong(at, changed(memory, at, random, stands));
                }
                if (random.nextBoolean()) {
                    CRC32C sum = new CRC32C();
                    sum.update(memory.array(), 8, 112);
                    sum.update(memory.array(), 512, 3584);
                    memory.putLong(120, sum.getValue());
                }
                Files.write(segment, memory.array());
                accepted += consume(publishers.directory, random);
            }
            assertTrue(accepted > rounds / 4, accepted + " segments were accepted");
        }
    }

    private static long changed(ByteBuffer memory, int at, Random random, List<Integer> stands) {
        return switch (random.nextInt(4)) {
            case 0 -> random.nextLong();
            case 1 -> INTERESTING[random.nextInt(INTERESTING.length)];
            case 2 -> memory.getLong(at) ^ 1L << random.nextInt(64);
            default -> memory.getLong(stands.get(random.nextInt(stands.size())));
        };
    }

    private static int consume(Path directory, Random random) throws IOException {
        Subscriber.Builder builder = Subscriber.of("c").dir(directory).resume(Resume.values()[random.nextInt(3)]);
        switch (random.nextInt(4)) {
            case 0 -> builder.start(Start.OLDEST);
            case 1 -> builder.from(15);
            case 2 -> builder.from(1L << 40);
            default -> builder.start(Start.LATEST);
        }
        try (Subscriber s = builder.open()) {
            for (int i = 0; i < 100; i++) {
                s.poll(m -> assertTrue(m.length() <= s.header().maxMessage()), 3);
            }
        } catch (ShmcastException e) {
            return HEADER.contains(e.code()) ? 0 : 1;
        }
        return 1;
    }

    /** Returns the segment of the listing beside SPEC.md. */
    private static ByteBuffer golden() throws IOException {
        ByteBuffer memory = ByteBuffer.allocate(77824).order(ByteOrder.LITTLE_ENDIAN);
        for (String line : Files.readAllLines(Path.of("../../shm-layout/tests/golden/segment.txt"))) {
            if (!line.startsWith("#")) {
                String[] words = line.split(" +");
                memory.putLong(Integer.decode(words[0]), Long.parseUnsignedLong(words[1].substring(2), 16));
            }
        }
        return memory;
    }
}
