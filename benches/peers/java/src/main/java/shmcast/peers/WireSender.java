package shmcast.peers;

import io.aeron.ExclusivePublication;
import io.aeron.Publication;
import io.aeron.logbuffer.BufferClaim;
import java.util.Arrays;
import java.util.Locale;
import java.util.concurrent.TimeUnit;

/** The publisher's role. It keeps to the rig's grid of times. */
final class WireSender implements AutoCloseable {
    private static final long CONNECT_NANOS = TimeUnit.SECONDS.toNanos(20);
    /** Java compiles a program while it runs. Messages with the number 0 are before those of the round. */
    private static final long WARM_UP_NANOS = TimeUnit.MILLISECONDS.toNanos(2_500);
    private static final long WARM_UP_INTERVAL_NANOS = 20_000;
    /** The driver works between two messages, but not in the last part of the time. */
    private static final long STILL_NANOS = 10_000;
    /** Back to back the driver works after so many messages, and not after each. */
    private static final int MESSAGES_PER_TURN = 32;

    private final Task task;
    private final WireEnd end;
    private final ExclusivePublication publication;
    private final Messages messages;
    private final BufferClaim claim = new BufferClaim();
    private long retries;

    WireSender(Task task) {
        this.task = task;
        messages = new Messages(task.size());
        Cpu.bind(task.publisherCpu());
        end = new WireEnd(task, task.publisherCpu());
        publication = end.aeron.addExclusivePublication(end.channel, WireEnd.STREAM);
    }

    /** Sends all messages, writes the files of times, and returns the report. */
    String run() throws Exception {
        connect();
        warmUp();
        int counted = task.messages();
        int[] lateness = new int[task.isPaced() ? counted : 0];
        int[] cost = new int[lateness.length];
        long[] before = Wire.cpuNanos();
        retries = 0;
        long first = 0;
        if (task.isPaced()) {
            long intended = System.nanoTime() + 2_000_000;
            for (long sequence = 1; sequence <= task.total(); sequence++, intended += task.intervalNanos()) {
                waitUntil(intended);
                long sent = System.nanoTime();
                send(sequence, sent);
                int place = (int) (sequence - task.warmup() - 1);
                if (place == 0) {
                    first = sent;
                }
                if (place >= 0) {
                    cost[place] = Wire.word(System.nanoTime() - sent);
                    lateness[place] = Wire.word(sent - intended);
                }
            }
        } else {
            for (long sequence = 1; sequence <= task.total(); sequence++) {
                if (sequence == task.warmup() + 1) {
                    first = System.nanoTime();
                }
                send(sequence, 0);
            }
        }
        long last = System.nanoTime();
        Wire.write(task.directory().resolve("lateness"), lateness);
        Wire.write(task.directory().resolve("cost"), cost);
        return String.format(
                Locale.ROOT,
                "{\"messages\":%d,\"span\":[%d,%d],\"clock_ns\":%d,\"retries\":%d,\"hiccups\":{\"longest\":[],\"count\":0,\"total_ns\":0},"
                        + "\"usage\":%s,\"notes\":[\"Aeron's driver at the sender: %s\"]}",
                counted, Wire.ticks(first), Wire.ticks(last), clockNanos(), retries, Wire.usage(before, Wire.cpuNanos(), last - first), end.counts());
    }

    /** Lets the driver work. */
    void serve() {
        if (end.isInvoked()) {
            end.driveAll();
        } else {
            Thread.onSpinWait();
            Thread.yield();
        }
    }

    private void connect() {
        long until = System.nanoTime() + CONNECT_NANOS;
        while (!publication.isConnected()) {
            if (System.nanoTime() > until) {
                throw new IllegalStateException("Aeron did not connect within 20 s");
            }
            end.driveAll();
        }
    }

    private void warmUp() {
        long until = System.nanoTime() + WARM_UP_NANOS;
        long intended = System.nanoTime();
        while (intended < until) {
            if (task.isPaced()) {
                intended += WARM_UP_INTERVAL_NANOS;
                waitUntil(intended);
                send(0, System.nanoTime());
            } else {
                send(0, 0);
                intended = System.nanoTime();
            }
        }
        if (end.isInvoked()) {
            end.driveAll();
        }
    }

    private void waitUntil(long intended) {
        long ahead;
        while ((ahead = intended - System.nanoTime()) > 0) {
            if (ahead > STILL_NANOS) {
                end.turn();
            }
        }
    }

    private void send(long sequence, long sent) {
        while (publication.tryClaim(messages.size(), claim) < 0) {
            if (publication.isClosed() || !publication.isConnected()) {
                throw new IllegalStateException("Aeron takes no message: it is not connected any more");
            }
            retries++;
            end.driveAll();
        }
        messages.write(claim.buffer(), claim.offset(), sequence, sent);
        claim.commit();
        if (task.isPaced() || end.isInvoked() && sequence % MESSAGES_PER_TURN == 0) {
            end.drive();
        }
    }

    private static long clockNanos() {
        long[] costs = new long[1001];
        for (int at = 0; at < costs.length; at++) {
            long before = System.nanoTime();
            costs[at] = System.nanoTime() - before;
        }
        Arrays.sort(costs);
        return costs[500];
    }

    @Override
    public void close() {
        end.close();
    }
}
