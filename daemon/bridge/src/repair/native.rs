//! Answers to native receivers: requests, and control datagrams in native packets.

use shmcast::Clock;
use shmcast::sys::datagrams::Datagram;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::ring::Ring;
use super::{LOOK_UP, Out, answer_control};
use crate::BridgeError;
use crate::native::{Codec, Keys, control_in};
use crate::proto::control::CONTROL_MAX_BYTES;
use crate::proto::lease::LeaseServer;
use crate::proto::native::ask::Ask;
use crate::proto::native::container::{Container, Kind};
use crate::proto::native::seal::OpenerCounters;
use crate::proto::replay::{Exchange, Held, Replay};
use crate::proto::session::Session;
use crate::sending::Sending;
use crate::spec::BridgeSpec;
use crate::status::RepairCounters;
use crate::times::Moment;

/// The state of answers to native receivers.
pub(super) struct NativeRepair {
    codec: Codec,
    keys: Arc<Keys>,
    payload_bytes: usize,
    moment: Option<Moment>,
    /// When the clocks were read last.
    looked_ns: Option<u64>,
}

impl NativeRepair {
    pub(super) fn new(spec: &BridgeSpec, most: usize, keys: Arc<Keys>) -> Result<NativeRepair, BridgeError> {
        let codec = Codec::new(spec, false, most, &keys)?;
        Ok(NativeRepair { codec, keys, payload_bytes: spec.payload_bytes, moment: None, looked_ns: None })
    }

    /// Looks at the keys again. Reads the clocks again if the ring is another one, or if [`LOOK_UP`] has passed.
    pub(super) fn look(&mut self, now_ns: u64, clock: Option<Clock>, is_another_ring: bool) {
        self.codec.look(&self.keys);
        let is_new = |looked_ns| u128::from(now_ns.saturating_sub(looked_ns)) < LOOK_UP.as_nanos();
        if is_another_ring || !self.looked_ns.is_some_and(is_new) {
            (self.moment, self.looked_ns) = (clock.map(Moment::now), Some(now_ns));
        }
    }

    /// The packets that were not opened.
    pub(super) fn unopened(&self) -> &OpenerCounters {
        self.codec.counters()
    }

    /// Answers a datagram. Returns how many answers the kernel refused.
    pub(super) fn answer(
        &mut self,
        now_ns: u64,
        datagram: &Datagram<'_>,
        (replay, leases, ring, shared): (&mut Replay, &mut LeaseServer, &mut Ring, &Sending),
        counters: &mut RepairCounters,
        out: &Out<'_>,
    ) -> u64 {
        let Ok(opened) = self.codec.open(now_ns, datagram.bytes) else { return 0 };
        let size = opened.len();
        let Ok((container, _)) = Container::parse(opened) else { return 0 };
        let from = datagram.from.into();
        match container.kind {
            Kind::Control(_) => {
                let (mut asked, mut answer) = ([0; CONTROL_MAX_BYTES], [0; CONTROL_MAX_BYTES]);
                let Some(size) = control_in(opened, &mut asked) else { return 0 };
                let with = (leases, shared, counters);
                let size = answer_control(now_ns, datagram.from, &asked[..size], with, &mut answer);
                let packet = size.and_then(|size| self.codec.control(&answer[..size]));
                packet.map_or(0, |packet| out.send(datagram.from, packet))
            }
            Kind::Ask => {
                let proved = (from, leases.is_proved(now_ns, from));
                self.answer_ask(now_ns, (datagram, proved), size, (replay, ring, shared), out)
            }
            Kind::Data | Kind::Fragment | Kind::Pulse => 0,
        }
    }

    fn answer_ask(
        &mut self,
        now_ns: u64,
        (datagram, proved): (&Datagram<'_>, (std::net::SocketAddr, bool)),
        size: usize,
        (replay, ring, shared): (&mut Replay, &mut Ring, &Sending),
        out: &Out<'_>,
    ) -> u64 {
        let (opened, sealer, buffer) = self.codec.parts(size);
        let Ok((container, body)) = Container::parse(opened) else { return 0 };
        let Some(ask) = Ask::parse(body) else { return 0 };
        let next = shared.next.load(Ordering::Acquire);
        let (mut refused, moment) = (0, self.moment);
        let ring = std::cell::RefCell::new(ring);
        let mut held = |first| Held { oldest: ring.borrow_mut().oldest_from(first, next), next };
        let mut read = |sequence, offset, room: &mut [u8]| {
            ring.borrow_mut().read_part(sequence, offset, room, moment.as_ref())
        };
        let mut emit = |buffer: &mut [u8], kind, about: (Session, u64, u16), body| {
            if let Some(size) = Codec::answer(sealer, buffer, kind, about, body) {
                refused += out.send(datagram.from, &buffer[..size]);
            }
        };
        let mut exchange = Exchange { session: shared.session(), read: &mut read, emit: &mut emit };
        let asked = ((container.session, ask), datagram.bytes.len());
        let buffer = &mut buffer[..self.payload_bytes];
        replay.handle_ask(now_ns, proved, asked, &mut held, &mut exchange, buffer);
        refused
    }
}
