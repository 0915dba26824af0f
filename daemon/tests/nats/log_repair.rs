//! A log as the last source of repairs for a bridge that receives lines: what the sender's ring has no more comes from there, byte for
//! byte. A log of another feed is refused, and one that is away changes nothing.

use crate::feed::Bridge;
use serde_json::Value;
use shmcast::{Event, Mark, Publisher, Start, Subscriber};
use shmcast_testkit::PATIENCE;
use shmcast_testkit::command::{Host, text};
use shmcast_testkit::nats::{Server, alone, program};
use shmcast_testkit::place::{free_port, own_address};
use shmcast_testkit::turn::turn;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::{Duration, Instant};

/// The sender's ring: it holds some two thousand messages.
const RING: u64 = 256 << 10;
/// Messages before the receiver is away, and meanwhile: many rings.
const BEFORE: u64 = 1_000;
const AWAY: u64 = 10_000;

/// The content of a message of the feed `feed`.
fn content(feed: u64, sequence: u64) -> (Vec<u8>, Mark) {
    let mut bytes = vec![0; 8 + (sequence * 7919 % 90) as usize];
    fastrand::Rng::with_seed(sequence ^ feed << 40).fill(&mut bytes);
    (bytes, Mark { tag: (sequence % 1_000) as u16, key: sequence.is_multiple_of(64) })
}

/// A publisher, its host, and how far it is.
struct Source {
    host: Host,
    publisher: Publisher,
    feed: u64,
}

impl Source {
    fn new(feed: u64) -> Source {
        let host = Host::new();
        let builder = Publisher::builder("ticks").dir(host.dir.path().join("channels"));
        let publisher = builder.capacity(RING).max_message(1 << 10).open().unwrap();
        Source { host, publisher, feed }
    }

    /// Publishes `count` messages, slowly enough for both bridges to follow: some 100,000 a second.
    fn publish(&mut self, count: u64) {
        for _ in 0..count {
            let next = self.publisher.next_sequence();
            let (bytes, mark) = content(self.feed, next);
            self.publisher.publish_with(&bytes, mark).unwrap();
            if next.is_multiple_of(100) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

fn start(host: &Host, arguments: &str) -> Bridge {
    Bridge::start(host.shmcast(&format!("bridge {arguments}")))
}

/// The addresses of a line and of its repair server.
struct Line {
    to: SocketAddr,
    repair: SocketAddr,
    more: String,
}

impl Line {
    fn new(more: &str) -> Line {
        Line { to: own_address(), repair: own_address(), more: more.to_owned() }
    }

    fn send(&self, host: &Host) -> Bridge {
        let (to, repair, more) = (self.to, self.repair, &self.more);
        let mut bridge =
            start(host, &format!("send ticks --to {to} --repair {repair} --allow 127.0.0.0/8 {more}"));
        bridge.wait_for_words("sending session");
        bridge
    }

    fn receive(&self, host: &Host, log: &str) -> Bridge {
        let (to, repair, more) = (self.to, self.repair, &self.more);
        let lines = format!("--from {to} --server {repair}");
        let mut bridge = start(host, &format!("recv ticks {lines} --first 1 --capacity 64MiB {more} {log}"));
        bridge.wait_for_words("receiving session");
        bridge
    }
}

/// A server with an account that may do all, and one that may do what the guide says of a receiver that has repairs from a log.
fn server_with_accounts(program: &Path, dir: &Path) -> Server {
    let may = r#"publish: ["$JS.API.STREAM.INFO.SHMCAST_ticks", "$JS.API.DIRECT.GET.SHMCAST_ticks"], subscribe: ["_INBOX.>"]"#;
    let mender = format!("{{ user: mender, password: p, permissions: {{ {may} }} }}");
    Server::with(
        program,
        dir,
        &format!("authorization {{ users: [ {{ user: admin, password: p }}, {mender} ] }}"),
    )
}

fn of(server: &Server, user: &str) -> String {
    server.url().replace("nats://", &format!("nats://{user}:p@"))
}

/// Sends the channel of a host into the log too.
fn send_to_log(host: &Host, server: &Server, more: &str) -> Bridge {
    let bridge = start(host, &format!("send ticks --create --nats {} {more}", of(server, "admin")));
    wait_for(server, host, more, 1);
    bridge
}

/// Publishes `count` messages, and no more at a time than the ring holds until the log has them.
fn publish_into(server: &Server, source: &mut Source, more: &str, count: u64) {
    let end = source.publisher.next_sequence() + count;
    while source.publisher.next_sequence() < end {
        source.publish((end - source.publisher.next_sequence()).min(BEFORE));
        wait_for(server, &source.host, more, source.publisher.next_sequence());
    }
}

/// Waits until the log has all messages up to, not including, `next`.
fn wait_for(server: &Server, host: &Host, more: &str, next: u64) {
    let keys = more.split_once("--keys ").map(|(_, keys)| format!("--keys {keys}")).unwrap_or_default();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found =
            host.run(&format!("bridge stream verify ticks --nats {} {keys} --json", of(server, "admin")));
        let found: Value = serde_json::from_slice(&found.stdout).unwrap_or_default();
        if found["messages"].as_u64().is_some_and(|messages| messages + 1 >= next) {
            assert_eq!(found["missing"].as_u64().unwrap_or(0), 0, "{found}");
            return;
        }
        assert!(Instant::now() < deadline, "the log has {found}, {next} is due");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The receiver's host: its channel as a reader sees it.
struct Far {
    host: Host,
    reader: Option<Subscriber>,
    due: u64,
    has_marks: bool,
}

impl Far {
    fn new(has_marks: bool) -> Far {
        Far { host: Host::new(), reader: None, due: 1, has_marks }
    }

    /// Compares each message up to the one before `next` with the feed 1. Returns the gaps that were told.
    fn read_to(&mut self, next: u64) -> Vec<RangeInclusive<u64>> {
        let reader = self.reader.get_or_insert_with(|| {
            let builder =
                Subscriber::builder("ticks").dir(self.host.dir.path().join("channels")).start(Start::Oldest);
            builder.wait_for_channel(PATIENCE).open().unwrap()
        });
        let (deadline, mut gaps) = (Instant::now() + PATIENCE, Vec::new());
        while self.due < next {
            match reader.recv_deadline(deadline).unwrap() {
                Some(Event::Message(message)) => {
                    assert_eq!(message.sequence, self.due, "a message is missing or comes twice");
                    let (bytes, mark) = content(1, self.due);
                    assert!(message.payload == bytes, "message {} has other bytes", self.due);
                    if self.has_marks {
                        assert_eq!((message.tag, message.key), (mark.tag, mark.key), "message {}", self.due);
                    }
                    self.due += 1;
                }
                Some(Event::Gap { from, to }) => {
                    assert_eq!(from, self.due);
                    gaps.push(from..=to);
                    self.due = to + 1;
                }
                None => panic!("waited {PATIENCE:?} for {next}, {} is due", self.due),
                Some(Event::Lapped(lapped)) => panic!("the test's own reader was lapped: {lapped:?}"),
                Some(_) => {}
            }
        }
        gaps
    }
}

fn figure(counters: &Value, path: &str) -> u64 {
    counters.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("no {path} in {counters}"))
}

/// The receiver is away while many rings are published, and then all of it is mended by the log.
fn everything_comes(test: &str, more: impl Fn(&Host) -> String, has_marks: bool) {
    let (_turn, Some(program)) = (turn(), program(test)) else { return };
    let dir = tempfile::tempdir().unwrap();
    let server = server_with_accounts(program, dir.path());
    let (mut source, mut far) = (Source::new(1), Far::new(has_marks));
    let more = more(&source.host);
    let line = Line::new(&more);
    let (_lines, _log) = (line.send(&source.host), send_to_log(&source.host, &server, keys_of(&more)));
    // Nothing is given up, however long a busy machine takes.
    let log = format!("--log {} --give-up 60s", of(&server, "mender"));
    let mut receiver = line.receive(&far.host, &log);
    source.publish(BEFORE);
    assert_eq!(far.read_to(BEFORE + 1), []);
    receiver.wait_for_words("the log has the channel's messages");
    receiver.kill();
    publish_into(&server, &mut source, keys_of(&more), AWAY);
    let receiver = line.receive(&far.host, &log);
    source.publish(BEFORE);
    let gaps = far.read_to(2 * BEFORE + AWAY + 1);
    let (counters, said) = receiver.end();
    assert_eq!(gaps, [], "{counters} {said}");
    assert_eq!(figure(&counters, "/receive/messages_missing"), 0, "{counters}");
    assert!(figure(&counters, "/receive/recovered_by_log") > AWAY / 2, "{counters}");
    assert_eq!(counters["log"]["state"], "serving", "{counters}");
    eprintln!(
        "{test}: {} messages by the log, {} by the server",
        figure(&counters, "/receive/recovered_by_log"),
        figure(&counters, "/receive/recovered_by_servers")
    );
}

/// The options about keys, which lines and log have both.
fn keys_of(more: &str) -> &str {
    more.find("--keys").map_or("", |at| &more[at..])
}

#[test]
fn what_the_ring_has_no_more_comes_from_the_log() {
    everything_comes("what_the_ring_has_no_more_comes_from_the_log", |_| String::new(), false);
}

#[test]
fn sealed_lines_are_mended_by_a_sealed_log_with_all_marks() {
    let test = "sealed_lines_are_mended_by_a_sealed_log_with_all_marks";
    let sealed = |host: &Host| {
        let keys = host.dir.path().join("keys").display().to_string();
        let made = host.run(&format!("bridge key new {keys}"));
        assert!(made.status.success(), "{}", text(&made.stderr));
        format!("--profile native --keys {keys}")
    };
    everything_comes(test, sealed, true);
}

/// The receiver is away while many rings are published, and the log is of no help. All that the ring has no more is told as one gap, no
/// other message comes, and the line goes on. Returns the counters of the receiver.
fn all_is_as_without_a_log(
    server: &Server,
    mut trouble: impl FnMut(),
    is_there: impl Fn(&Far, &str) -> Bridge,
    line: &Line,
) -> Value {
    let (mut source, mut far) = (Source::new(1), Far::new(false));
    let _lines = line.send(&source.host);
    let log = format!("--log {}", server.url());
    let receiver = is_there(&far, &log);
    source.publish(BEFORE);
    assert_eq!(far.read_to(BEFORE + 1), []);
    receiver.kill();
    source.publish(AWAY);
    trouble();
    let receiver = is_there(&far, &log);
    // The receiver has all of the ring before more is published, which would overwrite some of it.
    let mut gaps = far.read_to(BEFORE + AWAY + 1);
    source.publish(BEFORE);
    gaps.extend(far.read_to(2 * BEFORE + AWAY + 1));
    // The line goes on, and small losses are mended by the server that is near.
    source.publish(BEFORE);
    assert_eq!(far.read_to(3 * BEFORE + AWAY + 1), [], "{gaps:?}");
    let (counters, said) = receiver.end();
    let [gap] = &gaps[..] else { panic!("{gaps:?} {counters} {said}") };
    assert_eq!(*gap.start(), BEFORE + 1, "{gaps:?}");
    assert_eq!(figure(&counters, "/receive/messages_missing"), gap.end() - gap.start() + 1, "{counters}");
    assert_eq!(figure(&counters, "/receive/recovered_by_log"), 0, "{counters}");
    counters
}

#[test]
fn a_log_of_another_feed_is_refused() {
    let test = "a_log_of_another_feed_is_refused";
    let Some((_turn, _dir, server)) = alone(test) else { return };
    let mut other = Source::new(2);
    let _log = send_to_log(&other.host, &server, "");
    publish_into(&server, &mut other, "", 3 * BEFORE + AWAY);
    let line = Line::new("");
    let counters = all_is_as_without_a_log(&server, || (), |far, log| line.receive(&far.host, log), &line);
    assert_eq!(
        (&counters["log"]["state"], &counters["log"]["messages"]),
        (&"refused".into(), &0.into()),
        "{counters}"
    );
    let why = counters["log"]["why"].as_str().unwrap();
    assert!(why.contains("of the stream is not that of the lines"), "{why}");
}

#[test]
fn a_log_that_is_away_or_stands_still_changes_nothing() {
    let test = "a_log_that_is_away_or_stands_still_changes_nothing";
    let Some((_turn, _dir, mut server)) = alone(test) else { return };
    let line = Line::new("");
    let receive = |far: &Far, log: &str| line.receive(&far.host, log);
    // It stands still: connections are taken, and nothing is ever said.
    let counters =
        all_is_as_without_a_log(&server, || server.signal(nix::sys::signal::Signal::SIGSTOP), receive, &line);
    assert_eq!(counters["log"]["state"], "away", "{counters}");
    server.signal(nix::sys::signal::Signal::SIGCONT);
    server.kill();
    let line = Line::new("");
    let receive = |far: &Far, log: &str| line.receive(&far.host, log);
    let counters = all_is_as_without_a_log(&server, || (), receive, &line);
    assert_eq!(counters["log"]["state"], "away", "{counters}");
    assert!(counters["log"]["why"].as_str().unwrap().contains("NATS servers"), "{counters}");
}

#[test]
fn a_check_looks_at_the_log_and_options_of_a_stream_need_one() {
    let test = "a_check_looks_at_the_log_and_options_of_a_stream_need_one";
    let (_turn, Some(program)) = (turn(), program(test)) else { return };
    let (dir, host) = (tempfile::tempdir().unwrap(), Host::new());
    let server = server_with_accounts(program, dir.path());
    let check = |log: &str| {
        let config = format!(
            "[[channel]]\nname = \"ticks\"\ncapacity = \"1MiB\"\n[[bridge]]\nchannel = \"ticks\"\nline = [{{ group = \
             \"127.0.0.1:{}\" }}]\n[bridge.receive]\nlog = \"{log}\"\n",
            free_port()
        );
        let file = host.file("shmcast.toml", config.as_bytes());
        let output = host.run(&format!("bridge check {} --listen 1ms --json", file.display()));
        let found: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|e| panic!("{e}: {}", text(&output.stderr)));
        let found = found.as_array().unwrap().clone();
        move |about: &str| {
            let finding = found.iter().find(|it| it["about"].as_str().unwrap().starts_with(about));
            finding.map(|it| it["status"].as_str().unwrap().to_owned())
        }
    };
    let status = check(&of(&server, "mender"));
    assert_eq!(status("log: stream").as_deref(), Some("fails"), "there is none yet");
    let made = host.run(&format!("bridge stream create ticks --nats {}", of(&server, "admin")));
    assert!(made.status.success(), "{}", text(&made.stderr));
    let status = check(&of(&server, "mender"));
    for about in ["log: server", "log: stream", "log: search"] {
        assert_eq!(status(about).as_deref(), Some("ok"), "{about}");
    }
    assert_eq!(status("log: follow"), None, "it follows nothing");
    let status = check("nats://127.0.0.1:1");
    assert_eq!(status("log: server").as_deref(), Some("fails"));
    for wrong in ["--creds /x", "--log nats://h:1 --nats nats://h:1", "--stream S"] {
        let output = host.run(&format!("bridge recv ticks --from 127.0.0.1:9 {wrong}"));
        assert_eq!(output.status.code(), Some(2), "{wrong}: {}", text(&output.stderr));
    }
}
