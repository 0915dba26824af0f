//! Answers native receivers: their requests, and the control datagrams in their packets.

use shmcast::Clock;
use shmcast::sys::datagrams::Datagram;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::Arc;

use super::store::{Request, Store};
use super::{LOOK_UP, Out, Sent, answer_control};
use crate::BridgeError;
use crate::native::{Codec, Keys, Part, control_in};
use crate::proto::control::CONTROL_MAX_BYTES;
use crate::proto::lease::LeaseServer;
use crate::proto::native::ask::{self, Ask, ENTRY_BYTES, Entry};
use crate::proto::native::container::{Container, Kind};
use crate::proto::native::seal::{OpenerCounters, Sealer};
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
    /// When the clocks were last read.
    looked_ns: Option<u64>,
}

impl NativeRepair {
    pub(super) fn new(spec: &BridgeSpec, most: usize, keys: Arc<Keys>) -> Result<NativeRepair, BridgeError> {
        let codec = Codec::new(spec, Part::Server, most, &keys)?;
        Ok(NativeRepair { codec, keys, payload_bytes: spec.payload_bytes, moment: None, looked_ns: None })
    }

    /// Reads the keys again. Reads the clocks again if the ring has changed, or if [`LOOK_UP`] has passed.
    pub(super) fn look(&mut self, now_ns: u64, clock: Option<Clock>, is_another_ring: bool) {
        self.codec.look(&self.keys);
        let is_new = |looked_ns| u128::from(now_ns.saturating_sub(looked_ns)) < LOOK_UP.as_nanos();
        if is_another_ring || !self.looked_ns.is_some_and(is_new) {
            (self.moment, self.looked_ns) = (clock.map(Moment::now), Some(now_ns));
        }
    }

    /// Returns the counts of the packets that were not opened.
    pub(super) fn unopened(&self) -> &OpenerCounters {
        self.codec.counters()
    }

    /// Answers a datagram. Returns how many packets the kernel refused.
    pub(super) fn answer(
        &mut self,
        now_ns: u64,
        datagram: &Datagram<'_>,
        (replay, leases, store, shared): (&mut Replay, &mut LeaseServer, &mut Store, &Sending),
        counters: &mut RepairCounters,
        out: &Out,
    ) -> u64 {
        let Ok(opened) = self.codec.open(now_ns, datagram.bytes) else { return 0 };
        let size = opened.len();
        let Ok((container, _)) = Container::parse(opened) else { return 0 };
        let from = datagram.from;
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
                let Some(sent) = Sent::of(shared, store) else { return 0 };
                self.answer_ask(now_ns, (datagram, proved), size, (replay, store, sent), out)
            }
            Kind::Data | Kind::Fragment | Kind::Pulse => 0,
        }
    }

    fn answer_ask(
        &mut self,
        now_ns: u64,
        (datagram, proved): (&Datagram<'_>, (SocketAddr, bool)),
        size: usize,
        (replay, store, shared): (&mut Replay, &mut Store, Sent),
        out: &Out,
    ) -> u64 {
        let (opened, sealer, buffer) = self.codec.parts(size);
        let Ok((container, body)) = Container::parse(opened) else { return 0 };
        let Some(ask) = Ask::parse(body) else { return 0 };
        let source = Source {
            from: datagram.from,
            session: container.session,
            bytes: datagram.bytes.len(),
            again: false,
        };
        let asked = ((source.session, ask), source.bytes);
        let buffer = &mut buffer[..self.payload_bytes];
        let with = (store, shared, self.moment.as_ref());
        source.exchange(now_ns, with, (sealer, out), |held, exchange| {
            replay.handle_ask(now_ns, proved, asked, held, exchange, buffer);
        })
    }

    /// Answers an entry that has waited for the disk. `from` sent it in a datagram of `bytes` bytes. If the disk must read once more, the
    /// receiver is told to ask again later. Returns how many packets the kernel refused.
    pub(super) fn answer_again(
        &mut self,
        now_ns: u64,
        (from, is_proved): (SocketAddr, bool),
        (session, entry, bytes): (Session, Entry, usize),
        (replay, store, shared): (&mut Replay, &mut Store, Sent),
        out: &Out,
    ) -> u64 {
        let mut body = [0; ENTRY_BYTES];
        ask::write(std::iter::once(entry), &mut body);
        let Some(ask) = Ask::parse(&body) else { return 0 };
        let source = Source { from, session, bytes, again: true };
        let (_, sealer, buffer) = self.codec.parts(0);
        let buffer = &mut buffer[..self.payload_bytes];
        let with = (store, shared, self.moment.as_ref());
        source.exchange(now_ns, with, (sealer, out), |held, exchange| {
            let asked = ((session, ask), bytes);
            replay.answer_ask(now_ns, (from, is_proved), asked, held, exchange, buffer);
        })
    }
}

/// The source of a request: who sent it, for which session, and in how many bytes.
#[derive(Clone, Copy)]
struct Source {
    from: SocketAddr,
    session: Session,
    bytes: usize,
    /// Whether the request has already waited for the disk. It does not wait again.
    again: bool,
}

impl Source {
    fn request(self, entry: Entry) -> Request {
        Request::Native { from: self.from, session: self.session, entry, bytes: self.bytes }
    }

    /// Calls `run` with functions that read the store and send packets. Returns how many packets the kernel refused.
    fn exchange(
        self,
        now_ns: u64,
        (store, shared, moment): (&mut Store, Sent, Option<&Moment>),
        (sealer, out): (&mut Sealer, &Out),
        run: impl FnOnce(&mut dyn FnMut(&Entry) -> Held, &mut Exchange<'_>),
    ) -> u64 {
        let Sent { session, next } = shared;
        let (mut refused, store) = (0, RefCell::new(store));
        let mut held = |entry: &Entry| match self.again {
            true => store.borrow_mut().held_again(now_ns, entry.first, next, &self.request(*entry)),
            false => store.borrow_mut().held(now_ns, entry.first, next, &self.request(*entry)),
        };
        let mut read =
            |sequence, offset, room: &mut [u8]| store.borrow_mut().read_part(sequence, offset, room, moment);
        let mut fetch = |entry: Entry| store.borrow_mut().wait(entry.first, self.request(entry));
        let mut emit = |buffer: &mut [u8], (kind, to_all), about: (Session, u64, u16), body| {
            if let Some(size) = Codec::answer(sealer, buffer, kind, about, body) {
                let to = out.groups.native.filter(|_| to_all).unwrap_or(self.from);
                refused += out.send(to, &buffer[..size]);
            }
        };
        run(
            &mut held,
            &mut Exchange { session, read: &mut read, emit: &mut emit, fetch: &mut fetch, to_all: false },
        );
        refused
    }
}
