//! The transports that this program plays, by name. The rig asks for a name, [`transport`](crate::transport) plays it.

/// shmcast's own ring, on one host.
pub const SHMCAST: &str = "shmcast";
/// The same ring by the calls that a first program makes: `publish`, which reads the clock for each message, and one message
/// a call into the caller's own buffer.
pub const SHMCAST_PLAIN: &str = "shmcast-plain";
/// Like [`SHMCAST_PLAIN`], from a publisher that gives its messages no time.
pub const SHMCAST_UNTIMED: &str = "shmcast-untimed";
/// Like [`SHMCAST`], but its own gates hold the publisher back where nothing may be lost.
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

/// A channel of the sending host that the bridge carries to a reader on the other host.
pub const BRIDGE: &str = "bridge";
/// The same with one thread at each end: the publisher's thread sends, the reader's thread receives.
pub const BRIDGE_INVOKED: &str = "bridge-invoked";
/// Like [`BRIDGE_INVOKED`], but sent to the other host's own address instead of a group.
pub const BRIDGE_INVOKED_UNICAST: &str = "bridge-invoked-unicast";
/// Like [`BRIDGE_INVOKED`], on a native line without keys.
pub const BRIDGE_INVOKED_NATIVE: &str = "bridge-invoked-native";
/// Like [`BRIDGE_INVOKED_NATIVE`], with keys: each packet is sealed.
pub const BRIDGE_INVOKED_SEALED: &str = "bridge-invoked-sealed";
/// Like [`BRIDGE`], on a native line without keys.
pub const BRIDGE_NATIVE: &str = "bridge-native";
/// Like [`BRIDGE_NATIVE`], with keys: each packet is sealed.
pub const BRIDGE_SEALED: &str = "bridge-sealed";
/// Like [`BRIDGE`], but latency ends when the message is in the other host's ring.
pub const BRIDGE_TO_RING: &str = "bridge-to-ring";
/// Like [`BRIDGE_TO_RING`], and the bridge's receiving thread is bound to no CPU.
pub const BRIDGE_UNBOUND: &str = "bridge-unbound";
/// Like [`BRIDGE_UNBOUND`], and both ends have the settings that a user gets who chooses none.
pub const BRIDGE_DEFAULT: &str = "bridge-default";
/// Like [`BRIDGE_TO_RING`], and the kernel polls the interface.
pub const BRIDGE_BUSY_POLL: &str = "bridge-busy-poll";
/// One UDP datagram for each message, to the other host's address.
pub const WIRE_UDP: &str = "wire-udp";
/// One UDP datagram for each message, to a multicast group.
pub const WIRE_MULTICAST: &str = "wire-multicast";

/// Aeron over UDP in Java, which the peers' program plays, with one thread at each end.
pub const AERON_UDP_INVOKED: &str = "aeron-udp-invoked";
/// The same with a thread of its own for each end's driver.
pub const AERON_UDP: &str = "aeron-udp";

/// The channel of every round that has one.
pub const CHANNEL: &str = "bench";

/// Every name above.
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

/// Whether this is shmcast's ring on one host, by whichever calls.
pub fn is_shmcast(name: &str) -> bool {
    [SHMCAST, SHMCAST_PLAIN, SHMCAST_UNTIMED, SHMCAST_GATE].contains(&name)
}

/// Whether a peer goes from one host to another. The others stay on one.
pub fn is_peer_between_hosts(name: &str) -> bool {
    [AERON_UDP_INVOKED, AERON_UDP].contains(&name)
}

/// Whether this program plays the transport. If not, the peers' program may.
pub fn is_ours(name: &str) -> bool {
    ALL.contains(&name)
}
