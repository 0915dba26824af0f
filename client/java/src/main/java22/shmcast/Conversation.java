package shmcast;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import shmcast.ShmcastException.Code;

/** A connection to a daemon (CONTROL.md 1 and 2). */
final class Conversation {
    private static final int VERSION = 2;
    private static final int MOST = 65_536;
    private static final long ANSWER_SECONDS = 5;
    private static final long STARTING_NANOS = 60_000_000_000L;

    final int fd;
    private final String path;

    /** Connects to the daemon, and sends the first request, {@code hello}. */
    Conversation(String path) throws IOException {
        this.path = path;
        try {
            fd = Libc.connect(path);
        } catch (Libc.SystemException e) {
            throw noDaemon(e.errno, "no daemon at " + path + ": " + e.getMessage() + "; " + advice(path, e.errno));
        }
        boolean isWelcome = false;
        try {
            Libc.limit(fd, ANSWER_SECONDS);
            long until = System.nanoTime() + STARTING_NANOS;
            Reply reply;
            do {
                reply = ask("{\"request\":\"hello\",\"version\":" + VERSION + "}");
                reply.close();
            } while (reply.name().equals("starting") && System.nanoTime() < until);
            isWelcome = reply.name().equals("welcome") && reply.number("version") == VERSION;
            if (!isWelcome) {
                throw noDaemon("it answers hello with '" + reply.name() + "', version " + reply.number("version"));
            }
        } finally {
            if (!isWelcome) {
                Libc.close(fd);
            }
        }
    }

    /** Returns what to do if a connection to a socket fails with this error. */
    private static String advice(String path, int errno) {
        return switch (errno) {
            case 1, 13 -> "the mode of the socket or of a directory keeps this user out: set socket_mode of the daemon"; // EPERM, EACCES
            case 23, 24 -> "raise the limit on open files (ulimit -n)"; // ENFILE, EMFILE
            case 91 -> "this is not a daemon's socket: give the path at which shmcastd listens"; // EPROTOTYPE
            default -> Files.isRegularFile(Path.of(path))
                    ? "this is not a daemon's socket: give the path at which shmcastd listens"
                    : "start shmcastd, or set SHMCAST_SOCKET";
        };
    }

    private ShmcastException noDaemon(String why) {
        return new ShmcastException(Code.NO_DAEMON, "the daemon at " + path + ": " + why);
    }

    private ShmcastException noDaemon(Libc.SystemException e) {
        return noDaemon(e.errno, "the daemon at " + path + ": " + e.getMessage());
    }

    /** Only a daemon that does not run, was just restarted, or does not answer can be there soon. */
    private static ShmcastException noDaemon(int errno, String message) {
        return switch (errno) {
            case 2, 11, 111, Libc.EPIPE, Libc.ECONNRESET -> ShmcastException.absent(message); // ENOENT, EAGAIN, ECONNREFUSED
            default -> new ShmcastException(Code.NO_DAEMON, message);
        };
    }

    /** Sends a request and returns the answer. A refusal is an exception. */
    Reply ask(String request, int... descriptors) throws IOException {
        try {
            Libc.send(fd, request.getBytes(StandardCharsets.UTF_8), descriptors);
        } catch (Libc.SystemException e) {
            if (e.errno != Libc.EPIPE) {
                throw noDaemon(e);
            }
            // If the daemon refused before it read the request, its refusal is already in the queue.
        }
        return answer();
    }

    /** Returns the next packet. A refusal is an exception. */
    Reply answer() throws IOException {
        Reply reply;
        try {
            reply = receive();
        } catch (Libc.SystemException e) {
            if (e.errno != Libc.ECONNRESET) {
                throw noDaemon(e);
            }
            reply = receiveLast();
        }
        if (reply.name().equals("refused")) {
            reply.close();
            String refusal = reply.string("code");
            Code code =
                    switch (refusal) {
                        case "unknown-channel" -> Code.NO_CHANNEL;
                        case "denied" -> Code.DENIED;
                        case "busy" -> Code.IN_USE;
                        case "limit" -> Code.LIMIT;
                        case "unknown-gate" -> Code.UNKNOWN_GATE;
                        default -> Code.REFUSED;
                    };
            throw ShmcastException.refused(code, refusal, "the daemon refused: " + reply.string("why"));
        }
        return reply;
    }

    /** Returns the packet that the daemon sent before it closed the connection. */
    private Reply receiveLast() throws IOException {
        try {
            return receive();
        } catch (Libc.SystemException e) {
            throw noDaemon(e);
        }
    }

    Reply receive() throws IOException {
        Libc.Packet packet = Libc.receive(fd, MOST);
        boolean isWhole = packet.isWhole() && packet.bytes().length > 0;
        if (!isWhole) {
            Libc.close(packet.descriptors());
            if (packet.bytes().length == 0) {
                throw noDaemon(Libc.ECONNRESET, "the daemon at " + path + ": it has gone");
            }
            throw noDaemon("a packet did not arrive whole");
        }
        try {
            return Reply.parse(packet.bytes(), packet.descriptors());
        } catch (IOException e) {
            Libc.close(packet.descriptors());
            throw noDaemon(e.getMessage());
        }
    }

    void close() {
        Libc.close(fd);
    }
}
