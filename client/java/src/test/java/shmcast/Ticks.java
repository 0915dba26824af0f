package shmcast;

import java.io.IOException;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.HashMap;
import java.util.Map;

/**
 * Messages with keys. The key begins with byte 4 of each payload. The model has the key of each message, and knows whether the message
 * removes its key.
 */
final class Ticks {
    final int keys;
    /** The index of the byte after the key. */
    final int keyEnd;

    Ticks(int keys) {
        this(keys, 8);
    }

    Ticks(int keys, int keyEnd) {
        this.keys = keys;
        this.keyEnd = keyEnd;
    }

    int key(long number) {
        long hash = number * 0x9e37_79b9_7f4a_7c15L;
        return (int) (hash >>> 40) % keys;
    }

    /**
     * Whether a message ends directly after its key, and so removes the key. Boards do not count the removal of a key that they never had.
     * So none of the first messages removes its key.
     */
    boolean removes(long number) {
        return number > 400 && (number * 0x9e37_79b9_7f4a_7c15L >>> 20 & 15) == 3;
    }

    byte[] payload(long number) {
        int length = removes(number) ? keyEnd : keyEnd + 8 + (int) (number % 40);
        ByteBuffer bytes = ByteBuffer.allocate(length).order(ByteOrder.LITTLE_ENDIAN);
        bytes.putInt(0, 77).put(4, keyBytes(key(number)));
        if (!removes(number)) {
            bytes.putLong(keyEnd, number);
        }
        return bytes.array();
    }

    byte[] keyBytes(int key) {
        return ByteBuffer.allocate(keyEnd - 4).order(ByteOrder.LITTLE_ENDIAN).putInt(key).array();
    }

    boolean isRight(Message m) {
        byte[] copy = new byte[m.length()];
        m.copyTo(copy, 0);
        return java.util.Arrays.equals(copy, payload(m.sequence()));
    }

    /** Writes numbered messages to a publisher until the publisher dies. */
    void feed(Process process, long from, long to) {
        try (OutputStream out = process.getOutputStream()) {
            for (long n = from; n <= to; n++) {
                byte[] payload = payload(n);
                out.write(ByteBuffer.allocate(4).order(ByteOrder.LITTLE_ENDIAN).putInt(payload.length).array());
                out.write(payload);
            }
        } catch (IOException e) {
            // The publisher was killed.
        }
    }

    void publish(Publishers publishers, long from, long to, String... more) throws IOException, InterruptedException {
        Process process = publishers.publisher(more);
        feed(process, from, to);
        if (process.waitFor() != 0) {
            throw new AssertionError("the publisher failed");
        }
    }

    /** Returns the newest message of each key that was not removed, among the messages up to a number. */
    Map<Integer, Long> newest(long to) {
        Map<Integer, Long> newest = new HashMap<>();
        for (long n = 1; n <= to; n++) {
            if (removes(n)) {
                newest.remove(key(n));
            } else {
                newest.put(key(n), n);
            }
        }
        return newest;
    }
}
