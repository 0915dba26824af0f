//! Bridges over IPv6, in cases that other tests try over IPv4.

use super::daemons::everything_arrives_on;
use super::feed::{assert_all_have_all, count, messages, rate, readers};
use super::loss::{assert_the_second_line_was_cut, cut_the_second_line};
use super::native::sealed;
use super::roles::make_channel;
use shmcast_testkit::hosts::{Host, Hosts};

/// Replaces the IPv4 addresses in `words` by IPv6 addresses.
pub fn v6(words: &str) -> String {
    [
        ("239.77.0.1:", "[ff15::4d:1]:"),
        ("239.77.0.2:", "[ff15::4d:2]:"),
        ("239.77.0.9:", "[ff15::4d:9]:"),
        ("239.77.1.1:", "[ff15::4d:101]:"),
        ("10.77.0.1:", "[fd77:0::1]:"),
        ("10.77.0.2:", "[fd77:0::2]:"),
        ("10.77.0.0/16", "fd77::/16"),
    ]
    .iter()
    .fold(words.to_owned(), |words, (v4, v6)| words.replace(v4, v6))
}

#[test]
fn sealed_lines_of_ipv6_lose_nothing_at_5_percent_loss_each_way() {
    let test = "sealed_lines_of_ipv6_lose_nothing_at_5_percent_loss_each_way";
    let Some(hosts) = Hosts::with_daemons(test, 1).and_then(|hosts| hosts.and_v6(test, 1)) else { return };
    everything_arrives_on(test, &hosts, 50, &sealed(&hosts), v6);
}

/// Two lines: one accepts packets from one source only, and the other one is cut on the way.
#[test]
fn a_line_of_ipv6_from_one_source_goes_on_when_the_other_is_cut() {
    let test = "a_line_of_ipv6_from_one_source_goes_on_when_the_other_is_cut";
    let Some(hosts) = Hosts::new(test, 2).and_then(|hosts| hosts.and_v6(test, 2)) else { return };
    drop(make_channel(&hosts.channels(Host::A)));
    let send = "bridge send t --to [ff35::4d:1]:30001 --to [ff12::4d:2]:30001 --interface va0 --interface va1 --json \
                --until-end --set send.linger_ms=60000 --set dscp=46 --repair [fd77:0::1]:30002 --allow fd77::/16";
    let send = hosts.shmcast(Host::A, send);
    send.wait_for_log("sending session");
    let of = |channel: &str, source: &str| {
        format!(
            "bridge recv {channel} --from {source}@[ff35::4d:1]:30001 --interface vb0 --set receive.from=1 \
             --capacity 16MiB --json"
        )
    };
    let two = "--from [ff35::4d:1]:30001 --from [ff12::4d:2]:30001 --interface vb0 --interface fd77:1::2 --set receive.from=1";
    let recv = hosts.shmcast(Host::B, &format!("bridge recv t {two} --capacity 16MiB --json --until-end"));
    let (one, deaf) = (
        hosts.shmcast(Host::B, &(of("one", "fd77:0::1") + " --until-end")),
        hosts.shmcast(Host::B, &of("deaf", "fd77:0::7")),
    );
    recv.wait_for_log("receiving session");
    one.wait_for_log("receiving session");
    let readers = readers(&hosts, 2, u64::MAX);
    let last = cut_the_second_line(&hosts);
    assert_all_have_all(readers, last);
    let received = recv.end_well();
    let one = one.end_well();
    assert_eq!(send.stop().0, 0);
    assert_the_second_line_was_cut(&received);
    assert_eq!(count(&one, "/receive/messages_published"), last, "{one}");
    let (_, deaf) = deaf.stop();
    assert_eq!(deaf["receive"]["lines"], serde_json::json!([]), "{deaf}");
}

#[test]
fn unicast_leases_of_ipv6_carry_the_feed() {
    let test = "unicast_leases_of_ipv6_carry_the_feed";
    let Some(hosts) = Hosts::new(test, 1).and_then(|hosts| hosts.and_v6(test, 1)) else { return };
    let last = messages() / 3;
    drop(make_channel(&hosts.channels(Host::A)));
    let send = "bridge send t --repair [fd77:0::1]:30002 --allow fd77::/16 --json --until-end --set send.linger_ms=60000";
    let send = hosts.shmcast(Host::A, send);
    send.wait_for_log("sending session");
    let recv = "bridge recv t --set receive.unicast=true --server [fd77:0::1]:30002 --set receive.from=1 --capacity 16MiB --json --until-end";
    let recv = hosts.shmcast(Host::B, recv);
    recv.wait_for_log("receiving session");
    let readers = readers(&hosts, 2, last);
    hosts.role(Host::A, "publish", &format!("{last} {}", rate())).end_well();
    assert_all_have_all(readers, last);
    assert_eq!(count(&recv.end_well(), "/receive/messages_published"), last);
    let (code, sent) = send.stop();
    assert!(code == 0 && count(&sent, "/send/datagrams_sent") > 0, "{code} {sent}");
}
