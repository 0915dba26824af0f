//! A channel through an engine, while its publisher, recorder, daemons, servers and interface die, stop or come back, while its bridge
//! lacks descriptors, and while reloads change the channel, its journal, the keys and the bridge's name. Each message has its number.

use nix::sys::signal::Signal;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::Value;
use shmcast::{Client, Event, Publisher, Start, Subscriber};
use shmcast_testkit::command::Host as Place;
use shmcast_testkit::daemon::{Daemon, FOR_ALL, channel, publishing};
use shmcast_testkit::hosts::{Host, Hosts, ip};
use shmcast_testkit::nats::{Server, Site, alone, program};
use shmcast_testkit::process::{at_socket, my_role, my_socket};
use shmcast_testkit::{PATIENCE, Process, REST, role, wait_for, wait_until};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::feed::Bridge;

/// Publishes until the process is killed.
#[test]
#[ignore = "a role that the tests here start processes for"]
fn play() {
    if my_role().is_none() {
        return;
    }
    let mut publisher = publishing(&Client::at(my_socket()).unwrap(), "ticks").open().unwrap();
    loop {
        publish(&mut publisher, 20);
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The parts of the sender's configuration that change.
#[derive(Clone, Copy)]
struct Near<'a> {
    title: &'a str,
    journal: Option<&'a Path>,
    ring: &'a str,
}

fn limits() -> &'static str {
    "[limits]\nrequests_per_second = 100000\nrequest_burst = 100000\n"
}

fn bridge(title: &str, server: &Server, keys: &Path, more: &str) -> String {
    format!(
        "[[bridge]]\nname = \"{title}\"\nchannel = \"ticks\"\nengine = \"nats\"\nkeys = \"{}\"\n\
         nats = {{ servers = [\"{}\"], create = true }}\n{more}\n",
        keys.display(),
        server.url()
    )
}

impl Near<'_> {
    fn config(self, server: &Server, keys: &Path) -> String {
        let journal =
            self.journal.map(|dir| format!("journal = {{ dir = \"{}\", file = \"1MiB\" }}", dir.display()));
        let more = format!("mode = \"strict\"\n{FOR_ALL}\n{}\n{}", self.ring, journal.unwrap_or_default());
        format!(
            "{}{}\n{}",
            limits(),
            channel("ticks", &more).replace("16MiB", "4MiB"),
            bridge(self.title, server, keys, "send = { from = \"oldest\" }")
        )
    }
}

fn write_keys(path: &Path, keys: &str) {
    fs::write(path, keys).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

const OLD_KEY: &str = "7 000102030405060708090a0b0c0d0e0f\n";
const NEW_KEY: &str = "9 ffeeddccbbaa99887766554433221100\n";

fn publish(publisher: &mut Publisher, count: u64) -> u64 {
    for _ in 0..count {
        let next = publisher.next_sequence();
        publisher.publish(&next.to_be_bytes()).unwrap();
    }
    publisher.next_sequence() - 1
}

/// A reader at the far end, which must get each message once and in order.
struct Sink {
    reader: Subscriber,
    due: u64,
    /// The number of sequences that were reported as missing.
    missing: u64,
}

impl Sink {
    fn new(open: impl Fn() -> Option<Subscriber>) -> Self {
        Self { reader: wait_for("the far channel", open), due: 1, missing: 0 }
    }

    fn at(daemon: &Daemon) -> Self {
        let client = daemon.client();
        Self::new(|| Subscriber::builder("ticks").client(&client).start(Start::Oldest).wait(REST).open().ok())
    }

    fn in_dir(dir: &Path) -> Self {
        Self::new(|| Subscriber::builder("ticks").dir(dir).start(Start::Oldest).wait(REST).open().ok())
    }

    fn read_to(&mut self, last: u64, at: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.due <= last {
            assert!(Instant::now() < deadline, "{at}: waits for {last} at {}", self.due);
            match self.reader.recv_deadline(Instant::now() + Duration::from_millis(200)).unwrap() {
                Some(Event::Message(message)) => {
                    assert_eq!(
                        (message.sequence, message.payload),
                        (self.due, &self.due.to_be_bytes()[..]),
                        "{at}"
                    );
                    self.due += 1;
                }
                Some(Event::Gap { from, to } | Event::Lost { from, to, .. }) => {
                    assert_eq!(from, self.due, "{at}");
                    self.missing += to + 1 - from;
                    self.due = to + 1;
                }
                Some(Event::Lapped(lapped)) => panic!("{at}: {lapped:?}"),
                _ => {}
            }
        }
    }
}

fn figures(daemon: &Daemon) -> Value {
    let output = daemon.shmcast("bridge status --json").output().unwrap();
    let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    found["bridges"][0].clone()
}

fn stand_still(daemon: &Daemon, meanwhile: impl FnOnce() -> u64) {
    daemon.signal(Signal::SIGSTOP);
    meanwhile();
    std::thread::sleep(Duration::from_millis(150));
    daemon.signal(Signal::SIGCONT);
}

/// A publisher as a process of its own publishes for a while, and is killed. Returns the last sequence.
fn publisher_that_is_killed(near: &Daemon) -> u64 {
    let client = near.client();
    let next = || client.channel("ticks").ok()?.next_sequence;
    let before = next().unwrap_or(1);
    let process = Process::start(at_socket(&mut role!("publisher"), &near.socket()));
    wait_until("its messages", || next() > Some(before + 500));
    process.kill();
    next().unwrap() - 1
}

#[test]
#[allow(clippy::too_many_lines, reason = "a test is one story, read from top to bottom")]
fn daemons_of_an_engine_carry_everything_through_every_event() {
    let test = "daemons_of_an_engine_carry_everything_through_every_event";
    let Some((_turn, dir, mut server)) = alone(test) else { return };
    let [keys, far_keys, journal, other] =
        ["keys", "far.keys", "journal", "other"].map(|name| dir.path().join(name));
    write_keys(&keys, OLD_KEY);
    write_keys(&far_keys, &format!("{OLD_KEY}{NEW_KEY}"));
    let usual = Near { title: "far", journal: Some(&journal), ring: "" };
    let mut near = Daemon::start(&usual.config(&server, &keys));
    let receives = bridge("far", &server, &far_keys, "receive = {}");
    let mut far = Daemon::start(&format!("{}{}\n{receives}", limits(), channel("ticks", FOR_ALL)));
    let mut publisher = publishing(&near.client(), "ticks").open().unwrap();
    let last = publish(&mut publisher, 500);
    let mut sink = Sink::at(&far);
    sink.read_to(last, "the beginning");
    // The publisher changes.
    drop(publisher);
    let last = publisher_that_is_killed(&near);
    sink.read_to(last, "a publisher was killed");
    let mut publisher = publishing(&near.client(), "ticks").open().unwrap();
    let mut arrives = |publisher: &mut Publisher, at: &str| {
        let last = publish(publisher, 300);
        sink.read_to(last, at);
        assert_eq!(sink.missing, 0, "{at}");
    };
    arrives(&mut publisher, "the next publisher");
    // The daemons stand still.
    stand_still(&near, || publish(&mut publisher, 300));
    arrives(&mut publisher, "the sender's daemon was stopped");
    stand_still(&far, || publish(&mut publisher, 300));
    arrives(&mut publisher, "the receiver's daemon was stopped");
    near.kill();
    publish(&mut publisher, 300);
    near.restart();
    arrives(&mut publisher, "the sender's daemon was killed");
    far.kill();
    publish(&mut publisher, 300);
    far.restart();
    arrives(&mut publisher, "the receiver's daemon was killed");
    // The server ends in order, and comes back.
    server.end();
    let behind = || figures(&near)["figures"]["send"]["behind"].clone();
    publish(&mut publisher, 300);
    wait_until("messages that are behind", || behind() == 300);
    server.start();
    arrives(&mut publisher, "the server was restarted");
    // The keys change.
    write_keys(&keys, &format!("{OLD_KEY}{NEW_KEY}"));
    near.reload(&usual.config(&server, &keys));
    arrives(&mut publisher, "a key more");
    write_keys(&keys, NEW_KEY);
    near.reload(&usual.config(&server, &keys));
    arrives(&mut publisher, "a key fewer");
    let unopened = || figures(&far)["figures"]["receive"]["unopened"].clone();
    assert_eq!(unopened(), 0);
    // The ring changes: the next publisher brings another schema and clock.
    let ring = Near { ring: "schema_id = 7\nschema = \"other\"\nclock = \"monotonic\"", ..usual };
    near.reload(&ring.config(&server, &keys));
    arrives(&mut publisher, "before the next ring");
    drop(publisher);
    let mut publisher = publishing(&near.client(), "ticks").open().unwrap();
    arrives(&mut publisher, "another ring");
    // The journal changes.
    for (what, journal) in [("none", None), ("another", Some(&other)), ("the first again", Some(&journal))] {
        near.reload(&Near { journal: journal.map(|it| &**it), ..ring }.config(&server, &keys));
        arrives(&mut publisher, &format!("journal: {what}"));
    }
    // The bridge's name changes.
    near.reload(&Near { title: "further", ..ring }.config(&server, &keys));
    wait_until("the name", || figures(&near)["bridge"] == "further");
    arrives(&mut publisher, "the bridge was renamed");
    let last = publisher.next_sequence();
    let stored =
        wait_for("the stream", || Some(figures(&near)).filter(|it| it["figures"]["send"]["stored"] == last));
    assert_eq!(stored["figures"]["send"]["messages_missed"], 0, "{stored}");
    let verify =
        format!("bridge stream verify ticks {} --json --set keys={}", server.url(), far_keys.display());
    let found: Value = serde_json::from_slice(&near.shmcast(&verify).output().unwrap().stdout).unwrap();
    assert_eq!((&found["messages"], &found["repeated"]), (&(last - 1).into(), &0.into()), "{found}");
}

/// The recorder is stopped or killed while the servers are away for longer than the ring lasts. The journal's messages are sent, and the
/// others are one gap with both ends, which each side counts.
fn an_outage_with(is_killed: bool) {
    let test = format!("an_outage_with_a_recorder_that_is_killed_{is_killed}");
    let Some((_turn, dir, mut server)) = alone(&test) else { return };
    let at = if is_killed { "killed" } else { "stopped" };
    let (near, far) = (Place::new(), Place::new());
    let journal = dir.path().join(at);
    let channels = near.dir.path().join("channels");
    let builder = Publisher::builder("ticks").dir(&channels).capacity(1 << 20);
    let mut publisher = builder.open().unwrap();
    let record = Process::start(
        &mut near.shmcast(&format!("record ticks --to {} --set file=1MiB", journal.display())),
    );
    wait_until("a journal", || shmcast::journal::Journal::open(&journal).is_ok());
    let nats = format!("--nats {}", server.url());
    let mut send = Bridge::start(near.shmcast(&format!(
        "bridge send ticks {nats} --set nats.create=true --set send.from=oldest --set nats.history={}",
        journal.display()
    )));
    send.wait_for_words("sending session");
    let mut receive = Bridge::start(far.shmcast(&format!("bridge recv ticks --capacity 16MiB {nats}")));
    let last = publish(&mut publisher, 1_000);
    let mut sink = Sink::in_dir(&far.dir.path().join("channels"));
    sink.read_to(last, at);
    server.kill();
    // The recorder has these messages.
    let last = publish(&mut publisher, 3_000);
    let is_recorded = |last: u64| {
        let has = |journal: shmcast::journal::Journal| journal.read_from(last).ok()?.next().ok()?.map(drop);
        shmcast::journal::Journal::open(&journal).ok().and_then(has).is_some()
    };
    wait_until("the journal", || is_recorded(last));
    let record = match is_killed {
        true => {
            record.kill();
            None
        }
        false => {
            record.signal(Signal::SIGSTOP);
            Some(record)
        }
    };
    // These messages fill several rings.
    let last = publish(&mut publisher, 300_000);
    if let Some(record) = &record {
        record.signal(Signal::SIGCONT);
    }
    server.start();
    let last = last.max(publish(&mut publisher, 10));
    sink.read_to(last, at);
    assert!(sink.missing > 0, "{at}: the ring was overtaken");
    send.assert_alive();
    receive.assert_alive();
    let (sent, _) = send.end();
    let (received, _) = receive.end();
    let told = [&sent["send"]["messages_missed"], &received["receive"]["messages_missing"]];
    // The recorder's own loss is a gap of the channel to the sender.
    let gaps = sent["send"]["gap_messages"].as_u64().unwrap();
    assert_eq!(told[0].as_u64().unwrap() + gaps, sink.missing, "{at}: {sent}");
    assert_eq!(told[1], sink.missing, "{at}: {received}");
}

#[test]
fn a_recorder_that_is_stopped_in_an_outage_costs_only_what_is_told() {
    an_outage_with(false);
}

#[test]
fn a_recorder_that_is_killed_in_an_outage_costs_only_what_is_told() {
    an_outage_with(true);
}

/// An end without a free descriptor cannot connect again. It reports that it has no connection, and continues as soon as it has a
/// descriptor.
#[test]
fn an_end_without_descriptors_goes_on_when_it_has_some() {
    let test = "an_end_without_descriptors_goes_on_when_it_has_some";
    let Some((_turn, dir, mut server)) = alone(test) else { return };
    let (near, far) = (Place::new(), Place::new());
    let _ = dir;
    let mut publisher =
        Publisher::builder("ticks").dir(near.dir.path().join("channels")).capacity(16 << 20).open().unwrap();
    let nats = format!("--nats {}", server.url());
    let mut send = Bridge::start(
        near.shmcast(&format!("bridge send ticks {nats} --set nats.create=true --set send.from=oldest")),
    );
    send.wait_for_words("sending session");
    let mut receive = Bridge::start(far.shmcast(&format!("bridge recv ticks --capacity 16MiB {nats}")));
    let last = publish(&mut publisher, 500);
    let mut sink = Sink::in_dir(&far.dir.path().join("channels"));
    sink.read_to(last, "the beginning");
    for (outages, bridge) in [&mut send, &mut receive].into_iter().enumerate() {
        if outages > 0 {
            // It has received, so it is connected. A short outage without words is possible.
            bridge.forget_words();
        }
        let pid = Pid::from_raw(bridge.pid() as i32);
        let usual = getrlimit(Resource::Nofile);
        prlimit(pid, Resource::Nofile, Rlimit { current: Some(4), maximum: usual.maximum }).unwrap();
        server.kill();
        publish(&mut publisher, 500);
        server.start();
        bridge.wait_for_words("connection to the servers");
        let last = publish(&mut publisher, 500);
        bridge.assert_alive();
        prlimit(pid, Resource::Nofile, usual).unwrap();
        sink.read_to(last, "descriptors again");
    }
    assert_eq!(sink.missing, 0);
}

/// The interface to the server goes down and comes back. Later it is made anew.
#[test]
fn an_interface_that_goes_and_comes_back_costs_no_message() {
    let test = "an_interface_that_goes_and_comes_back_costs_no_message";
    let Some(program) = program(test) else { return };
    let Some(hosts) = Hosts::new(test, 1) else { return };
    let mut site = Site::below(&hosts.dir.path().join("server"));
    (site.host, site.port) = ("10.77.0.2".to_owned(), 4222);
    site.namespace = Some(hosts.name(Host::B).to_owned());
    let mut server = Server::at(program, site);
    server.start();
    let mut publisher =
        Publisher::builder("ticks").dir(hosts.channels(Host::A)).capacity(16 << 20).open().unwrap();
    let send = hosts.shmcast(
        Host::A,
        &format!("bridge send ticks --nats {} --set nats.create=true --set send.from=oldest", server.url()),
    );
    send.wait_for_log("sending session");
    let receive =
        hosts.shmcast(Host::B, &format!("bridge recv ticks --capacity 16MiB --nats {}", server.url()));
    let last = publish(&mut publisher, 300);
    let mut sink = Sink::in_dir(&hosts.channels(Host::B));
    sink.read_to(last, "the beginning");
    let near = hosts.name(Host::A);
    ip(&format!("-n {near} link set va0 down")).unwrap();
    publish(&mut publisher, 300);
    std::thread::sleep(Duration::from_millis(200));
    ip(&format!("-n {near} link set va0 up")).unwrap();
    let last = publish(&mut publisher, 300);
    sink.read_to(last, "down and up");
    // Both ends of the wire are gone, and other interfaces get their names and addresses.
    let meanwhile = || {
        publish(&mut publisher, 300);
    };
    hosts.remake(0, meanwhile, false);
    let last = publish(&mut publisher, 300);
    sink.read_to(last, "made anew");
    assert_eq!(sink.missing, 0);
    drop((send, receive));
}
