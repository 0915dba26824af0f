package shmcast;

import java.util.concurrent.locks.LockSupport;

/** The way in which {@link Subscriber#recv} waits between two polls that found nothing. */
public enum Wait {
    /** Never pauses. This gives the lowest latency, and uses a whole core. */
    SPIN {
        @Override
        void pause() {
            Thread.onSpinWait();
        }
    },
    /**
     * Polls like {@link #SPIN}, for the highest rate. A reader that comes close to the publisher in a burst lets it get ahead for 8 us,
     * also in {@link Subscriber#poll}. So a message that follows 32 others within 8 us can come later by this pause. At lower rates it is
     * the same as {@code SPIN}.
     */
    BURST {
        @Override
        void pause() {
            SPIN.pause();
        }
    },
    /** Yields the core after each poll. */
    YIELD {
        @Override
        void pause() {
            Thread.yield();
        }
    },
    /** Sleeps about 50 to 100 us between polls. */
    SLEEP {
        @Override
        void pause() {
            LockSupport.parkNanos(50_000);
        }
    },
    /**
     * Sleeps until the daemon wakes the reader. A message comes some microseconds later, and the sleep costs no CPU time. Only for a
     * daemon's channel.
     */
    PARK {
        @Override
        void pause() {
            LockSupport.parkNanos(1_000_000);
        }
    };

    abstract void pause();
}
