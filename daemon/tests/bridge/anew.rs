//! Interfaces that are deleted and made anew under a bridge, and lines that fall silent.

use super::daemons::{GROUP, SERVER, bridge, channel, daemon, receives, sends};
use super::feed::{Feed, assert_all_have_all, count, messages, rate, readers};
use super::v6::v6;
use serde_json::Value;
use shmcast_testkit::hosts::{Host, Hosts};
use shmcast_testkit::{wait_for, wait_until};

/// Waits until the figure at `path` of a host's bridge is at least `least`. Returns all figures of the bridge.
fn figures(hosts: &Hosts, host: Host, path: &str, least: u64) -> Value {
    wait_for(&format!("{path} of {least} on {host:?}"), || {
        let figures = bridge(hosts, host)["figures"].clone();
        let is_so = figures.pointer(path).and_then(Value::as_u64).is_some_and(|figure| figure >= least);
        is_so.then_some(figures)
    })
}

/// Removes the wire of a feed, and makes it again after `away` more messages. Then the line carries the feed again, and the server has the
/// missed messages.
fn a_wire_is_made_anew(hosts: &Hosts, of: fn(&str) -> String, away: u64) {
    let _a = daemon(hosts, Host::A, &of(&sends()));
    let _b = daemon(hosts, Host::B, &of(&receives(GROUP, SERVER)));
    let readers = readers(hosts, 2, u64::MAX);
    let feed = Feed::begin(hosts);
    let next = "/receive/next_sequence";
    figures(hosts, Host::B, next, messages() / 4);
    let client = shmcast::Client::at(hosts.socket(Host::A)).unwrap();
    let published = || client.channel("t").ok()?.next_sequence;
    let meanwhile = || {
        let gone_at = wait_for("the publisher", published);
        wait_until("messages that the line does not carry", || published() > Some(gone_at + away));
    };
    hosts.remake(0, meanwhile, of(SERVER) != SERVER);
    figures(hosts, Host::A, "/send/lines_anew", 1);
    let received = figures(hosts, Host::B, "/receive/lines_anew", 1);
    // The line carries packets again.
    let packets = count(&received, "/receive/lines/0/packets");
    let received = figures(hosts, Host::B, "/receive/lines/0/packets", packets + 100);
    figures(hosts, Host::B, next, count(&received, next) + messages() / 4);
    let last = feed.end();
    assert_all_have_all(readers, last);
    let received = figures(hosts, Host::B, "/receive/messages_published", last);
    let sent = bridge(hosts, Host::A)["figures"].clone();
    assert_eq!(count(&received, "/receive/messages_published"), last, "{received}");
    assert_eq!(count(&received, "/receive/messages_missing"), 0, "{received}");
    let anew = [count(&sent, "/send/lines_anew"), count(&received, "/receive/lines_anew")];
    assert_eq!(anew, [1, 1], "{sent} {received}");
    assert!(count(&received, "/receive/recovered_by_servers") > 0, "{received}");
}

#[test]
fn an_interface_made_anew_loses_nothing() {
    let Some(hosts) = Hosts::with_daemons("an_interface_made_anew_loses_nothing", 1) else { return };
    a_wire_is_made_anew(&hosts, str::to_owned, 10);
}

#[test]
fn an_interface_of_ipv6_made_anew_loses_nothing() {
    let test = "an_interface_of_ipv6_made_anew_loses_nothing";
    let Some(hosts) = Hosts::with_daemons(test, 1).and_then(|hosts| hosts.and_v6(test, 1)) else { return };
    // Meanwhile both ends look for their interface, and do not find it.
    a_wire_is_made_anew(&hosts, v6, rate() / 4);
}

/// The wire of one line is cut at the sender, and the other line continues. The receiver must join the group again, because the network
/// might have forgotten it.
#[test]
fn the_group_of_a_silent_line_is_joined_again() {
    let test = "the_group_of_a_silent_line_is_joined_again";
    let Some(hosts) = Hosts::with_daemons(test, 2).and_then(|hosts| hosts.and_v6(test, 2)) else { return };
    let lines = |end: &str| {
        format!(
            "{}[[bridge]]\nchannel = \"t\"\nline = [{{ group = \"{GROUP}\", interface = \"v{end}0\" }}, \
             {{ group = \"[ff15::4d:1]:30001\", interface = \"v{end}1\" }}]\n",
            channel()
        )
    };
    let _a = daemon(&hosts, Host::A, &format!("{}[bridge.send]\n", lines("a")));
    let _b = daemon(&hosts, Host::B, &format!("{}[bridge.receive]\nfrom = 1\n", lines("b")));
    let feed = Feed::begin(&hosts);
    for line in 0..2 {
        figures(&hosts, Host::B, &format!("/receive/lines/{line}/packets"), 1);
    }
    hosts.cut(1);
    feed.end();
    // The other line has heartbeats.
    let received = figures(&hosts, Host::B, "/receive/lines_rejoined", 1);
    assert_eq!(count(&received, "/receive/lines_anew"), 0, "{received}");
}
