package shmcast.peers;

import io.aeron.Image;
import io.aeron.Subscription;
import io.aeron.logbuffer.FragmentHandler;
import io.aeron.logbuffer.Header;
import java.util.Locale;
import org.agrona.DirectBuffer;

/** The receiver's role. Every message is stamped where it is handed over, and then checked. */
final class WireReceiver implements AutoCloseable, FragmentHandler {
    private static final int MOST = 256;

    private final Task task;
    private final WireEnd end;
    private final Subscription subscription;
    private final Messages messages;
    private final int[] ages;
    private long next = 1;
    private long delivered;
    private long duplicated;
    private long corrupt;
    private long first;
    private long last;

    WireReceiver(Task task) {
        this.task = task;
        messages = new Messages(task.size());
        ages = new int[task.isPaced() ? task.messages() : 0];
        Cpu.bind(task.receiverCpu());
        end = new WireEnd(task, task.receiverCpu());
        subscription = end.aeron.addSubscription(end.channel, WireEnd.STREAM);
    }

    /** Receives all messages, writes the file of times, and returns the report. */
    String run(Wire rig) throws Exception {
        while (subscription.imageCount() == 0 && !rig.isTold()) {
            end.driveAll();
        }
        long[] before = Wire.cpuNanos();
        if (!rig.isTold()) {
            take(subscription.imageAtIndex(0), rig);
        }
        if (last == 0) {
            last = System.nanoTime();
        }
        Wire.write(task.directory().resolve("one-way-0"), ages);
        return String.format(
                Locale.ROOT,
                "{\"delivered\":%d,\"lost\":%d,\"duplicated\":%d,\"out_of_order\":0,\"corrupt\":%d,\"reported_lost\":0,\"span\":[%d,%d],"
                        + "\"usage\":%s}",
                delivered, Math.max(0, task.messages() - delivered), duplicated, corrupt, Wire.ticks(first), Wire.ticks(last),
                Wire.usage(before, Wire.cpuNanos(), last - first));
    }

    private void take(Image image, Wire rig) {
        while (next <= task.total() && !rig.isTold()) {
            end.turn();
            if (image.poll(this, MOST) == 0 && !end.isInvoked()) {
                Thread.yield();
            }
        }
    }

    @Override
    public void onFragment(DirectBuffer buffer, int offset, int length, Header header) {
        long now = task.isPaced() ? System.nanoTime() : 0;
        if (!messages.isRight(buffer, offset, length)) {
            corrupt++;
            return;
        }
        long sequence = buffer.getLong(offset);
        if (sequence == 0) {
            return;
        }
        if (sequence < next) {
            duplicated++;
            return;
        }
        next = sequence + 1;
        long place = sequence - task.warmup() - 1;
        if (place < 0) {
            return;
        }
        delivered++;
        if (first == 0) {
            first = System.nanoTime();
        }
        if (place == task.messages() - 1) {
            last = System.nanoTime();
        }
        if (task.isPaced()) {
            ages[(int) place] = Math.max(1, Wire.word(now - buffer.getLong(offset + 8)));
        }
    }

    @Override
    public void close() {
        end.close();
    }
}
