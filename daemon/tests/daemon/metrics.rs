//! The daemon's HTTP server as Prometheus and an administrator use it: a real daemon, real attached programs, and badly
//! behaved clients.

use nix::sys::signal::Signal;
use serde_json::Value;
use shmcast::{PublishError, Subscriber};
use shmcast_testkit::clock::WallClock;
use shmcast_testkit::daemon::{Daemon, publishing};
use shmcast_testkit::{scratch, skip, wait_until};
use std::collections::HashMap;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const CHANNEL: &str = "\n[[channel]]\nname = \"ticks\"\ncapacity = \"1MiB\"\nmlock = false\nhugepages = false\n\
                       labels = { venue = \"XETR\" }\n\
                       [[channel]]\nname = \"trades\"\ncapacity = \"1MiB\"\nmode = \"strict\"\nmlock = false\n\
                       hugepages = false\n";

/// A daemon that answers over HTTP.
struct Watched {
    daemon: Daemon,
    http: SocketAddr,
}

impl Watched {
    fn start() -> Self {
        Self::with("")
    }

    /// Starts a daemon that also has these channels.
    fn with(channels: &str) -> Self {
        let http = SocketAddr::from(([127, 0, 0, 1], shmcast_testkit::place::free_port()));
        let daemon = Daemon::start(&format!("{}{channels}", config(http)));
        wait_until("its port", || TcpStream::connect(http).is_ok());
        Self { daemon, http }
    }

    fn shmcast(&self, arguments: &str) -> Command {
        let mut command = self.daemon.shmcast(arguments);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn get(&self, path: &str) -> Answer {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: here\r\n\r\n"))
    }

    fn ask(&self, request: &str) -> Answer {
        let mut stream = TcpStream::connect(self.http).expect("the daemon listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        stream.write_all(request.as_bytes()).expect("it takes the request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        Answer::of(&answer)
    }

    fn metrics(&self) -> HashMap<String, f64> {
        let answer = self.get("/metrics");
        assert_eq!(answer.status, 200);
        assert_eq!(answer.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
        let samples = answer.body.lines().filter(|line| !line.starts_with('#'));
        samples
            .map(|line| {
                let (series, value) = line.rsplit_once(' ').expect("a value");
                (series.to_owned(), value.parse().expect("a number"))
            })
            .collect()
    }

    fn metric(&self, series: &str) -> f64 {
        self.metrics().get(series).copied().unwrap_or(f64::NAN)
    }

    fn publisher(&self) -> Child {
        self.shmcast("pub ticks").stdin(Stdio::piped()).spawn().expect("it runs")
    }
}

fn config(http: SocketAddr) -> String {
    format!("[daemon]\nhttp = \"{http}\"\n[limits]\nrequests_per_second = 10000\n{CHANNEL}")
}

/// Publishes `lines` lines of ten bytes. The publisher stays.
fn publish(publisher: &mut Child, lines: usize) {
    let pipe = publisher.stdin.as_mut().expect("a pipe");
    pipe.write_all("0123456789\n".repeat(lines).as_bytes()).expect("it reads");
}

/// Lets a program end by itself, and checks that it succeeded.
fn end(mut program: Child) {
    drop(program.stdin.take());
    assert!(program.wait().expect("it ran").success());
}

struct Answer {
    status: u16,
    headers: HashMap<String, String>,
    body: String,
}

impl Answer {
    fn of(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {text:?}"));
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)).expect("a status line");
        let headers = lines.filter_map(|line| line.split_once(": "));
        let headers = headers.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect();
        Self { status: status.parse().expect("a number"), headers, body: body.to_owned() }
    }
}

const PUBLISHED: &str = "shmcast_published_messages_total{channel=\"ticks\"}";
const READERS: &str = "shmcast_readers{channel=\"ticks\"}";

/// An earlier mistake: the daemon computed its start from the present wall clock. So a clock that was set looked like a restart of the
/// daemon.
#[test]
fn a_clock_that_is_set_is_no_restart() {
    let mut watched = Watched::start();
    let room = scratch();
    let Some(clock) = WallClock::make("a_clock_that_is_set_is_no_restart", room.path()) else { return };
    watched.daemon.end(Signal::SIGTERM);
    watched.daemon.restart_with(&clock);
    wait_until("its port", || TcpStream::connect(watched.http).is_ok());
    let started = watched.metric("shmcast_daemon_start_time_seconds");
    clock.set(3_600);
    // The figures can be a little old. These figures were gathered after the clock was set.
    let mut publisher = watched.publisher();
    publish(&mut publisher, 7);
    wait_until("new figures", || watched.metric(PUBLISHED) == 7.0);
    assert_eq!(watched.metric("shmcast_daemon_start_time_seconds"), started);
    end(publisher);
}

#[test]
fn what_happened_is_what_is_counted() {
    let daemon = Watched::start();
    assert_eq!(daemon.metric(PUBLISHED), 0.0);
    assert_eq!(daemon.metric(READERS), 0.0);
    let sub = |_| daemon.shmcast("sub ticks --count 1001").spawn().expect("it runs");
    let readers: Vec<Child> = (0..3).map(sub).collect();
    let labels_of = |reader: &Child| {
        format!("channel=\"ticks\",reader=\"{}\",command=\"shmcast\",role=\"reader\"", reader.id())
    };
    wait_until("three readers", || daemon.metric(READERS) == 3.0);

    let mut publisher = daemon.publisher();
    publish(&mut publisher, 1000);
    wait_until("all to be read", || {
        let metrics = daemon.metrics();
        let received =
            |reader: &Child| format!("shmcast_reader_received_messages_total{{{}}}", labels_of(reader));
        readers.iter().all(|reader| metrics.get(&received(reader)) == Some(&1000.0))
    });
    let metrics = daemon.metrics();
    assert_eq!(metrics[PUBLISHED], 1000.0);
    // The publisher stores its count of bytes every 64 messages, and when it ends.
    const BYTES: &str = "shmcast_published_bytes_total{channel=\"ticks\"}";
    assert!((9_360.0..=10_000.0).contains(&metrics[BYTES]), "{}", metrics[BYTES]);
    assert_eq!(metrics["shmcast_channel_sequence{channel=\"ticks\"}"], 1000.0);
    assert_eq!(metrics["shmcast_channel_epoch{channel=\"ticks\"}"], 1.0);
    assert_eq!(metrics["shmcast_channel_state{channel=\"ticks\",state=\"active\"}"], 1.0);
    assert_eq!(metrics["shmcast_channel_state{channel=\"ticks\",state=\"closed\"}"], 0.0);
    assert_eq!(metrics["shmcast_channel_info{channel=\"ticks\",venue=\"XETR\"}"], 1.0);
    for reader in &readers {
        let labels = labels_of(reader);
        assert_eq!(metrics[&format!("shmcast_reader_lag{{{labels}}}")], 0.0);
        assert_eq!(metrics[&format!("shmcast_reader_missed_messages_total{{{labels}}}")], 0.0);
    }

    // The readers end with the last message, and are then no longer shown.
    publish(&mut publisher, 1);
    end(publisher);
    readers.into_iter().for_each(end);
    wait_until("the readers to be forgotten", || {
        let metrics = daemon.metrics();
        metrics[READERS] == 0.0 && !metrics.keys().any(|series| series.contains("reader=\""))
    });
    assert_eq!(daemon.metric(BYTES), 10_010.0);
    end(daemon.publisher());
    wait_until("the second epoch", || daemon.metric("shmcast_channel_epoch{channel=\"ticks\"}") == 2.0);

    assert!(!daemon.shmcast("sub nonesuch --count 1").status().expect("it runs").success());
    const REFUSED: &str = "shmcast_refusals_total{reason=\"unknown-channel\"}";
    wait_until("the refusal", || daemon.metric(REFUSED) == 1.0);
    wait_until("a look at the loop", || daemon.metric("shmcast_daemon_hiccups_seconds_count") > 0.0);
}

#[test]
fn a_publisher_that_is_up_or_down_for_the_wrong_time() {
    let daemon = Watched::start();
    let up = || daemon.metric("shmcast_publisher_up{channel=\"ticks\"}");
    assert_eq!(up(), 0.0);
    let mut publisher = daemon.publisher();
    wait_until("the publisher", || up() == 1.0);
    // The publisher is attached before it opens the ring. A channel that nobody has opened has no orphan.
    wait_until("the ring to be open", || {
        daemon.metric("shmcast_channel_state{channel=\"ticks\",state=\"active\"}") == 1.0
    });
    publisher.kill().and_then(|()| publisher.wait()).expect("it is ours");
    wait_until("its end to be seen", || up() == 0.0);
    const ORPHANED: &str = "shmcast_channel_state{channel=\"ticks\",state=\"orphaned\"}";
    assert_eq!(daemon.metric(ORPHANED), 1.0);
}

#[test]
fn a_restart_that_nobody_sees() {
    let mut daemon = Watched::start();
    const STARTED: &str = "shmcast_daemon_start_time_seconds";
    let before = daemon.metric(STARTED);
    daemon.daemon.crash();
    wait_until("the daemon", || TcpStream::connect(daemon.http).is_ok());
    assert!(daemon.metric(STARTED) > before);
}

#[test]
fn metrics_that_promtool_finds_fault_with() {
    if Command::new("promtool").arg("--version").output().is_err() {
        skip("metrics_that_promtool_finds_fault_with", "no promtool (Debian package prometheus)");
        return;
    }
    let daemon = Watched::start();
    let reader = daemon.shmcast("sub ticks").spawn().expect("it runs");
    wait_until("the reader", || daemon.metric(READERS) == 1.0);
    let mut publisher = daemon.publisher();
    publish(&mut publisher, 100);
    // A histogram is shown as soon as it is not empty.
    const LATENCIES: &str = "shmcast_reader_latency_seconds_bucket{";
    wait_until("a latency", || daemon.get("/metrics").body.contains(LATENCIES));
    let text = daemon.get("/metrics").body;

    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut promtool = promtool.spawn().expect("it runs");
    promtool.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("it reads");
    let output = promtool.wait_with_output().expect("it ends");
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success() && said.concat().is_empty(), "{said:?}");
    end(publisher);
    end(reader);
}

#[test]
fn a_dashboard_or_an_alert_of_metrics_that_nobody_tells() {
    let daemon = Watched::start();
    let text = daemon.get("/metrics").body;
    let told: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    assert!(told.len() > 15, "{told:?}");
    let is_of_name = |c: char| c.is_ascii_lowercase() || c == '_';
    for file in ["grafana.json", "alerts.yml", "alerts_test.yml"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(file);
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let names: Vec<&str> =
            text.split(|c: char| !is_of_name(c)).filter(|word| word.starts_with("shmcast_")).collect();
        assert!(names.len() > 8, "{file}: {names:?}");
        for name in names {
            let series = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            assert!(
                told.contains(&name) || series.is_some_and(|name| told.contains(&name)),
                "{file}: {name}"
            );
        }
    }
}

#[test]
fn alerts_that_are_wrong_or_silent() {
    if Command::new("promtool").arg("--version").output().is_err() {
        skip("alerts_that_are_wrong_or_silent", "no promtool (Debian package prometheus)");
        return;
    }
    for arguments in [["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]] {
        let mut promtool = Command::new("promtool");
        promtool.args(arguments).current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs"));
        let output = promtool.output().expect("it runs");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }
}

#[test]
fn the_rules_of_http() {
    let daemon = Watched::start();
    assert_eq!(daemon.get("/healthz").body, "ok\n");
    let channels: Value = serde_json::from_str(&daemon.get("/channels.json").body).expect("JSON");
    assert_eq!(channels[0]["channel"], "ticks");
    assert_eq!(channels[0]["mode"], "takeover");
    let elsewhere = daemon.get("/favicon.ico");
    assert_eq!((elsewhere.status, elsewhere.body.contains("/metrics")), (404, true));
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "BREW"] {
        let answer =
            daemon.ask(&format!("{method} /metrics HTTP/1.1\r\nHost: here\r\nContent-Length: 0\r\n\r\n"));
        assert_eq!((answer.status, answer.headers["allow"].as_str()), (405, "GET, HEAD"), "{method}");
    }
    let head = daemon.ask("HEAD /healthz HTTP/1.1\r\nHost: here\r\n\r\n");
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    assert_eq!(head.headers["content-length"], "3");
}

/// Sends a request that the daemon might refuse, and reads the answer.
fn provoke(daemon: &Watched, request: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(daemon.http)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.write_all(request)?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer)
}

#[test]
fn nonsense_that_is_taken_for_a_request() {
    let daemon = Watched::start();
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(1 << 20));
    let wide = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "X-Header: 1\r\n".repeat(10_000));
    let endless = format!("GET /metrics HTTP/1.1\r\nX: {}", "x".repeat(1 << 20));
    let tls = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    let requests: [&[u8]; 7] =
        [b"", b"\r\n\r\n", b"\0\xff\xfe", tls, long.as_bytes(), wide.as_bytes(), endless.as_bytes()];
    for request in requests {
        // The daemon might refuse before the whole request is sent. Then sending fails.
        let answer = provoke(&daemon, request).unwrap_or_default();
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(request));
        assert_eq!(daemon.get("/healthz").status, 200);
    }
    let with_body = format!("GET /healthz HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n{}", "x".repeat(1000));
    let answer = provoke(&daemon, with_body.as_bytes()).unwrap_or_default();
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 200"), "its body is nobody's concern");
    assert_eq!(daemon.get("/healthz").status, 200);
}

#[test]
fn slow_clients_that_keep_others_from_the_metrics() {
    let daemon = Watched::start();
    let connect = |said: &[u8]| {
        let mut stream = TcpStream::connect(daemon.http).expect("it listens");
        // The daemon closes the oldest connections meanwhile, so writing can fail.
        let _ = stream.write_all(said);
        stream
    };
    let slow: Vec<TcpStream> = (0..300)
        .map(|i| match i % 3 {
            0 => connect(b""),
            1 => connect(b"GET /metrics HT"),
            _ => connect(b"GET /metrics HTTP/1.1\r\nHost: here\r\nX-Slow: "),
        })
        .collect();
    for _ in 0..50 {
        assert_eq!(daemon.get("/healthz").status, 200);
    }
    let open = daemon.daemon.open_descriptors();
    assert!(open < 150, "{open} descriptors open");
    // The remaining connections are closed soon, even if they do nothing.
    for mut stream in slow {
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        if let Err(e) = stream.read_to_end(&mut Vec::new()) {
            assert_ne!(e.kind(), io::ErrorKind::WouldBlock, "still open after a minute");
        }
    }
    assert_eq!(daemon.get("/metrics").status, 200);
}

#[test]
fn a_port_that_is_taken_leaves_nothing_that_looks_like_a_crash() {
    let daemon = Watched::start();
    let mut second = Daemon::spawn(shmcast_testkit::scratch(), &config(daemon.http));
    assert_eq!(second.wait(), Some(1));
    let log = second.log();
    assert!(log.contains(&daemon.http.to_string()) && log.contains("daemon.http"), "{log}");
    assert!(!second.marker().exists(), "its successor would wait for programs that there are not");
    // The daemon starts as soon as the port is free.
    let http = daemon.http;
    drop(daemon);
    second.restart();
    wait_until("the successor", || TcpStream::connect(http).is_ok());
    let log = second.log();
    assert!(!log.contains("crashed=true"), "{log}");
}

/// Prometheus computes rates of counters. It takes a counter that falls for one that has begun again.
#[test]
fn counters_that_go_backwards_with_the_next_publisher() {
    let daemon = Watched::start();
    let series =
        ["messages", "bytes"].map(|what| format!("shmcast_published_{what}_total{{channel=\"trades\"}}"));
    let mut last = [0.0; 2];
    let look = |last: &mut [f64; 2]| {
        let metrics = daemon.metrics();
        let now = series.each_ref().map(|series| metrics[series]);
        assert!(now[0] >= last[0] && now[1] >= last[1], "{last:?}, then {now:?}");
        *last = now;
        now
    };
    for publishers in 1..=5 {
        let mut publisher = daemon.shmcast("pub trades").stdin(Stdio::piped()).spawn().expect("it runs");
        publish(&mut publisher, 100);
        while look(&mut last)[0] < f64::from(publishers) * 100.0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        end(publisher);
        // An answer can be as old as the previous one.
        wait_until("all of it", || look(&mut last) == [100.0, 1000.0].map(|n| n * f64::from(publishers)));
    }
}

#[test]
fn the_waits_for_a_gate_are_a_histogram() {
    let gate = "[[channel.gate]]\nname = \"g\"\nwait = \"2ms\"\nthen = \"refuse\"\n";
    let channel = "[[channel]]\nname = \"gated\"\ncapacity = \"64KiB\"\nmlock = false\nhugepages = false\n";
    let daemon = Watched::with(&format!("{channel}{gate}"));
    let client = daemon.daemon.client();
    let mut publisher = publishing(&client, "gated").open().expect("it is free");
    let _reader = Subscriber::builder("gated").client(&client).gate("g").open().expect("it is there");
    let refused = (0..10_000).find_map(|_| publisher.publish(&[1; 100]).err());
    assert!(matches!(refused, Some(PublishError::Full { .. })), "{refused:?}");
    let series = |what: &str, more: &str| {
        format!("shmcast_gate_wait_seconds_{what}{{channel=\"gated\",gate=\"g\"{more}}}")
    };
    wait_until("the wait", || daemon.metric(&series("count", "")) == 1.0);
    let metrics = daemon.metrics();
    assert!(metrics[&series("sum", "")] >= 0.002, "{metrics:?}");
    for (end, count) in [("0.000001024", 0.0), ("0.001048576", 0.0), ("+Inf", 1.0)] {
        assert_eq!(metrics[&series("bucket", &format!(",le=\"{end}\""))], count, "{end}");
    }
}

/// A gap of the ring counts as lost in the metrics and the status of a journal, and in an event, as `shmcast record` counts it.
#[test]
fn a_gap_of_the_ring_is_lost_in_a_journal() {
    let room = scratch();
    let dir = room.path().join("journal");
    let channel = "[[channel]]\nname = \"kept\"\ncapacity = \"64KiB\"\nmlock = false\nhugepages = false\n";
    let daemon = Watched::with(&format!("{channel}journal = {{ dir = {dir:?}, file = \"1MiB\" }}\n"));
    let client = daemon.daemon.client();
    let mut publisher = publishing(&client, "kept").open().expect("it is free");
    publisher.publish(b"one").expect("it has room");
    publisher.gap(100).expect("it has room");
    publisher.publish(b"a hundred and one").expect("it has room");
    let status = || client.channel("kept").expect("it is there").journal.expect("it is recorded");
    wait_until("all of it", || status().durable >= 101);
    assert_eq!((status().missing, status().gaps), (99, 99));
    let series =
        |cause: &str| format!("shmcast_journal_lost_messages_total{{channel=\"kept\",cause=\"{cause}\"}}");
    wait_until("the metrics", || daemon.metric(&series("gap")) == 99.0);
    assert_eq!(["overrun", "unrecorded"].map(|cause| daemon.metric(&series(cause))), [0.0, 0.0]);
    daemon.daemon.wait_for_log(&["journal-lost", "99 messages never reached this host"]);
    let stat = daemon.daemon.shmcast("stat kept").output().expect("it runs");
    let stat = String::from_utf8(stat.stdout).expect("text");
    let missing = stat.lines().find(|line| line.contains("missing in the journal")).expect("a line");
    assert!(missing.trim_end().ends_with(" 99"), "{stat}");
}
