package shmcast;

import java.io.IOException;

/** An error that is no loss of messages. Its {@link #code()} says which, and its message what to do next. */
public sealed class ShmcastException extends IOException permits FullException {
    private static final long serialVersionUID = 1;

    /** The kinds of errors. */
    public enum Code {
        /** No channel can have this name. */
        NAME,
        /** No such channel. */
        NO_CHANNEL,
        /** The directory of channels belongs to another user. */
        FOREIGN_DIRECTORY,
        /** The file is shorter than its header says. */
        TRUNCATED,
        /** The file is no segment, or its publisher has not finished it. */
        FOREIGN,
        /** The segment is of another major version. */
        VERSION,
        /** The header's checksum is wrong. */
        CHECKSUM,
        /** A field of the header is out of range. */
        FIELD,
        /** The sizes in the header do not fit each other. */
        GEOMETRY,
        /** Another program wrote to the channel's memory, or shortened its file. */
        CORRUPT,
        /** The channel was removed or begun anew: open it again. */
        SUPERSEDED,
        /** The sequence is overwritten. */
        TOO_OLD,
        /** The sequence is not published yet. */
        NOT_YET,
        /** No daemon answers at the socket, or its answer makes no sense. */
        NO_DAEMON,
        /** The daemon does not let this user in. */
        DENIED,
        /** This user has too much open, or asks too often. */
        LIMIT,
        /** The daemon refused for another reason. */
        REFUSED,
        /** The channel has a publisher that lives, or the gate a reader. */
        IN_USE,
        /** The message exceeds the channel's largest; nothing was published. */
        TOO_LARGE,
        /** The daemon gave the channel to another publisher; nothing was published. */
        CUT_OFF,
        /** The reader of a gate is too far behind; nothing was published. The exception is a {@link FullException}. */
        FULL,
        /** The channel has no board, or goes on without one. */
        NO_BOARD,
        /** The board and the ring could not be joined: the publisher is too fast, keeps no board, or the board is damaged. */
        BOARD,
        /** The channel has no such gate. */
        UNKNOWN_GATE,
        /** No gate can be so, or its page is damaged. */
        GATE,
        /** This Java is too old for it, or the options do not go together. */
        UNSUPPORTED,
        /** Another error of the C library, which the message explains. */
        OTHER
    }

    private final Code code;

    ShmcastException(Code code, String message) {
        super(message);
        this.code = code;
    }

    ShmcastException(Code code, String message, Throwable cause) {
        super(message, cause);
        this.code = code;
    }

    /** {@return what is wrong} */
    public Code code() {
        return code;
    }
}
