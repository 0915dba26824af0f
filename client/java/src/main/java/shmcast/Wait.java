package shmcast;

import java.util.concurrent.locks.LockSupport;

/** How {@link Subscriber#recv} waits between two looks that found nothing. */
public enum Wait {
    /** Never pauses: lowest latency, and a core at 100 %. */
    SPIN {
        @Override
        void pause() {
            Thread.onSpinWait();
        }
    },
    /**
     * As {@link #SPIN}, for the highest rate. A reader that comes close to the publisher in a burst lets it get ahead for 8 us, also in {@link
     * Subscriber#poll}. A message that follows 32 others within 8 us may come later by that pause. At lower rates it is the same as {@code SPIN}.
     */
    BURST {
        @Override
        void pause() {
            SPIN.pause();
        }
    },
    /** Gives the core away after each look. */
    YIELD {
        @Override
        void pause() {
            Thread.yield();
        }
    },
    /** Sleeps some 50 to 100 us between looks. */
    SLEEP {
        @Override
        void pause() {
            LockSupport.parkNanos(50_000);
        }
    },
    /** Sleeps until the daemon rings: some microseconds late, at no cost meanwhile. Only for a daemon's channel. */
    PARK {
        @Override
        void pause() {
            LockSupport.parkNanos(1_000_000);
        }
    };

    abstract void pause();
}
