package shmcast;

/**
 * The counters of a board. The board's publisher wrote all of them.
 *
 * @param through the board includes all messages up to this sequence
 * @param since the board has the newest message of each key that had a message from this sequence on
 * @param keys the present number of keys on the board
 * @param noRoom messages that were left out because there was no room for their key
 * @param tooLarge messages that were left out because they were too large
 * @param noKey messages that were left out because they were too short to have a key
 */
public record BoardCounters(long through, long since, long keys, long noRoom, long tooLarge, long noKey) {}
