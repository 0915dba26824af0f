package shmcast.peers;

import java.nio.file.Path;

/** One peer's recorder with one empty recording. Its files are in the directory that it was opened with. */
interface Recording extends AutoCloseable {
    /** Publishes the message at this place of the payloads, and waits as long as the peer makes its publisher wait. */
    void publish(int offset) throws Exception;

    /** Waits until the recording has all that was published. */
    void finish() throws Exception;

    /** Reads all that is there with the peer's own reader. */
    void read(Check check) throws Exception;

    @Override
    void close() throws Exception;

    /** Opens one in an empty directory, for messages that are in `payloads`. */
    interface Opener {
        Recording open(Path directory, Payloads payloads) throws Exception;
    }
}
