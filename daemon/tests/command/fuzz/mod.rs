//! The fuzz targets on the stable compiler: the same functions, with valid inputs that a seeded generator damages.
//!
//! `SHMCAST_FUZZ_RUNS` sets the number of inputs of each target, and `SHMCAST_FUZZ_SEED` the first seed. A failure
//! names the seed that reproduces it.

#[allow(unreachable_pub, reason = "public for the programs in daemon/fuzz/fuzz_targets")]
mod targets;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fastrand::Rng;
use shmcast::control::{Event, Request as SocketRequest, Required, Response, VERSION, decode, encode};
use shmcast::journal::format::{
    FILE_HEADER_BYTES, FRAME_HEADER_BYTES, FileHeader, FrameHeader, FrameKind, TRAILER_BYTES, aligned,
};
use shmcast_bridge::pcap::CaptureFile;
use shmcast_bridge::proto::control::{CONTROL_MAX_BYTES, ControlDatagram};
use shmcast_bridge::proto::native::keys::Keyring;
use shmcast_bridge::proto::native::pulse::Pulse;
use shmcast_bridge::proto::native::seal::Sealer;
use shmcast_bridge::proto::sender::{MAX_PULSE_BYTES, Sender, SenderConfig};
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::proto::wire::{Meta, PacketWriter, Request, end_of_session, heartbeat};
use shmcast_daemon::config::DEFAULT_CONFIG;
use shmcast_engine::proto::block::{Cut, Head, Kind, Packing, Stream};
use shmcast_engine::proto::seal::Sealer as BlockSealer;
use shmcast_engine::proto::want::{Want, Wanted};
use shmcast_testkit::number;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;

/// Runs a target over the inputs that libFuzzer generated or that once broke it, over damaged copies of `sound`, and
/// over plain noise.
fn fuzz(name: &str, runs: u64, sound: &[Vec<u8>], target: fn(&[u8])) {
    sound.iter().for_each(|input| target(input));
    assert!(replay(&bred(name), name, target) > 0, "{name}: daemon/fuzz/corpus has nothing for it");
    replay(&once_broken(name), name, target);
    let first_seed: u64 = number("SHMCAST_FUZZ_SEED", 0);
    for seed in first_seed..first_seed + number("SHMCAST_FUZZ_RUNS", runs) {
        let input = damaged(&mut Rng::with_seed(seed), sound);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(&input))) {
            eprintln!(
                "{name}: SHMCAST_FUZZ_SEED={seed} SHMCAST_FUZZ_RUNS=1: {:02x?}",
                &input[..input.len().min(2_000)]
            );
            resume_unwind(panic);
        }
    }
}

/// Inputs, each with the place that it has in the tree.
type Inputs = Vec<(String, Vec<u8>)>;

/// The inputs that libFuzzer generated: the lines of `daemon/fuzz/corpus/NAME.base64`, each in base64.
fn bred(name: &str) -> Inputs {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("fuzz/corpus/{name}.base64"));
    let text = std::fs::read_to_string(&path).unwrap();
    let input = |(line, text): (usize, &str)| {
        (format!("corpus/{name}.base64:{line}"), STANDARD.decode(text).unwrap())
    };
    (1..).zip(text.lines()).map(input).collect()
}

/// The inputs that once broke the target: the files of `daemon/fuzz/regressions/NAME`.
fn once_broken(name: &str) -> Inputs {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/regressions").join(name);
    // A target without regressions has no folder for them.
    let Ok(files) = std::fs::read_dir(&dir) else { return Vec::new() };
    let paths = files.map(|file| file.unwrap().path());
    paths.map(|path| (path.display().to_string(), std::fs::read(&path).unwrap())).collect()
}

/// Runs the target over the inputs. Returns their number.
fn replay(inputs: &Inputs, name: &str, target: fn(&[u8])) -> usize {
    for (place, input) in inputs {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(input))) {
            eprintln!("{name}: {place}");
            resume_unwind(panic);
        }
    }
    inputs.len()
}

fn damaged(rng: &mut Rng, sound: &[Vec<u8>]) -> Vec<u8> {
    if sound.is_empty() || rng.u8(..8) == 0 {
        return (0..rng.usize(..400)).map(|_| rng.u8(..)).collect();
    }
    let mut input = sound[rng.usize(..sound.len())].clone();
    for _ in 0..rng.usize(..6) {
        let at = rng.usize(..=input.len());
        match rng.u8(..6) {
            0 => input.truncate(at),
            1 => input.insert(at, rng.u8(..)),
            2 => {
                let other = &sound[rng.usize(..sound.len())];
                input.truncate(at);
                input.extend(&other[rng.usize(..=other.len())..]);
            }
            _ if at == input.len() => {}
            3 => drop(input.remove(at)),
            4 => input[at] ^= 1 << rng.u8(..8),
            // Sums go wrong at the ends of a number's range.
            _ => input[at] = *rng.choice(&[0, 1, 0x7F, 0x80, 0xFE, 0xFF]).unwrap(),
        }
    }
    input
}

fn session() -> Session {
    Session::of_channel("FUZZ", 0).unwrap()
}

fn packet(first: u64, sizes: &[usize]) -> Vec<u8> {
    let mut buffer = vec![0; 1_400];
    let mut writer = PacketWriter::new(first);
    for &size in sizes {
        assert!(writer.push(&mut buffer, &vec![7; size]));
    }
    let bytes = writer.finish(&mut buffer, session()).unwrap();
    buffer.truncate(bytes);
    buffer
}

#[test]
fn no_bytes_break_the_packets() {
    let request = Request { session: session(), first: 7, count: 30 };
    let sound = [
        packet(1, &[5, 0, 40]),
        packet(u64::MAX - 3, &[1, 1, 1]),
        heartbeat(session(), 9).to_vec(),
        end_of_session(session(), u64::MAX).to_vec(),
        request.encode().to_vec(),
    ];
    fuzz("wire", 50_000, &sound, targets::wire);
}

#[test]
fn no_bytes_break_the_native_packets() {
    let config = SenderConfig { payload_bytes: 400, batch: 64, linger_ns: 1 };
    let mut sender = Sender::native(config, session(), 5, 0, Sealer::new(9, false));
    for (sequence, size) in (5..).zip([10, 0, 200, 1_000, 3]) {
        let meta = Meta { tag: sequence as u16, key: sequence == 6, time_ns: sequence * 1_000 };
        sender.push_with(sequence, &vec![7; size], meta).unwrap();
    }
    sender.close();
    let mut sound: Vec<Vec<u8>> = sender.datagrams().map(<[u8]>::to_vec).collect();
    sender.clear(0);
    let mut pulse = [0; MAX_PULSE_BYTES];
    let size = sender.poll_pulse(u64::MAX / 2, Pulse::default, &mut pulse).unwrap();
    sound.push(pulse[..size].to_vec());
    sound.push(b"3 000102030405060708090a0b0c0d0e0f from 2026-11-24T07:00:00Z\n".to_vec());
    fuzz("native", 50_000, &sound, targets::native);
}

#[test]
fn no_bytes_break_the_blocks_of_an_engine() {
    let keys = Keyring::parse("3 000102030405060708090a0b0c0d0e0f").unwrap();
    let head = Head {
        kind: Kind::Data,
        clock_error: 1,
        stream: Stream([7; 16]),
        session: session(),
        key: 0,
        count: 0,
        first: 0,
        before: 0,
        crc: 0,
        writer: 5,
        number: 1,
    };
    let (open, mut sealer) = (BlockSealer::default(), BlockSealer::default());
    sealer.set_key(5, keys.sealing(0));
    let mut packing = Packing::new(1 << 10);
    let mut packed = || {
        for (sequence, size) in (1..).zip([10, 0, 200, 3]) {
            let meta = Meta { tag: sequence as u16, key: sequence == 2, time_ns: sequence * 1_000 };
            assert!(packing.push(sequence, &vec![7; size], meta));
        }
        packing.cut().unwrap()
    };
    let part = |offset| Cut::part(1, &[5; 3_000], Meta::default(), offset, 1 << 10);
    let sound = [
        packed().finish(head, &open).0,
        packed().finish(head, &sealer).0,
        part(0).finish(head, &open).0,
        part(2_500).finish(head, &open).0,
        Cut::gap(1, 9).finish(head, &open).0,
        Cut::gap(5, u64::MAX - 1).finish(head, &open).0,
        Cut::end(4).finish(head, &sealer).0,
        Want { session: session(), first: 7, wanted: Wanted::Exact(3) }.encode().to_vec(),
        Want::any(session(), 7, 9).encode().to_vec(),
    ];
    fuzz("block", 30_000, &sound, targets::block);
}

#[test]
fn no_bytes_break_the_control_datagrams() {
    let (nonce, cookie) = (3, [9; 24]);
    let kinds = [
        ControlDatagram::Hello { nonce },
        ControlDatagram::Cookie { nonce, cookie },
        ControlDatagram::Subscribe { nonce, cookie, live: true, lease_ms: 60_000 },
        ControlDatagram::Granted { nonce, cookie, lease_ms: 1 },
        ControlDatagram::Unsubscribe { nonce, cookie },
        ControlDatagram::Released { nonce },
        ControlDatagram::Full { nonce },
        ControlDatagram::Gone { session: session(), first: 1, oldest: 5 },
        ControlDatagram::Later { session: session(), first: 1 },
    ];
    let encode = |control: ControlDatagram| {
        let mut out = [0; CONTROL_MAX_BYTES];
        let size = control.encode(&mut out);
        out[..size].to_vec()
    };
    fuzz("control", 50_000, &kinds.map(encode), targets::control);
}

#[test]
fn no_file_breaks_the_reader_of_captures() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sound.pcap");
    let file = CaptureFile::create(&path, 200).unwrap();
    for to in ["239.1.2.3:5000", "[ff02::1]:5000"] {
        file.tap.record(1_700_000_000, "10.0.0.1:4000".parse().unwrap(), to.parse().unwrap(), &[7; 100]);
    }
    file.finish().unwrap();
    let raw = std::fs::read(&path).unwrap();
    // The same bytes read as Ethernet, cooked and loopback frames are mostly nonsense, on purpose.
    let as_link = |link: u8| [&raw[..20], &[link], &raw[21..]].concat();
    let ng = include_bytes!("samples/two-interfaces.pcapng").to_vec();
    let sound = [raw.clone(), as_link(1), as_link(113), as_link(0), ng];
    fuzz("pcap", 500, &sound, targets::pcap);
}

#[test]
fn no_words_break_the_control_socket() {
    let channel = || "ticks".to_owned();
    let mut sound: Vec<Vec<u8>> = [
        SocketRequest::Hello { version: VERSION },
        SocketRequest::Publish {
            channel: channel(),
            resume: true,
            anew: false,
            required: Required::default(),
        },
        SocketRequest::Subscribe {
            channel: channel(),
            resume: false,
            park: true,
            hidden: false,
            watch: true,
        },
    ]
    .iter()
    .map(encode)
    .collect();
    sound.extend([Response::Publishing { generation: 1, gates: 1 }].iter().map(encode));
    sound.push(br#"{"reply":"refused","code":"denied","why":"because"}"#.to_vec());
    let event = br#"{"time_ns":1,"event":"attached","channel":"ticks","detail":""}"#.to_vec();
    assert!(decode::<Event>(&event).is_ok());
    sound.push(event);
    fuzz("socket", 50_000, &sound, targets::socket);
}

#[test]
fn no_text_breaks_the_configuration() {
    let every_field: String = DEFAULT_CONFIG
        .lines()
        // Optional fields of the file come after a bare `#`.
        .map(|line| {
            format!("{}\n", line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line))
        })
        .collect();
    targets::config(every_field.as_bytes());
    let sound = [
        DEFAULT_CONFIG.as_bytes().to_vec(),
        every_field.into_bytes(),
        b"[[channel]]\nname = \"ticks\"\ncapacity = \"1MiB\"\nlabels = { venue = \"XETR\" }\n".to_vec(),
        b"[daemon]\nhttp = \"127.0.0.1:9464\"\n[limits]\nrequest_burst = 3\n".to_vec(),
    ];
    fuzz("config", 1_000, &sound, targets::config);
}

#[test]
fn no_bytes_break_the_reading_of_a_journal() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shm-layout/tests/golden/journal");
    let mut sound = Vec::new();
    for file in std::fs::read_dir(golden).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "smj") {
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        let header = FileHeader::decode(&bytes).unwrap();
        sound.push([&[0], &bytes[..FILE_HEADER_BYTES]].concat());
        let mut at = FILE_HEADER_BYTES;
        while let Ok(frame) = FrameHeader::decode(&bytes[at.min(bytes.len())..], header.salt) {
            let body = &bytes[at + FRAME_HEADER_BYTES..][..frame.length as usize];
            sound.push([&[1], &bytes[at..at + FRAME_HEADER_BYTES]].concat());
            sound.push(match frame.kind {
                FrameKind::Index => [&[2], body].concat(),
                FrameKind::Footer => [&[3], body].concat(),
                _ => [&[4, frame.sequence as u8, frame.messages as u8], body].concat(),
            });
            at += FRAME_HEADER_BYTES + aligned(frame.length as usize);
        }
        sound.push([&[1], &bytes[bytes.len() - TRAILER_BYTES..]].concat());
    }
    assert!(sound.len() > 8, "{} parts of golden files", sound.len());
    fuzz("journal", 50_000, &sound, targets::journal);
}

#[test]
fn no_script_of_packets_breaks_a_receiver() {
    // Each script is: options; then packets from 1 on, a later one, time, the missing ones from a server, a heartbeat,
    // an end.
    let sound = [
        vec![0x20, 20, 5, 0, 1, 17, 5, 0, 30, 17, 4, 64, 1, 1, 1, 0x25, 0, 3, 17, 1, 0, 60, 2, 0, 60],
        vec![0xB1, 3, 5, 0, 9, 200, 0x45, 0, 1, 17, 4, 200, 9, 9, 9, 9, 9, 9, 1, 255, 0, 3, 0, 1, 0, 9],
        vec![0x7E, 9, 5, 0, 2, 33, 0x0D, 0, 80, 33, 0x15, 0, 5, 33, 4, 32, 9, 9, 0x35, 0, 20, 99],
    ];
    fuzz("receiver", 30_000, &sound, targets::receiver);
}
