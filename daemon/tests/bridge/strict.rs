//! Senders of a daemon's channels, strict and not, after the channel has moved to another ring, and while the senders stand still or are
//! made anew.

use super::daemons::channel;
use super::forms::{Form, Sink, client, daemon, opened};
use nix::sys::signal::Signal;
use shmcast_testkit::hosts::{Host, Hosts, Running};
use shmcast_testkit::wait_until;
use std::fs;
use std::time::Duration;

/// A receiver is away for several rings. Meanwhile another publisher takes over, and the sender's daemon is killed. An earlier mistake: the
/// sender without its memory took the present ring's first message for the first one of the session. So earlier messages were reported as
/// lost, although the journal had them.
#[test]
fn a_receiver_from_before_a_takeover_gets_all_from_the_journal() {
    let test = "a_receiver_from_before_a_takeover_gets_all_from_the_journal";
    if shmcast_testkit::unit::asked().is_some() {
        return shmcast_testkit::skip(test, "the unit lets journals lie in /var/lib/shmcast alone");
    }
    let Some(hosts) = Hosts::with_daemons(test, 1) else { return };
    let journal = hosts.dir.path().join("journal");
    let small = channel().replace(&super::roles::CAPACITY.to_string(), &(1 << 20).to_string());
    let recorded = format!(
        "{small}mode = \"strict\"\njournal = {{ dir = \"{}\", file = \"1MiB\" }}\n",
        journal.display()
    );
    let sends = Form::Native.sends(&hosts, &recorded, 60_000);
    let receives = Form::Native.receives(&hosts);
    let a = daemon(&hosts, Host::A, &sends);
    let b = daemon(&hosts, Host::B, &receives);
    let mut source = opened(&hosts, 1);
    let mut sink = Sink::of_daemon(&hosts);
    let last = source.publish(1_000);
    sink.read_to(1, last, "the beginning");
    b.kill();
    // These messages fill several rings. They come as fast as the recorder keeps up.
    let at_a = client(&hosts, Host::A);
    for _ in 0..5 {
        let last = source.publish(3_000);
        wait_until("the journal", || {
            let status = at_a.channel("t").ok().and_then(|channel| channel.journal);
            status.is_some_and(|journal| journal.durable >= last)
        });
    }
    drop(source);
    // The next publisher of a strict channel has a ring of its own.
    let mut source = opened(&hosts, 1);
    assert_eq!(at_a.channel("t").unwrap().generation, Some(2));
    source.publish(100);
    a.kill();
    let _a = daemon(&hosts, Host::A, &sends);
    let _b = daemon(&hosts, Host::B, &receives);
    let last = source.publish(100);
    sink.read_to(1, last, "behind the takeover");
    assert_eq!(sink.missing, 0, "the journal has them all");
}

/// `bridge send` of a daemon's channel is stopped while the channel moves to another ring, and begins without its state.
#[test]
fn a_sender_of_a_daemons_channel_is_stopped_and_made_anew() {
    for mode in ["takeover", "strict"] {
        let test = format!("a_sender_of_a_daemons_channel_is_stopped_and_made_anew_{mode}");
        let Some(hosts) = Hosts::with_daemons(&test, 2) else { return };
        let form = Form::Native;
        let state = hosts.dir.path().join("state");
        let start = |words: &str| -> Running {
            let running = hosts.shmcast(Host::A, words);
            running.wait_for_log("sending session");
            running
        };
        let _a = hosts.daemon(Host::A, &format!("{}mode = \"{mode}\"\n", channel()));
        let _b = daemon(&hosts, Host::B, &form.receives(&hosts));
        let mut source = opened(&hosts, 1);
        let words = form.send_words(&hosts, &state);
        let mut bridge = start(&words);
        let mut sink = Sink::of_daemon(&hosts);
        let last = source.publish(300);
        sink.read_to(1, last, mode);
        bridge.signal(Signal::SIGSTOP);
        source.publish(300);
        drop(source);
        let mut source = opened(&hosts, 1);
        source.publish(300);
        std::thread::sleep(Duration::from_millis(150));
        bridge.signal(Signal::SIGCONT);
        let last = source.publish(300);
        sink.read_to(1, last, mode);
        assert_eq!(sink.missing, 0, "{mode}: the sender was stopped");
        // Without its state, the sender sends what the ring has. The session is another one if the sender cannot know the previous one.
        bridge.kill();
        fs::remove_file(&state).unwrap();
        source.publish(300);
        bridge = start(&words);
        let last = source.publish(300);
        sink.read_to(1, last, mode);
        assert_eq!(sink.missing, 0, "{mode}: the sender was made anew");
        // The present ring is not the channel's first. Messages from before this ring are reported as missing, because nobody has them.
        bridge.kill();
        fs::remove_file(&state).unwrap();
        source.publish(300);
        drop(source);
        let mut source = opened(&hosts, 1);
        let _bridge = start(&words);
        let last = source.publish(300);
        sink.read_to(1, last, mode);
        let lost = if mode == "strict" { 300 } else { 0 };
        assert_eq!(sink.missing, lost, "{mode}: the sender was made anew behind a takeover");
    }
}
