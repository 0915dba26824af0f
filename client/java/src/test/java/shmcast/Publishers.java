package shmcast;

import java.io.IOException;
import java.io.OutputStream;
import java.lang.ProcessBuilder.Redirect;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Random;
import java.util.stream.Stream;

/** A directory of channels, with real publishers. */
final class Publishers implements AutoCloseable {
    final Path directory;

    Publishers() throws IOException {
        directory = Files.createTempDirectory(Path.of("/dev/shm"), "shmcast-java-");
    }

    @Override
    public void close() throws IOException {
        try (Stream<Path> files = Files.walk(directory)) {
            for (Path file : files.sorted(Comparator.reverseOrder()).toList()) {
                Files.delete(file);
            }
        }
    }

    /** Whether tests take their long form, as in `.ci/run nightly`. */
    static boolean isLong() {
        return System.getenv("SHMCAST_NIGHTLY") != null;
    }

    /** Returns the path of a command, in $SHMCAST_BIN or in the workspace's build. */
    static String command(String name) {
        String told = System.getenv("SHMCAST_BIN");
        return Stream.of(told == null ? "../../target/release" : told, "../../target/debug")
                .map(directory -> Path.of(directory, name))
                .filter(Files::isExecutable)
                .findFirst()
                .orElseThrow(() -> new AssertionError("shmcast is not built: cargo build -p shmcast-daemon, or set SHMCAST_BIN"))
                .toString();
    }

    Process start(String... arguments) throws IOException {
        List<String> words = new ArrayList<>(List.of(command("shmcast")));
        words.addAll(List.of(arguments));
        words.addAll(List.of("--dir", directory.toString()));
        return new ProcessBuilder(words).redirectError(Redirect.DISCARD).redirectOutput(Redirect.DISCARD).start();
    }

    /** Starts `shmcast pub c`, which reads messages with their lengths. */
    Process publisher(String... more) throws IOException {
        List<String> words = new ArrayList<>(List.of("pub", "c", "--framing", "u32le", "--set", "prepare=none"));
        words.addAll(List.of(more));
        return start(words.toArray(String[]::new));
    }

    /** Publishes the numbered messages `from` to `to`, and closes the channel. */
    void publish(long from, long to, String... more) throws IOException, InterruptedException {
        Process process = publisher(more);
        feed(process, from, to);
        if (process.waitFor() != 0) {
            throw new AssertionError("the publisher failed");
        }
    }

    /** Writes numbered messages to a publisher until the publisher dies. */
    static void feed(Process process, long from, long to) {
        try (OutputStream out = process.getOutputStream()) {
            for (long n = from; n <= to; n++) {
                byte[] payload = payload(n);
                out.write(ByteBuffer.allocate(4).order(ByteOrder.LITTLE_ENDIAN).putInt(payload.length).array());
                out.write(payload);
            }
        } catch (IOException e) {
            // The publisher was killed.
        }
    }

    /** Returns the length of a numbered message: 0 to 64 KiB. Most messages are short. */
    static int length(long number) {
        Random random = new Random(number * 31);
        return random.nextInt(1 << random.nextInt(17));
    }

    static byte byteOf(long number, int at) {
        return (byte) (number * 131 + at * 7L + (number >> 8));
    }

    static byte[] payload(long number) {
        byte[] payload = new byte[length(number)];
        for (int i = 0; i < payload.length; i++) {
            payload[i] = byteOf(number, i);
        }
        return payload;
    }

    static boolean isRight(Message message) {
        if (message.length() != length(message.sequence())) {
            return false;
        }
        for (int i = 0; i < message.length(); i++) {
            if (message.get(i) != byteOf(message.sequence(), i)) {
                return false;
            }
        }
        return true;
    }
}
