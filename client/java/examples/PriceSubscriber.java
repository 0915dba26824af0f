import java.time.Duration;
import shmcast.Handler;
import shmcast.Message;
import shmcast.Start;
import shmcast.Subscriber;

public class PriceSubscriber implements Handler {
    public static void main(String[] arguments) throws Exception {
        var prices = new PriceSubscriber();
        try (var subscriber = Subscriber.of("prices").start(Start.OLDEST).waitForChannel(Duration.ofSeconds(5)).open()) {
            while (!subscriber.isOver()) { // until the last publisher has closed
                subscriber.recv(prices, Duration.ofSeconds(1));
            }
        }
    }

    @Override
    public void message(Message message) { // valid during the call
        System.out.println(message.sequence() + ": " + message.text());
    }

    @Override
    public void lapped(long missed, long resumedAt) {
        System.out.println("too slow: missed " + missed + " messages");
    }
}
