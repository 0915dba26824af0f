use super::*;
use crate::proto::SECOND_NS;
use crate::proto::native::ask;
use crate::proto::native::pulse::PULSE_BYTES;

const HEX: &str = "000102030405060708090a0b0c0d0e0f";

fn ring(text: &str) -> Keyring {
    Keyring::parse(text).unwrap()
}

fn sealer(sender: u64) -> Sealer {
    let mut sealer = Sealer::new(sender, false);
    sealer.set_key(ring(&format!("7 {HEX}")).sealing(0));
    sealer
}

fn opener() -> Opener {
    let mut opener = Opener::new(false, 4);
    opener.set_keys(Some(ring(&format!("7 {HEX}"))), false);
    opener
}

fn packet(sealer: &mut Sealer, kind: Kind, text: &[u8]) -> Vec<u8> {
    let mut buffer = vec![0; HEAD_BYTES + text.len() + SEAL_BYTES];
    buffer[HEAD_BYTES..HEAD_BYTES + text.len()].copy_from_slice(text);
    let session = Session::of_channel("EQTY", 35).unwrap();
    let size = sealer.finish(&mut buffer, (kind, false), (session, 9, 1), text.len()).unwrap();
    buffer[..size].to_vec()
}

fn open(opener: &mut Opener, now_ns: u64, packet: &[u8]) -> Result<Vec<u8>, Unopened> {
    let mut out = vec![0; packet.len()];
    opener.open(now_ns, packet, &mut out).map(|size| out[HEAD_BYTES..size].to_vec())
}

#[test]
fn what_is_sealed_is_not_readable_and_opens_once() {
    let (mut sealer, mut opener) = (sealer(1), opener());
    let text = b"a secret price of 41.17";
    let sealed = packet(&mut sealer, Kind::Data, text);
    assert!(!sealed.windows(6).any(|part| text.windows(6).any(|of| of == part)));
    assert_eq!(open(&mut opener, 0, &sealed).as_deref(), Ok(&text[..]));
    assert_eq!(open(&mut opener, 0, &sealed), Err(Unopened::Replayed), "the copy on another line");
    // Packets other than data have a series of numbers of their own.
    let pulse = packet(&mut sealer, Kind::Pulse, &[0; PULSE_BYTES]);
    assert_eq!(open(&mut opener, 0, &pulse), Ok(vec![0; PULSE_BYTES]));
    assert_eq!(opener.counters().replayed, 1);
}

/// The bytes of sealed packets must not change, because other hosts might run other versions. Another program computed the expected bytes
/// from the specifications of HKDF (RFC 5869) and GCM (SP 800-38D).
#[test]
fn bytes_of_sealed_packets_are_fixed() {
    let mut sealer = sealer(0x0102_0304_0506_0708);
    let sealed = packet(&mut sealer, Kind::Data, b"text");
    assert_eq!(&sealed[..HEAD_BYTES], b"EQTY00000Z\0\0\0\0\0\0\0\x09\0\x01\0\x2a\x01\x01\x01\x07\0\x01\x01\x02\x03\x04\x05\x06\x07\x08\0\0\0\0\0\0\0\x01");
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(hex(&sealed[HEAD_BYTES..]), "3410ba0dda02c4d20d5d92e1244b4ee00c904e34");
    let (mut asks, mut body) = (Sealer::new(5, true), [0; 18]);
    asks.set_key(ring(&format!("7 {HEX}")).sealing(0));
    ask::write([ask::Entry { first: 3, count: 2, offset: 0, bytes: 0 }].into_iter(), &mut body);
    assert_eq!(
        hex(&packet(&mut asks, Kind::Ask, &body)[HEAD_BYTES..]),
        "5f4c28231d1a5f393ca4fb3485ee265f942b3b25810de88a2d384930f920137a423a"
    );
}

#[test]
fn no_changed_bit_opens() {
    let (mut sealer, mut opener) = (sealer(1), opener());
    let real = packet(&mut sealer, Kind::Data, b"message");
    assert!(open(&mut opener, 0, &real).is_ok());
    let next = packet(&mut sealer, Kind::Data, b"message");
    for bit in 0..next.len() * 8 {
        let mut changed = next.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        // The packets are a second apart, so that the limit for unknown senders does not refuse them.
        assert!(open(&mut opener, bit as u64 * SECOND_NS, &changed).is_err(), "bit {bit}");
    }
    assert_eq!(open(&mut opener, 0, &next).as_deref(), Ok(&b"message"[..]));
}

#[test]
fn packets_of_the_wrong_direction_key_or_without_a_seal_are_refused() {
    let mut opener = opener();
    let mut receiver = Sealer::new(1, true);
    receiver.set_key(ring(&format!("7 {HEX}")).sealing(0));
    assert_eq!(open(&mut opener, 0, &packet(&mut receiver, Kind::Ask, b"x")), Err(Unopened::Unknown));
    let mut other = Sealer::new(2, false);
    other.set_key(ring(&format!("8 {HEX}")).sealing(0));
    assert_eq!(open(&mut opener, 0, &packet(&mut other, Kind::Data, b"x")), Err(Unopened::Unknown));
    other.set_key(ring("7 ffffffffffffffffffffffffffffffff").sealing(0));
    assert_eq!(open(&mut opener, 0, &packet(&mut other, Kind::Data, b"x")), Err(Unopened::Forged));
    let unsealed = packet(&mut Sealer::new(3, false), Kind::Data, b"x");
    assert_eq!(open(&mut opener, 0, &unsealed), Err(Unopened::Unknown));
    opener.set_keys(Some(ring(&format!("7 {HEX}"))), true);
    assert_eq!(open(&mut opener, 0, &unsealed).as_deref(), Ok(&b"x"[..]), "keys are only offered");
}

#[test]
fn unknown_senders_are_tried_so_often_and_known_ones_always() {
    let (mut known, mut opener) = (sealer(1), opener());
    assert!(open(&mut opener, 0, &packet(&mut known, Kind::Data, b"x")).is_ok());
    for sender in 2..50_000 {
        let mut stranger = Sealer::new(sender, false);
        stranger.set_key(ring("7 ffffffffffffffffffffffffffffffff").sealing(0));
        assert!(open(&mut opener, 0, &packet(&mut stranger, Kind::Data, b"x")).is_err());
    }
    let counters = *opener.counters();
    assert!(counters.forged <= 2_001 && counters.unknown >= 47_000, "{counters:?}");
    assert!(open(&mut opener, 0, &packet(&mut known, Kind::Data, b"x")).is_ok());
    assert!(
        open(&mut opener, SECOND_NS, &packet(&mut sealer(3), Kind::Data, b"x")).is_ok(),
        "a new sender, later"
    );
}

#[test]
fn the_sender_that_was_silent_for_longest_makes_way() {
    let (mut opener, mut all) = (opener(), Vec::from([1, 2, 3, 4, 5].map(sealer)));
    for (now, sealer) in all.iter_mut().enumerate() {
        assert!(open(&mut opener, now as u64, &packet(sealer, Kind::Data, b"x")).is_ok());
    }
    assert!(open(&mut opener, 9, &packet(&mut all[0], Kind::Data, b"x")).is_ok(), "it is learnt again");
    assert_eq!(opener.known.len(), 4);
}

#[test]
fn a_key_that_is_gone_opens_nothing_and_a_sender_changes_its_number_in_time() {
    let (mut sealer, mut opener) = (sealer(1), opener());
    sealer.renew_after = 3;
    let senders: Vec<u64> = (0..7)
        .map(|_| {
            let sealed = packet(&mut sealer, Kind::Data, b"x");
            assert!(open(&mut opener, 0, &sealed).is_ok());
            Container::parse(&sealed).unwrap().0.sender
        })
        .collect();
    assert!(
        senders[0] == senders[2]
            && senders[2] != senders[3]
            && senders[3] == senders[5]
            && senders[5] != senders[6]
    );
    opener.set_keys(Some(ring("9 ffffffffffffffffffffffffffffffff")), false);
    assert_eq!(open(&mut opener, 0, &packet(&mut sealer, Kind::Data, b"x")), Err(Unopened::Unknown));
    assert!(opener.known.is_empty());
}
