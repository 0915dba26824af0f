//! Native lines over real sockets, with the bridge's own threads: what a message carries, over two hops, and a forger.

use shmcast::{Event, Mark, Publisher, Start, Subscriber};
use shmcast_bridge::egress::{Egress, EgressOptions};
use shmcast_bridge::ingress::{Ingress, IngressOptions};
use shmcast_bridge::proto::native::container::{Container, HEAD_BYTES, Kind, Numbers, SEAL_BYTES};
use shmcast_bridge::proto::native::fragments::Fragment;
use shmcast_bridge::proto::native::keys::Keyring;
use shmcast_bridge::proto::native::pulse::Pulse;
use shmcast_bridge::proto::native::records::RecordWriter;
use shmcast_bridge::proto::native::seal::Sealer;
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::proto::wire::Meta;
use shmcast_bridge::spec::{Auth, BridgeSpec, LineSpec, Profile, ReceiveSpec, RepairSpec, SendSpec, StartAt};
use shmcast_bridge::status::Phase;
use shmcast_testkit::place::own_address;
use shmcast_testkit::{PATIENCE, number, scratch, wait_for, wait_until};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const LARGEST: usize = 16 << 20;
const CAPACITY: u64 = 128 << 20;

fn free_port() -> SocketAddr {
    own_address()
}

fn keys(dir: &Path) -> PathBuf {
    let path = dir.join("keys");
    std::fs::write(&path, "7 000102030405060708090a0b0c0d0e0f\n").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}

fn spec(line: SocketAddr, keys: Option<PathBuf>) -> BridgeSpec {
    let lines = vec![LineSpec::to(line)];
    BridgeSpec { lines, profile: Profile::Native, keys, ..BridgeSpec::new("t") }
}

fn send(dir: &Path, spec: BridgeSpec) -> Egress {
    let mut repair = RepairSpec::new("127.0.0.1:0".parse().unwrap());
    repair.allow = vec!["127.0.0.1".parse().unwrap()];
    let send = SendSpec {
        from: StartAt::Oldest,
        linger_ms: 60_000,
        listen_ms: 0,
        repair: Some(repair),
        ..SendSpec::default()
    };
    let spec = BridgeSpec { send: Some(send), ..spec };
    Egress::start(&spec, Subscriber::builder("t").dir(dir), EgressOptions::default()).unwrap()
}

fn receive(dir: &Path, spec: BridgeSpec, server: SocketAddr, (capacity, largest): (u64, usize)) -> Ingress {
    let receive = ReceiveSpec {
        servers: vec![server],
        from: Some(1),
        clock_limit_us: 0,
        // Beside other work the server may get no CPU for seconds.
        give_up_ms: 60_000,
        ..ReceiveSpec::default()
    };
    let spec = BridgeSpec { receive: Some(receive), ..spec };
    let channel = Publisher::builder("t").dir(dir).capacity(capacity).max_message(largest as u64);
    Ingress::start(&spec, channel, IngressOptions::default()).unwrap()
}

/// The bytes and marks of a message. Each 40th is large, and one is as large as any can be.
fn message(sequence: u64, largest: usize) -> (Vec<u8>, Mark, u64) {
    let size = match sequence {
        77 => largest,
        _ if sequence.is_multiple_of(40) => 5_000 + sequence as usize * 131,
        _ => (sequence as usize * 7) % 1_300,
    };
    let bytes = (0..size).map(|n| (n as u64 * 31 + sequence) as u8).collect();
    let mark = Mark { tag: (sequence * 257) as u16, key: sequence.is_multiple_of(50) };
    (bytes, mark, sequence * 1_000_000)
}

/// Three hosts' channels, each carried on to the next. The first half of the messages waits in the ring when the bridges
/// start, and the last host's bridge starts later still, so that a part of them comes as repairs.
#[test]
fn tag_key_and_time_cross_two_hops_and_so_do_the_largest_messages() {
    const MESSAGES: u64 = 200;
    let dirs = [(); 3].map(|()| scratch());
    let [a, b, c] = dirs.each_ref().map(|dir| dir.path());
    let keys = keys(a);
    let mut publisher =
        Publisher::builder("t").dir(a).capacity(CAPACITY).max_message(LARGEST as u64).open().unwrap();
    let clock = publisher.clock();
    let begin = clock.now();
    let ticks = |ns: u64| (u128::from(ns) * u128::from(clock.hz()) / 1_000_000_000) as u64;
    let mut publish = |sequences: std::ops::RangeInclusive<u64>| {
        for sequence in sequences {
            let (bytes, mark, after_ns) = message(sequence, LARGEST);
            publisher.publish_at(&bytes, mark, begin - ticks(30_000_000_000) + ticks(after_ns)).unwrap();
        }
    };
    publish(1..=MESSAGES / 2);
    let (first, second) = (free_port(), free_port());
    let from_a = send(a, spec(first, Some(keys.clone())));
    let to_b =
        receive(b, spec(first, Some(keys.clone())), from_a.repair_address().unwrap(), (CAPACITY, LARGEST));
    wait_for("the first hop", || (to_b.counters().host.next_sequence > 20).then_some(()));
    let from_b = send(b, spec(second, None));
    publish(MESSAGES / 2 + 1..=MESSAGES);
    let to_c = receive(c, spec(second, None), from_b.repair_address().unwrap(), (CAPACITY, LARGEST));
    wait_for("all messages", || {
        let (b, c) = (to_b.counters(), to_c.counters());
        assert_eq!((to_b.life().error(), to_c.life().error()), (None, None));
        (c.host.next_sequence == MESSAGES + 1 && b.host.next_sequence == MESSAGES + 1).then_some(())
    });
    let (b, c_counters) = (to_b.counters(), to_c.counters());
    assert_eq!(
        (b.host.messages_missing, c_counters.host.messages_missing, b.host.forged + c_counters.host.forged),
        (0, 0, 0)
    );
    assert!(
        b.host.recovered_by_servers > 0 && b.feed.fragments > 12_000 && c_counters.host.origin_times == 1
    );

    let mut reader = Subscriber::builder("t").dir(c).start(Start::Oldest).open().unwrap();
    let (clock_there, mut worst_ns, mut next) = (reader.clock(), 0, 1);
    assert_eq!(clock_there, clock, "both channels of this host have one clock");
    while next <= MESSAGES {
        let Some(event) = reader.recv_deadline(Instant::now() + PATIENCE).unwrap() else {
            panic!("no message {next}")
        };
        let Event::Message(read) = event else { continue };
        let (bytes, mark, after_ns) = message(next, LARGEST);
        assert_eq!((read.sequence, read.tag, read.key), (next, mark.tag, mark.key));
        assert!(read.payload == bytes, "message {next} has other bytes");
        let meant = (begin - ticks(30_000_000_000) + ticks(after_ns)) & ((1 << 48) - 1);
        worst_ns = worst_ns.max(clock.ns(read.time.abs_diff(meant)));
        next += 1;
    }
    println!(
        "times over two hops are off by at most {worst_ns} ns; {} fragments, {} repaired",
        b.feed.fragments, b.host.recovered_by_servers
    );
    assert!(worst_ns < 5_000_000, "a time is off by {worst_ns} ns");
}

/// One egress has lines of both profiles. Its publisher closes and comes back, and then its channel is made anew. There is
/// no server that could send anything again.
#[test]
fn lines_of_both_profiles_follow_a_publisher_that_comes_back_and_a_channel_made_anew() {
    for profiles in [[Profile::Plain, Profile::Native], [Profile::Native, Profile::Plain]] {
        let dirs = [(); 3].map(|()| scratch());
        let [a, to @ ..] = dirs.each_ref().map(|dir| dir.path());
        let lines = profiles.map(|profile| LineSpec { profile: Some(profile), ..LineSpec::to(free_port()) });
        let open = |dir| Publisher::builder("t").dir(dir).capacity(1 << 20).max_message(1_000);
        let mut publisher = open(a).open().unwrap();
        let send = SendSpec { from: StartAt::Oldest, linger_ms: 60_000, listen_ms: 0, ..SendSpec::default() };
        let sends = BridgeSpec { send: Some(send), lines: lines.to_vec(), ..BridgeSpec::new("t") };
        let receivers = [0, 1].map(|at| {
            let receive = ReceiveSpec { from: Some(1), ..ReceiveSpec::default() };
            let lines = vec![lines[at].clone()];
            let spec = BridgeSpec { receive: Some(receive), lines, ..BridgeSpec::new("t") };
            Ingress::start(&spec, open(to[at]), IngressOptions::default()).unwrap()
        });
        let egress =
            Egress::start(&sends, Subscriber::builder("t").dir(a), EgressOptions::default()).unwrap();
        let each_has = |what: &str, is_so: &dyn Fn(&Ingress) -> bool| {
            for (receiver, profile) in receivers.iter().zip(profiles) {
                let what = format!("{what} on the {profile:?} line of {profiles:?}");
                wait_for(&what, || is_so(receiver).then_some(()));
            }
        };
        publisher.publish_batch(["1", "2", "3"]).unwrap();
        each_has("the first messages", &|receiver| receiver.counters().host.messages_published == 3);
        publisher.close();
        each_has("the end", &|receiver| receiver.life().phase() == Phase::Ending);

        let mut publisher = open(a).open().unwrap();
        publisher.publish_batch(["4", "5"]).unwrap();
        each_has("those after the end", &|receiver| receiver.counters().host.messages_published == 5);
        let beats = receivers.each_ref().map(|receiver| receiver.counters().feed.heartbeats);
        for (receiver, beats) in receivers.iter().zip(beats) {
            wait_for("four heartbeats", || (receiver.counters().feed.heartbeats > beats + 3).then_some(()));
            assert_eq!(receiver.life().phase(), Phase::Running, "the session goes on: {profiles:?}");
        }

        drop(publisher);
        let mut publisher = open(a).anew().open().unwrap();
        publisher.publish_batch(["one", "two"]).unwrap();
        each_has("those of the channel made anew", &|receiver| {
            receiver.counters().host.messages_published == 7
        });
        for receiver in &receivers {
            let counters = receiver.counters();
            assert_eq!((counters.feed.sessions, counters.host.messages_missing), (2, 0), "{profiles:?}");
            assert_eq!(receiver.life().session(), egress.life().session());
        }
        // The counters are some milliseconds old, and the receivers may be faster.
        let sent = wait_for("the session in the counters of the egress", || {
            Some(egress.counters()).filter(|sent| sent.sessions > 1)
        });
        assert_eq!((sent.messages_missed, sent.messages_too_long, sent.sessions), (0, 0, 2));
    }
}

/// A native packet is also a valid plain packet. An earlier mistake: a plain receiver published such packets as messages.
#[test]
fn a_plain_receiver_takes_nothing_from_a_native_line_and_names_the_setting() {
    for is_sealed in [false, true] {
        let dirs = [(); 2].map(|()| scratch());
        let [a, b] = dirs.each_ref().map(|dir| dir.path());
        let keys = is_sealed.then(|| keys(a));
        let mut publisher =
            Publisher::builder("t").dir(a).capacity(1 << 20).max_message(5_000).open().unwrap();
        let line = free_port();
        let plain = BridgeSpec { profile: Profile::Plain, keys: None, ..spec(line, None) };
        let plain = BridgeSpec { receive: Some(ReceiveSpec::default()), ..plain };
        let channel = Publisher::builder("t").dir(b).capacity(1 << 20).max_message(5_000);
        let ingress = Ingress::start(&plain, channel, IngressOptions::default()).unwrap();
        let egress = send(a, spec(line, keys));
        // Every third message is larger than a packet.
        let sizes = [5, 500, 5_000].into_iter().cycle();
        for size in sizes.take(30) {
            publisher.publish(&vec![7; size]).unwrap();
        }
        // Each message goes in a packet, at least, and heartbeats follow.
        let sent = |egress: &Egress| egress.counters().packets;
        wait_for("packets of every kind", || {
            (ingress.counters().feed.packets_foreign > sent(&egress).max(30)).then_some(())
        });
        let trouble = wait_for("the reason", || ingress.trouble());
        assert!(trouble.ends_with("are not taken: set profile = \"native\""), "{trouble}");
        let counters = ingress.counters();
        assert_eq!((counters.feed.sessions, counters.host.messages_published), (0, 0));
        assert_eq!(ingress.life().session(), None);
    }
}

/// Packets of every kind that somebody without the key can make: his own, and the real ones changed.
fn forgeries(session: Session, next: u64, round: u64) -> Vec<Vec<u8>> {
    let mut numbers = Numbers::new(round.wrapping_mul(0x9E37_79B9_7F4A_7C15), false);
    let mut all = Vec::new();
    let mut make = |kind, sequence, messages, body: &[u8]| {
        for is_sealed in [false, true] {
            let mut packet = vec![0; HEAD_BYTES + body.len() + SEAL_BYTES];
            packet[HEAD_BYTES..HEAD_BYTES + body.len()].copy_from_slice(body);
            let fields = numbers.next(kind, false, (session, sequence, messages));
            let fields = Container { is_sealed, key: if is_sealed { 7 } else { 0 }, ..fields };
            let seal_bytes = if is_sealed { SEAL_BYTES } else { 0 };
            let size = fields.write(&mut packet, body.len() + seal_bytes).unwrap();
            packet.truncate(size);
            all.push(packet);
        }
    };
    let (mut data, mut records) = ([0; 200], RecordWriter::new(next));
    assert!(records.push(&mut data, b"never published", Meta::default()));
    let body = records.finish(&mut data).unwrap();
    make(Kind::Data, next, 1, &data[HEAD_BYTES..HEAD_BYTES + body]);
    make(Kind::Data, next + 50_000, 1, &data[HEAD_BYTES..HEAD_BYTES + body]);
    let mut part = [0; 100];
    let fragment = Fragment { meta: Meta::default(), total: 1 << 24, offset: 0, data: b"forged" };
    let body = fragment.write(&mut part).unwrap();
    make(Kind::Fragment, next, 1, &part[..body]);
    for (ahead, has_ended) in [(0, true), (1 << 20, false), (1 << 20, true)] {
        let pulse = Pulse { next: next + ahead, has_ended, ..Pulse::default() };
        make(Kind::Pulse, next + ahead, 0, &pulse.write());
    }
    make(Kind::Ask, next, 0, &[1; 18]);
    make(Kind::Control(8), 1, 0, &[7; 26]);
    all
}

/// Somebody without the key sends packets of every kind to a line and to a server while a feed runs. Among them are
/// real packets that were sent before, and real ones with one bit changed.
#[test]
fn a_forger_without_the_key_costs_no_message() {
    let forgeries_each = number("SHMCAST_FORGERIES", 2_000u64);
    let dirs = [(); 2].map(|()| scratch());
    let [a, b] = dirs.each_ref().map(|dir| dir.path());
    let keys = keys(a);
    let mut publisher = Publisher::builder("t").dir(a).capacity(8 << 20).max_message(100_000).open().unwrap();
    let (line, copy) = (free_port(), free_port());
    // The forger hears what is sent: he is on a second line.
    let hears = UdpSocket::bind(copy).unwrap();
    hears.set_nonblocking(true).unwrap();
    let mut sends = spec(line, Some(keys.clone()));
    sends.lines.push(LineSpec::to(copy));
    let egress = send(a, sends);
    let server = egress.repair_address().unwrap();
    let ingress = receive(b, spec(line, Some(keys)), server, (8 << 20, 100_000));
    let session = wait_for("the session", || egress.life().session());
    let forger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (mut heard, mut buffer, mut sent) = (Vec::new(), [0; 2_000], 0u64);
    let mut published = 0;
    for round in 0..forgeries_each {
        if round.is_multiple_of(4) {
            let size = if published % 50 == 0 { 50_000 } else { 100 };
            published = publisher.publish(&vec![published as u8; size]).unwrap();
        }
        while let Ok(size) = hears.recv(&mut buffer) {
            heard.push(buffer[..size].to_vec());
        }
        heard.truncate(500);
        let next = ingress.counters().host.next_sequence.max(1);
        let mut packets = forgeries(session, next, round);
        if let Some(real) = heard.get(round as usize % heard.len().max(1)) {
            let mut changed = real.clone();
            let at = round as usize % changed.len();
            changed[at] ^= 1 << (round % 8);
            packets.extend([real.clone(), changed]);
        }
        for packet in packets {
            sent += u64::from(forger.send_to(&packet, line).is_ok());
            forger.send_to(&packet, server).unwrap();
        }
        if round.is_multiple_of(50) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let all = wait_for("all messages", || {
        let counters = ingress.counters();
        assert_eq!(ingress.life().error(), None);
        (counters.host.next_sequence == published + 1).then_some(counters)
    });
    println!(
        "{sent} forgeries to the line: {} not opened, {} forged, {} replayed, {} old; {published} messages, {} repaired, 0 lost",
        all.host.unopened, all.host.forged, all.host.replayed, all.feed.copies, all.host.recovered_by_servers
    );
    assert_eq!(
        (all.host.messages_missing, all.host.messages_published, all.feed.sessions),
        (0, published, 1)
    );
    assert!(all.host.unopened > 0 && all.host.forged > 0);
    let mut reader = Subscriber::builder("t").dir(b).start(Start::Oldest).open().unwrap();
    let mut next = reader.next_sequence();
    while next <= published {
        if let Some(Event::Message(read)) = reader.recv_deadline(Instant::now() + PATIENCE).unwrap() {
            assert!(read.payload.iter().all(|&byte| byte == (next - 1) as u8), "message {next} is forged");
            next = read.sequence + 1;
        }
    }
}

/// A key is changed while a feed runs: first all hosts get the new one, and at its time it seals.
#[test]
fn a_key_change_loses_nothing_and_an_open_or_damaged_keys_file_is_refused() {
    let dirs = [(); 2].map(|()| scratch());
    let [a, b] = dirs.each_ref().map(|dir| dir.path());
    let path = keys(a);
    let mut publisher = Publisher::builder("t").dir(a).capacity(1 << 20).open().unwrap();
    let line = free_port();
    let sends = spec(line, Some(path.clone()));
    let egress = send(a, sends.clone());
    let ingress = receive(b, sends.clone(), egress.repair_address().unwrap(), (1 << 20, 1_000));
    let mut publish = |egress: &Egress, ingress: &Ingress| {
        let last = (0..100).map(|_| publisher.publish(b"x").unwrap()).last().unwrap();
        assert_eq!(egress.life().error(), None);
        wait_for("the messages", || (ingress.counters().host.next_sequence > last).then_some(()));
    };
    publish(&egress, &ingress);
    std::fs::write(&path, "7 000102030405060708090a0b0c0d0e0f\n9 ffeeddccbbaa99887766554433221100\n")
        .unwrap();
    ingress.reload_keys(&sends).unwrap();
    publish(&egress, &ingress);
    egress.reload_keys(&sends).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    publish(&egress, &ingress);
    // The old key is gone from the receiver, and all that comes is sealed with the new one.
    std::fs::write(&path, "9 ffeeddccbbaa99887766554433221100\n").unwrap();
    ingress.reload_keys(&sends).unwrap();
    publish(&egress, &ingress);
    assert_eq!((ingress.counters().host.messages_missing, ingress.counters().host.forged), (0, 0));

    std::fs::write(&path, "9 ffee\n").unwrap();
    let error = ingress.reload_keys(&sends).unwrap_err().to_string();
    assert!(error.contains("line 1: the key is 32 hexadecimal digits"), "{error}");
    publish(&egress, &ingress);
    std::fs::write(&path, "9 ffeeddccbbaa99887766554433221100\n").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    let error = ingress.reload_keys(&sends).unwrap_err().to_string();
    assert!(error.contains("mode 640 lets others read it: chmod 600"), "{error}");
}

/// Two hosts send the same messages to one line, and the first one stops. The second one's earlier packets were kept with
/// their seals on, and are opened when the line passes on to it. There is no server that could send anything again.
#[test]
fn what_a_copy_sent_before_the_line_passed_on_is_opened_and_not_lost() {
    wait_until("a turn in which nobody stood still", passes_on);
}

/// False if this test stood still: after three seconds a line that nobody sends on is open to all, and nothing that was kept is used.
fn passes_on() -> bool {
    let dir = scratch();
    let (line, keys) = (free_port(), keys(dir.path()));
    let group = Keyring::parse(&std::fs::read_to_string(&keys).unwrap()).unwrap();
    let receive = ReceiveSpec { from: Some(1), ..ReceiveSpec::default() };
    let spec = BridgeSpec { receive: Some(receive), auth: Auth::Offered, ..spec(line, Some(keys)) };
    let channel = Publisher::builder("t").dir(dir.path()).capacity(1 << 20).max_message(1_000);
    let ingress = Ingress::start(&spec, channel, IngressOptions::default()).unwrap();
    let session = Session::of_channel("T", 1).unwrap();
    let host = |address: &str, sender| {
        let socket = UdpSocket::bind((address, 0)).unwrap();
        let mut sealer = Sealer::new(sender, false);
        sealer.set_key(group.sealing(0));
        move |sequences: std::ops::RangeInclusive<u64>| {
            for sequence in sequences {
                let (mut packet, mut records) = ([0; 200], RecordWriter::new(sequence));
                let meta = Meta { tag: sequence as u16, ..Meta::default() };
                assert!(records.push(&mut packet[..100], &sequence.to_le_bytes(), meta));
                let body = records.finish(&mut packet).unwrap();
                let about = (session, sequence, 1);
                let size = sealer.finish(&mut packet, (Kind::Data, false), about, body).unwrap();
                socket.send_to(&packet[..size], line).unwrap();
            }
        }
    };
    let (mut first, mut second) = (host("127.0.0.1", 1), host("127.0.0.2", 2));
    first(1..=20);
    wait_for("the first host", || (ingress.counters().host.next_sequence == 21).then_some(()));
    // The first one is alive meanwhile, so that nothing of the second one is taken yet.
    let began = Instant::now();
    for sequence in 15..=40 {
        first(20..=20);
        second(sequence..=sequence);
    }
    // The first one is silent now. The receiver does not count the time in which it stood still itself.
    wait_for("what was kept", || {
        std::thread::sleep(Duration::from_millis(10));
        second(41..=41);
        (ingress.counters().host.next_sequence == 42).then_some(())
    });
    if began.elapsed() > Duration::from_secs(1) {
        return false;
    }
    let counters = ingress.counters();
    assert_eq!(
        (counters.host.messages_missing, counters.host.messages_published, counters.host.forged),
        (0, 41, 0)
    );
    assert!(counters.host.datagrams_locked_out >= 20, "{}", counters.host.datagrams_locked_out);
    let mut reader = Subscriber::builder("t").dir(dir.path()).start(Start::Oldest).open().unwrap();
    let mut next = 1u64;
    while next <= 41 {
        if let Some(Event::Message(read)) = reader.recv_deadline(Instant::now() + PATIENCE).unwrap() {
            assert_eq!((read.sequence, read.tag, read.payload), (next, next as u16, &next.to_le_bytes()[..]));
            next += 1;
        }
    }
    true
}

/// The keys file is removed under a bridge, and comes back behind a link. Until it is there, the keys stay as they were.
#[test]
fn a_keys_file_that_is_removed_keeps_the_keys_and_one_behind_a_link_is_read() {
    let dirs = [(); 2].map(|()| scratch());
    let [a, b] = dirs.each_ref().map(|dir| dir.path());
    let path = keys(a);
    let mut publisher = Publisher::builder("t").dir(a).capacity(1 << 20).open().unwrap();
    let sends = spec(free_port(), Some(path.clone()));
    let egress = send(a, sends.clone());
    let ingress = receive(b, sends.clone(), egress.repair_address().unwrap(), (1 << 20, 1_000));
    let mut publish = || {
        let last = (0..100).map(|_| publisher.publish(b"x").unwrap()).last().unwrap();
        wait_for("the messages", || (ingress.counters().host.next_sequence > last).then_some(()));
        assert_eq!((egress.life().error(), ingress.life().error()), (None, None));
    };
    publish();
    std::fs::remove_file(&path).unwrap();
    publish();
    for refused in [egress.reload_keys(&sends), ingress.reload_keys(&sends)] {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("No such file"), "{error}");
    }
    publish();
    // The link and the file behind it may be anybody's: owner and mode of the file count.
    let behind = a.join("behind");
    std::fs::write(&behind, "7 000102030405060708090a0b0c0d0e0f\n9 ffeeddccbbaa99887766554433221100\n")
        .unwrap();
    std::os::unix::fs::symlink(&behind, &path).unwrap();
    std::fs::set_permissions(&behind, std::fs::Permissions::from_mode(0o644)).unwrap();
    let error = egress.reload_keys(&sends).unwrap_err().to_string();
    assert!(error.contains("mode 644 lets others read it"), "{error}");
    publish();
    std::fs::set_permissions(&behind, std::fs::Permissions::from_mode(0o600)).unwrap();
    ingress.reload_keys(&sends).unwrap();
    egress.reload_keys(&sends).unwrap();
    publish();
    std::fs::write(&behind, "9 ffeeddccbbaa99887766554433221100\n").unwrap();
    ingress.reload_keys(&sends).unwrap();
    publish();
    assert_eq!((ingress.counters().host.messages_missing, ingress.counters().host.forged), (0, 0));
    // The link leads nowhere now.
    std::fs::remove_file(&behind).unwrap();
    assert!(egress.reload_keys(&sends).is_err());
    publish();
}
