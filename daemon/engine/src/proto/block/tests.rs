use super::super::seal::Sealer;
use super::*;

fn head() -> Head {
    let (stream, session) = (Stream(*b"0123456789abcdef"), Session::of_channel("TICK", 35).unwrap());
    let head = Head::new(stream, session, BlockId { writer: 0x1112_1314_1516_1718, number: 0x0203 });
    Head { clock_error: 0x0102, before: 0xA1A2_A3A4, ..head }
}

const GOLDEN_HEAD: &[u8] = b"0123456789abcdefTICK00000Z\0\0";

#[test]
fn bytes_of_a_data_block_are_fixed() {
    let mut packing = Packing::new(MIN_BYTES);
    let meta = |tag, key, time_ns| Meta { tag, key, time_ns };
    assert!(packing.push(0x0405, b"abc", meta(0, true, 1 << 40)));
    assert!(packing.push(0x0406, b"", meta(7, false, (1 << 40) + 258)));
    let (block, crc) = packing.cut().unwrap().finish(head(), &Sealer::default());
    let mut golden = b"SHMB\x01\x01\x01\x02".to_vec();
    golden.extend(GOLDEN_HEAD);
    golden.extend(b"\0\0\0\x02\0\0\0\0\0\0\x04\x05\xA1\xA2\xA3\xA4");
    golden.extend(crc.to_be_bytes());
    golden.extend(b"\x11\x12\x13\x14\x15\x16\x17\x18\0\0\0\0\0\0\x02\x03");
    golden.extend(b"\0\0\x01\0\0\0\0\0\0\x03\x01abc\0\0\x06\0\x07\0\0\x01\x02");
    assert_eq!(block, golden);
    assert_eq!(crc, 0x4CD4_9522, "the checksum is part of the format");
    let (read, body) = parse(&block).unwrap();
    assert_eq!(read, Head { count: 2, first: 0x0405, crc, ..head() });
    let Body::Messages(messages) = body else { panic!("{body:?}") };
    let read: Vec<_> = messages.messages().map(|m| (m.sequence, m.data.to_vec(), m.meta.tag)).collect();
    assert_eq!(read, [(0x0405, b"abc".to_vec(), 0), (0x0406, Vec::new(), 7)]);
    assert!(packing.is_empty() && packing.cut().is_none());
}

#[test]
fn bytes_of_the_other_blocks_are_fixed() {
    let meta = Meta { tag: 5, key: true, time_ns: 9 };
    let tail = |block: &[u8]| (block[5], block[36..48].to_vec(), block[72..].to_vec());
    let numbers = |count: u32, first: u64| [&count.to_be_bytes()[..], &first.to_be_bytes()].concat();
    let data = vec![0x55; MIN_BYTES];
    let first = Cut::part(6, &data, meta, 0, MIN_BYTES);
    let offset = first.part_bytes();
    assert_eq!(offset, MIN_BYTES - 108);
    let fragment = b"\0\0\0\0\0\0\0\x09\0\x05\x01\0\0\0\x04\0\0\0\x03\x94";
    for (cut, kind, count, first, body) in [
        (Cut::end(7), 4, 0, 7, vec![]),
        (Cut::gap(7, 9), 3, 3, 7, vec![]),
        (Cut::gap(1, u64::MAX - 1), 3, u32::MAX, 1, vec![]),
        (Cut::part(6, &data, meta, offset, MIN_BYTES), 2, 1, 6, [&fragment[..], &[0x55; 108]].concat()),
    ] {
        let block = cut.finish(head(), &Sealer::default()).0;
        assert_eq!(tail(&block), (kind, numbers(count, first), body));
        assert!(parse(&block).is_ok());
    }
    assert_eq!(
        parse(&first.finish(head(), &Sealer::default()).0).unwrap().0.count,
        0,
        "a first part completes nothing"
    );
}

#[test]
fn every_flipped_bit_and_every_cut_is_noticed() {
    let mut packing = Packing::new(MIN_BYTES);
    packing.push(1, b"a message", Meta::default());
    let block = packing.cut().unwrap().finish(head(), &Sealer::default()).0;
    for bit in 0..8 * block.len() {
        let mut flipped = block.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(parse(&flipped).is_err(), "bit {bit}");
    }
    assert!((0..block.len()).all(|size| parse(&block[..size]).is_err()));
    let mut later = block;
    later[4] = 2;
    assert_eq!(parse(&later).map(|_| ()), Err(Damaged::Version(2)));
}

#[test]
fn fields_that_disagree_are_refused_though_the_checksum_is_right() {
    let mut packing = Packing::new(MIN_BYTES);
    packing.push(1, b"a message", Meta::default());
    let whole = packing.cut().unwrap();
    for wrong in [
        Cut { count: 2, ..whole.clone() },
        Cut { first: 0, ..whole.clone() },
        Cut { kind: Kind::Gap, ..whole.clone() },
        Cut { kind: Kind::Fragment, ..whole.clone() },
        Cut { count: 0, ..Cut::gap(1, 1) },
        Cut { count: 1, ..Cut::end(1) },
        Cut { first: u64::MAX, ..Cut::gap(1, 1) },
    ] {
        let block = wrong.clone().finish(head(), &Sealer::default()).0;
        assert_eq!(parse(&block).map(|_| ()), Err(Damaged::Fields), "{wrong:?}");
    }
}

#[test]
fn the_largest_whole_message_fits_an_empty_block() {
    for block_bytes in [MIN_BYTES, 1 << 16, 1 << 18] {
        let (mut packing, most) = (Packing::new(block_bytes), max_whole_bytes(block_bytes));
        let meta = Meta { tag: 1, key: true, time_ns: 5 };
        assert!(packing.push(1, &vec![0; most], meta));
        packing.clear();
        assert!(!packing.push(1, &vec![0; block_bytes - HEAD_BYTES], meta));
    }
}

#[test]
fn a_buffer_that_is_used_again_brings_nothing_of_its_earlier_block() {
    let mut packing = Packing::new(MIN_BYTES);
    let meta = Meta::default();
    let fill = |packing: &mut Packing, byte: u8, size: usize, first: u64| {
        let data = vec![byte; size];
        let count = (0..).take_while(|n| packing.push(first + n, &data, meta)).count() as u32;
        let (block, _) = packing.cut().unwrap().finish(head(), &Sealer::default());
        let (read, body) = parse(&block).unwrap();
        assert_eq!((read.count, read.first), (count, first));
        let Body::Messages(messages) = body else { panic!("{body:?}") };
        assert!(messages.messages().all(|message| message.data == data));
        block
    };
    let first = fill(&mut packing, 1, 100, 1);
    let place = first.as_ptr();
    packing.give(first);
    // The packing fills its own buffer first. After that, it uses the buffer that was given back.
    let second = fill(&mut packing, 2, 30, 50);
    assert_ne!(second.as_ptr(), place);
    let third = fill(&mut packing, 3, 7, 100);
    assert_eq!(third.as_ptr(), place);
    // A buffer that is too small for a whole block is not kept.
    packing.give(Vec::with_capacity(MIN_BYTES - 1));
    assert!(packing.spare.is_empty());
}

#[test]
fn a_name_is_read_as_it_is_written() {
    let id = BlockId { writer: 0x0102, number: 35 };
    assert_eq!(
        (id.to_string().as_str(), BlockId::parse("0000000000000102-35")),
        ("0000000000000102-35", Some(id))
    );
    for other in
        ["102-35", "0000000000000102-035", "0000000000000102", "-", "", "x-1", "0000000000000102-+35"]
    {
        assert_eq!(BlockId::parse(other), None, "{other}");
    }
}
