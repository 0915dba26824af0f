package shmcast.peers;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;

/** Binds the calling thread to CPUs, which Java has no call for. */
final class Cpu {
    private static final int MASK_BYTES = 128;
    private static final MethodHandle SET = Linker.nativeLinker()
            .downcallHandle(
                    Linker.nativeLinker().defaultLookup().find("sched_setaffinity").orElseThrow(),
                    FunctionDescriptor.of(ValueLayout.JAVA_INT, ValueLayout.JAVA_INT, ValueLayout.JAVA_LONG, ValueLayout.ADDRESS));

    private Cpu() {}

    /** To this CPU alone. */
    static void bind(int cpu) {
        set(1L << cpu);
    }

    /** To the first 64 CPUs, of which the system takes those that are there. */
    static void free() {
        set(-1);
    }

    private static void set(long cpus) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment mask = arena.allocate(MASK_BYTES, 8);
            mask.set(ValueLayout.JAVA_LONG, 0, cpus);
            if ((int) SET.invokeExact(0, (long) MASK_BYTES, mask) != 0) {
                throw new IllegalStateException("this thread cannot be bound to the CPUs " + Long.toHexString(cpus));
            }
        } catch (RuntimeException e) {
            throw e;
        } catch (Throwable e) {
            throw new AssertionError(e);
        }
    }
}
