//! A mirror is promoted although its source still publishes. Whatever happens to the daemon, the bridge or the note of the promotion, only
//! programs of this host publish on the channel, and no message of the source gets into it.

use super::daemons::{GROUP, bridge, channel};
use super::roles::make_channel;
use nix::sys::signal::Signal;
use shmcast::{Client, Event, Publisher, Start, Subscriber};
use shmcast_testkit::hosts::{Host, Hosts, Running};
use shmcast_testkit::{PATIENCE, REST, skip, wait_for, wait_until};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

fn receives(of: &str, name: &str, more: &str) -> String {
    format!(
        "{of}[[bridge]]\nname = \"{name}\"\nchannel = \"t\"\nline = [{{ group = \"{GROUP}\", interface = \"vb0\" }}]\n\
         [bridge.receive]\nfrom = 1\n{more}"
    )
}

struct Scene<'a> {
    hosts: &'a Hosts,
    source: Publisher,
    reader: Subscriber,
    /// The sequence of the last message of this host.
    last: u64,
}

impl Scene<'_> {
    fn client(&self) -> Client {
        wait_for("the daemon", || Client::at(self.hosts.socket(Host::B)).ok())
    }

    /// Publishes at the source and on this host. Only the messages of this host come to the reader.
    fn is_ours(&mut self, local: &mut Publisher, at: &str) {
        wait_until("the publisher's attachment", || local.is_registered() == Some(true));
        for _ in 0..50 {
            self.source.publish(b"the source's").unwrap();
        }
        for _ in 0..10 {
            self.last = local.publish(b"ours").unwrap();
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self
                .reader
                .recv_deadline(deadline)
                .unwrap()
                .unwrap_or_else(|| panic!("{at}: nothing comes"))
            {
                Event::Message(message) => {
                    assert_eq!(message.payload, b"ours", "{at}: message {}", message.sequence);
                    if message.sequence == self.last {
                        break;
                    }
                }
                Event::NewSession { session } => panic!("{at}: {session:?}"),
                Event::Lapped(_) => panic!("{at}: lapped"),
                _ => {}
            }
        }
        wait_until(at, || bridge(self.hosts, Host::B)["state"] == "promoted");
    }

    fn reload(&self, daemon: &Running, config: &str) {
        self.hosts.reload(Host::B, daemon, config, "reloaded");
        // The supervisor takes the new table a moment later.
        std::thread::sleep(Duration::from_millis(150));
    }
}

#[test]
fn a_promoted_mirror_stays_this_hosts_whatever_happens() {
    let test = "a_promoted_mirror_stays_this_hosts_whatever_happens";
    if shmcast_testkit::unit::asked().is_some() {
        return skip(test, "the unit lets journals lie in /var/lib/shmcast alone");
    }
    let Some(mut hosts) = Hosts::new(test, 1) else { return };
    let mut source = make_channel(&hosts.channels(Host::A));
    let words = format!("bridge send t --to {GROUP} --interface va0 --set send.from=oldest");
    let _sender = hosts.shmcast(Host::A, &words);
    hosts.use_daemons(true);
    let plain = receives(&channel(), "in", "");
    let mut b = hosts.daemon(Host::B, &plain);
    wait_for("the mirror's session", || bridge(&hosts, Host::B)["session"].as_str().map(str::to_owned));
    let client = Client::at(hosts.socket(Host::B)).unwrap();
    let mut reader = Subscriber::builder("t").client(&client).start(Start::Oldest).wait(REST).open().unwrap();
    for _ in 0..100 {
        source.publish(b"before").unwrap();
    }
    let deadline = Instant::now() + PATIENCE;
    while reader.next_sequence() <= 100 {
        assert!(reader.recv_deadline(deadline).unwrap().is_some(), "nothing comes");
    }
    let promoted = hosts.shmcast(Host::B, "bridge promote t --json --force").end();
    assert_eq!(promoted.0, 0, "{}", b.log());
    let mut local = Publisher::builder("t").client(&client).open().unwrap();
    // From here on, only this host's messages count, and the reader gets none of the source.
    let first = local.publish(b"ours").unwrap();
    while reader.next_sequence() <= first {
        assert!(reader.recv_deadline(deadline).unwrap().is_some(), "nothing comes");
    }
    let mut scene = Scene { hosts: &hosts, source, reader, last: first };
    scene.is_ours(&mut local, "promoted");
    b.signal(Signal::SIGSTOP);
    std::thread::sleep(Duration::from_millis(150));
    b.signal(Signal::SIGCONT);
    scene.is_ours(&mut local, "the daemon was stopped");
    // A changed bridge, another name, and a journal that begins and ends.
    let journal = hosts.dir.path().join("journal");
    let recorded = format!("{}journal = {{ dir = \"{}\", file = \"1MiB\" }}\n", channel(), journal.display());
    for (what, config) in [
        ("the bridge was changed", receives(&channel(), "in", "clock_limit_us = 0\n")),
        ("the bridge was renamed", receives(&channel(), "other", "clock_limit_us = 0\n")),
        ("a journal began", receives(&recorded, "other", "clock_limit_us = 0\n")),
    ] {
        scene.reload(&b, &config);
        scene.is_ours(&mut local, what);
    }
    wait_until("the journal", || {
        let channel = scene.client().channel("t").ok();
        channel.and_then(|channel| channel.journal).is_some_and(|journal| journal.durable >= scene.last)
    });
    scene.reload(&b, &plain);
    scene.is_ours(&mut local, "the journal ended");
    // Somebody removes the note of the promotion. The daemon makes the note again, and the next daemon knows of the promotion.
    let run = hosts.socket(Host::B).parent().unwrap().to_owned();
    let note = || {
        let names = fs::read_dir(&run).unwrap().map(|entry| entry.unwrap().path());
        names.into_iter().find(|path| path.to_string_lossy().ends_with("promoted-t"))
    };
    fs::remove_file(note().expect("a note")).unwrap();
    wait_until("the note", || note().is_some());
    scene.is_ours(&mut local, "the note was removed");
    b.stop();
    b = hosts.daemon(Host::B, &plain);
    scene.is_ours(&mut local, "the daemon was restarted");
    // The bridge is removed, and comes back while a publisher of this host is attached. The bridge does not get the channel.
    scene.reload(&b, &channel());
    wait_until("the bridge to go", || bridge(&hosts, Host::B).is_null() && note().is_none());
    scene.last = local.publish(b"ours").unwrap();
    scene.reload(&b, &plain);
    for _ in 0..50 {
        scene.source.publish(b"the source's").unwrap();
    }
    scene.last = local.publish(b"ours").unwrap();
    let deadline = Instant::now() + Duration::from_secs(2);
    while let Some(event) = scene.reader.recv_deadline(deadline).unwrap() {
        if let Event::Message(message) = event {
            assert_eq!(message.payload, b"ours", "message {}", message.sequence);
        }
    }
    assert_eq!(scene.reader.next_sequence(), scene.last + 1);
    assert_ne!(bridge(&hosts, Host::B)["state"], "promoted");
}

/// The daemon's directory is full, and later cannot be written. A promotion that cannot be noted is refused, and changes nothing. Later the
/// promotion succeeds, and one publisher takes over a strict channel from another.
#[test]
fn a_promotion_that_cannot_be_noted_is_refused_and_a_promoted_channel_is_taken_over() {
    let test = "a_promotion_that_cannot_be_noted_is_refused_and_a_promoted_channel_is_taken_over";
    if shmcast_testkit::unit::asked().is_some() {
        return skip(test, "the unit has its own directory");
    }
    let Some(mut hosts) = Hosts::new(test, 1) else { return };
    let source = make_channel(&hosts.channels(Host::A));
    let words = format!("bridge send t --to {GROUP} --interface va0 --set send.from=oldest");
    let _sender = hosts.shmcast(Host::A, &words);
    hosts.use_daemons(true);
    let run = hosts.socket(Host::B).parent().unwrap().to_owned();
    fs::create_dir_all(&run).unwrap();
    let mount = |options: &str| {
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", options, "none"])
            .arg(&run)
            .status()
            .is_ok_and(|status| status.success())
    };
    if !mount("size=64m,nr_inodes=100") {
        return skip(test, "no tmpfs can be mounted");
    }
    let _mount = Mount(&run);
    let b = hosts.daemon(Host::B, &receives(&(channel() + "mode = \"strict\"\n"), "in", ""));
    wait_for("the mirror's session", || bridge(&hosts, Host::B)["session"].as_str().map(str::to_owned));
    let client = Client::at(hosts.socket(Host::B)).unwrap();
    let reader = Subscriber::builder("t").client(&client).start(Start::Oldest).wait(REST).open().unwrap();
    let mut scene = Scene { hosts: &hosts, source, reader, last: 0 };
    let at = |words: &[&str]| {
        // The daemon has its own table of mounts.
        let (mut command, pid) = (Command::new("nsenter"), b.id().to_string());
        command.args(["-m", "-t", &pid]).args(words).arg(&run).status().unwrap().success()
    };
    let cover = || at(&["mount", "-t", "tmpfs", "-o", "ro", "none"]);
    let uncover = || at(&["umount"]);
    let refused = |why: &str| {
        let promote = hosts.run(Host::B, "bridge promote t --force");
        let said = String::from_utf8_lossy(&promote.stderr).into_owned();
        assert!(!promote.status.success() && said.contains("note in") && said.contains(why), "{said}");
    };
    let goes_on = |scene: &mut Scene<'_>| {
        assert_eq!(bridge(&hosts, Host::B)["state"], "running");
        let last = scene.source.publish(b"the source's").unwrap();
        let deadline = Instant::now() + PATIENCE;
        while scene.reader.next_sequence() <= last {
            assert!(scene.reader.recv_deadline(deadline).unwrap().is_some(), "nothing comes");
        }
    };
    let filler = |n: u32| run.join(format!("filler-{n}"));
    let fillers = (0..).take_while(|n| fs::write(filler(*n), "").is_ok()).count();
    assert!(fillers > 0);
    refused("No space left");
    goes_on(&mut scene);
    fs::remove_file(filler(0)).unwrap();
    assert!(cover());
    refused("Read-only");
    assert!(uncover());
    goes_on(&mut scene);
    assert_eq!(hosts.shmcast(Host::B, "bridge promote t --json --force").end().0, 0, "{}", b.log());
    let mut local = Publisher::builder("t").client(&client).open().unwrap();
    let first = local.publish(b"ours").unwrap();
    let deadline = Instant::now() + PATIENCE;
    while scene.reader.next_sequence() <= first {
        assert!(scene.reader.recv_deadline(deadline).unwrap().is_some(), "nothing comes");
    }
    scene.is_ours(&mut local, "promoted");
    // The bridge has no peer from which it could take over. The channel has a publisher, so it can be taken over.
    let order = hosts.run(Host::B, "bridge takeover in");
    assert!(!order.status.success(), "{}", String::from_utf8_lossy(&order.stderr));
    for round in 0..3 {
        client.take_over("t").unwrap();
        let mut next = Publisher::builder("t").client(&client).open().unwrap();
        assert!(next.next_sequence() > scene.last, "round {round}");
        let _ = local.publish(b"too late");
        scene.is_ours(&mut next, &format!("takeover {round}"));
        local = next;
    }
    // The note of the promotion is removed while the disk has no room, and while nothing can be written. The daemon continues, and makes
    // the note again.
    let note = run.join("control.promoted-t");
    fs::remove_file(&note).unwrap();
    let _ = fs::write(filler(0), "");
    let room = || fs::metadata(&note).is_ok() || fs::write(filler(1_000), "").is_err();
    wait_until("no room, or the note", room);
    scene.is_ours(&mut local, "the note was removed");
    let _ = fs::remove_file(filler(1));
    wait_until("the note", || note.exists());
    assert!(cover());
    b.wait_for_log("the next daemon will receive a promoted channel");
    let last = local.publish(b"ours").unwrap();
    while scene.reader.next_sequence() <= last {
        assert!(scene.reader.recv_deadline(Instant::now() + PATIENCE).unwrap().is_some(), "nothing comes");
    }
    assert!(uncover() && note.exists());
    scene.is_ours(&mut local, "and again");
}

/// A mount that ends with the test.
struct Mount<'a>(&'a Path);

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0).status();
    }
}
