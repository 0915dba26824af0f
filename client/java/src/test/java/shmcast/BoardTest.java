package shmcast;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.management.ThreadMXBean;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;
import shmcast.ShmcastException.Code;

/** Tests boards against the publisher of the command. */
@Timeout(240)
class BoardTest {
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

    /** Keeps the received messages, and checks them against the model. */
    private static final class Screen implements Handler {
        final Ticks ticks;
        final Map<Integer, Long> board = new HashMap<>();
        final Map<Integer, Long> last = new HashMap<>();
        final Map<Integer, Long> counted = new HashMap<>();
        final List<String> told = new ArrayList<>();
        long live;
        long due;
        long newest;
        long missed;
        long leftOut;

        Screen(Ticks ticks) {
            this.ticks = ticks;
        }

        @Override
        public void message(Message m) {
            assertTrue(ticks.isRight(m), "message " + m.sequence());
            int key = ticks.key(m.sequence());
            if (m.conflated() < 0) {
                assertEquals(due == 0 ? m.sequence() : due, m.sequence());
                due = m.sequence() + 1;
            } else {
                assertTrue(m.sequence() > newest, m.sequence() + " behind " + newest);
                leftOut += m.conflated();
                board.put(key, m.sequence());
            }
            newest = m.sequence();
            counted.merge(key, 1 + Math.max(m.conflated(), 0), Long::sum);
            if (ticks.removes(m.sequence())) {
                last.remove(key);
            } else {
                last.put(key, m.sequence());
            }
        }

        @Override
        public void live(long sequence) {
            assertTrue(sequence > newest);
            live = sequence;
            due = sequence;
            told.add("live");
        }

        @Override
        public void lapped(long lost, long resumedAt) {
            missed += lost;
            due = resumedAt;
            told.add("lapped");
        }

        @Override
        public void newEpoch(long epoch) {
            told.add("epoch " + epoch);
        }

        @Override
        public void end() {
            told.add("end");
        }
    }

    private static void drain(Subscriber s, Handler handler) throws Exception {
        for (int empty = 0; empty < 130; empty++) {
            if (s.poll(handler, 7) > 0) {
                empty = -1;
            }
        }
    }

    @Test
    void aLateReaderGetsTheBoardAndThenTheStream() throws Exception {
        Ticks ticks = new Ticks(100);
        ticks.publish(publishers, 1, 5_000, "--capacity", "64KiB", "--set", "board.key=4..8");
        Screen screen = new Screen(ticks);
        try (Subscriber s = subscriber().start(Start.BOARD).open()) {
            assertEquals(5_001, s.nextSequence());
            drain(s, screen);
            assertEquals(ticks.newest(5_000), screen.board);
            assertEquals(5_001, screen.live);
            assertEquals(List.of("live", "end"), screen.told);
            assertTrue(s.isOver());
            ticks.publish(publishers, 5_001, 5_300);
            drain(s, screen);
            assertEquals(ticks.newest(5_300), screen.last);
            assertEquals(5_301, screen.due);
            assertEquals(List.of("live", "end", "epoch 2", "end"), screen.told);
            assertEquals(0, screen.leftOut + screen.missed);
        }
    }

    /** Readers of each kind are lapped or fall behind. These readers must get the exact number of messages of each key that they missed. */
    @Test
    void aSlowReaderGetsTheNewestAndTheNumberLeftOut() throws Exception {
        Ticks ticks = new Ticks(50);
        ticks.publish(publishers, 1, 400, "--capacity", "64KiB", "--set", "board.key=4..8");
        List<Subscriber> slow = new ArrayList<>();
        slow.add(subscriber().conflate().open());
        slow.add(subscriber().conflateBehind(8 << 10).open());
        slow.add(subscriber().start(Start.BOARD).conflate().open());
        List<Screen> screens = slow.stream().map(s -> new Screen(ticks)).toList();
        List<Long> first = slow.stream().map(Subscriber::nextSequence).toList();
        long published = 400;
        for (int round = 0; round < 5; round++) {
            long more = round == 1 ? 40 : 6_000; // some readers keep up with the short round
            ticks.publish(publishers, published + 1, published + more);
            published += more;
            for (int i = 0; i < slow.size(); i++) {
                drain(slow.get(i), screens.get(i));
                Screen screen = screens.get(i);
                assertEquals(0, screen.missed, "reader " + i);
                assertEquals(published + 1, screen.due, "reader " + i);
                Map<Integer, Long> expected = new HashMap<>();
                for (long n = first.get(i); n <= published; n++) {
                    expected.merge(ticks.key(n), 1L, Long::sum);
                }
                if (i == 2) {
                    ticks.newest(400).forEach((key, newest) -> expected.merge(key, 1L, Long::sum)); // the first keys of the board
                }
                assertEquals(expected, screen.counted, "reader " + i + ", round " + round);
                ticks.newest(published).forEach((key, newest) -> assertEquals(newest, screen.last.get(key)));
            }
        }
        assertTrue(screens.get(0).leftOut > 10_000, screens.get(0).leftOut + " left out");
        slow.forEach(Subscriber::close);
    }

    /**
     * A conflating reader must know everything that it received, so it cannot begin with older messages. An earlier version allowed the
     * oldest message.
     */
    @Test
    void aConflatingReaderBeginsWithTheLatestMessageOrTheBoard() throws Exception {
        new Ticks(50).publish(publishers, 1, 400, "--capacity", "64KiB", "--set", "board.key=4..8");
        for (Subscriber.Builder builder : List.of(subscriber().start(Start.OLDEST), subscriber().from(1))) {
            assertEquals(Code.UNSUPPORTED, assertThrows(ShmcastException.class, () -> builder.conflate().open()).code());
        }
        for (Start start : List.of(Start.LATEST, Start.BOARD)) {
            subscriber().start(start).conflate().open().close();
        }
    }

    /**
     * Readers join at any time, while publishers publish and are killed. Each reader gets the board of one moment, and then the stream from
     * there on.
     */
    @Test
    void boardsThatAreJoinedUnderKilledPublishersMissNothing() throws Exception {
        Ticks ticks = new Ticks(300);
        ticks.publish(publishers, 1, 1, "--capacity", "256KiB", "--set", "board.key=4..8", "--set", "board.keys=512");
        long next = 2;
        int joins = 0;
        for (int life = 0; life < 5; life++) {
            Process process = publishers.publisher();
            long from = next;
            Thread feeder = new Thread(() -> ticks.feed(process, from, from + 50_000));
            feeder.start();
            for (int join = 0; join < 12 && process.isAlive(); join++) {
                Screen screen = new Screen(ticks);
                try (Subscriber s = subscriber().start(Start.BOARD).hidden().open()) {
                    while (screen.live == 0) {
                        s.poll(screen, 64);
                    }
                    s.poll(screen, 64);
                    assertEquals(ticks.newest(screen.live - 1), screen.board);
                    joins++;
                } catch (ShmcastException e) {
                    assertEquals(Code.BOARD, e.code(), e.getMessage()); // the ring is small for this publisher
                }
            }
            process.destroyForcibly().waitFor();
            feeder.join();
            try (Subscriber look = subscriber().hidden().open()) {
                next = look.nextSequence();
            }
        }
        ticks.publish(publishers, next, next + 9);
        Screen screen = new Screen(ticks);
        try (Subscriber s = subscriber().start(Start.BOARD).open()) {
            drain(s, screen);
            assertEquals(ticks.newest(next + 9), screen.board);
        }
        assertTrue(joins > 0, joins + " joins");
        System.out.println(joins + " joins, " + next + " published");
    }

    private void publishLines(List<byte[]> payloads, String... more) throws Exception {
        Process process = publishers.publisher(more);
        try (var out = process.getOutputStream()) {
            for (byte[] payload : payloads) {
                out.write(new byte[] {(byte) payload.length, (byte) (payload.length >> 8), 0, 0});
                out.write(payload);
            }
        }
        assertEquals(0, process.waitFor());
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    @Test
    void keysAreLookedUpOneByOneAndAllAtOnce() throws Exception {
        List<byte[]> payloads = new ArrayList<>();
        for (String text : List.of("EUR 1.08", "GBP 1.27", "EUR 1.09", "x", "JPY" + "y".repeat(100), "CHF 1", "CHF", "USD 1", "AUD 2")) {
            payloads.add(bytes(text));
        }
        publishLines(payloads, "--capacity", "64KiB", "--set", "board.key=0..3", "--set", "board.keys=5", "--set", "board.value=64");
        try (Board board = subscriber().openBoard()) {
            assertEquals(new BoardSpec(0, 3, 5, 64, -1), board.spec());
            BoardEntry euro = board.get(bytes("EUR"));
            assertNotNull(euro);
            assertEquals("EUR 1.09", euro.message().text());
            assertEquals(0, euro.message().tag());
            assertEquals(-1, euro.message().conflated());
            assertArrayEquals(bytes("EUR"), euro.key());
            assertEquals(List.of(3L, 2L), List.of(euro.sequence(), euro.count()));
            BoardEntry yen = board.get(bytes("JPY"));
            assertNull(yen.message());
            assertEquals(5, yen.sequence());
            for (String none : List.of("CHF", "NOK", "EURO", "EU", "")) {
                assertNull(board.get(bytes(none)), none);
            }
            // There were five keys, so the removed key has lost its slot.
            assertEquals(new BoardCounters(9, 1, 5, 0, 1, 1), board.counters());
            List<BoardEntry> entries = board.entries();
            assertEquals(List.of(2L, 3L, 5L, 8L, 9L), entries.stream().map(BoardEntry::sequence).toList());
            assertEquals("GBP 1.27", entries.get(0).message().text());
            publishLines(List.of(bytes("GBP 1.28"), bytes("NOK 1")));
            assertEquals("GBP 1.28", board.get(bytes("GBP")).message().text());
            assertEquals("GBP 1.27", entries.get(0).message().text());
            assertEquals(List.of(3L, 5L, 8L, 9L, 10L), board.entries().stream().map(BoardEntry::sequence).toList());
            assertEquals(1, board.counters().noRoom());
            board.close();
            assertThrows(IllegalStateException.class, () -> board.get(bytes("EUR")));
        }
        List<String> told = new ArrayList<>();
        try (Subscriber s = subscriber().start(Start.BOARD).open()) {
            drain(s, new Handler() {
                @Override
                public void message(Message m) {
                    told.add(m.text());
                }

                @Override
                public void lapped(long missed, long resumedAt) {
                    told.add("lapped " + missed + " " + resumedAt);
                }

                @Override
                public void live(long sequence) {
                    told.add("live " + sequence);
                }
            });
        }
        // The newest message of JPY is too large for the board.
        assertEquals(List.of("EUR 1.09", "USD 1", "AUD 2", "GBP 1.28", "lapped 1 12", "live 12"), told);
    }

    /** Keys of each kind: those that one word identifies, those that two words identify, and those that need hashes. */
    @Test
    void keysOfEachLengthAreFound() throws Exception {
        for (int length : new int[] {1, 7, 8, 9, 16, 17, 24, 256}) {
            String channel = "k" + length;
            int keys = length == 1 ? 200 : 500;
            Process process = publishers.start(
                    "pub", channel, "--framing", "u32le", "--set", "prepare=none", "--capacity", "1MiB", "--set", "board.key=3.." + (3 + length), "--set", "board.value=512");
            List<byte[]> all = new ArrayList<>();
            try (var out = process.getOutputStream()) {
                for (int n = 0; n < keys; n++) {
                    byte[] payload = new byte[3 + length + 2];
                    for (int i = 0; i < length; i++) {
                        payload[3 + i] = (byte) (i == 0 ? n : n * 31 + i * (n >> 8) + (n >> (i % 8)));
                    }
                    all.add(payload);
                    out.write(new byte[] {(byte) payload.length, (byte) (payload.length >> 8), 0, 0});
                    out.write(payload);
                }
            }
            assertEquals(0, process.waitFor());
            Map<String, Integer> newest = new HashMap<>();
            try (Board board = Subscriber.of(channel).dir(publishers.directory).openBoard()) {
                for (int n = 0; n < keys; n++) {
                    newest.put(new String(all.get(n), 3, length, StandardCharsets.ISO_8859_1), n + 1);
                }
                for (Map.Entry<String, Integer> key : newest.entrySet()) {
                    BoardEntry entry = board.get(key.getKey().getBytes(StandardCharsets.ISO_8859_1));
                    assertNotNull(entry, "length " + length);
                    assertEquals((long) key.getValue(), entry.sequence(), "length " + length);
                }
                assertEquals(newest.size(), board.entries().size());
            }
        }
    }

    /** SPEC.md 8.1 has these numbers. */
    @Test
    void aKeyIsIdentifiedByTheWordsOfTheDocument() throws Exception {
        BoardLayout layout = BoardLayout.parse(HostileBoardTest.header(0, 3, 0x0123_4567_89ab_cdefL), 1 << 20);
        assertEquals(0x52_5545, layout.first(bytes("EUR"), 0));
        assertEquals(0, layout.second(bytes("EUR"), 0));
        assertEquals(0xf8ed_909c, layout.fingerprint(0x52_5545, 0));
        BoardLayout longer = BoardLayout.parse(HostileBoardTest.header(0, 24, 0x0123_4567_89ab_cdefL), 1 << 20);
        byte[] key = bytes("a key of twenty-four by.");
        assertEquals(0x3973_25ea_5d22_50b8L, longer.first(key, 0));
        assertEquals(0x1d5f_710c_59e4_aec2L, longer.second(key, 0));
    }

    @Test
    void errorsSayWhatIsWrong() throws Exception {
        publishers.publish(1, 3, "--capacity", "64KiB");
        for (Executable open : List.<Executable>of(
                () -> subscriber().openBoard(), () -> subscriber().start(Start.BOARD).open(), () -> subscriber().conflate().open())) {
            assertEquals(Code.NO_BOARD, assertThrows(ShmcastException.class, open).code());
        }
        assertEquals(Code.UNSUPPORTED, assertThrows(ShmcastException.class, () -> subscriber().from(1).conflate().open()).code());
        assertEquals(Code.GATE, assertThrows(ShmcastException.class, () -> subscriber().gate(".x").open()).code());
        if (Runtime.version().feature() < 22) {
            ShmcastException e = assertThrows(ShmcastException.class, () -> subscriber().gate("risk").open());
            assertEquals(Code.UNSUPPORTED, e.code());
            assertTrue(e.getMessage().contains("Java 22"), e.getMessage());
        }
        Subscriber removed = subscriber().hidden().open();
        assertEquals(0, publishers.start("rm", "c").waitFor());
        new Ticks(3).publish(publishers, 1, 3, "--capacity", "64KiB", "--set", "board.key=4..8");
        try (Board board = subscriber().openBoard()) {
            assertEquals(0, publishers.start("rm", "c").waitFor());
            assertEquals(Code.SUPERSEDED, assertThrows(ShmcastException.class, () -> board.get(new byte[4])).code());
        }
        removed.close();
    }

    @Test
    void lookingAndConflatingAllocateNothing() throws Exception {
        Ticks ticks = new Ticks(64);
        ticks.publish(publishers, 1, 2_000, "--capacity", "64KiB", "--set", "board.key=4..8");
        ThreadMXBean threads = (ThreadMXBean) ManagementFactory.getThreadMXBean();
        long thread = Thread.currentThread().getId();
        byte[][] keys = new byte[64][];
        for (int key = 0; key < 64; key++) {
            keys[key] = ticks.keyBytes(key);
        }
        long[] seen = new long[2];
        Handler handler = m -> {
            seen[0]++;
            seen[1] += m.conflated();
        };
        try (Board board = subscriber().openBoard();
                Subscriber first = subscriber().start(Start.OLDEST).hidden().open();
                Subscriber s = subscriber().conflateBehind(1).open()) {
            long oldest = first.nextSequence();
            long before = 0;
            for (int round = 0; round < 3_000; round++) {
                if (round == 1_500) { // the compiler has done its work
                    before = threads.getThreadAllocatedBytes(thread);
                }
                for (byte[] key : keys) {
                    BoardEntry entry = board.get(key);
                    seen[1] += entry == null ? 0 : entry.count();
                }
                s.seek(oldest);
                while (s.poll(handler, 16) > 0) {}
            }
            long allocated = threads.getThreadAllocatedBytes(thread) - before;
            assertTrue(seen[0] > 3_000 * 30, seen[0] + " messages");
            assertTrue(allocated < 20_000, allocated + " bytes for 1,500 joins"); // the measurement itself allocates some bytes
        }
    }
}
