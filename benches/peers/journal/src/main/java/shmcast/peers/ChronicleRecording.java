package shmcast.peers;

import java.nio.file.Path;
import net.openhft.chronicle.bytes.Bytes;
import net.openhft.chronicle.bytes.PointerBytesStore;
import net.openhft.chronicle.bytes.SyncMode;
import net.openhft.chronicle.queue.ChronicleQueue;
import net.openhft.chronicle.queue.ExcerptAppender;
import net.openhft.chronicle.queue.ExcerptTailer;
import net.openhft.chronicle.queue.impl.single.SingleChronicleQueueBuilder;
import net.openhft.chronicle.wire.DocumentContext;
import org.agrona.concurrent.UnsafeBuffer;

/** Chronicle Queue: the publisher writes into the mapped file itself. README.md has the settings' reasons. */
final class ChronicleRecording implements Recording {
    private static final long BLOCK = 4L << 30;
    private static final long SYNC_NANOS = 10_000_000;

    private final Payloads payloads;
    private final PointerBytesStore message = new PointerBytesStore();
    private final ChronicleQueue queue;
    private final ExcerptAppender appender;
    private final boolean syncs;
    private long synced = System.nanoTime();

    ChronicleRecording(Path directory, Payloads payloads, SyncMode mode) {
        this.payloads = payloads;
        queue = SingleChronicleQueueBuilder.binary(directory).blockSize(BLOCK).syncMode(mode).build();
        appender = queue.createAppender();
        syncs = mode != SyncMode.NONE;
    }

    @Override
    public void publish(int offset) {
        message.set(payloads.buffer.addressOffset() + offset, payloads.size);
        appender.writeBytes(message);
        if (syncs) {
            long now = System.nanoTime();
            if (now - synced >= SYNC_NANOS) {
                appender.sync();
                synced = now;
            }
        }
    }

    @Override
    public void finish() {
        if (syncs) {
            appender.sync();
        }
    }

    @Override
    public void read(Check check) {
        UnsafeBuffer document = new UnsafeBuffer(0, 0);
        try (ExcerptTailer tailer = queue.createTailer()) {
            boolean present = true;
            while (present) {
                try (DocumentContext context = tailer.readingDocument()) {
                    present = context.isPresent();
                    if (present) {
                        Bytes<?> bytes = context.wire().bytes();
                        document.wrap(bytes.addressForRead(bytes.readPosition()), (int) bytes.readRemaining());
                        check.take(document, 0, document.capacity());
                    }
                }
            }
        }
    }

    @Override
    public void close() {
        appender.close();
        queue.close();
    }
}
