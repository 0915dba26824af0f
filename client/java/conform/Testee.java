import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Locale;
import java.util.StringJoiner;
import java.util.zip.CRC32C;
import shmcast.Handler;
import shmcast.Message;
import shmcast.ShmcastException;
import shmcast.Start;
import shmcast.Subscriber;

/** The testee in Java of the suite in client/conformance, whose README has its contract. */
final class Testee implements Handler {
    /** How many calls in a row find nothing before a poll ends. */
    private static final int ENOUGH = 130;

    private Subscriber subscriber;
    private StringJoiner events;

    public static void main(String[] arguments) throws IOException {
        System.out.println("{\"testee\":\"java\",\"version\":\"0.1.0\",\"levels\":[1,2,3]}");
        Testee testee = new Testee();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println(testee.answer(line));
        }
    }

    /** The value of a field. Values have no escapes. */
    private static String field(String line, String name) {
        int at = line.indexOf("\"" + name + "\":");
        if (at < 0) {
            throw new IllegalArgumentException("no " + name + " in " + line);
        }
        String rest = line.substring(at + name.length() + 3);
        return rest.startsWith("\"") ? rest.substring(1, rest.indexOf('"', 1)) : rest.split("[,}]")[0];
    }

    private String answer(String line) {
        try {
            switch (field(line, "do")) {
                case "open" -> open(line);
                case "close" -> close();
                case "seek" -> subscriber.seek(Long.parseLong(field(line, "sequence")));
                case "poll" -> {
                    return receive(1);
                }
                case "batch" -> {
                    return receive(64);
                }
                default -> throw new IllegalArgumentException(line);
            }
            return "{\"ok\":true}";
        } catch (IOException e) {
            return "{\"refused\":\"" + reason(e) + "\"}";
        }
    }

    private void close() {
        if (subscriber != null) {
            subscriber.close();
            subscriber = null;
        }
    }

    private void open(String line) throws IOException {
        close();
        String start = field(line, "start");
        Subscriber.Builder builder = Subscriber.of(field(line, "channel")).dir(Path.of(field(line, "dir")));
        subscriber =
                switch (start) {
                    case "oldest" -> builder.start(Start.OLDEST).open();
                    case "latest" -> builder.open();
                    default -> builder.from(Long.parseLong(start)).open();
                };
    }

    private static String reason(IOException e) {
        return e instanceof ShmcastException ours ? ours.code().name().toLowerCase(Locale.ROOT).replace('_', ' ') : "system";
    }

    private String receive(int most) {
        events = new StringJoiner("\",\"", "{\"events\":[\"", "\"]}");
        events.setEmptyValue("{\"events\":[]}");
        try {
            for (int empty = 0; empty < ENOUGH; empty++) {
                if (subscriber.poll(this, most) > 0) {
                    empty = -1;
                }
            }
        } catch (ShmcastException e) {
            events.add(reason(e));
        }
        return events.toString();
    }

    @Override
    public void message(Message m) {
        CRC32C sum = new CRC32C();
        sum.update(m.buffer());
        events.add(
                String.format(
                        "message %d tag=%d key=%d time=%d length=%d crc=%08x",
                        m.sequence(), m.tag(), m.key() ? 1 : 0, m.time(), m.length(), sum.getValue()));
    }

    @Override
    public void lapped(long missed, long resumedAt) {
        events.add("lapped " + missed + " " + resumedAt);
    }

    @Override
    public void gap(long from, long to) {
        events.add("gap " + from + " " + to);
    }

    @Override
    public void newEpoch(long epoch) {
        events.add("epoch " + epoch);
    }

    @Override
    public void newSession(long high, long low) {
        ByteBuffer bytes = ByteBuffer.allocate(16).putLong(Long.reverseBytes(high)).putLong(Long.reverseBytes(low));
        StringBuilder text = new StringBuilder("session ");
        for (int i = 0; i < 10; i++) {
            text.append(String.format("%02x", bytes.get(i)));
        }
        events.add(text);
    }

    @Override
    public void end() {
        events.add("end");
    }
}
