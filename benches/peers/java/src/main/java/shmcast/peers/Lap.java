package shmcast.peers;

/** One lap: the calling thread publishes on CPU 0, and another receives on CPU 1. A message that is wrong, missing or out of order ends it. */
final class Lap implements Receiver {
    /** Between two messages that are timed. */
    private static final long BEAT_NANOS = 10_000;
    private static final int MOST = 256;
    private static final long PATIENCE_NANOS = 60_000_000_000L;

    private final Ring ring;
    private final int messages;
    /** Of each message, or null where only the whole is timed. */
    final long[] ages;

    private int received;
    private long last;
    private long ended;
    private String problem;

    private Lap(Ring ring, int messages, boolean isTimed) {
        this.ring = ring;
        this.messages = messages;
        ages = isTimed ? new long[messages] : null;
    }

    /** Nanoseconds a message, back to back. */
    static double throughput(Ring ring, int messages) throws InterruptedException {
        Lap lap = new Lap(ring, messages, false);
        long began = lap.run();
        return (double) (lap.ended - began) / messages;
    }

    /** The age of each message at the receiver, in nanoseconds. */
    static long[] oneWay(Ring ring, int messages) throws InterruptedException {
        Lap lap = new Lap(ring, messages, true);
        lap.run();
        return lap.ages;
    }

    private long run() throws InterruptedException {
        // Copies: the other thread writes to fields beside these with each message.
        Ring ring = this.ring;
        int messages = this.messages;
        Thread receiver = new Thread(this::receive);
        receiver.start();
        Cpu.bind(0);
        long began = System.nanoTime();
        if (ages == null) {
            for (int i = 0; i < messages; i++) {
                ring.publish(i + 1);
            }
        } else {
            for (long i = 0; i < messages; i++) {
                long now = System.nanoTime();
                while (now - began < BEAT_NANOS * i) {
                    now = System.nanoTime();
                }
                ring.publish(now);
            }
        }
        receiver.join();
        Cpu.free();
        if (problem != null) {
            throw new IllegalStateException(ring.getClass().getSimpleName() + ": " + problem);
        }
        return began;
    }

    private void receive() {
        Cpu.bind(1);
        long until = System.nanoTime() + PATIENCE_NANOS;
        int empty = 0;
        while (received < messages && problem == null) {
            int before = received;
            try {
                ring.poll(this, MOST);
            } catch (RuntimeException e) {
                problem = e.toString();
            }
            empty = received == before ? empty + 1 : 0;
            if (empty == 1 << 20) {
                empty = 0;
                if (System.nanoTime() > until) {
                    problem = received + " of " + messages + " messages came within 60 s";
                }
            }
        }
        ended = System.nanoTime();
    }

    @Override
    public void take(long first, boolean isRight) {
        boolean isInOrder = ages == null ? first == last + 1 : first > last;
        if (!isRight || !isInOrder || received == messages) {
            problem = "message " + (received + 1) + " is wrong";
            return;
        }
        if (ages != null) {
            ages[received] = System.nanoTime() - first;
        }
        last = first;
        received++;
    }
}
