package shmcast.peers;

import java.nio.file.Files;
import java.nio.file.Path;

/** The command line. A rate of 0 is flat out. */
record Options(Peer peer, int size, double seconds, Path directory, double rate) {
    static final String USAGE =
            """
            usage: journal-peers PEER --size BYTES --seconds S --dir DIR [--rate MESSAGES_PER_S]

            PEER is one of %s.
            Publishes for S seconds to the peer's recorder, flat out or at the rate, flushes its files to the disk, reads all
            back and compares it. Prints one line of JSON. Stops early at 3.9 GB, or at half of what is free in DIR, and
            removes its files.

              --size BYTES   bytes of a message, %d to %d
              --seconds S    more than 0, up to 3600
              --dir DIR      an existing directory on the disk that is measured
              --rate N       messages per second, more than 0

            example: journal-peers aeron0 --size 256 --seconds 5 --dir /tmp"""
                    .formatted(Peer.names(), Payloads.SMALLEST, Payloads.LARGEST);

    /** A mistake in the command line, told to the person who wrote it. */
    static final class Wrong extends Exception {
        private static final long serialVersionUID = 1;

        Wrong(String message) {
            super(message);
        }
    }

    static Options parse(String[] arguments) throws Wrong {
        if (arguments.length == 0) {
            throw new Wrong("no peer is named: one of " + Peer.names());
        }
        Peer peer = Peer.named(arguments[0]);
        if (peer == null) {
            throw new Wrong("'" + arguments[0] + "' is no peer: one of " + Peer.names());
        }
        Double size = null;
        Double seconds = null;
        Path directory = null;
        double rate = 0;
        for (int at = 1; at < arguments.length; at += 2) {
            String option = arguments[at];
            if (at + 1 == arguments.length) {
                throw new Wrong(option + " has no value");
            }
            String value = arguments[at + 1];
            switch (option) {
                case "--size" -> size = number(option, value, Payloads.SMALLEST, Payloads.LARGEST);
                case "--seconds" -> seconds = number(option, value, Double.MIN_VALUE, 3600);
                case "--rate" -> rate = number(option, value, Double.MIN_VALUE, 1e9);
                case "--dir" -> directory = directory(value);
                default -> throw new Wrong("'" + option + "' is no option");
            }
        }
        if (size == null || seconds == null || directory == null) {
            String missing = size == null ? "--size" : seconds == null ? "--seconds" : "--dir";
            throw new Wrong(missing + " is missing");
        }
        if (size != Math.rint(size)) {
            throw new Wrong("--size takes a whole number of bytes, not " + size);
        }
        return new Options(peer, size.intValue(), seconds, directory, rate);
    }

    private static double number(String option, String value, double least, double most) throws Wrong {
        double number;
        try {
            number = Double.parseDouble(value);
        } catch (NumberFormatException e) {
            throw new Wrong(option + " takes a number, not '" + value + "'");
        }
        if (!(number >= least && number <= most)) {
            String range = least == Double.MIN_VALUE ? "more than 0" : "at least " + (long) least;
            throw new Wrong(option + " takes " + range + " and at most " + (long) most + ", not " + value);
        }
        return number;
    }

    private static Path directory(String value) throws Wrong {
        Path directory = Path.of(value);
        if (!Files.isDirectory(directory)) {
            throw new Wrong("--dir " + value + " is no directory; make it first");
        }
        if (!Files.isWritable(directory)) {
            throw new Wrong("--dir " + value + " cannot be written to");
        }
        return directory.toAbsolutePath();
    }
}
