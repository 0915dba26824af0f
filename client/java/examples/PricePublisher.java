import java.nio.charset.StandardCharsets;
import shmcast.Publisher;

public class PricePublisher {
    public static void main(String[] arguments) throws Exception {
        try (var prices = Publisher.of("prices").capacity(1 << 20).open()) { // if it is there from earlier, the sequence goes on
            for (int tick = 0; tick < 40; tick++) {
                String price = "bid " + (10_000 + tick * 7 % 13);
                long sequence = prices.publish(price.getBytes(StandardCharsets.UTF_8));
                System.out.println(sequence + ": " + price);
            }
        } // readers see the end of the stream
    }
}
