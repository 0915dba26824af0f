package shmcast.peers;

import io.aeron.Aeron;
import io.aeron.CommonContext;
import io.aeron.ExclusivePublication;
import io.aeron.Image;
import io.aeron.Publication;
import io.aeron.Subscription;
import io.aeron.driver.MediaDriver;
import io.aeron.driver.ThreadingMode;
import io.aeron.logbuffer.BufferClaim;
import io.aeron.logbuffer.FragmentHandler;
import io.aeron.logbuffer.Header;
import java.nio.ByteOrder;
import java.util.concurrent.TimeUnit;
import org.agrona.CloseHelper;
import org.agrona.DirectBuffer;
import org.agrona.MutableDirectBuffer;
import org.agrona.concurrent.SleepingMillisIdleStrategy;

/** Aeron's IPC with the driver in this process. README.md has the settings' reasons. */
final class AeronRing implements Ring {
    private static final String CHANNEL = "aeron:ipc";
    private static final int STREAM = 1001;
    private static final int TERM = 16 << 20;
    private static final int MTU = 8 << 10;

    private final int words;
    private final MediaDriver driver;
    private final Aeron aeron;
    private final ExclusivePublication publication;
    private final Subscription subscription;
    private final Image image;
    private final BufferClaim claim = new BufferClaim();
    private final Receiving receiving = new Receiving();

    AeronRing(int size) {
        words = size / 8;
        driver = MediaDriver.launch(new MediaDriver.Context()
                .aeronDirectoryName(CommonContext.generateRandomDirName())
                .dirDeleteOnShutdown(true)
                .threadingMode(ThreadingMode.SHARED)
                .termBufferSparseFile(false)
                .ipcTermBufferLength(TERM)
                .ipcMtuLength(MTU));
        aeron = Aeron.connect(new Aeron.Context()
                .aeronDirectoryName(driver.aeronDirectoryName())
                .idleStrategy(new SleepingMillisIdleStrategy(100)));
        subscription = aeron.addSubscription(CHANNEL, STREAM);
        publication = aeron.addExclusivePublication(CHANNEL, STREAM);
        long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(10);
        while (subscription.imageCount() == 0 || !publication.isConnected()) {
            if (System.nanoTime() > until) {
                throw new IllegalStateException("Aeron did not connect within 10 s");
            }
            Thread.onSpinWait();
        }
        image = subscription.imageAtIndex(0);
    }

    @Override
    public void publish(long first) {
        long position = publication.tryClaim(words * 8, claim);
        while (position < 0) {
            if (position != Publication.BACK_PRESSURED && position != Publication.ADMIN_ACTION) {
                throw new IllegalStateException("Aeron takes no message: " + Publication.errorString(position));
            }
            Thread.yield();
            position = publication.tryClaim(words * 8, claim);
        }
        MutableDirectBuffer buffer = claim.buffer();
        int at = claim.offset();
        buffer.putLong(at, first, ByteOrder.LITTLE_ENDIAN);
        for (int word = 1; word < words; word++) {
            buffer.putLong(at + 8 * word, first + word, ByteOrder.LITTLE_ENDIAN);
        }
        claim.commit();
    }

    @Override
    public void poll(Receiver receiver, int most) {
        receiving.to = receiver;
        image.poll(receiving, most);
    }

    /** What the receiving thread does with a message. */
    private final class Receiving implements FragmentHandler {
        private Receiver to;

        @Override
        public void onFragment(DirectBuffer buffer, int offset, int length, Header header) {
            long first = buffer.getLong(offset, ByteOrder.LITTLE_ENDIAN);
            long wrong = length ^ 8 * words;
            for (int word = 1; word < words; word++) {
                wrong |= buffer.getLong(offset + 8 * word, ByteOrder.LITTLE_ENDIAN) ^ first + word;
            }
            to.take(first, wrong == 0);
        }
    }

    @Override
    public void close() {
        CloseHelper.closeAll(publication, subscription, aeron, driver);
    }
}
