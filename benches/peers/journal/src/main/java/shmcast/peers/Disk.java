package shmcast.peers;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Comparator;
import java.util.List;
import java.util.stream.Stream;

/** A recording's directory as the file system sees it. */
final class Disk {
    private Disk() {}

    /** Returns when all files below the directory, and the directory itself, are on the disk. */
    static void flush(Path directory) throws IOException {
        for (Path path : below(directory)) {
            try (FileChannel file = FileChannel.open(path, StandardOpenOption.READ)) {
                file.force(true);
            }
        }
    }

    /** Bytes that the files below the directory take on the disk; holes take none. */
    static long used(Path directory) throws IOException, InterruptedException {
        Process du = new ProcessBuilder("du", "--block-size=1", "--summarize", directory.toString())
                .redirectError(ProcessBuilder.Redirect.INHERIT)
                .start();
        String answer = new String(du.getInputStream().readAllBytes());
        if (du.waitFor() != 0) {
            throw new IOException("du cannot tell the size of " + directory);
        }
        return Long.parseLong(answer.split("\\s")[0]);
    }

    static void remove(Path directory) {
        try {
            for (Path path : below(directory)) {
                Files.deleteIfExists(path);
            }
        } catch (NoSuchFileException e) {
            return;
        } catch (IOException e) {
            throw new UncheckedIOException(directory + " cannot be removed", e);
        }
    }

    /** The files first, then the directories that they are in. */
    private static List<Path> below(Path directory) throws IOException {
        try (Stream<Path> paths = Files.walk(directory)) {
            return paths.sorted(Comparator.reverseOrder()).toList();
        }
    }
}
