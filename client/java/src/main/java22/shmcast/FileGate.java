package shmcast;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import shmcast.ShmcastException.Code;

/** A gate that this process holds. One open file of the gate's page has the lock, and another one is mapped. */
final class FileGate extends HeldGate {
    private static final int EAGAIN = 11;
    private static final int EACCES = 13;
    private static final int ENOENT = 2;
    private static final int O_RDWR = 2;
    private static final int O_NONBLOCK = 0x800;
    private static final int O_NOFOLLOW = 0x20000;
    private static final int O_CLOEXEC = 0x80000;
    /** The number of bytes before the words of the reader. */
    private static final int HEAD = 8 * POSITION;

    private final int lock;
    private final Memory page;

    private FileGate(int lock, Memory page) {
        this.lock = lock;
        this.page = page;
    }

    /** Takes a gate of a channel in files. */
    static FileGate open(Path channel, String name, Header header) throws IOException {
        Path gates = channel.resolve("gates");
        Path path = gates.resolve(name);
        boolean isThere = Files.isDirectory(gates, LinkOption.NOFOLLOW_LINKS) && Files.isRegularFile(path, LinkOption.NOFOLLOW_LINKS);
        if (!isThere) {
            throw unknown(header, name, gates);
        }
        int flags = O_RDWR | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC;
        int lock = -1;
        int map;
        try {
            lock = Libc.open(path.toString(), flags, 0);
            map = Libc.open(path.toString(), flags, 0);
        } catch (Libc.SystemException e) {
            Libc.close(lock);
            throw e.errno == ENOENT ? unknown(header, name, gates) : e;
        }
        return take(name, lock, map, header);
    }

    private static ShmcastException unknown(Header header, String name, Path gates) {
        List<String> names = new ArrayList<>();
        if (Files.isDirectory(gates, LinkOption.NOFOLLOW_LINKS)) {
            try (DirectoryStream<Path> files = Files.newDirectoryStream(gates, file -> !file.getFileName().toString().startsWith("."))) {
                files.forEach(file -> names.add(file.getFileName().toString()));
            } catch (IOException e) {
                // The names only make the error's text more helpful.
            }
        }
        names.sort(null);
        String has = names.isEmpty() ? "none: its publisher names them" : String.join(", ", names);
        return new ShmcastException(Code.UNKNOWN_GATE, "channel " + header.channel() + " has no gate '" + name + "'; it has " + has);
    }

    /** Takes the gate whose page is open in both files. If this fails, closes both files. */
    static FileGate take(String name, int lock, int map, Header header) throws IOException {
        boolean isTaken = false;
        try {
            boolean isHeld = tryLock(lock);
            if (Libc.stat(lock).links() == 0) {
                // After this process opened the page, a publisher without this gate removed it.
                throw new ShmcastException(Code.UNKNOWN_GATE, "channel " + header.channel() + " has no gate '" + name + "' any more");
            }
            if (!isHeld) {
                throw new ShmcastException(
                        Code.IN_USE, "gate '" + name + "' of channel " + header.channel() + " has a reader already, process " + holder(lock));
            }
            ByteBuffer head = Libc.read(lock, 0, 16).order(ByteOrder.LITTLE_ENDIAN);
            boolean isPage = Libc.stat(lock).size() >= BYTES && head.remaining() == 16 && head.getLong(0) == MAGIC && head.getLong(8) == 1;
            if (!isPage) {
                throw new ShmcastException(
                        Code.GATE, "the page of gate '" + name + "' of channel " + header.channel() + " is damaged: its publisher makes a new one");
            }
            FileGate gate = new FileGate(lock, Memory.map(map, 0, BYTES, true));
            isTaken = true;
            gate.goOn(header);
            gate.leave();
            gate.store(PROCESS, ProcessHandle.current().pid());
            return gate;
        } finally {
            Libc.close(map); // the map stays valid
            if (!isTaken) {
                Libc.close(lock);
            }
        }
    }

    private static boolean tryLock(int fd) throws IOException {
        try {
            Libc.lock(fd);
            return true;
        } catch (Libc.SystemException e) {
            if (e.errno == EAGAIN || e.errno == EACCES) {
                return false;
            }
            throw e;
        }
    }

    /** Returns the process id that the gate's reader states; 0 if the page is too short. */
    private static long holder(int fd) throws IOException {
        ByteBuffer words = Libc.read(fd, HEAD, 32).order(ByteOrder.LITTLE_ENDIAN);
        return words.remaining() == 32 ? words.getLong(8 * (PROCESS - POSITION)) : 0;
    }

    @Override
    boolean isRemoved() {
        try {
            return Libc.stat(lock).links() == 0;
        } catch (IOException e) {
            return false; // it is not known whether the page has its name
        }
    }

    @Override
    void store(int word, long value) {
        page.store(8L * word, value);
    }

    @Override
    void close() {
        try {
            leave();
        } catch (InternalError e) {
            // Another program has shortened the page. So the page has no position, whoever reads it.
        }
        page.close();
        try {
            Libc.unlock(lock);
        } catch (IOException e) {
            // The kernel frees the lock when the last descriptor of the open file is closed.
        }
        Libc.close(lock);
    }
}
