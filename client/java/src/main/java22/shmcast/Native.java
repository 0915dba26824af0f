package shmcast;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.security.SecureRandom;

/** The parts that call the C library. */
final class Native {
    private static final int O_RDWR = 2;
    private static final int O_CREAT = 0x40;
    private static final int O_EXCL = 0x80;
    private static final int O_NOFOLLOW = 0x20000;
    private static final int O_CLOEXEC = 0x80000;

    private Native() {}

    static Hosted attach(Subscriber.Builder builder) throws IOException {
        return Channel.attach(socketPath(builder.socket), builder);
    }

    static HeldGate gate(Path directory, String name, Header header) throws IOException {
        return FileGate.open(directory, name, header);
    }

    /** Returns the path of the daemon's socket (CONTROL.md 1). */
    private static String socketPath(Path told) {
        if (told != null) {
            return told.toString();
        }
        String path = System.getenv("SHMCAST_SOCKET");
        if (path != null && !path.isEmpty()) {
            return path;
        }
        Path usual = Path.of("/run/shmcast/control.sock");
        String own = System.getenv("XDG_RUNTIME_DIR");
        // A user who may not look for the system's daemon must not take another one.
        if (Files.notExists(usual, LinkOption.NOFOLLOW_LINKS) && own != null && !own.isEmpty()) {
            Path ours = Path.of(own, "shmcast/control.sock");
            return Files.exists(ours, LinkOption.NOFOLLOW_LINKS) ? ours.toString() : usual.toString();
        }
        return usual.toString();
    }

    static Lock lockOf(Path directory) throws IOException {
        int fd = Libc.open(directory.resolve("lock").toString(), O_NOFOLLOW | O_CLOEXEC, 0);
        return new Lock() {
            @Override
            boolean isHeld() throws IOException {
                return Libc.isLocked(fd);
            }

            @Override
            void close() {
                Libc.close(fd);
            }
        };
    }

    static Outlet outlet(Publisher.Builder builder) throws IOException {
        return new NativeOutlet(builder);
    }

    static Page show(Path directory) {
        Path readers = directory.resolve("readers");
        if (!Files.isDirectory(readers, LinkOption.NOFOLLOW_LINKS)) {
            return null;
        }
        String name = ProcessHandle.current().pid() + "-" + String.format("%016x", new SecureRandom().nextLong());
        Path hidden = readers.resolve("." + name);
        int fd = -1;
        FilePage page = null;
        try {
            fd = Libc.open(hidden.toString(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
            Libc.lock(fd);
            page = new FilePage(fd, readers.resolve(name));
            Files.move(hidden, page.path);
            return page;
        } catch (IOException e) {
            if (page != null) {
                page.close();
            } else {
                Libc.close(fd);
            }
            try {
                Files.deleteIfExists(hidden);
            } catch (IOException again) {
                // The channel was removed with all its pages.
            }
            return null;
        }
    }

    /** A page in a file whose descriptor stays open. */
    static class MappedPage extends Page {
        private final Memory memory;

        MappedPage(int fd) throws IOException {
            if (Libc.stat(fd).size() < BYTES) {
                Libc.reserve(fd, BYTES);
            }
            memory = Memory.map(fd, 0, BYTES, true);
        }

        @Override
        void set(int word, long value) {
            memory.store(8L * word, value);
        }

        @Override
        void close() {
            memory.close();
        }
    }

    private static final class FilePage extends MappedPage {
        private final int fd;
        private final Path path;

        FilePage(int fd, Path path) throws IOException {
            super(fd);
            this.fd = fd;
            this.path = path;
        }

        @Override
        void close() {
            super.close();
            try {
                Files.deleteIfExists(path);
            } catch (IOException e) {
                // The channel was removed with all its pages.
            }
            Libc.close(fd);
        }
    }
}
