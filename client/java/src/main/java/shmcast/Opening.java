package shmcast;

import java.io.IOException;
import java.nio.file.Path;
import shmcast.ShmcastException.Code;
import shmcast.Subscriber.Builder;

/** Attaches subscribers to channels in files, and to channels of a daemon. */
final class Opening {
    private Opening() {}

    /** Tries once to attach. */
    static Subscriber open(Builder builder) throws IOException {
        if (builder.gate != null) {
            HeldGate.check(builder.gate);
        }
        if (builder.conflateBehind >= 0 && (builder.sequence > 0 || builder.start == Start.OLDEST)) {
            throw new ShmcastException(Code.UNSUPPORTED, "a conflating reader begins with the latest message or with the board");
        }
        if (builder.isDaemons) {
            return hosted(builder);
        }
        if (builder.wait == Wait.PARK) {
            throw new ShmcastException(Code.UNSUPPORTED, "Wait.PARK needs a daemon that wakes the reader; wait otherwise, or use daemon()");
        }
        return file(builder, Directory.segmentOf(builder.directory, builder.channel));
    }

    private static Subscriber file(Builder builder, Path path) throws IOException {
        Name name = new Name(path);
        Segment segment = Segment.open(path, builder.wantsBoard());
        Path channel = path.getParent();
        Subscriber subscriber = null;
        try {
            subscriber = new Subscriber(builder, new Ring(segment, true), null);
            subscriber.name = name;
            subscriber.begin(builder.start, builder.sequence);
            if (segment.state() == Segment.SUPERSEDED) {
                throw Subscriber.superseded();
            }
            if (builder.watches) {
                subscriber.lock = Native.lockOf(channel);
            }
            if (builder.gate != null) {
                HeldGate gate = Native.gate(channel, builder.gate, segment.header);
                subscriber.hold(gate);
                gate.named(new Name(channel.resolve("gates").resolve(builder.gate)));
            }
            subscriber.board(builder);
            if (!builder.isHidden) {
                subscriber.show(Native.show(channel));
            }
            return subscriber;
        } catch (IOException | RuntimeException | InternalError e) {
            release(subscriber, null, segment);
            throw e;
        }
    }

    private static Subscriber hosted(Builder builder) throws IOException {
        Directory.check(builder.channel);
        Hosted hosted = Native.attach(builder);
        Subscriber subscriber = null;
        try {
            subscriber = new Subscriber(builder, new Ring(hosted.first(), !hosted.isStrict), hosted);
            subscriber.begin(builder.start, builder.sequence);
            subscriber.hold(hosted.gate());
            subscriber.board(builder);
            subscriber.show(hosted.page());
            return subscriber;
        } catch (IOException | RuntimeException | InternalError e) {
            release(subscriber, hosted, hosted.first());
            throw e;
        }
    }

    /** Closes everything that a subscriber has, if the subscriber could not be opened. */
    private static void release(Subscriber subscriber, Hosted hosted, Segment first) {
        if (subscriber != null) {
            subscriber.close();
            return;
        }
        first.close();
        if (hosted != null) {
            hosted.close();
        }
    }
}
