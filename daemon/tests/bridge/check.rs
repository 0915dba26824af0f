//! `shmcast bridge check`: its findings about bridges that can work, and about bridges that cannot.

use super::daemons::{GROUP, SERVER, daemon, receives, sends, with_fields};
use serde_json::Value;
use shmcast_testkit::hosts::{Host, Hosts};
use shmcast_testkit::wait_for;
use std::fs;

/// A time in which heartbeats arrive, because they come every second.
const HEARTBEATS: &str = "2500ms";
/// The listening time of checks that expect no packets.
const AT_ONCE: &str = "50ms";

/// Checks a configuration on a host, and listens to its lines for `listen`. Returns the exit code and the findings.
fn check(hosts: &Hosts, host: Host, config: &str, listen: &str) -> (i32, Vec<(String, String, String)>) {
    let file = hosts.dir.path().join("checked.toml");
    fs::write(&file, config).unwrap();
    let words = format!("bridge check {} --json --listen {listen}", file.display());
    let (code, found) = hosts.shmcast(host, &words).end();
    let Value::Array(found) = found else { panic!("{code}: {found}") };
    let text = |finding: &Value, field: &str| finding[field].as_str().unwrap().to_owned();
    let found = found.iter().map(|it| (text(it, "about"), text(it, "status"), text(it, "says"))).collect();
    (code, found)
}

#[test]
fn a_bridge_that_cannot_work_is_told_apart() {
    let Some(hosts) = Hosts::with_daemons("a_bridge_that_cannot_work_is_told_apart", 1) else { return };
    let sender = daemon(&hosts, Host::A, &sends());
    let receiver = receives(GROUP, SERVER);
    let (_, found) = wait_for("a good check", || {
        Some(check(&hosts, Host::B, &receiver, HEARTBEATS)).filter(|(code, _)| *code == 0)
    });
    assert!(found.len() == 2 && found.iter().all(|(_, status, _)| status == "ok"), "{found:?}");
    assert!(found[0].2.contains("packets in") && found[1].2.contains("answers after"), "{found:?}");
    // The bridge itself already uses the port of the repair server.
    let (code, found) = check(&hosts, Host::A, &sends(), AT_ONCE);
    assert_eq!(code, 3, "{found:?}");
    assert!(found[0].2.contains("leaves by va0, 1428 of its 1500 bytes"), "{found:?}");
    assert!(found[1].1 == "doubtful" && found[1].2.contains("the port is taken"), "{found:?}");
    let (code, found) = check(&hosts, Host::A, &with_fields(&sends(), "payload_bytes = 9000\n"), AT_ONCE);
    assert!(code == 3 && found[0].2.contains("give payload_bytes = 1472"), "{found:?}");
    sender.kill();
    let (code, found) = check(&hosts, Host::B, &receives(GROUP, SERVER), AT_ONCE);
    assert_eq!(code, 1, "{found:?}");
    assert!(found[0].1 == "doubtful" && found[0].2.contains("nothing came in"), "{found:?}");
    assert!(found[1].1 == "fails" && found[1].2.contains("nobody listens there"), "{found:?}");
    let lost = with_fields(
        &receives(GROUP, SERVER).replace("vb0", "vb7"),
        "profile = \"native\"\nkeys = \"/nowhere\"\n",
    );
    let (code, found) = check(&hosts, Host::B, &lost, AT_ONCE);
    assert_eq!(code, 1, "{found:?}");
    assert!(found[0].0 == "keys" && found[0].1 == "fails" && found[0].2.contains("/nowhere"), "{found:?}");
    // The clock of this host might be synchronized or not.
    assert!(found[1].0 == "clock" && found[1].1 != "fails", "{found:?}");
    assert!(found[2].1 == "fails" && found[2].2.contains("vb7"), "{found:?}");
}
