package shmcast;

/**
 * What a board holds: the last message of each key, which is a range of bytes of each payload.
 *
 * @param start the key's first byte in the payload
 * @param stop the byte behind its last
 * @param keys for how many keys there is room; 0: 1024
 * @param value the largest message on the board, key included; 0: 256
 * @param removeTag messages with this tag remove their key; -1: none. A message that ends right behind its key removes it in any case
 */
public record BoardSpec(int start, int stop, long keys, long value, int removeTag) {
    /**
     * A board with the usual sizes.
     *
     * @param start the key's first byte in the payload
     * @param stop the byte behind its last
     * @return what it holds
     */
    public static BoardSpec of(int start, int stop) {
        return new BoardSpec(start, stop, 0, 0, -1);
    }

    /**
     * The same with room for so many keys.
     *
     * @param keys how many, up to 16,777,216. A key that finds no room is not on the board, which {@link BoardCounters#noRoom} counts
     * @return the other one
     */
    public BoardSpec withKeys(long keys) {
        return new BoardSpec(start, stop, keys, value, removeTag);
    }

    /**
     * The same for messages of this size.
     *
     * @param value bytes of the largest message on the board, key included
     * @return the other one
     */
    public BoardSpec withValue(long value) {
        return new BoardSpec(start, stop, keys, value, removeTag);
    }

    /**
     * The same with a tag that removes keys.
     *
     * @param removeTag the tag, 0 to 65535
     * @return the other one
     */
    public BoardSpec withRemoveTag(int removeTag) {
        return new BoardSpec(start, stop, keys, value, removeTag);
    }
}
