package shmcast;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;
import static java.lang.foreign.ValueLayout.JAVA_SHORT;

import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.VarHandle;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;

/** The calls of the C library that pass descriptors, map them, and lock files. For Linux on 64-bit machines. */
final class Libc {
    static final int EPIPE = 32;
    static final int ECONNRESET = 104;
    private static final int EINTR = 4;
    private static final int AF_UNIX = 1;
    private static final int SOCK_STREAM = 1;
    private static final int SOCK_SEQPACKET = 5;
    private static final int SOCK_CLOEXEC = 0x80000;
    private static final int SOL_SOCKET = 1;
    private static final int SCM_RIGHTS = 1;
    private static final int SO_RCVTIMEO = 20;
    private static final int SO_SNDTIMEO = 21;
    private static final int MSG_CTRUNC = 0x8;
    private static final int MSG_TRUNC = 0x20;
    private static final int MSG_DONTWAIT = 0x40;
    private static final int MSG_NOSIGNAL = 0x4000;
    private static final int MSG_CMSG_CLOEXEC = 0x4000_0000;
    private static final int AT_EMPTY_PATH = 0x1000;
    private static final int F_DUPFD_CLOEXEC = 1030;
    private static final int F_OFD_GETLK = 36;
    private static final int F_OFD_SETLK = 37;
    private static final short F_WRLCK = 1;
    private static final short F_UNLCK = 2;

    private static final Linker LINKER = Linker.nativeLinker();
    private static final MemoryLayout STATE = Linker.Option.captureStateLayout();
    private static final VarHandle ERRNO = STATE.varHandle(MemoryLayout.PathElement.groupElement("errno"));
    private static final ThreadLocal<MemorySegment> CAPTURED = ThreadLocal.withInitial(() -> Arena.ofAuto().allocate(STATE));

    private static final MethodHandle SOCKET = ints("socket", 3);
    private static final MethodHandle SOCKETPAIR = handle("socketpair", FunctionDescriptor.of(JAVA_INT, JAVA_INT, JAVA_INT, JAVA_INT, ADDRESS));
    private static final MethodHandle CONNECT = handle("connect", FunctionDescriptor.of(JAVA_INT, JAVA_INT, ADDRESS, JAVA_INT));
    private static final MethodHandle SETSOCKOPT =
            handle("setsockopt", FunctionDescriptor.of(JAVA_INT, JAVA_INT, JAVA_INT, JAVA_INT, ADDRESS, JAVA_INT));
    private static final MethodHandle SENDMSG = handle("sendmsg", FunctionDescriptor.of(JAVA_LONG, JAVA_INT, ADDRESS, JAVA_INT));
    private static final MethodHandle RECVMSG = handle("recvmsg", FunctionDescriptor.of(JAVA_LONG, JAVA_INT, ADDRESS, JAVA_INT));
    private static final MethodHandle SEND = handle("send", FunctionDescriptor.of(JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG, JAVA_INT));
    private static final MethodHandle RECV = handle("recv", FunctionDescriptor.of(JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG, JAVA_INT));
    private static final MethodHandle POLL = handle("poll", FunctionDescriptor.of(JAVA_INT, ADDRESS, JAVA_LONG, JAVA_INT));
    private static final MethodHandle SHUTDOWN = ints("shutdown", 2);
    private static final MethodHandle CLOSE = ints("close", 1);
    private static final MethodHandle MMAP =
            handle("mmap", FunctionDescriptor.of(ADDRESS, ADDRESS, JAVA_LONG, JAVA_INT, JAVA_INT, JAVA_INT, JAVA_LONG));
    private static final MethodHandle MUNMAP = handle("munmap", FunctionDescriptor.of(JAVA_INT, ADDRESS, JAVA_LONG));
    private static final MethodHandle PREAD = handle("pread", FunctionDescriptor.of(JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG, JAVA_LONG));
    private static final MethodHandle FALLOCATE =
            handle("fallocate", FunctionDescriptor.of(JAVA_INT, JAVA_INT, JAVA_INT, JAVA_LONG, JAVA_LONG));
    private static final MethodHandle STATX = handle("statx", FunctionDescriptor.of(JAVA_INT, JAVA_INT, ADDRESS, JAVA_INT, JAVA_INT, ADDRESS));
    private static final MethodHandle OPEN =
            handle("open", FunctionDescriptor.of(JAVA_INT, ADDRESS, JAVA_INT, JAVA_INT), Linker.Option.firstVariadicArg(2));
    private static final MethodHandle FCNTL_NUMBER =
            handle("fcntl", FunctionDescriptor.of(JAVA_INT, JAVA_INT, JAVA_INT, JAVA_INT), Linker.Option.firstVariadicArg(2));
    private static final MethodHandle FCNTL_LOCK =
            handle("fcntl", FunctionDescriptor.of(JAVA_INT, JAVA_INT, JAVA_INT, ADDRESS), Linker.Option.firstVariadicArg(2));

    private Libc() {}

    /** The identity and size of a file, and the number of its names. */
    record Stat(long device, long inode, long size, int links) {
        boolean isSameFile(Stat other) {
            return device == other.device && inode == other.inode;
        }
    }

    /** An error of the system. */
    static final class SystemException extends IOException {
        private static final long serialVersionUID = 1;
        final int errno;

        SystemException(String what, int errno) {
            super(what + " failed with errno " + errno);
            this.errno = errno;
        }
    }

    private static MethodHandle handle(String name, FunctionDescriptor of, Linker.Option... more) {
        List<Linker.Option> options = new ArrayList<>(List.of(more));
        options.add(Linker.Option.captureCallState("errno"));
        return LINKER.downcallHandle(LINKER.defaultLookup().find(name).orElseThrow(), of, options.toArray(Linker.Option[]::new));
    }

    private static MethodHandle ints(String name, int count) {
        MemoryLayout[] arguments = new MemoryLayout[count];
        java.util.Arrays.fill(arguments, JAVA_INT);
        return handle(name, FunctionDescriptor.of(JAVA_INT, arguments));
    }

    private static int errno() {
        return (int) ERRNO.get(CAPTURED.get(), 0L);
    }

    private static long check(String what, long result) throws SystemException {
        if (result < 0) {
            throw new SystemException(what, errno());
        }
        return result;
    }

    /** A method handle declares that it can throw anything. It does so only because of a mistake in this class. */
    private static AssertionError fault(Throwable e) {
        return new AssertionError("a call of the C library", e);
    }

    /** Returns an error of the system. Any other exception is a mistake in this class. */
    private static IOException failure(Throwable e) {
        if (e instanceof IOException system) {
            return system;
        }
        throw fault(e);
    }

    static int connect(String path) throws IOException {
        int fd;
        try (Arena arena = Arena.ofConfined()) {
            byte[] bytes = path.getBytes(java.nio.charset.StandardCharsets.UTF_8);
            if (bytes.length > 107) {
                throw new IOException("a socket's path has at most 107 bytes: " + path);
            }
            MemorySegment address = arena.allocate(110, 8);
            address.set(JAVA_SHORT, 0, (short) AF_UNIX);
            MemorySegment.copy(bytes, 0, address, ValueLayout.JAVA_BYTE, 2, bytes.length);
            fd = (int) check("socket", (int) SOCKET.invokeExact(CAPTURED.get(), AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
            if ((int) CONNECT.invokeExact(CAPTURED.get(), fd, address, 2 + bytes.length + 1) < 0) {
                int errno = errno();
                close(fd);
                throw new SystemException("connect", errno);
            }
            return fd;
        } catch (Throwable e) {
            throw failure(e);
        }
    }

    /** Makes the two ends of a stream, for a bell. The ends block, but {@link #ring} and {@link #hear} do not wait. */
    static int[] pair() throws IOException {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment two = arena.allocate(8, 8);
            check("socketpair", (int) SOCKETPAIR.invokeExact(CAPTURED.get(), AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, two));
            return new int[] {two.get(JAVA_INT, 0), two.get(JAVA_INT, 4)};
        } catch (Throwable e) {
            throw failure(e);
        }
    }

    /** Limits how long a receive or a send waits; 0 for no limit. */
    static void limit(int fd, long seconds) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment time = arena.allocate(16, 8);
            time.set(JAVA_LONG, 0, seconds);
            int ignored = (int) SETSOCKOPT.invokeExact(CAPTURED.get(), fd, SOL_SOCKET, SO_RCVTIMEO, time, 16);
            ignored = (int) SETSOCKOPT.invokeExact(CAPTURED.get(), fd, SOL_SOCKET, SO_SNDTIMEO, time, 16);
        } catch (Throwable e) {
            throw fault(e);
        }
    }

    /** Makes a msghdr with one block of bytes and room for descriptors. */
    private static MemorySegment header(Arena arena, MemorySegment bytes, MemorySegment rights) {
        MemorySegment vector = arena.allocate(16, 8);
        vector.set(ADDRESS, 0, bytes);
        vector.set(JAVA_LONG, 8, bytes.byteSize());
        MemorySegment header = arena.allocate(56, 8);
        header.set(ADDRESS, 16, vector);
        header.set(JAVA_LONG, 24, 1);
        if (rights != null) {
            header.set(ADDRESS, 32, rights);
            header.set(JAVA_LONG, 40, rights.byteSize());
        }
        return header;
    }

    static void send(int fd, byte[] packet, int... descriptors) throws IOException {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment bytes = arena.allocateFrom(ValueLayout.JAVA_BYTE, packet);
            MemorySegment rights = null;
            if (descriptors.length > 0) {
                rights = arena.allocate(16 + (4L * descriptors.length + 7) / 8 * 8, 8);
                rights.set(JAVA_LONG, 0, 16 + 4L * descriptors.length);
                rights.set(JAVA_INT, 8, SOL_SOCKET);
                rights.set(JAVA_INT, 12, SCM_RIGHTS);
                MemorySegment.copy(descriptors, 0, rights, JAVA_INT, 16, descriptors.length);
            }
            check("sendmsg", (long) SENDMSG.invokeExact(CAPTURED.get(), fd, header(arena, bytes, rights), MSG_NOSIGNAL));
        } catch (Throwable e) {
            throw failure(e);
        }
    }

    /** A received packet, with its descriptors. */
    record Packet(byte[] bytes, int[] descriptors, boolean isWhole) {}

    static Packet receive(int fd, int most) throws IOException {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment bytes = arena.allocate(most);
            MemorySegment rights = arena.allocate(16 + 4 * 4, 8);
            MemorySegment header = header(arena, bytes, rights);
            long n;
            do {
                n = (long) RECVMSG.invokeExact(CAPTURED.get(), fd, header, MSG_CMSG_CLOEXEC);
            } while (n < 0 && errno() == EINTR);
            check("recvmsg", n);
            int[] descriptors = {};
            long length = rights.get(JAVA_LONG, 0);
            boolean hasRights = header.get(JAVA_LONG, 40) >= 16 && rights.get(JAVA_INT, 8) == SOL_SOCKET && rights.get(JAVA_INT, 12) == SCM_RIGHTS;
            if (hasRights && length >= 16 && length <= rights.byteSize()) {
                descriptors = rights.asSlice(16, (length - 16) / 4 * 4).toArray(JAVA_INT);
            }
            int flags = header.get(JAVA_INT, 48);
            return new Packet(bytes.asSlice(0, n).toArray(ValueLayout.JAVA_BYTE), descriptors, (flags & (MSG_TRUNC | MSG_CTRUNC)) == 0);
        } catch (Throwable e) {
            throw failure(e);
        }
    }

    /** Puts a byte into a bell. A full bell already wakes its reader. */
    static void ring(int fd, MemorySegment room) {
        try {
            long ignored = (long) SEND.invokeExact(CAPTURED.get(), fd, room, 1L, MSG_DONTWAIT | MSG_NOSIGNAL);
        } catch (Throwable e) {
            throw fault(e);
        }
    }

    /** Waits until a bell has bytes, and empties it. {@code room} has 8 bytes for a pollfd and 64 bytes for the received bytes. */
    static void hear(int fd, MemorySegment room, int millis) {
        try {
            if (millis > 0) {
                room.set(JAVA_INT, 0, fd);
                room.set(JAVA_SHORT, 4, (short) 1);
                int ignored = (int) POLL.invokeExact(CAPTURED.get(), room, 1L, millis);
            }
            long n;
            do {
                n = (long) RECV.invokeExact(CAPTURED.get(), fd, room.asSlice(8), 64L, MSG_DONTWAIT);
            } while (n == 64);
        } catch (Throwable e) {
            throw fault(e);
        }
    }

    static void shutdown(int fd) {
        try {
            int ignored = (int) SHUTDOWN.invokeExact(CAPTURED.get(), fd, 2);
        } catch (Throwable e) {
            throw fault(e);
        }
    }

    static void close(int... fds) {
        for (int fd : fds) {
            if (fd >= 0) {
                try {
                    int ignored = (int) CLOSE.invokeExact(CAPTURED.get(), fd);
                } catch (Throwable e) {
                    throw fault(e);
                }
            }
        }
    }

    static int duplicate(int fd) throws IOException {
        try {
            return (int) check("fcntl", (int) FCNTL_NUMBER.invokeExact(CAPTURED.get(), fd, F_DUPFD_CLOEXEC, 0));
        } catch (Throwable e) {
            throw failure(e);
        }
    }

    static Stat stat(int fd) throws IOException {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment stat = arena.allocate(256, 8);
            check("statx", (int) STATX.invokeExact(CAPTURED.get(), fd, arena.allocateFrom(""), AT_EMPTY_PATH, 0x7ff, stat));
            long device = stat.get(JAVA_INT, 136) & 0xffff_ffffL | (long) stat.get(JAVA_INT, 140) << 32;
            return new Stat(device, stat.get(JAVA_LONG, 32), stat.get(JAVA_LONG, 40), stat.get(JAVA_INT, 16));
        } catch (Throwable e) {
            throw failure(e);
        }
    }

    /** Reads this many bytes of a file, or fewer if the file is shorter. */
    static ByteBuffer read(int fd, long from, int bytes) throws IOException {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment room = arena.allocate(bytes, 8);
            long n = check("pread", (long) PREAD.invokeExact(CAPTURED.get(), fd, room, (long) bytes, from));
            return ByteBuffer.wrap(room.asSlice(0, n).toArray(ValueLayout.JAVA_BYTE));
        } catch (Throwable e) {
            throw failure(e);
        }
    }

    /**
     * Extends a file to this many bytes, and allocates them. Without allocated memory, a store into a mapped page is an error of the JVM.
     */
    static void reserve(int fd, long bytes) throws IOException {
        try {
            check("fallocate", (int) FALLOCATE.invokeExact(CAPTURED.get(), fd, 0, 0L, bytes));
        } catch (Throwable e) {
            throw failure(e);
        }
    }

    static int open(String path, int flags, int mode) throws IOException {
        try (Arena arena = Arena.ofConfined()) {
            return (int) check("open " + path, (int) OPEN.invokeExact(CAPTURED.get(), arena.allocateFrom(path), flags, mode));
        } catch (Throwable e) {
            throw failure(e);
        }
    }

    /** Takes a write lock on the whole file. The lock belongs to the open file and not to the process. */
    static void lock(int fd) throws IOException {
        lockCall(fd, F_OFD_SETLK, F_WRLCK);
    }

    /** Frees a lock of the open file. This is needed because another process can have the same open file. */
    static void unlock(int fd) throws IOException {
        lockCall(fd, F_OFD_SETLK, F_UNLCK);
    }

    /** Whether anyone has a lock on the file. */
    static boolean isLocked(int fd) throws IOException {
        return lockCall(fd, F_OFD_GETLK, F_WRLCK) != F_UNLCK;
    }

    private static short lockCall(int fd, int what, short kind) throws IOException {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment lock = arena.allocate(32, 8);
            lock.set(JAVA_SHORT, 0, kind);
            check("fcntl", (int) FCNTL_LOCK.invokeExact(CAPTURED.get(), fd, what, lock));
            return lock.get(JAVA_SHORT, 0);
        } catch (Throwable e) {
            throw failure(e);
        }
    }

    static MemorySegment mmap(int fd, long from, long bytes, boolean isWritable) throws IOException {
        try {
            MemorySegment at = (MemorySegment) MMAP.invokeExact(CAPTURED.get(), MemorySegment.NULL, bytes, isWritable ? 3 : 1, 1, fd, from);
            check("mmap", at.address() == -1 ? -1 : 0);
            return at;
        } catch (Throwable e) {
            throw failure(e);
        }
    }

    static void munmap(MemorySegment mapped) {
        try {
            int ignored = (int) MUNMAP.invokeExact(CAPTURED.get(), mapped, mapped.byteSize());
        } catch (Throwable e) {
            throw fault(e);
        }
    }
}
