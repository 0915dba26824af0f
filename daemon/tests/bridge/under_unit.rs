//! Bridges of daemons that the shipped unit restricts: its system calls, socket families, rights and files.
//!
//! `SHMCAST_UNDER_UNIT=1` runs all tests of this suite under the unit. The tests here always run so. `.ci/run unit` runs them.

use super::daemons::{SERVER, bridge, channel, daemon, everything_arrives, sends};
use super::feed::{assert_all_have_all, count, readers};
use shmcast_testkit::hosts::{Host, Hosts};
use shmcast_testkit::unit;
use shmcast_testkit::wait_for;
use std::fs;

const MESSAGES: u64 = 2_000;

#[test]
#[ignore = "a step of CI: unit"]
fn a_multicast_bridge_by_interface_works_under_the_shipped_unit() {
    let test = "a_multicast_bridge_by_interface_works_under_the_shipped_unit";
    let Some(hosts) = unit::shipped_for(test).and_then(|unit| Hosts::under(test, 1, unit)) else { return };
    everything_arrives(test, &hosts, 10);
}

/// The receiver has no line, so unicast leases carry the feed.
#[test]
#[ignore = "a step of CI: unit"]
fn a_bridge_over_unicast_leases_works_under_the_shipped_unit() {
    let test = "a_bridge_over_unicast_leases_works_under_the_shipped_unit";
    let Some(hosts) = unit::shipped_for(test).and_then(|unit| Hosts::under(test, 1, unit)) else { return };
    let _a = daemon(&hosts, Host::A, &sends());
    let receives = format!(
        "{}[[bridge]]\nchannel = \"t\"\n[bridge.receive]\nservers = [\"{SERVER}\"]\nunicast = true\nfrom = 1\n",
        channel()
    );
    let _b = daemon(&hosts, Host::B, &receives);
    let readers = readers(&hosts, 3, MESSAGES);
    hosts.role(Host::A, "publish", &format!("{MESSAGES} 20000")).end_well();
    assert_all_have_all(readers, MESSAGES);
    let held = wait_for("the leases", || {
        let held = count(&bridge(&hosts, Host::A), "/figures/repair/leases/held");
        (held > 0).then_some(held)
    });
    eprintln!("{test}: 3 readers have {MESSAGES} messages by {held} leases");
}

#[test]
#[ignore = "a step of CI: unit"]
fn a_source_and_an_interface_by_address_work_under_the_shipped_unit() {
    let test = "a_source_and_an_interface_by_address_work_under_the_shipped_unit";
    let Some(hosts) = unit::shipped_for(test).and_then(|unit| Hosts::under(test, 1, unit)) else { return };
    let line = "239.77.0.1:30001\", interface = \"10.77.0";
    let _a = daemon(
        &hosts,
        Host::A,
        &sends().replace("239.77.0.1:30001\", interface = \"va0", &format!("{line}.1")),
    );
    let receives = format!(
        "{}[[bridge]]\nchannel = \"t\"\nline = [{{ group = \"{line}.2\", source = \"10.77.0.1\" }}]\n[bridge.receive]\n\
         servers = [\"{SERVER}\"]\nfrom = 1\n",
        channel()
    );
    let _b = daemon(&hosts, Host::B, &receives);
    let readers = readers(&hosts, 1, MESSAGES);
    hosts.role(Host::A, "publish", &format!("{MESSAGES} 20000")).end_well();
    assert_all_have_all(readers, MESSAGES);
    let at_b = bridge(&hosts, Host::B);
    assert!(count(&at_b, "/figures/receive/lines/0/datagrams") > 0, "nothing came by multicast: {at_b}");
}

/// Returns the state of a bridge, and the reason for this state, under the shipped unit with one line replaced.
fn under_a_changed_unit(test: &str, line: &str, by: &str) -> Option<(String, String)> {
    let shipped = fs::read_to_string(unit::shipped_for(test)?).unwrap();
    let changed = shipped.replace(line, by);
    assert_ne!(changed, shipped, "{test}: the unit has no line {line:?} any more");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("shmcastd.service");
    fs::write(&path, changed).unwrap();
    let hosts = Hosts::under(test, 1, path)?;
    let _a = hosts.daemon(Host::A, &sends());
    let settled = wait_for("the bridge to start or to fail", || {
        let bridge = bridge(&hosts, Host::A);
        (bridge["session"].is_string() || bridge["state"] == "failed").then_some(bridge)
    });
    let text = |name: &str| settled[name].as_str().unwrap_or_default().to_owned();
    Some((text("state"), text("why")))
}

/// This shows that the tests above can fail: the same bridge does not start if the unit forbids what it needs.
#[test]
#[ignore = "a step of CI: unit"]
fn a_unit_without_the_networks_family_stops_a_bridge() {
    let test = "a_unit_without_the_networks_family_stops_a_bridge";
    let lines = ("RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6", "RestrictAddressFamilies=AF_UNIX");
    let Some((state, why)) = under_a_changed_unit(test, lines.0, lines.1) else { return };
    assert!(state == "failed" && why.contains("Address family not supported"), "{state}: {why}");
}

#[test]
#[ignore = "a step of CI: unit"]
fn a_unit_without_a_system_call_stops_a_bridge_that_needs_it() {
    let test = "a_unit_without_a_system_call_stops_a_bridge_that_needs_it";
    let lines = ("SystemCallFilter=~@privileged", "SystemCallFilter=~@privileged setsockopt");
    let Some((state, why)) = under_a_changed_unit(test, lines.0, lines.1) else { return };
    assert!(state == "failed" && why.contains("Operation not permitted"), "{state}: {why}");
}
