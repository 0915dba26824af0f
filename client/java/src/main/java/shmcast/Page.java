package shmcast;

/** Shows the place and the counts of a reader to tools (SPEC.md 4). Only the reader writes it. */
abstract class Page {
    static final int BYTES = 4096;
    static final long MAGIC = 0x3144_4145_524d_4853L;
    static final int POSITION = 8;
    static final int SEQUENCE = 9;
    static final int RECEIVED = 10;
    static final int LAPPED = 11;
    static final int MISSED = 12;
    static final int CONFLATED = 13;
    static final int HEARTBEAT = 16;
    static final int ASLEEP = 17;
    private static final int HISTOGRAM = 32;
    private static final int BUCKETS = 480;
    private static final int WORDS = BYTES / 8;

    private final long[] counts = new long[WORDS];
    private long slept;

    abstract void set(int word, long value);

    abstract void close();

    void begin(Header header, long position, long sequence) {
        set(1, 1);
        set(2, ProcessHandle.current().pid());
        set(3, sequence);
        set(4, header.uuidHigh());
        set(5, header.uuidLow());
        set(POSITION, position);
        set(SEQUENCE, sequence);
        set(0, MAGIC);
    }

    void add(int word, long value) {
        counts[word] += value;
        set(word, counts[word]);
    }

    /** Adds a latency to its bucket. */
    void record(long ns) {
        int bucket;
        if (ns < 32) {
            bucket = (int) Math.max(ns, 0);
        } else {
            int octave = 59 - Long.numberOfLeadingZeros(ns);
            bucket = Math.min(16 * (octave + 1) + (int) (ns >>> octave & 15), BUCKETS - 1);
        }
        add(HISTOGRAM + bucket, 1);
    }

    /** Stores that the reader waits for a record at a position. The low bits have another number for each sleep. */
    void sleeps(long position) {
        slept++;
        set(ASLEEP, position & -Header.GRANULE | (2 * slept + 1) % 64);
    }

    void wakes() {
        set(ASLEEP, 0);
    }
}
