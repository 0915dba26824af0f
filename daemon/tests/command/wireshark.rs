//! Wireshark's own MoldUDP64 dissector checks every packet that a bridge sends. It must read what was meant, and find
//! no error.

use shmcast_bridge::pcap::CaptureFile;
use shmcast_bridge::proto::limit::AllowList;
use shmcast_bridge::proto::receiver::{Delivery, Follow, Join, Origin, Receiver, ReceiverConfig};
use shmcast_bridge::proto::replay::{Asker, Held, Holding, Place, Replay, ReplayConfig, Reply};
use shmcast_bridge::proto::sender::{Sender, SenderConfig};
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::proto::wire::{Body, Downstream, MAX_DATAGRAM_BYTES, Meta, Request};
use shmcast_testkit::command::Host;
use shmcast_testkit::{skip, works};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

const PORT: u16 = 30_001;
/// Wireshark's number for the severity "error".
const ERROR: u64 = 0x0080_0000;
const SECOND_NS: u64 = 1_000_000_000;

/// The dissector's reading of one packet.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Dissected {
    session: String,
    sequence: u64,
    count: u64,
    lengths: Vec<u64>,
    sequences: Vec<u64>,
    /// The errors that the dissector found.
    errors: Vec<String>,
}

/// The ends of a capture, by both protocols.
const ENDS: [(&str, &str); 2] =
    [("10.0.0.1:40000", "239.1.2.3:30001"), ("[fd00::1]:40000", "[ff35::8000:1]:30001")];

fn has_tshark(test: &str) -> bool {
    let is_there = works("tshark", &["--version"]);
    if !is_there {
        skip(test, "tshark is not installed");
    }
    is_there
}

/// Writes packets into a capture between these ends and lets tshark read it. `None` if tshark is not installed.
fn dissect(test: &str, (from, to): (&str, &str), packets: &[Vec<u8>]) -> Option<Vec<Dissected>> {
    if !has_tshark(test) {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("packets.pcap");
    let file = CaptureFile::create(&path, MAX_DATAGRAM_BYTES).unwrap();
    let [from, to]: [SocketAddr; 2] = [from, to].map(|end| end.parse().unwrap());
    let tap = file.tap.clone();
    for (index, packet) in packets.iter().enumerate() {
        tap.record(1_700_000_000 * SECOND_NS + index as u64, from, to, packet);
    }
    let captured = file.finish().unwrap();
    assert_eq!((captured.packets, captured.dropped), (packets.len() as u64, 0));
    Some(tshark(&path, dir.path()))
}

fn tshark(capture: &Path, home: &Path) -> Vec<Dissected> {
    let mut command = Command::new("tshark");
    // tshark also checks checksums, because our own code computes those of the capture.
    command.args(["-n", "-o", "udp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE", "-r"]).arg(capture);
    command.args(["-d", &format!("udp.port=={PORT},moldudp64"), "-T", "fields", "-E", "separator=;"]);
    for field in [
        "moldudp64.session",
        "moldudp64.sequence",
        "moldudp64.count",
        "moldudp64.msglen",
        "moldudp64.msgseq",
        "_ws.expert.severity",
        "_ws.expert.message",
    ] {
        command.args(["-e", field]);
    }
    let output = command.env("HOME", home).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    text.lines().map(dissected).collect()
}

fn dissected(line: &str) -> Dissected {
    let fields: Vec<&str> = line.splitn(7, ';').collect();
    let [session, sequence, count, lengths, sequences, severities, messages] = fields[..] else {
        panic!("tshark said {line:?}");
    };
    let numbers = |list: &str| -> Vec<u64> {
        list.split(',').filter(|n| !n.is_empty()).map(|n| n.parse().unwrap()).collect()
    };
    let is_wrong = numbers(severities).iter().any(|&severity| severity >= ERROR);
    Dissected {
        errors: if is_wrong { vec![messages.to_owned()] } else { Vec::new() },
        session: session.to_owned(),
        sequence: sequence.parse().unwrap_or_else(|_| panic!("not taken for MoldUDP64: {line:?}")),
        count: count.parse().unwrap(),
        lengths: numbers(lengths),
        sequences: numbers(sequences),
    }
}

/// Our own parser's reading of a packet: the meaning that was intended.
fn meant(packet: &[u8]) -> Dissected {
    let packet = Downstream::parse(packet).unwrap();
    let (count, messages) = match packet.body {
        Body::Heartbeat => (0, Vec::new()),
        Body::End => (0xFFFF, Vec::new()),
        Body::Messages(messages) => {
            (messages.count(), messages.messages().map(|message| (message.sequence, message.data)).collect())
        }
        Body::Fragment(fragment) => panic!("a plain packet with {fragment:?}"),
    };
    Dissected {
        session: String::from_utf8(packet.session.as_bytes().to_vec()).unwrap(),
        sequence: packet.sequence,
        count,
        lengths: messages.iter().map(|(_, data)| data.len() as u64).collect(),
        sequences: messages.iter().map(|(sequence, _)| *sequence).collect(),
        errors: Vec::new(),
    }
}

fn assert_agrees(test: &str, packets: &[Vec<u8>]) {
    for ends in ENDS {
        let Some(found) = dissect(test, ends, packets) else { return };
        assert_eq!(found.len(), packets.len());
        for (found, packet) in found.iter().zip(packets) {
            // Only some versions of the dissector show the padding.
            let trimmed = |packet: &Dissected| Dissected {
                session: packet.session.trim_end().to_owned(),
                ..packet.clone()
            };
            assert_eq!(trimmed(found), trimmed(&meant(packet)), "{ends:?}");
        }
    }
}

/// The packets of messages of these sizes, from `first` on.
fn sent(payload_bytes: usize, session: Session, first: u64, sizes: &[usize]) -> Vec<Vec<u8>> {
    let config = SenderConfig { payload_bytes, batch: 256, ..SenderConfig::default() };
    let mut sender = Sender::new(config, session, first, 0);
    for (sequence, &size) in (first..).zip(sizes) {
        sender.push_with(sequence, &vec![sequence as u8; size], Meta::default()).unwrap();
    }
    sender.close();
    sender.datagrams().map(<[u8]>::to_vec).collect()
}

#[test]
fn every_data_packet_reads_as_it_was_meant() {
    let session = Session::of_channel("TICK", 12_345).unwrap();
    let mut packets = sent(1_400, session, 1, &[64]);
    packets.extend(sent(1_400, session, u64::from(u32::MAX) - 3, &[8, 0, 1, 700, 1_378, 0, 0]));
    packets.extend(sent(1_400, session, u64::MAX / 2, &vec![30; 200]));
    packets.extend(sent(1_400, Session::named("000123").unwrap(), 7, &vec![0; 690]));
    packets.extend(sent(MAX_DATAGRAM_BYTES, session, 1, &[MAX_DATAGRAM_BYTES - 22, 40_000, 20_000]));
    assert!(packets.len() > 8, "{}", packets.len());
    assert_agrees("every_data_packet_reads_as_it_was_meant", &packets);
}

#[test]
fn heartbeats_and_ends_read_as_they_were_meant() {
    let session = Session::of_channel("TICK", 1).unwrap();
    let mut sender = Sender::new(SenderConfig::default(), session, 1, 0);
    let mut packets = vec![sender.poll_idle(0).unwrap().to_vec()];
    sender.push_with(1, b"the only one", Meta::default()).unwrap();
    sender.close();
    packets.extend(sender.datagrams().map(<[u8]>::to_vec));
    sender.clear(1);
    packets.push(sender.poll_idle(SECOND_NS).unwrap().to_vec());
    sender.end(2 * SECOND_NS);
    packets.push(sender.poll_idle(2 * SECOND_NS).unwrap().to_vec());
    packets.push(sender.poll_idle(4 * SECOND_NS).unwrap().to_vec());
    let counts: Vec<u64> = packets.iter().map(|packet| meant(packet).count).collect();
    assert_eq!(counts, [0, 1, 0, 0xFFFF, 0xFFFF]);
    assert_agrees("heartbeats_and_ends_read_as_they_were_meant", &packets);
}

/// A receiver asks for a hole, and a server answers. The dissector reads both.
#[test]
fn requests_and_their_answers_read_as_they_were_meant() {
    let session = Session::of_channel("TICK", 1).unwrap();
    let config = ReceiverConfig { join: Join::From(1), ..ReceiverConfig::following(Follow::Only(session)) };
    let mut receiver = Receiver::new(config);
    let mut delivered = Vec::new();
    let lost = sent(1_400, session, 1, &vec![50; 40]);
    for packet in sent(1_400, session, 41, &[50]) {
        receiver.handle_datagram(0, Origin::Line(0), &packet, &mut |_| ());
    }
    receiver.handle_timeout(SECOND_NS, &mut |_| ());
    let (_, request) = receiver.poll_request(SECOND_NS).expect("a hole is asked for");
    let asked = Request::parse(&request).unwrap();
    assert_eq!((asked.first, lost.len()), (1, 2));

    let allow = AllowList::new(vec!["10.0.0.0/8".parse().unwrap()]);
    let mut replay = Replay::new(ReplayConfig { allow, ..ReplayConfig::default() });
    let mut out = vec![0; 1_400];
    let answer = replay.handle_request(
        SECOND_NS,
        Asker { from: "10.0.0.2:40000".parse().unwrap(), is_proved: true, has_waited: false },
        &request,
        Holding { session, held: Held { oldest: 1, next: 42, place: Place::Ring, is_backed: false } },
        &mut out,
        |sequence, room| {
            room.get_mut(..50)?.fill(sequence as u8);
            Some(50)
        },
    );
    let Reply::Messages { bytes, count, .. } = answer else { panic!("{answer:?}") };
    assert!(count <= asked.count && count > 20, "{count} of {}", asked.count);
    let reply = out[..bytes].to_vec();
    receiver.handle_datagram(SECOND_NS, Origin::Server(0), &reply, &mut |delivery| {
        if let Delivery::Message { sequence, .. } = delivery {
            delivered.push(sequence);
        }
    });
    assert_eq!(delivered, (1..=u64::from(count)).collect::<Vec<_>>());
    assert_agrees("requests_and_their_answers_read_as_they_were_meant", &[reply]);

    // A request has a data packet's header and no data. The dissector calls that a request.
    for ends in ENDS {
        let test = "requests_and_their_answers_read_as_they_were_meant";
        let Some(found) = dissect(test, ends, &[request.to_vec()]) else { return };
        let found = &found[0];
        assert_eq!((found.session.trim_end(), found.sequence), ("TICK000001", 1));
        assert_eq!((found.count, &found.lengths[..]), (u64::from(asked.count), &[][..]));
        assert_eq!(found.errors, [""; 0]);
    }
}

/// `shmcast bridge send --pcap` writes all packets of a real channel, without an error.
#[test]
fn what_a_bridge_says_it_sent_is_what_was_published() {
    if !has_tshark("what_a_bridge_says_it_sent_is_what_was_published") {
        return;
    }
    let host = Host::new();
    let input = host.file("input", (1..=2_000).map(|n| format!("{n}\n")).collect::<String>().as_bytes());
    let capture = host.dir.path().join("sent.pcap");
    let words = format!(
        "bridge send t --to 127.0.0.1:{PORT} --set send.from=oldest --wait-channel --until-end --set send.linger_ms=1000 --pcap {}",
        capture.display()
    );
    let bridge = host.start(&words);
    let words =
        format!("pub t --input {} --capacity 1MiB --set max_message=1378 --rate 200000/s", input.display());
    assert!(host.run(&words).status.success());
    bridge.end();
    let found = tshark(&capture, host.dir.path());
    assert!(found.iter().all(|packet| packet.errors.is_empty()), "{found:?}");
    let sequences: Vec<u64> = found.iter().flat_map(|packet| packet.sequences.clone()).collect();
    assert_eq!(sequences, (1..=2_000).collect::<Vec<_>>());
    let lengths: u64 = found.iter().flat_map(|packet| &packet.lengths).sum();
    assert_eq!(lengths, (1..=2_000u64).map(|n| n.to_string().len() as u64).sum::<u64>());
    let ends = found.iter().filter(|packet| packet.count == 0xFFFF);
    assert!(ends.clone().count() > 1 && ends.clone().all(|end| end.sequence == 2_001), "the end is repeated");
}

/// The dissector must also find errors. Otherwise the other tests would prove nothing.
#[test]
fn the_judge_finds_what_is_wrong() {
    let session = Session::of_channel("TICK", 1).unwrap();
    let mut past_the_end = sent(1_400, session, 1, &[50, 50]).remove(0);
    past_the_end.truncate(100);
    let Some(found) = dissect("the_judge_finds_what_is_wrong", ENDS[1], &[past_the_end]) else { return };
    assert_eq!(found[0].errors.len(), 1, "{found:?}");
}
