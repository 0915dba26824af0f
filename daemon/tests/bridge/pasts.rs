//! Repairs from the journal for a receiver that was away while the ring was overwritten. Meanwhile the sender's host changes: reloads,
//! files, limits, its wire, its recorder, and a channel that is made anew.

use super::daemons::{GROUP, SERVER, channel};
use super::forms::{Form, Sink, Source, client, daemon, opened};
use super::roles::{CAPACITY, make_channel_of};
use nix::sys::signal::Signal;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use shmcast::Publisher;
use shmcast::journal::{Entry, Journal};
use shmcast_testkit::hosts::{Host, Hosts, Running};
use shmcast_testkit::{skip, wait_for, wait_until};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Bytes of the ring that is recorded. It holds some 15,000 messages.
const RING: u64 = 1 << 20;
/// More messages than the ring holds.
const OF_RING: u64 = 20_000;
/// The number of messages that are published while the receiver is away. They fill several rings.
const AWAY: u64 = 40_000;

/// Two hosts with daemons, which keep journals where the test can see them.
fn daemons(test: &str) -> Option<Hosts> {
    if shmcast_testkit::unit::asked().is_some() {
        skip(test, "the unit lets journals lie in /var/lib/shmcast alone");
        return None;
    }
    Hosts::with_daemons(test, 1)
}

fn channel_of(capacity: u64) -> String {
    channel().replace(&CAPACITY.to_string(), &capacity.to_string())
}

/// The small channel, recorded in a directory.
fn recorded(dir: &Path) -> String {
    let small = channel_of(RING);
    format!("{small}journal = {{ dir = \"{}\", file = \"1MiB\" }}\n", dir.display())
}

/// A sender with a journal on A, and a receiver on B that can be away.
struct Away<'a> {
    hosts: &'a Hosts,
    source: Source,
    sink: Sink,
    receives: String,
    receiver: Option<Running>,
    life: u64,
}

impl<'a> Away<'a> {
    /// Starts both sides, and waits until the receiver has the first messages.
    fn begin(hosts: &'a Hosts, form: Form) -> Away<'a> {
        let receives = form.receives(hosts);
        let receiver = Some(daemon(hosts, Host::B, &receives));
        let source = opened(hosts, 1);
        let sink = Sink::of_daemon(hosts);
        let mut away = Away { hosts, source, sink, receives, receiver, life: 1 };
        let first = away.source.publish(1_000);
        away.read_to(first, "the beginning");
        away
    }

    /// Stops the receiver's daemon. Does not kill it, because after a crash the next daemon admits no bridge for two seconds.
    fn leave(&mut self) {
        self.receiver.take().expect("it is there").stop();
    }

    fn come_back(&mut self) {
        self.receiver = Some(daemon(self.hosts, Host::B, &self.receives));
    }

    fn publish(&mut self, count: u64) -> u64 {
        self.source.publish_recorded(self.hosts, count)
    }

    fn read_to(&mut self, last: u64, at: &str) {
        self.sink.read_to(self.life, last, at);
    }

    /// Publishes several rings while the receiver is away. Then the receiver comes back, and `meanwhile` runs while the receiver requests
    /// the messages. The receiver must miss exactly `missing` messages.
    fn round(&mut self, at: &str, missing: u64, meanwhile: impl FnOnce(&Self)) {
        self.leave();
        self.publish(AWAY);
        self.mends(at, missing, meanwhile);
    }

    /// The receiver comes back, as in [`round`](Self::round).
    fn mends(&mut self, at: &str, missing: u64, meanwhile: impl FnOnce(&Self)) {
        let before = self.sink.missing;
        self.come_back();
        meanwhile(self);
        let last = self.source.publish(100);
        self.read_to(last, at);
        assert_eq!(self.sink.missing - before, missing, "{at}");
    }
}

/// Reloads change the name, keys, journal and clock of the sender's bridge and channel. They also remove the bridge, and add it again.
#[test]
fn repairs_from_the_journal_follow_every_reload() {
    let Some(hosts) = daemons("repairs_from_the_journal_follow_every_reload") else { return };
    let dirs = ["one", "two"].map(|name| hosts.dir.path().join(name));
    let (form, bridge_of) = (Form::Sealed, "[[bridge]]\n");
    let sends = |dir: &Path, more: &str| form.sends(&hosts, &(recorded(dir) + more), 60_000);
    let (plain, moved) = (sends(&dirs[0], ""), sends(&dirs[1], ""));
    let a = daemon(&hosts, Host::A, &plain);
    let mut away = Away::begin(&hosts, form);
    let renamed = plain.replace(bridge_of, "[[bridge]]\nname = \"other\"\n");
    away.round("the bridge was renamed", 0, |_| hosts.reload(Host::A, &a, &renamed, "bridge-renamed"));
    away.round("and back", 0, |_| hosts.reload(Host::A, &a, &plain, "bridge-renamed"));
    let more = "[[channel]]\nname = \"u\"\ncapacity = 65536\nmax_message = 1000\nmlock = false\nhugepages = false\n\
                [[bridge]]\nchannel = \"u\"\nline = [{ group = \"239.77.0.8:30001\", interface = \"va0\" }]\n[bridge.send]\n";
    away.round("another bridge was added and removed", 0, |_| {
        hosts.reload(Host::A, &a, &format!("{plain}{more}"), "bridge-added");
        hosts.reload(Host::A, &a, &plain, "bridge-removed");
    });
    away.round("the bridge was removed and added", 0, |_| {
        hosts.reload(Host::A, &a, &recorded(&dirs[0]), "bridge-removed");
        hosts.reload(Host::A, &a, &plain, "bridge-added");
    });
    // The receiver gets the new key before the sender seals with it.
    away.round("the keys were changed", 0, |away| {
        let old = fs::read_to_string(hosts.keys()).unwrap();
        fs::write(hosts.keys(), old + "9 ffeeddccbbaa99887766554433221100\n").unwrap();
        for running in [away.receiver.as_ref().unwrap(), &a] {
            let count = || running.log().matches("reloaded").count();
            let before = count();
            running.signal(Signal::SIGHUP);
            wait_until("the reload", || count() > before);
        }
    });
    hosts.reload(Host::A, &a, &moved, "bridge-started");
    away.round("the journal is another one", 0, |_| {});
    // The next publisher uses the other clock.
    let clock = sends(&dirs[1], "clock = \"monotonic\"\nschema_id = 7\nschema = \"other\"\n");
    away.leave();
    away.publish(AWAY);
    hosts.reload(Host::A, &a, &clock, "reloaded");
    away.source.end();
    away.source = opened(&hosts, 1);
    away.publish(AWAY);
    away.mends("the ring has another clock", 0, |_| {});
    // Without a journal, messages that the ring has lost are reported as missing, and nothing waits for them.
    hosts.reload(Host::A, &a, &form.sends(&hosts, &channel_of(RING), 60_000), "bridge-started");
    away.leave();
    away.source.publish(AWAY);
    away.come_back();
    let last = away.source.publish(100);
    away.read_to(last, "no journal");
    let missing = away.sink.missing;
    assert!(missing > AWAY / 2 && missing < AWAY, "{missing} are told");
}

/// Each publisher of a strict channel uses the other clock. An earlier mistake: for some milliseconds, messages of the next ring got times
/// by the clock of the previous ring.
#[test]
fn times_are_right_in_each_ring_whatever_its_clock_is() {
    let Some(hosts) = Hosts::with_daemons("times_are_right_in_each_ring_whatever_its_clock_is", 1) else {
        return;
    };
    let clock = |kind: &str| format!("{}mode = \"strict\"\nclock = \"{kind}\"\n", channel());
    let sends = |kind: &str| Form::Native.sends(&hosts, &clock(kind), 60_000);
    let a = daemon(&hosts, Host::A, &sends("counter"));
    let receives = |kind: &str| {
        let receives = Form::Native.receives(&hosts).replace(&channel(), &clock(kind));
        receives.replace("from = 1\n", "from = 1\nclock_limit_us = 0\n")
    };
    let b = daemon(&hosts, Host::B, &receives("monotonic"));
    let mut source = opened(&hosts, 1);
    let mut sink = Sink::of_daemon(&hosts);
    for round in 0..12 {
        let last = source.publish(300);
        sink.read_to(1, last, &format!("round {round}"));
        let kind = ["monotonic", "counter"][round % 2];
        hosts.reload(Host::A, &a, &sends(kind), "reloaded");
        source.end();
        source = opened(&hosts, 1);
    }
    assert_eq!(sink.missing, 0);
    // The mirror's ring has another clock in its next life.
    drop(source);
    hosts.configure(Host::B, &receives("counter"));
    b.signal(Signal::SIGHUP);
    b.wait_for_log("reloaded");
    let client = client(&hosts, Host::A);
    let mut anew = Source::of(Publisher::builder("t").client(&client).anew().open().unwrap(), 2);
    let last = anew.publish(300);
    sink.read_to(2, last, "a channel made anew");
}

/// The sender is a command for a daemon's channel. The channel gets its journal later, and then another directory for the journal.
#[test]
fn a_command_repairs_from_the_journal_that_its_channel_gets() {
    let Some(hosts) = daemons("a_command_repairs_from_the_journal_that_its_channel_gets") else { return };
    let dirs = ["one", "two"].map(|name| hosts.dir.path().join(name));
    let a = hosts.daemon(Host::A, &channel_of(RING));
    let state = hosts.dir.path().join("state");
    let words = Form::Native.send_words(&hosts, &state);
    let sending = || {
        let running = hosts.shmcast(Host::A, &words);
        running.wait_for_log("sending session");
        running
    };
    let mut sender = sending();
    let mut away = Away::begin(&hosts, Form::Native);
    for dir in &dirs {
        hosts.reload(Host::A, &a, &recorded(dir), "reloaded");
        wait_for("a journal", || {
            let channel = client(&hosts, Host::A).channel("t").ok()?;
            channel.journal.filter(|journal| journal.state == "recording")
        });
        for round in 0..2 {
            away.round(&format!("the journal {}, round {round}", dir.display()), 0, |_| {});
        }
    }
    away.round("the sender was stopped", 0, |_| {
        sender.signal(Signal::SIGSTOP);
        std::thread::sleep(Duration::from_millis(150));
        sender.signal(Signal::SIGCONT);
    });
    for event in ["restarted", "killed"] {
        away.leave();
        away.publish(AWAY);
        away.come_back();
        if event == "killed" {
            sender.kill()
        } else {
            drop(sender.stop())
        }
        away.publish(6_000);
        sender = sending();
        let last = away.source.publish(100);
        away.read_to(last, event);
        assert_eq!(away.sink.missing, 0, "{event}");
    }
    // Without its state file, the sender sends the same ring from its oldest message on, in another session.
    away.leave();
    away.publish(AWAY);
    sender.kill();
    fs::remove_file(&state).unwrap();
    let _sender = sending();
    away.mends("the sender was made anew", 0, |_| {});
}

/// The channel is made anew while its sender stands still, and the new ring loses its first messages before the sender comes to it. The
/// session must still begin with the ring's first message, which the journal has. An earlier mistake: the session began later, and these
/// messages were reported as lost.
#[test]
fn a_session_begins_with_its_ring_though_the_sender_comes_late() {
    let Some(hosts) = daemons("a_session_begins_with_its_ring_though_the_sender_comes_late") else { return };
    let journal = hosts.dir.path().join("journal");
    let _a = hosts.daemon(Host::A, &recorded(&journal));
    let sender = hosts.shmcast(Host::A, &Form::Native.send_words(&hosts, &hosts.dir.path().join("state")));
    sender.wait_for_log("sending session");
    let mut away = Away::begin(&hosts, Form::Native);
    sender.signal(Signal::SIGSTOP);
    away.source.end();
    let anew = Publisher::builder("t").client(&client(&hosts, Host::A)).anew().open().unwrap();
    (away.source, away.life) = (Source::of(anew, 2), 2);
    away.source.publish(1);
    wait_until_recorded(&journal, 2);
    away.publish(AWAY);
    sender.signal(Signal::SIGCONT);
    let last = away.source.publish(100);
    away.read_to(last, "the sender comes late");
    assert_eq!(away.sink.missing, 0, "the sender comes late");
}

/// Waits until the newest stream in a journal has the first message of a life.
fn wait_until_recorded(journal: &Path, life: u64) {
    wait_until("the recorder", || {
        let first = || {
            let mut reader = Journal::open(journal).ok()?.read_from(1).ok()?;
            loop {
                if let Entry::Message(message) = reader.next().ok()?? {
                    return message.payload.first_chunk().map(|life| u64::from_le_bytes(*life));
                }
            }
        };
        first() == Some(life)
    });
}

/// The channel is made anew while the receiver is away. The receiver gets all messages of the new life, and none of the old one.
#[test]
fn a_channel_made_anew_is_repaired_from_its_own_journal() {
    let Some(hosts) = daemons("a_channel_made_anew_is_repaired_from_its_own_journal") else { return };
    let journal = hosts.dir.path().join("journal");
    let a = daemon(&hosts, Host::A, &Form::Native.sends(&hosts, &recorded(&journal), 60_000));
    let mut away = Away::begin(&hosts, Form::Native);
    for life in 2..=4 {
        away.leave();
        away.publish(AWAY);
        away.source.end();
        // The bridge needs descriptors to follow its channel, and gets them a little later.
        let is_poor = life == 3;
        let pid = Pid::from_raw(a.id().cast_signed());
        let limit = |most| {
            let most = Rlimit { current: Some(most), maximum: Some(4_096) };
            prlimit(pid, Resource::Nofile, most).unwrap();
        };
        let client = client(&hosts, Host::A);
        let anew = Publisher::builder("t").client(&client).anew().open().unwrap();
        if is_poor {
            limit(fs::read_dir(format!("/proc/{}/fd", a.id())).unwrap().count() as u64);
        }
        away.source = Source::of(anew, life);
        away.source.publish(1_000);
        std::thread::sleep(Duration::from_millis(200));
        limit(1_024);
        (away.life, away.sink.missing) = (life, 0);
        wait_until_recorded(&journal, life);
        // Until then the daemon shows the figures of the life before.
        let journal = || client.channel("t").ok().and_then(|channel| channel.journal);
        wait_until("its figures", || journal().is_some_and(|journal| journal.durable == 1_000));
        away.publish(AWAY);
        away.mends(&format!("life {life}"), 0, |_| {});
    }
}

/// While the receiver requests messages, the sender loses a file of its journal, the journal's medium, its wire, or its descriptors.
#[test]
fn repairs_from_the_journal_outlast_what_happens_to_files_wires_and_descriptors() {
    let test = "repairs_from_the_journal_outlast_what_happens_to_files_wires_and_descriptors";
    let Some(hosts) = daemons(test) else { return };
    let dir = hosts.dir.path().join("journal");
    let a = daemon(&hosts, Host::A, &Form::Native.sends(&hosts, &recorded(&dir), 60_000));
    let mut away = Away::begin(&hosts, Form::Native);
    for round in 0..2 {
        away.round(&format!("the wire was made anew, round {round}"), 0, |_| {
            hosts.remake(0, || std::thread::sleep(Duration::from_millis(150)), false);
        });
    }
    let pid = Pid::from_raw(a.id().cast_signed());
    let limit =
        |most| prlimit(pid, Resource::Nofile, Rlimit { current: Some(most), maximum: Some(4_096) }).unwrap();
    away.leave();
    away.publish(AWAY);
    away.come_back();
    limit(3);
    std::thread::sleep(Duration::from_millis(200));
    limit(1_024);
    let last = away.source.publish(100);
    away.read_to(last, "few descriptors");
    assert_eq!(away.sink.missing, 0, "few descriptors");
    // A file in the middle of the journal is removed, and the ring no longer has its messages. Exactly these messages are reported as
    // missing.
    away.leave();
    let begin = away.source.publish(1);
    let (files, at) = loop {
        let last = away.publish(AWAY);
        let files = Journal::open(&dir).unwrap().files().to_vec();
        if let Some(at) = files.iter().position(|file| file.header.sequence > begin)
            && let Some(behind) = files.get(at + 1)
            && behind.header.sequence + OF_RING < last
        {
            break (files, at);
        }
    };
    let gone = files[at + 1].header.sequence - files[at].header.sequence;
    fs::remove_file(shmcast_testkit::journal::folder(&dir).join(&files[at].name)).unwrap();
    away.mends("a file was removed", gone, |_| {});
}

/// The channel is a file, and `record` writes its journal. The recorder is killed, and the next one continues. At the end, the journal's
/// medium cannot be written.
#[test]
fn a_killed_recorder_and_a_read_only_journal_are_repaired_from() {
    let test = "a_killed_recorder_and_a_read_only_journal_are_repaired_from";
    let Some(hosts) = Hosts::new(test, 1) else { return };
    let (journal, shown) = (hosts.dir.path().join("journal"), hosts.dir.path().join("shown"));
    let mut source = Source::of(make_channel_of(&hosts.channels(Host::A), RING), 1);
    let recording = || {
        hosts.shmcast(Host::A, &format!("record t --sync each --to {} --set file=1MiB", journal.display()))
    };
    let durable = |last: u64| {
        wait_for("the journal", || {
            let mut reader = Journal::open(&journal).ok()?.read_from(last).ok()?;
            reader.next().ok()?.map(drop)
        });
    };
    let mut recorder = recording();
    source.publish(1);
    durable(1);
    fs::create_dir(&shown).unwrap();
    let mounted = |words: &[&str]| Command::new("mount").args(words).arg(&shown).status().unwrap().success();
    if !mounted(&["--bind", journal.to_str().unwrap()]) || !mounted(&["-o", "remount,bind,ro"]) {
        return skip(test, "nothing can be mounted");
    }
    let _mount = Mount(shown.clone());
    let send = |dir: &Path| {
        let words = format!(
            "bridge send t --to {GROUP} --interface va0 --repair {SERVER} --allow 10.77.0.0/16 --set send.from=oldest \
             --set send.linger_ms=60000 --set profile=native --set send.repair.history={}",
            dir.display()
        );
        let running = hosts.shmcast(Host::A, &words);
        running.wait_for_log("sending session");
        running
    };
    let receive = Form::Native.recv_words(&hosts);
    for (at, from) in [("the recorder was killed", &journal), ("the medium is read-only", &shown)] {
        let sender = send(from);
        let mut receiver = hosts.shmcast(Host::B, &receive);
        let mut sink = Sink::of_command(&hosts);
        sink.again(1);
        let last = source.publish(100);
        sink.read_to(1, last, at);
        assert_eq!(sink.missing, 0, "{at}");
        for round in 0..3 {
            receiver.kill();
            for _ in 0..AWAY / 10_000 {
                durable(source.publish(10_000));
            }
            receiver = hosts.shmcast(Host::B, &receive);
            recorder.kill();
            recorder = recording();
            let last = source.publish(100);
            sink.read_to(1, last, &format!("{at}, round {round}"));
            assert_eq!(sink.missing, 0, "{at}, round {round}");
        }
        drop((sender, receiver));
    }
}

/// A mount that ends with the test.
struct Mount(PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}
