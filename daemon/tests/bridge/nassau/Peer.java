import com.paritytrading.nassau.moldudp64.MoldUDP64Client;
import com.paritytrading.nassau.moldudp64.MoldUDP64ClientState;
import com.paritytrading.nassau.moldudp64.MoldUDP64ClientStatusListener;
import com.paritytrading.nassau.moldudp64.MoldUDP64DownstreamPacket;
import com.paritytrading.nassau.moldudp64.MoldUDP64RequestServer;
import com.paritytrading.nassau.moldudp64.MoldUDP64Server;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.NetworkInterface;
import java.net.StandardProtocolFamily;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.DatagramChannel;
import java.nio.channels.Selector;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/**
 * A MoldUDP64 client or server made of the library Nassau.
 *
 * <p>{@code client GROUP PORT INTERFACE SERVER PORT COUNT FILE}: writes COUNT messages to FILE, each after its length.
 * {@code server GROUP PORT INTERFACE BIND PORT FILE}: sends the messages of FILE, and answers requests for them.
 */
final class Peer {
    private static final int BUFFER = 32 << 20;

    public static void main(String[] words) throws IOException {
        InetAddress group = InetAddress.getByName(words[1]);
        NetworkInterface onto = NetworkInterface.getByName(words[3]);
        InetSocketAddress line = new InetSocketAddress(group, Integer.parseInt(words[2]));
        InetSocketAddress other = new InetSocketAddress(words[4], Integer.parseInt(words[5]));
        if (words[0].equals("client")) {
            receive(line, onto, other, Integer.parseInt(words[6]), Path.of(words[7]));
        } else {
            send(line, onto, other, Path.of(words[6]));
        }
    }

    private static DatagramChannel open() throws IOException {
        DatagramChannel channel = DatagramChannel.open(StandardProtocolFamily.INET);
        channel.setOption(StandardSocketOptions.SO_REUSEADDR, true);
        channel.setOption(StandardSocketOptions.SO_RCVBUF, BUFFER);
        return channel;
    }

    private static void receive(
            InetSocketAddress line, NetworkInterface onto, InetSocketAddress server, int count, Path file)
            throws IOException {
        DatagramChannel live = open();
        live.bind(line);
        live.join(line.getAddress(), onto);
        DatagramChannel answers = open();
        answers.bind(new InetSocketAddress(0));
        int[] received = {0};
        try (DataOutputStream out = new DataOutputStream(
                new java.io.BufferedOutputStream(Files.newOutputStream(file)))) {
            Listener listener = new Listener();
            MoldUDP64Client client = new MoldUDP64Client(live, answers, server, message -> {
                byte[] bytes = new byte[message.remaining()];
                message.get(bytes);
                out.writeInt(bytes.length);
                out.write(bytes);
                received[0]++;
            }, listener, 1);
            Selector selector = Selector.open();
            for (DatagramChannel channel : List.of(live, answers)) {
                channel.configureBlocking(false);
                channel.register(selector, java.nio.channels.SelectionKey.OP_READ);
            }
            System.err.println("client: ready");
            while (received[0] < count) {
                selector.select(1000);
                selector.selectedKeys().clear();
                client.receive();
                client.receiveResponse();
            }
            System.out.println("{\"received\":" + received[0] + ",\"requests\":" + listener.requests + "}");
        }
    }

    private static void send(InetSocketAddress line, NetworkInterface onto, InetSocketAddress bind, Path file)
            throws IOException {
        List<byte[]> messages = new ArrayList<>();
        try (DataInputStream in = new DataInputStream(
                new java.io.BufferedInputStream(Files.newInputStream(file)))) {
            while (in.available() > 0) {
                byte[] message = new byte[in.readInt()];
                in.readFully(message);
                messages.add(message);
            }
        }
        DatagramChannel channel = open();
        channel.setOption(StandardSocketOptions.IP_MULTICAST_IF, onto);
        channel.connect(line);
        MoldUDP64Server server = new MoldUDP64Server(channel, "NASSAU0001");
        DatagramChannel requests = open();
        requests.bind(bind);
        Thread answering = new Thread(() -> answer(requests, messages));
        answering.setDaemon(true);
        answering.start();
        MoldUDP64DownstreamPacket packet = new MoldUDP64DownstreamPacket();
        System.err.println("server: ready");
        for (byte[] message : messages) {
            if (packet.remaining() < 2 + message.length || packet.messageCount() == 10) {
                server.send(packet);
                packet.clear();
                pause(1);
            }
            put(packet, message);
        }
        server.send(packet);
        // The server answers and prints its progress until it is ended.
        while (true) {
            server.sendHeartbeat();
            pause(100);
        }
    }

    private static void answer(DatagramChannel requests, List<byte[]> messages) {
        MoldUDP64RequestServer server = new MoldUDP64RequestServer(requests);
        while (true) {
            try {
                server.serve((buffer, first, count) -> {
                    int given = 0;
                    for (long at = first; given < count && at <= messages.size(); at++, given++) {
                        byte[] message = messages.get((int) at - 1);
                        if (buffer.remaining() < 2 + message.length) {
                            break;
                        }
                        buffer.putShort((short) message.length);
                        buffer.put(message);
                    }
                    return given;
                });
            } catch (IOException e) {
                System.err.println("server: " + e);
            }
        }
    }

    private static void put(MoldUDP64DownstreamPacket packet, byte[] message) throws IOException {
        packet.put(ByteBuffer.wrap(message));
    }

    private static void pause(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    /** Counts the requests. */
    private static final class Listener implements MoldUDP64ClientStatusListener {
        private long requests;

        @Override
        public void state(MoldUDP64Client client, MoldUDP64ClientState next) {}

        @Override
        public void downstream(MoldUDP64Client client, long sequence, int count) {}

        @Override
        public void request(MoldUDP64Client client, long sequence, int count) {
            requests++;
        }

        @Override
        public void endOfSession(MoldUDP64Client client) {}
    }
}
