//! The tests make their captures themselves. Broken captures are made byte by byte, because a library would make only valid ones.

use super::*;
use etherparse::PacketBuilder;
use proptest::prelude::*;
use shmcast_testkit::number;
use std::fs;
use std::os::unix::fs::PermissionsExt;

const FROM: &str = "10.0.0.1:4000";
const TO: &str = "239.1.2.3:5000";

/// An IPv4 packet with a UDP datagram.
fn ipv4(port: u16, payload: &[u8]) -> Vec<u8> {
    let mut packet = Vec::new();
    let builder = PacketBuilder::ipv4([10, 0, 0, 1], [239, 1, 2, 3], 3).udp(4_000, port);
    builder.write(&mut packet, payload).unwrap();
    packet
}

fn ipv6(port: u16, payload: &[u8]) -> Vec<u8> {
    let mut packet = Vec::new();
    let builder = PacketBuilder::ipv6([0xFD; 16], [0xFF; 16], 3).udp(4_000, port);
    builder.write(&mut packet, payload).unwrap();
    packet
}

/// An Ethernet frame. `between` has the bytes between the addresses and the IP packet, including the packet's type.
fn ethernet(between: &[u8], packet: &[u8]) -> Vec<u8> {
    [&[1, 0, 0x5E, 1, 2, 3, 2, 0, 0, 0, 0, 1][..], between, packet].concat()
}

/// A pcap file. Each frame has its seconds, its microseconds, its length on the wire, and its bytes.
fn pcap(link_type: u32, frames: &[(u32, u32, usize, Vec<u8>)]) -> Vec<u8> {
    let mut file = [0xA1B2_C3D4_u32.to_le_bytes(), [2, 0, 4, 0], [0; 4], [0; 4], [0, 0, 4, 0]].concat();
    file.extend(link_type.to_le_bytes());
    for (seconds, micros, sent, frame) in frames {
        for number in [*seconds, *micros, frame.len() as u32, *sent as u32] {
            file.extend(number.to_le_bytes());
        }
        file.extend(frame);
    }
    file
}

fn whole(link_type: u32, frames: &[Vec<u8>]) -> Vec<u8> {
    let frame = |(second, frame): (usize, &Vec<u8>)| (second as u32, 0, frame.len(), frame.clone());
    pcap(link_type, &frames.iter().enumerate().map(frame).collect::<Vec<_>>())
}

/// A packet: its time, if it has one, and its payload.
type Taken = (Option<u64>, Vec<u8>);

fn read_all(file: &[u8], ports: &[u16]) -> (Vec<Taken>, CaptureCounters) {
    let mut capture = Capture::open(file, ports).unwrap();
    let mut found = Vec::new();
    while let Some(datagram) = capture.read().unwrap() {
        found.push((datagram.time_ns, datagram.payload.to_vec()));
    }
    (found, capture.counters)
}

fn payloads(file: &[u8]) -> Vec<Vec<u8>> {
    read_all(file, &[]).0.into_iter().map(|(_, payload)| payload).collect()
}

#[test]
fn every_link_layer_leads_to_the_same_payload() {
    let (v4, v6) = (ipv4(5_000, b"four"), ipv6(5_000, b"six"));
    let vlan = [0x81, 0, 0, 7, 8, 0];
    let double_vlan = [0x88, 0xA8, 0, 7, 0x81, 0, 0, 9, 0x86, 0xDD];
    let mut padded = ethernet(&[8, 0], &ipv4(5_000, b""));
    padded.resize(60, 0xEE);
    let cooked = [&[0, 0, 0x03, 0x04, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0][..], &v4].concat();
    let cooked2 = [&[0x86, 0xDD, 0, 0, 0, 0, 0, 1, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0][..], &v6].concat();
    let loopback = [&[2, 0, 0, 0][..], &v4].concat();
    let openbsd_loopback = [&[0, 0, 0, 24][..], &v6].concat();
    for (link_type, frames, expected) in [
        (1, vec![ethernet(&[8, 0], &v4), ethernet(&[0x86, 0xDD], &v6)], vec!["four", "six"]),
        (1, vec![ethernet(&vlan, &v4), ethernet(&double_vlan, &v6), padded], vec!["four", "six", ""]),
        (113, vec![cooked], vec!["four"]),
        (276, vec![cooked2], vec!["six"]),
        (101, vec![v4.clone(), v6.clone()], vec!["four", "six"]),
        (228, vec![v4.clone()], vec!["four"]),
        (229, vec![v6.clone()], vec!["six"]),
        (0, vec![loopback], vec!["four"]),
        (108, vec![openbsd_loopback], vec!["six"]),
    ] {
        assert_eq!(
            payloads(&whole(link_type, &frames)),
            expected.iter().map(|p| p.as_bytes()).collect::<Vec<_>>()
        );
    }
}

#[test]
fn nothing_is_left_out_without_a_reason() {
    let sound = ipv4(5_000, b"kept");
    let mut fragment = sound.clone();
    fragment[6] = 0x20; // more fragments follow
    let mut late_fragment = sound.clone();
    late_fragment[7] = 3; // at offset 24
    let mut tcp = Vec::new();
    PacketBuilder::ipv4([1; 4], [2; 4], 3).tcp(1, 5_000, 1, 1).write(&mut tcp, b"data").unwrap();
    let mut liar = sound.clone();
    liar[24..26].copy_from_slice(&500u16.to_be_bytes()); // UDP's length is greater than IP's
    let mut dwarf = sound.clone();
    dwarf[24..26].copy_from_slice(&3u16.to_be_bytes());
    let cut = |bytes: usize| (0, 0, sound.len(), sound[..bytes].to_vec());
    let frames =
        |frames: &[Vec<u8>]| -> Vec<_> { frames.iter().map(|f| (0, 0, f.len(), f.clone())).collect() };
    let mut all =
        frames(&[sound.clone(), fragment, late_fragment, tcp, liar, dwarf, ipv4(5_001, b"other"), vec![]]);
    all.extend([cut(31), cut(24), cut(12), cut(0)]);
    let (found, counters) = read_all(&pcap(101, &all), &[5_000]);
    assert_eq!(found.len(), 1);
    let counts = Skipped::ALL.map(|reason| counters.skipped(reason));
    // The order is: not UDP, other port, fragments, truncated, malformed, link type.
    assert_eq!(counts, [1, 1, 2, 4, 3, 0], "{counters:?}");
    assert_eq!(counters.packets, 12);

    let arp = ethernet(
        &[8, 6],
        &[0, 1, 8, 0, 6, 4, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    );
    let (found, counters) = read_all(&whole(1, &[arp, ethernet(&[0x88, 0xCC], b"LLDP")]), &[]);
    assert_eq!((found.len(), counters.skipped(Skipped::NotUdp)), (0, 2));
    let (_, counters) = read_all(&whole(147, &[sound]), &[]);
    assert_eq!(counters.skipped(Skipped::LinkType), 1);
}

#[test]
fn a_file_whose_writer_was_killed_gives_what_is_whole_and_says_so() {
    let mut file = whole(101, &[ipv4(5_000, b"one"), ipv4(5_000, b"two")]);
    file.truncate(file.len() - 1);
    let (found, counters) = read_all(&file, &[]);
    assert_eq!((found.len(), counters.cut_off), (1, true));
    let (_, counters) = read_all(&whole(101, &[]), &[]);
    assert_eq!(counters, CaptureCounters::default());
}

#[test]
fn what_is_no_capture_is_refused() {
    for bytes in [
        &b""[..],
        b"\xD4\xC3\xB2",
        b"time,price\n1,100.25\n0123456789abcdef",
        b"\x1F\x8B\x08 compressed file of pcap",
    ] {
        assert!(matches!(Capture::open(bytes, &[]), Err(CaptureError::NotACapture)), "{bytes:?}");
    }
}

#[test]
fn a_length_that_a_file_claims_is_not_believed_with_memory() {
    let mut file = whole(101, &[ipv4(5_000, b"one"), ipv4(5_000, b"two")]);
    let second = 24 + 16 + ipv4(5_000, b"one").len();
    file[second + 8..second + 12].copy_from_slice(&0x7FFF_FFF0_u32.to_le_bytes());
    file.resize(40 << 20, 0);
    let mut capture = Capture::open(&file[..], &[]).unwrap();
    assert!(capture.read().unwrap().is_some());
    match capture.read() {
        Err(CaptureError::TooLarge { packets: 1, offset }) => assert_eq!(offset, second),
        other => panic!("{other:?}"),
    }
}

/// Every read that fails is reported with the system's error.
#[test]
fn a_disk_that_fails_is_told_apart_from_the_end() {
    struct Failing(Vec<u8>);
    impl std::io::Read for Failing {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let bytes = self.0.len().min(buffer.len()).min(50);
            if bytes == 0 {
                return Err(std::io::Error::other("the disk is gone"));
            }
            buffer[..bytes].copy_from_slice(&self.0.drain(..bytes).collect::<Vec<_>>());
            Ok(bytes)
        }
    }
    let mut capture = Capture::open(Failing(whole(101, &[ipv4(5_000, b"one")])), &[]).unwrap();
    assert_eq!(capture.read().unwrap().unwrap().payload, b"one");
    let error = capture.read().unwrap_err().to_string();
    assert_eq!(error, "reading failed after 1 packets: the disk is gone");
}

#[test]
fn times_are_nanoseconds_whatever_the_file_counts_in() {
    let frame = ipv4(5_000, b"x");
    let little = pcap(101, &[(1_700_000_000, 123_456, frame.len(), frame.clone())]);
    assert_eq!(read_all(&little, &[]).0[0].0, Some(1_700_000_000_123_456_000));
    let mut nanos = little.clone();
    nanos[..4].copy_from_slice(&0xA1B2_3C4D_u32.to_le_bytes());
    assert_eq!(read_all(&nanos, &[]).0[0].0, Some(1_700_000_000_000_123_456));
    // The same file as a machine of the other byte order writes it: the bytes of every field of the headers are reversed.
    let mut big = little.clone();
    for (at, size) in [(0, 4), (4, 2), (6, 2), (16, 4), (20, 4), (24, 4), (28, 4), (32, 4), (36, 4)] {
        big[at..at + size].reverse();
    }
    assert_eq!(read_all(&big, &[]).0[0].0, Some(1_700_000_000_123_456_000));
}

/// One block of a pcapng file.
fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let padding = body.len().next_multiple_of(4) - body.len();
    let length = ((12 + body.len() + padding) as u32).to_le_bytes();
    [&kind.to_le_bytes()[..], &length, body, &vec![0; padding], &length].concat()
}

fn section() -> Vec<u8> {
    block(0x0A0D_0D0A, &[&[0x4D, 0x3C, 0x2B, 0x1A, 1, 0, 0, 0][..], &[0xFF; 8]].concat())
}

fn interface(link_type: u16, resolution: u8) -> Vec<u8> {
    block(
        1,
        &[&link_type.to_le_bytes()[..], &[0; 6], &[9, 0, 1, 0, resolution, 0, 0, 0, 0, 0, 0, 0]].concat(),
    )
}

fn packet(interface: u32, ticks: u64, frame: &[u8]) -> Vec<u8> {
    let length = (frame.len() as u32).to_le_bytes();
    let ticks = [((ticks >> 32) as u32).to_le_bytes(), (ticks as u32).to_le_bytes()].concat();
    block(6, &[&interface.to_le_bytes()[..], &ticks, &length, &length, frame].concat())
}

/// The parser subtracts 12 from a block's length without a check, so the length must be checked before.
#[test]
fn a_block_that_is_shorter_than_its_own_frame_is_damage_and_no_panic() {
    for kind in (0..13).chain([0x0BAD, 0x8000_0001, u32::MAX]) {
        for length in 0..12u32 {
            let mut file = section();
            file.extend([kind.to_le_bytes(), length.to_le_bytes(), [0; 4], length.to_le_bytes()].concat());
            let mut capture = Capture::open(&file[..], &[]).unwrap();
            let read = capture.read().map(|datagram| datagram.is_some());
            assert!(matches!(read, Err(CaptureError::Damaged { .. })), "{kind:#x}, {length} B: {read:?}");
        }
    }
}

#[test]
fn each_interface_of_a_pcapng_has_its_own_link_layer_and_clock() {
    let (v4, framed) = (ipv4(5_000, b"raw"), ethernet(&[8, 0], &ipv4(5_000, b"framed")));
    let length = (v4.len() as u32).to_le_bytes();
    let file = [
        section(),
        interface(101, 9),
        interface(1, 6),
        packet(0, 1_700_000_000_000_000_007, &v4),
        packet(1, 1_700_000_000_000_008, &framed),
        packet(7, 1, &v4), // of an interface that was not described
        section(),
        interface(1, 0x80 | 10), // 1024 ticks a second
        packet(0, 512, &framed),
        block(3, &[&length[..], &v4].concat()), // a simple packet, in the Ethernet of this section
    ]
    .concat();
    let (found, counters) = read_all(&file, &[]);
    let expected: [(Option<u64>, &[u8]); 3] = [
        (Some(1_700_000_000_000_000_007), b"raw"),
        (Some(1_700_000_000_000_008_000), b"framed"),
        (Some(500_000_000), b"framed"),
    ];
    assert_eq!(found, expected.map(|(time, payload)| (time, payload.to_vec())));
    assert_eq!((counters.packets, counters.skipped(Skipped::LinkType)), (5, 1));
}

/// Tools wrote the old packet block until about 2010. A simple packet block has no time.
#[test]
fn each_kind_of_packet_block_is_read() {
    let frame = ipv4(5_000, b"old");
    let numbers = [1_700_000_000_000_000_u64 >> 32, 1_700_000_000_000_000 & 0xFFFF_FFFF];
    let lengths = [frame.len() as u64; 2];
    for is_big_endian in [false, true] {
        let number = |value: u64| match is_big_endian {
            true => (value as u32).to_be_bytes(),
            false => (value as u32).to_le_bytes(),
        };
        let block = |kind: u32, body: &[u8]| {
            let padding = body.len().next_multiple_of(4) - body.len();
            let length = number((12 + body.len() + padding) as u64);
            [&number(kind.into())[..], &length, body, &vec![0; padding], &length].concat()
        };
        let two = |value: u16| if is_big_endian { value.to_be_bytes() } else { value.to_le_bytes() };
        let versions = [two(1), two(0)].concat();
        let section = block(0x0A0D_0D0A, &[&number(0x1A2B_3C4D)[..], &versions, &[0xFF; 8]].concat());
        let interface = block(1, &[&two(101)[..], &[0; 6]].concat());
        let fields: Vec<u8> = numbers.into_iter().chain(lengths).flat_map(number).collect();
        let old = block(2, &[&two(0)[..], &two(0xFFFF), &fields, &frame].concat());
        let short = block(2, &[0; 16]);
        let simple = block(3, &[&number(frame.len() as u64)[..], &frame].concat());
        let (found, counters) = read_all(&[section, interface, old, short, simple].concat(), &[]);
        let time = Some(1_700_000_000_000_000_000);
        assert_eq!(found, [(time, b"old".to_vec()), (None, b"old".to_vec())], "{is_big_endian}");
        assert_eq!((counters.packets, counters.unread()), (3, 1));
    }
}

/// The bytes of a pipe can arrive in pieces of any size. Each packet is returned before the next one arrives.
#[test]
fn a_pipe_is_read_as_it_comes() {
    struct Pipe(std::collections::VecDeque<Vec<u8>>);
    impl std::io::Read for Pipe {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let Some(mut piece) = self.0.pop_front() else { panic!("it would wait here") };
            let bytes = piece.len().min(buffer.len());
            buffer[..bytes].copy_from_slice(&piece[..bytes]);
            if bytes < piece.len() {
                self.0.push_front(piece.split_off(bytes));
            }
            Ok(bytes)
        }
    }
    let one = whole(101, &[ipv4(5_000, b"one")]);
    let ng = [section(), interface(101, 9), packet(0, 5, &ipv4(5_000, b"one"))].concat();
    for file in [one, ng] {
        for pieces in [vec![file.len()], vec![1; file.len()], vec![5, 20, 3, file.len() - 28]] {
            let mut rest = &file[..];
            let pieces = pieces.into_iter().map(|bytes| rest.split_off(..bytes).unwrap().to_vec()).collect();
            let mut capture = Capture::open(Pipe(pieces), &[]).unwrap();
            assert_eq!(capture.read().unwrap().unwrap().payload, b"one");
        }
    }
}

/// A fragment or a truncated packet does not count as unread if it goes to a port that was not asked for. The protocols of all packets are
/// counted.
#[test]
fn protocols_are_told_as_far_as_headers_are_there() {
    let (sound, other) = (ipv4(5_000, b"kept"), ipv4(5_001, b"other"));
    let mut fragment = other.clone();
    fragment[6] = 0x20;
    let mut tcp = Vec::new();
    PacketBuilder::ipv4([1; 4], [2; 4], 3).tcp(1, 5_000, 1, 1).write(&mut tcp, b"data").unwrap();
    let frames = [sound.clone(), sound, other.clone(), fragment, tcp];
    let mut all: Vec<_> = frames.into_iter().map(|frame| (0, 0, frame.len(), frame)).collect();
    all.push((0, 0, other.len(), other[..30].to_vec()));
    let file = pcap(101, &all);
    let mut capture = Capture::open(&file[..], &[5_000]).unwrap();
    while capture.read().unwrap().is_some() {}
    assert_eq!(capture.counters.skipped(Skipped::OtherPort), 3);
    assert_eq!(capture.counters.unread(), 0);
    assert_eq!(capture.protocols.to_string(), "UDP to port 5001 (3), UDP to port 5000 (2), TCP (1)");
    let arp = [&[8, 6][..], &[0, 1, 8, 0, 6, 4, 0, 1], &[0; 20]].concat();
    let file = whole(1, &[ethernet(&[], &arp), ethernet(&[0x88, 0xCC], b"LLDP")]);
    let mut capture = Capture::open(&file[..], &[]).unwrap();
    assert!(capture.read().unwrap().is_none());
    assert_eq!(capture.protocols.to_string(), "ARP (1), Ethernet type 0x88cc (1)");
}

#[test]
fn what_a_bridge_hands_over_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bridge.pcap");
    let file = CaptureFile::create(&path, 1_400).unwrap();
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600,
        "messages are their owner's"
    );
    let taps = [file.tap.clone(), file.tap.clone()];
    let addresses = [
        (FROM, TO),
        ("0.0.0.0:4000", TO),
        ("[::]:4000", TO),
        ("[fe80::1]:4000", "[ff02::1]:5000"),
        ("[::ffff:10.0.0.1]:4000", TO),
    ];
    for (index, (from, to)) in addresses.iter().enumerate() {
        let data = vec![index as u8; index * 300];
        taps[index % 2].record(index as u64 + 7, from.parse().unwrap(), to.parse().unwrap(), &data);
    }
    taps[0].record(1, FROM.parse().unwrap(), TO.parse().unwrap(), &[0; 1_401]);
    assert_eq!(file.finish().unwrap(), Captured { packets: 5, dropped: 1 });
    let bytes = fs::read(&path).unwrap();
    let mut capture = Capture::open(&bytes[..], &[5_000]).unwrap();
    for (index, (from, to)) in addresses.iter().enumerate() {
        let datagram = capture.read().unwrap().unwrap();
        assert_eq!((datagram.time_ns, datagram.payload.len()), (Some(index as u64 + 7), index * 300));
        let from: std::net::SocketAddr = from.parse().unwrap();
        let same = from.ip().is_unspecified() || datagram.source.ip() == from.ip().to_canonical();
        assert!(same && datagram.source.port() == 4_000, "{datagram:?}");
        assert_eq!(datagram.destination, to.parse().unwrap());
    }
    assert!(capture.read().unwrap().is_none());
}

/// An earlier mistake: a capture that replaced an existing file kept the permissions of that file, and followed links.
#[test]
fn a_capture_is_private_whatever_was_there_before() {
    let dir = tempfile::tempdir().unwrap();
    let (path, link) = (dir.path().join("old.pcap"), dir.path().join("link.pcap"));
    fs::write(&path, "old").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let error = CaptureFile::create(&link, 64).unwrap_err();
    assert!(matches!(&error, CaptureFileError::Create { path, .. } if *path == link), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"old");
    CaptureFile::create(&path, 64).unwrap().finish().unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_ne!(fs::read(&path).unwrap(), b"old");
    let fifo = dir.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let error = std::error::Error::source(&CaptureFile::create(&fifo, 64).unwrap_err()).unwrap().to_string();
    assert!(error.contains("nobody reads"), "{error}");
}

#[test]
fn a_full_disk_is_told_and_every_packet_counted() {
    let full = std::path::Path::new("/dev/full");
    let file = CaptureFile::create(full, 1_400).unwrap();
    let tap = file.tap.clone();
    tap.record(1, FROM.parse().unwrap(), TO.parse().unwrap(), &[7; 1_400]);
    let error = file.finish().unwrap_err();
    assert!(matches!(&error, CaptureFileError::Write { path, .. } if path == full), "{error}");
}

/// Each packet that was passed to the writer is in the file or counted as dropped, even if the writer is slow.
#[test]
fn a_writer_that_is_behind_makes_nobody_wait_and_loses_nothing_silently() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("burst.pcap");
    let file = CaptureFile::create(&path, 64).unwrap();
    let tap = file.tap.clone();
    for sequence in 0..100_000u64 {
        tap.record(sequence, FROM.parse().unwrap(), TO.parse().unwrap(), &sequence.to_le_bytes());
    }
    let captured = file.finish().unwrap();
    assert_eq!(captured.packets + captured.dropped, 100_000);
    assert_eq!(tap.captured(), captured);
    let (found, _) = read_all(&fs::read(&path).unwrap(), &[]);
    assert_eq!(found.len() as u64, captured.packets);
    assert!(found.iter().all(|(time_ns, payload)| payload[..] == time_ns.unwrap().to_le_bytes()));
    assert!(found.is_sorted());
}

fn sound_files() -> impl Strategy<Value = Vec<u8>> {
    let frames = [
        ethernet(&[0x81, 0, 0, 7, 8, 0], &ipv4(5_000, b"four")),
        ethernet(&[0x86, 0xDD], &ipv6(5_000, b"six")),
        ipv4(5_000, &[9; 200]),
    ];
    let ng = [section(), interface(1, 9), packet(0, 5, &frames[0]), packet(0, 6, &frames[1])].concat();
    prop_oneof![
        Just(ng),
        prop_oneof![Just(0u32), Just(1), Just(101), Just(113), Just(276)]
            .prop_map(move |link| whole(link, &frames)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(number("PROPTEST_CASES", 170)))]

    /// No bytes of a file cause a panic or an endless loop, and the sum of the counters is right.
    #[test]
    fn damaged_files_never_panic(
        mut file in sound_files(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..12),
        cut in any::<prop::sample::Index>(),
        cuts in any::<bool>(),
    ) {
        for (at, byte) in damage {
            let at = at.index(file.len());
            file[at] = byte;
        }
        if cuts {
            file.truncate(cut.index(file.len()));
        }
        if let Ok(mut capture) = Capture::open(&file[..], &[]) {
            while let Ok(Some(datagram)) = capture.read() {
                prop_assert!(datagram.payload.len() < file.len());
            }
            let counters = capture.counters;
            let skipped: u64 = Skipped::ALL.iter().map(|&reason| counters.skipped(reason)).sum();
            prop_assert_eq!(counters.packets, counters.datagrams + skipped);
        }
    }
}
