package shmcast;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.management.ThreadMXBean;
import java.lang.management.ManagementFactory;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Random;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import shmcast.ShmcastException.Code;

@Timeout(240)
class ReadingTest {
    private Publishers publishers;

    @BeforeEach
    void begin() throws Exception {
        publishers = new Publishers();
    }

    @AfterEach
    void end() throws Exception {
        publishers.close();
    }

    private Subscriber.Builder subscriber() {
        return Subscriber.of("c").dir(publishers.directory);
    }

    @Test
    void aChannelIsOverBehindItsLastPublisher() throws Exception {
        publishers.publish(1, 3, "--capacity", "64KiB");
        publishers.publish(4, 5);
        Counted all = new Counted();
        try (Subscriber s = subscriber().start(Start.OLDEST).open();
                Subscriber next = subscriber().open()) {
            s.recv(all, Duration.ofSeconds(10)); // up to the end of the first publisher
            assertEquals(List.of("end"), all.told);
            assertFalse(s.isOver());
            while (!s.isOver()) {
                s.recv(all, Duration.ofSeconds(10));
            }
            assertEquals(List.of("end", "epoch 2", "end"), all.told);
            assertEquals(5, all.received);
            // If a channel is closed and has no message for a subscriber, the subscriber waits for the next publisher.
            Counted waiting = new Counted();
            next.recv(waiting, Duration.ofSeconds(10));
            assertEquals(List.of("end"), waiting.told);
            assertFalse(next.isOver());
            publishers.publish(6, 6);
            while (!next.isOver()) {
                next.recv(waiting, Duration.ofSeconds(10));
            }
            assertEquals(1, waiting.received);
        }
    }

    /**
     * An earlier mistake: after somebody removed or moved a channel, its reader waited forever for the next publisher, which makes another
     * channel.
     */
    @Test
    void filesThatAreRemovedOrMovedAreTold() throws Exception {
        for (String what : List.of("segment", "channel", "moved channel")) {
            Path channel = publishers.directory.resolve("c");
            publishers.publish(1, 3, "--capacity", "64KiB");
            Counted all = new Counted();
            try (Subscriber s = subscriber().start(Start.OLDEST).waiting(Wait.SLEEP).open()) {
                // While all files have their names, the reader gets no error.
                while (s.recv(all, Duration.ofMillis(1500)) > 0) {}
                assertEquals(3, all.received, what);
                switch (what) {
                    case "segment" -> Files.delete(channel.resolve("segment"));
                    case "moved channel" -> Files.move(channel, publishers.directory.resolve("moved"));
                    default -> remove(channel);
                }
                for (int again = 0; again < 2; again++) {
                    ShmcastException told = assertThrows(ShmcastException.class, () -> s.recv(all, Duration.ofSeconds(30)), what);
                    assertEquals(Code.SUPERSEDED, told.code(), what);
                }
            }
            if (Files.exists(channel)) {
                remove(channel);
            }
        }
    }

    private static void remove(Path directory) throws Exception {
        try (Stream<Path> files = Files.walk(directory)) {
            for (Path file : files.sorted(Comparator.reverseOrder()).toList()) {
                Files.delete(file);
            }
        }
    }

    /** A link is not followed, whether it replaces the channel or its segment. */
    @Test
    void linksInPlaceOfAChannelAreRefused() throws Exception {
        publishers.publish(1, 3, "--capacity", "64KiB");
        Files.createSymbolicLink(publishers.directory.resolve("link"), Path.of("c"));
        Files.createDirectory(publishers.directory.resolve("other"));
        Files.createSymbolicLink(publishers.directory.resolve("other").resolve("segment"), Path.of("../c/segment"));
        for (String name : List.of("link", "other")) {
            ShmcastException told = assertThrows(
                    ShmcastException.class, () -> Subscriber.of(name).dir(publishers.directory).open());
            assertEquals(Code.NO_CHANNEL, told.code(), name);
        }
    }

    @Test
    void whatShmcastPubPublishesIsReceived() throws Exception {
        publishers.publish(1, 100, "--capacity", "8MiB");
        publishers.publish(101, 120);
        Counted all = new Counted();
        try (Subscriber s = subscriber().start(Start.OLDEST).open()) {
            while (s.recv(all, Duration.ofMillis(200)) > 0) {}
            assertEquals(List.of("end", "epoch 2", "end"), all.told);
            assertEquals(120, all.received);
            assertEquals(0, all.wrong);
            assertEquals(121, s.nextSequence());
            assertEquals(2, s.epoch());
            assertEquals("c", s.header().channel());
            s.seek(60);
            List<byte[]> one = new ArrayList<>();
            assertEquals(1, s.poll(m -> {
                byte[] copy = new byte[m.length()];
                m.copyTo(copy, 0);
                assertEquals(m.length(), m.buffer().remaining());
                assertThrows(IndexOutOfBoundsException.class, () -> m.getLong(m.length() - 7));
                one.add(copy);
            }, 1));
            assertArrayEquals(Publishers.payload(60), one.get(0));
            assertEquals(Code.NOT_YET, assertThrows(ShmcastException.class, () -> s.seek(122)).code());
            s.close();
            assertThrows(IllegalStateException.class, () -> s.poll(all, 1));
        }
        for (long from : new long[] {1, 64, 65, 101, 120}) {
            Counted counted = new Counted();
            try (Subscriber s = subscriber().from(from).open()) {
                while (s.poll(counted, 7) > 0) {}
            }
            assertEquals(121 - from, counted.received);
            assertEquals(0, counted.wrong + counted.missed);
        }
    }

    /** A program that stops at the end of the stream has not received messages of the next publisher. */
    @Test
    void aCallEndsWithTheStream() throws Exception {
        publishers.publish(1, 100, "--capacity", "8MiB");
        publishers.publish(101, 120);
        try (Subscriber s = subscriber().start(Start.OLDEST).open()) {
            Counted first = new Counted();
            while (first.told.isEmpty()) {
                s.recv(first, Duration.ofSeconds(1));
            }
            assertEquals(List.of("end"), first.told);
            assertEquals(100, first.received);
            Counted second = new Counted();
            while (!second.told.contains("end")) {
                s.poll(second, 256);
            }
            assertEquals(List.of("epoch 2", "end"), second.told);
            assertEquals(20, second.received);
        }
    }

    @Test
    void errorsSayWhatIsWrong() throws Exception {
        for (String bad : new String[] {"", ".a", "-a", "a/b", "a b", "a".repeat(201), "é"}) {
            Subscriber.Builder builder = Subscriber.of(bad).dir(publishers.directory);
            assertEquals(Code.NAME, assertThrows(ShmcastException.class, builder::open).code());
        }
        assertEquals(Code.NO_CHANNEL, assertThrows(ShmcastException.class, subscriber()::open).code());
        publishers.publish(1, 3, "--capacity", "64KiB", "--set", "max_message=8KiB");
        assertEquals(Code.NOT_YET, assertThrows(ShmcastException.class, subscriber().from(9)::open).code());
        try (Subscriber s = subscriber().hidden().open()) {
            assertEquals(0, publishers.start("rm", "c").waitFor());
            ShmcastException e = assertThrows(ShmcastException.class, () -> {
                for (int i = 0; i < 200; i++) {
                    s.poll(m -> {}, 1);
                }
            });
            assertEquals(Code.SUPERSEDED, e.code());
        }
    }

    /** The received and the missed messages together are all published messages, however fast publishers are and however they end. */
    @Test
    void nothingIsLostSilentlyBehindPublishersThatAreKilled() throws Exception {
        publishers.publish(1, 1, "--capacity", "1MiB", "--set", "max_message=65536");
        Counted bursting = new Counted();
        Counted yielding = new Counted();
        try (Subscriber one = subscriber().start(Start.OLDEST).waiting(Wait.BURST).open();
                Subscriber two = subscriber().start(Start.OLDEST).open()) {
            Random random = new Random();
            long next = 2;
            for (int life = 0; life < 8; life++) {
                Process process = publishers.publisher();
                long from = next;
                Thread feeder = new Thread(() -> Publishers.feed(process, from, from + 30_000));
                feeder.start();
                long until = System.nanoTime() + (50 + random.nextInt(150)) * 1_000_000L;
                boolean isLast = life == 7;
                while (isLast ? process.isAlive() : System.nanoTime() < until) {
                    one.poll(bursting, 256);
                    two.poll(yielding, 3);
                }
                process.destroyForcibly().waitFor();
                feeder.join();
                try (Subscriber look = subscriber().open()) {
                    next = look.nextSequence();
                }
            }
            while (one.nextSequence() < next) {
                one.poll(bursting, 256);
            }
            while (two.nextSequence() < next) {
                two.poll(yielding, 256);
            }
            for (Counted counted : List.of(bursting, yielding)) {
                System.out.printf("%d received, %d missed, %d published%n", counted.received, counted.missed, next - 1);
                assertEquals(next - 1, counted.received + counted.missed);
                assertEquals(0, counted.wrong);
                assertTrue(counted.received > 0);
            }
            assertTrue(next > 30_000, "the last publisher lived");
        }
    }

    @Test
    void receivingAllocatesNothing() throws Exception {
        publishers.publish(1, 2_000, "--capacity", "64MiB");
        ThreadMXBean threads = (ThreadMXBean) ManagementFactory.getThreadMXBean();
        long thread = Thread.currentThread().getId();
        try (Subscriber s = subscriber().start(Start.OLDEST).open()) {
            long[] sums = new long[2];
            Handler handler = m -> {
                sums[0]++;
                sums[1] += m.length() > 7 ? m.getLong(0) : m.sequence();
            };
            long before = 0;
            for (int round = 0; round < 400; round++) {
                if (round == 200) { // the compiler has done its work
                    before = threads.getThreadAllocatedBytes(thread);
                }
                s.seek(1);
                while (s.poll(handler, 500) > 0) {}
            }
            long allocated = threads.getThreadAllocatedBytes(thread) - before;
            assertEquals(400 * 2_000, sums[0]);
            assertTrue(allocated < 20_000, allocated + " bytes for 400,000 messages"); // the measurement itself allocates some bytes
        }
    }

    /** If the owner shortens a file, the reader gets an error, and the program does not end. */
    @Test
    void shortenedFileIsCorrupt() throws Exception {
        publishers.publish(1, 50, "--capacity", "8MiB");
        try (Subscriber s = subscriber().start(Start.OLDEST).open()) {
            Path file = publishers.directory.resolve("c/segment");
            try (FileChannel segment = FileChannel.open(file, StandardOpenOption.WRITE)) {
                segment.truncate(4096);
            }
            Throwable e = assertThrows(Throwable.class, () -> {
                for (int i = 0; i < 200; i++) {
                    s.poll(m -> {}, 1);
                }
            });
            // The JVM notices this immediately, or only after the call.
            assertTrue(e instanceof ShmcastException x && x.code() == Code.CORRUPT || e instanceof InternalError, e.toString());
            assertEquals(Code.TRUNCATED, assertThrows(ShmcastException.class, subscriber()::open).code());
        }
    }
}
