package shmcast;

import java.io.IOException;

/** The lock of a channel that is a file: who holds it lives. */
abstract class Lock {
    abstract boolean isHeld() throws IOException;

    abstract void close();
}
