package shmcast;

import java.util.Arrays;

/** A key of a board, with its newest message. */
public final class BoardEntry {
    byte[] bytes;
    int keyAt;
    int keyBytes;
    Message message;
    long sequence;
    long count;

    BoardEntry() {}

    /** {@return the bytes of the key. The call allocates} */
    public byte[] key() {
        return Arrays.copyOfRange(bytes, keyAt, keyAt + keyBytes);
    }

    /** {@return the newest message of the key, or null if the board does not have the message, for example because it is too large} */
    public Message message() {
        return message;
    }

    /** {@return the sequence of the newest message} */
    public long sequence() {
        return sequence;
    }

    /**
     * {@return the number of messages of the key since the key came to the board, removals included. The count begins again if the board
     * gave the slot of the removed key to another key}
     */
    public long count() {
        return count;
    }
}
