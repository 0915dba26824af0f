//! Interfaces that are deleted and made anew under a bridge, and lines that fall silent.

use super::hosts::{Host, Hosts, wait_for};
use super::loss::{RECV, SEND, assert_all_have_all, count, rate, readers};
use super::roles::make_channel;
use super::v6::v6;
use std::time::{Duration, Instant};

/// A feed of four seconds, whose wire is taken away and put back after a pause.
fn a_wire_is_made_anew(test: &str, hosts: &Hosts, of: fn(&str) -> String, pause: Duration) {
    let last = 4 * rate();
    drop(make_channel(&hosts.channels(Host::A)));
    let send = hosts.shmcast(Host::A, &of(SEND));
    send.wait_for_log("sending session");
    let recv = hosts.shmcast(Host::B, &of(RECV));
    recv.wait_for_log("receiving session");
    let readers = readers(hosts, 2, last);
    let publish = hosts.role(Host::A, "publish", &format!("{last} {}", rate()));
    let dir = hosts.channels(Host::B);
    let next = || shmcast::Directory::at(&dir).channel("t").ok()?.status().next_sequence;
    wait_for("a quarter of the messages", || next().filter(|next| *next > last / 4));
    hosts.remake(0, pause, of("10.77.0.1:") != "10.77.0.1:");
    let (back, before) = (Instant::now(), next().unwrap());
    wait_for("the first messages after that", || next().filter(|next| *next > before));
    eprintln!("{test}: messages {:?} after the interfaces were back", back.elapsed());
    publish.end_well();
    assert_all_have_all(readers, last);
    let (sent, received) = (send.end_well(), recv.end_well());
    assert_eq!(count(&received, "/receive/messages_published"), last);
    assert_eq!(
        [count(&sent, "/send/lines_anew"), count(&received, "/receive/lines_anew")],
        [1, 1],
        "{sent} {received}"
    );
    assert!(count(&received, "/receive/recovered_by_servers") > 0, "{received}");
    assert!(
        count(&received, "/receive/lines/0/packets") > count(&received, "/receive/requests"),
        "{received}"
    );
}

#[test]
fn an_interface_made_anew_loses_nothing() {
    let test = "an_interface_made_anew_loses_nothing";
    let Some(hosts) = Hosts::new(test, 1) else { return };
    a_wire_is_made_anew(test, &hosts, str::to_owned, Duration::ZERO);
}

#[test]
fn an_interface_of_ipv6_made_anew_loses_nothing() {
    let test = "an_interface_of_ipv6_made_anew_loses_nothing";
    let Some(hosts) = Hosts::new(test, 1).and_then(|hosts| hosts.and_v6(test, 1)) else { return };
    a_wire_is_made_anew(test, &hosts, v6, Duration::from_millis(300));
}

/// The wire of one line is cut at the sender, and the other line goes on: the network may have forgotten the group.
#[test]
fn the_group_of_a_silent_line_is_joined_again() {
    let test = "the_group_of_a_silent_line_is_joined_again";
    let Some(hosts) = Hosts::new(test, 2).and_then(|hosts| hosts.and_v6(test, 2)) else { return };
    drop(make_channel(&hosts.channels(Host::A)));
    let send =
        "bridge send t --to 239.77.0.1:30001 --to [ff15::4d:1]:30001 --interface va0 --interface va1 --json";
    let send = hosts.shmcast(Host::A, send);
    send.wait_for_log("sending session");
    let recv = "bridge recv t --from 239.77.0.1:30001 --from [ff15::4d:1]:30001 --interface vb0 --interface vb1 \
                --first 1 --capacity 64MiB --json";
    let recv = hosts.shmcast(Host::B, recv);
    recv.wait_for_log("receiving session");
    hosts.role(Host::A, "publish", &format!("{} {}", rate(), rate())).end_well();
    hosts.cut(1);
    // The other line has heartbeats.
    std::thread::sleep(Duration::from_millis(4_500));
    let (_, received) = recv.stop();
    assert_eq!(count(&received, "/receive/lines_rejoined"), 1, "{received}");
    assert_eq!(count(&received, "/receive/lines_anew"), 0, "{received}");
    send.stop();
}
