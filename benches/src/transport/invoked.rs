//! A channel carried to another host with a thread at each end: the publisher's own sends what it published, and the
//! reader's own receives what it reads.
//!
//! The same bridge as in [`bridge`](super::bridge), by its library and without its processes.

use crate::rig::carrier::{GROUP, REPAIR_PORT};
use crate::rig::hosts::{FAR, NEAR};
use crate::rig::publish::Sender;
use crate::rig::receive::{Receiver, Sink};
use crate::rig::spec::Spec;
use crate::transport::bridge::{
    BRIDGE_INVOKED_UNICAST, BridgeReceiver, BridgeSender, PAYLOAD_MAX, far_dir, near_dir,
};
use crate::transport::shm::CHANNEL;
use anyhow::{Context, Result};
use shmcast::{Preparation, Publisher, Subscriber};
use shmcast_bridge::egress::{EgressInvoker, EgressOptions};
use shmcast_bridge::ingress::{IngressInvoker, IngressOptions};
use shmcast_bridge::spec::{BridgeSpec, LineSpec, ReceiveSpec, RepairSpec, SendSpec, StartAt};
use std::net::SocketAddrV4;

/// What both ends are told.
fn bridge_spec(spec: &Spec, interface: &str) -> Result<BridgeSpec> {
    let group: SocketAddrV4 = GROUP.parse().context("the rig's group")?;
    let line = match spec.contestant.transport_name() {
        BRIDGE_INVOKED_UNICAST => {
            LineSpec { group: SocketAddrV4::new(FAR.0, group.port()), interface: None, source: None }
        }
        _ => LineSpec { group, interface: Some(interface.to_owned()), source: None },
    };
    Ok(BridgeSpec { lines: vec![line], ..BridgeSpec::new(CHANNEL) })
}

fn repair_address() -> SocketAddrV4 {
    SocketAddrV4::new(NEAR.0, REPAIR_PORT)
}

/// Publishes, and sends what was published.
pub struct InvokedSender {
    sender: BridgeSender,
    invoker: EgressInvoker,
}

impl InvokedSender {
    /// Makes the round's channel, and the sending end of its bridge.
    ///
    /// # Errors
    /// What either says.
    pub fn open(spec: &Spec) -> Result<Self> {
        let sender = BridgeSender::open(spec)?;
        let channel = Subscriber::builder(CHANNEL).dir(near_dir(spec));
        let network = format!("{}/24", NEAR.0).parse().ok().context("the rig's network")?;
        let repair = RepairSpec { allow: vec![network], ..RepairSpec::new(repair_address()) };
        let send = SendSpec { from: StartAt::Oldest, repair: Some(repair), ..SendSpec::default() };
        let bridge = BridgeSpec { send: Some(send), ..bridge_spec(spec, NEAR.1)? };
        let invoker = EgressInvoker::open(&bridge, channel, EgressOptions::default())?;
        Ok(Self { sender, invoker })
    }
}

impl Sender for InvokedSender {
    #[inline(always)]
    fn send(&mut self, payload: &[u8], sent: u64) -> Result<u64> {
        let retries = self.sender.send(payload, sent)?;
        anyhow::ensure!(self.invoker.invoke(), "the sending end of the bridge has ended");
        Ok(retries)
    }

    fn notes(&self) -> Vec<String> {
        self.sender.notes()
    }
}

/// Receives into the channel, and reads it.
pub struct InvokedReceiver {
    invoker: IngressInvoker,
    receiver: BridgeReceiver,
}

impl InvokedReceiver {
    /// Opens the receiving end of the bridge, and subscribes to what it brings.
    ///
    /// # Errors
    /// What either says.
    pub fn open(spec: &Spec) -> Result<Self> {
        std::fs::create_dir_all(far_dir(spec)).context("make the receiving host's directory")?;
        let channel = Publisher::builder(CHANNEL).dir(far_dir(spec)).prepare(Preparation::FULL);
        let channel = channel.capacity(spec.ring_bytes).max_message(PAYLOAD_MAX);
        let receive =
            ReceiveSpec { servers: vec![repair_address()], from: Some(1), ..ReceiveSpec::default() };
        let bridge = BridgeSpec { receive: Some(receive), ..bridge_spec(spec, FAR.1)? };
        let invoker = IngressInvoker::open(&bridge, channel, IngressOptions::default())?;
        Ok(Self { invoker, receiver: BridgeReceiver::open(spec)? })
    }
}

impl Receiver for InvokedReceiver {
    #[inline]
    fn poll(&mut self, sink: &mut Sink) -> Result<bool> {
        anyhow::ensure!(self.invoker.invoke(), "the receiving end of the bridge has ended");
        self.receiver.poll(sink)
    }
}
