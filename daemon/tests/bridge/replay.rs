//! Repairs from the journal. A receiver was away while the ring was overwritten many times. It gets all messages of the journal, and learns
//! exactly which messages the journal lacks.

use super::daemons::{GROUP, SERVER, bridge, channel, daemon, receives, sends, with_fields};
use super::feed::{Feed, count, next_on, rate, readers, wait_until_past};
use super::native::{LARGE, MESSAGES, sealed};
use super::roles::{CAPACITY, LONGEST, make_channel_of};
use nix::sys::signal::Signal;
use serde_json::Value;
use shmcast::Client;
use shmcast::journal::{Entry, Journal};
use shmcast_testkit::hosts::{Host, Hosts, Running};
use shmcast_testkit::{skip, wait_for, wait_until};
use std::path::{Path, PathBuf};

/// The ring that is recorded, in bytes. It holds some 4,000 messages.
const RING: u64 = 1 << 20;
/// The number of messages that are published while the receiver is away. They fill several rings.
const AWAY: u64 = 25_000;

fn journal(hosts: &Hosts) -> PathBuf {
    hosts.dir.path().join("journal")
}

/// Two hosts with daemons, which keep journals where the test can see them.
fn daemons(test: &str) -> Option<Hosts> {
    if shmcast_testkit::unit::asked().is_some() {
        skip(test, "the unit lets journals lie in /var/lib/shmcast alone");
        return None;
    }
    Hosts::with_daemons(test, 1)
}

/// The sender's configuration: a small ring, and a journal with additional `fields`.
fn records(hosts: &Hosts, fields: &str) -> String {
    let recorded = format!(
        "{}journal = {{ dir = \"{}\", file = \"1MiB\"{fields} }}\n",
        channel().replace(&CAPACITY.to_string(), &RING.to_string()),
        journal(hosts).display()
    );
    sends().replace(&channel(), &recorded)
}

/// Waits until a bridge has a figure of at least `least`. Returns all its figures.
fn wait_for_figure(hosts: &Hosts, host: Host, path: &str, least: u64) -> Value {
    wait_for(&format!("{path} of {least}"), || {
        let status = bridge(hosts, host);
        let figure = status.pointer(path).and_then(Value::as_u64)?;
        (figure >= least).then(|| status["figures"].clone())
    })
}

fn sent(hosts: &Hosts) -> u64 {
    count(&bridge(hosts, Host::A), "/figures/send/next_sequence")
}

/// Waits until the receiver follows the feed again, and has no more messages to request.
fn wait_until_live(hosts: &Hosts) {
    wait_for("the receiver to be live again", || {
        let receive = bridge(hosts, Host::B)["figures"]["receive"].clone();
        let figure = |name: &str| receive.pointer(name).and_then(Value::as_u64);
        let next = figure("/next_sequence")?;
        let is_close = figure("/horizon")? < next + 1_000;
        (is_close && next + rate() > sent(hosts)).then_some(())
    });
}

/// Kills B's daemon. Starts it again after so many messages that B's ring and A's would long have been overwritten.
fn away(hosts: &Hosts, receiver: Running, config: &str) -> (Running, u64) {
    let at = count(&bridge(hosts, Host::B), "/figures/receive/next_sequence");
    receiver.kill();
    wait_for("many rings", || (sent(hosts) > at + AWAY).then_some(()));
    (daemon(hosts, Host::B, config), at)
}

/// The state when the receiver is live again, and the publisher has ended.
struct Back {
    readers: Vec<Running>,
    /// The figures of the sender's repairs.
    repair: Value,
    /// The last sequence that was published.
    last: u64,
    _daemons: [Running; 2],
}

/// As [`away`], with `count` readers on B. A publishes many rings while B's daemon is away.
fn away_and_back(hosts: &Hosts, sends: &str, receives: &str, count: usize) -> Back {
    let a = daemon(hosts, Host::A, sends);
    let b = daemon(hosts, Host::B, receives);
    let readers = readers(hosts, count, u64::MAX);
    readers.iter().for_each(|reader| reader.wait_for_log("reading"));
    let feed = Feed::begin_recorded(hosts);
    wait_for_figure(hosts, Host::B, "/figures/receive/next_sequence", 2_000);
    let (b, _) = away(hosts, b, receives);
    wait_until_live(hosts);
    let repair = bridge(hosts, Host::A)["figures"]["repair"].clone();
    Back { readers, repair, last: feed.end(), _daemons: [a, b] }
}

fn everything_is_mended(test: &str, fields: impl Fn(&Hosts) -> String) {
    let Some(hosts) = daemons(test) else { return };
    let fields = fields(&hosts);
    let sends = with_fields(&records(&hosts, ""), &fields);
    let receives = with_fields(&receives(GROUP, SERVER), &fields);
    let Back { readers, repair, last, _daemons } = away_and_back(&hosts, &sends, &receives, 2);
    for reader in readers {
        let seen = reader.end_well();
        let figures = ["received", "gap_messages", "lapped"].map(|name| count(&seen, &format!("/{name}")));
        let lost = losses(&journal(&hosts));
        assert_eq!(figures, [last, 0, 0], "the journal has lost {lost:?}, {seen}");
        assert_eq!(seen["sessions"].as_array().unwrap().len(), 1, "{seen}");
    }
    eprintln!("{test}: {last} messages, repaired {repair}");
    let of_journal = count(&repair, "/journal/messages");
    let status = hosts.shmcast(Host::A, "bridge status");
    status.wait_for_log("of the repaired messages came from the journal");
    assert!(of_journal > AWAY / 2, "{repair}");
    assert_eq!(["/journal/errors", "/journal/unusable"].map(|name| count(&repair, name)), [0, 0], "{repair}");
}

#[test]
fn a_receiver_that_was_away_for_many_rings_misses_nothing() {
    everything_is_mended("a_receiver_that_was_away_for_many_rings_misses_nothing", |_| String::new());
}

#[test]
fn a_receiver_of_sealed_lines_that_was_away_for_many_rings_misses_nothing() {
    everything_is_mended("a_receiver_of_sealed_lines_that_was_away_for_many_rings_misses_nothing", sealed);
}

/// A receiver that starts after the end gets tags, keys, times and large messages from the journal.
#[test]
fn marks_and_large_messages_come_from_the_journal() {
    let test = "marks_and_large_messages_come_from_the_journal";
    let Some(hosts) = daemons(test) else { return };
    let fields = sealed(&hosts);
    let large = |config: &str| {
        let config = config.replace(&format!("max_message = {LONGEST}"), &format!("max_message = {LARGE}"));
        with_fields(&config.replace(&RING.to_string(), &(2u64 << 20).to_string()), &fields)
    };
    let _a = daemon(
        &hosts,
        Host::A,
        &large(&records(&hosts, "")).replace("linger_ms = 2000", "linger_ms = 60000"),
    );
    hosts.role(Host::A, "publish-native", "").end_well();
    let receives = receives(GROUP, SERVER).replace("from = 1\n", "from = 1\nclock_limit_us = 0\n");
    let _b = daemon(&hosts, Host::B, &large(&receives));
    let seen = hosts.role(Host::B, "read-native", "").end_well();
    assert_eq!(["/received", "/old"].map(|name| count(&seen, name)), [MESSAGES; 2], "{seen}");
    let repair = bridge(&hosts, Host::A)["figures"]["repair"].clone();
    assert!(count(&repair, "/journal/messages") > MESSAGES / 2, "{repair}");
}

/// The losses that a journal names, each as its first and its last sequence.
fn losses(dir: &Path) -> Vec<[u64; 2]> {
    let mut reader = Journal::open(dir).unwrap().read_from(1).unwrap();
    let mut losses = Vec::new();
    while let Some(entry) = reader.next().unwrap() {
        if let Entry::Lost(loss) = entry {
            losses.push([loss.from, loss.to]);
        }
    }
    losses
}

/// The recorder is stopped until the ring overtakes it. The recorder is a program of its own, and there is no daemon.
#[test]
fn what_the_journal_has_lost_is_told_with_both_ends() {
    let test = "what_the_journal_has_lost_is_told_with_both_ends";
    let Some(hosts) = Hosts::new(test, 1) else { return };
    drop(make_channel_of(&hosts.channels(Host::A), RING));
    let journal = journal(&hosts);
    let record = hosts.shmcast(Host::A, &format!("record t --to {} --set file=1MiB", journal.display()));
    wait_for("the journal", || Journal::open(&journal).ok());
    let send = format!(
        "bridge send t --to {GROUP} --interface va0 --repair {SERVER} --allow 10.77.0.0/16 --json --until-end --set send.linger_ms=60000 \
         --set send.repair.history={}",
        journal.display()
    );
    let send = hosts.shmcast(Host::A, &send);
    send.wait_for_log("sending session");
    let receive = format!(
        "bridge recv t --from {GROUP} --interface vb0 --server {SERVER} --set receive.from=1 --capacity 16MiB --json --until-end"
    );
    let recv = hosts.shmcast(Host::B, &receive);
    let reader = hosts.role(Host::B, "read", &u64::MAX.to_string());
    let feed = Feed::begin_at(&hosts, 20_000);
    let recorded = || {
        let mut journal = Journal::open(&journal).unwrap();
        journal.refresh().unwrap();
        journal.files().len()
    };
    wait_for("the first files", || (recorded() > 1).then_some(()));
    recv.kill();
    let before = recorded();
    wait_for("some files", || (recorded() > before + 2).then_some(()));
    record.signal(Signal::SIGSTOP);
    let stopped_at = next_on(&hosts, Host::A).expect("a channel");
    wait_until_past(&hosts, Host::A, stopped_at + 10_000);
    record.signal(Signal::SIGCONT);
    let before = recorded();
    wait_for("more files", || (recorded() > before + 2).then_some(()));
    let recv = hosts.shmcast(Host::B, &receive);
    recv.wait_for_log("receiving session");
    let last = feed.end();
    let seen = reader.end_well();
    let (_, received) = recv.end();
    let (_, sent) = send.stop();
    drop(record.stop());
    let lost = losses(&journal);
    eprintln!("{test}: {lost:?}, sent {sent}, received {received}");
    assert!(!lost.is_empty(), "the recorder was not overtaken");
    // A recorder on a busy machine may have lost what a live receiver got.
    let gaps: Vec<[u64; 2]> = serde_json::from_value(seen["gaps"].clone()).unwrap();
    assert!(
        gaps.iter().all(|gap| lost.iter().any(|it| it[0] <= gap[0] && gap[1] <= it[1])),
        "{lost:?} {seen}"
    );
    assert!(gaps.iter().any(|gap| lost.contains(gap) && gap[1] > stopped_at), "{lost:?} {seen}");
    assert_eq!(count(&seen, "/received") + count(&seen, "/gap_messages"), last, "{seen}");
    assert_eq!(count(&received, "/receive/messages_missing"), count(&seen, "/gap_messages"), "{received}");
    assert!(count(&sent, "/repair/journal/messages") > 1_000, "{sent}");
}

/// Messages that retention has removed are one gap, up to the first message of the oldest file.
#[test]
fn what_retention_took_is_told_with_both_ends() {
    let test = "what_retention_took_is_told_with_both_ends";
    let Some(hosts) = daemons(test) else { return };
    let _a = daemon(&hosts, Host::A, &records(&hosts, ", keep_bytes = \"2MiB\""));
    let receives = receives(GROUP, SERVER);
    let b = daemon(&hosts, Host::B, &receives);
    let readers = readers(&hosts, 1, u64::MAX);
    readers[0].wait_for_log("reading");
    let feed = Feed::begin_recorded(&hosts);
    wait_for_figure(&hosts, Host::B, "/figures/receive/next_sequence", 2_000);
    let at = count(&bridge(&hosts, Host::B), "/figures/receive/next_sequence");
    b.kill();
    let away_from = sent(&hosts);
    let oldest = || Journal::open(journal(&hosts)).unwrap().first_sequence().unwrap();
    wait_until("retention", || oldest() > away_from + 10_000);
    // No file is begun while the receiver requests messages. Old files might still be removed, so any existing file might be the oldest.
    feed.pause();
    let firsts: Vec<u64> = wait_for("the recorder", || {
        let written = Client::at(hosts.socket(Host::A)).ok()?.channel("t").ok()?.journal?.written;
        let files = Journal::open(journal(&hosts)).ok()?;
        let firsts = files.files().iter().map(|file| file.header.sequence).collect();
        (written + 1 == sent(&hosts)).then_some(firsts)
    });
    let _b = daemon(&hosts, Host::B, &receives);
    wait_until_live(&hosts);
    feed.resume();
    let last = feed.end();
    for reader in readers {
        let seen = reader.end_well();
        assert_eq!(count(&seen, "/received") + count(&seen, "/gap_messages"), last, "{seen}");
        let gaps = seen["gaps"].as_array().unwrap();
        let [gap] = &gaps[..] else { panic!("{seen}") };
        let (from, to) = (gap[0].as_u64().unwrap(), gap[1].as_u64().unwrap());
        assert!(from >= at && from <= away_from, "{from} to {to}, away from {at} to {away_from} on");
        assert!(firsts.contains(&(to + 1)), "{to} is not before a file's first message: {firsts:?}");
    }
}

/// A server that is configured not to use the journal does not use it.
#[test]
fn a_server_told_to_leave_the_journal_alone_does() {
    let test = "a_server_told_to_leave_the_journal_alone_does";
    let Some(hosts) = daemons(test) else { return };
    let config = format!("{}history = false\n", records(&hosts, ""));
    let Back { mut readers, repair, last, _daemons } =
        away_and_back(&hosts, &config, &receives(GROUP, SERVER), 1);
    let seen = readers.remove(0).end_well();
    assert_eq!(count(&seen, "/received") + count(&seen, "/gap_messages"), last, "{seen}");
    assert!(count(&seen, "/gap_messages") > AWAY / 2, "{seen}");
    assert_eq!(count(&repair, "/journal/messages"), 0, "{repair}");
}
