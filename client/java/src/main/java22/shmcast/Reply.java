package shmcast;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;

/** A packet of the daemon (CONTROL.md 2), which is one object of JSON. Unknown fields are ignored. */
final class Reply {
    private static final int DEEPEST = 16;

    final int[] descriptors;
    private final Map<String, Object> fields = new HashMap<>();
    private final String text;
    private int at;

    private Reply(String text, int[] descriptors) {
        this.text = text;
        this.descriptors = descriptors;
    }

    static Reply parse(byte[] bytes, int[] descriptors) throws IOException {
        try {
            String text = StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(bytes)).toString();
            Reply reply = new Reply(text, descriptors);
            reply.object(reply.fields, 0);
            reply.skip();
            reply.need(reply.at == text.length());
            return reply;
        } catch (CharacterCodingException | NumberFormatException e) {
            throw new IOException("the daemon's answer is no JSON", e);
        }
    }

    String name() {
        return string("reply");
    }

    String string(String field) {
        return fields.get(field) instanceof String value ? value : "";
    }

    long number(String field) {
        return fields.get(field) instanceof Long value ? value : 0;
    }

    boolean is(String field) {
        return Boolean.TRUE.equals(fields.get(field));
    }

    private void need(boolean isSo) throws IOException {
        if (!isSo) {
            throw new IOException("the daemon's answer is no JSON, at byte " + at);
        }
    }

    private void skip() {
        while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
    }

    private char peek() throws IOException {
        skip();
        need(at < text.length());
        return text.charAt(at);
    }

    private void take(char c) throws IOException {
        need(peek() == c);
        at++;
    }

    private void object(Map<String, Object> into, int depth) throws IOException {
        take('{');
        if (peek() == '}') {
            at++;
            return;
        }
        while (true) {
            String name = quoted();
            take(':');
            into.put(name, value(depth + 1));
            if (peek() == '}') {
                at++;
                return;
            }
            take(',');
        }
    }

    private Object value(int depth) throws IOException {
        need(depth < DEEPEST);
        char c = peek();
        if (c == '"') {
            return quoted();
        }
        if (c == '{') {
            object(new HashMap<>(), depth);
            return null;
        }
        if (c == '[') {
            at++;
            while (peek() != ']') {
                value(depth + 1);
                if (peek() != ']') {
                    take(',');
                }
            }
            at++;
            return null;
        }
        int from = at;
        while (at < text.length() && "+-.".indexOf(text.charAt(at)) >= 0 || at < text.length() && Character.isLetterOrDigit(text.charAt(at))) {
            at++;
        }
        String word = text.substring(from, at);
        return switch (word) {
            case "true" -> Boolean.TRUE;
            case "false" -> Boolean.FALSE;
            case "null" -> null;
            default -> word.matches("[0-9]+") ? (Object) Long.parseUnsignedLong(word) : Double.valueOf(word);
        };
    }

    private String quoted() throws IOException {
        take('"');
        StringBuilder value = new StringBuilder();
        while (true) {
            need(at < text.length());
            char c = text.charAt(at++);
            if (c == '"') {
                return value.toString();
            }
            if (c == '\\') {
                need(at < text.length());
                c = text.charAt(at++);
                int plain = "\"\\/bfnrt".indexOf(c);
                if (c == 'u') {
                    need(at + 4 <= text.length());
                    c = (char) Integer.parseInt(text.substring(at, at + 4), 16);
                    at += 4;
                } else {
                    need(plain >= 0);
                    c = "\"\\/\b\f\n\r\t".charAt(plain);
                }
            }
            value.append(c);
        }
    }

    void close() {
        Libc.close(descriptors);
    }
}
