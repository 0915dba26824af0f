import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HexFormat;
import java.util.Locale;
import java.util.StringJoiner;
import java.util.zip.CRC32C;
import shmcast.Board;
import shmcast.BoardEntry;
import shmcast.BoardSpec;
import shmcast.Gate;
import shmcast.Handler;
import shmcast.Message;
import shmcast.Publisher;
import shmcast.ShmcastException;
import shmcast.Start;
import shmcast.Subscriber;
import shmcast.Wait;

/** The testee in Java of the suite in client/conformance. The suite's README says what a testee must do. */
final class Testee implements Handler {
    /** A poll ends after this many calls in a row that find nothing. */
    private static final int ENOUGH = 130;

    private Subscriber subscriber;
    private Publisher publisher;
    /** The request that opened the subscriber, and the board of the same channel, if a request has needed the board. */
    private String opened;

    private Board board;
    private StringJoiner events;
    private int told;
    private boolean withBytes;

    public static void main(String[] arguments) throws IOException {
        int version = Runtime.version().feature();
        // Before Java 22, the library has no daemons' channels, no publishers and no gates. Of level 8, it has only the reading part.
        String levels = version >= 22 ? "1,2,3,4,5,6,7,8,9" : "1,2,3,4,5,8";
        System.out.println("{\"testee\":\"java " + version + "\",\"version\":\"0.1.0\",\"levels\":[" + levels + "]}");
        Testee testee = new Testee();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println(testee.answer(line));
        }
    }

    /** Returns the value of a field, or null if the field does not exist. Values have no escapes. */
    private static String optional(String line, String name) {
        int at = line.indexOf("\"" + name + "\":");
        if (at < 0) {
            return null;
        }
        String rest = line.substring(at + name.length() + 3);
        return rest.startsWith("\"") ? rest.substring(1, rest.indexOf('"', 1)) : rest.split("[,}]")[0];
    }

    private static String field(String line, String name) {
        String value = optional(line, name);
        if (value == null) {
            throw new IllegalArgumentException("no " + name + " in " + line);
        }
        return value;
    }

    private static int number(String line, String name) {
        return Integer.parseInt(field(line, name));
    }

    private String answer(String line) {
        try {
            switch (field(line, "do")) {
                case "open" -> open(line);
                case "close" -> close();
                case "seek" -> subscriber.seek(Long.parseLong(field(line, "sequence")));
                case "poll" -> {
                    withBytes = "1".equals(optional(line, "bytes"));
                    return receive(1, optional(line, "most"));
                }
                case "batch" -> {
                    withBytes = "1".equals(optional(line, "bytes"));
                    return receive(64, optional(line, "most"));
                }
                case "consume" -> {
                    return consume(line);
                }
                case "drain" -> {
                    return drain(field(line, "how").equals("batch") ? 256 : 1, number(line, "passes"), Long.parseLong(field(line, "sequence")));
                }
                case "live" -> {
                    return live(number(line, "messages"));
                }
                case "fill" -> {
                    return fill(new byte[number(line, "length")], number(line, "messages"));
                }
                case "get" -> {
                    return get(HexFormat.of().parseHex(field(line, "key")));
                }
                case "create" -> create(line);
                case "publish" -> publish(line);
                case "produce" -> produce(Long.parseLong(field(line, "to")), number(line, "longest"));
                case "end" -> end(publisher);
                default -> throw new IllegalArgumentException(line);
            }
            return "{\"ok\":true}";
        } catch (IOException e) {
            return "{\"refused\":\"" + reason(e) + "\"}";
        }
    }

    private void close() {
        if (board != null) {
            board.close();
            board = null;
        }
        if (subscriber != null) {
            subscriber.close();
            subscriber = null;
        }
    }

    private static Subscriber.Builder at(String line) {
        String socket = optional(line, "socket");
        Subscriber.Builder builder = Subscriber.of(field(line, "channel"));
        return socket == null ? builder.dir(Path.of(field(line, "dir"))) : builder.daemon(Path.of(socket));
    }

    private void open(String line) throws IOException {
        close();
        String start = field(line, "start");
        Subscriber.Builder builder = at(line).hidden();
        if ("1".equals(optional(line, "watch"))) {
            builder.watchPublisher();
        }
        if ("1".equals(optional(line, "conflate"))) {
            builder.conflate();
        }
        if (optional(line, "gate") != null) {
            builder.gate(field(line, "gate"));
        }
        opened = line;
        subscriber =
                switch (start) {
                    case "oldest" -> builder.start(Start.OLDEST).open();
                    case "board" -> builder.start(Start.BOARD).open();
                    case "latest" -> builder.open();
                    default -> builder.from(Long.parseLong(start)).open();
                };
    }

    private static String reason(IOException e) {
        String word = e instanceof ShmcastException ours ? ours.code().name().toLowerCase(Locale.ROOT).replace('_', ' ') : "system";
        return word.equals("no channel") ? "not found" : word.equals("board") ? "no board" : word;
    }

    /** Looks up a key on the board of the open channel. */
    private String get(byte[] key) throws IOException {
        if (board == null) {
            board = at(opened).openBoard();
        }
        BoardEntry entry = board.get(key);
        if (entry == null) {
            return "{\"events\":[]}";
        }
        String text = entry.message() == null ? "too large" : text(entry.message());
        return "{\"events\":[\"" + text + " count=" + entry.count() + "\"]}";
    }

    private static String text(Message m) {
        CRC32C sum = new CRC32C();
        sum.update(m.buffer());
        return String.format(
                "message %d tag=%d key=%d time=%d length=%d crc=%08x",
                m.sequence(), m.tag(), m.key() ? 1 : 0, m.time(), m.length(), sum.getValue());
    }

    private String receive(int most, String limit) {
        events = new StringJoiner("\",\"", "{\"events\":[\"", "\"]}");
        events.setEmptyValue("{\"events\":[]}");
        told = 0;
        int enough = limit == null ? Integer.MAX_VALUE : Integer.parseInt(limit);
        try {
            for (int empty = 0; empty < ENOUGH && told < enough; empty++) {
                if (subscriber.poll(this, most) > 0) {
                    empty = -1;
                }
            }
        } catch (ShmcastException e) {
            events.add(reason(e));
        }
        return events.toString();
    }

    private void tell(String event) {
        events.add(event);
        told++;
    }

    @Override
    public void message(Message m) {
        String text = text(m);
        if (m.conflated() >= 0) {
            text += " conflated=" + m.conflated();
        }
        if (withBytes) {
            byte[] payload = new byte[m.length()];
            m.copyTo(payload, 0);
            text += " bytes=" + HexFormat.of().formatHex(payload);
        }
        tell(text);
    }

    @Override
    public void lapped(long missed, long resumedAt) {
        tell("lapped " + missed + " " + resumedAt);
    }

    @Override
    public void gap(long from, long to) {
        tell("gap " + from + " " + to);
    }

    @Override
    public void newEpoch(long epoch) {
        tell("epoch " + Long.toUnsignedString(epoch));
    }

    @Override
    public void newSession(long high, long low) {
        ByteBuffer bytes = ByteBuffer.allocate(16).putLong(Long.reverseBytes(high)).putLong(Long.reverseBytes(low));
        StringBuilder text = new StringBuilder("session ");
        for (int i = 0; i < 10; i++) {
            text.append(String.format("%02x", bytes.get(i)));
        }
        tell(text.toString());
    }

    @Override
    public void live(long sequence) {
        tell("live " + sequence);
    }

    @Override
    public void restarted() {
        tell("restarted");
    }

    @Override
    public void publisherGone(long epoch) {
        tell("gone " + Long.toUnsignedString(epoch));
    }

    @Override
    public void end() {
        tell("end");
    }

    /** Payloads that check themselves, as in src/payload.rs of the suite. */
    private static final byte[] TABLE = new byte[65_536 + 4093];

    static {
        int x = 1;
        for (int i = 0; i < TABLE.length; i++) {
            x = x * 1_664_525 + 1_013_904_223;
            TABLE[i] = (byte) (x >>> 24);
        }
    }

    private static int lengthOf(long sequence, int longest) {
        int hash = (int) sequence * (int) 2_654_435_761L;
        int kind = hash >>> 8 & 63;
        int rest = hash >>> 14;
        int length = kind < 48 ? rest & 255 : kind < 60 ? rest & 4095 : kind < 63 ? rest & 65_535 : 65_536;
        return Math.min(length, longest);
    }

    private static int placeOf(long sequence) {
        return (int) (sequence % 4093);
    }

    /** Counts the received events. */
    private static final class Counts implements Handler {
        private final int longest;
        private long received;
        private long missed;
        private long wrong;
        private boolean isOver;

        Counts(int longest) {
            this.longest = longest;
        }

        @Override
        public void message(Message m) {
            int length = lengthOf(m.sequence(), longest);
            ByteBuffer right = ByteBuffer.wrap(TABLE, placeOf(m.sequence()), length);
            if (m.length() == length && m.buffer().mismatch(right) < 0) {
                received++;
            } else {
                wrong++;
            }
        }

        @Override
        public void lapped(long lost, long resumedAt) {
            missed += lost;
        }

        @Override
        public void gap(long from, long to) {
            missed += to - from + 1;
        }

        @Override
        public void restarted() {
            wrong++;
        }

        @Override
        public void newSession(long high, long low) {
            wrong++;
        }

        @Override
        public void publisherGone(long epoch) {
            wrong++;
        }

        @Override
        public void end() {
            isOver = true;
        }
    }

    /** Receives a channel from its first message to its end. */
    private static String consume(String line) throws IOException {
        Counts counts = new Counts(number(line, "longest"));
        int most = field(line, "how").equals("batch") ? 256 : 1;
        try (Subscriber s = at(line).from(1).waiting(Wait.YIELD).waitForChannel(Duration.ofSeconds(30)).open()) {
            while (!counts.isOver) {
                if (s.poll(counts, most) == 0) {
                    s.idle();
                }
            }
        }
        return "{\"events\":[\"received " + counts.received + "\",\"missed " + counts.missed + "\",\"wrong " + counts.wrong + "\"]}";
    }

    /** Adds up the received messages. */
    private static final class Sum implements Handler {
        private long messages;
        private long sum;

        @Override
        public void message(Message m) {
            messages++;
            if (m.length() >= 8) {
                sum += m.getLong(0);
            }
        }
    }

    /** Reads the available messages from a sequence on several times, and measures the time. */
    private String drain(int most, int passes, long sequence) throws IOException {
        Sum sum = new Sum();
        long began = System.nanoTime();
        for (int pass = 0; pass < passes; pass++) {
            subscriber.seek(sequence);
            while (subscriber.poll(sum, most) > 0) {}
        }
        long ns = System.nanoTime() - began;
        return "{\"events\":[\"ns " + ns + "\",\"messages " + sum.messages + "\",\"sum " + Long.toUnsignedString(sum.sum) + "\"]}";
    }

    /** Keeps the ages of the received messages. */
    private static final class Ages implements Handler {
        private final Subscriber of;
        private final long[] ages;
        private int count;

        Ages(Subscriber of, int messages) {
            this.of = of;
            ages = new long[messages];
        }

        @Override
        public void message(Message m) {
            ages[count++] = of.ageNanos(m.time());
        }
    }

    /** Receives messages as they arrive. */
    private String live(int messages) throws IOException {
        Ages ages = new Ages(subscriber, messages);
        while (ages.count < messages) {
            subscriber.poll(ages, 1);
        }
        java.util.Arrays.sort(ages.ages);
        return "{\"events\":[\"p50 " + ages.ages[messages / 2] + "\",\"p99 " + ages.ages[(int) (messages * 99L / 100)] + "\"]}";
    }

    /** Publishes this many messages, and measures the time. */
    private String fill(byte[] payload, int messages) throws IOException {
        long began = System.nanoTime();
        for (int i = 0; i < messages; i++) {
            publisher.publish(payload, 0, payload.length, 0, false);
        }
        return "{\"events\":[\"ns " + (System.nanoTime() - began) + "\"]}";
    }

    private void create(String line) throws IOException {
        end(publisher);
        String socket = optional(line, "socket");
        Publisher.Builder builder = Publisher.of(field(line, "channel"));
        if (socket == null) {
            builder.dir(Path.of(field(line, "dir"))).capacity(number(line, "capacity"));
        } else {
            builder.daemon(Path.of(socket));
        }
        if (optional(line, "board") != null) {
            String[] key = field(line, "board").split("[.][.]");
            BoardSpec spec = BoardSpec.of(Integer.parseInt(key[0]), Integer.parseInt(key[1]));
            builder.board(spec.withKeys(number(line, "keys")).withValue(number(line, "value")));
        }
        if (optional(line, "gate") != null) {
            Gate gate = Gate.of(field(line, "gate")).withLagBytes(number(line, "lag"));
            gate = gate.withLimit(Duration.ofNanos(Long.parseLong(field(line, "wait"))));
            builder.gate("1".equals(optional(line, "refuse")) ? gate.refusing() : gate);
        }
        publisher = builder.open();
    }

    private void publish(String line) throws IOException {
        byte[] payload = new byte[number(line, "length")];
        byte fill = (byte) number(line, "fill");
        for (int i = 0; i < payload.length; i++) {
            payload[i] = fill++;
        }
        publisher.publish(payload, 0, payload.length, number(line, "tag"), number(line, "key") == 1);
    }

    private void produce(long to, int longest) throws IOException {
        for (long next = publisher.nextSequence(); next <= to; next++) {
            publisher.publish(TABLE, placeOf(next), lengthOf(next, longest), 0, false);
        }
    }

    private void end(Publisher open) {
        if (open != null) {
            open.close();
            publisher = null;
        }
    }
}
