//! The wall clock of a host is set while its bridges run. Only the times of messages and the names of sessions depend on this clock, and no
//! message is lost.

use super::forms::{Form, Sink, Source, client, daemon, opened};
use shmcast::Publisher;
use shmcast_testkit::hosts::{Host, Hosts};
use shmcast_testkit::wait_until;
use std::fs;

/// Both clocks are set forward by 40 hours and back. A message cannot carry a time so far away, so messages get their times of arrival. An
/// earlier mistake gave wrong times.
fn clocks_are_set(form: Form) {
    let test = format!("clocks_are_set_{form:?}");
    let Some(mut hosts) = Hosts::with_daemons(&test, 2) else { return };
    for host in [Host::A, Host::B] {
        if hosts.own_clock(&test, host).is_none() {
            return;
        }
    }
    let with = |text: String| match form {
        Form::Native | Form::Sealed => text.replace("from = 1\n", "from = 1\nclock_limit_us = 0\n"),
        Form::Unicast | Form::Multicast => text,
    };
    let sends = form.sends(&hosts, &super::daemons::channel(), 60_000);
    let _b = daemon(&hosts, Host::B, &with(form.receives(&hosts)));
    if form == Form::Sealed {
        // B does not have the next key yet. A's daemon has a keys file of its own.
        let keys = hosts.dir.path().join("keys-a");
        let text = fs::read_to_string(hosts.keys()).unwrap();
        let due = hosts.output(Host::A, "date", &["-u", "-d", "20 hours", "+%Y-%m-%dT%H:%M:%SZ"]);
        fs::copy(hosts.keys(), &keys).unwrap();
        fs::write(&keys, format!("{text}9 ffeeddccbbaa99887766554433221100 from {due}")).unwrap();
    }
    let [keys, of_a] = [hosts.keys(), hosts.dir.path().join("keys-a")].map(|path| path.display().to_string());
    let sends = sends.replace(&keys, &of_a);
    let _a = daemon(&hosts, Host::A, &sends);
    let mut source = opened(&hosts, 1);
    let mut sink = Sink::of_daemon(&hosts);
    let mut life = 1;
    for (host, seconds) in [
        (Host::A, 144_000),
        (Host::A, 0),
        (Host::A, -144_000),
        (Host::B, 144_000),
        (Host::B, -144_000),
        (Host::A, 0),
        (Host::B, 0),
    ] {
        let at = format!("{form:?}: {host:?}'s clock is off by {seconds} s");
        source.publish(200);
        hosts.set_clock(host, seconds);
        let last = source.publish(200);
        if form == Form::Sealed && (host, seconds) == (Host::A, 144_000) {
            // B cannot open packets that are sealed with the next key. It gets their messages as soon as its clock is right.
            wait_until("packets with the next key", || {
                super::daemons::bridge(&hosts, Host::B)["figures"]["receive"]["unopened"].as_u64() > Some(0)
            });
            continue;
        }
        sink.read_to(life, last, &at);
        // The channel begins again, under a later session.
        source.end();
        life += 1;
        let anew = Publisher::builder("t").client(&client(&hosts, Host::A)).anew().open().unwrap();
        source = Source::of(anew, life);
        let last = source.publish(200);
        sink.read_to(life, last, &format!("{at}, and the channel was made anew"));
        assert_eq!(sink.missing, 0, "{at}");
        assert!(sink.sessions.windows(2).all(|two| two[0] < two[1]), "{at}: {:?}", sink.sessions);
    }
}

#[test]
fn clocks_that_are_set_cost_no_message_of_native_lines() {
    clocks_are_set(Form::Native);
}

#[test]
fn clocks_that_are_set_cost_no_message_of_sealed_lines() {
    clocks_are_set(Form::Sealed);
}

#[test]
fn clocks_that_are_set_cost_no_message_of_two_lines_and_of_leases() {
    clocks_are_set(Form::Multicast);
    clocks_are_set(Form::Unicast);
}
