//! The transports of this program, by name. Each is a [`Sender`](crate::rig::publish::Sender) and a
//! [`Receiver`](crate::rig::receive::Receiver) with the best settings known to us. The file of a transport
//! describes its settings.

use crate::rig::bridge::BridgeMode;
#[cfg(feature = "bridge")]
use crate::rig::names::{
    BRIDGE_INVOKED, BRIDGE_INVOKED_NATIVE, BRIDGE_INVOKED_SEALED, BRIDGE_INVOKED_UNICAST,
};
use crate::rig::names::{
    IDEAL, MULTICAST, SHMCAST, SHMCAST_GATE, SHMCAST_PLAIN, SHMCAST_UNTIMED, UDP, UNIX_DATAGRAM,
    UNIX_SEQPACKET, WIRE_MULTICAST, WIRE_UDP,
};
use crate::rig::spec::{Spec, Task, Wait};
use crate::rig::{hosts, publish, receive};
use anyhow::{Result, bail};

pub mod bridge;
pub mod ideal;
#[cfg(feature = "bridge")]
pub mod invoked;
pub mod multicast;
pub mod peers;
pub mod plain;
pub mod shm;
pub mod sockets;
pub mod unix;
pub mod wire;

/// Plays a role in this process.
///
/// # Errors
/// The error of the transport or of a pipe. The rig then gets no report from this child.
pub fn play(task: &Task) -> Result<()> {
    let spec: &Spec = task.spec();
    spec.wire.as_ref().map_or(Ok(()), |wire| hosts::enter(wire, task))?;
    match (task, spec.contestant.transport_name()) {
        (Task::Publish(_), SHMCAST | SHMCAST_GATE) => publish::play(spec, || shm::ShmSender::open(spec)),
        (Task::Receive(_, me), SHMCAST | SHMCAST_GATE) => {
            receive::play(spec, *me, || shm::ShmReceiver::open(spec, *me))
        }
        (Task::Publish(_), SHMCAST_PLAIN | SHMCAST_UNTIMED) => {
            publish::play(spec, || plain::PlainSender::open(spec))
        }
        (Task::Receive(_, me), SHMCAST_PLAIN | SHMCAST_UNTIMED) => {
            receive::play(spec, *me, || plain::PlainReceiver::open(spec, *me))
        }
        (Task::Publish(_), IDEAL) => publish::play(spec, || ideal::IdealSender::open(spec)),
        (Task::Receive(_, me), IDEAL) => receive::play(spec, *me, || ideal::IdealReceiver::open(spec)),
        (Task::Publish(_), MULTICAST | UDP) => publish::play(spec, || multicast::sender(spec)),
        (Task::Receive(_, me), MULTICAST) if spec.contestant.wait == Wait::Tokio => {
            receive::play(spec, *me, || multicast::TokioReceiver::open(spec))
        }
        (Task::Receive(_, me), MULTICAST | UDP) => receive::play(spec, *me, || multicast::receiver(spec)),
        (Task::Publish(_), UNIX_DATAGRAM) => publish::play(spec, || unix::DatagramSender::open(spec)),
        (Task::Receive(_, me), UNIX_DATAGRAM) => receive::play(spec, *me, || unix::datagram(spec, *me)),
        (Task::Publish(_), UNIX_SEQPACKET) => publish::play(spec, || unix::SeqpacketSender::open(spec)),
        (Task::Receive(_, me), UNIX_SEQPACKET) => receive::play(spec, *me, || unix::seqpacket(spec)),
        (Task::Publish(_), WIRE_UDP | WIRE_MULTICAST) => publish::play(spec, || wire::sender(spec)),
        (Task::Receive(_, me), WIRE_UDP | WIRE_MULTICAST) => {
            receive::play(spec, *me, || wire::receiver(spec))
        }
        #[cfg(feature = "bridge")]
        (
            Task::Publish(_),
            BRIDGE_INVOKED | BRIDGE_INVOKED_UNICAST | BRIDGE_INVOKED_NATIVE | BRIDGE_INVOKED_SEALED,
        ) => publish::play(spec, || invoked::InvokedSender::open(spec)),
        #[cfg(feature = "bridge")]
        (
            Task::Receive(_, me),
            BRIDGE_INVOKED | BRIDGE_INVOKED_UNICAST | BRIDGE_INVOKED_NATIVE | BRIDGE_INVOKED_SEALED,
        ) => receive::play(spec, *me, || invoked::InvokedReceiver::open(spec)),
        (Task::Publish(_), _) if BridgeMode::of(&spec.contestant).is_some() => {
            publish::play(spec, || bridge::BridgeSender::open(spec))
        }
        (Task::Receive(_, me), _) if BridgeMode::of(&spec.contestant).is_some() => {
            receive::play(spec, *me, || bridge::BridgeReceiver::open(spec))
        }
        (_, other) => bail!("this program knows no transport {other}"),
    }
}
