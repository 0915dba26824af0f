//! The end of one session, and the beginning of another.

use super::roles::next_epoch;
use shmcast::journal::Journal;
use shmcast::{Event, History, Publisher, RecvError, Start, Subscriber};
use shmcast_bridge::egress::{Egress, EgressOptions};
use shmcast_bridge::ingress::{Ingress, IngressOptions};
use shmcast_bridge::proto::control::ControlDatagram;
use shmcast_bridge::proto::session::{EPOCH_LIMIT, Session, tag_of};
use shmcast_bridge::proto::wire::heartbeat;
use shmcast_bridge::spec::{BridgeSpec, LineSpec, ReceiveSpec, RepairSpec, SendRole, SendSpec, StartAt};
use shmcast_bridge::status::Phase;
use shmcast_testkit::Process;
use shmcast_testkit::disk::Small;
use shmcast_testkit::place::{own_address, program};
use shmcast_testkit::turn::turn;
use shmcast_testkit::{PATIENCE, wait_for};
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn publisher(dir: &Path) -> Publisher {
    Publisher::builder("t").dir(dir).capacity(1 << 20).max_message(1_000).open().unwrap()
}

/// A line to an address of this host that nothing else uses.
fn line() -> LineSpec {
    LineSpec::to(own_address())
}

fn sending(dir: &Path, line: &LineSpec) -> Egress {
    let send = SendSpec { linger_ms: 100, ..SendSpec::default() };
    let spec = BridgeSpec { send: Some(send), lines: vec![line.clone()], ..BridgeSpec::new("t") };
    Egress::start(&spec, Subscriber::builder("t").dir(dir), EgressOptions::default()).unwrap()
}

/// As `sending`, but the egress records its position in the state file `state`.
fn sending_from(dir: &Path, line: &LineSpec, state: &Path) -> Egress {
    let send = SendSpec { linger_ms: 100, state: Some(state.to_owned()), ..SendSpec::default() };
    let spec = BridgeSpec { send: Some(send), lines: vec![line.clone()], ..BridgeSpec::new("t") };
    Egress::start(&spec, Subscriber::builder("t").dir(dir), EgressOptions::default()).unwrap()
}

fn receiving(dir: &Path, line: &LineSpec) -> Ingress {
    let receive = ReceiveSpec { from: Some(1), ..ReceiveSpec::default() };
    let spec = BridgeSpec { receive: Some(receive), lines: vec![line.clone()], ..BridgeSpec::new("t") };
    let channel = Publisher::builder("t").dir(dir).capacity(1 << 20).max_message(1_000);
    Ingress::start(&spec, channel, IngressOptions::default()).unwrap()
}

/// Reads messages up to `last`, and returns the other events between them.
fn read_to(subscriber: &mut Subscriber, last: u64) -> Vec<String> {
    let mut news = Vec::new();
    while subscriber.next_sequence() <= last {
        match subscriber.recv_deadline(Instant::now() + PATIENCE).unwrap() {
            Some(Event::Message(_)) => {}
            Some(Event::NewSession { session }) => {
                news.push(format!("session {}", String::from_utf8_lossy(&session)));
            }
            Some(other) => news.push(format!("{other:?}")),
            None => panic!("nothing after {news:?}, next is {}", subscriber.next_sequence()),
        }
    }
    news
}

#[test]
fn a_channel_made_anew_is_a_new_session_from_its_first_message_on() {
    let _turn = turn();
    let (a, b, line) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), line());
    let mut first = publisher(a.path());
    let ingress = receiving(b.path(), &line);
    let egress = sending(a.path(), &line);
    let session = egress.life().session().unwrap();
    first.publish_batch(["1", "2", "3"]).unwrap();
    let mut reader = Subscriber::builder("t").dir(b.path()).start(Start::Oldest).open().unwrap();
    assert_eq!(read_to(&mut reader, 3), [format!("session {session:<10}")]);
    drop(first);

    let mut second = Publisher::builder("t").dir(a.path()).anew().open().unwrap();
    second.publish_batch(["one", "two"]).unwrap();
    let renewed = wait_for("another session", || egress.life().session().filter(|now| *now != session));
    assert!(renewed.epoch() > session.epoch() && renewed.tag() == session.tag(), "{renewed} after {session}");
    // The sequences begin again, so the channel on B begins again.
    let over = loop {
        match reader.recv_deadline(Instant::now() + PATIENCE) {
            Ok(Some(Event::End)) => {}
            Ok(other) => panic!("{other:?}"),
            Err(e) => break e,
        }
    };
    assert_eq!(over, RecvError::Superseded);
    let mut reader = Subscriber::builder("t").dir(b.path()).start(Start::Oldest).open().unwrap();
    assert_eq!(read_to(&mut reader, 2), [format!("session {renewed}")]);
    let counters = wait_for("all in the counters", || {
        Some(ingress.counters()).filter(|counters| counters.host.messages_published == 5)
    });
    assert_eq!((counters.feed.sessions, counters.host.messages_missing), (2, 0));
}

#[test]
fn a_publisher_that_comes_back_goes_on_in_its_session() {
    let _turn = turn();
    let (a, b, line) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), line());
    let mut first = publisher(a.path());
    let ingress = receiving(b.path(), &line);
    let egress = sending(a.path(), &line);
    let session = egress.life().session().unwrap();
    first.publish_batch(["1", "2", "3"]).unwrap();
    let mut reader = Subscriber::builder("t").dir(b.path()).start(Start::Oldest).open().unwrap();
    read_to(&mut reader, 3);
    first.close();
    assert_eq!(reader.recv_deadline(Instant::now() + PATIENCE), Ok(Some(Event::End)));
    let mut second = publisher(a.path());
    second.publish_batch(["4", "5"]).unwrap();
    assert_eq!(read_to(&mut reader, 5), ["NewEpoch { epoch: 2 }"]);
    assert_eq!((egress.life().session(), egress.counters().sessions), (Some(session), 1));
    let counters = wait_for("all in the counters", || {
        Some(ingress.counters()).filter(|counters| counters.host.messages_published == 5)
    });
    assert_eq!((counters.feed.sessions, counters.host.messages_missing), (1, 0));
}

#[test]
fn a_bridge_that_leaves_sends_what_waits_and_ends_no_session() {
    let _turn = turn();
    let (a, b, line) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), line());
    let mut publisher = publisher(a.path());
    let _ingress = receiving(b.path(), &line);
    let mut egress = sending(a.path(), &line);
    publisher.publish_batch(["1", "2", "3"]).unwrap();
    egress.leave();
    egress.join();
    // The bridge has left, so it does not send messages that are published now.
    publisher.publish(b"4").unwrap();
    let mut reader = Subscriber::builder("t").dir(b.path()).start(Start::Oldest).open().unwrap();
    read_to(&mut reader, 3);
    assert_eq!(reader.recv_deadline(Instant::now() + Duration::from_millis(200)), Ok(None));
    assert!(egress.is_finished() && egress.counters().next_sequence == 4, "{:?}", egress.counters());
    assert_eq!((egress.counters().ends, egress.life().phase()), (0, Phase::Ended));
}

/// An earlier mistake: the channel of a receiver that ended was closed, and its readers left, though the stream went on.
#[test]
fn a_receiver_that_ends_ends_no_stream() {
    let _turn = turn();
    let (a, b, line) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), line());
    let mut publisher = publisher(a.path());
    let _egress = sending(a.path(), &line);
    let mut reader: Option<Subscriber> = None;
    for last in [2, 4, 6] {
        let ingress = receiving(b.path(), &line);
        publisher.publish_batch(["1", "2"]).unwrap();
        let oldest = || Subscriber::builder("t").dir(b.path()).start(Start::Oldest).open().unwrap();
        let reader = reader.get_or_insert_with(oldest);
        let news = read_to(reader, last);
        assert!(!news.iter().any(|event| event == "End"), "{news:?}");
        drop(ingress);
        assert_eq!(reader.try_recv(), Ok(None), "the channel stays open");
    }
    let _ingress = receiving(b.path(), &line);
    publisher.close();
    let mut reader = reader.unwrap();
    let end = wait_for("the end of the stream", || match reader.recv_deadline(Instant::now() + PATIENCE) {
        Ok(Some(Event::NewEpoch { .. })) => None,
        other => Some(format!("{other:?}")),
    });
    assert_eq!(end, "Ok(Some(End))");
}

#[test]
fn an_earlier_publishers_end_ends_nothing_far_away() {
    let _turn = turn();
    let (a, b, line) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), line());
    let mut first = publisher(a.path());
    first.publish_batch(["1", "2", "3"]).unwrap();
    first.close();
    let second = publisher(a.path());
    let _ingress = receiving(b.path(), &line);
    let send = SendSpec { linger_ms: 100, from: StartAt::Oldest, ..SendSpec::default() };
    let spec = BridgeSpec { lines: vec![line], send: Some(send), ..BridgeSpec::new("t") };
    let channel = Subscriber::builder("t").dir(a.path());
    let options = EgressOptions { ends_with_channel: true, ..EgressOptions::default() };
    let mut egress = Egress::start(&spec, channel, options).unwrap();
    wait_for("all that is there", || (egress.counters().next_sequence == 4).then_some(()));
    wait_for("a heartbeat", || (egress.counters().heartbeats > 0).then_some(()));
    assert_eq!((egress.counters().ends, egress.is_finished()), (0, false), "somebody publishes");
    second.close();
    egress.join();
    assert!(egress.counters().ends > 0);
    let mut reader = Subscriber::builder("t").dir(b.path()).start(Start::Oldest).open().unwrap();
    read_to(&mut reader, 3);
    assert_eq!(reader.recv_deadline(Instant::now() + PATIENCE), Ok(Some(Event::End)));
}

/// An earlier mistake: a bridge that came after a short-lived publisher sent its messages and no end, and waited for ever.
#[test]
fn a_bridge_that_sends_all_messages_of_a_closed_channel_sends_its_end() {
    let _turn = turn();
    let (a, b, line) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), line());
    let mut publisher = publisher(a.path());
    publisher.publish_batch(["1", "2", "3"]).unwrap();
    publisher.close();
    let _ingress = receiving(b.path(), &line);
    let send = SendSpec { linger_ms: 100, from: StartAt::Oldest, ..SendSpec::default() };
    let spec = BridgeSpec { lines: vec![line], send: Some(send), ..BridgeSpec::new("t") };
    let options = EgressOptions { ends_with_channel: true, ..EgressOptions::default() };
    let mut egress = Egress::start(&spec, Subscriber::builder("t").dir(a.path()), options).unwrap();
    wait_for("the end of the bridge", || egress.is_finished().then_some(()));
    egress.join();
    assert!(egress.counters().ends > 0);
    let mut reader = Subscriber::builder("t").dir(b.path()).start(Start::Oldest).open().unwrap();
    read_to(&mut reader, 3);
    assert_eq!(reader.recv_deadline(Instant::now() + PATIENCE), Ok(Some(Event::End)));
}

/// An earlier mistake: a bridge that began after the channel's end sent no end, and far readers waited for ever.
#[test]
fn the_next_bridge_sends_an_end_that_the_last_one_did_not_send() {
    let _turn = turn();
    let (a, b, line) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), line());
    let state = a.path().join("state");
    let mut first = publisher(a.path());
    let _ingress = receiving(b.path(), &line);
    let mut egress = sending_from(a.path(), &line, &state);
    first.publish_batch(["1", "2", "3"]).unwrap();
    let mut reader = wait_for("the channel at B", || {
        Subscriber::builder("t").dir(b.path()).start(Start::Oldest).open().ok()
    });
    read_to(&mut reader, 3);
    egress.stop();
    egress.join();
    // The state file is locked until then.
    drop(egress);
    first.close();
    let next = sending_from(a.path(), &line, &state);
    assert_eq!(reader.recv_deadline(Instant::now() + PATIENCE), Ok(Some(Event::End)));
    wait_for("heartbeats after the end", || (next.life().phase() == Phase::Running).then_some(()));
    assert!(!next.is_finished(), "it waits for the next publisher");
    let mut second = publisher(a.path());
    second.publish_batch(["4", "5"]).unwrap();
    read_to(&mut reader, 5);
}

#[test]
fn a_second_hop_keeps_sessions_and_sequences() {
    let _turn = turn();
    let dirs = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let (to_b, to_c) = (line(), line());
    let mut publisher = publisher(dirs[0].path());
    publisher.publish_batch(["1", "2"]).unwrap();
    let _b = receiving(dirs[1].path(), &to_b);
    let first = sending(dirs[0].path(), &to_b);
    let session = first.life().session().unwrap();
    wait_for("the session on B", || {
        let on_b = Subscriber::builder("t").dir(dirs[1].path()).page(false).open().ok()?;
        on_b.remote_session()
    });
    let c = receiving(dirs[2].path(), &to_c);
    let second = sending(dirs[1].path(), &to_c);
    wait_for("the session on C", || c.life().session());
    assert_eq!((second.life().session(), c.life().session()), (Some(session), Some(session)));
    publisher.publish_batch(["3", "4", "5"]).unwrap();
    let mut reader = Subscriber::builder("t").dir(dirs[2].path()).start(Start::Oldest).open().unwrap();
    let news = read_to(&mut reader, 5);
    // Messages from before the bridge listened were not requested.
    assert_eq!(news, [format!("session {session}"), "Gap { from: 1, to: 2 }".to_owned()]);
}

#[test]
fn a_next_session_loses_nothing_while_its_memory_is_made() {
    let _turn = turn();
    go_before_all_others();
    // The larger the ring, the longer messages wait for it.
    for capacity in [256 << 20, 512 << 20] {
        // A machine that stops for 100 ms costs messages too.
        assert!((0..5).any(|_| losses_of_a_next_session_with(capacity) == 0), "each of five times");
    }
}

/// Gives this thread, and those that it starts, priority over all others. The test measures what a thread waits for, not whether it gets a
/// CPU in time.
fn go_before_all_others() {
    // On Linux, this call sets the priority of this thread alone. Only root is allowed to raise it.
    let _ = rustix::process::setpriority_process(None, -20);
}

/// The publisher comes back at once and at full speed, while the other host makes as much memory as its channel has.
fn losses_of_a_next_session_with(capacity: u64) -> u64 {
    let (a, b, line) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap(), line());
    let mut first = publisher(a.path());
    // The buffer has room for some 90 ms of the feed. A thread that only receives is never so late.
    let receive = ReceiveSpec { from: Some(1), buffer_bytes: 1 << 20, ..ReceiveSpec::default() };
    let spec = BridgeSpec { receive: Some(receive), lines: vec![line.clone()], ..BridgeSpec::new("t") };
    let channel = Publisher::builder("t").dir(b.path()).capacity(capacity).max_message(1_000);
    let making = Instant::now();
    let ingress = Ingress::start(&spec, channel, IngressOptions::default()).unwrap();
    eprintln!("a ring of {} MiB was made within {:?}", capacity >> 20, making.elapsed());
    let egress = sending(a.path(), &line);
    first.publish(b"the first session").unwrap();
    wait_for("the first session", || (ingress.counters().host.messages_published == 1).then_some(()));
    drop(first);
    let mut second = Publisher::builder("t").dir(a.path()).anew().open().unwrap();
    let (started, messages) = (Instant::now(), 15_000);
    for n in 0..messages {
        let due = Duration::from_micros(n * 1_000 / 30);
        std::thread::sleep(due.saturating_sub(started.elapsed()));
        second.publish(&n.to_le_bytes()).unwrap();
    }
    wait_for("all messages", || {
        let counters = ingress.counters();
        (counters.host.messages_published + counters.host.messages_missing == 1 + messages).then_some(())
    });
    let counters = ingress.counters();
    eprintln!(
        "{} lost, {} dropped by the kernel",
        counters.host.messages_missing, counters.lines[0].socket.kernel_drops
    );
    assert_eq!(counters.feed.sessions, 2);
    assert_eq!(egress.counters().messages_missed, 0);
    counters.host.messages_missing
}

/// The host of the publisher dies: nobody announces the end of the first session.
#[test]
fn a_next_session_is_followed_though_the_last_one_never_ended() {
    let _turn = turn();
    let (dirs, line) = ([(); 3].map(|()| tempfile::tempdir().unwrap()), line());
    let ingress = receiving(dirs[2].path(), &line);
    let mut sessions = Vec::new();
    for dir in &dirs[..2] {
        let mut publisher = publisher(dir.path());
        let egress = sending(dir.path(), &line);
        let session = egress.life().session().unwrap();
        publisher.publish_batch(["1", "2", "3"]).unwrap();
        wait_for("the session", || (ingress.life().session() == Some(session)).then_some(()));
        let all = 3 * (sessions.len() as u64 + 1);
        wait_for("its messages", || (ingress.counters().host.messages_published == all).then_some(()));
        sessions.push(session);
        egress.stop();
        // The next session has another epoch.
        next_epoch();
    }
    assert_eq!((ingress.counters().host.messages_missing, ingress.counters().feed.sessions), (0, 2));
}

/// There is no repair server. Messages that are published while no bridge runs come from the next bridge.
#[test]
fn a_bridge_with_a_state_file_goes_on_where_it_was() {
    let _turn = turn();
    let (a, b, line) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), line());
    let state = a.path().join("bridge.state");
    let mut publisher = publisher(a.path());
    let ingress = receiving(b.path(), &line);
    let mut session = None;
    for round in 1..=5 {
        let mut egress = sending_from(a.path(), &line, &state);
        assert!(session.is_none_or(|session| egress.life().session() == Some(session)));
        session = egress.life().session();
        publisher.publish_batch(["1", "2", "3"]).unwrap();
        wait_for("all so far", || {
            (ingress.counters().host.messages_published == 4 * round - 1).then_some(())
        });
        egress.stop();
        egress.join();
        publisher.publish(b"while nobody sends").unwrap();
    }
    assert_eq!((ingress.counters().host.messages_missing, ingress.counters().feed.sessions), (0, 1));
}

/// Somebody removes or moves the state file while the bridge runs, before or after more messages. An earlier mistake: the next bridge
/// continued as if nothing had been sent.
#[test]
fn a_state_file_that_is_removed_under_a_bridge_is_made_again() {
    let _turn = turn();
    let (a, b, line) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), line());
    let state = a.path().join("bridge.state");
    let mut publisher = publisher(a.path());
    let ingress = receiving(b.path(), &line);
    let all_of = |round: u64| {
        wait_for("all so far", || {
            (ingress.counters().host.messages_published == 4 * round - 1).then_some(())
        });
    };
    let mut session = None;
    for (round, is_moved, is_late) in [(1, false, false), (2, true, false), (3, false, true), (4, true, true)]
    {
        let mut egress = sending_from(a.path(), &line, &state);
        assert!(session.is_none_or(|session| egress.life().session() == Some(session)), "round {round}");
        session = egress.life().session();
        let publish = |publisher: &mut Publisher| {
            publisher.publish_batch(["1", "2", "3"]).unwrap();
            all_of(round);
        };
        if is_late {
            publish(&mut publisher);
        }
        match is_moved {
            false => std::fs::remove_file(&state).unwrap(),
            true => std::fs::rename(&state, a.path().join("elsewhere")).unwrap(),
        }
        if !is_late {
            publish(&mut publisher);
        }
        wait_for("the file", || state.exists().then_some(()));
        wait_for("the word", || (egress.counters().state_renewed == 1).then_some(()));
        egress.stop();
        egress.join();
        publisher.publish(b"while nobody sends").unwrap();
    }
    let last = sending_from(a.path(), &line, &state);
    wait_for("the last", || (ingress.counters().host.messages_published == 16).then_some(()));
    drop(last);
    assert_eq!((ingress.counters().host.messages_missing, ingress.counters().feed.sessions), (0, 1));
}

/// The disk is full when the bridge begins, and has room again after the last message. The path of the file is a link.
#[test]
fn a_state_file_on_a_full_disk_is_written_when_there_is_room() {
    let test = "a_state_file_on_a_full_disk_is_written_when_there_is_room";
    let _turn = turn();
    let Some(disk) = Small::make(test, 1) else { return };
    let (a, b, line) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), line());
    let (state, filler) = (a.path().join("bridge.state"), disk.path().join("filler"));
    std::os::unix::fs::symlink(disk.path().join("state"), &state).unwrap();
    let mut publisher = publisher(a.path());
    let ingress = receiving(b.path(), &line);
    let all = |count| {
        wait_for("all so far", || (ingress.counters().host.messages_published == count).then_some(()));
    };
    std::fs::File::create(disk.path().join("state")).unwrap();
    assert!(std::fs::write(&filler, vec![1; 2 << 20]).is_err(), "the disk is full");
    let mut egress = sending_from(a.path(), &line, &state);
    let session = egress.life().session();
    publisher.publish_batch(["1", "2", "3"]).unwrap();
    all(3);
    wait_for("the word", || (egress.counters().state_errors > 0).then_some(()));
    std::fs::remove_file(&filler).unwrap();
    let size = || std::fs::metadata(&state).map_or(0, |file| file.len());
    wait_for("the state on the disk", || (size() == 192).then_some(()));
    egress.stop();
    egress.join();
    drop(egress); // it has the file's lock
    publisher.publish(b"while nobody sends").unwrap();
    let egress = sending_from(a.path(), &line, &state);
    assert_eq!(egress.life().session(), session);
    all(4);
    assert_eq!((ingress.counters().host.messages_missing, ingress.counters().feed.sessions), (0, 1));
}

/// An earlier mistake: a bridge whose state file was damaged, or another channel's, began with the next message and said nothing.
#[test]
fn a_state_file_that_does_not_say_where_to_continue_is_told() {
    let _turn = turn();
    let (a, b, line) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), line());
    let state = a.path().join("bridge.state");
    let told = |egress: &Egress, said: &str| {
        let told = |refusal: &&String| refusal.starts_with(&format!("the state file {} ", state.display()));
        let refusal = egress.life().refusals.iter().find(told).expect("a line about the state file");
        assert!(refusal.ends_with(said), "{refusal}");
    };
    let mut first = publisher(a.path());
    first.publish_batch(["1", "2", "3"]).unwrap();
    std::fs::write(&state, b"SHMCBST1 and no record").unwrap();
    told(&sending_from(a.path(), &line, &state), "has no whole record: this bridge begins with message 4");
    let _other = publisher(b.path());
    told(
        &sending_from(b.path(), &line, &state),
        "names another stream than the channel's: this bridge begins with message 1",
    );
}

/// Two sessions begin within half a second, which is the unit of epochs.
#[test]
fn a_channel_made_anew_while_no_bridge_runs_has_a_later_epoch() {
    let _turn = turn();
    let (a, b, line) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), line());
    let state = a.path().join("bridge.state");
    let ingress = receiving(b.path(), &line);
    let mut last = None;
    for round in 1..=4 {
        let channel = Publisher::builder("t").dir(a.path()).capacity(1 << 20).max_message(1_000);
        let mut publisher = channel.anew().open().unwrap();
        let mut egress = sending_from(a.path(), &line, &state);
        let session = egress.life().session();
        assert!(session.map(|session| session.epoch()) > last.map(|session: Session| session.epoch()));
        last = session;
        publisher.publish_batch(["1", "2", "3"]).unwrap();
        wait_for("its messages", || (ingress.counters().host.messages_published == 3 * round).then_some(()));
        egress.stop();
        egress.join();
    }
    assert_eq!((ingress.counters().host.messages_missing, ingress.counters().feed.sessions), (0, 4));
}

fn at(mut send: SendSpec, bind: SocketAddr) -> SendSpec {
    send.repair.iter_mut().for_each(|repair| repair.bind = bind);
    send
}

/// The clock of this host was set back, or another host's clock is ahead.
#[test]
fn a_new_session_is_later_than_any_that_is_heard() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let group = SocketAddr::from(([239, 255, 77, 9], line().group.port()));
    let line = LineSpec { interface: Some("127.0.0.1".to_owned()), ..LineSpec::to(group) };
    let other = socket2::Socket::from(UdpSocket::bind("127.0.0.1:0").unwrap());
    let loopback = std::net::Ipv4Addr::LOCALHOST;
    other.set_multicast_if_v4(&loopback).and_then(|()| other.set_multicast_loop_v4(true)).unwrap();
    let _publisher = publisher(dir.path());
    let plain = sending(
        dir.path(),
        &LineSpec { group: "127.0.0.1:9".parse().unwrap(), ..LineSpec::clone(&self::line()) },
    );
    let own = plain.life().session().unwrap();
    drop(plain);
    let of_ours = |epoch| Session::of_channel(&tag_of("t"), epoch).unwrap();
    let heard = of_ours(own.epoch().unwrap() + 5_000);
    let done = std::sync::atomic::AtomicBool::new(false);
    let session = std::thread::scope(|scope| {
        scope.spawn(|| {
            // A heartbeat of the last possible session must not hide the other session.
            let packets = [heard, of_ours(EPOCH_LIMIT - 1)].map(|it| heartbeat(it, 9));
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                for packet in &packets {
                    other.send_to(packet, &group.into()).unwrap();
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        // A bridge hears nothing if the machine stops for as long as it listens.
        let session = (0..20).find_map(|_| {
            sending(dir.path(), &line).life().session().filter(|it| it.epoch() > heard.epoch())
        });
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        session.unwrap()
    });
    assert_eq!(session.epoch(), heard.epoch().map(|epoch| epoch + 1), "{session} after {heard}");
}

/// `from` says with which message the bridge begins, and the state file says which session it continues.
#[test]
fn a_bridge_with_a_state_file_begins_elsewhere_if_it_is_told_to() {
    let _turn = turn();
    let (a, line) = (tempfile::tempdir().unwrap(), line());
    let state = a.path().join("bridge.state");
    let mut publisher = publisher(a.path());
    publisher.publish_batch(["1", "2", "3"]).unwrap();
    let mut sessions = Vec::new();
    for (from, next) in
        [(StartAt::Resume, 4), (StartAt::Oldest, 1), (StartAt::Latest, 4), (StartAt::Resume, 4)]
    {
        let send = SendSpec { state: Some(state.clone()), from, ..SendSpec::default() };
        let spec = BridgeSpec { send: Some(send), lines: vec![line.clone()], ..BridgeSpec::new("t") };
        let channel = Subscriber::builder("t").dir(a.path());
        let mut egress = Egress::start(&spec, channel, EgressOptions::default()).unwrap();
        let first = 4 - next;
        wait_for("its messages", || (egress.counters().messages == first).then_some(()));
        sessions.push(egress.life().session());
        egress.stop();
        egress.join();
    }
    assert!(sessions.iter().all(|session| *session == sessions[0] && session.is_some()), "{sessions:?}");
}

/// A bridge does not send messages that only the journal still has: receivers would wait for a disk.
#[test]
fn a_bridge_sends_the_ring_and_not_the_journal() {
    let _turn = turn();
    let (a, journal, line) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), line());
    let mut publisher = publisher(a.path());
    publisher.publish_batch(["1", "2", "3"]).unwrap();
    let mut recorder = Command::new(program("shmcast"));
    recorder.args(["record", "t", "--sync", "each", "--dir"]).arg(a.path());
    recorder.arg("--to").arg(journal.path()).stderr(Stdio::null());
    let recorder = Process::start(&mut recorder);
    let channel = Subscriber::builder("t").dir(a.path()).start(Start::Oldest);
    let recorded = channel.clone().history(History::Dir(journal.path().to_owned()));
    wait_for("the journal", || {
        let mut third = Journal::open(journal.path()).ok()?.read_from(3).ok()?;
        third.next().ok()?.map(drop)
    });
    recorder.kill();
    for _ in 0..3_000 {
        publisher.publish(&[7; 900]).unwrap();
    }
    assert_eq!(recorded.clone().open().unwrap().next_sequence(), 1, "the journal goes further back");
    let oldest = channel.history(History::Never).open().unwrap().next_sequence();
    assert!(oldest > 3);
    let send = SendSpec { from: StartAt::Oldest, ..SendSpec::default() };
    let spec = BridgeSpec { send: Some(send), lines: vec![line], ..BridgeSpec::new("t") };
    let egress = Egress::start(&spec, recorded, EgressOptions::default()).unwrap();
    let sent = publisher.next_sequence() - oldest;
    wait_for("the ring's messages", || (egress.counters().messages >= sent).then_some(()));
    assert_eq!((egress.counters().messages, egress.counters().messages_missed), (sent, 0));
}

/// The egress of a mirror starts before its channel has a session.
#[test]
fn an_egress_claims_the_session_that_its_channel_gets_later() {
    let _turn = turn();
    claims_the_session(SendSpec::default().takeover_ms);
}

/// An earlier mistake: the egress overlooked the beginning of a session that came while it listened for peers.
#[test]
fn an_egress_claims_the_session_that_its_channel_gets_while_it_listens() {
    let _turn = turn();
    claims_the_session(1_500);
}

fn claims_the_session(takeover_ms: u64) {
    let (dirs, line) = ([(); 2].map(|()| tempfile::tempdir().unwrap()), line());
    let _b = receiving(dirs[1].path(), &line);
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    peer.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let send = SendSpec {
        role: SendRole::Auto,
        takeover_ms,
        claim_bind: Some("127.0.0.1:0".parse().unwrap()),
        peers: vec![peer.local_addr().unwrap().to_string().parse().unwrap()],
        ..SendSpec::default()
    };
    let spec = BridgeSpec { send: Some(send), lines: vec![self::line()], ..BridgeSpec::new("t") };
    let channel = Subscriber::builder("t").dir(dirs[1].path());
    let mirror = Egress::start(&spec, channel, EgressOptions::default()).unwrap();
    let before = mirror.life().session();
    // The clock gives another session name.
    next_epoch();
    let mut publisher = publisher(dirs[0].path());
    let first = sending(dirs[0].path(), &line);
    let session = first.life().session().unwrap();
    assert_ne!(before, Some(session));
    publisher.publish_batch(["1", "2", "3"]).unwrap();
    wait_for("the session", || (mirror.life().session() == Some(session)).then_some(()));
    let mut bytes = [0; 256];
    wait_for("a claim of the session", || {
        // A signal or the time limit of the socket ends a call.
        let size = peer.recv(&mut bytes).ok()?;
        let Ok(ControlDatagram::Claim(claim)) = ControlDatagram::parse(&bytes[..size]) else {
            panic!("no claim")
        };
        (claim.session == session && claim.is_mirror).then_some(())
    });
}

/// A backup publishes an older channel, or a host's clock was set back.
#[test]
fn an_older_feed_is_followed_when_the_newer_one_falls_silent() {
    let _turn = turn();
    let (dirs, line) = ([(); 3].map(|()| tempfile::tempdir().unwrap()), line());
    let mut older = publisher(dirs[0].path());
    let mut repair = RepairSpec::new(own_address());
    repair.allow = vec!["127.0.0.1".parse().unwrap()];
    let send = SendSpec { linger_ms: 100, repair: Some(repair), ..SendSpec::default() };
    let spec = BridgeSpec { send: Some(send), lines: vec![line.clone()], ..BridgeSpec::new("t") };
    let channel = || Subscriber::builder("t").dir(dirs[0].path());
    let of_older = || Egress::start(&spec, channel(), EgressOptions::default()).unwrap();
    let server = of_older().repair_address().unwrap();
    let spec = BridgeSpec { send: spec.send.clone().map(|send| at(send, server)), ..spec.clone() };
    let of_older = || Egress::start(&spec, channel(), EgressOptions::default()).unwrap();
    let receive = ReceiveSpec { from: Some(1), servers: vec![server], ..ReceiveSpec::default() };
    let receiving = BridgeSpec { receive: Some(receive), lines: vec![line.clone()], ..BridgeSpec::new("t") };
    let to = Publisher::builder("t").dir(dirs[2].path()).capacity(1 << 20).max_message(1_000);
    let ingress = Ingress::start(&receiving, to, IngressOptions::default()).unwrap();
    next_epoch();
    let mut newer = publisher(dirs[1].path());
    let of_newer = sending(dirs[1].path(), &line);
    newer.publish(b"newer").unwrap();
    wait_for("the newer one", || (ingress.counters().host.messages_published == 1).then_some(()));
    let of_older = of_older();
    older.publish_batch(["1", "2", "3"]).unwrap();
    wait_for("the word that it is stale", || {
        (of_older.repair_counters().serving.told_stale > 0).then_some(())
    });
    wait_for("the older one's packets", || (ingress.counters().feed.packets_stale > 2).then_some(()));
    assert_eq!(ingress.life().session(), of_newer.life().session());
    drop(of_newer);
    let silent = Instant::now();
    wait_for("the older one", || (ingress.life().session() == of_older.life().session()).then_some(()));
    eprintln!("an older feed was followed after {:?}", silent.elapsed());
    older.publish_batch(["4", "5"]).unwrap();
    wait_for("its messages", || (ingress.counters().host.messages_published >= 3).then_some(()));
    assert_eq!(ingress.counters().feed.sessions, 2);
}
