package shmcast;

import java.util.ArrayList;
import java.util.List;

/** Counts the received messages, checks every byte, and keeps the other events. */
final class Counted implements Handler {
    long received;
    long missed;
    long wrong;
    final List<String> told = new ArrayList<>();

    @Override
    public void message(Message message) {
        received++;
        if (!Publishers.isRight(message)) {
            wrong++;
        }
    }

    @Override
    public void lapped(long missed, long resumedAt) {
        this.missed += missed;
    }

    @Override
    public void newEpoch(long epoch) {
        told.add("epoch " + epoch);
    }

    @Override
    public void end() {
        told.add("end");
    }
}
