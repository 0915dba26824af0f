package shmcast.peers;

import org.agrona.DirectBuffer;

/** Compares the messages that a peer's reader brings with those that were published. */
final class Check {
    private final Payloads payloads;
    private long next;
    private long verified;
    private long firstWrong = -1;

    Check(Payloads payloads) {
        this.payloads = payloads;
    }

    /** Takes the next message. It has to be the next that was published. */
    void take(DirectBuffer message, int offset, int length) {
        if (payloads.is(next, message, offset, length)) {
            verified++;
        } else if (firstWrong < 0) {
            firstWrong = next;
        }
        next++;
    }

    /** Number of messages that were read. */
    long read() {
        return next;
    }

    /** Number of them that were right and in their place. */
    long verified() {
        return verified;
    }

    /** The difference from so many published messages, in words; null if there is none. */
    String complaint(long published) {
        if (firstWrong >= 0) {
            return (next - verified) + " of " + next + " messages are not as published; the first is message " + firstWrong;
        }
        return next == published ? null : published + " messages were published and " + next + " could be read";
    }
}
