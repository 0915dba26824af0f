package shmcast;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.util.regex.Pattern;
import shmcast.ShmcastException.Code;

/** Finds channels in files (SPEC.md 4.1). */
final class Directory {
    private static final Pattern NAME = Pattern.compile("[A-Za-z0-9_:@+][A-Za-z0-9._:@+-]{0,199}");

    private Directory() {}

    /** Returns the path of a channel's segment. */
    static Path segmentOf(Path told, String channel) throws IOException {
        check(channel);
        Path directory = (told == null ? usual() : told).resolve(channel);
        Path segment = directory.resolve("segment");
        boolean isThere = Files.isDirectory(directory, LinkOption.NOFOLLOW_LINKS) && Files.isRegularFile(segment, LinkOption.NOFOLLOW_LINKS);
        if (!isThere) {
            throw new ShmcastException(Code.NO_CHANNEL, "no such channel: " + directory + "; a publisher makes it, or set SHMCAST_DIR");
        }
        return segment;
    }

    static void check(String channel) throws ShmcastException {
        if (!NAME.matcher(channel).matches()) {
            throw new ShmcastException(
                    Code.NAME, "'" + channel + "' cannot be a channel's name: 1 to 200 of A-Z a-z 0-9 . _ - : @ +, and none of . - first");
        }
    }

    private static Path usual() throws IOException {
        String told = System.getenv("SHMCAST_DIR");
        if (told != null && !told.isEmpty()) {
            return Path.of(told);
        }
        Path common = Path.of("/dev/shm/shmcast");
        if (Files.isDirectory(common) && uid(common) == 0 && Files.isReadable(common) && Files.isExecutable(common)) {
            return common;
        }
        int self = (int) Files.getAttribute(Path.of("/proc/self/task"), "unix:uid");
        Path own = Path.of("/dev/shm/shmcast-" + Integer.toUnsignedString(self));
        if (Files.exists(own, LinkOption.NOFOLLOW_LINKS) && uid(own) != 0 && uid(own) != self) {
            throw new ShmcastException(Code.FOREIGN_DIRECTORY, own + " belongs to another user; set SHMCAST_DIR to a directory of your own");
        }
        return own;
    }

    private static int uid(Path path) throws IOException {
        return (int) Files.getAttribute(path, "unix:uid", LinkOption.NOFOLLOW_LINKS);
    }
}
