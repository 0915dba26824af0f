//! The roles of processes in the tests of takeovers: a publisher, a publisher that ignores the daemon, and a receiver.

use super::{LAST, tell};
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use shmcast::control::{Request, Required, Response, VERSION, decode, encode};
use shmcast::sys::handoff;
use shmcast::{Client, Event, PublishError, Start, Subscriber, Wait};
use shmcast_layout::ring::writer::Writer;
use shmcast_layout::segment::{Access, Segment};
use shmcast_testkit::daemon::publishing;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// Publishes messages that have the publisher's epoch and their sequence, until the publisher learns that it was cut off. Writes its epoch
/// and first sequence to a file once, and its progress continuously.
pub(super) fn publish(client: &Client, dir: &Path, name: &str) {
    let mut publisher = publishing(client, "ticks").open().unwrap();
    tell(dir, &format!("first.{name}"), &[publisher.epoch(), publisher.next_sequence()]);
    loop {
        for _ in 0..20 {
            let words = [publisher.epoch(), publisher.next_sequence()];
            match publisher.publish(words.map(u64::to_le_bytes).as_flattened()) {
                Ok(_) => {}
                Err(PublishError::CutOff) => return tell(dir, &format!("cut-off.{name}"), &[]),
                Err(e) => panic!("{e}"),
            }
        }
        tell(dir, &format!("at.{name}"), &[publisher.next_sequence()]);
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// As [`publish`], but ignores notices of the daemon, which the library obeys. Still publishes after it was cut off, until the file
/// `NAME.close` exists, and registers with each next daemon.
pub(super) fn publish_deaf(socket: &Path, dir: &Path, name: &str) {
    let (mut place, files) = register(socket, &[]).unwrap();
    let [file, lock, _charter] = <[File; 3]>::try_from(files).unwrap();
    let (l_type, l_whence) = (libc::F_WRLCK as _, libc::SEEK_SET as _);
    let whole = libc::flock { l_type, l_whence, l_start: 0, l_len: 0, l_pid: 0 };
    fcntl(&lock, FcntlArg::F_OFD_SETLK(&whole)).unwrap();
    let segment = Segment::open(&file, Access::Write).unwrap();
    assert!(matches!(ask(&place, &Request::Mapped {}, &[]), Some((Response::Done {}, _))));
    let mut writer: Writer = segment.writer(std::process::id(), 0).unwrap();
    tell(dir, &format!("first.{name}"), &[writer.epoch(), writer.next_sequence()]);
    while !dir.join(format!("{name}.close")).exists() {
        for _ in 0..20 {
            let words = [writer.epoch(), writer.next_sequence()];
            writer.publish(words.map(u64::to_le_bytes).as_flattened(), 0, false, 0).unwrap();
        }
        tell(dir, &format!("at.{name}"), &[writer.next_sequence()]);
        if has_hung_up(&place)
            && let Some((next, _)) = register(socket, &[file.as_fd(), lock.as_fd()])
        {
            place = next;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    writer.close(0);
    tell(dir, &format!("closed.{name}"), &[]);
}

/// Attaches as the publisher. Shows its descriptors if it was attached before. Returns `None` if there is no daemon, or if the daemon
/// refuses.
pub(super) fn register(socket: &Path, shown: &[BorrowedFd<'_>]) -> Option<(OwnedFd, Vec<File>)> {
    let place = handoff::connect(socket).ok()?;
    ask(&place, &Request::Hello { version: VERSION }, &[])?;
    let request = Request::Publish {
        channel: "ticks".into(),
        resume: !shown.is_empty(),
        anew: false,
        required: Required::default(),
    };
    match ask(&place, &request, shown)? {
        (Response::Publishing { .. }, files) => Some((place, files)),
        _ => None,
    }
}

pub(super) fn ask(
    place: &OwnedFd,
    request: &Request,
    shown: &[BorrowedFd<'_>],
) -> Option<(Response, Vec<File>)> {
    handoff::send(place, &encode(request), shown).ok()?;
    let mut buffer = vec![0; handoff::MAX_PACKET];
    let packet = handoff::receive(place, &mut buffer).ok()?;
    Some((decode(&buffer[..packet.length]).ok()?, packet.descriptors))
}

pub(super) fn has_hung_up(place: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(place, PollFlags::empty())];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
    fds[0].revents().contains(PollFlags::HUP)
}

/// Checks all messages up to the last one. Reports the numbers of missed and of wrong messages, and for each epoch in the messages, its
/// first and its last sequence. Writes a file at each new epoch.
pub(super) fn receive(client: &Client, dir: &Path, kind: &str, name: &str) {
    let builder = Subscriber::builder("ticks").client(client).start(Start::Oldest);
    let mut subscriber = builder.wait(Wait::Sleep(Duration::from_millis(1))).open().unwrap();
    tell(dir, &format!("ready.{name}"), &[]);
    let (mut missed, mut wrong) = (0, 0);
    let mut expected = subscriber.next_sequence();
    let mut spans: Vec<[u64; 3]> = Vec::new();
    let mut received = 0_u64;
    loop {
        let event = match kind {
            "spinning" => match subscriber.try_recv().unwrap() {
                Some(event) => event,
                None => {
                    std::thread::yield_now();
                    continue;
                }
            },
            _ => subscriber.recv().unwrap(),
        };
        match event {
            Event::Message(message) => {
                received += 1;
                let words: Vec<u64> =
                    message.payload.chunks(8).map(|w| u64::from_le_bytes(w.try_into().unwrap())).collect();
                wrong += u64::from(message.sequence != expected || words[1] != expected);
                expected = message.sequence + 1;
                match spans.last_mut() {
                    Some([epoch, _, last]) if *epoch == words[0] => *last = words[1],
                    _ => {
                        spans.push([words[0], words[1], words[1]]);
                        tell(dir, &format!("came-to.{name}"), &words[..1]);
                    }
                }
                if message.tag == LAST {
                    let words = [missed, wrong].into_iter().chain(spans.into_iter().flatten());
                    return tell(dir, &format!("report.{name}"), &words.collect::<Vec<_>>());
                }
            }
            Event::Lapped(lapped) => {
                missed += lapped.missed;
                expected = lapped.resumed_at;
            }
            Event::NewEpoch { .. } => {}
            other => {
                eprintln!("{kind}: {other:?}");
                wrong += 1;
            }
        }
        if kind == "lagging" && received.is_multiple_of(200) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
