//! The transports this program knows, by name. Each is a [`Sender`](crate::rig::publish::Sender) and a
//! [`Receiver`](crate::rig::receive::Receiver) with the best settings we know, which stand in its file.

use crate::rig::spec::{Spec, Task, Wait};
use crate::rig::{publish, receive};
use anyhow::{Result, bail};

pub mod bridge;
pub mod ideal;
#[cfg(feature = "bridge")]
pub mod invoked;
pub mod multicast;
pub mod peers;
pub mod shm;
pub mod unix;

/// Our ring.
pub const SHMCAST: &str = "shmcast";
/// The bare minimum.
pub const IDEAL: &str = "ideal";
/// Kernel UDP multicast on the loopback interface.
pub const MULTICAST: &str = "multicast";
/// Kernel UDP to one receiver on the loopback interface.
pub const UDP: &str = "udp";
/// A unix datagram socket a receiver.
pub const UNIX_DATAGRAM: &str = "unix-datagram";
/// A unix seqpacket connection a receiver.
pub const UNIX_SEQPACKET: &str = "unix-seqpacket";

/// Whether this program knows the transport; if not, the peers' program may.
pub fn is_ours(name: &str) -> bool {
    [SHMCAST, IDEAL, MULTICAST, UDP, UNIX_DATAGRAM, UNIX_SEQPACKET].contains(&name)
        || bridge::ALL.contains(&name)
}

/// Plays a role in this process.
///
/// # Errors
/// What the transport or a pipe says; the rig sees it as a child that gave no report.
pub fn play(task: &Task) -> Result<()> {
    let spec: &Spec = task.spec();
    spec.wire.as_ref().map_or(Ok(()), |wire| wire.enter(task))?;
    match (task, spec.contestant.transport_name()) {
        (Task::Publish(_), SHMCAST) => publish::play(spec, || shm::ShmSender::open(spec)),
        (Task::Receive(_, me), SHMCAST) => receive::play(spec, *me, || shm::ShmReceiver::open(spec, *me)),
        (Task::Publish(_), IDEAL) => publish::play(spec, || ideal::IdealSender::open(spec)),
        (Task::Receive(_, me), IDEAL) => receive::play(spec, *me, || ideal::IdealReceiver::open(spec)),
        (Task::Publish(_), MULTICAST | UDP) => publish::play(spec, || multicast::MulticastSender::open(spec)),
        (Task::Receive(_, me), MULTICAST) if spec.contestant.wait == Wait::Tokio => {
            receive::play(spec, *me, || multicast::TokioReceiver::open(spec))
        }
        (Task::Receive(_, me), MULTICAST | UDP) => {
            receive::play(spec, *me, || multicast::MulticastReceiver::open(spec))
        }
        (Task::Publish(_), UNIX_DATAGRAM) => publish::play(spec, || unix::DatagramSender::open(spec)),
        (Task::Receive(_, me), UNIX_DATAGRAM) => receive::play(spec, *me, || unix::datagram(spec, *me)),
        (Task::Publish(_), UNIX_SEQPACKET) => publish::play(spec, || unix::SeqpacketSender::open(spec)),
        (Task::Receive(_, me), UNIX_SEQPACKET) => receive::play(spec, *me, || unix::seqpacket(spec)),
        (Task::Publish(_), bridge::WIRE_UDP | bridge::WIRE_MULTICAST) => {
            publish::play(spec, || bridge::WireSender::open(spec))
        }
        (Task::Receive(_, me), bridge::WIRE_UDP | bridge::WIRE_MULTICAST) => {
            receive::play(spec, *me, || bridge::WireReceiver::open(spec))
        }
        #[cfg(feature = "bridge")]
        (Task::Publish(_), bridge::BRIDGE_INVOKED | bridge::BRIDGE_INVOKED_UNICAST) => {
            publish::play(spec, || invoked::InvokedSender::open(spec))
        }
        #[cfg(feature = "bridge")]
        (Task::Receive(_, me), bridge::BRIDGE_INVOKED | bridge::BRIDGE_INVOKED_UNICAST) => {
            receive::play(spec, *me, || invoked::InvokedReceiver::open(spec))
        }
        (Task::Publish(_), _) if bridge::Mode::of(&spec.contestant).is_some() => {
            publish::play(spec, || bridge::BridgeSender::open(spec))
        }
        (Task::Receive(_, me), _) if bridge::Mode::of(&spec.contestant).is_some() => {
            receive::play(spec, *me, || bridge::BridgeReceiver::open(spec))
        }
        (_, other) => bail!("this program knows no transport {other}"),
    }
}
