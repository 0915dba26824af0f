package shmcast;

import java.util.List;

/** The part of a publisher that calls the C library. It needs Java 22 or newer. Its calls do the same as those of {@link Publisher}. */
abstract class Outlet {
    abstract long publish(byte[] bytes, int from, int length, int tag, boolean key) throws ShmcastException;

    abstract long tryPublish(byte[] bytes, int from, int length, int tag, boolean key) throws ShmcastException;

    abstract List<GateStatus> gates() throws ShmcastException;

    abstract long nextSequence();

    abstract long epoch();

    abstract long maxMessage();

    abstract boolean isCutOff();

    /** Ends the publisher. A second call does nothing. */
    abstract void close();
}
