package shmcast.peers;

import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Locale;
import java.util.concurrent.locks.LockSupport;

/** Measures one peer's recorder, and prints one line of JSON. */
final class Main {
    private static final long MOST_BYTES = 3_900_000_000L;
    private static final long LEAST_BYTES = 100_000_000L;
    /** The warm-up gives the compiler of the virtual machine the whole course once. */
    private static final double WARM_UP_SECONDS = 1;
    private static final long WARM_UP_BYTES = 400_000_000;
    /** Bytes that a peer adds to a message at most: Aeron's header and its alignment. */
    private static final int OVERHEAD = 63;

    private Main() {}

    public static void main(String[] arguments) {
        // The output of the libraries is for people.
        PrintStream out = System.out;
        System.setOut(System.err);
        if (arguments.length == 1 && arguments[0].equals("--help")) {
            out.println(Options.USAGE);
            return;
        }
        int code;
        try {
            Options options = Options.parse(arguments);
            code = run(options, out);
        } catch (Options.Wrong e) {
            System.err.println("journal-peers: " + e.getMessage());
            System.err.println("journal-peers --help says more");
            code = 2;
        } catch (Exception e) {
            e.printStackTrace();
            code = 1;
        }
        out.flush();
        System.exit(code);
    }

    private static int run(Options options, PrintStream out) throws Exception {
        long bytes = Math.min(MOST_BYTES, Files.getFileStore(options.directory()).getUsableSpace() / 2);
        if (bytes < LEAST_BYTES) {
            throw new IOException(options.directory() + " has less than " + 2 * LEAST_BYTES / 1_000_000 + " MB free");
        }
        Path directory = Files.createTempDirectory(options.directory(), "journal-peer-");
        Runtime.getRuntime().addShutdownHook(new Thread(() -> Disk.remove(directory)));
        Payloads payloads = new Payloads(options.size());
        long few = Math.min(WARM_UP_BYTES, bytes) / (options.size() + OVERHEAD);
        Measure warmUp = measure(options, payloads, few, WARM_UP_SECONDS, directory.resolve("warm-up"));
        // A message takes what it took in the warm-up, with the peer's frames and indexes.
        long most = (long) (bytes / ((double) warmUp.fileBytes / warmUp.messages));
        System.gc();
        Measure measure = measure(options, payloads, most, options.seconds(), directory.resolve("measured"));
        out.println(measure.json(options));
        String complaint = measure.check.complaint(measure.messages);
        if (complaint != null) {
            System.err.println("journal-peers: " + options.peer().title + ": " + complaint);
            return 1;
        }
        return 0;
    }

    private static final class Measure {
        long messages;
        double seconds;
        double flushedSeconds;
        double replaySeconds;
        long fileBytes;
        Check check;

        String json(Options options) {
            Peer peer = options.peer();
            return String.format(
                    Locale.ROOT,
                    "{\"peer\":\"%s\",\"version\":\"%s\",\"promise\":\"%s\",\"messages\":%d,\"payload_bytes\":%d,\"seconds\":%.6f,"
                            + "\"flushed_seconds\":%.6f,\"replay_seconds\":%.6f,\"verified\":%d,\"file_bytes\":%d}",
                    peer.title,
                    peer.version(),
                    peer.promise,
                    messages,
                    options.size(),
                    seconds,
                    flushedSeconds,
                    replaySeconds,
                    check.verified(),
                    fileBytes);
        }
    }

    /** One recording from its first message to its removal. */
    private static Measure measure(Options options, Payloads payloads, long most, double seconds, Path directory)
            throws Exception {
        Files.createDirectory(directory);
        Measure measure = new Measure();
        measure.check = new Check(payloads);
        try (Recording recording = options.peer().opener.open(directory, payloads)) {
            long start = System.nanoTime();
            measure.messages = publish(recording, payloads, most, (long) (seconds * 1e9), options.rate());
            recording.finish();
            measure.seconds = since(start);
            Disk.flush(directory);
            measure.flushedSeconds = since(start);
            measure.fileBytes = Disk.used(directory);
            start = System.nanoTime();
            recording.read(measure.check);
            measure.replaySeconds = since(start);
        }
        Disk.remove(directory);
        return measure;
    }

    private static double since(long start) {
        return (System.nanoTime() - start) / 1e9;
    }

    /** Publishes until the time is over or there are so many messages, and returns how many there are. */
    private static long publish(Recording recording, Payloads payloads, long most, long nanos, double rate) throws Exception {
        // Flat out, the clock is read once in 64 messages, because reading it takes as long as some peers take for a message.
        int between = rate > 0 ? 1 : 64;
        long start = System.nanoTime();
        long sequence = 0;
        while (sequence < most) {
            if (sequence % between == 0) {
                long passed = System.nanoTime() - start;
                for (long due = due(sequence, rate); passed < due && due < nanos; passed = System.nanoTime() - start) {
                    LockSupport.parkNanos(due - passed);
                }
                if (passed >= nanos || due(sequence, rate) >= nanos) {
                    break;
                }
            }
            recording.publish(payloads.make(sequence));
            sequence++;
        }
        return sequence;
    }

    /** The time at which a message is due, in nanoseconds from the start. */
    private static long due(long sequence, double rate) {
        return rate > 0 ? (long) (sequence * 1e9 / rate) : 0;
    }
}
