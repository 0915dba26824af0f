package shmcast;

import java.io.IOException;

/** An error other than a loss of messages. Its {@link #code()} is the kind of the error, and its message says what to do next. */
public sealed class ShmcastException extends IOException permits FullException {
    private static final long serialVersionUID = 1;

    /** The kinds of errors. */
    public enum Code {
        /** No channel can have this name. */
        NAME,
        /** The channel does not exist. */
        NO_CHANNEL,
        /** The directory of channels belongs to another user. */
        FOREIGN_DIRECTORY,
        /** The file is shorter than its header says. */
        TRUNCATED,
        /** The file is not a segment, or its publisher has not finished making it. */
        FOREIGN,
        /** The segment has another major version. */
        VERSION,
        /** The header's checksum is wrong. */
        CHECKSUM,
        /** A field of the header is out of range. */
        FIELD,
        /** The sizes in the header do not fit together. */
        GEOMETRY,
        /** Another program wrote to the channel's memory, or shortened its file. */
        CORRUPT,
        /** The channel was removed or replaced. Open it again. */
        SUPERSEDED,
        /** The message with this sequence was overwritten. */
        TOO_OLD,
        /** The message with this sequence is not published yet. */
        NOT_YET,
        /** No daemon answers at the socket, or the answer is not valid. */
        NO_DAEMON,
        /** The daemon does not allow this user to use the channel. */
        DENIED,
        /** This user has opened too much, or sends requests too often. */
        LIMIT,
        /** The daemon refused for another reason. */
        REFUSED,
        /** The channel already has a living publisher, or the gate already has a reader. */
        IN_USE,
        /** The message is larger than the channel's largest message. Nothing was published. */
        TOO_LARGE,
        /** The daemon gave the channel to another publisher. Nothing was published. */
        CUT_OFF,
        /** The reader of a gate is too far behind. Nothing was published. The exception is a {@link FullException}. */
        FULL,
        /** The channel has no board, or continues without a board. */
        NO_BOARD,
        /** The board and the ring could not be joined: the publisher is too fast or does not update the board, or the board is damaged. */
        BOARD,
        /** The channel has no such gate. */
        UNKNOWN_GATE,
        /** The gate's name or limits are not possible, or its page is damaged, or was removed or moved while a reader held it. */
        GATE,
        /** This version of Java is too old, or the options cannot be used together. */
        UNSUPPORTED,
        /** Another error of the C library, which the message explains. */
        OTHER
    }

    private final Code code;
    private String refusal;
    private boolean isPassing;

    ShmcastException(Code code, String message) {
        super(message);
        this.code = code;
    }

    ShmcastException(Code code, String message, Throwable cause) {
        super(message, cause);
        this.code = code;
    }

    /** Returns the exception of a daemon's refusal. {@code refusal} is the daemon's code. */
    static ShmcastException refused(Code code, String refusal, String message) {
        ShmcastException refused = new ShmcastException(code, message);
        refused.refusal = refusal;
        return refused;
    }

    /** Returns the exception for a daemon that does not run, has just ended, or does not answer. */
    static ShmcastException absent(String message) {
        ShmcastException absent = new ShmcastException(Code.NO_DAEMON, message);
        absent.isPassing = true;
        return absent;
    }

    /** Whether a program that waits for a channel waits after this error, too. */
    boolean isPassing() {
        return isPassing || code == Code.LIMIT;
    }

    /** Returns the code of a daemon's refusal, or null if no daemon refused. */
    String refusal() {
        return refusal;
    }

    /** {@return the kind of the error} */
    public Code code() {
        return code;
    }
}
