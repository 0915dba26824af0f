package shmcast.peers;

import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;

/** Measures both in turns. Prints a line for each size and question. */
final class Main {
    private static final String USAGE =
            """
            usage: java-peers [--sizes 32,256,1024] [--laps 7] [--messages 2000000] [--quick]

            Measures Aeron's IPC and shmcast's client, both in Java, in turns, with a publisher on CPU 0 and a receiver on CPU 1:
            back to back, and the age of a message each 10 us. Prints a line of JSON for each size and question. Sizes are
            multiples of 8. --quick sees that both deliver; its times mean nothing.

            java-peers list
            java-peers play TASK

            shmcast-bench starts this to have Aeron over UDP in its rounds between hosts.""";
    private static final long WARM_UP_NANOS = 2_000_000_000L;

    private int[] sizes = {32, 256, 1024};
    private int laps = 7;
    private int messages = 2_000_000;
    private boolean isQuick;

    private Main() {}

    public static void main(String[] arguments) {
        // The output of the libraries is for people.
        PrintStream out = System.out;
        System.setOut(System.err);
        if (arguments.length > 0 && (arguments[0].equals("list") || arguments[0].equals("play"))) {
            System.exit(wire(arguments, out));
        }
        Main main = new Main();
        try {
            main.parse(arguments);
        } catch (IllegalArgumentException e) {
            System.err.println("java-peers: " + e.getMessage() + "\n" + USAGE);
            System.exit(2);
        }
        int code = 0;
        try {
            main.run(out);
        } catch (Exception e) {
            e.printStackTrace();
            code = 1;
        }
        out.flush();
        System.exit(code);
    }

    /** The words of the rig: {@code list}, or {@code play TASK}. */
    private static int wire(String[] arguments, PrintStream out) {
        try {
            if (arguments[0].equals("list")) {
                Wire.list(out);
            } else if (arguments.length == 2) {
                new Wire(out).play(arguments[1]);
            } else {
                throw new IllegalArgumentException("play needs a task");
            }
        } catch (Exception e) {
            e.printStackTrace();
            return 1;
        }
        return 0;
    }

    private void parse(String[] arguments) {
        for (int at = 0; at < arguments.length; at++) {
            String option = arguments[at];
            if (option.equals("--quick")) {
                isQuick = true;
                laps = 1;
                messages = 20_000;
                continue;
            }
            if (++at == arguments.length) {
                throw new IllegalArgumentException(option + " is no option, or has no value");
            }
            int[] numbers = Arrays.stream(arguments[at].split(",")).mapToInt(Integer::parseInt).toArray();
            switch (option) {
                case "--sizes" -> sizes = numbers;
                case "--laps" -> laps = numbers[0];
                case "--messages" -> messages = numbers[0];
                default -> throw new IllegalArgumentException("'" + option + "' is no option");
            }
        }
        if (laps < 1 || messages < 1 || Arrays.stream(sizes).anyMatch(size -> size < 8 || size > 8160 || size % 8 != 0)) {
            throw new IllegalArgumentException("a number is out of range");
        }
    }

    private void run(PrintStream out) throws Exception {
        Path directory = Files.createTempDirectory(Path.of("/dev/shm"), "java-peers-");
        try {
            for (int size : sizes) {
                try (Ring aeron = new AeronRing(size); Ring ours = new ShmcastRing(size, directory)) {
                    throughput(out, size, aeron, ours);
                    oneWay(out, size, aeron, ours);
                }
            }
        } finally {
            try (var files = Files.walk(directory)) {
                files.sorted((a, b) -> b.compareTo(a)).forEach(file -> file.toFile().delete());
            }
        }
    }

    private void throughput(PrintStream out, int size, Ring aeron, Ring ours) throws InterruptedException {
        for (long until = System.nanoTime() + WARM_UP_NANOS; !isQuick && System.nanoTime() < until; ) {
            Lap.throughput(aeron, messages / 4);
            Lap.throughput(ours, messages / 4);
        }
        double[][] costs = new double[3][laps];
        for (int lap = 0; lap < laps; lap++) {
            costs[0][lap] = Lap.throughput(aeron, messages);
            costs[1][lap] = Lap.throughput(ours, messages);
            costs[2][lap] = costs[0][lap] / costs[1][lap];
        }
        for (double[] each : costs) {
            Arrays.sort(each);
        }
        out.printf(
                Locale.ROOT,
                "{\"what\":\"back to back\",\"bytes\":%d,\"laps\":%d,\"messages\":%d,\"aeron_ns\":%.1f,\"shmcast_ns\":%.1f,"
                        + "\"aeron_by_shmcast\":%.2f,\"least\":%.2f,\"most\":%.2f}%n",
                size, laps, messages, costs[0][laps / 2], costs[1][laps / 2], costs[2][laps / 2], costs[2][0], costs[2][laps - 1]);
    }

    private void oneWay(PrintStream out, int size, Ring aeron, Ring ours) throws InterruptedException {
        int each = Math.min(messages / 10, 20_000);
        for (long until = System.nanoTime() + WARM_UP_NANOS; !isQuick && System.nanoTime() < until; ) {
            Lap.oneWay(aeron, each);
            Lap.oneWay(ours, each);
        }
        List<long[]> ages = new ArrayList<>(List.of(new long[0], new long[0]));
        for (int lap = 0; lap < laps; lap++) {
            ages.set(0, joined(ages.get(0), Lap.oneWay(aeron, each)));
            ages.set(1, joined(ages.get(1), Lap.oneWay(ours, each)));
        }
        ages.forEach(Arrays::sort);
        out.printf(
                Locale.ROOT,
                "{\"what\":\"one way\",\"bytes\":%d,\"messages\":%d,\"aeron_ns\":%s,\"shmcast_ns\":%s}%n",
                size, laps * each, percentiles(ages.get(0)), percentiles(ages.get(1)));
    }

    private static long[] joined(long[] some, long[] more) {
        long[] all = Arrays.copyOf(some, some.length + more.length);
        System.arraycopy(more, 0, all, some.length, more.length);
        return all;
    }

    private static String percentiles(long[] sorted) {
        return String.format(
                Locale.ROOT,
                "{\"p50\":%d,\"p99\":%d,\"p99.9\":%d,\"max\":%d}",
                sorted[sorted.length / 2], sorted[(int) (sorted.length * 99L / 100)], sorted[(int) (sorted.length * 999L / 1000)], sorted[sorted.length - 1]);
    }
}
