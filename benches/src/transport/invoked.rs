//! A channel that the bridge sends to another host, with one thread at each end. The publisher's thread also runs the sending end, and the
//! reader's thread also runs the receiving end. Here the bridge is a library. In [`bridge`](super::bridge), it is two separate processes.

use super::bridge::{BridgeReceiver, BridgeSender};
use crate::rig::bridge::{GROUP, PAYLOAD_MAX, REPAIR_PORT, far_dir, keys_of, near_dir};
use crate::rig::hosts::{FAR, NEAR};
use crate::rig::names::{BRIDGE_INVOKED_NATIVE, BRIDGE_INVOKED_SEALED, BRIDGE_INVOKED_UNICAST, CHANNEL};
use crate::rig::publish::Sender;
use crate::rig::receive::{Receiver, Sink};
use crate::rig::spec::Spec;
use anyhow::{Context, Result};
use shmcast::{Preparation, Publisher, Subscriber};
use shmcast_bridge::egress::{EgressInvoker, EgressOptions};
use shmcast_bridge::ingress::{IngressInvoker, IngressOptions};
use shmcast_bridge::spec::{BridgeSpec, LineSpec, Profile, ReceiveSpec, RepairSpec, SendSpec, StartAt};
use std::net::SocketAddr;

/// Returns the configuration that both ends share.
fn bridge_spec(spec: &Spec, interface: &str) -> Result<BridgeSpec> {
    let group: SocketAddr = GROUP.parse().context("the rig's group")?;
    let line = match spec.contestant.transport_name() {
        BRIDGE_INVOKED_UNICAST => LineSpec::to(SocketAddr::from((FAR.0, group.port()))),
        _ => LineSpec { interface: Some(interface.to_owned()), ..LineSpec::to(group) },
    };
    let (profile, keys) = match spec.contestant.transport_name() {
        BRIDGE_INVOKED_NATIVE => (Profile::Native, None),
        BRIDGE_INVOKED_SEALED => (Profile::Native, Some(keys_of(spec)?)),
        _ => (Profile::Plain, None),
    };
    Ok(BridgeSpec { lines: vec![line], profile, keys, ..BridgeSpec::new(CHANNEL) })
}

fn repair_address() -> SocketAddr {
    SocketAddr::from((NEAR.0, REPAIR_PORT))
}

/// Publishes messages, and sends them to the other host.
pub struct InvokedSender {
    sender: BridgeSender,
    invoker: EgressInvoker,
}

impl InvokedSender {
    /// Makes the round's channel and the sending end of its bridge.
    ///
    /// # Errors
    /// The error of the channel or of the bridge.
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

/// Receives messages into the channel, and reads the channel.
pub struct InvokedReceiver {
    invoker: IngressInvoker,
    receiver: BridgeReceiver,
}

impl InvokedReceiver {
    /// Opens the receiving end of the bridge, and subscribes to the channel into which the bridge publishes.
    ///
    /// # Errors
    /// The error of the channel or of the bridge.
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
