package shmcast.peers;

/** Takes the first word of each message, and whether the rest of it is right. */
interface Receiver {
    void take(long first, boolean isRight);
}
