package shmcast;

/**
 * The properties of a board. The board has the last message of each key. The key is a range of bytes in each payload.
 *
 * @param start the index of the key's first byte in the payload
 * @param stop the index of the byte after the key
 * @param keys the largest number of keys; 0 for the default of 1024
 * @param value the size in bytes of the largest message on the board, key included; 0 for the default of 256
 * @param removeTag messages with this tag remove their key; -1 for no tag. A message that ends directly after its key always removes the
 *     key
 */
public record BoardSpec(int start, int stop, long keys, long value, int removeTag) {
    /** Checks the tag. */
    public BoardSpec {
        if (removeTag < -1 || removeTag > 0xffff) {
            throw new IllegalArgumentException("removeTag " + removeTag + ": give 0 to 65535, or -1 for no tag");
        }
    }

    /**
     * Makes the properties of a board with the default sizes.
     *
     * @param start the index of the key's first byte in the payload
     * @param stop the index of the byte after the key
     * @return the properties
     */
    public static BoardSpec of(int start, int stop) {
        return new BoardSpec(start, stop, 0, 0, -1);
    }

    /**
     * Changes the largest number of keys.
     *
     * @param keys the number of keys, up to 16,777,216. If there is no room for a key, it is not on the board, and
     *     {@link BoardCounters#noRoom} counts its messages
     * @return the changed copy
     */
    public BoardSpec withKeys(long keys) {
        return new BoardSpec(start, stop, keys, value, removeTag);
    }

    /**
     * Changes the size of the largest message.
     *
     * @param value the size in bytes of the largest message on the board, key included
     * @return the changed copy
     */
    public BoardSpec withValue(long value) {
        return new BoardSpec(start, stop, keys, value, removeTag);
    }

    /**
     * Sets the tag that removes keys.
     *
     * @param removeTag the tag, 0 to 65535
     * @return the changed copy
     */
    public BoardSpec withRemoveTag(int removeTag) {
        return new BoardSpec(start, stop, keys, value, removeTag);
    }
}
