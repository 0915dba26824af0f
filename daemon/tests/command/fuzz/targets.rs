//! Properties that must hold for every parser and for the receiver with any input bytes.
//!
//! Each target is one function. libFuzzer calls it with generated inputs (`fuzz_targets/`), and the tests
//! of `daemon/tests/command/fuzz` with seeded random ones, on the stable compiler. A function that returns has found no error.

use shmcast::control::{Event, Request as SocketRequest, Response, decode, encode};
use shmcast::journal::format::{FileHeader, Footer, FrameHeader, Index, Records, Trailer};
use shmcast_bridge::pcap::{Capture, Skipped};
use shmcast_bridge::proto::control::{CONTROL_MAX_BYTES, ControlDatagram, is_control};
use shmcast_bridge::proto::gap::{GapConfig, GapPolicy};
use shmcast_bridge::proto::native::ask::{self, Ask as PacketAsk};
use shmcast_bridge::proto::native::container::Container;
use shmcast_bridge::proto::native::fragments::{Assembler, FragmentOutcome};
use shmcast_bridge::proto::native::keys::Keyring;
use shmcast_bridge::proto::native::seal::Opener;
use shmcast_bridge::proto::receiver::{Delivery, Follow, Join, Origin, Receiver, ReceiverConfig};
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::proto::wire::{Body, Downstream, PacketWriter, Request, end_of_session, heartbeat};
use shmcast_daemon::config::{Config, ConfigError};
use shmcast_engine::proto::block::{Body as Block, HEAD_BYTES, parse, stamp};
use shmcast_engine::proto::reader::{Ask, Delivery as Delivered, Reader as LogReader, ReaderConfig};
use shmcast_engine::proto::seal::Opener as BlockOpener;
use shmcast_engine::proto::want::Want;

/// An accepted packet gives the same bytes when it is parsed and written again.
pub fn wire(data: &[u8]) {
    if let Ok(request) = Request::parse(data) {
        assert_eq!(request.encode(), data);
    }
    let Ok(packet) = Downstream::parse(data) else { return };
    assert!(packet.sequence > 0);
    let messages = match packet.body {
        Body::Heartbeat => return assert_eq!(heartbeat(packet.session, packet.sequence), data),
        Body::End => return assert_eq!(end_of_session(packet.session, packet.sequence), data),
        Body::Messages(messages) => messages,
        Body::Fragment(fragment) => panic!("a plain packet with {fragment:?}"),
    };
    let mut buffer = vec![0; data.len()];
    let mut writer = PacketWriter::new(packet.sequence);
    for message in messages.messages() {
        assert_eq!(message.sequence, writer.next());
        assert!(writer.push(&mut buffer, message.data));
    }
    assert_eq!(writer.next(), messages.end());
    assert_eq!(writer.finish(&mut buffer, packet.session), Some(data.len()));
    assert_eq!(buffer, data);
    // Each range of the messages lies within the packet and has as many messages as it says.
    let middle = messages.first() + messages.count() / 2;
    let (head, tail) = (messages.range(0..middle), messages.range(middle..u64::MAX));
    assert_eq!(head.blocks().len() + tail.blocks().len(), messages.blocks().len());
    assert_eq!(tail.messages().count() as u64, tail.count());
}

/// An accepted native packet has as many messages as it says, and its head gives the same bytes when it is written again. Keys and seals
/// panic on no input.
pub fn native(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(keys) = Keyring::parse(text)
    {
        assert!(keys.sealing(0).is_some() && keys.sealing(u64::MAX).is_some());
    }
    let mut opener = Opener::new(false, 4);
    opener.set_keys(Keyring::parse("7 000102030405060708090a0b0c0d0e0f").ok(), true);
    let mut out = vec![0; data.len()];
    if let Ok(size) = opener.open(1, data, &mut out) {
        assert_eq!(&out[..size], data, "only packets without a seal open without the key");
    }
    let Ok((container, body)) = Container::parse(data) else { return };
    let mut again = data.to_vec();
    assert_eq!(container.write(&mut again, body.len()), Some(data.len()));
    assert_eq!(again, data);
    if let Some(asked) = PacketAsk::parse(body) {
        let size = ask::write(asked.entries(), &mut out);
        assert_eq!(&out[..size], body);
    }
    let Ok((packet, pulse)) = shmcast_bridge::proto::native::parse(data) else { return };
    match packet.body {
        Body::Messages(messages) => {
            assert_eq!(messages.messages().count() as u64, messages.count());
            let middle = messages.first() + messages.count() / 2;
            let parts = [messages.range(0..middle), messages.range(middle..u64::MAX)];
            let halves = parts.iter().flat_map(|part| part.messages().collect::<Vec<_>>());
            assert!(halves.eq(messages.messages()));
        }
        Body::Fragment(fragment) => {
            let mut assembler = Assembler::new(1 << 20);
            let taken = assembler.take(packet.sequence, &fragment, false);
            let is_large = fragment.total > 1 << 20;
            assert_eq!(taken == FragmentOutcome::Refused, is_large);
        }
        Body::Heartbeat | Body::End => assert_eq!(pulse.expect("a pulse").write()[..], *body),
    }
}

/// An accepted block has as many messages as it says. A reader takes it, or a bad one, in order and never twice. No block opens without its
/// key.
pub fn block(data: &[u8]) {
    if let Some(want) = Want::parse(data) {
        assert_eq!(want.encode()[..], *data);
    }
    let mut stamped = data.to_vec();
    if stamped.len() >= HEAD_BYTES {
        stamp(&mut stamped);
    }
    let keys = Keyring::parse("7 000102030405060708090a0b0c0d0e0f").ok();
    for bytes in [data, &stamped] {
        let Ok((head, body)) = parse(bytes) else { continue };
        match body {
            Block::Messages(messages) => {
                assert_eq!(messages.messages().count() as u32, head.count);
                assert!(messages.messages().map(|message| message.sequence).eq(head.first..head.end()));
            }
            Block::Fragment(part) => {
                assert!(part.offset as usize + part.data.len() <= part.total as usize && head.count <= 1);
            }
            Block::Gap => assert!(head.count > 0),
            Block::End | Block::Takeover => assert_eq!(head.count, 0),
            Block::Sealed(_) => {
                assert!(
                    BlockOpener::new(keys.clone(), true).open(bytes).is_err(),
                    "nobody here has sealed it"
                );
            }
        }
        assert!(
            BlockOpener::new(keys.clone(), false).open(bytes).is_err(),
            "blocks without a seal are refused"
        );
        read(bytes);
    }
}

/// Plays a block to a reader as a new entry, and as the answer to a request.
fn read(bytes: &[u8]) {
    let mut reader = LogReader::new(ReaderConfig { from: Some(1), give_up_ns: Some(1) }, None);
    let mut due = 1;
    let mut sink = |delivery: Delivered<'_>| match delivery {
        Delivered::Message { sequence, .. } => {
            assert!(sequence >= due);
            due = sequence + 1;
        }
        Delivered::Gap { missing } => {
            assert!(missing.start >= due && !missing.is_empty());
            due = missing.end;
        }
        Delivered::Session { .. } | Delivered::End => {}
    };
    let Some((round, _)) = reader.poll(1, &mut sink) else { return };
    let Some((round, _)) = reader.handle_bounds(2, round, (1, 0)) else { return };
    reader.handle_entry(3, round, (1, bytes), &mut sink);
    for turn in 1..20 {
        match reader.poll(turn * 1_000_000_000, &mut sink) {
            Some((round, Ask::Want(_))) => {
                reader.handle_want(turn * 1_000_000_000, round, Some(bytes), &mut sink);
            }
            Some((round, Ask::Bounds)) => drop(reader.handle_bounds(turn * 1_000_000_000, round, (1, 1))),
            Some((round, Ask::Get(_))) => {
                if let Some((round, _)) = reader.handle_get(turn * 1_000_000_000, round, Some((1, bytes))) {
                    reader.handle_entry(turn * 1_000_000_000, round, (1, bytes), &mut sink);
                }
            }
            Some((_, Ask::Follow(_))) | None => {}
        }
    }
}

/// An accepted control datagram is one that we could have sent, and is not a MoldUDP64 packet.
pub fn control(data: &[u8]) {
    let Ok(control) = ControlDatagram::parse(data) else { return };
    let mut out = [0; CONTROL_MAX_BYTES];
    let size = control.encode(&mut out);
    assert_eq!(&out[..size], data);
    assert!(is_control(data) && Downstream::parse(data).is_err() && Request::parse(data).is_err());
}

/// Reading a capture ends, and each of its packets is either handed out or counted with a reason.
pub fn pcap(data: &[u8]) {
    let Ok(mut capture) = Capture::open(data, &[]) else { return };
    let mut handed_out = 0;
    while let Ok(Some(datagram)) = capture.read() {
        assert!(datagram.payload.len() <= data.len());
        handed_out += 1;
    }
    let counters = capture.counters;
    let skipped: u64 = Skipped::ALL.iter().map(|&reason| counters.skipped(reason)).sum();
    assert_eq!((counters.datagrams, counters.packets), (handed_out, handed_out + skipped));
}

/// An accepted message of the control socket, encoded and decoded again, means the same.
pub fn socket(data: &[u8]) {
    if let Ok(request) = decode::<SocketRequest>(data) {
        let again: SocketRequest = decode(&encode(&request)).expect("our own words");
        assert_eq!(encode(&again), encode(&request));
    }
    if let Ok(reply) = decode::<Response>(data) {
        let again: Response = decode(&encode(&reply)).expect("our own words");
        assert_eq!(encode(&again), encode(&reply));
    }
    if let Ok(event) = decode::<Event>(data) {
        assert!(decode::<Event>(&encode(&event)).is_ok());
    }
}

/// Either a configuration is valid, or each of its mistakes has a place within the text and a reason.
pub fn config(data: &[u8]) {
    match Config::read(data, "fuzz.toml") {
        // `warnings()` is left out: it looks up the machine's user database, which is slow and is no parser.
        Ok(config) => assert!(config.channels.iter().all(|channel| channel.spec().check().is_ok())),
        Err(ConfigError::Invalid { problems, .. }) => {
            let lines = data.iter().filter(|byte| **byte == b'\n').count() + 1;
            assert!(!problems.is_empty());
            for problem in problems {
                assert!((1..=lines).contains(&problem.position.line), "{problem:?}");
                assert!(problem.position.column >= 1 && !problem.what.is_empty(), "{problem:?}");
            }
        }
        Err(ConfigError::Read { .. }) => assert!(data.len() > 4 << 20),
    }
}

/// An accepted part of a journal's file keeps its meaning when it is written again, and records lie within their frame.
pub fn journal(data: &[u8]) {
    let Some((part, bytes)) = data.split_first() else { return };
    match part % 5 {
        0 => {
            let Ok(header) = FileHeader::decode(bytes) else { return };
            let again = header.encode().expect("it was a page");
            assert_eq!(FileHeader::decode(&again), Ok(header));
        }
        1 => {
            let salt = bytes.get(8..16).map_or(0, |salt| u64::from_le_bytes(salt.try_into().expect("eight")));
            if let Ok(header) = FrameHeader::decode(bytes, salt) {
                assert_eq!(FrameHeader::decode(&header.encode(), salt), Ok(header));
            }
            if let Ok(trailer) = Trailer::decode(bytes, salt) {
                assert_eq!(Trailer::decode(&trailer.encode(salt), salt), Ok(trailer));
            }
        }
        2 => {
            let Ok(index) = Index::decode(bytes) else { return };
            assert_eq!(Index::decode(&index.encode()), Ok(index));
        }
        3 => {
            let Ok(footer) = Footer::decode(bytes) else { return };
            assert_eq!(Footer::decode(&footer.encode()), Ok(footer));
        }
        _ => {
            let Some(([due, messages], body)) = bytes.split_first_chunk() else { return };
            let mut records = Records::resume(body, u64::from(*due), u32::from(*messages));
            let (mut due, mut left) = (records.due(), body.len());
            while let Some(record) = records.next() {
                let Ok(record) = record else { return assert!(records.next().is_none()) };
                assert!(record.sequence == due && records.due() >= due && records.bytes_left() < left);
                (due, left) = (records.due(), records.bytes_left());
            }
            assert_eq!((records.messages_left(), left), (0, 0));
        }
    }
}

/// Takes bytes off the front of the input. When the input is used up, `byte` gives zeros.
struct Script<'a> {
    rest: &'a [u8],
}

impl<'a> Script<'a> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.rest.split_first() else { return 0 };
        self.rest = rest;
        *first
    }

    /// A number that is small in most cases.
    fn number(&mut self) -> u64 {
        let bits = self.byte();
        let number =
            (0..bits / 32).fold(u64::from(self.byte()), |number, _| number << 8 | u64::from(self.byte()));
        if bits == 0xFF { u64::MAX - number } else { number }
    }

    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(count.min(self.rest.len()));
        self.rest = rest;
        taken
    }
}

/// Packets can have any content and come in any order at any time. Delivery is in order, each hole is announced, and memory stays within
/// its bounds.
pub fn receiver(data: &[u8]) {
    let mut script = Script { rest: data };
    let (options, packets) = (script.byte(), 1 + usize::from(script.byte() % 32));
    let policy = match options & 3 {
        0 => GapPolicy::Block,
        1 => GapPolicy::Skip { give_up_ns: 1_000_000 },
        _ => GapPolicy::Skip { give_up_ns: u64::MAX },
    };
    let first = Session::from_bytes(*b"FUZZ000000");
    let config = ReceiverConfig {
        join: match options >> 2 & 3 {
            0 => Join::FirstSeen,
            1 => Join::From(script.number()),
            _ => Join::Resume { session: first, next: script.number() },
        },
        lines: 1 + usize::from(options >> 4 & 1),
        max_early_packets: packets,
        max_early_bytes: packets * 700,
        max_jump: 1 << 10,
        gaps: GapConfig {
            servers: usize::from(options >> 5 & 3),
            policy,
            max_requests: 4,
            max_holes: 16,
            ..GapConfig::default()
        },
        ..ReceiverConfig::following(if options & 0x80 == 0 {
            Follow::Channel(*b"FUZZ")
        } else {
            Follow::First { silence_ns: 1_000_000 }
        })
    };
    let mut receiver = Receiver::new(config);
    let (mut now_ns, mut next, mut delivered) = (0u64, None, 0);
    while !script.rest.is_empty() {
        let mut sink = |delivery: Delivery<'_>| match delivery {
            Delivery::NewSession { next: first, .. } => next = Some(first),
            Delivery::Message { sequence, data, .. } => {
                assert!(data.len() <= usize::from(u16::MAX) && next.is_none_or(|next| next == sequence));
                next = Some(sequence.saturating_add(1));
                delivered += 1;
            }
            Delivery::Gap { missing } => {
                assert!(!missing.is_empty() && next.is_none_or(|next| next == missing.start));
                next = Some(missing.end);
            }
            Delivery::End { next: end, .. } => assert!(next.is_none_or(|next| next == end)),
        };
        let action = script.byte();
        let place = usize::from(action >> 3 & 3);
        let origin = if action & 0x20 == 0 { Origin::Line(place) } else { Origin::Server(place) };
        let mut name = *b"FUZZ000000";
        name[9] += action >> 6;
        let session = Session::from_bytes(name);
        match action & 7 {
            0 => {
                let size = usize::from(script.byte());
                receiver.handle_datagram(now_ns, origin, script.bytes(size), &mut sink);
            }
            1 => {
                let beat = heartbeat(session, script.number());
                receiver.handle_datagram(now_ns, origin, &beat, &mut sink);
            }
            2 => {
                let end = end_of_session(session, script.number());
                receiver.handle_datagram(now_ns, origin, &end, &mut sink);
            }
            3 => {
                let (first, oldest) = (script.number(), script.number());
                receiver.handle_gone(now_ns, place, (session, first, oldest), &mut sink);
            }
            4 => now_ns = now_ns.saturating_add(script.number().saturating_mul(1_000)),
            _ => {
                let mut buffer = [0; 1_400];
                let mut writer = PacketWriter::new(script.number());
                let sizes = script.byte();
                for _ in 0..=sizes % 16 {
                    writer.push(&mut buffer, &[7; 80][..usize::from(sizes / 4)]);
                }
                let bytes = writer.finish(&mut buffer, session).unwrap_or(0);
                receiver.handle_datagram(now_ns, origin, &buffer[..bytes], &mut sink);
            }
        }
        receiver.handle_timeout(now_ns, &mut sink);
        let mut asked = 0;
        while let Some((server, request)) = receiver.poll_request(now_ns) {
            assert!(server < config.gaps.servers && Request::parse(&request).is_ok());
            asked += 1;
            assert!(asked <= 64, "requests without end");
        }
        let state = receiver.state();
        assert!(state.holes <= 2 * (config.gaps.max_holes + config.gaps.max_requests) + 8);
        assert!(state.early_packets <= packets, "{} packets are kept", state.early_packets);
        assert!(state.next <= state.horizon);
    }
    let state = receiver.state();
    let totals = state.counters.totals;
    assert_eq!(totals.messages_delivered, delivered);
    assert_eq!(
        totals.messages_received,
        delivered + totals.messages_duplicate + totals.messages_refused + state.early_messages
    );
}
