//! Wireshark takes every native packet, sealed and not, for a sound MoldUDP64 packet of one message. Our own script
//! for Wireshark shows what is inside.

use shmcast_bridge::pcap::CaptureFile;
use shmcast_bridge::proto::control::{CONTROL_MAX_BYTES, ControlDatagram};
use shmcast_bridge::proto::native::ask::{self, Entry};
use shmcast_bridge::proto::native::container::{HEAD_BYTES, Kind, SEAL_BYTES};
use shmcast_bridge::proto::native::keys::Keyring;
use shmcast_bridge::proto::native::pulse::Pulse;
use shmcast_bridge::proto::native::seal::Sealer;
use shmcast_bridge::proto::sender::{MAX_PULSE_BYTES, Sender, SenderConfig};
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::proto::wire::Meta;
use shmcast_testkit::{scratch, skip};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

const PORT: u16 = 30_001;
/// Wireshark's number for the severity "error".
const ERROR: u64 = 0x0080_0000;

fn sealer(is_receiver: bool, is_sealed: bool) -> Sealer {
    let mut sealer = Sealer::new(0x0102_0304_0506_0708, is_receiver);
    let keys = Keyring::parse("7 000102030405060708090a0b0c0d0e0f").unwrap();
    sealer.set_key(keys.sealing(0).filter(|_| is_sealed));
    sealer
}

/// Packets of every kind.
fn packets(is_sealed: bool) -> Vec<Vec<u8>> {
    let session = Session::of_channel("TICK", 12_345).unwrap();
    let config = SenderConfig { batch: 256, ..SenderConfig::default() };
    let mut sender = Sender::native(config, session, 1, 0, sealer(false, is_sealed));
    let meta = |n: u64| Meta { tag: n as u16 * 3, key: n == 2, time_ns: (1 << 60) + n * 100 };
    for (sequence, size) in (1..).zip([64, 0, 1_000, 30, 5_000, 8]) {
        sender.push_with(sequence, &vec![sequence as u8; size], meta(sequence)).unwrap();
    }
    sender.close();
    let mut all: Vec<Vec<u8>> = sender.datagrams().map(<[u8]>::to_vec).collect();
    sender.clear(0);
    for _ in 0..2 {
        let mut out = [0; MAX_PULSE_BYTES];
        let state = || Pulse { clock_error_ns: 77, ..Pulse::default() };
        let size = sender.poll_pulse(1 << 40, state, &mut out).unwrap();
        all.push(out[..size].to_vec());
        sender.end(1 << 40);
    }
    let (mut asks, mut out) = (sealer(true, is_sealed), [0; 400]);
    let entries = [
        Entry { first: 3, count: 9, offset: 0, bytes: 0 },
        Entry { first: 5, count: 1, offset: 1_300, bytes: 2_600 },
    ];
    let body = ask::write(entries.into_iter(), &mut out[HEAD_BYTES..]);
    let size = asks.finish(&mut out, (Kind::Ask, false), (session, 3, 0), body).unwrap();
    all.push(out[..size].to_vec());
    let mut control = [0; CONTROL_MAX_BYTES];
    let size = ControlDatagram::Gone { session, first: 3, oldest: 4 }.encode(&mut control);
    let (kind, body) = ControlDatagram::body_of(&control[..size]).unwrap();
    out[HEAD_BYTES..HEAD_BYTES + body.len()].copy_from_slice(body);
    let size = asks.finish(&mut out, (Kind::Control(kind), false), (session, 1, 0), body.len()).unwrap();
    all.push(out[..size].to_vec());
    all
}

/// The ends of a capture, by both protocols.
const ENDS: [(&str, &str); 2] =
    [("10.0.0.1:40000", "239.1.2.3:30001"), ("[fd00::1]:40000", "[ff35::8000:1]:30001")];

/// The fields that tshark prints, a line for each packet. `None` if it is not installed.
fn tshark(
    test: &str,
    (from, to): (&str, &str),
    packets: &[Vec<u8>],
    script: Option<&Path>,
    fields: &[&str],
) -> Option<Vec<Vec<String>>> {
    if Command::new("tshark").arg("--version").output().is_err() {
        skip(test, "tshark is not installed");
        return None;
    }
    let dir = scratch();
    let path = dir.path().join("packets.pcap");
    let file = CaptureFile::create(&path, 65_507).unwrap();
    let [from, to]: [SocketAddr; 2] = [from, to].map(|end| end.parse().unwrap());
    let tap = file.tap.clone();
    packets.iter().for_each(|packet| tap.record(1_700_000_000_000_000_000, from, to, packet));
    assert_eq!(file.finish().unwrap().dropped, 0);
    let mut command = Command::new("tshark");
    if let Some(script) = script {
        command.arg("-X").arg(format!("lua_script:{}", script.display()));
    }
    command.arg("-n").arg("-r").arg(&path);
    command.args(["-d", &format!("udp.port=={PORT},moldudp64"), "-T", "fields", "-E", "separator=;"]);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command.env("HOME", dir.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains("Lua"), "{said}");
    let text = String::from_utf8(output.stdout).unwrap();
    Some(text.lines().map(|line| line.split(';').map(str::to_owned).collect()).collect())
}

#[test]
fn every_native_packet_is_a_sound_packet_of_one_message() {
    let test = "every_native_packet_is_a_sound_packet_of_one_message";
    for (is_sealed, ends) in [false, true].into_iter().flat_map(|sealed| ENDS.map(|ends| (sealed, ends))) {
        let all = packets(is_sealed);
        let fields = ["moldudp64.count", "moldudp64.msglen", "_ws.expert.severity", "_ws.expert.message"];
        let Some(read) = tshark(test, ends, &all, None, &fields) else { return };
        assert_eq!(read.len(), all.len());
        for (packet, line) in all.iter().zip(&read) {
            assert_eq!(line[..2], ["1".to_owned(), (packet.len() - 22).to_string()], "{line:?}");
            let severities = line[2].split(',').filter_map(|number| number.parse::<u64>().ok());
            assert!(severities.into_iter().all(|severity| severity < ERROR), "{line:?}");
        }
    }
}

#[test]
fn our_script_shows_the_inside() {
    ENDS.into_iter().for_each(the_script_shows_the_inside);
}

fn the_script_shows_the_inside(ends: (&str, &str)) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/shmcast.lua");
    let fields =
        ["shmcast.kind", "shmcast.sealed", "shmcast.key", "shmcast.tag", "shmcast.offset", "shmcast.next"];
    let fields = [&fields[..], &["shmcast.first", "shmcast.control"]].concat();
    let shown =
        |is_sealed| tshark("our_script_shows_the_inside", ends, &packets(is_sealed), Some(&script), &fields);
    let (Some(open), Some(sealed)) = (shown(false), shown(true)) else { return };
    let kinds = |read: &[Vec<String>]| read.iter().map(|line| line[0].clone()).collect::<Vec<_>>();
    assert_eq!(kinds(&open), ["1", "2", "2", "2", "2", "1", "4", "4", "5", "40"]);
    assert_eq!(kinds(&sealed), kinds(&open));
    assert_eq!(open[0][3], "3,6,9,12", "the tags of four messages");
    assert_eq!(
        open[2][4],
        (1_400 - HEAD_BYTES - 20 - SEAL_BYTES).to_string(),
        "where the second fragment begins"
    );
    assert_eq!((open[6][5].as_str(), open[8][6].as_str(), open[9][7].as_str()), ("7", "3,5", "8"));
    assert!(open.iter().all(|line| line[2] == "0"));
    // Of a sealed packet only the head is shown.
    assert!(
        sealed.iter().all(|line| line[2] == "7" && line[3..7].iter().all(String::is_empty)),
        "{sealed:?}"
    );
}
