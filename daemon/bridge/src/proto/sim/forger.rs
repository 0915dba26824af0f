//! The forger receives everything on the wire. From time to time, it sends one forged packet, of each kind in turn.

use super::super::control::{CONTROL_MAX_BYTES, ControlDatagram};
use super::super::native::container::{Container, HEAD_BYTES, Kind, Numbers, SEAL_BYTES};
use super::super::native::fragments::Fragment;
use super::super::native::pulse::{PULSE_BYTES, Pulse};
use super::super::native::records::RecordWriter;
use super::super::receiver::Origin;
use super::super::session::Session;
use super::super::wire::{Meta, PacketWriter, Request, end_of_session, heartbeat};
use super::super::{MICROSECOND_NS, MILLISECOND_NS};
use super::event::Event;
use super::net::Arrival;
use super::world::World;

/// The pause between two forgeries. The receivers must recover during this pause.
const PAUSE_NS: u64 = 40 * MILLISECOND_NS;
/// The forger answers only requests that are at most this old.
const FRESH_NS: u64 = 20 * MICROSECOND_NS;
/// The number of kinds of forged packets.
const KINDS: u64 = 10;
/// The number of kinds of forged native packets.
const NATIVE_KINDS: u64 = 9;

impl World {
    pub(super) fn forge(&mut self, forged: u64) {
        if self.is_native() {
            return self.forge_native(forged);
        }
        let is_late = self.published >= self.scenario.messages * 9 / 10;
        let is_answer = forged % KINDS > 6;
        let is_due = |&(_, _, at_ns): &(usize, Request, u64)| self.now_ns - at_ns < FRESH_NS;
        // A forged answer is useful only if it arrives before the true answer.
        if is_answer
            && self.last_request.is_some()
            && !self.last_request.as_ref().is_some_and(is_due)
            && !is_late
        {
            return self.at(self.now_ns + FRESH_NS / 2, Event::Forge { forged });
        }
        self.totals.forged += 1;
        // At the end of the feed there are no forgeries, so that the run shows that the receivers recovered.
        if !is_late {
            let at_ns = self.now_ns + PAUSE_NS + self.rng.u64(0..PAUSE_NS);
            self.at(at_ns, Event::Forge { forged: forged + 1 });
        }
        let (current, next) = (self.history.current(), self.history.next());
        let session = self.history.session(current);
        let ahead = next + self.rng.u64(2_000..60_000);
        let epoch = session.epoch().unwrap_or(1);
        let other = |epoch| Session::of_channel("SIM", epoch).unwrap();
        let line = Origin::Line(0);
        let (origin, bytes) = match forged % KINDS {
            0 => (line, heartbeat(session, ahead).to_vec()),
            1 => (line, nonsense(session, ahead)),
            2 => (line, end_of_session(session, next).to_vec()),
            3 => (line, end_of_session(session, ahead).to_vec()),
            4 => (line, nonsense(other(epoch + self.rng.u64(1..1 << 20)), 1)),
            5 => (line, heartbeat(other(epoch - self.rng.u64(1..5)), ahead).to_vec()),
            6 => (line, nonsense(session, next + (1 << self.rng.u32(17..62)))),
            kind => match self.last_request {
                None => return,
                Some((server, Request { session, first, .. }, _)) => {
                    let control = match kind {
                        7 => ControlDatagram::Gone { session, first, oldest: first + self.rng.u64(1..2_000) },
                        8 => ControlDatagram::Later { session, first },
                        _ => ControlDatagram::Held { session, first, oldest: 1, next: first },
                    };
                    let mut out = [0; CONTROL_MAX_BYTES];
                    let size = control.encode(&mut out);
                    (Origin::Server(server), out[..size].to_vec())
                }
            },
        };
        for peer in 0..self.peers.len() {
            let at_ns = self.now_ns + MICROSECOND_NS;
            let arrival = Arrival { at_ns, bytes: bytes.clone(), sound: false };
            let life = self.peers[peer].life;
            self.at(at_ns, Event::ToPeer { peer, life, origin, arrival });
        }
    }
}

impl World {
    // The packets follow each other closely: a forger without a key must do no harm, however many packets it sends.
    fn forge_native(&mut self, forged: u64) {
        self.totals.forged += 1;
        if self.published < self.scenario.messages {
            let at_ns = self.now_ns + self.rng.u64(1..PAUSE_NS / 1_000);
            self.at(at_ns, Event::Forge { forged: forged + 1 });
        }
        let (origin, bytes) = self.native_forgery(forged);
        for peer in 0..self.peers.len() {
            let at_ns = self.now_ns + MICROSECOND_NS;
            let arrival = Arrival { at_ns, bytes: bytes.clone(), sound: false };
            let life = self.peers[peer].life;
            self.at(at_ns, Event::ToPeer { peer, life, origin, arrival });
        }
    }

    /// Returns a packet of a forger without the key, and the packet's origin.
    fn native_forgery(&mut self, forged: u64) -> (Origin, Vec<u8>) {
        let (next, line) = (self.history.next(), Origin::Line(0));
        let session = self.history.session(self.history.current());
        let due = self.peers[0].receiver.next();
        let first = self.last_request.map_or(due, |(_, request, _)| request.first);
        let mut numbers = Numbers::new(self.rng.u64(..), false);
        let mut packet = vec![0; 400];
        let body = &mut packet[HEAD_BYTES..];
        let pulse = |next, has_ended| Pulse { next, has_ended, ..Pulse::default() }.write();
        let (origin, kind, sequence, messages, bytes) = match forged % NATIVE_KINDS {
            0 | 1 => {
                let sequence = if forged.is_multiple_of(NATIVE_KINDS) { due } else { next + 3_000 };
                let mut data = RecordWriter::new(sequence);
                assert!(data.push(&mut packet, b"never published", Meta::default()));
                (line, Kind::Data, sequence, 1, data.finish(&mut packet).unwrap())
            }
            2 => {
                let part = Fragment { meta: Meta::default(), total: 1 << 24, offset: 0, data: b"forged" };
                (line, Kind::Fragment, due, 1, part.write(body).unwrap())
            }
            3..=5 => {
                let ahead = if forged % NATIVE_KINDS == 5 { 0 } else { self.rng.u64(1..1 << 30) };
                body[..PULSE_BYTES].copy_from_slice(&pulse(next + ahead, forged % NATIVE_KINDS != 3));
                (line, Kind::Pulse, next + ahead, 0, PULSE_BYTES)
            }
            kind => {
                let control = match kind {
                    6 => ControlDatagram::Gone { session, first, oldest: first + 500 },
                    7 => ControlDatagram::Later { session, first },
                    _ => ControlDatagram::Held { session, first, oldest: 1, next: first },
                };
                let mut out = [0; CONTROL_MAX_BYTES];
                let size = control.encode(&mut out);
                let (kind, inside) = ControlDatagram::body_of(&out[..size]).unwrap();
                body[..inside.len()].copy_from_slice(inside);
                (Origin::Server(0), Kind::Control(kind), 1, 0, inside.len())
            }
        };
        let is_sealed = (forged / NATIVE_KINDS).is_multiple_of(2);
        let fields = numbers.next(kind, false, (session, sequence, messages));
        let fields = Container { is_sealed, key: if is_sealed { 3 } else { 0 }, ..fields };
        let size = fields.write(&mut packet, bytes + if is_sealed { SEAL_BYTES } else { 0 }).unwrap();
        packet.truncate(size);
        (origin, packet)
    }
}

fn nonsense(session: Session, first: u64) -> Vec<u8> {
    let mut buffer = [0; 200];
    let mut packet = PacketWriter::new(first);
    assert!(packet.push(&mut buffer, b"never published"));
    let size = packet.finish(&mut buffer, session).unwrap();
    buffer[..size].to_vec()
}
