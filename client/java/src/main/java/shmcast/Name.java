package shmcast;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.attribute.BasicFileAttributes;

/**
 * The name of a segment that is a file. It leads elsewhere, or nowhere, if somebody removed or moved the channel, or mounted another file
 * system over it. Then new readers do not find the segment, and the next publisher makes another channel.
 */
final class Name {
    /** The pause between two looks, in nanoseconds. A look costs a system call. */
    private static final long PAUSE = 1_000_000_000L;

    private final Path path;
    private final Object segment;
    private long lookedAt = System.nanoTime();
    private boolean isLost;

    /** The name of the segment at a path, which is about to be opened. */
    Name(Path path) throws IOException {
        this.path = path.toAbsolutePath();
        segment = keyOf(this.path);
    }

    /** Device and inode of a file. */
    private static Object keyOf(Path path) throws IOException {
        return Files.readAttributes(path, BasicFileAttributes.class, LinkOption.NOFOLLOW_LINKS).fileKey();
    }

    /** Whether the name leads to the segment no more. If it is time, it looks, at most once in a pause. */
    boolean isLost(boolean isTime) {
        long now;
        if (isTime && (now = System.nanoTime()) - lookedAt >= PAUSE) {
            lookedAt = now;
            isLost = leadsElsewhere();
        }
        return isLost;
    }

    private boolean leadsElsewhere() {
        try {
            return !segment.equals(keyOf(path));
        } catch (NoSuchFileException e) {
            return true;
        } catch (IOException e) {
            return false; // that cannot be known
        }
    }
}
