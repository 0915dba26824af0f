//! Answers native receivers: their requests, and the control datagrams in their packets.

use shmcast::Clock;
use shmcast::sys::datagrams::Datagram;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::Arc;

use super::store::Request;
use super::{ControlServer, LOOK_UP, Out, Sent, Server};
use crate::BridgeError;
use crate::native::{Codec, Keys, Part, control_in};
use crate::proto::control::CONTROL_MAX_BYTES;
use crate::proto::native::ask::{self, Ask, ENTRY_BYTES, Entry};
use crate::proto::native::container::{Container, Kind};
use crate::proto::native::seal::{OpenerCounters, Sealer};
use crate::proto::replay::{AskedEntries, Asker, Exchange};
use crate::proto::session::Session;
use crate::spec::BridgeSpec;
use crate::times::Moment;

/// The state of answers to native receivers.
pub(super) struct NativeRepair {
    codec: Codec,
    keys: Arc<Keys>,
    payload_bytes: usize,
    moment: Option<Moment>,
    /// The time at which the clocks were last read.
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

    /// Answers a datagram. Without a server, only control datagrams are answered. Returns how many packets the kernel refused.
    pub(super) fn answer(
        &mut self,
        now_ns: u64,
        datagram: &Datagram<'_>,
        server: Option<Server<'_>>,
        control: &mut ControlServer<'_>,
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
                let size = control.answer(now_ns, from, &asked[..size], &mut answer);
                let packet = size.and_then(|size| self.codec.control(&answer[..size]));
                packet.map_or(0, |packet| out.send(from, packet))
            }
            Kind::Ask => {
                let Some(server) = server else { return 0 };
                let source = Source {
                    from,
                    is_proved: control.leases.is_proved(now_ns, from),
                    session: container.session,
                    bytes: datagram.bytes.len(),
                    has_waited: false,
                };
                let (opened, sealer, buffer) = self.codec.parts(size);
                let Some(ask) = Container::parse(opened).ok().and_then(|(_, body)| Ask::parse(body)) else {
                    return 0;
                };
                let buffer = &mut buffer[..self.payload_bytes];
                source.answer(now_ns, ask, server, self.moment.as_ref(), Emission { sealer, buffer, out })
            }
            Kind::Data | Kind::Fragment | Kind::Pulse => 0,
        }
    }

    /// Answers an entry of `source` that has waited for the disk. If the disk must read once more, the receiver is told to ask again later.
    /// Returns how many packets the kernel refused.
    pub(super) fn answer_again(
        &mut self,
        now_ns: u64,
        source: Source,
        entry: Entry,
        server: Server<'_>,
        out: &Out,
    ) -> u64 {
        let mut body = [0; ENTRY_BYTES];
        ask::write(std::iter::once(entry), &mut body);
        let Some(ask) = Ask::parse(&body) else { return 0 };
        let (_, sealer, buffer) = self.codec.parts(0);
        let buffer = &mut buffer[..self.payload_bytes];
        source.answer(now_ns, ask, server, self.moment.as_ref(), Emission { sealer, buffer, out })
    }
}

/// Seals packets in the buffer, and sends them to receivers.
struct Emission<'a> {
    sealer: &'a mut Sealer,
    buffer: &'a mut [u8],
    out: &'a Out,
}

/// The source of a native request: its address, the session that it asks about, and the size of the request.
#[derive(Clone, Copy)]
pub(super) struct Source {
    pub(super) from: SocketAddr,
    /// Whether the source has proved its address.
    pub(super) is_proved: bool,
    pub(super) session: Session,
    pub(super) bytes: usize,
    /// Whether the request has already waited for the disk. A request waits only once.
    pub(super) has_waited: bool,
}

impl Source {
    fn request(self, entry: Entry) -> Request {
        Request::Native { from: self.from, session: self.session, entry, bytes: self.bytes }
    }

    /// Answers a request of the source. Returns how many packets the kernel refused.
    fn answer(
        self,
        now_ns: u64,
        ask: Ask<'_>,
        server: Server<'_>,
        moment: Option<&Moment>,
        emission: Emission<'_>,
    ) -> u64 {
        let Server { replay, store, sent: Sent { session, next } } = server;
        let Emission { sealer, buffer, out } = emission;
        let (mut refused, store) = (0, RefCell::new(store));
        let mut held = |entry: &Entry| match self.has_waited {
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
        let Self { from, is_proved, has_waited, .. } = self;
        let asked = AskedEntries { session: self.session, ask, datagram_bytes: self.bytes };
        let mut exchange =
            Exchange { session, read: &mut read, emit: &mut emit, fetch: &mut fetch, to_all: false };
        replay.handle_ask(
            now_ns,
            Asker { from, is_proved, has_waited },
            &asked,
            &mut held,
            &mut exchange,
            buffer,
        );
        refused
    }
}
