package shmcast;

/** The reader of a gate is too far behind. Nothing was published. Publish the message again later, or drop it. */
public final class FullException extends ShmcastException {
    private static final long serialVersionUID = 1;

    private final String gate;
    private final long behindBytes;

    FullException(String message, String gate, long behindBytes) {
        super(Code.FULL, message);
        this.gate = gate;
        this.behindBytes = behindBytes;
    }

    /** {@return the gate's name} */
    public String gate() {
        return gate;
    }

    /** {@return how far the gate's reader is behind, in bytes of the ring} */
    public long behindBytes() {
        return behindBytes;
    }
}
