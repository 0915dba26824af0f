//! An attacker without the key, on a host at the wire of a sealed feed. He hears every packet, and sends packets of each form below to the
//! group and to the server, as fast as the feed's readers follow. `SHMCAST_FORGERIES` sets how many packets of each form go to each of the
//! two.

use super::daemons::{GROUP, SERVER, bridge, daemon, receives, sends, with_fields};
use super::feed::{Feed, assert_all_have_all, count, readers};
use super::native::sealed;
use serde_json::{Value, json};
use shmcast::sys::datagrams::{self, BATCH};
use shmcast_bridge::proto::native::container::{Container, HEAD_BYTES, Kind, Numbers, SEAL_BYTES};
use shmcast_bridge::proto::native::fragments::Fragment;
use shmcast_bridge::proto::native::keys::Keyring;
use shmcast_bridge::proto::native::pulse::Pulse;
use shmcast_bridge::proto::native::records::RecordWriter;
use shmcast_bridge::proto::native::seal::Sealer;
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::proto::wire::Meta;
use shmcast_bridge::socket::{RefusedSettings, Tuning, open_line, open_sender};
use shmcast_bridge::spec::LineSpec;
use shmcast_testkit::hosts::{Host, Hosts};
use shmcast_testkit::{number, wait_for};
use std::net::SocketAddr;
use std::time::Duration;

const FORMS: [&str; 10] = [
    "noise",
    "replayed",
    "one bit changed",
    "cut short",
    "too long",
    "without a seal",
    "of another session",
    "sealed with another key",
    "of a key that nobody has",
    "a right head and a wrong seal",
];
/// The sizes of a full packet, and of the longest datagram that the wire carries whole.
const PACKET_BYTES: usize = 1_400;
const WIRE_BYTES: usize = 1_472;
/// The number of heard packets that are kept.
const HEARD: usize = 512;

/// The forger. He knows only what went over the wire.
struct Forger {
    rng: fastrand::Rng,
    heard: Vec<Vec<u8>>,
    /// The session, and the sequence after the newest that he heard.
    session: Session,
    next: u64,
    wrong: Keyring,
}

impl Forger {
    fn note(&mut self, packet: &[u8]) {
        let Ok((container, _)) = Container::parse(packet) else { return };
        self.session = container.session;
        self.next = self.next.max(container.sequence + u64::from(container.messages));
        match self.heard.len() {
            HEARD => self.heard[self.rng.usize(..HEARD)] = packet.to_vec(),
            _ => self.heard.push(packet.to_vec()),
        }
    }

    /// Makes the forged packet with this form and number.
    fn forge(&mut self, form: usize, number: u64) -> Vec<u8> {
        let mut real = self.heard[self.rng.usize(..self.heard.len())].clone();
        let (at, size) = (self.rng.usize(..real.len()), real.len());
        match form {
            0 => real = self.noise(0..PACKET_BYTES),
            1 => {}
            2 => real[at] ^= 1 << self.rng.u8(..8),
            3 => real.truncate(at),
            4 => real.extend(self.noise(1..WIRE_BYTES + 1 - size)),
            5 => return self.own(number, self.session, 0, 0),
            6 => return self.own(number, Session::named("stranger").unwrap(), 0, 0),
            7 => return self.sealed(number),
            8 => return self.own(number, self.session, 9, SEAL_BYTES),
            _ => {
                // The head is that of a packet that the sender has not sent yet.
                let (container, _) = Container::parse(&real).unwrap();
                let later = Container { number: container.number + 1 + number, ..container };
                let later = Container { sequence: self.next.max(1), ..later };
                later.write(&mut real, size - HEAD_BYTES).unwrap();
                let tag = self.noise(SEAL_BYTES..SEAL_BYTES + 1);
                real[size - SEAL_BYTES..].copy_from_slice(&tag);
            }
        }
        real
    }

    fn noise(&mut self, sizes: std::ops::Range<usize>) -> Vec<u8> {
        let mut bytes = vec![0; self.rng.usize(sizes)];
        self.rng.fill(&mut bytes);
        bytes
    }

    /// A kind of packet, and a body for this kind. The body is valid if the forger can make a valid one.
    fn body(&mut self, number: u64) -> (Kind, u64, u16, Vec<u8>) {
        let next = self.next.max(1) + [0, 1, 50_000, 1 << 20][self.rng.usize(..4)];
        let mut bytes = vec![0; PACKET_BYTES];
        match number % 21 {
            0 => {
                let mut records = RecordWriter::new(next);
                assert!(records.push(&mut bytes, b"never published", Meta::default()));
                let size = records.finish(&mut bytes).unwrap();
                (Kind::Data, next, 1, bytes[HEAD_BYTES..HEAD_BYTES + size].to_vec())
            }
            1 => {
                let part = Fragment { meta: Meta::default(), total: 1 << 24, offset: 0, data: b"forged" };
                let size = part.write(&mut bytes).unwrap();
                (Kind::Fragment, next, 1, bytes[..size].to_vec())
            }
            kind @ 2..=3 => {
                let pulse = Pulse { next, has_ended: kind == 3, ..Pulse::default() };
                (Kind::Pulse, next, 0, pulse.write().to_vec())
            }
            4 => (Kind::Ask, next, 0, self.noise(18..19)),
            5 => (Kind::Data, next, 9, self.noise(0..1_300)),
            control => (Kind::Control(control as u8 - 5), 1, 0, self.noise(0..45)),
        }
    }

    /// A packet of the forger with this key in its head, and random bytes in place of the seal.
    fn own(&mut self, number: u64, session: Session, key: u8, seal_bytes: usize) -> Vec<u8> {
        let (kind, sequence, messages, body) = self.body(number);
        let mut numbers = Numbers::new(self.rng.u64(..), self.rng.bool());
        let fields = numbers.next(kind, false, (session, sequence, messages));
        let fields = Container { is_sealed: seal_bytes > 0, key, ..fields };
        let mut packet = vec![0; HEAD_BYTES + body.len() + seal_bytes];
        packet[HEAD_BYTES..HEAD_BYTES + body.len()].copy_from_slice(&body);
        fields.write(&mut packet, body.len() + seal_bytes).unwrap();
        packet
    }

    fn sealed(&mut self, number: u64) -> Vec<u8> {
        let (kind, sequence, messages, body) = self.body(number);
        let mut sealer = Sealer::new(self.rng.u64(..), self.rng.bool());
        sealer.set_key(self.wrong.sealing(0));
        let mut packet = vec![0; HEAD_BYTES + body.len() + SEAL_BYTES];
        packet[HEAD_BYTES..HEAD_BYTES + body.len()].copy_from_slice(&body);
        let about = (self.session, sequence, messages);
        sealer.finish(&mut packet, (kind, false), about, body.len()).unwrap();
        packet
    }
}

/// The role's words are `COUNT GROUP SERVER INTERFACE`.
pub fn run(words: &[&str]) {
    let [each, group, server, interface] = words else { panic!("{words:?}") };
    let (each, server): (u64, SocketAddr) = (each.parse().unwrap(), server.parse().unwrap());
    let interface = Some((*interface).to_owned());
    let line = LineSpec { interface, ..LineSpec::to(group.parse().unwrap()) };
    let tuning = Tuning { buffer_bytes: 16 << 20, busy_poll_us: 0 };
    let hears = open_line(&line, tuning, &mut RefusedSettings::default()).unwrap();
    let socket = open_sender(&line, 1, false).unwrap();
    let asks = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    let mut forger = Forger {
        rng: fastrand::Rng::with_seed(12),
        heard: Vec::new(),
        session: Session::named("unknown").unwrap(),
        next: 0,
        wrong: Keyring::parse("7 ffffffffffffffffffffffffffffffff\n").unwrap(),
    };
    let mut inbox = datagrams::Inbox::new(2_048);
    eprintln!("forger: ready");
    let (mut made, mut sent) = (0, [0, 0]);
    while made < each {
        while inbox.receive(&hears).is_ok_and(|received| received > 0) {
            inbox.datagrams().for_each(|datagram| forger.note(datagram.bytes));
        }
        if forger.heard.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        for form in 0..FORMS.len() {
            let batch: Vec<Vec<u8>> =
                (made..each.min(made + 3)).map(|number| forger.forge(form, number)).collect();
            for (to, (socket, address)) in [(&socket, line.group), (&asks, server)].into_iter().enumerate() {
                // On a blocking socket, a datagram is refused only if there is no memory for it.
                let done = datagrams::send(socket, address, batch.iter().map(Vec::as_slice));
                sent[to] += batch.len() as u64 - done.refused;
            }
        }
        made += 3;
        // A pause lets the readers follow. The packets of a round must fit one batch.
        assert!(3 * FORMS.len() <= BATCH);
        std::thread::sleep(Duration::from_micros(500));
    }
    println!("\n{}", json!({ "sent": sent[0].min(sent[1]) }));
}

#[test]
fn a_forger_at_the_wire_of_a_sealed_feed_costs_no_message() {
    let test = "a_forger_at_the_wire_of_a_sealed_feed_costs_no_message";
    let Some(mut hosts) = Hosts::at_a_switch(test) else { return };
    hosts.use_daemons(true);
    let (each, fields) = (number("SHMCAST_FORGERIES", 300), sealed(&hosts));
    let a = daemon(&hosts, Host::A, &with_fields(&sends(), &fields));
    let b = daemon(&hosts, Host::B, &with_fields(&receives(GROUP, SERVER), &fields));
    let readers = readers(&hosts, 2, u64::MAX);
    let forger = hosts.role(Host::C, "forge", &format!("{each} {GROUP} {SERVER} vc0"));
    forger.wait_for_log("ready");
    let feed = Feed::begin(&hosts);
    let forged = each * FORMS.len() as u64;
    assert_eq!(count(&forger.end_well(), "/sent"), forged);
    let last = feed.end();
    // Each reader compares every message with the published one.
    assert_all_have_all(readers, last);
    let receive = || bridge(&hosts, Host::B)["figures"]["receive"].clone();
    let at = |figures: &Value, names: &[&str]| names.iter().map(|name| count(figures, name)).sum::<u64>();
    let of_b = wait_for("the last message", || {
        Some(receive()).filter(|figures| count(figures, "/messages_published") == last)
    });
    // A forged packet to the group either came, or the kernel dropped it for lack of room.
    let came = at(&of_b, &["/lines/0/datagrams", "/lines/0/kernel_drops"]);
    let of_a = bridge(&hosts, Host::A)["figures"]["repair"].clone();
    eprintln!(
        "{test}: {forged} packets of {} forms to the group and as many to the server; {came} packets came to the receiver; \
         {last} messages, 0 lost, 0 false, {} repaired\n group: {}\n server: {}",
        FORMS.len(),
        count(&of_b, "/recovered_by_servers"),
        refusals(&of_b, &["forged", "unopened", "replayed", "copies", "malformed", "datagrams_unexpected"]),
        refusals(&of_a, &["forged", "unopened", "replayed", "refused", "plain_refused", "kernel_drops"]),
    );
    assert_eq!(["/messages_missing", "/gaps_open"].map(|name| count(&of_b, name)), [0, 0], "{of_b}");
    assert_eq!(count(&of_b, "/sessions"), 1, "{of_b}");
    assert!(["/forged", "/unopened", "/replayed"].iter().all(|name| count(&of_b, name) > 0), "{of_b}");
    assert!(["/forged", "/unopened"].iter().all(|name| count(&of_a, name) > 0), "{of_a}");
    for daemon in [a, b] {
        assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
        assert_eq!(daemon.stop().0, 0);
    }
}

fn refusals(figures: &Value, names: &[&str]) -> Value {
    names
        .iter()
        .map(|name| (name.to_string(), figures[*name].clone()))
        .collect::<serde_json::Map<_, _>>()
        .into()
}
