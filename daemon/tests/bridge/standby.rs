//! Two senders of one stream, and a receiver on another host that has no repair server.
//!
//! `SHMCAST_RATE` sets the messages a second, and `SHMCAST_TURNS` how often the active sender fails. `SHMCAST_HEAL_MS` is the time to catch
//! up that a mirror gets after it was cut off, before the other mirror is cut off.

use super::daemons::channel;
use super::feed::Feed;
use super::roles::{make_channel, wall_us};
use super::standbys::{self, take_over};
use nix::sys::signal::Signal;
use serde_json::Value;
use shmcast::{Publisher, Subscriber};
use shmcast_bridge::egress::{Egress, EgressOptions};
use shmcast_bridge::spec::{BridgeSpec, LineSpec, SendRole, SendSpec};
use shmcast_bridge::status::Phase;
use shmcast_testkit::hosts::{Host, Hosts, Running};
use shmcast_testkit::place::own_address;
use shmcast_testkit::turn::turn;
use shmcast_testkit::{number, wait_for};
use std::time::Duration;

const GROUP: &str = "239.77.3.1:30001";
/// The group between the publisher's host and the mirrors, and the address of its repair server.
const FIRST: (&str, &str) = ("239.77.3.2:30002", "10.77.0.1:30003");
/// The time without failures before a failure, and the time after a failure in which its pause begins.
const CALM: Duration = Duration::from_millis(150);

/// Starts sender 0 or 1.
fn sender(hosts: &Hosts, at: usize, more: &str) -> Running {
    let (own, peer) = (31_000 + at, 31_001 - at);
    let words = format!(
        "bridge send t --to {GROUP} --interface va0 --set send.from=oldest --json --until-end --set send.linger_ms=2000 --set send.rank={at} {more} \
         --set send.role=auto --set send.claim_bind=127.0.0.1:{own} --set send.peers=['127.0.0.1:{peer}']"
    );
    hosts.shmcast(Host::A, &words)
}

/// The role that a running sender printed last.
fn role(sender: &Running) -> Option<String> {
    let log = sender.log();
    log.lines().rev().find_map(|line| line.split_once("now ").map(|(_, role)| role.trim().to_owned()))
}

fn wait_for_role(sender: &Running, wanted: &str) {
    wait_for(&format!("a sender that is {wanted}"), || {
        (role(sender).as_deref() == Some(wanted)).then_some(())
    });
}

/// Waits until one of two senders sends and the other stands by. Returns the one that sends. On a busy machine the two might have changed
/// places by themselves.
fn active(senders: &[Running]) -> usize {
    wait_for("one that sends, and one that stands by", || {
        let roles = [0, 1].map(|at| role(&senders[at]).unwrap_or_default());
        let of = |wanted: &str| roles.iter().position(|role| role == wanted);
        of("standby").and(of("sending"))
    })
}

/// A receiver of the senders' group with a reader, and a publisher that publishes until the test ends it.
struct Received<'a> {
    hosts: &'a Hosts,
    ingress: Running,
    reader: Option<Running>,
    feed: Option<Feed<'a>>,
    rate: u64,
    moments: Vec<u64>,
}

impl<'a> Received<'a> {
    fn on(hosts: &'a Hosts, host: Host, interface: &str, form: &str) -> Self {
        let words = format!(
            "bridge recv t --from {GROUP} --interface {interface} --set receive.from=1 --capacity 16MiB --set receive.buffer_bytes=67108864 \
             --until-end --json {form}"
        );
        let (ingress, rate) = (hosts.shmcast(host, &words), number("SHMCAST_RATE", 5_000));
        Self { hosts, ingress, reader: None, feed: None, rate, moments: Vec::new() }
    }

    fn begin(&mut self, host: Host) {
        self.reader = Some(self.hosts.role(host, "read", &u64::MAX.to_string()));
        self.feed = Some(Feed::begin_at(self.hosts, self.rate));
        std::thread::sleep(CALM);
    }

    /// Notes that something fails now, after a time in which nothing failed.
    fn fails(&mut self) {
        std::thread::sleep(CALM);
        self.moments.push(wall_us());
    }

    /// Ends the test. Every message must have come once, in order and whole, which the reader checks. Prints the pauses.
    fn end(self, what: &str) -> u64 {
        let published = self.feed.unwrap().end();
        let read = self.reader.unwrap().end_well();
        assert_eq!(figures(&read), (published, 0, 0), "{read}");
        let received = self.ingress.end_well();
        assert_eq!(received["receive"]["messages_missing"], 0, "{received}");
        let at =
            |from: i64| pauses(&read, self.moments.iter().map(|moment| moment.saturating_add_signed(from)));
        let (failing, calm) = (at(0), at(-(CALM.as_micros() as i64)));
        eprintln!(
            "{what}: {} times at {}/s, {published} messages, 0 lost, 0 twice; pause of each {}; of as many moments before {}",
            self.moments.len(),
            self.rate,
            shown(&failing),
            shown(&calm),
        );
        published
    }
}

/// The counts of messages that the reader received, of messages in gaps, and of laps.
fn figures(read: &Value) -> (u64, u64, u64) {
    let of = |name: &str| read[name].as_u64().unwrap();
    (of("received"), of("gap_messages"), of("lapped"))
}

/// The longest pause that ended within [`CALM`] of each moment, in microseconds; 0 if none was longer than 1 ms.
fn pauses(read: &Value, moments: impl Iterator<Item = u64>) -> Vec<u64> {
    let known: Vec<[u64; 2]> = serde_json::from_value(read["pauses_us"].clone()).unwrap();
    let window = |moment: u64| moment..moment + CALM.as_micros() as u64;
    let longest = |moment| known.iter().filter(|[_, end]| window(moment).contains(end)).map(|it| it[0]).max();
    let mut pauses: Vec<u64> = moments.map(|moment| longest(moment).unwrap_or(0)).collect();
    pauses.sort_unstable();
    pauses
}

fn shown(pauses: &[u64]) -> String {
    let of = |share: usize| match pauses[(pauses.len() - 1) * share / 100] {
        0 => "below 1 ms".to_owned(),
        us => format!("{:.1} ms", us as f64 / 1e3),
    };
    format!("p50 {}, p90 {}, max {}", of(50), of(90), of(100))
}

#[test]
fn senders_that_are_killed_or_stopped_cost_no_message_and_bring_none_twice() {
    let test = "senders_that_are_killed_or_stopped_cost_no_message_and_bring_none_twice";
    let Some(hosts) = Hosts::new(test, 1) else { return };
    fail_in_turn(&hosts, test, "");
}

#[test]
fn senders_of_sealed_lines_take_over_from_each_other() {
    let test = "senders_of_sealed_lines_take_over_from_each_other";
    let Some(hosts) = Hosts::new(test, 1) else { return };
    super::native::sealed(&hosts);
    fail_in_turn(&hosts, test, &format!("--set profile=native --set keys={}", hosts.keys().display()));
}

/// The active sender of two is killed, then stopped for a while, then killed again. `form` says which packets the senders send.
fn fail_in_turn(hosts: &Hosts, test: &str, form: &str) {
    drop(make_channel(&hosts.channels(Host::A)));
    let mut feed = Received::on(hosts, Host::B, "vb0", form);
    let mut senders = vec![sender(hosts, 0, form)];
    wait_for_role(&senders[0], "sending");
    feed.ingress.wait_for_log("receiving session");
    senders.push(sender(hosts, 1, form));
    feed.begin(Host::B);
    for turn in 0..number::<u64>("SHMCAST_TURNS", 4) {
        let failing = active(&senders);
        feed.fails();
        if turn.is_multiple_of(2) {
            // It has the address that the next one takes.
            senders.remove(failing).kill();
            senders.insert(failing, sender(hosts, failing, form));
        } else {
            senders[failing].signal(Signal::SIGSTOP);
            wait_for_role(&senders[1 - failing], "sending");
            senders[failing].signal(Signal::SIGCONT);
        }
    }
    active(&senders);
    feed.end(test);
}

#[test]
fn a_mirror_that_is_cut_off_costs_no_message() {
    let test = "a_mirror_that_is_cut_off_costs_no_message";
    let Some(hosts) = Hosts::at_a_switch(test) else { return };
    cut_mirrors_off(&hosts, test, "");
}

/// Mirrors hear each other's packets. No mirror must take a mirror that stands by for an active one. An earlier mistake: both waited for
/// ever.
#[test]
fn mirrors_on_sealed_lines_begin_and_one_that_is_cut_off_costs_no_message() {
    let test = "mirrors_on_sealed_lines_begin_and_one_that_is_cut_off_costs_no_message";
    let Some(hosts) = Hosts::at_a_switch(test) else { return };
    super::native::sealed(&hosts);
    cut_mirrors_off(&hosts, test, &format!("--set profile=native --set keys={}", hosts.keys().display()));
}

/// Two mirrors send one stream on. The switch cuts off the active mirror, which still sends although nobody hears it. `form` says which
/// packets the mirrors send.
fn cut_mirrors_off(hosts: &Hosts, test: &str, form: &str) {
    drop(make_channel(&hosts.channels(Host::A)));
    let (group, server) = FIRST;
    let words = format!(
        "bridge send t --to {group} --interface va0 --set send.from=oldest --until-end --set send.linger_ms=5000 --repair {server} --allow 10.77.0.0/16 {form}"
    );
    let first = hosts.shmcast(Host::A, &words);
    first.wait_for_log("sending session");
    let mut feed = Received::on(hosts, Host::D, "vd0", form);
    let mirrors = [(Host::B, "vb0", 2, 3), (Host::C, "vc0", 3, 2)];
    // In the end, a mirror that was cut off gets the missed messages from the server, even on a busy machine.
    let receivers = mirrors.map(|(host, interface, ..)| {
        let words = format!(
            "bridge recv t --from {group} --interface {interface} --server {server} --set receive.from=1 --capacity 16MiB \
             --set max_message=1378 --set receive.buffer_bytes=67108864 --until-end --set receive.give_up_ms=60000 {form}"
        );
        let receiver = hosts.shmcast(host, &words);
        receiver.wait_for_log("receiving session");
        receiver
    });
    let senders = mirrors.map(|(host, interface, own, peer)| {
        let words = format!(
            "bridge send t --to {GROUP} --interface {interface} --set send.from=oldest --until-end --set send.linger_ms=2000 --set send.rank={} \
             --set send.role=auto --set send.claim_bind=10.77.0.{own}:31000 --set send.peers=['10.77.0.{peer}:31000'] {form}",
            own - 2
        );
        hosts.shmcast(host, &words)
    });
    active(&senders);
    feed.ingress.wait_for_log("receiving session");
    feed.begin(Host::D);
    for _ in 0..number::<u64>("SHMCAST_TURNS", 3) {
        let failing = active(&senders);
        let host = mirrors[failing].0;
        feed.fails();
        hosts.cut_off(host, true);
        wait_for_role(&senders[1 - failing], "sending");
        std::thread::sleep(CALM);
        hosts.cut_off(host, false);
        std::thread::sleep(Duration::from_millis(number("SHMCAST_HEAL_MS", 0)));
    }
    active(&senders);
    feed.end(test);
    drop((receivers, first));
}

/// A daemon has both senders, and the test says which one must send.
#[test]
fn an_order_to_a_daemon_moves_the_sending() {
    let test = "an_order_to_a_daemon_moves_the_sending";
    let Some(hosts) = Hosts::with_daemons(test, 1) else { return };
    let sender = |at: usize| {
        let (own, peer) = (31_000 + at, 31_001 - at);
        format!(
            "[[bridge]]\nname = \"s{at}\"\nchannel = \"t\"\nline = [{{ group = \"{GROUP}\", interface = \"va0\" }}]\n\
             [bridge.send]\nlinger_ms = 2000\nfrom = \"oldest\"\nrole = \"auto\"\nrank = {at}\n\
             claim_bind = \"127.0.0.1:{own}\"\npeers = [\"127.0.0.1:{peer}\"]\n"
        )
    };
    let _a = hosts.daemon(Host::A, &format!("{}{}{}", channel(), sender(0), sender(1)));
    standbys::active(&hosts);
    let line = format!("line = [{{ group = \"{GROUP}\", interface = \"vb0\" }}]");
    let receive = format!("{}[[bridge]]\nchannel = \"t\"\n{line}\n[bridge.receive]\nfrom = 1\n", channel());
    let _b = super::daemons::daemon(&hosts, Host::B, &receive);
    let reader = hosts.role(Host::B, "read", &u64::MAX.to_string());
    let hears = hosts.role(Host::B, "hear", &format!("{GROUP} vb0"));
    hears.wait_for_log("ready");
    let rate = number("SHMCAST_RATE", 5_000);
    let feed = Feed::begin_at(&hosts, rate);
    let mut moments = Vec::new();
    for _ in 0..number::<u64>("SHMCAST_TURNS", 3) {
        std::thread::sleep(CALM);
        moments.push(take_over(&hosts));
    }
    let published = feed.end();
    let read = reader.end_well();
    assert_eq!(figures(&read), (published, 0, 0), "{read}");
    let heard = hears.end_well();
    let mut changes: Vec<u64> = serde_json::from_value(heard["changes_us"].clone()).unwrap();
    changes.sort_unstable();
    assert!(changes.len() >= moments.len(), "{heard}");
    let calm = moments.iter().map(|moment| moment - CALM.as_micros() as u64);
    eprintln!(
        "{test}: {} orders at {rate}/s, {published} messages, 0 lost, 0 twice; {} changes of the sender on the line, silent \
         before each for p50 {} us, max {} us, and between packets of one sender for at most {} us; pause of each at the \
         reader, from the order on, {}; of as many moments before {}",
        moments.len(),
        changes.len(),
        changes[changes.len() / 2],
        changes[changes.len() - 1],
        heard["longest_us"],
        shown(&pauses(&read, moments.iter().copied())),
        shown(&pauses(&read, calm)),
    );
}

/// A strict channel has one ring after the other. A sender that starts after the second ring began sends the same stream.
#[test]
fn a_sender_that_comes_to_a_later_ring_of_a_strict_channel_stands_by() {
    let test = "a_sender_that_comes_to_a_later_ring_of_a_strict_channel_stands_by";
    let Some(hosts) = Hosts::with_daemons(test, 1) else { return };
    let _a = hosts.daemon(Host::A, &format!("{}mode = \"strict\"\n", channel()));
    let client = shmcast::Client::at(hosts.socket(Host::A)).unwrap();
    let publish = || {
        let mut publisher = shmcast::Publisher::builder("t").client(&client).open().unwrap();
        publisher.publish(b"message").unwrap();
        publisher
    };
    let sender = |at: usize| {
        let (own, peer) = (31_000 + at, 31_001 - at);
        let words = format!(
            "bridge send t --to {GROUP} --interface va0 --set send.from=oldest --set send.rank={at} \
             --set send.role=auto --set send.claim_bind=127.0.0.1:{own} --set send.peers=['127.0.0.1:{peer}']"
        );
        hosts.shmcast(Host::A, &words)
    };
    drop(publish());
    let mut senders = vec![sender(0)];
    wait_for_role(&senders[0], "sending");
    let _second = publish();
    senders.push(sender(1));
    active(&senders);
}

/// The senders hear each other's packets, which come from another address than the claims. Only the claims count.
#[test]
fn a_sender_yields_to_one_whose_packets_it_cannot_tell() {
    let Some(hosts) = Hosts::new("a_sender_yields_to_one_whose_packets_it_cannot_tell", 1) else { return };
    drop(make_channel(&hosts.channels(Host::A)));
    let senders =
        [sender(&hosts, 0, "--set send.loopback=true"), sender(&hosts, 1, "--set send.loopback=true")];
    let first = active(&senders);
    senders[first].signal(Signal::SIGSTOP);
    wait_for_role(&senders[1 - first], "sending");
    senders[first].signal(Signal::SIGCONT);
    active(&senders);
}

/// After each takeover, the sender reads the ring again from the first unsent message, and so reads the old end again. An earlier mistake:
/// this ended the session a second time, and one of the senders was gone.
#[test]
fn senders_that_take_over_from_each_other_on_a_closed_channel_wait_for_its_next_publisher() {
    let (_turn, dir) = (turn(), tempfile::tempdir().unwrap());
    let publisher =
        || Publisher::builder("t").dir(dir.path()).capacity(1 << 20).max_message(1_000).open().unwrap();
    publisher().close();
    let (line, binds) = (LineSpec::to(own_address()), [own_address(), own_address()]);
    let senders = [0, 1].map(|at: usize| {
        let send = SendSpec {
            role: SendRole::Auto,
            rank: at as u8,
            claim_bind: Some(binds[at]),
            peers: vec![binds[1 - at]],
            linger_ms: 0,
            ..SendSpec::default()
        };
        let spec = BridgeSpec { send: Some(send), lines: vec![line.clone()], ..BridgeSpec::new("t") };
        let options = EgressOptions { ends_with_channel: true, ..EgressOptions::default() };
        Egress::start(&spec, Subscriber::builder("t").dir(dir.path()), options).unwrap()
    });
    let (standby, active) = (2, 3);
    for _ in 0..4 {
        let at = wait_for("one that sends, and one that stands by", || {
            let roles = [0, 1].map(|at: usize| senders[at].counters().role);
            assert!(
                senders.iter().all(|sender| sender.life().phase() == Phase::Running && !sender.is_finished())
            );
            roles.iter().position(|role| *role == standby).filter(|at| roles[1 - at] == active)
        });
        let before = senders[at].counters().takeovers;
        senders[at].take_over().unwrap();
        wait_for("a takeover", || (senders[at].counters().takeovers > before).then_some(()));
    }
    // The next publisher's end counts, although it publishes nothing.
    publisher().close();
    wait_for("the end of both", || senders.iter().all(|sender| sender.is_finished()).then_some(()));
}
