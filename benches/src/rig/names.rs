//! The names of the transports. The rig chooses a transport by its name, and [`transport`](crate::transport) runs it.

/// shmcast's own ring, on one host.
pub const SHMCAST: &str = "shmcast";
/// shmcast with the calls of a simple program. The publisher calls `publish`, which reads the clock for each message. Each call of the
/// receiver copies one message into a buffer of the receiver.
pub const SHMCAST_PLAIN: &str = "shmcast-plain";
/// Like [`SHMCAST_PLAIN`], but messages have no time stamp.
pub const SHMCAST_UNTIMED: &str = "shmcast-untimed";
/// Like [`SHMCAST`], but in rounds without loss, the publisher waits for gates of the channel and not for the rig's gate.
pub const SHMCAST_GATE: &str = "shmcast-gate";
/// The ideal ring: a lower bound, not a product.
pub const IDEAL: &str = "ideal";
/// Kernel UDP multicast on the loopback interface.
pub const MULTICAST: &str = "multicast";
/// Kernel UDP to one receiver on the loopback interface.
pub const UDP: &str = "udp";
/// One unix datagram socket for each receiver.
pub const UNIX_DATAGRAM: &str = "unix-datagram";
/// One unix seqpacket connection for each receiver.
pub const UNIX_SEQPACKET: &str = "unix-seqpacket";

/// A channel on the sending host, which the bridge sends to a reader on the other host.
pub const BRIDGE: &str = "bridge";
/// Like [`BRIDGE`], with one thread at each end: the publisher's thread also sends, and the reader's thread also receives.
pub const BRIDGE_INVOKED: &str = "bridge-invoked";
/// Like [`BRIDGE_INVOKED`], but sends by unicast to the other host's address instead of to a group.
pub const BRIDGE_INVOKED_UNICAST: &str = "bridge-invoked-unicast";
/// Like [`BRIDGE_INVOKED`], on a native line without keys.
pub const BRIDGE_INVOKED_NATIVE: &str = "bridge-invoked-native";
/// Like [`BRIDGE_INVOKED_NATIVE`], but with keys: each packet is sealed.
pub const BRIDGE_INVOKED_SEALED: &str = "bridge-invoked-sealed";
/// Like [`BRIDGE`], on a native line without keys.
pub const BRIDGE_NATIVE: &str = "bridge-native";
/// Like [`BRIDGE_NATIVE`], with keys: each packet is sealed.
pub const BRIDGE_SEALED: &str = "bridge-sealed";
/// Like [`BRIDGE`], but latency is measured until the message is in the other host's ring.
pub const BRIDGE_TO_RING: &str = "bridge-to-ring";
/// Like [`BRIDGE_TO_RING`], but the bridge's receiving thread can run on any CPU.
pub const BRIDGE_UNBOUND: &str = "bridge-unbound";
/// Like [`BRIDGE_UNBOUND`], but both ends have the default settings.
pub const BRIDGE_DEFAULT: &str = "bridge-default";
/// Like [`BRIDGE_TO_RING`], but the kernel polls the network interface.
pub const BRIDGE_BUSY_POLL: &str = "bridge-busy-poll";
/// One UDP datagram for each message, to the other host's address.
pub const WIRE_UDP: &str = "wire-udp";
/// One UDP datagram for each message, to a multicast group.
pub const WIRE_MULTICAST: &str = "wire-multicast";

/// Aeron over UDP in Java, with one thread at each end. The peers' program plays it.
pub const AERON_UDP_INVOKED: &str = "aeron-udp-invoked";
/// Like [`AERON_UDP_INVOKED`], but the driver of each end has its own thread.
pub const AERON_UDP: &str = "aeron-udp";

/// The name of the channel in every round.
pub const CHANNEL: &str = "bench";

/// Every name of a transport.
const ALL: [&str; 22] = [
    SHMCAST,
    SHMCAST_PLAIN,
    SHMCAST_UNTIMED,
    SHMCAST_GATE,
    IDEAL,
    MULTICAST,
    UDP,
    UNIX_DATAGRAM,
    UNIX_SEQPACKET,
    BRIDGE,
    BRIDGE_INVOKED,
    BRIDGE_INVOKED_UNICAST,
    BRIDGE_INVOKED_NATIVE,
    BRIDGE_INVOKED_SEALED,
    BRIDGE_NATIVE,
    BRIDGE_SEALED,
    BRIDGE_TO_RING,
    BRIDGE_UNBOUND,
    BRIDGE_DEFAULT,
    BRIDGE_BUSY_POLL,
    WIRE_UDP,
    WIRE_MULTICAST,
];

/// Whether this transport is shmcast's ring on one host, with any of shmcast's calls.
pub fn is_shmcast(name: &str) -> bool {
    [SHMCAST, SHMCAST_PLAIN, SHMCAST_UNTIMED, SHMCAST_GATE].contains(&name)
}

/// Whether a peer sends from one host to another. Other peers stay on one host.
pub fn is_peer_between_hosts(name: &str) -> bool {
    [AERON_UDP_INVOKED, AERON_UDP].contains(&name)
}

/// Whether this program itself plays the transport.
pub fn is_ours(name: &str) -> bool {
    ALL.contains(&name)
}
