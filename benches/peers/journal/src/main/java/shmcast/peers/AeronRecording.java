package shmcast.peers;

import io.aeron.Aeron;
import io.aeron.CommonContext;
import io.aeron.ExclusivePublication;
import io.aeron.Image;
import io.aeron.Publication;
import io.aeron.Subscription;
import io.aeron.archive.Archive;
import io.aeron.archive.ArchiveThreadingMode;
import io.aeron.archive.ArchivingMediaDriver;
import io.aeron.archive.checksum.Checksums;
import io.aeron.archive.client.AeronArchive;
import io.aeron.archive.codecs.SourceLocation;
import io.aeron.archive.status.RecordingPos;
import io.aeron.driver.MediaDriver;
import io.aeron.driver.ThreadingMode;
import io.aeron.logbuffer.FragmentHandler;
import java.nio.file.Path;
import java.util.function.LongSupplier;
import org.agrona.CloseHelper;
import org.agrona.concurrent.status.CountersReader;

/** Aeron Archive that records an IPC publication, all of it in this process. README.md has the settings' reasons. */
final class AeronRecording implements Recording {
    private static final String CHANNEL = "aeron:ipc";
    private static final int STREAM = 1001;
    private static final int REPLAY_STREAM = 1002;
    private static final int TERM = 4 << 20;
    private static final int SEGMENT = 1 << 30;
    private static final int BLOCK = 1 << 20;
    private static final int MTU = 8 << 10;
    private static final int FRAGMENTS = 256;
    /** A recording that does not move for so long has failed. */
    private static final long PATIENCE_NANOS = 60_000_000_000L;

    private final Payloads payloads;
    private final ArchivingMediaDriver driver;
    private final AeronArchive archive;
    private final ExclusivePublication publication;
    private final CountersReader counters;
    private final int counter;
    private final long recording;
    private volatile Throwable failure;

    AeronRecording(Path directory, Payloads payloads, int level, boolean checksums) {
        this.payloads = payloads;
        Path rings = Path.of(CommonContext.generateRandomDirName());
        Runtime.getRuntime().addShutdownHook(new Thread(() -> Disk.remove(rings)));
        driver = ArchivingMediaDriver.launch(driver(rings), archive(directory, level, checksums));
        archive = AeronArchive.connect(new AeronArchive.Context()
                .aeronDirectoryName(driver.mediaDriver().aeronDirectoryName())
                .controlRequestChannel(driver.archive().context().localControlChannel())
                .controlRequestStreamId(driver.archive().context().localControlStreamId())
                .controlResponseChannel(CHANNEL));
        Aeron aeron = archive.context().aeron();
        archive.startRecording(CHANNEL, STREAM, SourceLocation.LOCAL);
        publication = aeron.addExclusivePublication(CHANNEL, STREAM);
        counters = aeron.countersReader();
        await("the recording to start", 1, () -> counterOfSession() == CountersReader.NULL_COUNTER_ID ? 0 : 1);
        counter = counterOfSession();
        recording = RecordingPos.getRecordingId(counters, counter);
    }

    private MediaDriver.Context driver(Path rings) {
        return new MediaDriver.Context()
                .aeronDirectoryName(rings.toString())
                .dirDeleteOnShutdown(true)
                .threadingMode(ThreadingMode.SHARED)
                .termBufferSparseFile(false)
                .ipcTermBufferLength(TERM)
                .ipcMtuLength(MTU)
                .errorHandler(this::fail);
    }

    private Archive.Context archive(Path directory, int level, boolean checksums) {
        return new Archive.Context()
                .archiveDir(directory.toFile())
                .threadingMode(ArchiveThreadingMode.DEDICATED)
                .controlChannelEnabled(false)
                .archiveClientContext(new AeronArchive.Context().controlResponseChannel(CHANNEL))
                .replicationChannel("aeron:udp?endpoint=localhost:0")
                .recordingEventsEnabled(false)
                .fileIoMaxLength(BLOCK)
                .segmentFileLength(SEGMENT)
                .fileSyncLevel(level)
                .catalogFileSyncLevel(level)
                .recordChecksum(checksums ? Checksums.crc32c() : null)
                .replayChecksum(checksums ? Checksums.crc32c() : null)
                .errorHandler(this::fail);
    }

    private int counterOfSession() {
        return RecordingPos.findCounterIdBySession(counters, publication.sessionId(), archive.archiveId());
    }

    private void fail(Throwable problem) {
        problem.printStackTrace();
        failure = problem;
    }

    /** Waits until `reached` has this value. */
    private void await(String goal, long value, LongSupplier reached) {
        long moved = System.nanoTime();
        long last = reached.getAsLong();
        while (last < value) {
            Thread.yield();
            long now = reached.getAsLong();
            if (now != last) {
                moved = System.nanoTime();
                last = now;
            }
            check(goal, moved);
        }
    }

    private void check(String goal, long moved) {
        if (failure != null) {
            throw new IllegalStateException("Aeron failed while this program waited for " + goal, failure);
        }
        if (System.nanoTime() - moved > PATIENCE_NANOS) {
            throw new IllegalStateException("nothing moved for 60 s while this program waited for " + goal);
        }
    }

    @Override
    public void publish(int offset) {
        long position = publication.offer(payloads.buffer, offset, payloads.size);
        if (position < 0) {
            offerAgain(offset);
        }
    }

    private void offerAgain(int offset) {
        long since = System.nanoTime();
        long position = Publication.BACK_PRESSURED;
        while (position < 0) {
            if (position != Publication.BACK_PRESSURED && position != Publication.ADMIN_ACTION) {
                throw new IllegalStateException("Aeron takes no message: " + Publication.errorString(position));
            }
            check("the recorder to take a message", since);
            Thread.yield();
            position = publication.offer(payloads.buffer, offset, payloads.size);
        }
    }

    @Override
    public void finish() {
        await("the recorder to have all", publication.position(), () -> {
            if (!RecordingPos.isActive(counters, counter, recording)) {
                throw new IllegalStateException("Aeron ended the recording at " + counters.getCounterValue(counter));
            }
            return counters.getCounterValue(counter);
        });
    }

    @Override
    public void read(Check check) {
        FragmentHandler handler = (buffer, offset, length, header) -> check.take(buffer, offset, length);
        long end = publication.position();
        if (end == 0) {
            return;
        }
        try (Subscription subscription = archive.replay(recording, 0, end, CHANNEL, REPLAY_STREAM)) {
            await("the replay to start", 1, subscription::imageCount);
            Image image = subscription.imageAtIndex(0);
            await("the replay to go on", end, () -> {
                while (image.poll(handler, FRAGMENTS) > 0) {}
                // A replay that ended early has nothing more to say, and what is missing is counted.
                return image.isClosed() ? end : image.position();
            });
        }
    }

    @Override
    public void close() {
        CloseHelper.closeAll(publication, archive, driver);
    }
}
