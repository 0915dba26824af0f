//! Bridges that daemons carry from host to host: three hosts with a daemon each, connected in a ring.

use super::roles::next_epoch;
use nix::sys::signal::Signal;
use serde_json::Value;
use shmcast::{Client, Event, Start, Subscriber};
use shmcast_testkit::hosts::{Host, Hosts, Running};
use shmcast_testkit::{PATIENCE, REST, skip, wait_for};
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

const HOSTS: [Host; 3] = [Host::A, Host::B, Host::C];

/// The three hosts, whose channels belong to daemons.
struct Net(Hosts);

impl Net {
    fn new(test: &str) -> Option<Self> {
        let mut hosts = Hosts::in_a_ring(test, HOSTS.len())?;
        hosts.use_daemons(true);
        Some(Self(hosts))
    }

    /// The file with the input of a host's publisher.
    fn input(&self, host: usize) -> PathBuf {
        self.0.dir.path().join(format!("{host}.input"))
    }

    fn configure(&self, host: usize, config: &str) {
        self.0.configure(HOSTS[host], config);
    }

    /// Starts a host's daemon and waits until it answers.
    fn daemon(&self, host: usize, config: &str) -> Daemon<'_> {
        Daemon { net: self, host, running: self.0.daemon(HOSTS[host], config) }
    }
}

struct Daemon<'a> {
    net: &'a Net,
    host: usize,
    running: Running,
}

impl Daemon<'_> {
    fn run(&self, arguments: &str) -> Output {
        self.net.0.run(HOSTS[self.host], arguments)
    }

    fn bridge(&self, name: &str) -> Value {
        let output = self.run(&format!("bridge status {name} --json"));
        let json: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stderr)));
        json["bridges"][0].clone()
    }

    fn wait_for_bridge(&self, name: &str, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        wait_for(&format!("bridge {name} of host {} to {what}", self.host), || {
            Some(self.bridge(name)).filter(|bridge| is_so(bridge))
        })
    }

    /// Publishes the numbers 1 to `count` as lines.
    fn publish(&self, channel: &str, count: u64) {
        let input = self.net.input(self.host);
        let lines: String = (1..=count).map(|n| format!("{n}\n")).collect();
        fs::write(&input, lines).unwrap();
        let output = self.run(&format!("pub {channel} --input {} --rate 100000/s", input.display()));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn log(&self) -> String {
        self.running.log()
    }

    fn wait_for_log(&self, text: &str) {
        self.running.wait_for_log(text);
    }

    fn signal(&self, signal: Signal) {
        self.running.signal(signal);
    }
}

fn channel(name: &str) -> String {
    format!(
        "[[channel]]\nname = \"{name}\"\ncapacity = \"4MiB\"\nmax_message = 1378\nmlock = false\nhugepages = false\n"
    )
}

/// A bridge from `channel` of `host` to the next host, with a retransmission server.
fn sends(channel: &str, host: usize) -> String {
    format!(
        "[[bridge]]\nname = \"{channel}-out\"\nchannel = \"{channel}\"\n\
         line = [{{ group = \"239.7.{host}.1:30001\", interface = \"out\" }}]\n[bridge.send]\nlinger_ms = 60000\n\
         [bridge.send.repair]\nbind = \"10.78.{host}.1:30002\"\nallow = [\"10.78.{host}.0/24\"]\n"
    )
}

/// A bridge from the host before `host` into `channel`.
fn receives(channel: &str, host: usize, more: &str) -> String {
    let from = (host + 2) % 3;
    format!(
        "[[bridge]]\nname = \"{channel}-in\"\nchannel = \"{channel}\"\n\
         line = [{{ group = \"239.7.{from}.1:30001\", interface = \"in\" }}]\n[bridge.receive]\n\
         servers = [\"10.78.{from}.1:30002\"]\n{more}\n"
    )
}

fn has_session(bridge: &Value) -> bool {
    bridge["session"].is_string() && bridge["state"] == "running"
}

/// Whether a bridge works. While nobody publishes, the bridge repeats the end of the session, and its state is `ending`.
fn is_up(bridge: &Value) -> bool {
    bridge["state"] == "running" || bridge["state"] == "ending"
}

/// A sends to B, and B to C, which cannot reach A. Every host has A's sequences, and C gets missed messages from B's ring.
#[test]
fn a_feed_goes_on_from_host_to_host_under_its_own_sequences() {
    const MESSAGES: u64 = 20_000;
    let Some(net) = Net::new("a_feed_goes_on_from_host_to_host_under_its_own_sequences") else { return };
    let a = net.daemon(0, &(channel("ticks") + &sends("ticks", 0)));
    let b = net.daemon(1, &(channel("ticks") + &receives("ticks", 1, "") + &sends("ticks", 1)));
    let at_a = a.wait_for_bridge("ticks-out", "run", has_session);
    let at_b = b.wait_for_bridge("ticks-out", "carry the session", has_session);
    assert_eq!(at_a["session"], at_b["session"], "the session goes on with the feed");
    a.publish("ticks", MESSAGES);
    let whole = |path: &'static str| {
        move |bridge: &Value| bridge.pointer(path).and_then(Value::as_u64) == Some(MESSAGES + 1)
    };
    b.wait_for_bridge("ticks-in", "have all", whole("/figures/receive/next_sequence"));
    b.wait_for_bridge("ticks-out", "have sent all", whole("/figures/send/next_sequence"));

    // C starts late, and asks for all earlier messages.
    let c = net.daemon(2, &(channel("ticks") + &receives("ticks", 2, "from = 1")));
    let at_c = c.wait_for_bridge("ticks-in", "have all", whole("/figures/receive/next_sequence"));
    assert_eq!(at_c["session"], at_a["session"]);
    let receive = &at_c["figures"]["receive"];
    assert_eq!((&receive["messages_missing"], &receive["messages_published"]), (&0.into(), &MESSAGES.into()));
    assert!(receive["recovered_by_servers"].as_u64().unwrap() > 0, "{receive}");
    b.wait_for_bridge("ticks-out", "count its repairs", |it| {
        it["figures"]["repair"]["messages"].as_u64() >= receive["recovered_by_servers"].as_u64()
    });

    let output = c.run(&format!("sub ticks --from 1 --count {MESSAGES} --summary --json"));
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.stdout, fs::read(net.input(0)).unwrap(), "what C reads is what A published");
    let summary: Value =
        serde_json::from_str(String::from_utf8_lossy(&output.stderr).lines().last().unwrap()).unwrap();
    assert_eq!((&summary["first_sequence"], &summary["next_sequence"]), (&1.into(), &(MESSAGES + 1).into()));

    // The bridge is the channel's only publisher: even root is refused.
    let output = b.run("pub ticks");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && said.contains("ticks-in") && said.contains("only publisher"),
        "{said}"
    );
}

/// A sends to B, B to C, and C back to A, into another channel. The session shows the loop, which is refused before the first message.
#[test]
fn a_feed_that_comes_back_to_where_it_began_is_refused() {
    let Some(net) = Net::new("a_feed_that_comes_back_to_where_it_began_is_refused") else { return };
    let on = |host| channel("ticks") + &receives("ticks", host, "") + &sends("ticks", host);
    let echo = receives("echo", 0, "").replace("ticks", "echo");
    let a = net.daemon(0, &(channel("ticks") + &channel("echo") + &sends("ticks", 0) + &echo));
    let (b, c) = (net.daemon(1, &on(1)), net.daemon(2, &on(2)));
    b.wait_for_bridge("ticks-out", "carry the session", has_session);
    c.wait_for_bridge("ticks-out", "carry the session", has_session);
    let echo = a.wait_for_bridge("echo-in", "be refused", |bridge| bridge["state"] == "failed");
    let why = echo["why"].as_str().unwrap();
    assert!(why.contains("began on this host") && why.contains("loop"), "{why}");
    a.publish("ticks", 100);
    c.wait_for_bridge("ticks-in", "have all", |bridge| bridge["figures"]["receive"]["next_sequence"] == 101);
    let output = a.run("stat echo --json");
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(status["next_sequence"], 1, "nothing of it got into the channel: {status}");
    assert!(is_up(&a.bridge("ticks-out")));
}

/// All hosts of a ring receive, and nobody publishes. Each bridge waits for a session, and reports this.
#[test]
fn a_circle_without_a_source_waits_and_says_so() {
    let Some(net) = Net::new("a_circle_without_a_source_waits_and_says_so") else { return };
    let on = |host| channel("ticks") + &receives("ticks", host, "") + &sends("ticks", host);
    let daemons = [0, 1, 2].map(|host| net.daemon(host, &on(host)));
    for daemon in &daemons {
        daemon.wait_for_bridge("ticks-in", "run", |bridge| bridge["state"] == "running");
        let waits = daemon.wait_for_bridge("ticks-out", "wait", |bridge| bridge["state"] == "waiting");
        assert!(waits["why"].as_str().unwrap().contains("ticks-in"), "{waits}");
    }
}

/// A reload ends removed bridges, starts added ones, and leaves unchanged ones alone.
#[test]
fn a_reload_touches_only_what_has_changed() {
    let Some(net) = Net::new("a_reload_touches_only_what_has_changed") else { return };
    let gone = sends("rates", 0).replace("30001", "30003").replace("30002", "30004").replace("60000", "300");
    let both = channel("ticks") + &channel("rates") + &sends("ticks", 0);
    let a = net.daemon(0, &(both.clone() + &gone));
    let b = net.daemon(1, &(channel("ticks") + &receives("ticks", 1, "")));
    let before = b.wait_for_bridge("ticks-in", "hear the session", has_session);
    a.wait_for_bridge("rates-out", "run", has_session);
    let status = a.run("bridge status");
    let said = String::from_utf8(status.stderr).unwrap();
    // A virtual wire states 10 Gbit/s. How the thread waits depends on this host's CPUs.
    let settings = ["bridge ticks-out: wait = ", " CPUs: ", "; live packets take at most 95 % of 10Gbit"];
    assert!(settings.iter().all(|text| said.contains(text)), "{said}");
    let table = String::from_utf8(status.stdout).unwrap();
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        (rows[0][0], &rows[1][..4]),
        ("BRIDGE", &["rates-out", "rates", "send", "running"][..]),
        "{table}"
    );
    assert_eq!((rows.len(), rows[2][0]), (3, "ticks-out"), "{table}");
    a.publish("ticks", 100);
    b.wait_for_bridge("ticks-in", "have all", |bridge| bridge["figures"]["receive"]["next_sequence"] == 101);

    net.configure(0, &(both.clone() + &gone.replace("linger_ms = 300", "linger_ms = 200")));
    a.signal(Signal::SIGHUP);
    wait_for("the changed bridge to start again", || {
        (a.log().matches("bridge-started").count() == 3).then_some(())
    });
    net.configure(0, &both);
    a.signal(Signal::SIGHUP);
    wait_for("the bridge to go", || (a.log().matches("bridge-removed").count() == 2).then_some(()));
    // A removed bridge serves repairs for a while before it is gone.
    wait_for("no bridge", || {
        let said = String::from_utf8_lossy(&a.run("bridge status rates-out").stderr).into_owned();
        (said.contains("no bridge \"rates-out\"") && said.contains("ticks-out")).then_some(())
    });

    // A configuration with a mistake changes nothing.
    net.configure(0, &both.replace("239.7.0.1:30001", "239.7.0.1"));
    a.signal(Signal::SIGHUP);
    a.wait_for_log("reload-refused");
    assert!(is_up(&a.bridge("ticks-out")));
    let log = a.log();
    let touched = log.lines().filter(|line| line.contains("bridge-removed") && line.contains("ticks-out"));
    assert_eq!(touched.count(), 0, "{log}");
    // The session is still the same as before the reload with the mistake.
    a.publish("ticks", 100);
    let after =
        b.wait_for_bridge("ticks-in", "go on", |bridge| bridge["figures"]["receive"]["next_sequence"] == 201);
    assert_eq!(before["session"], after["session"]);
    assert_eq!(after["figures"]["receive"]["sessions"], 1);

    // An orderly stop does not end the session: the next daemon continues the session.
    a.signal(Signal::SIGTERM);
    a.wait_for_log("stopped");
}

/// A sender that has lost its memory counts from 1 again, in a new session. So the channel here counts from 1 again. A reader that was
/// attached before continues, and so does a bridge that sends the channel to the next host.
#[test]
fn a_session_that_counts_from_the_beginning_begins_the_channel_anew() {
    let Some(net) = Net::new("a_session_that_counts_from_the_beginning_begins_the_channel_anew") else {
        return;
    };
    // The sender has no session name of its own, so it is not the one for which the receivers wait. They report this.
    let unnamed = channel("ticks") + &sends("ticks", 0);
    let config = unnamed.replace("[bridge.send]", "session = \"TICK\"\n[bridge.send]");
    let a = net.daemon(0, &unnamed);
    let follows = |host| {
        receives("ticks", host, "").replace("[bridge.receive]", "session = \"TICK\"\n[bridge.receive]")
    };
    let b = net.daemon(1, &(channel("ticks") + &follows(1) + &sends("ticks", 1)));
    let c = net.daemon(2, &(channel("ticks") + &follows(2)));
    let next_is = |next: u64| move |bridge: &Value| bridge["figures"]["receive"]["next_sequence"] == next;
    b.wait_for_bridge("ticks-in", "name the other feed", |bridge| {
        bridge["why"].as_str().is_some_and(|why| why.contains("waits for another session"))
    });
    drop(a);
    let a = net.daemon(0, &config);
    let first = b.wait_for_bridge("ticks-in", "hear the session", has_session);
    c.wait_for_bridge("ticks-in", "hear the session", has_session);
    let client = Client::at(net.0.socket(Host::B)).unwrap();
    let builder = Subscriber::builder("ticks").client(&client).start(Start::Oldest);
    let mut reader = builder.wait(REST).open().unwrap();
    let mut heard = Vec::new();
    let mut hear_until = |last: u64, heard: &mut Vec<u64>| {
        while heard.last() != Some(&last) {
            match reader.recv_deadline(Instant::now() + PATIENCE).unwrap().expect("the next") {
                Event::Message(message) => heard.push(message.sequence),
                Event::Restarted => heard.push(0),
                _ => {}
            }
        }
    };
    a.publish("ticks", 100);
    b.wait_for_bridge("ticks-in", "have all", next_is(101));
    c.wait_for_bridge("ticks-in", "have all", next_is(101));
    hear_until(100, &mut heard);
    next_epoch();
    drop(a);
    let a = net.daemon(0, &config);
    let is_next = |bridge: &Value| has_session(bridge) && bridge["session"] != first["session"];
    b.wait_for_bridge("ticks-in", "hear the next session", is_next);
    a.publish("ticks", 50);
    b.wait_for_bridge("ticks-in", "begin anew", next_is(51));
    c.wait_for_bridge("ticks-in", "begin anew behind it", next_is(51));
    let output = b.run("sub ticks --from 1 --count 50 --summary --json");
    assert_eq!(output.stdout, fs::read(net.input(0)).unwrap());
    assert!(b.log().contains("event=\"restarted\""), "{}", b.log());
    hear_until(50, &mut heard);
    // A zero stands for the event that the channel began again.
    assert_eq!(heard, (1..=100).chain(0..=50).collect::<Vec<u64>>());
}

/// The figures of both ends, as Prometheus's own tool checks them.
#[test]
fn figures_of_bridges_are_sound_metrics() {
    let Some(net) = Net::new("figures_of_bridges_are_sound_metrics") else { return };
    let http = "[daemon]\nhttp = \"127.0.0.1:9464\"\n";
    let a = net.daemon(0, &(http.to_owned() + &channel("ticks") + &sends("ticks", 0)));
    let b = net.daemon(1, &(http.to_owned() + &channel("ticks") + &receives("ticks", 1, "")));
    b.wait_for_bridge("ticks-in", "hear the session", has_session);
    a.publish("ticks", 1_000);
    b.wait_for_bridge("ticks-in", "have all", |bridge| {
        bridge["figures"]["receive"]["next_sequence"] == 1_001
    });
    let metrics = |daemon: &Daemon<'_>| {
        let fetch =
            "exec 3<>/dev/tcp/127.0.0.1/9464; printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3";
        let text = net.0.output(HOSTS[daemon.host], "bash", &["-c", fetch]);
        text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text:?}")).1.to_owned()
    };
    let lines_sent = [
        "shmcast_bridge_up{bridge=\"ticks-out\",channel=\"ticks\",direction=\"send\"} 1",
        "shmcast_bridge_sent_messages_total{bridge=\"ticks-out\"} 1000",
        "shmcast_bridge_link_rate_bytes{bridge=\"ticks-out\"} 1250000000",
        "shmcast_bridge_link_waits_total{bridge=\"ticks-out\"} ",
        // The rate for repairs: 95 % of the link, minus the share of live packets in the last 10 ms.
        "shmcast_bridge_repair_link_rate_bytes{bridge=\"ticks-out\"} 118",
        "shmcast_bridge_missed_messages_total{bridge=\"ticks-out\"} 0",
        "shmcast_bridge_repair_refused_total{bridge=\"ticks-out\",reason=\"not-allowed\"} 0",
        "shmcast_bridge_lease_events_total{bridge=\"ticks-out\",event=\"granted\"} 1",
    ];
    let lines_received = [
        "shmcast_bridge_delivered_messages_total{bridge=\"ticks-in\"} 1000",
        "shmcast_bridge_missing_messages_total{bridge=\"ticks-in\"} 0",
        "shmcast_bridge_line_kernel_drops_total{bridge=\"ticks-in\",line=\"0:239.7.0.1:30001\"} 0",
        "shmcast_bridge_malformed_datagrams_total{bridge=\"ticks-in\",reason=\"truncated\"} 0",
        "shmcast_bridge_server_requests_total{bridge=\"ticks-in\",server=\"0:10.78.0.1:30002\"} ",
        "shmcast_bridge_recovered_messages_total{bridge=\"ticks-in\",source=\"server\"} ",
        "shmcast_bridge_receive_to_ring_seconds_bucket{bridge=\"ticks-in\",le=\"+Inf\"} ",
    ];
    let no_times = "\nshmcast_bridge_receive_to_ring_seconds_count{bridge=\"ticks-in\"} 0\n";
    let absent = |text: &str, lines: &[&'static str]| {
        let mut absent = lines.to_vec();
        absent.retain(|line| !text.lines().any(|found| found.starts_with(line)));
        absent
    };
    // Each bridge shows its counters some milliseconds late, and the daemon reuses an answer for a tenth of a second.
    let (sent, received) = wait_for("the figures", || {
        let (sent, received) = (metrics(&a), metrics(&b));
        let absent = [absent(&sent, &lines_sent), absent(&received, &lines_received)].concat();
        if !absent.is_empty() {
            eprintln!("absent: {absent:#?}");
        }
        (absent.is_empty() && !received.contains(no_times)).then_some((sent, received))
    });
    let mut seen = std::collections::BTreeSet::new();
    for line in received.lines().chain(sent.lines().filter(|line| line.contains("ticks-out"))) {
        let series = line.rsplit_once(' ').unwrap().0;
        assert!(line.starts_with('#') || seen.insert(series), "twice: {line}");
    }
    for text in [&sent, &received] {
        check_by_prometheus(text);
    }
}

/// Gives metrics to Prometheus's own tool, where that is installed.
fn check_by_prometheus(text: &str) {
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]);
    promtool.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut promtool) = promtool.spawn() else {
        return skip("figures_of_bridges_are_sound_metrics", "no promtool (Debian package prometheus)");
    };
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
