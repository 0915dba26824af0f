//! Answers requests from native lines. An answer has whole messages with their marks (tag, key mark and time). If a message is larger than
//! a packet, the answer has parts of the message.

use super::super::control::{CONTROL_MAX_BYTES, ControlDatagram};
use super::super::counters::Refusal;
use super::super::native::ask::{Ask, Entry};
use super::super::native::container::{HEAD_BYTES, Kind, SEAL_BYTES};
use super::super::native::fragments::{FRAGMENT_HEAD_BYTES, Fragment, MAX_PARTS};
use super::super::native::records::{self, RecordWriter};
use super::super::session::Session;
use super::super::wire::{HEADER_BYTES, Meta, Request};
use super::{Answer, Asker, Held, Place, Replay};

/// A part of a message that was read from the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The number of bytes that were copied.
    pub size: usize,
    /// The message's size, in bytes.
    pub total: usize,
    /// The message's marks.
    pub meta: Meta,
}

impl Piece {
    /// Copies to `room` the bytes of a message from `offset` on, as far as they fit.
    pub(crate) fn copy(message: &[u8], offset: u32, room: &mut [u8], meta: Meta) -> Self {
        let rest = message.get(offset as usize..).unwrap_or(&[]);
        let size = rest.len().min(room.len());
        room[..size].copy_from_slice(&rest[..size]);
        Self { size, total: message.len(), meta }
    }
}

/// Sends a packet of an answer. Its arguments are:
///
/// - the buffer, which has the body after [`HEAD_BYTES`] bytes,
/// - the packet's kind, and whether it is sent to all receivers,
/// - the session, the first sequence and the number of messages,
/// - the size of the body, in bytes.
pub type Emit<'a> = dyn FnMut(&mut [u8], (Kind, bool), (Session, u64, u16), usize) + 'a;

/// Copies a message to the slice, from an offset on, as far as the message fits. The arguments are the sequence, the offset and the slice.
/// Returns `None` if the message is no longer there.
pub type Read<'a> = dyn FnMut(u64, u32, &mut [u8]) -> Option<Piece> + 'a;

/// Reads the messages of an answer, and sends its packets.
pub struct Exchange<'a> {
    /// The session of the ring.
    pub session: Session,
    /// Reads the ring.
    pub read: &'a mut Read<'a>,
    /// Sends a packet.
    pub emit: &'a mut Emit<'a>,
    /// Takes an entry whose messages must be read from the journal first. After that, the entry is passed to `Replay::handle_ask` again.
    pub fetch: &'a mut dyn FnMut(Entry),
    /// Whether the answer that is being made is sent to all receivers. Set it to false at first.
    pub to_all: bool,
}

/// The entries that a receiver asks for in one datagram.
#[derive(Debug)]
pub struct AskedEntries<'a> {
    /// The session that the receiver asks about.
    pub session: Session,
    /// The entries.
    pub ask: Ask<'a>,
    /// The size of the datagram.
    pub datagram_bytes: usize,
}

impl Replay {
    /// Answers a request for the entries of `asked`. The rules are those of [`Replay::handle_request`], with one difference: an answer with
    /// parts of a large message has up to 64 packets.
    ///
    /// `out` is the buffer for a packet, and limits the packet's size. The function `held` returns which messages the server holds, from
    /// the first message of an entry on.
    pub(crate) fn handle_ask(
        &mut self,
        now_ns: u64,
        asker: Asker,
        asked: &AskedEntries<'_>,
        held: &mut dyn FnMut(&Entry) -> Held,
        exchange: &mut Exchange<'_>,
        out: &mut [u8],
    ) {
        self.counters.totals.requests += u64::from(!asker.has_waited);
        let Asker { from, is_proved: proved, .. } = asker;
        if let Err(refusal) = self.check(from, Ok(asked.session), exchange.session) {
            self.counters.refuse(refusal);
            return;
        }
        let may_have_all = self.may_have_all(proved);
        // The end of the buffer is reserved for the seal.
        let most = self.limit(proved, asked.datagram_bytes).min(out.len()).max(HEAD_BYTES + SEAL_BYTES);
        let Some(out) = out.get_mut(..most) else { return };
        for entry in asked.ask.entries() {
            let request = Request { session: asked.session, first: entry.first, count: entry.count };
            let held = held(&entry);
            if let Err(refusal) = self.afford(now_ns, from, held.place) {
                self.counters.refuse(refusal);
                let later = self.later(&request, held, proved);
                say(self.wait(now_ns, true, refusal, later), exchange, out);
                // A busy journal does not prevent answers from the ring.
                match (held.place, refusal) {
                    (Place::Ring, _) | (_, Refusal::SourceRate) => return,
                    _ => continue,
                }
            }
            let before = self.counters.totals;
            exchange.to_all = false;
            let bytes = if request.first >= held.next {
                say(self.held(&request, held), exchange, out)
            } else if request.first < held.oldest {
                say(self.gone(&request, held.oldest), exchange, out)
            } else if held.place == Place::Disk && may_have_all {
                (exchange.fetch)(entry);
                0
            } else {
                self.send_entry(now_ns, asker, &entry, held, exchange, out)
            };
            self.note_place(&before, held.place);
            self.charge(now_ns, from, bytes);
        }
    }

    // Sends the held messages of an entry, to its asker or to all receivers. Returns the bytes sent.
    fn send_entry(
        &mut self,
        now_ns: u64,
        asker: Asker,
        entry: &Entry,
        held: Held,
        exchange: &mut Exchange<'_>,
        out: &mut [u8],
    ) -> usize {
        let answer = self.answer_of(now_ns, true, asker, (entry.first, entry.offset), held);
        if answer == Answer::Ignored {
            self.counters.refuse(Refusal::OnItsWay);
            return 0;
        }
        exchange.to_all = answer == Answer::All;
        let may_have_all = self.may_have_all(asker.is_proved);
        if entry.bytes > 0 || held.place == Place::Disk {
            return self.send_parts(entry, held, may_have_all, exchange, out);
        }
        let request = Request { session: exchange.session, first: entry.first, count: entry.count };
        self.send_messages(&request, held, may_have_all, exchange, out)
    }

    // Sends one packet of messages. If the first message is too large for a packet, sends the first parts of this message instead. Returns
    // the bytes sent.
    fn send_messages(
        &mut self,
        request: &Request,
        held: Held,
        may_have_all: bool,
        exchange: &mut Exchange<'_>,
        out: &mut [u8],
    ) -> usize {
        let end = held.next.min(request.first.saturating_add(u64::from(request.count)));
        let mut packet = RecordWriter::new(request.first);
        let full = out.len() - SEAL_BYTES;
        while packet.next() < end {
            let Some(room) = packet.room(&mut out[..full]) else { break };
            let Some(piece) = (exchange.read)(packet.next(), 0, room) else { break };
            if piece.size < piece.total && packet.count() == 0 && self.is_large(piece.total) {
                let entry = Entry { first: request.first, count: 1, offset: 0, bytes: piece.total as u32 };
                return self.send_parts(&entry, held, may_have_all, exchange, out);
            }
            if piece.size < piece.total || !packet.commit(&mut out[..full], piece.size, piece.meta) {
                break;
            }
        }
        let count = packet.count();
        if let Some(body) = packet.finish(out) {
            self.counters.totals.messages += u64::from(count);
            return self.send(Kind::Data, (request.session, request.first, count), body, exchange, out);
        }
        if !may_have_all {
            self.counters.refuse(Refusal::Unproved);
            return 0;
        }
        // The ring has overwritten the message meanwhile.
        let (first, count) = (request.first, request.count);
        self.overwritten(request, Entry { first, count, offset: 0, bytes: 0 }, held, exchange, out)
    }

    // Answers a request for a message that the ring has just overwritten.
    fn overwritten(
        &mut self,
        request: &Request,
        entry: Entry,
        held: Held,
        exchange: &mut Exchange<'_>,
        out: &mut [u8],
    ) -> usize {
        if held.is_backed {
            (exchange.fetch)(entry);
            return 0;
        }
        say(self.gone(request, request.first.saturating_add(1)), exchange, out)
    }

    // Whether a message is too large for any packet.
    fn is_large(&self, total: usize) -> bool {
        total > records::max_message_bytes(self.config.payload_bytes)
    }

    fn send_parts(
        &mut self,
        entry: &Entry,
        held: Held,
        may_have_all: bool,
        exchange: &mut Exchange<'_>,
        out: &mut [u8],
    ) -> usize {
        if !may_have_all {
            self.counters.refuse(Refusal::Unproved);
            return 0;
        }
        let about = (exchange.session, entry.first, 1);
        let (mut offset, end, mut sent) = (entry.offset, entry.offset.saturating_add(entry.bytes), 0);
        for _ in 0..MAX_PARTS {
            let full = out.len() - SEAL_BYTES;
            let Some(room) = out.get_mut(HEAD_BYTES + FRAGMENT_HEAD_BYTES..full) else { break };
            let most = room.len().min((end - offset) as usize);
            let piece = match (exchange.read)(entry.first, offset, &mut room[..most]) {
                Some(piece) if piece.size > 0 => piece,
                Some(_) => break,
                None if sent == 0 => {
                    let request = Request { session: exchange.session, first: entry.first, count: 1 };
                    return self.overwritten(&request, *entry, held, exchange, out);
                }
                None => break,
            };
            let head = Fragment { meta: piece.meta, total: piece.total as u32, offset, data: &[] };
            let Some(head_bytes) = head.write(&mut out[HEAD_BYTES..]) else { break };
            sent += self.send(Kind::Fragment, about, head_bytes + piece.size, exchange, out);
            offset += piece.size as u32;
            if offset >= end {
                break;
            }
        }
        if entry.offset == 0 {
            self.counters.totals.messages += 1;
        }
        sent
    }

    fn send(
        &mut self,
        kind: Kind,
        about: (Session, u64, u16),
        body: usize,
        exchange: &mut Exchange<'_>,
        out: &mut [u8],
    ) -> usize {
        let bytes = HEAD_BYTES + body;
        self.counters.totals.replies += 1;
        self.counters.totals.multicast_replies += u64::from(exchange.to_all);
        self.counters.totals.bytes += bytes as u64;
        (exchange.emit)(out, (kind, exchange.to_all), about, body);
        bytes
    }
}

// Sends the control datagram, if there is one. Returns the bytes sent.
fn say(control: Option<ControlDatagram>, exchange: &mut Exchange<'_>, out: &mut [u8]) -> usize {
    let Some(control) = control else { return 0 };
    let mut encoded = [0; CONTROL_MAX_BYTES];
    let size = control.encode(&mut encoded);
    let Some((kind, body)) = ControlDatagram::body_of(&encoded[..size]) else { return 0 };
    let Some(room) = out.get_mut(HEAD_BYTES..HEAD_BYTES + size - HEADER_BYTES) else { return 0 };
    room.copy_from_slice(body);
    let to_all = matches!(control, ControlDatagram::Pause { .. });
    (exchange.emit)(out, (Kind::Control(kind), to_all), (exchange.session, 1, 0), size - HEADER_BYTES);
    HEAD_BYTES + size - HEADER_BYTES
}
