package shmcast;

import java.io.IOException;
import java.nio.file.Path;
import shmcast.ShmcastException.Code;

/** The parts that call the C library. This class exists twice: here for Java 17, which cannot call the C library, and for Java 22. */
final class Native {
    private Native() {}

    static Hosted attach(Subscriber.Builder builder) throws IOException {
        throw new ShmcastException(Code.UNSUPPORTED, "a daemon's channels take Java 22 or newer, which can receive descriptors");
    }

    static Lock lockOf(Path directory) throws IOException {
        throw new ShmcastException(Code.UNSUPPORTED, "watching a publisher takes Java 22 or newer, which can look at its lock");
    }

    static HeldGate gate(Path directory, String name, Header header) throws IOException {
        throw new ShmcastException(Code.UNSUPPORTED, "holding a gate takes Java 22 or newer: Java 17 cannot take its lock, an OFD lock");
    }

    static Outlet outlet(Publisher.Builder builder) throws IOException {
        throw new ShmcastException(Code.UNSUPPORTED, "channel '" + builder.channel + "': publishing takes Java 22 or newer");
    }

    /** Makes a reader page in this channel's directory. Returns null if this is not possible. A reader can work without a page. */
    static Page show(Path directory) {
        return null;
    }
}
