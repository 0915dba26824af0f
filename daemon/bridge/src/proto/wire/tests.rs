use super::*;
use crate::proto::session::Session;

const TWO_MESSAGES: &[u8] = b"EQTY00000Z\0\0\0\0\0\0\x01\x02\0\x02\0\x03abc\0\0";

#[test]
fn packet_bytes_are_those_of_the_standard() {
    let session = Session::of_channel("EQTY", 35).unwrap();
    let mut buffer = [0; 64];
    let mut packet = PacketWriter::new(0x102);
    assert!(packet.push(&mut buffer, b"abc") && packet.push(&mut buffer, b""));
    let size = packet.finish(&mut buffer, session).unwrap();
    assert_eq!(&buffer[..size], TWO_MESSAGES);
    assert_eq!(&heartbeat(session, 7), b"EQTY00000Z\0\0\0\0\0\0\0\x07\0\0");
    assert_eq!(&end_of_session(session, 7), b"EQTY00000Z\0\0\0\0\0\0\0\x07\xff\xff");
    let request = Request { session, first: 3, count: 258 };
    assert_eq!(&request.encode(), b"EQTY00000Z\0\0\0\0\0\0\0\x03\x01\x02");
    assert_eq!(Request::parse(&request.encode()), Ok(request));
}

#[test]
fn packet_is_read_back_message_by_message() {
    let packet = Downstream::parse(TWO_MESSAGES).unwrap();
    let Body::Messages(messages) = packet.body else { panic!("no messages") };
    assert_eq!((packet.sequence, messages.first(), messages.end()), (0x102, 0x102, 0x104));
    assert_eq!(messages.iter().collect::<Vec<_>>(), vec![(0x102, &b"abc"[..]), (0x103, &b""[..])]);
    let tail = messages.range(0x103..u64::MAX);
    assert_eq!((tail.first(), tail.end(), tail.blocks()), (0x103, 0x104, &[0, 0][..]));
    assert_eq!(messages.range(0..0x103).blocks(), b"\0\x03abc");
    assert_eq!(messages.range(9..9).count(), 0);
}

#[test]
fn every_damage_has_its_own_reason() {
    let reason = |bytes: &[u8]| Downstream::parse(bytes).err();
    assert_eq!(reason(&TWO_MESSAGES[..19]), Some(Malformed::TooShort));
    for size in 20..TWO_MESSAGES.len() {
        assert_eq!(reason(&TWO_MESSAGES[..size]), Some(Malformed::Truncated), "cut to {size} bytes");
    }
    assert_eq!(reason(&[TWO_MESSAGES, b"x"].concat()), Some(Malformed::TrailingBytes));
    assert_eq!(reason(b"EQTY00000Z\0\0\0\0\0\0\0\0\0\0"), Some(Malformed::SequenceZero));
    assert_eq!(reason(b"EQTY00000Z\0\0\0\0\0\0\0\x01\0\0x"), Some(Malformed::TrailingBytes));
    assert_eq!(
        reason(b"EQTY00000Z\xff\xff\xff\xff\xff\xff\xff\xff\0\x01\0\0"),
        Some(Malformed::SequenceOverflow)
    );
    let request = |bytes: &[u8]| Request::parse(bytes).err();
    assert_eq!(request(b"EQTY00000Z\0\0\0\0\0\0\0\x01\0\x01\0"), Some(Malformed::RequestLength));
    assert_eq!(request(b"EQTY00000Z\0\0\0\0\0\0\0\x01\0\0"), Some(Malformed::RequestCount));
    assert_eq!(request(b"EQTY00000Z\0\0\0\0\0\0\0\x01\xff\xff"), Some(Malformed::RequestCount));
    assert_eq!(request(b"EQTY00000Z\0\0\0\0\0\0\0\0\0\x01"), Some(Malformed::SequenceZero));
}

#[test]
fn packet_never_outgrows_its_buffer() {
    let mut buffer = [0; HEADER_BYTES + 5];
    let mut packet = PacketWriter::new(1);
    assert!(!packet.push(&mut buffer, b"four"));
    assert!(packet.push(&mut buffer, b"333"));
    assert!(!packet.push(&mut buffer, b""));
    assert_eq!(packet.finish(&mut buffer, Session::from_bytes(*b"0123456789")), Some(25));
}

#[test]
fn packets_that_were_put_together_are_told_apart_by_their_lengths() {
    let joined = |packets: &[&[u8]]| packets.concat();
    let beat = heartbeat(Session::of_channel("EQTY", 35).unwrap(), 7);
    assert_eq!(segment_of(&joined(&[TWO_MESSAGES, TWO_MESSAGES, &beat])), TWO_MESSAGES.len());
    assert_eq!(segment_of(&joined(&[&beat, &beat])), HEADER_BYTES);
    // One packet, or bytes that are not several valid packets, stay whole. So no part of a bad packet is taken for a good packet.
    for whole in [
        joined(&[TWO_MESSAGES]),
        joined(&[&beat]),
        joined(&[TWO_MESSAGES, b"x"]),
        joined(&[&beat, TWO_MESSAGES]),
        joined(&[TWO_MESSAGES, &TWO_MESSAGES[..26]]),
        TWO_MESSAGES[..19].to_vec(),
        TWO_MESSAGES[..24].to_vec(),
        Vec::new(),
    ] {
        assert_eq!(segment_of(&whole), whole.len(), "{whole:?}");
    }
}
