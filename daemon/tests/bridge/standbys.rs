//! Two senders of one stream whose channel, configuration and files change. There is no repair server, so messages that are not sent are
//! lost.

use super::daemons::{GROUP, SERVER, bridge_of, channel};
use super::forms::{Sink, Source, client, forget, opened};
use super::native::sealed;
use super::roles::{make_channel, wall_us};
use nix::sys::signal::Signal;
use shmcast::Publisher;
use shmcast_testkit::hosts::{Host, Hosts, Running};
use shmcast_testkit::place::program;
use shmcast_testkit::wait_for;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// The table of sender 0 or 1, with this name.
fn sender(at: usize, name: &str, linger_ms: u32) -> String {
    let (own, peer) = (31_000 + at, 31_001 - at);
    format!(
        "[[bridge]]\nname = \"{name}\"\nchannel = \"t\"\nline = [{{ group = \"{GROUP}\", interface = \"va0\" }}]\n\
         [bridge.send]\nlinger_ms = {linger_ms}\nfrom = \"oldest\"\nrole = \"auto\"\nrank = {at}\n\
         claim_bind = \"127.0.0.1:{own}\"\npeers = [\"127.0.0.1:{peer}\"]\n"
    )
}

fn receives() -> String {
    let line = format!("line = [{{ group = \"{GROUP}\", interface = \"vb0\" }}]");
    format!("{}[[bridge]]\nchannel = \"t\"\n{line}\n[bridge.receive]\nfrom = 1\n", channel())
}

/// Orders the sender that stands by to send, and waits until it has taken over. A pause of its thread can then let the other one take over
/// again, so the test does not wait until it sends. Returns the time of the order.
pub fn take_over(hosts: &Hosts) -> u64 {
    let takeovers =
        |at: usize| bridge_of(hosts, Host::A, at)["figures"]["send"]["takeovers"].as_u64().unwrap();
    let before = [0, 1].map(takeovers);
    let other = 1 - active(hosts);
    let name = bridge_of(hosts, Host::A, other)["bridge"].as_str().unwrap().to_owned();
    let ordered_us = wall_us();
    hosts.output(Host::A, program("shmcast"), &["bridge", "takeover", &name]);
    wait_for("the takeover", || (takeovers(other) > before[other]).then_some(()));
    ordered_us
}

/// Waits until one of two senders sends and the other stands by. Returns the one that sends.
pub fn active(hosts: &Hosts) -> usize {
    let is = |at: usize, wanted: &str| bridge_of(hosts, Host::A, at)["state"] == wanted;
    wait_for("one that sends, and one that stands by", || {
        (0..2).find(|&at| is(at, "running") && is(1 - at, "standby"))
    })
}

/// The daemon of A with both senders, and what B has received.
struct Pair<'a> {
    hosts: &'a Hosts,
    a: Running,
    source: Source,
    sink: Sink,
    life: u64,
}

impl Pair<'_> {
    /// Publishes messages before, during and after `event`, and checks that none is lost.
    fn plays(&mut self, at: &str, event: impl FnOnce(&mut Self)) {
        active(self.hosts);
        self.source.publish(200);
        event(self);
        self.source.publish(200);
        active(self.hosts);
        self.arrives(at);
    }

    fn arrives(&mut self, at: &str) {
        let last = self.source.publish(200);
        self.sink.read_to(self.life, last, at);
        assert_eq!(self.sink.missing, 0, "{at}");
    }

    /// The channel begins its next life, in which sequences count from 1.
    fn anew(&mut self, at: &str) {
        let client = client(self.hosts, Host::A);
        self.source.end();
        self.life += 1;
        self.source = Source::of(Publisher::builder("t").client(&client).anew().open().unwrap(), self.life);
        self.arrives(at);
        active(self.hosts);
        take_over(self.hosts);
        self.arrives(&format!("{at}, and a takeover"));
    }
}

/// A reload changes, renames, removes and adds the active sender and the one that stands by. Later the channel is made anew, the host's
/// clock is set forward and back, and the daemon begins without its memory.
#[test]
fn two_senders_of_a_daemon_outlast_every_change() {
    let test = "two_senders_of_a_daemon_outlast_every_change";
    let Some(mut hosts) = Hosts::with_daemons(test, 1) else { return };
    if hosts.own_clock(test, Host::A).is_none() {
        return;
    }
    let both = |first: &str, second: &str| format!("{}{first}{second}", channel());
    let usual = [sender(0, "s0", 2_000), sender(1, "s1", 2_000)];
    let plain = both(&usual[0], &usual[1]);
    let a = hosts.daemon(Host::A, &plain);
    active(&hosts);
    let _b = hosts.daemon(Host::B, &receives());
    let (source, sink) = (opened(&hosts, 1), Sink::of_daemon(&hosts));
    let mut pair = Pair { hosts: &hosts, a, source, sink, life: 1 };
    pair.arrives("the beginning");
    for round in 0..2 {
        for at in 0..2 {
            let name = format!("s{at}");
            let with = |text: String| {
                let mut both = usual.clone();
                both[at] = text;
                format!("{}{}", channel(), both.concat())
            };
            let changed = with(sender(at, &name, 2_001 + round));
            pair.plays(&format!("{name} was changed"), |pair| {
                pair.hosts.reload(Host::A, &pair.a, &changed, "bridge-started")
            });
            let renamed = with(sender(at, &format!("t{at}"), 2_001 + round));
            pair.plays(&format!("{name} was renamed"), |pair| {
                pair.hosts.reload(Host::A, &pair.a, &renamed, "bridge-renamed")
            });
            pair.plays(&format!("{name} is as before"), |pair| {
                pair.hosts.reload(Host::A, &pair.a, &plain, "bridge-started")
            });
            let alone = with(String::new());
            pair.plays(&format!("{name} was removed and added"), |pair| {
                pair.hosts.reload(Host::A, &pair.a, &alone, "bridge-removed");
                let last = pair.source.publish(200);
                pair.sink.read_to(pair.life, last, &format!("{name} was removed"));
                pair.hosts.reload(Host::A, &pair.a, &plain, "bridge-added");
            });
        }
        pair.plays("an order", |pair| _ = take_over(pair.hosts));
    }
    pair.anew("the channel was made anew");
    // No program on A has the memory of the previous life.
    pair.source.end();
    let Pair { a, sink, life, .. } = pair;
    a.kill();
    forget(&hosts, Host::A);
    let a = hosts.daemon(Host::A, &plain);
    let mut pair = Pair { hosts: &hosts, a, source: opened(&hosts, life + 1), sink, life: life + 1 };
    pair.arrives("the daemon was made anew");
    pair.plays("and an order", |pair| _ = take_over(pair.hosts));
    for (seconds, word) in [(144_000, "forward"), (0, "back"), (-144_000, "further back"), (0, "right")] {
        let sessions = pair.sink.sessions.len();
        pair.plays(&format!("the clock was set {word}"), |pair| {
            hosts.set_clock(Host::A, seconds);
            take_over(pair.hosts);
        });
        assert_eq!(pair.sink.sessions.len(), sessions, "{word}: the session goes on");
        pair.anew(&format!("the clock was set {word}, and the channel was made anew"));
        let later = pair.sink.sessions.windows(2).all(|two| two[0] < two[1]);
        assert!(later, "{word}: {:?}", pair.sink.sessions);
    }
}

/// The senders are commands with state files. In one round the active sender loses its state, in another the one that stands by.
#[test]
fn a_sender_without_its_state_joins_the_other_one() {
    let Some(hosts) = Hosts::new("a_sender_without_its_state_joins_the_other_one", 1) else { return };
    let mut source = Source::of(make_channel(&hosts.channels(Host::A)), 1);
    let state = |at: usize| -> PathBuf { hosts.dir.path().join(format!("state-{at}")) };
    let start = |at: usize| {
        let (own, peer) = (31_000 + at, 31_001 - at);
        let words = format!(
            "bridge send t --to {GROUP} --interface va0 --set send.from=oldest --set send.rank={at} --set send.role=auto \
             --set send.claim_bind=127.0.0.1:{own} --set send.peers=['127.0.0.1:{peer}'] --set send.state={}",
            state(at).display()
        );
        hosts.shmcast(Host::A, &words)
    };
    let role = |sender: &Running| {
        let log = sender.log();
        log.lines().rev().find_map(|line| line.split_once("now ").map(|(_, role)| role.trim().to_owned()))
    };
    let active = |senders: &[Running]| {
        wait_for("one that sends, and one that stands by", || {
            let roles = [0, 1].map(|at| role(&senders[at]).unwrap_or_default());
            let of = |wanted: &str| roles.iter().position(|role| role == wanted);
            of("standby").and(of("sending"))
        })
    };
    let mut senders = vec![start(0), start(1)];
    active(&senders);
    let words = format!("bridge recv t --from {GROUP} --interface vb0 --set receive.from=1 --capacity 16MiB");
    let recv = hosts.shmcast(Host::B, &words);
    recv.wait_for_log("receiving session");
    source.publish(1);
    let mut sink = Sink::of_command(&hosts);
    for round in 0..4 {
        let sends = active(&senders);
        let at = if round % 2 == 0 { sends } else { 1 - sends };
        source.publish(200);
        let next = || {
            fs::remove_file(state(at)).unwrap();
            start(at)
        };
        let before = senders.remove(at);
        before.kill();
        source.publish(200);
        std::thread::sleep(Duration::from_millis(150));
        senders.insert(at, next());
        active(&senders);
        let last = source.publish(200);
        sink.read_to(1, last, &format!("round {round}"));
        assert_eq!((sink.missing, sink.sessions.len()), (0, 1), "round {round}");
    }
}

/// Both senders serve only leases, and the receiver has a lease at each. Orders change which one sends, the keys are changed, and the wire
/// is made anew.
#[test]
fn leases_outlast_takeovers_other_keys_and_a_wire_made_anew() {
    let Some(hosts) = Hosts::with_daemons("leases_outlast_takeovers_other_keys_and_a_wire_made_anew", 1)
    else {
        return;
    };
    let fields = sealed(&hosts);
    let servers = [SERVER, "10.77.0.1:30012"];
    let sender = |at: usize| {
        let (own, peer) = (31_000 + at, 31_001 - at);
        format!(
            "[[bridge]]\nname = \"s{at}\"\nchannel = \"t\"\n{fields}[bridge.send]\nfrom = \"oldest\"\nrole = \"auto\"\nrank = {at}\n\
             claim_bind = \"127.0.0.1:{own}\"\npeers = [\"127.0.0.1:{peer}\"]\n\
             [bridge.send.repair]\nbind = \"{}\"\nallow = [\"10.77.0.0/16\"]\n",
            servers[at]
        )
    };
    let a = hosts.daemon(Host::A, &format!("{}{}{}", channel(), sender(0), sender(1)));
    active(&hosts);
    let receives = format!(
        "{}[[bridge]]\nchannel = \"t\"\n{fields}[bridge.receive]\nservers = {servers:?}\nfrom = 1\nunicast = true\n",
        channel()
    );
    let b = hosts.daemon(Host::B, &receives);
    let (source, sink) = (opened(&hosts, 1), Sink::of_daemon(&hosts));
    let mut pair = Pair { hosts: &hosts, a, source, sink, life: 1 };
    pair.arrives("the beginning");
    for round in 0..3 {
        pair.plays(&format!("order {round}"), |pair| _ = take_over(pair.hosts));
        pair.plays(&format!("wire {round}"), |pair| {
            let meanwhile = || assert!(pair.source.publish(500) > 0);
            hosts.remake(0, meanwhile, false);
        });
        // The receiver gets the next key before a sender seals with it. Later the old key is removed.
        let next = format!("{} {:02x}eeddccbbaa99887766554433221100\n", 10 + round, 10 + round);
        let old = fs::read_to_string(hosts.keys()).unwrap();
        for text in [format!("{old}{next}"), next] {
            pair.plays(&format!("keys {round}"), |pair| {
                fs::write(hosts.keys(), text).unwrap();
                for running in [&b, &pair.a] {
                    let count = || running.log().matches("event=\"reloaded\"").count();
                    let before = count();
                    running.signal(Signal::SIGHUP);
                    wait_for("the reload", || (count() > before).then_some(()));
                }
            });
        }
    }
}
