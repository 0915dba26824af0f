package shmcast.peers;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import org.agrona.BufferUtil;
import org.agrona.concurrent.UnsafeBuffer;

/** The naive bar: a write and an fdatasync for each message. Messages stand one behind the other, with nothing between. */
final class PlainRecording implements Recording {
    private final int size;
    private final ByteBuffer bytes;
    private final FileChannel file;

    PlainRecording(Path directory, Payloads payloads) throws IOException {
        size = payloads.size;
        bytes = payloads.bytes.duplicate();
        file = FileChannel.open(
                directory.resolve("messages"),
                StandardOpenOption.CREATE_NEW,
                StandardOpenOption.READ,
                StandardOpenOption.WRITE);
    }

    @Override
    public void publish(int offset) throws IOException {
        bytes.limit(offset + size).position(offset);
        while (bytes.hasRemaining()) {
            file.write(bytes);
        }
        file.force(false);
    }

    @Override
    public void finish() {}

    @Override
    public void read(Check check) throws IOException {
        int batch = Math.max(1, (1 << 20) / size) * size;
        ByteBuffer page = BufferUtil.allocateDirectAligned(batch, 64);
        UnsafeBuffer buffer = new UnsafeBuffer(page);
        file.position(0);
        int read = 0;
        while (read >= 0) {
            page.clear();
            while (page.hasRemaining() && read >= 0) {
                read = file.read(page);
            }
            for (int at = 0; at < page.position(); at += size) {
                check.take(buffer, at, Math.min(size, page.position() - at));
            }
        }
    }

    @Override
    public void close() throws IOException {
        file.close();
    }
}
