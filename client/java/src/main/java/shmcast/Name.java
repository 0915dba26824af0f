package shmcast;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.attribute.BasicFileAttributes;

/**
 * The name of a segment in a file, or of a gate's page. If somebody removes or moves the channel, or mounts another file system over it, the name no longer
 * leads to the segment. New readers then do not find the segment, and the next publisher makes another channel.
 */
final class Name {
    /** The time between two checks of the name, in nanoseconds. A check is a system call. */
    static final long PAUSE = 1_000_000_000L;

    private final Path path;
    private final Object segment;
    private long lookedAt = System.nanoTime();
    private boolean isLost;

    /** Makes the name of the segment at a path. The file is opened later. */
    Name(Path path) throws IOException {
        this.path = path.toAbsolutePath();
        segment = keyOf(this.path);
    }

    /** Returns the device and the inode of a file. */
    private static Object keyOf(Path path) throws IOException {
        return Files.readAttributes(path, BasicFileAttributes.class, LinkOption.NOFOLLOW_LINKS).fileKey();
    }

    /**
     * Whether the name no longer leads to the segment. If {@code isTime}, the name is checked again, but not more often than {@link #PAUSE}
     * allows.
     */
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
            return false; // it is not known whether the name leads elsewhere
        }
    }
}
