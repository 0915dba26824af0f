package shmcast.peers;

import java.util.Arrays;
import java.util.stream.Collectors;
import net.openhft.chronicle.bytes.SyncMode;
import net.openhft.chronicle.queue.ChronicleQueue;
import io.aeron.archive.Archive;

/** The recorders that can be measured, with what each promises after a power cut. */
enum Peer {
    AERON0(
            "aeron0",
            Archive.class,
            "nothing: the kernel writes when it will, and without a checksum a message that was cut is not always found",
            (directory, payloads) -> new AeronRecording(directory, payloads, 0, false)),
    AERON0_CRC(
            "aeron0-crc",
            Archive.class,
            "nothing: the kernel writes when it will; a CRC-32C tells a message that was cut",
            (directory, payloads) -> new AeronRecording(directory, payloads, 0, true)),
    AERON1(
            "aeron1",
            Archive.class,
            "all up to the recorded position, which moves after fdatasync of each block of at most 1 MiB; no checksum",
            (directory, payloads) -> new AeronRecording(directory, payloads, 1, false)),
    CHRONICLE(
            "chronicle",
            ChronicleQueue.class,
            "nothing: the kernel writes when it will; no checksum",
            (directory, payloads) -> new ChronicleRecording(directory, payloads, SyncMode.NONE)),
    CHRONICLE_SYNC(
            "chronicle-sync",
            ChronicleQueue.class,
            "not documented: msync of what the last sync() saw, here each 10 ms; no checksum",
            (directory, payloads) -> new ChronicleRecording(directory, payloads, SyncMode.SYNC)),
    PLAIN(
            "plain",
            null,
            "each message when its publishing returns, after write and fdatasync; no checksum",
            PlainRecording::new);

    /** As on the command line. */
    final String title;
    final String promise;
    final Recording.Opener opener;
    private final Class<?> product;

    Peer(String title, Class<?> product, String promise, Recording.Opener opener) {
        this.title = title;
        this.product = product;
        this.promise = promise;
        this.opener = opener;
    }

    /** Of the product, or of Java where the peer needs nothing else. */
    String version() {
        if (product == null) {
            return "Java " + Runtime.version();
        }
        // Not each product says it in its manifest, but Maven names each jar by it.
        String jar = product.getProtectionDomain().getCodeSource().getLocation().getPath();
        return jar.replaceFirst(".*/.*?-([0-9].*)\\.jar", "$1");
    }

    static Peer named(String title) {
        return Arrays.stream(values()).filter(peer -> peer.title.equals(title)).findFirst().orElse(null);
    }

    static String names() {
        return Arrays.stream(values()).map(peer -> peer.title).collect(Collectors.joining(", "));
    }
}
