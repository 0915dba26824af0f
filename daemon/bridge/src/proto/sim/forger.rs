//! The forger hears everything on the wire. From time to time he sends one packet of his own, of each kind in
//! turn.

use super::super::control::{CONTROL_MAX_BYTES, ControlDatagram};
use super::super::receiver::Origin;
use super::super::session::Session;
use super::super::wire::{PacketWriter, Request, end_of_session, heartbeat};
use super::super::{MICROSECOND_NS, MILLISECOND_NS};
use super::net::Arrival;
use super::world::{Event, World};

/// The pause between two forgeries. The receivers must recover from each before the next.
const PAUSE_NS: u64 = 40 * MILLISECOND_NS;
/// How old a request may be that he answers.
const FRESH_NS: u64 = 20 * MICROSECOND_NS;
/// How many kinds there are.
const KINDS: u64 = 10;

impl World {
    pub(super) fn forge(&mut self, forged: u64) {
        if self.is_native() {
            return self.forge_native(forged);
        }
        let is_late = self.published >= self.scenario.messages * 9 / 10;
        let is_answer = forged % KINDS > 6;
        let is_due = |&(_, _, at_ns): &(usize, Request, u64)| self.now_ns - at_ns < FRESH_NS;
        // An answer is of use to him only before the true one is there.
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
    // The packets follow one another closely: a sender without a key may send as many as it likes.
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
}

fn nonsense(session: Session, first: u64) -> Vec<u8> {
    let mut buffer = [0; 200];
    let mut packet = PacketWriter::new(first);
    assert!(packet.push(&mut buffer, b"never published"));
    let size = packet.finish(&mut buffer, session).unwrap();
    buffer[..size].to_vec()
}
