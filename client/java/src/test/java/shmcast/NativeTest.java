package shmcast;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import com.sun.management.ThreadMXBean;
import java.io.IOException;
import java.lang.ProcessBuilder.Redirect;
import java.lang.management.ManagementFactory;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import shmcast.ShmcastException.Code;

/** Tests of the parts for Java 22 and newer: channels of a real daemon, reader pages, deaths, and publishing. */
@Timeout(240)
class NativeTest {
    private static final boolean CAN = Runtime.version().feature() >= 22;

    private Publishers publishers;
    private Path socket;
    private Process daemon;

    @BeforeEach
    void begin() throws Exception {
        publishers = new Publishers();
        socket = publishers.directory.resolve("control.sock");
    }

    @AfterEach
    void end() throws Exception {
        if (daemon != null) {
            daemon.destroyForcibly().waitFor();
        }
        publishers.close();
    }

    private void startDaemon() throws IOException {
        startDaemon("c", Redirect.DISCARD);
    }

    private void startDaemon(String channel, Redirect log) throws IOException {
        Path config = publishers.directory.resolve("shmcast.toml");
        Files.writeString(
                config,
                "[daemon]\nsocket = \"" + socket + "\"\n\n[[channel]]\nname = \"" + channel + "\"\ncapacity = \"1 MiB\"\nmax_message = \"64 KiB\"\nmlock = false\nclock = \"monotonic\"\n");
        daemon =
                new ProcessBuilder(Publishers.command("shmcastd"), "--config", config.toString())
                        .redirectError(log)
                        .redirectOutput(Redirect.DISCARD)
                        .start();
    }

    /** If the command knows a directory, it first searches for channels in files. */
    private void onlyTheDaemon(ProcessBuilder builder) {
        builder.environment().remove("SHMCAST_DIR");
        builder.environment().put("SHMCAST_SOCKET", socket.toString());
    }

    /** An earlier mistake: tags were cut to 16 bits, so that another message removed a key. */
    @Test
    void tagsAndNamesThatCannotBeAreRefused() throws Exception {
        for (int tag : new int[] {-2, 1 << 16, 65_543}) {
            assertThrows(IllegalArgumentException.class, () -> BoardSpec.of(0, 1).withRemoveTag(tag));
        }
        assertEquals(65_535, BoardSpec.of(0, 1).withRemoveTag(65_535).removeTag());
        assumeTrue(CAN);
        Publisher.Builder zero = Publisher.of("c\0d").dir(publishers.directory);
        assertEquals(Code.NAME, assertThrows(ShmcastException.class, zero::open).code());
        try (Publisher p = Publisher.of("tags").dir(publishers.directory).capacity(1 << 16).open()) {
            for (int tag : new int[] {-1, 1 << 16, 70_000}) {
                assertThrows(IllegalArgumentException.class, () -> p.publish(new byte[1], 0, 1, tag, false));
                assertThrows(IllegalArgumentException.class, () -> p.tryPublish(new byte[1], 0, 1, tag, false));
            }
            assertEquals(1, p.publish(new byte[1], 0, 1, 65_535, false));
        }
    }

    /** Starts the command as a publisher of the daemon's channel. The command reads messages with their lengths. */
    private Process publisher() throws IOException {
        ProcessBuilder builder = new ProcessBuilder(Publishers.command("shmcast"), "pub", "c", "--framing", "u32le", "--set", "prepare=none");
        onlyTheDaemon(builder);
        return builder.redirectError(Redirect.DISCARD).redirectOutput(Redirect.DISCARD).start();
    }

    private String stat(String... place) throws Exception {
        List<String> words = new ArrayList<>(List.of(Publishers.command("shmcast"), "stat", "c", "--json"));
        words.addAll(List.of(place));
        ProcessBuilder builder = new ProcessBuilder(words).redirectError(Redirect.DISCARD);
        if (place.length == 0) {
            onlyTheDaemon(builder);
        }
        Process process = builder.start();
        return new String(process.getInputStream().readAllBytes());
    }

    private Subscriber subscribe(Wait wait) throws Exception {
        for (int attempt = 0; ; attempt++) {
            try {
                return Subscriber.of("c").daemon(socket).waiting(wait).watchPublisher().recordLatency().open();
            } catch (ShmcastException e) {
                if (e.code() != Code.NO_DAEMON || attempt > 400) {
                    throw e;
                }
                Thread.sleep(20);
            }
        }
    }

    private static void receive(Subscriber s, Counted counted, long messages) throws Exception {
        long until = System.nanoTime() + 60_000_000_000L;
        while (counted.received + counted.missed < messages) {
            s.recv(counted, Duration.ofMillis(500));
            assertTrue(System.nanoTime() < until, counted.received + " received, " + counted.missed + " missed of " + messages);
        }
        assertEquals(messages, counted.received + counted.missed);
        assertEquals(0, counted.wrong);
    }

    /** In an earlier version, a page was made even without space for it. The first store into this page was an error of the JVM. */
    @Test
    void aReaderOnAFullFileSystemHasNoPage() throws Exception {
        assumeTrue(CAN, "this Java has no pages");
        Path volume = Files.createTempDirectory("shmcast-java-");
        assumeTrue(run("mount", "-t", "tmpfs", "-o", "size=1m", "none", volume.toString()), "nothing can be mounted here");
        try {
            Process publisher = new ProcessBuilder(
                            Publishers.command("shmcast"),
                            "pub", "c", "--set", "prepare=none", "--capacity", "64KiB", "--dir", volume.toString())
                    .start();
            publisher.getOutputStream().write("one\ntwo\n".getBytes(StandardCharsets.US_ASCII));
            publisher.getOutputStream().close();
            assertEquals(0, publisher.waitFor());
            assertThrows(IOException.class, () -> Files.write(volume.resolve("rest"), new byte[1 << 20]));
            List<String> received = new ArrayList<>();
            Handler handler = message -> received.add(message.text());
            try (Subscriber s = Subscriber.of("c").dir(volume).start(Start.OLDEST).open()) {
                while (received.size() < 2) {
                    s.recv(handler, Duration.ofSeconds(30));
                }
            }
            assertEquals(List.of("one", "two"), received);
        } finally {
            run("umount", "--lazy", volume.toString());
            Files.deleteIfExists(volume);
        }
    }

    private static boolean run(String... words) throws Exception {
        try {
            return new ProcessBuilder(words).redirectError(Redirect.DISCARD).start().waitFor() == 0;
        } catch (IOException e) {
            return false;
        }
    }

    @Test
    void javaThatIsTooOldSaysSo() {
        assumeTrue(!CAN, "this Java can");
        for (Code code : List.of(
                assertThrows(ShmcastException.class, () -> Subscriber.of("c").daemon(socket).open()).code(),
                assertThrows(ShmcastException.class, () -> Publisher.of("c").dir(publishers.directory).open()).code())) {
            assertEquals(Code.UNSUPPORTED, code);
        }
    }

    /** A client must ignore unknown fields, whatever numbers they have. Java 17 does not have this class. */
    @Test
    void answersMayHaveNumbersOfAnyKind() throws Exception {
        assumeTrue(CAN, "this Java has no daemons' channels");
        Method parse = Class.forName("shmcast.Reply").getDeclaredMethod("parse", byte[].class, int[].class);
        String text = "{\"reply\":\"welcome\",\"offset\":-5,\"share\":-0.5,\"many\":1e300,\"all\":[-1],\"version\":18446744073709551615}";
        Object reply = parse.invoke(null, text.getBytes(StandardCharsets.UTF_8), new int[0]);
        Method number = reply.getClass().getDeclaredMethod("number", String.class);
        assertEquals(-1L, number.invoke(reply, "version"));
        assertEquals(0L, number.invoke(reply, "offset"));
    }

    /** Only an error that passes is waited for. */
    @Test
    void aReaderWaitsForADaemonThatIsNotThereYet() throws Exception {
        assumeTrue(CAN, "this Java has no descriptors");
        Subscriber.Builder late = Subscriber.of("c").daemon(socket).waitForChannel(Duration.ofSeconds(60));
        Path loop = publishers.directory.resolve("loop");
        Files.createSymbolicLink(loop, loop);
        Subscriber.Builder never = Subscriber.of("c").daemon(loop).waitForChannel(Duration.ofDays(1));
        assertEquals(Code.NO_DAEMON, assertThrows(ShmcastException.class, never::open).code());
        CompletableFuture<Subscriber> opened = new CompletableFuture<>();
        Thread opening = new Thread(() -> {
            try {
                opened.complete(late.open());
            } catch (IOException e) {
                opened.completeExceptionally(e);
            }
        });
        opening.start();
        opening.join(50);
        startDaemon();
        opened.get().close();
    }

    /**
     * A reader stays when its daemon dies, attaches to the next daemon, and gets the event of the publisher's death. This holds for each
     * way to wait.
     */
    @Test
    void daemonsAreKilledUnderReaders() throws Exception {
        assumeTrue(CAN, "this Java has no descriptors");
        assertEquals(Code.NO_DAEMON, assertThrows(ShmcastException.class, () -> Subscriber.of("c").daemon(socket).open()).code());
        startDaemon();
        long published = 0;
        try (Subscriber parked = subscribe(Wait.PARK);
                Subscriber yielding = subscribe(Wait.YIELD)) {
            assertEquals(Code.NO_CHANNEL, assertThrows(ShmcastException.class, () -> Subscriber.of("none").daemon(socket).open()).code());
            Counted one = new Counted();
            Counted two = new Counted();
            for (int life = 0; life < 4; life++) {
                Process process = publisher();
                long from = published + 1;
                Thread feeder = new Thread(() -> Publishers.feed(process, from, from + 199));
                feeder.start();
                feeder.join();
                published += 200;
                receive(parked, one, published);
                receive(yielding, two, published);
                daemon.destroyForcibly().waitFor();
                startDaemon();
                String listed = "";
                for (int attempt = 0; attempt < 400 && listed.split("\"pid\":" + ProcessHandle.current().pid(), -1).length < 3; attempt++) {
                    Thread.sleep(20);
                    listed = stat();
                }
                assertEquals(3, listed.split("\"pid\":" + ProcessHandle.current().pid(), -1).length, "both come back to the next daemon: " + listed);
                process.waitFor();
                for (int attempt = 0; attempt < 100 && !one.told.contains("end"); attempt++) {
                    parked.recv(one, Duration.ofMillis(100));
                }
                assertTrue(one.told.contains("end"), one.told.toString());
                one.told.clear();
            }
        }
    }

    /** A reader that the next daemon refuses tries again, and the daemon logs only the first refusal. */
    @Test
    void aRefusedReaderGoesOnAndIsLoggedOnce() throws Exception {
        assumeTrue(CAN, "this Java has no descriptors");
        startDaemon();
        try (Subscriber reader = subscribe(Wait.PARK)) {
            daemon.destroyForcibly().waitFor();
            Path log = publishers.directory.resolve("log");
            startDaemon("another", Redirect.to(log.toFile()));
            int refusals = 0;
            for (int attempt = 0; attempt < 1500 && refusals == 0; attempt++) {
                Thread.sleep(20);
                refusals = Files.readString(log).split("event=\"refused\"", -1).length - 1;
            }
            assertEquals(1, refusals, Files.readString(log));
            for (int attempt = 0; attempt < 150; attempt++) {
                Thread.sleep(20);
            }
            assertEquals(2, Files.readString(log).split("event=\"refused\"", -1).length, Files.readString(log));
            assertEquals(0, reader.lag());
        }
    }

    /** A publisher is killed, and readers of both kinds get this event once. */
    @Test
    void deathsAreTold() throws Exception {
        assumeTrue(CAN, "this Java cannot look at locks");
        startDaemon();
        publishers.publish(1, 1, "--capacity", "1MiB", "--set", "max_message=65536");
        List<Long> gone = new ArrayList<>();
        Handler handler = new Handler() {
            @Override
            public void message(Message message) {}

            @Override
            public void publisherGone(long epoch) {
                gone.add(epoch);
            }
        };
        try (Subscriber hosted = subscribe(Wait.YIELD);
                Subscriber file = Subscriber.of("c").dir(publishers.directory).watchPublisher().open()) {
            assertTrue(stat("--dir", publishers.directory.toString()).contains("\"pid\":" + ProcessHandle.current().pid()), "tools list this reader");
            for (Subscriber s : List.of(hosted, file)) {
                gone.clear();
                Process process = s == hosted ? publisher() : publishers.publisher();
                Counted counted = new Counted();
                Publishers.feed(process, 1, 0); // the publisher ends by itself
                process.waitFor();
                Process killed = s == hosted ? publisher() : publishers.publisher();
                killed.getOutputStream().write(new byte[] {0, 0, 0, 0});
                killed.getOutputStream().flush();
                long until = System.nanoTime() + 30_000_000_000L;
                while (counted.received == 0 && System.nanoTime() < until) {
                    s.recv(counted, Duration.ofMillis(100));
                }
                assertEquals(1, counted.received);
                killed.destroyForcibly().waitFor();
                while (gone.isEmpty() && System.nanoTime() < until) {
                    s.recv(handler, Duration.ofMillis(100));
                }
                s.recv(handler, Duration.ofMillis(100));
                assertEquals(1, gone.size(), gone.toString());
            }
        }
    }

    private static boolean hasLibrary() {
        String library = System.getenv("SHMCAST_LIBRARY");
        if (library != null) {
            System.setProperty("shmcast.native", library);
        }
        return CAN && library != null;
    }

    /**
     * Each attempt must give this error, both the first and the later ones. A separate class loader is used, because its classes have not
     * searched for the library yet.
     */
    @Test
    void publishersWithoutTheLibrarySayHowToGetIt() throws Exception {
        assumeTrue(CAN, "this Java cannot call it");
        List<URL> places = new ArrayList<>();
        for (String place : System.getProperty("java.class.path").split(":")) {
            places.add(Path.of(place).toUri().toURL());
        }
        String before = System.getProperty("shmcast.native");
        System.setProperty("shmcast.native", publishers.directory.resolve("none.so").toString());
        try (URLClassLoader loader = new URLClassLoader(places.toArray(URL[]::new), ClassLoader.getPlatformClassLoader())) {
            Class<?> type = loader.loadClass("shmcast.Publisher");
            assertFalse(type.equals(Publisher.class));
            for (int attempt = 0; attempt < 2; attempt++) {
                Object builder = type.getMethod("of", String.class).invoke(null, "p");
                builder.getClass().getMethod("dir", Path.class).invoke(builder, publishers.directory);
                Throwable why =
                        assertThrows(InvocationTargetException.class, () -> builder.getClass().getMethod("open").invoke(builder)).getCause();
                assertEquals("shmcast.ShmcastException", why.getClass().getName());
                assertEquals("OTHER", why.getClass().getMethod("code").invoke(why).toString());
                assertTrue(why.getMessage().contains("-Dshmcast.native"), why.getMessage());
                assertTrue(why.getCause() instanceof LinkageError, String.valueOf(why.getCause()));
            }
        } finally {
            if (before == null) {
                System.clearProperty("shmcast.native");
            } else {
                System.setProperty("shmcast.native", before);
            }
        }
    }

    @Test
    void publishedMessagesAreReceived() throws Exception {
        assumeTrue(hasLibrary(), "SHMCAST_LIBRARY names no libshmcast.so.0, or this Java cannot call it");
        try (Publisher p = Publisher.of("p").dir(publishers.directory).capacity(1 << 20).monotonic().open();
                Subscriber s = Subscriber.of("p").dir(publishers.directory).start(Start.OLDEST).recordLatency().open()) {
            assertEquals(Code.IN_USE, assertThrows(ShmcastException.class, () -> Publisher.of("p").dir(publishers.directory).open()).code());
            byte[] bytes = new byte[200_000];
            for (int i = 0; i < bytes.length; i++) {
                bytes[i] = (byte) (i * 7);
            }
            for (int length : new int[] {0, 1, 32, 1023, 1024, 1025, 65_536, (int) p.maxMessage()}) {
                for (int from : new int[] {0, 3}) {
                    long sequence = p.nextSequence();
                    assertEquals(sequence, p.publish(bytes, from, length, 60_000 + length % 7, length == 32));
                    assertEquals(1, s.poll(m -> {
                        byte[] copy = new byte[m.length()];
                        m.copyTo(copy, 0);
                        assertArrayEquals(java.util.Arrays.copyOfRange(bytes, from, from + length), copy);
                        assertEquals(60_000 + length % 7, m.tag());
                        assertEquals(length == 32, m.key());
                        assertEquals(sequence, m.sequence());
                        assertTrue(s.ageNanos(m.time()) >= 0);
                    }, 1));
                }
            }
            long next = p.nextSequence();
            int tooLong = (int) p.maxMessage() + 1;
            assertEquals(Code.TOO_LARGE, assertThrows(ShmcastException.class, () -> p.publish(bytes, 0, tooLong, 0, false)).code());
            assertThrows(IndexOutOfBoundsException.class, () -> p.publish(bytes, 199_999, 2, 0, false));
            assertEquals(next, p.nextSequence());
            assertEquals(1, p.epoch());
            assertFalse(p.isCutOff());
            p.close();
            assertThrows(IllegalStateException.class, p::nextSequence);
        }
    }

    @Test
    void publishingAllocatesNothing() throws Exception {
        assumeTrue(hasLibrary(), "SHMCAST_LIBRARY names no libshmcast.so.0, or this Java cannot call it");
        ThreadMXBean threads = (ThreadMXBean) ManagementFactory.getThreadMXBean();
        long thread = Thread.currentThread().getId();
        byte[] bytes = new byte[2_000];
        try (Publisher p = Publisher.of("p").dir(publishers.directory).capacity(1 << 20).open()) {
            for (int length : new int[] {32, 1024, 2_000}) {
                long before = 0;
                for (int i = 0; i < 1_200_000; i++) {
                    if (i == 200_000) { // the compiler has done its work
                        before = threads.getThreadAllocatedBytes(thread);
                    }
                    p.publish(bytes, 0, length, 0, false);
                }
                long allocated = threads.getThreadAllocatedBytes(thread) - before;
                assertTrue(allocated < 20_000, allocated + " bytes for 1,000,000 messages of " + length);
            }
        }
    }
}
