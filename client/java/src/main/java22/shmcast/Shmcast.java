package shmcast;

import static java.lang.foreign.SymbolLookup.*;
import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;
import static java.lang.foreign.ValueLayout.JAVA_SHORT;

import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SymbolLookup;
import java.lang.invoke.MethodHandle;
import java.nio.file.Path;
import shmcast.ShmcastException.Code;

/** The functions of shmcast.h that publishing takes. The property {@code shmcast.native} names the library's file, if it is not found. */
final class Shmcast {
    private static final String LIBRARY = System.getProperty("shmcast.native", "libshmcast.so.0");
    private static final long OPTIONS_BYTES = 72;
    private static final FunctionDescriptor OF_PUBLISH =
            FunctionDescriptor.of(JAVA_INT, ADDRESS, ADDRESS, JAVA_LONG, JAVA_SHORT, JAVA_INT, ADDRESS);
    private static final FunctionDescriptor OF_NUMBER = FunctionDescriptor.of(JAVA_LONG, ADDRESS);

    private static final SymbolLookup LOOKUP = libraryLookup(LIBRARY, Arena.global());
    private static final MethodHandle OPEN = handle("shmcast_publisher_open", FunctionDescriptor.of(JAVA_INT, ADDRESS, ADDRESS, ADDRESS));
    private static final MethodHandle CLOSE = handle("shmcast_publisher_close", FunctionDescriptor.of(JAVA_INT, ADDRESS));
    private static final MethodHandle PUBLISH = handle("shmcast_publish_with", OF_PUBLISH);
    private static final MethodHandle PUBLISH_CRITICAL = handle("shmcast_publish_with", OF_PUBLISH, Linker.Option.critical(true));
    private static final MethodHandle IS_CUT_OFF = handle("shmcast_publisher_is_cut_off", FunctionDescriptor.of(JAVA_INT, ADDRESS));
    private static final MethodHandle MESSAGE = handle("shmcast_error_message", FunctionDescriptor.of(ADDRESS));
    static final MethodHandle NEXT_SEQUENCE = handle("shmcast_publisher_next_sequence", OF_NUMBER);
    static final MethodHandle EPOCH = handle("shmcast_publisher_epoch", OF_NUMBER);
    static final MethodHandle MAX_MESSAGE = handle("shmcast_publisher_max_message", OF_NUMBER);

    private Shmcast() {}

    private static MethodHandle handle(String name, FunctionDescriptor of, Linker.Option... options) {
        return Linker.nativeLinker().downcallHandle(LOOKUP.find(name).orElseThrow(), of, options);
    }

    private static AssertionError fault(Throwable e) {
        return new AssertionError("a call of " + LIBRARY, e);
    }

    static MemorySegment open(Publisher.Builder builder) throws IOException {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment options = arena.allocate(OPTIONS_BYTES, 8);
            options.set(JAVA_INT, 0, (int) OPTIONS_BYTES);
            options.set(JAVA_INT, 4, builder.flags);
            if (builder.isDaemons) {
                options.set(ADDRESS, 16, arena.allocateFrom(builder.socket == null ? "" : builder.socket.toString()));
            } else {
                options.set(ADDRESS, 8, text(arena, builder.directory));
            }
            options.set(JAVA_LONG, 24, builder.capacity);
            options.set(JAVA_LONG, 32, builder.maxMessage);
            options.set(JAVA_INT, 40, builder.mode);
            MemorySegment to = arena.allocate(ADDRESS);
            int code = (int) OPEN.invokeExact(arena.allocateFrom(builder.channel), options, to);
            if (code < 0) {
                throw failure(code);
            }
            return to.get(ADDRESS, 0);
        } catch (IOException e) {
            throw e;
        } catch (Throwable e) {
            throw fault(e);
        }
    }

    private static MemorySegment text(Arena arena, Path path) {
        return path == null ? MemorySegment.NULL : arena.allocateFrom(path.toString());
    }

    static int publishCritical(MemorySegment handle, MemorySegment bytes, int length, int tag, boolean key, MemorySegment outcome) {
        try {
            return (int) PUBLISH_CRITICAL.invokeExact(handle, bytes, (long) length, (short) tag, key ? 1 : 0, outcome);
        } catch (Throwable e) {
            throw fault(e);
        }
    }

    static int publish(MemorySegment handle, MemorySegment bytes, long length, int tag, boolean key, MemorySegment outcome) {
        try {
            return (int) PUBLISH.invokeExact(handle, bytes, length, (short) tag, key ? 1 : 0, outcome);
        } catch (Throwable e) {
            throw fault(e);
        }
    }

    static long number(MethodHandle function, MemorySegment handle) {
        try {
            return (long) function.invokeExact(handle);
        } catch (Throwable e) {
            throw fault(e);
        }
    }

    static boolean isCutOff(MemorySegment handle) {
        try {
            return (int) IS_CUT_OFF.invokeExact(handle) == 1;
        } catch (Throwable e) {
            throw fault(e);
        }
    }

    static void close(MemorySegment handle) {
        try {
            int ignored = (int) CLOSE.invokeExact(handle);
        } catch (Throwable e) {
            throw fault(e);
        }
    }

    /** This thread's last error. */
    static ShmcastException failure(int code) {
        String why;
        try {
            why = ((MemorySegment) MESSAGE.invokeExact()).reinterpret(1024).getString(0);
        } catch (Throwable e) {
            throw fault(e);
        }
        Code of =
                switch (code) {
                    case -10 -> Code.NAME;
                    case -11 -> Code.NO_CHANNEL;
                    case -12 -> Code.IN_USE;
                    case -19 -> Code.FOREIGN_DIRECTORY;
                    case -20, -21 -> Code.NO_DAEMON;
                    case -23 -> Code.LIMIT;
                    case -22 -> Code.DENIED;
                    case -24 -> Code.REFUSED;
                    case -40 -> Code.TOO_LARGE;
                    case -42 -> Code.CUT_OFF;
                    default -> Code.OTHER;
                };
        return new ShmcastException(of, why);
    }
}
