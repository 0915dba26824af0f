package shmcast;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import com.sun.management.ThreadMXBean;
import java.io.IOException;
import java.lang.ProcessBuilder.Redirect;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.List;
import java.util.Random;
import java.util.Set;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import shmcast.ShmcastException.Code;

/** Tests gates and boards of publishers in Java, which use the C library, and gates that readers in Java hold. */
@Timeout(240)
class GateTest {
    private Publishers publishers;
    private Process daemon;

    @BeforeEach
    void begin() throws Exception {
        String library = System.getenv("SHMCAST_LIBRARY");
        assumeTrue(Runtime.version().feature() >= 22, "this Java cannot take the locks of gates");
        assumeTrue(library != null, "SHMCAST_LIBRARY names no libshmcast.so.0");
        System.setProperty("shmcast.native", library);
        publishers = new Publishers();
    }

    @AfterEach
    void end() throws Exception {
        if (daemon != null) {
            daemon.destroyForcibly().waitFor();
        }
        if (publishers != null) {
            publishers.close();
        }
    }

    private Publisher.Builder publisher() {
        return Publisher.of("c").dir(publishers.directory).capacity(1 << 20);
    }

    private Subscriber.Builder subscriber() {
        return Subscriber.of("c").dir(publishers.directory).hidden();
    }

    private ByteBuffer page(String name) throws IOException {
        return ByteBuffer.wrap(Files.readAllBytes(publishers.directory.resolve("c/gates").resolve(name))).order(ByteOrder.LITTLE_ENDIAN);
    }

    /** Whether the position on the page is valid for a segment. */
    private static boolean counts(ByteBuffer page, Header header) {
        return page.getLong(8 * 17) == ((page.getLong(8 * 16) ^ header.uuidLow()) * 0x9e37_79b9_7f4a_7c15L ^ header.uuidHigh());
    }

    @Test
    void aFullGateRefusesAndLosesNothing() throws Exception {
        Gate ledger = Gate.of("ledger").withLimit(Duration.ofMillis(2)).refusing();
        try (Publisher p = publisher().gate(ledger).gate(Gate.of("risk").withLagPercent(40)).open()) {
            assertEquals(List.of("ledger", "risk"), p.gates().stream().map(GateStatus::name).toList());
            assertEquals(GateStatus.State.ABSENT, p.gates().get(0).state());
            List<Long> received = new ArrayList<>();
            Handler handler = m -> received.add(m.sequence());
            try (Subscriber s = subscriber().gate("ledger").open()) {
                byte[] entry = new byte[100];
                long published = 0;
                for (long next = p.tryPublish(entry); next != 0; next = p.tryPublish(entry)) {
                    published = next;
                }
                assertTrue(published > 2_000, published + " published");
                FullException full = assertThrows(FullException.class, () -> p.publish(entry));
                assertEquals(Code.FULL, full.code());
                assertEquals("ledger", full.gate());
                assertTrue(full.behindBytes() > 200_000 && full.getMessage().contains("ledger"), full.behindBytes() + " B: " + full.getMessage());
                assertEquals(published + 1, p.nextSequence());
                while (s.poll(handler, 64) > 0) {}
                assertEquals(published, received.size());
                assertEquals(published + 1, p.publish(entry));
                GateStatus status = p.gates().get(0);
                assertEquals(GateStatus.State.IN_FORCE, status.state());
                assertEquals(ProcessHandle.current().pid(), status.pid());
                assertEquals(List.of(1L, 1L), List.of(status.refused(), status.turnedAway()));
                assertTrue(status.longestNanos() >= 2_000_000 && status.totalNanos() >= status.longestNanos() && status.held() >= 1);
                ShmcastException taken = assertThrows(ShmcastException.class, () -> subscriber().gate("ledger").open());
                assertEquals(Code.IN_USE, taken.code());
                assertTrue(taken.getMessage().contains("process " + ProcessHandle.current().pid()), taken.getMessage());
                ShmcastException unknown = assertThrows(ShmcastException.class, () -> subscriber().gate("nobody").open());
                assertEquals(Code.UNKNOWN_GATE, unknown.code());
                assertTrue(unknown.getMessage().contains("ledger, risk"), unknown.getMessage());
            }
            // After its reader has closed it, a gate does not make publishers wait.
            for (int i = 0; i < 20_000; i++) {
                assertNotEquals(0, p.tryPublish(new byte[100]));
            }
            assertEquals(GateStatus.State.ABSENT, p.gates().get(0).state());
            subscriber().gate("ledger").open().close();
        }
    }

    @Test
    void thePageSaysWhatTheReaderHasCopied() throws Exception {
        try (Publisher p = publisher().gate(Gate.of("risk").withLimit(Duration.ZERO)).open();
                Subscriber s = subscriber().gate("risk").open()) {
            Header header = s.header();
            assertTrue(counts(page("risk"), header));
            assertEquals(ProcessHandle.current().pid(), page("risk").getLong(8 * 19));
            long before = page("risk").getLong(8 * 16);
            for (int i = 0; i < 10; i++) {
                p.publish(new byte[40]);
            }
            // The position is stored before the handler gets the message, because the message was already copied.
            List<Long> due = new ArrayList<>();
            s.poll(m -> {
                try {
                    due.add(page("risk").getLong(8 * 18));
                } catch (IOException e) {
                    throw new AssertionError(e);
                }
            }, 4);
            assertEquals(List.of(2L, 3L, 4L, 5L), due);
            assertEquals(before + 4 * 64, page("risk").getLong(8 * 16));
            s.seek(2);
            assertEquals(before + 64, page("risk").getLong(8 * 16));
            assertTrue(counts(page("risk"), header));
            s.close();
            assertFalse(counts(page("risk"), header), "a reader that is gone has no place");
        }
    }

    @Test
    void aReaderIsToldThatItsGateHasLostItsPage() throws Exception {
        try (Publisher p = publisher().gate(Gate.of("risk")).open();
                Subscriber s = subscriber().gate("risk").open()) {
            Files.delete(publishers.directory.resolve("c/gates/risk"));
            ShmcastException lost = assertThrows(ShmcastException.class, () -> {
                while (true) {
                    s.poll(m -> {}, 1);
                }
            });
            assertEquals(Code.GATE, lost.code());
        }
    }

    /** The publisher waits outside of the JVM. So another thread can collect garbage and receive messages. */
    @Test
    void otherThreadsGoOnWhileAMessageWaits() throws Exception {
        try (Publisher p = publisher().gate(Gate.of("slow").withLimit(Duration.ofSeconds(60)).refusing()).open();
                Subscriber s = subscriber().gate("slow").open()) {
            byte[] bytes = new byte[1_000];
            while (p.tryPublish(bytes) != 0) {}
            long next = p.nextSequence();
            Thread publishing = new Thread(() -> {
                try {
                    p.publish(bytes);
                } catch (ShmcastException e) {
                    throw new AssertionError(e);
                }
            });
            publishing.start();
            while (publishing.getState() != Thread.State.RUNNABLE) {
                Thread.onSpinWait();
            }
            System.gc();
            while (publishing.isAlive()) {
                s.poll(m -> {}, 64);
            }
            assertEquals(next + 1, p.nextSequence());
        }
    }

    @Test
    void aBoardOfAPublisherInJava() throws Exception {
        BoardSpec spec = BoardSpec.of(0, 2).withKeys(3).withValue(32).withRemoveTag(7);
        try (Publisher p = publisher().board(spec).gate(Gate.of("risk")).open();
                Board board = subscriber().openBoard();
                Subscriber s = subscriber().start(Start.BOARD).gate("risk").open()) {
            assertEquals(spec, board.spec());
            p.publish("ab1".getBytes());
            p.publish("cd2".getBytes());
            p.publish("ab3".getBytes());
            assertEquals("ab3", board.get("ab".getBytes()).message().text());
            assertEquals(2, board.get("ab".getBytes()).count());
            p.publish("ab4".getBytes(), 0, 3, 7, false);
            assertNull(board.get("ab".getBytes()));
            assertNotNull(board.get("cd".getBytes()));
            List<String> told = new ArrayList<>();
            Handler handler = new Handler() {
                @Override
                public void message(Message m) {
                    told.add(m.text() + " " + m.conflated());
                }

                @Override
                public void live(long sequence) {
                    told.add("live " + sequence);
                }
            };
            while (s.poll(handler, 1) > 0) {}
            assertEquals(List.of("live 1", "ab1 -1", "cd2 -1", "ab3 -1", "ab4 -1"), told);
            assertEquals(5, page("risk").getLong(8 * 18));
        }
        assertEquals(Code.GATE, assertThrows(ShmcastException.class, () -> publisher().gate(Gate.of("a").withLagBytes(1)).open()).code());
    }

    /** A reader holds a gate and begins with the board. The reader must receive everything, while the publisher never stops. */
    @Test
    void nothingIsLostBehindAGate() throws Exception {
        Ticks ticks = new Ticks(40);
        try (Publisher p = publisher().capacity(1 << 18).gate(Gate.of("all").withLimit(Duration.ofSeconds(60)).refusing()).open();
                Subscriber s = subscriber().start(Start.OLDEST).gate("all").open()) {
            long most = 60_000;
            Thread publishing = new Thread(() -> {
                try {
                    for (long n = 1; n <= most; n++) {
                        p.publish(ticks.payload(n));
                    }
                } catch (ShmcastException e) {
                    throw new AssertionError(e);
                }
            });
            publishing.start();
            long[] received = new long[1];
            Handler handler = new Handler() {
                @Override
                public void message(Message m) {
                    assertEquals(++received[0], m.sequence());
                    assertTrue(ticks.isRight(m));
                }

                @Override
                public void lapped(long missed, long resumedAt) {
                    throw new AssertionError("lapped " + missed);
                }
            };
            while (received[0] < most) {
                s.poll(handler, 64);
            }
            publishing.join();
            assertEquals(0, p.gates().get(0).refused());
        }
    }

    @Test
    void holdingAGateAllocatesNothing() throws Exception {
        ThreadMXBean threads = (ThreadMXBean) ManagementFactory.getThreadMXBean();
        long thread = Thread.currentThread().getId();
        byte[] bytes = new byte[32];
        long[] received = new long[1];
        Handler handler = m -> received[0]++;
        try (Publisher p = publisher().gate(Gate.of("risk").withLimit(Duration.ofSeconds(60))).open();
                Subscriber s = subscriber().gate("risk").open()) {
            long before = 0;
            for (int i = 0; i < 300_000; i++) {
                if (i == 150_000) { // the compiler has done its work
                    before = threads.getThreadAllocatedBytes(thread);
                }
                p.publish(bytes, 0, 32, 0, false);
                assertNotEquals(0, p.tryPublish(bytes, 0, 32, 0, false));
                s.poll(handler, 2);
            }
            long allocated = threads.getThreadAllocatedBytes(thread) - before;
            assertEquals(600_000, received[0]);
            assertTrue(allocated < 20_000, allocated + " bytes for 300,000 messages");
        }
    }

    /** Another program has written to the page. A reader takes the gate or gets an error of this package, and a publisher continues. */
    @Test
    void hostilePagesHarmNobody() throws Exception {
        Set<Code> refusals = EnumSet.of(Code.GATE, Code.UNKNOWN_GATE);
        long seed = System.nanoTime();
        System.out.println("seed " + seed);
        Random random = new Random(seed);
        try (Publisher p = publisher().gate(Gate.of("risk").withLimit(Duration.ZERO)).open()) {
            Path file = publishers.directory.resolve("c/gates/risk");
            byte[] right = Files.readAllBytes(file);
            int taken = 0;
            for (int round = 0; round < 300; round++) {
                byte[] bytes = random.nextInt(4) == 0 ? java.util.Arrays.copyOf(right, random.nextInt(4097)) : right.clone();
                for (int changes = random.nextInt(4); changes > 0 && bytes.length > 160; changes--) {
                    ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN).putLong(8 * random.nextInt(20), random.nextLong());
                }
                Files.write(file, bytes);
                try (Subscriber s = subscriber().gate("risk").open()) {
                    taken++;
                    p.publish(new byte[10]);
                    assertEquals(1, s.poll(m -> {}, 64));
                    FileChannel other = FileChannel.open(file, StandardOpenOption.WRITE);
                    other.write(ByteBuffer.allocate(8).putLong(0, random.nextLong()), 8 * (16 + random.nextInt(4)));
                    other.close();
                    p.publish(new byte[10]);
                    assertEquals(1, s.poll(m -> {}, 64));
                } catch (ShmcastException e) {
                    assertTrue(refusals.contains(e.code()), e.toString());
                }
            }
            assertTrue(taken > 50 && taken < 300, taken + " taken");
            // The page is shortened while a reader uses it. The reader can get an error, and must leave the gate free.
            Files.write(file, right);
            try (Subscriber s = subscriber().gate("risk").open()) {
                FileChannel other = FileChannel.open(file, StandardOpenOption.WRITE);
                other.truncate(0).close();
                try {
                    p.publish(new byte[10]);
                    s.poll(m -> {}, 64);
                } catch (ShmcastException e) {
                    assertEquals(Code.CORRUPT, e.code());
                } catch (InternalError e) {
                    assertTrue(e.getMessage().contains("unsafe memory access"), e.toString());
                }
            }
            Files.write(file, right);
            subscriber().gate("risk").open().close();
            // A link does not count as a page.
            Files.delete(file);
            Files.createSymbolicLink(file, publishers.directory.resolve("c/segment"));
            assertEquals(Code.UNKNOWN_GATE, assertThrows(ShmcastException.class, () -> subscriber().gate("risk").open()).code());
            Files.delete(file);
        }
    }

    private void startDaemon(Path socket, String mode, int keyEnd) throws IOException {
        Path config = publishers.directory.resolve("shmcast.toml");
        Files.writeString(
                config,
                "[daemon]\nsocket = \"" + socket + "\"\n\n[[channel]]\nname = \"c\"\ncapacity = \"1 MiB\"\nmlock = false\nmode = \"" + mode + "\"\n"
                        + "board = { key = \"4.." + keyEnd + "\", keys = 64, value = \"96B\" }\n\n"
                        + "[[channel.gate]]\nname = \"risk\"\nlag = \"40%\"\nwait = \"2ms\"\nthen = \"refuse\"\n");
        daemon =
                new ProcessBuilder(Publishers.command("shmcastd"), "--config", config.toString())
                        .redirectError(Redirect.DISCARD)
                        .redirectOutput(Redirect.DISCARD)
                        .start();
    }

    private static Subscriber attached(Subscriber.Builder builder) throws Exception {
        for (int attempt = 0; ; attempt++) {
            try {
                return builder.open();
            } catch (ShmcastException e) {
                if (e.code() != Code.NO_DAEMON || attempt > 400) {
                    throw e;
                }
                Thread.sleep(20);
            }
        }
    }

    /** Counts the received messages, together with the messages that were skipped before each of them. */
    private static final class Heard implements Handler {
        final Ticks ticks;
        final List<String> told = new ArrayList<>();
        long last;
        long counted;
        long leftOut;

        Heard(Ticks ticks) {
            this.ticks = ticks;
        }

        @Override
        public void message(Message m) {
            assertTrue(ticks.isRight(m), "message " + m.sequence());
            last = m.sequence();
            counted += 1 + Math.max(m.conflated(), 0);
            leftOut += Math.max(m.conflated(), 0);
        }

        @Override
        public void lapped(long missed, long resumedAt) {
            throw new AssertionError("lapped " + missed + " before " + resumedAt);
        }

        @Override
        public void restarted() {
            told.add("restarted");
            counted = 0;
        }
    }

    /** Waits until a board has followed the channel to its new memory. Then compares the board with the model. */
    private static void agree(Board board, Ticks ticks, long published) throws Exception {
        for (int attempt = 0; attempt < 1_000 && board.counters().through() != published; attempt++) {
            Thread.sleep(5);
        }
        List<Long> newest = ticks.newest(published).values().stream().sorted().toList();
        assertEquals(newest, board.entries().stream().map(BoardEntry::sequence).toList());
        for (long sequence : newest) {
            assertEquals(sequence, board.get(ticks.keyBytes(ticks.key(sequence))).sequence());
        }
    }

    /** Tests a daemon's channel: its gate, its board, and a move to new memory in which sequences restart. */
    @Test
    void aDaemonsChannelHasThemToo() throws Exception {
        Path socket = publishers.directory.resolve("control.sock");
        startDaemon(socket, "takeover", 8);
        Ticks ticks = new Ticks(50);
        Heard heard = new Heard(ticks);
        try (Subscriber s = attached(Subscriber.of("c").daemon(socket).gate("risk").start(Start.BOARD).conflate())) {
            for (String[] wanted : new String[][] {{"risk", "IN_USE"}, {"none", "UNKNOWN_GATE"}}) {
                Subscriber.Builder builder = Subscriber.of("c").daemon(socket).gate(wanted[0]);
                assertEquals(wanted[1], assertThrows(ShmcastException.class, builder::open).code().name());
            }
            try (Board board = Subscriber.of("c").daemon(socket).openBoard()) {
                try (Publisher p = Publisher.of("c").daemon(socket).open()) {
                    fill(p, s, heard);
                    agree(board, ticks, heard.last);
                }
                try (Publisher anew = Publisher.of("c").daemon(socket).anew().open()) {
                    for (long n = 1; n <= 200; n++) {
                        anew.publish(ticks.payload(n));
                    }
                    while (heard.told.isEmpty() || heard.counted < 200) {
                        s.poll(heard, 64);
                    }
                    assertEquals(200, heard.last);
                    agree(board, ticks, 200);
                    // The publisher checks the gate only sometimes.
                    for (long n = 201; n < 20_000 && anew.gates().get(0).state() != GateStatus.State.IN_FORCE; n++) {
                        anew.publish(ticks.payload(n));
                        s.poll(heard, 64);
                    }
                    assertEquals(GateStatus.State.IN_FORCE, anew.gates().get(0).state());
                }
            }
        }
    }

    /** Publishes until the gate refuses a message, and receives all messages. */
    private static void fill(Publisher p, Subscriber s, Heard heard) throws Exception {
        assertEquals("risk", p.gates().get(0).name());
        long published = 0;
        while (p.tryPublish(heard.ticks.payload(published + 1)) != 0) {
            published++;
        }
        byte[] refused = heard.ticks.payload(published + 1);
        FullException full = assertThrows(FullException.class, () -> p.publish(refused));
        assertEquals("risk", full.gate());
        assertTrue(full.behindBytes() > 200_000, full.behindBytes() + " B behind");
        while (heard.last < published) {
            s.poll(heard, 64);
        }
        assertEquals(published, heard.counted);
        assertEquals(GateStatus.State.IN_FORCE, p.gates().get(0).state());
    }

    /** Each publisher has its own memory. The board and the counts continue in the next memory, even for a reader that was left behind. */
    @Test
    void countsGoOnFromGenerationToGeneration() throws Exception {
        Path socket = publishers.directory.resolve("control.sock");
        startDaemon(socket, "strict", 28);
        Ticks ticks = new Ticks(50, 28); // in each generation, other words identify long keys
        Heard heard = new Heard(ticks);
        try (Subscriber s = attached(Subscriber.of("c").daemon(socket).start(Start.BOARD).conflate());
                Board board = Subscriber.of("c").daemon(socket).openBoard()) {
            long published = 0;
            for (int life = 0; life < 6; life++) {
                long more = life % 2 == 0 ? 900 : 30_000;
                try (Publisher p = Publisher.of("c").daemon(socket).open()) {
                    for (long n = published + 1; n <= published + more; n++) {
                        p.publish(ticks.payload(n));
                    }
                    published += more;
                    agree(board, ticks, published);
                }
                if (life == 2) {
                    continue; // the reader stays behind, and finds itself two generations later
                }
                while (heard.last < published) {
                    s.poll(heard, 64);
                }
                assertEquals(published, heard.counted, "life " + life);
                List<Long> begun = new ArrayList<>();
                try (Subscriber late = Subscriber.of("c").daemon(socket).start(Start.BOARD).open()) {
                    List<Long> newest = ticks.newest(published).values().stream().sorted().toList();
                    while (begun.size() < newest.size()) {
                        late.poll(m -> begun.add(m.sequence()), 64);
                    }
                    late.poll(m -> begun.add(m.sequence()), 64);
                    assertEquals(newest, begun);
                }
            }
            assertTrue(heard.leftOut > 20_000, heard.leftOut + " left out");
        }
    }
}
