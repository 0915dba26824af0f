package shmcast.peers;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Locale;

/** Plays Aeron over UDP in rounds of {@code shmcast-bench bridge}: a line {@code ready}, one report, and the files of times. */
final class Wire {
    /** Kernel's ticks of CPU time, in nanoseconds. */
    private static final long CPU_TICK_NANOS = 10_000_000;

    private final PrintStream out;
    private final BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    /** Whether the rig has told the word that was waited for last, or is gone. */
    private volatile boolean isTold;

    Wire(PrintStream out) {
        this.out = out;
    }

    static void list(PrintStream out) {
        String version = io.aeron.Aeron.class.getPackage().getImplementationVersion();
        out.printf("[{\"name\":\"%s\",\"version\":\"%s\"},{\"name\":\"%s\",\"version\":\"%2$s\"}]%n", Task.INVOKED, version, Task.THREADS);
    }

    void play(String json) throws Exception {
        Task task = Task.of(json);
        if (task.publishes()) {
            try (WireSender sender = new WireSender(task)) {
                say("ready");
                await("go");
                say(sender.run());
                hearInBackground("stop");
                // A receiver may still miss what only this driver can send again.
                while (!isTold) {
                    sender.serve();
                }
            }
        } else {
            try (WireReceiver receiver = new WireReceiver(task)) {
                say("ready");
                hearInBackground("stop");
                say(receiver.run(this));
            }
        }
    }

    boolean isTold() {
        return isTold;
    }

    private void say(String line) {
        out.println(line);
        out.flush();
    }

    private void await(String word) throws IOException {
        String line = in.readLine();
        if (!word.equals(line)) {
            throw new IllegalStateException("expected " + word + ", the rig said " + line);
        }
    }

    private void hearInBackground(String word) {
        isTold = false;
        Thread thread = new Thread(() -> {
            try {
                String line = in.readLine();
                if (line != null && !line.equals(word)) {
                    System.err.println("java-peers: expected " + word + ", the rig said " + line);
                }
            } catch (IOException e) {
                System.err.println("java-peers: " + e.getMessage());
            }
            isTold = true;
        });
        thread.setDaemon(true);
        thread.start();
    }

    /** Nanoseconds of the clock as the rig's ticks, for times that the rig compares. */
    static long ticks(long nanos) {
        String rate = System.getenv("SHMCAST_BENCH_TICKS_PER_SECOND");
        if (rate == null) {
            throw new IllegalStateException("SHMCAST_BENCH_TICKS_PER_SECOND is not set: the rig sets it");
        }
        double ticks = (double) nanos * Long.parseLong(rate) / 1e9;
        return (long) ticks;
    }

    /** Writes a word of 32 bits for each time. */
    static void write(Path path, int[] times) throws IOException {
        ByteBuffer bytes = ByteBuffer.allocate(4 * times.length).order(ByteOrder.LITTLE_ENDIAN);
        bytes.asIntBuffer().put(times);
        Files.write(path, bytes.array());
    }

    static int word(long nanos) {
        return (int) Math.max(0, Math.min(nanos, 0xffff_ffffL));
    }

    /** CPU times of this process so far, of user and system. */
    static long[] cpuNanos() throws IOException {
        String stat = Files.readString(Path.of("/proc/self/stat"));
        String[] words = stat.substring(stat.lastIndexOf(')') + 2).split(" ");
        return new long[] {Long.parseLong(words[11]) * CPU_TICK_NANOS, Long.parseLong(words[12]) * CPU_TICK_NANOS};
    }

    static String usage(long[] before, long[] after, long wallNanos) {
        return String.format(
                Locale.ROOT,
                "{\"user_ns\":%d,\"system_ns\":%d,\"voluntary_switches\":0,\"involuntary_switches\":0,\"waited_ns\":0,\"wall_ns\":%d}",
                after[0] - before[0], after[1] - before[1], wallNanos);
    }
}
