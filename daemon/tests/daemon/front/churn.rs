//! Thousands of programs that come and go leave nothing behind.

use serde_json::json;
use shmcast_testkit::daemon::{Daemon, FOR_ALL, channel};
use shmcast_testkit::raw::{Raw, publish, subscribe};
use shmcast_testkit::{number, wait_for};
use std::time::Instant;

#[test]
fn thousands_who_come_and_go_leave_no_descriptor_no_memory_and_a_short_log() {
    let times = number("SHMCAST_CHURN", 1000);
    let limits = "[limits]\nrequests_per_second = 1000000\nrequest_burst = 1000000\n";
    let daemon = Daemon::start(&format!("{limits}{}", channel("ticks", FOR_ALL)).replace("16MiB", "64KiB"));
    let cycle = |times: usize| {
        for _ in 0..times {
            let raw = Raw::greeted(&daemon.socket());
            raw.subscribe("ticks");
            drop(raw);
            // One client is refused at its first packet, another one later.
            let raw = Raw::connect(&daemon.socket());
            raw.send(publish("ticks", false).to_string().as_bytes(), &[]).unwrap();
            raw.assert_cut_off("bad-request");
            let raw = Raw::greeted(&daemon.socket());
            raw.assert_refused(&subscribe("nosuch", false), &[], "unknown-channel");
        }
        wait_for("the daemon to take leave of the last", || {
            daemon.client().channel("ticks").unwrap().readers.is_empty().then_some(())
        });
    };
    // The first round makes everything that is made once and kept.
    cycle(100);
    let settled = || {
        let mut last = usize::MAX;
        wait_for("descriptors to settle", || {
            let now = daemon.open_descriptors();
            (std::mem::replace(&mut last, now) == now).then_some(now)
        })
    };
    let (descriptors, memory, lines) = (settled(), daemon.anonymous_kib(), daemon.log().lines().count());
    let started = Instant::now();
    cycle(times);
    let seconds = started.elapsed().as_secs() + 1;
    // The daemon might not have closed the last connections yet.
    let descriptors_after = wait_for("the descriptors of those who have left to be closed", || {
        Some(daemon.open_descriptors()).filter(|&now| now <= descriptors)
    });
    let memory_after = daemon.anonymous_kib();
    let lines = daemon.log().lines().count() - lines;
    println!(
        "{times} cycles in {seconds} s: {descriptors} to {descriptors_after} descriptors, {memory} to {memory_after} KiB, {lines} lines"
    );
    assert!(memory_after < memory + 2048, "{memory} KiB before, {memory_after} after");
    assert!(lines as u64 <= 100 * seconds, "{lines} lines in {seconds} s");
    assert_eq!(Raw::greeted(&daemon.socket()).ask(&json!({"request": "list"}), &[])["reply"], "channel");
}
