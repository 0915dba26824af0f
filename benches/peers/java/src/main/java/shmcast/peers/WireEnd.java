package shmcast.peers;

import io.aeron.Aeron;
import io.aeron.CommonContext;
import io.aeron.driver.MediaDriver;
import io.aeron.driver.ThreadingMode;
import io.aeron.driver.status.SystemCounterDescriptor;
import org.agrona.CloseHelper;
import org.agrona.concurrent.AgentInvoker;
import org.agrona.concurrent.IdleStrategy;
import org.agrona.concurrent.SleepingMillisIdleStrategy;

/** One end of Aeron over UDP: a driver in this process, and a client. README.md has the settings' reasons. */
final class WireEnd implements AutoCloseable {
    static final int STREAM = 1001;
    private static final String ADDRESS = "10.79.0.2:30004";
    private static final int BUFFER = 2 << 20;
    /** Turns of the driver from one turn of the client to the next. */
    private static final int TURNS_PER_CLIENT = 64;

    private final MediaDriver driver;
    final Aeron aeron;
    final String channel;
    /** The driver's work; null where it has a thread of its own. */
    private final AgentInvoker work;

    private int turns;

    WireEnd(Task task, int cpu) {
        int term = task.isPaced() ? 1 << 20 : 16 << 20;
        channel = "aeron:udp?endpoint=" + ADDRESS + (task.publishes() ? "|term-length=" + term : "");
        driver = MediaDriver.launch(new MediaDriver.Context()
                .aeronDirectoryName(CommonContext.generateRandomDirName())
                .dirDeleteOnShutdown(true)
                .termBufferSparseFile(false)
                .socketRcvbufLength(BUFFER)
                .socketSndbufLength(BUFFER)
                .initialWindowLength(BUFFER)
                .threadingMode(task.isInvoked() ? ThreadingMode.INVOKER : ThreadingMode.SHARED)
                .sharedIdleStrategy(new Yields())
                .sharedThreadFactory(body -> new Thread(() -> {
                    Cpu.bind(cpu);
                    body.run();
                })));
        work = task.isInvoked() ? driver.sharedAgentInvoker() : null;
        Aeron.Context client = new Aeron.Context().aeronDirectoryName(driver.aeronDirectoryName());
        aeron = Aeron.connect(
                task.isInvoked()
                        ? client.useConductorAgentInvoker(true).driverAgentInvoker(work)
                        : client.idleStrategy(new SleepingMillisIdleStrategy(100)));
    }

    /** Lets the driver work if it has no thread of its own, and the client each 64th time. */
    void turn() {
        if (work != null) {
            work.invoke();
            if (++turns % TURNS_PER_CLIENT == 0) {
                aeron.conductorAgentInvoker().invoke();
            }
        }
    }

    /** Lets the driver work, or gives the CPU to its thread. */
    void drive() {
        if (work == null) {
            Thread.yield();
        } else {
            work.invoke();
        }
    }

    /** Lets the driver and the client work. */
    void driveAll() {
        drive();
        if (work != null) {
            aeron.conductorAgentInvoker().invoke();
        }
    }

    boolean isInvoked() {
        return work != null;
    }

    /** The driver's counts of what was lost and of what stood still. */
    String counts() {
        StringBuilder text = new StringBuilder();
        for (SystemCounterDescriptor counter :
                new SystemCounterDescriptor[] {
                    SystemCounterDescriptor.RETRANSMITS_SENT,
                    SystemCounterDescriptor.NAK_MESSAGES_SENT,
                    SystemCounterDescriptor.NAK_MESSAGES_RECEIVED,
                    SystemCounterDescriptor.LOSS_GAP_FILLS,
                    SystemCounterDescriptor.SHORT_SENDS,
                    SystemCounterDescriptor.ERRORS,
                }) {
            long count = aeron.countersReader().getCounterValue(counter.id());
            text.append(text.isEmpty() ? "" : ", ").append(counter.label()).append(": ").append(count);
        }
        return text.toString().replace('"', '\'').replace('\\', '/');
    }

    @Override
    public void close() {
        CloseHelper.closeAll(aeron, driver);
    }

    /** Gives the CPU away in each idle turn, as the bridge's threads do in the same case. */
    private static final class Yields implements IdleStrategy {
        @Override
        public void idle(int workCount) {
            if (workCount == 0) {
                Thread.yield();
            }
        }

        @Override
        public void idle() {
            Thread.yield();
        }

        @Override
        public void reset() {}
    }
}
