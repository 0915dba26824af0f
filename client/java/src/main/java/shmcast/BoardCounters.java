package shmcast;

/**
 * What a board tells of itself. All of it is what its publisher wrote.
 *
 * @param through the sequence up to which each message is on the board
 * @param since the board has the newest message of each key that had one from this sequence on
 * @param keys the number of keys on the board now
 * @param noRoom messages that were left out because their key found no room
 * @param tooLarge messages that were larger than a value
 * @param noKey messages that were too short to have a key
 */
public record BoardCounters(long through, long since, long keys, long noRoom, long tooLarge, long noKey) {}
