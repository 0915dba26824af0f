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
import java.util.ArrayList;
import java.util.List;
import shmcast.ShmcastException.Code;

/**
 * The functions of shmcast.h that publishing needs. If the library's file is not found by itself, the property {@code shmcast.native} gives
 * its path.
 */
final class Shmcast {
    private static final String LIBRARY = System.getProperty("shmcast.native", "libshmcast.so.0");
    /** The code of SHMCAST_ERROR_FULL. */
    static final int FULL = -43;

    private static final int REMOVE_BY_TAG = 4;
    private static final int REFUSES = 1;
    private static final int NEVER_WAITS = 2;
    private static final long OPTIONS_BYTES = 136;
    private static final long GATE_BYTES = 40;
    private static final long STATUS_BYTES = 112;
    private static final int MOST_GATES = 15;
    private static final FunctionDescriptor OF_PUBLISH =
            FunctionDescriptor.of(JAVA_INT, ADDRESS, ADDRESS, JAVA_LONG, JAVA_SHORT, JAVA_INT, ADDRESS);
    private static final FunctionDescriptor OF_NUMBER = FunctionDescriptor.of(JAVA_LONG, ADDRESS);

    private static final SymbolLookup LOOKUP = libraryLookup(LIBRARY, Arena.global());
    private static final MethodHandle OPEN = handle("shmcast_publisher_open", FunctionDescriptor.of(JAVA_INT, ADDRESS, ADDRESS, ADDRESS));
    private static final MethodHandle CLOSE = handle("shmcast_publisher_close", FunctionDescriptor.of(JAVA_INT, ADDRESS));
    private static final MethodHandle PUBLISH = handle("shmcast_publish_with", OF_PUBLISH);
    private static final MethodHandle PUBLISH_CRITICAL = handle("shmcast_publish_with", OF_PUBLISH, Linker.Option.critical(true));
    private static final MethodHandle TRY_PUBLISH = handle("shmcast_try_publish", OF_PUBLISH);
    private static final MethodHandle GATES = handle("shmcast_publisher_gates", FunctionDescriptor.of(JAVA_LONG, ADDRESS, ADDRESS, JAVA_LONG));
    private static final MethodHandle IS_CUT_OFF = handle("shmcast_publisher_is_cut_off", FunctionDescriptor.of(JAVA_INT, ADDRESS));
    private static final MethodHandle MESSAGE = handle("shmcast_error_message", FunctionDescriptor.of(ADDRESS));
    private static final MethodHandle REFUSING = handle("shmcast_error_gate", FunctionDescriptor.of(ADDRESS));
    private static final MethodHandle BEHIND = handle("shmcast_error_behind", FunctionDescriptor.of(JAVA_LONG));
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
            setBoard(options, builder.board);
            setGates(arena, options, builder.gates);
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

    private static void setBoard(MemorySegment options, BoardSpec board) {
        if (board == null) {
            return;
        }
        options.set(JAVA_INT, 88, board.start());
        options.set(JAVA_INT, 92, board.stop());
        options.set(JAVA_LONG, 96, board.keys());
        options.set(JAVA_LONG, 104, board.value());
        if (board.removeTag() >= 0) {
            options.set(JAVA_SHORT, 112, (short) board.removeTag());
            options.set(JAVA_INT, 4, options.get(JAVA_INT, 4) | REMOVE_BY_TAG);
        }
    }

    private static void setGates(Arena arena, MemorySegment options, List<Gate> gates) {
        MemorySegment all = arena.allocate(GATE_BYTES * Math.max(gates.size(), 1), 8);
        for (int i = 0; i < gates.size(); i++) {
            Gate gate = gates.get(i);
            long nanos = gate.limit().toNanos();
            MemorySegment at = all.asSlice(GATE_BYTES * i, GATE_BYTES);
            at.set(ADDRESS, 0, arena.allocateFrom(gate.name()));
            at.set(JAVA_INT, 8, (gate.refuses() ? REFUSES : 0) | (nanos <= 0 ? NEVER_WAITS : 0));
            at.set(JAVA_INT, 12, gate.lagPercent());
            at.set(JAVA_LONG, 16, gate.lagBytes());
            at.set(JAVA_LONG, 24, Math.max(nanos, 0));
        }
        options.set(ADDRESS, 120, gates.isEmpty() ? MemorySegment.NULL : all);
        options.set(JAVA_LONG, 128, gates.size());
    }

    static boolean hasGates(MemorySegment handle) {
        try {
            return (long) GATES.invokeExact(handle, MemorySegment.NULL, 0L) > 0;
        } catch (Throwable e) {
            throw fault(e);
        }
    }

    static List<GateStatus> gates(MemorySegment handle) throws ShmcastException {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment all = arena.allocate(STATUS_BYTES * MOST_GATES, 8);
            long count = (long) GATES.invokeExact(handle, all, (long) MOST_GATES);
            if (count < 0) {
                throw failure((int) count);
            }
            List<GateStatus> gates = new ArrayList<>();
            for (long i = 0; i < Math.min(count, MOST_GATES); i++) {
                gates.add(status(all.asSlice(STATUS_BYTES * i, STATUS_BYTES)));
            }
            return gates;
        } catch (ShmcastException e) {
            throw e;
        } catch (Throwable e) {
            throw fault(e);
        }
    }

    private static GateStatus status(MemorySegment at) {
        return new GateStatus(
                at.getString(0),
                GateStatus.State.values()[at.get(JAVA_INT, 32)],
                at.get(JAVA_LONG, 40),
                at.get(JAVA_LONG, 48),
                at.get(JAVA_LONG, 56),
                at.get(JAVA_LONG, 64),
                at.get(JAVA_LONG, 72),
                at.get(JAVA_LONG, 80),
                at.get(JAVA_LONG, 88),
                at.get(JAVA_LONG, 96),
                at.get(JAVA_LONG, 104));
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

    static int tryPublish(MemorySegment handle, MemorySegment bytes, long length, int tag, boolean key, MemorySegment outcome) {
        try {
            return (int) TRY_PUBLISH.invokeExact(handle, bytes, length, (short) tag, key ? 1 : 0, outcome);
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

    /** Makes an exception from this thread's last error. */
    static ShmcastException failure(int code) {
        String why;
        try {
            why = ((MemorySegment) MESSAGE.invokeExact()).reinterpret(1024).getString(0);
            if (code == FULL) {
                String gate = ((MemorySegment) REFUSING.invokeExact()).reinterpret(32).getString(0);
                return new FullException(why, gate, (long) BEHIND.invokeExact());
            }
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
                    case -27 -> Code.NO_BOARD;
                    case -28 -> Code.GATE;
                    case -40 -> Code.TOO_LARGE;
                    case -42 -> Code.CUT_OFF;
                    default -> Code.OTHER;
                };
        return new ShmcastException(of, why);
    }
}
