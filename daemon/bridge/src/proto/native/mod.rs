//! The native profile of a line, for shmcast's own receivers. Messages keep their tag, key flag and publish time. They can be larger than a
//! packet, and can be sealed.
//!
//! Every native packet is a valid MoldUDP64 packet with one message, so that captures and Wireshark accept it:
//! ```text
//! at  size
//!  0  10+8+2   session; sequence of the first message (of a fragment: of its message; else the next expected); count, always 1
//! 20  2        length of the rest
//! 22  1+1      version 1; kind: 1 data, 2 fragment, 4 pulse, 5 ask, 32 + n: control kind n
//! 24  1+1+2    flags: 1 sealed, 2 repair, 8 from a receiver; key ID, 0 = none; number of messages
//! 28  8        sender: random at each start
//! 36  8        number of the packet among those of its sender, from 1; all but live data and fragments have bit 63 set
//! 44           body; if sealed: ciphertext, then 16 bytes of tag
//! ```
//! All numbers are big-endian. The module `container` reads and writes these fields. The modules `records`, `fragments`, `pulse` and `ask`
//! read and write the bodies. The native and the plain profile use the same state machines, and differ only in the form of the packets.

pub mod ask;
pub mod container;
pub mod fragments;
pub mod keys;
pub mod pulse;
pub mod records;
pub mod seal;
pub mod window;

use super::bytes::{Reader, Writer};
use super::session::Session;
use super::wire::{Body, Downstream, LENGTH_BYTES, Malformed};
use container::{Container, Kind, OTHER, SEAL_BYTES};
use pulse::{PULSE_BYTES, Pulse};
use seal::RENEW_AFTER;

/// The session of control packets that concern no session.
pub(crate) const NO_SESSION: Session = Session::from_bytes([b' '; 10]);
/// A sender's number is random, and so is almost never below this number.
const LEAST_SENDER: u64 = 1 << 48;
/// The size of the smallest record of a data packet: its length and its marks.
const LEAST_RECORD_BYTES: usize = LENGTH_BYTES + 1;

/// Whether a datagram that arrived on a line is a packet of a native line. The datagram is not opened, so no keys are needed.
///
/// Every native packet is a valid plain packet with one message, but a receiver of plain lines must not publish it as a message. The
/// receiver drops packets that look native, so a plain packet of another vendor must never look native. Therefore all fields must be those
/// of a sender on a line:
///
/// - The session has an epoch. Only control packets have no session.
/// - The message begins with the version, a known kind, and flags and a key that agree.
/// - The number of messages is possible for the kind and for the size of the body.
/// - The sender's number is large, because it is random. The packet's number is at most 2^36, apart from its highest bit. The highest bit
///   agrees with the kind.
/// - The whole body of a packet without a seal is valid.
///
/// Other vendors' messages mostly begin with a letter or a length, which is not the version. A message that begins with the version by
/// chance must also have a valid sender's number, packet number and count at the right places, and be alone in a packet whose session has
/// an epoch.
pub fn is_native(datagram: &[u8]) -> bool {
    let Ok((container, body)) = Container::parse(datagram) else { return false };
    let Container { session, kind, is_repair, is_from_receiver, messages, sender, number, .. } = container;
    let is_live = matches!(kind, Kind::Data | Kind::Fragment) && !is_repair;
    let is_numbered = (number & OTHER == 0) == is_live && number & !OTHER <= RENEW_AFTER;
    if is_from_receiver || sender < LEAST_SENDER || !is_numbered {
        return false;
    }
    let text_bytes = if container.is_sealed { body.len().checked_sub(SEAL_BYTES) } else { Some(body.len()) };
    let Some(text_bytes) = text_bytes else { return false };
    let is_possible = match kind {
        Kind::Data => {
            messages > 0 && text_bytes >= records::BASE_BYTES + LEAST_RECORD_BYTES * usize::from(messages)
        }
        Kind::Fragment => messages == 1 && text_bytes > fragments::FRAGMENT_HEAD_BYTES,
        Kind::Pulse => messages == 0 && !is_repair && text_bytes == PULSE_BYTES,
        Kind::Control(_) => return messages == 0 && !is_repair && session == NO_SESSION,
        Kind::Ask => false,
    };
    is_possible && session.epoch().is_some() && (container.is_sealed || parse(datagram).is_ok())
}

/// Checks a whole unsealed packet of a feed: data, a fragment or a pulse. Returns the packet. If the packet is a pulse, also returns the
/// pulse, and the returned packet is a heartbeat or an end.
///
/// # Errors
/// [`Malformed`] if the parts of the packet contradict each other. Use no part of such a packet.
pub fn parse(datagram: &[u8]) -> Result<(Downstream<'_>, Option<Pulse>), Malformed> {
    let (container, body) = Container::parse(datagram)?;
    let Container { session, sequence, .. } = container;
    if container.is_sealed {
        return Err(Malformed::Native);
    }
    let (body, pulse) = match container.kind {
        Kind::Data => (Body::Messages(records::parse(&container, body)?), None),
        Kind::Fragment => (Body::Fragment(fragments::parse(&container, body)?), None),
        Kind::Pulse => {
            let pulse = Pulse::parse(body).filter(|pulse| pulse.next == sequence).ok_or(Malformed::Native)?;
            (if pulse.has_ended { Body::End } else { Body::Heartbeat }, Some(pulse))
        }
        Kind::Ask | Kind::Control(_) => return Err(Malformed::Native),
    };
    Ok((Downstream { session, sequence, body }, pulse))
}

/// Checks the body of a data packet or of a fragment, without the packet around it. The first message of the body has the sequence `first`.
/// `messages` is the number of messages, which is 1 for a fragment.
///
/// # Errors
/// [`Malformed`] if the body is not valid, or if the kind is neither data nor a fragment.
pub fn parse_body(kind: Kind, (first, messages): (u64, u16), body: &[u8]) -> Result<Body<'_>, Malformed> {
    first.checked_add(u64::from(messages)).ok_or(Malformed::SequenceOverflow)?;
    let container = Container {
        session: Session::from_bytes([0; 10]),
        sequence: first,
        kind,
        is_sealed: false,
        is_repair: false,
        is_from_receiver: false,
        key: 0,
        messages,
        sender: 0,
        number: 0,
    };
    match kind {
        Kind::Data => Ok(Body::Messages(records::parse(&container, body)?)),
        Kind::Fragment => Ok(Body::Fragment(fragments::parse(&container, body)?)),
        Kind::Pulse | Kind::Ask | Kind::Control(_) => Err(Malformed::Native),
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::{Meta, PacketWriter, end_of_session, heartbeat};
    use super::container::HEAD_BYTES;
    use super::fragments::Fragment;
    use super::keys::Keyring;
    use super::records::RecordWriter;
    use super::seal::Sealer;
    use super::*;

    const SENDER: u64 = 0x9E37_79B9_7F4A_7C15;
    /// The offset of a plain packet's first message.
    const MESSAGE: usize = 22;

    fn session() -> Session {
        Session::of_channel("EQTY", 35).unwrap()
    }

    fn sealer(sender: u64, keys: Option<&Keyring>) -> Sealer {
        let mut sealer = Sealer::new(sender, false);
        sealer.set_key(keys.and_then(|keys| keys.sealing(0)));
        sealer
    }

    fn made(sealer: &mut Sealer, kind: (Kind, bool), about: (Session, u64, u16), body: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; HEAD_BYTES + body.len() + SEAL_BYTES];
        packet[HEAD_BYTES..HEAD_BYTES + body.len()].copy_from_slice(body);
        let size = sealer.finish(&mut packet, kind, about, body.len()).unwrap();
        packet.truncate(size);
        packet
    }

    /// Makes a packet of each kind that comes over lines.
    fn all_of(sealer: &mut Sealer) -> Vec<Vec<u8>> {
        let (mut data, mut writer) = ([0; 300], RecordWriter::new(7));
        assert!([&b""[..], b"tick"].iter().all(|text| writer.push(&mut data, text, Meta::default())));
        let records = writer.finish(&mut data).unwrap();
        let records = &data[HEAD_BYTES..HEAD_BYTES + records];
        let mut part = [0; 100];
        let fragment = Fragment { meta: Meta::default(), total: 5_000, offset: 0, data: b"a part" };
        let size = fragment.write(&mut part).unwrap();
        let pulse = Pulse { next: 7, ..Pulse::default() }.write();
        let all: [(_, _, &[u8]); 6] = [
            ((Kind::Data, false), (session(), 7, 2), records),
            ((Kind::Data, true), (session(), 7, 2), records),
            ((Kind::Fragment, false), (session(), 7, 1), &part[..size]),
            ((Kind::Fragment, true), (session(), 7, 1), &part[..size]),
            ((Kind::Pulse, false), (session(), 7, 0), &pulse),
            ((Kind::Control(9), false), (NO_SESSION, 1, 0), &[1; 26]),
        ];
        all.iter().map(|(kind, about, body)| made(sealer, *kind, *about, body)).collect()
    }

    #[test]
    fn every_packet_of_a_native_line_is_known_without_its_keys() {
        let keys = Keyring::parse("7 000102030405060708090a0b0c0d0e0f").unwrap();
        for keys in [None, Some(&keys)] {
            let all = all_of(&mut sealer(SENDER, keys));
            assert!(
                all.iter().all(|packet| Downstream::parse(packet).is_ok()),
                "they are valid plain packets"
            );
            assert!(
                all.iter().all(|packet| is_native(packet)),
                "{:?}",
                all.iter().position(|it| !is_native(it))
            );
        }
    }

    /// Each packet of this test differs from a native packet in one field. The messages of other vendors differ in most fields.
    #[test]
    fn plain_packets_are_never_taken_for_native_ones() {
        let plain = |session, message: &[u8]| {
            let (mut buffer, mut writer) = ([0; 600], PacketWriter::new(7));
            assert!(writer.push(&mut buffer, message));
            let size = writer.finish(&mut buffer, session).unwrap();
            buffer[..size].to_vec()
        };
        let keys = Keyring::parse("7 000102030405060708090a0b0c0d0e0f").unwrap();
        let foreign = Session::named("000123").unwrap();
        for keys in [None, Some(&keys)] {
            let data = all_of(&mut sealer(SENDER, keys)).remove(0);
            assert!(is_native(&plain(session(), &data[MESSAGE..])), "this packet is the native one itself");
            assert!(!is_native(&plain(foreign, &data[MESSAGE..])));
            let small = all_of(&mut sealer(1_000_000, keys)).remove(0);
            assert!(!is_native(&small), "a counter in place of the sender");
            for (at, byte) in
                [(22, b'A'), (23, b'A'), (24, b'A'), (25, data[25] ^ 7), (26, 1), (36, 9), (38, 1)]
            {
                let mut other = data.clone();
                other[at] = byte;
                assert!(!is_native(&other), "byte {at} is {byte}");
            }
        }
        let open = all_of(&mut sealer(SENDER, None)).remove(0);
        let mut other = open.clone();
        *other.last_mut().unwrap() = b'?';
        assert!(is_native(&other), "another message");
        other[HEAD_BYTES + records::BASE_BYTES + 1] = 1;
        assert!(!is_native(&other), "the records do not fill the body");
        let itch =
            b"A\0\x01\0\0\x1f\xe4\x5c\x11\x2b\x90\0\0\0\0\0\0\x30\x39B\0\0\0\x64AAPL    \0\x1a\x2b\x3c";
        for message in [&itch[..], b"", b"\x01", &[1; 100], &[0; 100], &[b' '; 100]] {
            assert!(!is_native(&plain(session(), message)), "{message:?}");
        }
        assert!(!is_native(&heartbeat(session(), 7)) && !is_native(&end_of_session(session(), 7)));
    }
}
