package shmcast;

import java.io.IOException;
import java.util.ArrayDeque;
import shmcast.ShmcastException.Code;

/**
 * Keeps an attachment to a daemon (CONTROL.md 5). A separate thread waits for the socket. The reader uses the link only when it has nothing
 * left to receive.
 */
final class Link {
    private static final long FIRST_KNOCK = 20;
    private static final long LAST_KNOCK = 250;
    private static final long AFTER_REFUSAL = 1000;
    private static final int MOST_WAITING = 8;
    private static final long ANSWER_SECONDS = 5;

    /** A segment in which the channel continues. {@code charter} is -1 unless a new daemon has another charter. */
    record Successor(long generation, long first, long restarted, boolean isStrict, int segment, int charter) {
        void close() {
            Libc.close(segment, charter);
        }

        Successor with(int charter) {
            return new Successor(generation, first, restarted, isStrict, segment, charter);
        }
    }

    volatile boolean isAttached;
    volatile boolean hasMoved;
    private volatile boolean isClosed;
    private volatile long deaths;
    /** The pause before the next attempt to attach again, in milliseconds. Only the keeper uses it. */
    private long pause = FIRST_KNOCK;

    private final String path;
    private final String request;
    private final Runnable wake;
    private final int bell;
    private final ArrayDeque<Successor> moved = new ArrayDeque<>();
    private Conversation to;
    private int segment;
    private int lock;
    private int page;
    private Libc.Stat charter;
    private long deadIn;
    private long dead;
    private Thread keeper;

    /** Requests a channel. {@code bell} is the far end of a bell, or -1. */
    Link(String path, String channel, boolean isHidden, boolean watches, int bell, Runnable wake) {
        this.path = path;
        this.bell = bell;
        this.wake = wake;
        // The name was checked before, so it needs no escapes.
        request = "{\"request\":\"subscribe\",\"channel\":\"" + channel + "\",\"park\":" + (bell >= 0) + ",\"hidden\":" + isHidden + ",\"watch\":" + watches + ",\"resume\":";
    }

    /**
     * Attaches for the first time. The caller then owns the charter, which is the last descriptor of the answer. The caller must not close
     * the other descriptors.
     */
    Reply begin() throws IOException {
        Reply reply = attach(false);
        try {
            charter = Libc.stat(reply.descriptors[3]);
        } catch (IOException e) {
            to.close();
            reply.close();
            throw e;
        }
        segment = reply.descriptors[0];
        lock = reply.descriptors[1];
        page = reply.descriptors[2];
        isAttached = true;
        return reply;
    }

    /** Requests a gate, and takes it for the reader of a segment (CONTROL.md 9). Must be called before {@link #keep}. */
    HeldGate gate(String name, Header header) throws IOException {
        Libc.limit(to.fd, ANSWER_SECONDS);
        Reply reply = to.ask("{\"request\":\"gate\",\"gate\":\"" + name + "\"}");
        while (!reply.name().equals("gate") && take(reply)) {
            reply = to.answer(); // the packet that the daemon sent before it read the request
        }
        if (!reply.name().equals("gate") || reply.descriptors.length != 2) {
            reply.close();
            throw new ShmcastException(Code.NO_DAEMON, "the daemon at " + path + " answers '" + reply.name() + "' to a request for a gate");
        }
        Libc.limit(to.fd, 0);
        return FileGate.take(name, reply.descriptors[0], reply.descriptors[1], header);
    }

    /** Starts to watch the socket. */
    void keep() {
        keeper = new Thread(this::run, "shmcast-keeper");
        keeper.setDaemon(true);
        keeper.start();
    }

    private Reply attach(boolean resumes) throws IOException {
        Conversation conversation = new Conversation(path);
        try {
            int[] with = resumes ? new int[] {segment, lock, page, bell} : new int[] {bell};
            int count = bell >= 0 ? with.length : with.length - 1;
            Reply reply = conversation.ask(request + resumes + "}", java.util.Arrays.copyOf(with, count));
            if (!reply.name().equals("subscribed") || reply.descriptors.length != 4) {
                reply.close();
                throw new ShmcastException(
                        Code.NO_DAEMON, "the daemon at " + path + " answers '" + reply.name() + "' with " + reply.descriptors.length + " descriptors");
            }
            Libc.limit(conversation.fd, 0);
            to = conversation;
            return reply;
        } catch (IOException e) {
            conversation.close();
            throw e;
        }
    }

    private void run() {
        while (!isClosed) {
            if (to == null) {
                synchronized (this) {
                    if (!isClosed) {
                        try {
                            wait(pause);
                        } catch (InterruptedException e) {
                            // Only close() ends this thread.
                        }
                    }
                }
                pause = Math.min(2 * pause, LAST_KNOCK);
                if (!isClosed && resume()) {
                    pause = FIRST_KNOCK;
                }
            } else if (!hear()) {
                isAttached = false;
                synchronized (this) {
                    to.close();
                    to = null;
                }
            }
            wake.run();
        }
    }

    /** Lengthens the pause if another attempt soon after this refusal would be refused, too. */
    private void pauseAfter(String refusal) {
        if (!refusal.equals("failed") && !refusal.equals("limit")) {
            pause = AFTER_REFUSAL;
        }
    }

    /** Takes a packet. Returns whether the connection can still be used. */
    private boolean hear() {
        try {
            Reply reply = to.receive();
            if (reply.name().equals("refused")) {
                pauseAfter(reply.string("code"));
            }
            return take(reply);
        } catch (IOException e) {
            return false;
        }
    }

    /** Takes a message that the daemon sends without a request. For any other packet, closes its descriptors and returns false. */
    private boolean take(Reply reply) {
        synchronized (this) {
            if (reply.name().equals("moved") && reply.descriptors.length == 2) {
                try {
                    push(reply, -1);
                } catch (IOException e) {
                    reply.close();
                    return false;
                }
                Libc.close(segment, lock);
                segment = reply.descriptors[0];
                lock = reply.descriptors[1];
                return true;
            }
            reply.close();
            if (reply.name().equals("publisher-gone")) {
                deadIn = reply.number("generation");
                dead = reply.number("epoch");
                deaths++;
                return true;
            }
        }
        return false;
    }

    /**
     * Adds the segment of an answer to the queue of next segments. The reader gets a copy of the descriptor, because the original is shown
     * to later daemons. After a success, the queue owns the charter.
     */
    private void push(Reply reply, int charter) throws IOException {
        int copy = Libc.duplicate(reply.descriptors[0]);
        if (moved.size() == MOST_WAITING) {
            Successor dropped = moved.removeFirst();
            Successor first = moved.getFirst();
            if (first.charter >= 0) {
                dropped.close();
            } else {
                // The charter is valid for the segments after the dropped one, and the daemon does not send it again.
                moved.removeFirst();
                moved.addFirst(first.with(dropped.charter));
                Libc.close(dropped.segment);
            }
        }
        moved.add(new Successor(reply.number("generation"), reply.number("first"), reply.number("restarted"), reply.is("strict"), copy, charter));
        hasMoved = true;
    }

    /** Shows the reader's memory to a daemon that has come back. */
    private boolean resume() {
        Reply reply;
        try {
            reply = attach(true);
        } catch (IOException e) {
            to = null;
            if (e instanceof ShmcastException refused && refused.refusal() != null) {
                pauseAfter(refused.refusal());
            }
            return false;
        }
        int[] got = reply.descriptors;
        Libc.close(got[2]);
        synchronized (this) {
            try {
                boolean isNew = !Libc.stat(segment).isSameFile(Libc.stat(got[0]));
                Libc.Stat theirs = Libc.stat(got[3]);
                boolean isOtherCharter = !charter.isSameFile(theirs);
                if (isNew || isOtherCharter) {
                    push(reply, isOtherCharter ? got[3] : -1);
                }
                Libc.close(segment, lock);
                segment = got[0];
                lock = got[1];
                charter = theirs;
                if (isOtherCharter) {
                    // With another charter, generations count from 1 again.
                    deadIn = 0;
                    dead = 0;
                } else {
                    Libc.close(got[3]);
                }
            } catch (IOException e) {
                Libc.close(got[0], got[1], got[3]);
                to.close();
                to = null;
                return false;
            }
        }
        isAttached = true;
        return true;
    }

    /** Returns the next segment, or null. If there is none, this costs only one load. */
    Successor takeMoved() {
        if (!hasMoved) {
            return null;
        }
        synchronized (this) {
            Successor next = moved.pollFirst();
            hasMoved = !moved.isEmpty();
            return next;
        }
    }

    /** Whether the daemon has reported the death of this publisher. */
    boolean hasDied(long generation, long epoch) {
        if (deaths == 0) {
            return false;
        }
        synchronized (this) {
            return deadIn == generation && dead == epoch;
        }
    }

    void close() {
        synchronized (this) {
            isClosed = true;
            if (to != null) {
                Libc.shutdown(to.fd);
            }
            notifyAll();
        }
        boolean isInterrupted = false;
        while (keeper != null && keeper.isAlive()) {
            try {
                keeper.join();
            } catch (InterruptedException e) {
                isInterrupted = true;
            }
        }
        if (isInterrupted) {
            Thread.currentThread().interrupt();
        }
        if (to != null) {
            to.close();
        }
        Libc.close(segment, lock, page);
        moved.forEach(Successor::close);
    }
}
