//! Bridges and daemons of each form of lines are stopped, killed, restarted, reloaded, and made anew. Each message names the life of its
//! channel and its number in this life, so no message can pass for another one.

use super::daemons::{GROUP, SERVER, channel, with_fields};
use super::native::sealed;
use super::roles::make_channel;
use nix::sys::signal::Signal;
use serde_json::Value;
use shmcast::{Client, Event, Publisher, RecvError, Start, Subscriber, SubscriberBuilder};
use shmcast_testkit::hosts::{Host, Hosts, Running};
use shmcast_testkit::{PATIENCE, REST, wait_for, wait_until};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const SECOND: (&str, &str) = ("239.77.0.2:30001", "10.77.1.1:30002");

/// A form of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Unicast,
    Native,
    Sealed,
    Multicast,
}

const FORMS: [Form; 4] = [Form::Unicast, Form::Native, Form::Sealed, Form::Multicast];

impl Form {
    /// Fields of both bridges.
    fn fields(self, hosts: &Hosts) -> String {
        match self {
            Self::Native => "profile = \"native\"\n".to_owned(),
            Self::Sealed => sealed(hosts),
            Self::Unicast | Self::Multicast => String::new(),
        }
    }

    /// The lines of an end whose interfaces begin with `interface`.
    fn lines(self, interface: &str) -> String {
        let line = |group: &str, n: u8| format!("{{ group = \"{group}\", interface = \"{interface}{n}\" }}");
        match self {
            Self::Unicast => String::new(),
            Self::Multicast => format!("line = [{}, {}]\n", line(GROUP, 0), line(SECOND.0, 1)),
            Self::Native | Self::Sealed => format!("line = [{}]\n", line(GROUP, 0)),
        }
    }

    pub fn sends(self, hosts: &Hosts, of: &str, linger_ms: u32) -> String {
        let config = format!(
            "{of}[[bridge]]\nchannel = \"t\"\n{}[bridge.send]\nlinger_ms = {linger_ms}\n\
             [bridge.send.repair]\nbind = \"{SERVER}\"\nallow = [\"10.77.0.0/16\"]\n",
            self.lines("va")
        );
        with_fields(&config, &self.fields(hosts))
    }

    pub fn receives(self, hosts: &Hosts) -> String {
        let unicast = if self == Self::Unicast { "unicast = true\n" } else { "" };
        let config = format!(
            "{}[[bridge]]\nchannel = \"t\"\n{}[bridge.receive]\nservers = [\"{SERVER}\"]\ngive_up_ms = 60000\nfrom = 1\n{unicast}",
            channel(),
            self.lines("vb")
        );
        with_fields(&config, &self.fields(hosts))
    }

    /// The words of `bridge send`.
    pub fn send_words(self, hosts: &Hosts, state: &Path) -> String {
        let lines = match self {
            Self::Unicast => String::new(),
            Self::Multicast => format!("--to {GROUP} --to {} --interface va0 --interface va1", SECOND.0),
            Self::Native | Self::Sealed => format!("--to {GROUP} --interface va0"),
        };
        format!(
            "bridge send t {lines} --repair {SERVER} --allow 10.77.0.0/16 {} --set send.from=oldest --set send.linger_ms=1000 \
             --set send.state={}",
            self.more_words(hosts),
            state.display()
        )
    }

    pub fn recv_words(self, hosts: &Hosts) -> String {
        let lines = match self {
            Self::Unicast => "--set receive.unicast=true".to_owned(),
            Self::Multicast => format!("--from {GROUP} --from {} --interface vb0 --interface vb1", SECOND.0),
            Self::Native | Self::Sealed => format!("--from {GROUP} --interface vb0"),
        };
        format!(
            "bridge recv t {lines} --server {SERVER} {} --set receive.from=1 --set receive.give_up_ms=60000 --capacity 16MiB",
            self.more_words(hosts)
        )
    }

    fn more_words(self, hosts: &Hosts) -> String {
        match self {
            Self::Unicast | Self::Multicast => String::new(),
            Self::Native => "--set profile=native".to_owned(),
            Self::Sealed => {
                sealed(hosts);
                format!("--set profile=native --set keys={}", hosts.keys().display())
            }
        }
    }
}

/// A publisher that writes the life of its channel into each message.
pub struct Source {
    /// `None` after the publisher has ended.
    publisher: Option<Publisher>,
    life: u64,
}

impl Source {
    pub fn of(publisher: Publisher, life: u64) -> Self {
        Self { publisher: Some(publisher), life }
    }

    fn next_sequence(&self) -> u64 {
        self.publisher.as_ref().expect("it goes on").next_sequence()
    }

    /// Publishes `count` messages. Returns the sequence of the last one.
    pub fn publish(&mut self, count: u64) -> u64 {
        let publisher = self.publisher.as_mut().expect("it goes on");
        for _ in 0..count {
            let sequence = publisher.next_sequence();
            let words = [self.life, sequence].map(u64::to_le_bytes).concat();
            assert_eq!(publisher.publish(&words).unwrap(), sequence);
        }
        publisher.next_sequence() - 1
    }

    /// Publishes `count` messages to the daemon of host A, as fast as its recorder keeps up.
    pub fn publish_recorded(&mut self, hosts: &Hosts, count: u64) -> u64 {
        let client = client(hosts, Host::A);
        let (mut last, mut left) = (0, count);
        while left > 0 {
            let part = left.min(10_000);
            left -= part;
            last = self.publish(part);
            wait_until("the journal", || {
                let status = client.channel("t").ok().and_then(|channel| channel.journal);
                status.is_some_and(|journal| journal.durable >= last)
            });
        }
        last
    }

    /// Leaves the channel open for the next publisher.
    pub fn end(&mut self) {
        self.publisher.take().expect("it goes on").leave_open();
    }
}

/// A reader of the mirror.
pub struct Sink {
    reader: Subscriber,
    open: Box<dyn Fn() -> Option<Subscriber>>,
    life: u64,
    due: u64,
    /// The number of sequences that were reported as missing.
    pub missing: u64,
    pub sessions: Vec<[u8; 10]>,
    /// The largest permitted difference between a message's time and now.
    pub farthest: Duration,
}

impl Sink {
    /// Reads the mirror in the channel of host B's daemon.
    pub fn of_daemon(hosts: &Hosts) -> Self {
        let socket = hosts.socket(Host::B);
        Self::new(move || Some(Subscriber::builder("t").client(&Client::at(&socket).ok()?)))
    }

    /// Reads the mirror that a command carries on host B.
    pub fn of_command(hosts: &Hosts) -> Self {
        let dir = hosts.channels(Host::B);
        Self::new(move || Some(Subscriber::builder("t").dir(&dir)))
    }

    fn new(channel: impl Fn() -> Option<SubscriberBuilder> + 'static) -> Self {
        let open = move || channel()?.start(Start::Oldest).wait(REST).open().ok();
        let reader = wait_for("the mirror", &open);
        let (open, farthest) = (Box::new(open), Duration::from_secs(600));
        Self { reader, open, life: 1, due: 1, missing: 0, sessions: Vec::new(), farthest }
    }

    /// Begins again at the oldest message.
    pub fn again(&mut self, life: u64) {
        self.reader = wait_for("the mirror", &self.open);
        (self.life, self.due, self.missing) = (life, self.reader.next_sequence(), 0);
        self.sessions.clear();
    }

    /// Takes events up to message `last` of a life. A later life can begin before this message.
    pub fn read_to(&mut self, life: u64, last: u64, at: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.life < life || self.due <= last {
            assert!(
                Instant::now() < deadline,
                "{at}: waits for {last} of life {life} at {} of {}",
                self.due,
                self.life
            );
            match self.reader.recv_deadline(Instant::now() + Duration::from_millis(200)) {
                Ok(Some(Event::Message(message))) => {
                    let word =
                        |at: usize| u64::from_le_bytes(message.payload[at..at + 8].try_into().unwrap());
                    let (of, sequence, time) = (word(0), word(8), message.time);
                    assert_eq!(sequence, message.sequence, "{at}");
                    let clock = self.reader.clock();
                    // Times have 48 bits.
                    let ahead = (time.wrapping_sub(clock.now()) << 16).cast_signed() >> 16;
                    let away = Duration::from_nanos(clock.ns(ahead.unsigned_abs()));
                    assert!(
                        away < self.farthest,
                        "{at}: message {sequence} of life {of} has a time that is {away:?} away"
                    );
                    if of != self.life {
                        assert!(of > self.life && of <= life, "{at}: life {of} behind {}", self.life);
                        (self.life, self.due) = (of, sequence);
                    }
                    assert_eq!(sequence, self.due, "{at}: of life {of}");
                    self.due += 1;
                }
                Ok(Some(Event::Gap { from, to } | Event::Lost { from, to, .. })) => {
                    self.missing += to + 1 - from;
                    self.due = to + 1;
                }
                Ok(Some(Event::Lapped(lapped))) => {
                    self.missing += lapped.missed;
                    self.due = lapped.resumed_at;
                }
                Ok(Some(Event::NewSession { session })) => self.sessions.push(session),
                Ok(Some(_) | None) | Err(RecvError::Stalled { .. }) => {}
                Err(RecvError::Superseded) => {
                    self.reader = wait_for("the next channel", &self.open);
                    self.due = self.reader.next_sequence();
                }
                Err(e) => panic!("{at}: {e}"),
            }
        }
    }
}

/// Removes the runtime directory of a host's daemon, with all that it keeps.
pub fn forget(hosts: &Hosts, host: Host) {
    fs::remove_dir_all(hosts.socket(host).parent().unwrap()).unwrap();
}

pub fn client(hosts: &Hosts, host: Host) -> Client {
    wait_for("the daemon", || Client::at(hosts.socket(host)).ok())
}

pub fn opened(hosts: &Hosts, life: u64) -> Source {
    let client = client(hosts, Host::A);
    Source::of(wait_for("the channel", || Publisher::builder("t").client(&client).open().ok()), life)
}

pub fn daemon(hosts: &Hosts, host: Host, config: &str) -> Running {
    let daemon = hosts.daemon(host, config);
    daemon.wait_for_log("bridge-started");
    daemon
}

fn reload(hosts: &Hosts, host: Host, daemon: &Running, config: &str) {
    hosts.reload(host, daemon, config, "bridge-started");
    assert_eq!(daemon.told("bridge-failed"), 0, "{}", daemon.log());
}

fn daemons_under(form: Form) {
    let test = format!("daemons_under_every_event_{form:?}");
    let Some(hosts) = Hosts::with_daemons(&test, 2) else { return };
    let strict = channel() + "mode = \"strict\"\n";
    let (sends, receives) = (form.sends(&hosts, &strict, 60_000), form.receives(&hosts));
    let (mut a, mut b) = (daemon(&hosts, Host::A, &sends), daemon(&hosts, Host::B, &receives));
    let mut source = opened(&hosts, 1);
    let mut sink = Sink::of_daemon(&hosts);
    let arrives = |source: &mut Source, sink: &mut Sink, at: &str| {
        let last = source.publish(200);
        sink.read_to(1, last, &format!("{form:?}: {at}"));
        assert_eq!(sink.missing, 0, "{form:?}: {at}");
    };
    arrives(&mut source, &mut sink, "the beginning");
    for (host, running) in [("A", &a), ("B", &b)] {
        running.signal(Signal::SIGSTOP);
        source.publish(200);
        std::thread::sleep(Duration::from_millis(150));
        running.signal(Signal::SIGCONT);
        arrives(&mut source, &mut sink, &format!("{host} was stopped"));
    }
    for is_killed in [true, false] {
        let end = |running: Running| if is_killed { running.kill() } else { drop(running.stop()) };
        end(b);
        source.publish(200);
        b = daemon(&hosts, Host::B, &receives);
        arrives(&mut source, &mut sink, &format!("B ended, killed: {is_killed}"));
        end(a);
        source.publish(200);
        a = daemon(&hosts, Host::A, &sends);
        arrives(&mut source, &mut sink, &format!("A ended, killed: {is_killed}"));
    }
    for round in 1..=2 {
        reload(&hosts, Host::A, &a, &form.sends(&hosts, &strict, 60_000 + round));
        arrives(&mut source, &mut sink, &format!("A's bridge was changed, {round}"));
    }
    // B begins without any state, and gets all messages again from A's ring.
    b.kill();
    forget(&hosts, Host::B);
    let _b = daemon(&hosts, Host::B, &receives);
    sink.again(1);
    arrives(&mut source, &mut sink, "B was made anew");
    // A begins without any state. The channel gets another life, which nobody takes for the previous one.
    a.kill();
    drop(source);
    forget(&hosts, Host::A);
    let _a = daemon(&hosts, Host::A, &sends);
    let mut source = opened(&hosts, 2);
    assert_eq!(source.next_sequence(), 1, "nothing is left of the life before");
    let last = source.publish(300);
    sink.read_to(2, last, &format!("{form:?}: A was made anew"));
}

#[test]
fn daemons_of_unicast_leases_under_every_event() {
    daemons_under(Form::Unicast);
}

#[test]
fn daemons_of_native_lines_under_every_event() {
    daemons_under(Form::Native);
}

#[test]
fn daemons_of_sealed_lines_under_every_event() {
    daemons_under(Form::Sealed);
}

#[test]
fn daemons_of_two_lines_under_every_event() {
    daemons_under(Form::Multicast);
}

/// `bridge send` and `bridge recv` of each form are stopped, restarted and made anew.
#[test]
fn commands_of_every_form_are_stopped_restarted_and_made_anew() {
    std::thread::scope(|scope| {
        for form in FORMS {
            scope.spawn(move || commands_are_stopped_restarted_and_made_anew(form));
        }
    });
}

fn commands_are_stopped_restarted_and_made_anew(form: Form) {
    let test = format!("commands_of_every_form_{form:?}");
    let Some(hosts) = Hosts::new(&test, 2) else { return };
    let state: PathBuf = hosts.dir.path().join("state");
    let (send, recv) = (form.send_words(&hosts, &state), form.recv_words(&hosts));
    let mut source = Source::of(make_channel(&hosts.channels(Host::A)), 1);
    let start = |host: Host, words: &str, word: &str| {
        let running = hosts.shmcast(host, words);
        running.wait_for_log(word);
        running
    };
    let sending = || start(Host::A, &send, "sending session");
    let (mut a, mut b) = (sending(), hosts.shmcast(Host::B, &recv));
    source.publish(1);
    let mut sink = Sink::of_command(&hosts);
    let arrives = |source: &mut Source, sink: &mut Sink, at: &str| {
        let last = source.publish(200);
        sink.read_to(1, last, &format!("{form:?}: {at}"));
        assert_eq!(sink.missing, 0, "{form:?}: {at}");
    };
    arrives(&mut source, &mut sink, "the beginning");
    for running in [&a, &b] {
        running.signal(Signal::SIGSTOP);
        source.publish(200);
        std::thread::sleep(Duration::from_millis(150));
        running.signal(Signal::SIGCONT);
        arrives(&mut source, &mut sink, "an end was stopped");
    }
    b.stop();
    source.publish(200);
    b = hosts.shmcast(Host::B, &recv);
    arrives(&mut source, &mut sink, "the receiver was restarted");
    let sessions = sink.sessions.len();
    a.stop();
    source.publish(200);
    a = sending();
    arrives(&mut source, &mut sink, "the sender was restarted");
    assert_eq!(sink.sessions.len(), sessions, "{form:?}: with its state file it goes on in its session");
    // Without its state file it begins another session, of the same channel.
    a.kill();
    fs::remove_file(&state).unwrap();
    source.publish(200);
    a = sending();
    arrives(&mut source, &mut sink, "the sender was made anew");
    b.kill();
    fs::remove_dir_all(hosts.channels(Host::B)).unwrap();
    let _b = hosts.shmcast(Host::B, &recv);
    sink.again(1);
    arrives(&mut source, &mut sink, "the receiver was made anew");
    drop(a);
}

/// The number of messages that A has repaired from its journal.
fn from_journal(hosts: &Hosts) -> u64 {
    let status = super::daemons::bridge(hosts, Host::A);
    status.pointer("/figures/repair/journal/messages").and_then(Value::as_u64).unwrap_or(0)
}

/// A receiver was away while the ring was overwritten many times. It gets all messages from the sender's journal, whatever happens to
/// either daemon.
#[test]
fn repairs_from_the_journal_go_on_under_every_event() {
    let test = "repairs_from_the_journal_go_on_under_every_event";
    if shmcast_testkit::unit::asked().is_some() {
        return shmcast_testkit::skip(test, "the unit lets journals lie in /var/lib/shmcast alone");
    }
    let Some(hosts) = Hosts::with_daemons(test, 1) else { return };
    let journal = hosts.dir.path().join("journal");
    let small = channel().replace(&super::roles::CAPACITY.to_string(), &(1 << 20).to_string());
    let recorded = format!("{small}journal = {{ dir = \"{}\", file = \"1MiB\" }}\n", journal.display());
    let (form, at) = (Form::Native, |linger_ms| Form::Native.sends(&hosts, &recorded, linger_ms));
    let receives = form.receives(&hosts);
    let mut a = daemon(&hosts, Host::A, &at(60_000));
    let mut b = daemon(&hosts, Host::B, &receives);
    let mut source = opened(&hosts, 1);
    let mut sink = Sink::of_daemon(&hosts);
    let first = source.publish(1_000);
    sink.read_to(1, first, "the beginning");
    for event in ["stopped", "restarted", "killed", "bridge changed", "receiver stopped", "receiver anew"] {
        let before = from_journal(&hosts);
        b.stop();
        // These messages fill the ring several times.
        source.publish_recorded(&hosts, 40_000);
        if event == "receiver anew" {
            forget(&hosts, Host::B);
        }
        b = daemon(&hosts, Host::B, &receives);
        let mut is_counted = true;
        match event {
            "stopped" => {
                a.signal(Signal::SIGSTOP);
                std::thread::sleep(Duration::from_millis(200));
                a.signal(Signal::SIGCONT);
            }
            "restarted" => {
                a.stop();
                a = daemon(&hosts, Host::A, &at(60_000));
                is_counted = false;
            }
            "killed" => {
                a.kill();
                a = daemon(&hosts, Host::A, &at(60_000));
                is_counted = false;
            }
            "bridge changed" => {
                reload(&hosts, Host::A, &a, &at(50_000));
                is_counted = false;
            }
            "receiver stopped" => {
                b.signal(Signal::SIGSTOP);
                std::thread::sleep(Duration::from_millis(200));
                b.signal(Signal::SIGCONT);
            }
            _ => sink.again(1),
        }
        let last = source.publish(100);
        sink.read_to(1, last, event);
        assert_eq!(sink.missing, 0, "{event}");
        if is_counted {
            let repaired = from_journal(&hosts) - before;
            assert!(repaired > 10_000, "{event}: {repaired} came from the journal");
        }
    }
}

/// After a crash, a daemon lets its own bridge publish as soon as a reader has brought the mirror's memory back. Other new publishers wait
/// longer. A busy machine can delay the reader, so one of several crashes decides.
#[test]
fn a_mirror_goes_on_before_newcomers_are_let_in() {
    let Some(hosts) = Hosts::with_daemons("a_mirror_goes_on_before_newcomers_are_let_in", 1) else { return };
    let form = Form::Native;
    let receives = form.receives(&hosts) + &channel().replace("\"t\"", "\"other\"");
    let _a = daemon(&hosts, Host::A, &form.sends(&hosts, &channel(), 60_000));
    let mut b = Some(daemon(&hosts, Host::B, &receives));
    let mut source = opened(&hosts, 1);
    let mut sink = Sink::of_daemon(&hosts);
    let first = source.publish(10);
    sink.read_to(1, first, "the beginning");
    let is_first = (0..10).any(|crash| {
        b.take().into_iter().for_each(Running::kill);
        b = Some(daemon(&hosts, Host::B, &receives));
        let client = client(&hosts, Host::B);
        let newcomer =
            std::thread::spawn(move || Publisher::builder("other").client(&client).open().unwrap());
        let last = source.publish(10);
        sink.read_to(1, last, &format!("crash {crash}"));
        let arrived = Instant::now();
        newcomer.join().unwrap();
        arrived.elapsed() > Duration::from_millis(500)
    });
    assert!(is_first, "the mirror stood still until newcomers were let in");
    assert_eq!(sink.missing, 0);
}
