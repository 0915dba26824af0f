package shmcast.peers;

import java.io.IOException;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.nio.file.Path;
import shmcast.Handler;
import shmcast.Message;
import shmcast.Publisher;
import shmcast.Subscriber;
import shmcast.Wait;

/** Our client in Java. A ring has no flow control, so the publisher waits where it would lap the receiver; README.md says how. */
final class ShmcastRing implements Ring {
    private static final VarHandle LONG = MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);
    private static final int CAPACITY = 8 << 20;
    /** So often the receiver tells how far it is, and the publisher looks. */
    private static final int BETWEEN = 256;

    /** Numbers of one thread, far from those of the other: a cache line that both write goes back and forth. */
    private static final int LINES = 16;

    private static final VarHandle NUMBER = MethodHandles.arrayElementVarHandle(long[].class);
    private static final int PUBLISHED = LINES;
    private static final int LIMIT = LINES + 1;
    private static final int RECEIVED = 3 * LINES;
    private static final int REACHED = 5 * LINES;

    private final int words;
    private final byte[] payload;
    private final long most;
    private final Publisher publisher;
    private final Subscriber subscriber;
    private final long[] numbers = new long[7 * LINES];
    private final Receiving receiving = new Receiving();

    ShmcastRing(int size, Path directory) throws IOException {
        words = size / 8;
        payload = new byte[size];
        most = CAPACITY / (size + 16 + 63 & -64) / 2;
        numbers[LIMIT] = most;
        publisher = Publisher.of("ring-" + size).dir(directory).capacity(CAPACITY).open();
        subscriber = Subscriber.of("ring-" + size).dir(directory).hidden().waiting(Wait.BURST).open();
    }

    @Override
    public void publish(long first) {
        long[] numbers = this.numbers;
        while (numbers[PUBLISHED] >= numbers[LIMIT]) {
            numbers[LIMIT] = (long) NUMBER.getAcquire(numbers, REACHED) + most;
            if (numbers[PUBLISHED] >= numbers[LIMIT]) {
                Thread.yield();
            }
        }
        for (int word = 0; word < words; word++) {
            LONG.set(payload, 8 * word, first + word);
        }
        try {
            publisher.publish(payload, 0, payload.length, 0, false);
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
        numbers[PUBLISHED]++;
    }

    @Override
    public void poll(Receiver receiver, int most) {
        receiving.to = receiver;
        try {
            subscriber.poll(receiving, most);
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
    }

    /** What the receiving thread does with an event. */
    private final class Receiving implements Handler {
        private Receiver to;
        private boolean isLapped;

        @Override
        public void message(Message message) {
            long first = message.getLong(0);
            long wrong = message.length() ^ 8 * words;
            for (int word = 1; word < words; word++) {
                wrong |= message.getLong(8 * word) ^ first + word;
            }
            if (++numbers[RECEIVED] % BETWEEN == 0) {
                NUMBER.setRelease(numbers, REACHED, numbers[RECEIVED]);
            }
            to.take(first, wrong == 0 && !isLapped);
        }

        @Override
        public void lapped(long missed, long resumedAt) {
            isLapped = true;
        }
    }

    @Override
    public void close() {
        subscriber.close();
        publisher.close();
    }
}
