package shmcast.peers;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Stream;
import org.agrona.concurrent.UnsafeBuffer;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** That the check finds what is wrong, with each peer's files on the disk. */
final class PeersTest {
    private static final int MESSAGES = 1000;
    private static final int DAMAGED = 500;
    private static final int SIZE = 77;

    @TempDir
    Path directory;

    private final Payloads payloads = new Payloads(SIZE);
    private final Check check = new Check(payloads);

    private byte[] message(long sequence) {
        byte[] message = new byte[SIZE];
        payloads.buffer.getBytes(payloads.make(sequence), message);
        return message;
    }

    @Test
    void everyByteOfAMessageIsCompared() {
        byte[] message = message(7);
        assertTrue(payloads.is(7, new UnsafeBuffer(message), 0, SIZE));
        assertFalse(payloads.is(8, new UnsafeBuffer(message), 0, SIZE));
        assertFalse(payloads.is(7, new UnsafeBuffer(message), 0, SIZE - 1));
        for (int at = 0; at < SIZE; at++) {
            message[at] ^= 1;
            assertFalse(payloads.is(7, new UnsafeBuffer(message), 0, SIZE), "byte " + at);
            message[at] ^= 1;
        }
    }

    @Test
    void missingDoubleAndSurplusMessagesAreFound() {
        for (long sequence : List.of(0L, 1L, 1L, 3L)) {
            check.take(new UnsafeBuffer(message(sequence)), 0, SIZE);
        }
        assertEquals(4, check.read());
        assertEquals(3, check.verified());
        assertTrue(check.complaint(4).endsWith("the first is message 2"), check.complaint(4));
        assertEquals("1 messages were published and 0 could be read", new Check(payloads).complaint(1));
        assertNull(new Check(payloads).complaint(0));
    }

    @ParameterizedTest
    @EnumSource
    void readsBackWhatItRecorded(Peer peer) throws Exception {
        try (Recording recording = record(peer)) {
            recording.read(check);
        }
        assertNull(check.complaint(MESSAGES));
        assertEquals(MESSAGES, check.verified());
        assertTrue(Disk.used(directory) > MESSAGES * SIZE);
        assertTrue(peer.version().matches("(Java )?[0-9].*"), peer.version());
    }

    /** One byte is another in the file: it comes back wrong, or the peer's own checksum refuses it. */
    @ParameterizedTest
    @EnumSource
    void aChangedByteIsFound(Peer peer) throws Exception {
        try (Recording recording = record(peer)) {
            damage(message(DAMAGED));
            if (peer == Peer.AERON0_CRC) {
                assertThrows(IllegalStateException.class, () -> recording.read(check));
                return;
            }
            recording.read(check);
        }
        assertEquals(MESSAGES - 1, check.verified());
        assertTrue(check.complaint(MESSAGES).endsWith("the first is message " + DAMAGED), check.complaint(MESSAGES));
    }

    private Recording record(Peer peer) throws Exception {
        Recording recording = peer.opener.open(directory, payloads);
        for (long sequence = 0; sequence < MESSAGES; sequence++) {
            recording.publish(payloads.make(sequence));
        }
        recording.finish();
        return recording;
    }

    /** Changes the last byte of this message in the file that has it. */
    private void damage(byte[] message) throws IOException {
        try (Stream<Path> paths = Files.walk(directory)) {
            for (Path path : paths.filter(Files::isRegularFile).toList()) {
                byte[] start = new byte[1 << 20];
                try (FileChannel file = FileChannel.open(path, StandardOpenOption.READ, StandardOpenOption.WRITE)) {
                    file.read(ByteBuffer.wrap(start), 0);
                    for (int at = 0; at + SIZE <= start.length; at++) {
                        if (Arrays.equals(start, at, at + SIZE, message, 0, SIZE)) {
                            byte last = (byte) (message[SIZE - 1] ^ 1);
                            file.write(ByteBuffer.wrap(new byte[] {last}), at + SIZE - 1);
                            return;
                        }
                    }
                }
            }
        }
        throw new IOException("no file has the message");
    }

    @Test
    void aWrongCommandLineIsRefusedWithItsReason() throws Options.Wrong {
        String dir = directory.toString();
        Options options = Options.parse(new String[] {"plain", "--size", "64", "--seconds", "0.5", "--dir", dir});
        assertEquals(new Options(Peer.PLAIN, 64, 0.5, directory.toAbsolutePath(), 0), options);
        refused("no peer is named");
        refused("'kafka' is no peer", "kafka");
        refused("--seconds is missing", "plain", "--size", "64", "--dir", dir);
        refused("--size takes at least 16", "plain", "--size", "8");
        refused("--size takes a whole number", "plain", "--size", "64.5", "--seconds", "1", "--dir", dir);
        refused("--rate takes more than 0", "plain", "--rate", "0");
        refused("--seconds takes more than 0", "plain", "--seconds", "NaN");
        refused("--rate takes a number", "plain", "--rate", "fast");
        refused("--dir /nowhere is no directory", "plain", "--dir", "/nowhere");
        refused("--rate has no value", "plain", "--rate");
        refused("'--fast' is no option", "plain", "--fast", "1");
    }

    private static void refused(String start, String... arguments) {
        String message = assertThrows(Options.Wrong.class, () -> Options.parse(arguments)).getMessage();
        assertNotNull(message);
        assertTrue(message.startsWith(start), message);
    }
}
