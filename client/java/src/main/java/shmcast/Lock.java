package shmcast;

import java.io.IOException;

/** The lock of a channel in files. A process that holds this lock is alive. */
abstract class Lock {
    abstract boolean isHeld() throws IOException;

    abstract void close();
}
