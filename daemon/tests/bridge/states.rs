//! The state file of a sender cannot be written, because its medium is read-only or a limit forbids it.

use super::daemons::GROUP;
use super::forms::{Sink, Source};
use super::roles::make_channel;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use shmcast_testkit::disk::Small;
use shmcast_testkit::hosts::{Host, Hosts, Running};
use shmcast_testkit::wait_until;
use std::fs;
use std::process::Command;

/// Whether a state file records that everything before `next` was sent. Two of its slots of 64 bytes record this, at byte 48.
fn says(bytes: &[u8], next: u64) -> bool {
    bytes.chunks(64).take(2).any(|slot| slot.get(48..56) == Some(&next.to_le_bytes()))
}

/// Sender and receiver continue. The state is written as soon as possible, and the next sender begins there. There is no repair server.
#[test]
fn a_state_file_that_cannot_be_written_is_written_later() {
    let test = "a_state_file_that_cannot_be_written_is_written_later";
    let Some(hosts) = Hosts::new(test, 1) else { return };
    let Some(disk) = Small::make(test, 1) else { return };
    let state = disk.path().join("state");
    let words = format!(
        "bridge send t --to {GROUP} --interface va0 --set send.from=resume --set send.linger_ms=300 --set send.state={}",
        state.display()
    );
    let mut source = Source::of(make_channel(&hosts.channels(Host::A)), 1);
    let sending = || {
        let running = hosts.shmcast(Host::A, &words);
        running.wait_for_log("sending session");
        running
    };
    let receive =
        format!("bridge recv t --from {GROUP} --interface vb0 --set receive.from=1 --capacity 16MiB");
    let _receiver = hosts.shmcast(Host::B, &receive);
    // A medium with open files cannot be made read-only by hand. So another read-only medium is mounted over it.
    let at = |sender: &Running, words: &[&str]| {
        // Each program on a host has its own table of mounts.
        let (mut command, pid) = (Command::new("nsenter"), sender.id().to_string());
        command.args(["-m", "-t", &pid]).args(words).arg(disk.path()).status().unwrap().success()
    };
    let cover = |sender: &Running| at(sender, &["mount", "-t", "tmpfs", "-o", "ro", "none"]);
    let uncover = |sender: &Running| at(sender, &["umount"]);
    let limit = |sender: &Running, most: Option<u64>| {
        let pid = Pid::from_raw(sender.id().cast_signed());
        prlimit(pid, Resource::Fsize, Rlimit { current: most, maximum: None }).unwrap();
    };
    let mut sender = sending();
    // The receiver listens before it makes the channel.
    let mut sink = Sink::of_command(&hosts);
    source.publish(1);
    for (at, most) in
        [("read-only", None), ("a limit of nothing", Some(0)), ("a limit within a slot", Some(100))]
    {
        let last = source.publish(10);
        sink.read_to(1, last, at);
        wait_until("the state", || says(&fs::read(&state).unwrap(), last + 1));
        match most {
            None => assert!(cover(&sender)),
            Some(_) => limit(&sender, most),
        }
        let last = source.publish(10);
        sink.read_to(1, last, at);
        match most {
            None => {
                sender.wait_for_log("the state file cannot be written: ");
                assert!(uncover(&sender));
                assert!(!says(&fs::read(&state).unwrap(), last + 1), "{at}");
            }
            Some(_) => {
                // The limit keeps the sender from its log, too.
                std::thread::sleep(std::time::Duration::from_millis(100));
                limit(&sender, None);
            }
        }
        // Nothing is published meanwhile.
        wait_until("the state that could not be written", || says(&fs::read(&state).unwrap(), last + 1));
        assert_eq!(sender.stop().0, 0, "{at}");
        source.publish(10);
        sender = sending();
        let last = source.publish(10);
        sink.read_to(1, last, at);
        assert_eq!((sink.missing, sink.sessions.len()), (0, 1), "{at}");
    }
    // If a sender cannot read or make its state, it reports this. It does not begin as if nothing had been sent.
    sender.stop();
    let options = ["-o", "remount,ro"];
    assert!(Command::new("mount").args(options).arg(disk.path()).status().unwrap().success());
    let refused = hosts.run(Host::A, &words);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains(&*state.to_string_lossy()), "{said}");
}
