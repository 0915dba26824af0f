//! Daemons end under traffic, in each way that a daemon can end. No reader must lose or misread a message because of this.
//!
//! `SHMCAST_RESTARTS` sets how often a daemon ends under systemd, `SHMCAST_KILLS` how often without it.
//! `SHMCAST_TEST_RATE` is the publisher's rate. `SHMCAST_DEB` names a package to install and to upgrade.

mod manager;
mod package;
mod same_rights;
mod traffic;

use manager::Manager;
use nix::sys::signal::Signal;
use shmcast_testkit::daemon::Daemon;
use shmcast_testkit::place::program;
use shmcast_testkit::turn::turn;
use shmcast_testkit::{number, skip};
use traffic::{Traffic, config};

const READERS: usize = 8;

#[test]
#[ignore = "a role that the tests here start processes for"]
fn play() {
    traffic::play();
}

fn ended_many_times_without_a_service_manager(mode: &str, by: Signal, readers: usize, times: u64) {
    let _turn = turn();
    let mut daemon = Daemon::start(&config(mode));
    let mut traffic = Traffic::start(&daemon.socket(), readers);
    for _ in 0..times {
        daemon.end(by);
        daemon.restart();
        traffic.wait_until_all_are_back();
        traffic.assert_that_nobody_remapped();
        traffic.wait_for_more(2_000);
    }
    traffic.end(&format!("{by} {times} times without a service manager, {mode}"));
}

#[test]
fn a_killed_daemon_costs_nobody_a_message() {
    ended_many_times_without_a_service_manager(
        "takeover",
        Signal::SIGKILL,
        READERS,
        number("SHMCAST_KILLS", 10),
    );
}

#[test]
fn a_stopped_daemon_costs_nobody_a_message() {
    ended_many_times_without_a_service_manager("takeover", Signal::SIGTERM, 2, 3);
}

#[test]
fn a_killed_daemon_costs_nobody_a_message_of_a_strict_channel() {
    ended_many_times_without_a_service_manager("strict", Signal::SIGKILL, 2, 3);
}

/// Boots with `drop_in` and starts traffic. Then repeatedly ends the daemon by `end`.
fn ended_many_times_under_systemd(test: &str, drop_in: &str, what: &str, end: impl Fn(&Manager)) {
    let _turn = turn();
    let manager = match Manager::boot(&config("takeover"), drop_in) {
        Ok(manager) => manager,
        Err(reason) => return skip(test, reason),
    };
    manager.must("start", "shmcastd.service");
    let mut traffic = Traffic::start(&manager.socket(), READERS);
    let times = number("SHMCAST_RESTARTS", 3);
    for _ in 0..times {
        let old = manager.property("MainPID");
        end(&manager);
        manager.wait_for_another(&old);
        traffic.wait_until_all_are_back();
        traffic.assert_that_nobody_remapped();
        traffic.wait_for_more(2_000);
    }
    // The segments came back from the manager's store. They did not come from the programs that had mapped them.
    let log = manager.log();
    let (fresh, kept) = (log.matches("kept=0").count() as u64, log.matches("kept=1").count() as u64);
    assert!(fresh == 1 && kept >= times, "{fresh} starts without, {kept} with the segment kept: {log}");
    traffic.end(&format!("{what} {times} times under systemd"));
}

#[test]
fn a_restart_costs_nobody_a_message() {
    let test = "a_restart_costs_nobody_a_message";
    ended_many_times_under_systemd(test, "", "restart", |manager| {
        manager.must("restart", "shmcastd.service")
    });
}

#[test]
fn a_crash_costs_nobody_a_message() {
    let test = "a_crash_costs_nobody_a_message";
    ended_many_times_under_systemd(test, "", "SIGKILL", |manager| manager.signal("SIGKILL"));
}

#[test]
fn a_daemon_that_hangs_is_replaced_and_costs_nobody_a_message() {
    let test = "a_daemon_that_hangs_is_replaced_and_costs_nobody_a_message";
    ended_many_times_under_systemd(test, "WatchdogSec=2s", "watchdog", |manager| {
        // A stopped daemon can only be ended by the watchdog.
        manager.signal("SIGSTOP");
    });
}

/// To list the interfaces, a bridge uses a system interface that the unit's filters must allow.
#[test]
fn a_bridge_that_names_an_interface_runs_under_the_shipped_unit() {
    let test = "a_bridge_that_names_an_interface_runs_under_the_shipped_unit";
    let _turn = turn();
    let bridge = "[[bridge]]\nchannel = \"t\"\nline = [{ group = \"239.7.7.1:30001\", interface = \"lo\" }]\n[bridge.send]\n";
    let manager = match Manager::boot(
        &format!("{}{bridge}", shmcast_testkit::daemon::channel("t", "max_message = 1378")),
        "",
    ) {
        Ok(manager) => manager,
        Err(reason) => return skip(test, reason),
    };
    manager.must("start", "shmcastd.service");
    let settled = shmcast_testkit::wait_for("the bridge to start or to fail", || {
        let mut command = std::process::Command::new(program("shmcast"));
        command.args(["bridge", "status", "--json"]).env("SHMCAST_SOCKET", manager.socket());
        let status: serde_json::Value = serde_json::from_slice(&command.output().unwrap().stdout).ok()?;
        let bridge = status["bridges"][0].clone();
        (bridge["session"].is_string() || bridge["state"] == "failed").then_some(bridge)
    });
    assert!(settled["session"].is_string(), "{settled}\n{}", manager.log());
}
