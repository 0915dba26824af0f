package shmcast.peers;

import java.nio.file.Path;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** An order of the rig. The bench's {@code spec.rs} has every field; these are the ones that a round between hosts needs. */
record Task(
        boolean publishes, boolean isInvoked, int size, long warmup, int messages, long intervalNanos, int publisherCpu, int receiverCpu, Path directory) {
    static final String INVOKED = "aeron-udp-invoked";
    static final String THREADS = "aeron-udp";

    static Task of(String json) {
        String name = text(json, "transport");
        if (!name.equals(INVOKED) && !name.equals(THREADS)) {
            throw new IllegalArgumentException("this program knows no transport " + name);
        }
        if (number(json, "receivers") != 1) {
            throw new IllegalArgumentException(name + " has one receiver");
        }
        return new Task(
                json.startsWith("{\"Publish\""),
                name.equals(INVOKED),
                Math.toIntExact(number(json, "size")),
                number(json, "warmup"),
                Math.toIntExact(number(json, "messages")),
                number(json, "interval_ns"),
                Math.toIntExact(number(json, "publisher_cpu")),
                Math.toIntExact(Long.parseLong(found(json, "receiver_cpus", "\\[(\\d+)"))),
                Path.of(text(json, "dir")));
    }

    long total() {
        return warmup + messages;
    }

    boolean isPaced() {
        return intervalNanos > 0;
    }

    private static long number(String json, String key) {
        return Long.parseLong(found(json, key, "(\\d+)"));
    }

    private static String text(String json, String key) {
        return found(json, key, "\"([^\"\\\\]*)\"");
    }

    private static String found(String json, String key, String value) {
        Matcher matcher = Pattern.compile("\"" + key + "\":" + value).matcher(json);
        if (!matcher.find()) {
            throw new IllegalArgumentException("the task has no " + key + " that this program can read: " + json);
        }
        return matcher.group(1);
    }
}
