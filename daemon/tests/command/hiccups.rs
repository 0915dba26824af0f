//! The `hiccups` verb as a user runs it. No assertion depends on the machine's performance.

use nix::sys::signal::Signal;
use shmcast_daemon::hiccups::allowed_cpus;
use shmcast_testkit::place::program;
use shmcast_testkit::{Process, wait_until};
use std::process::{Command, Output, Stdio};

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(program("shmcast"));
    command.arg("hiccups").args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn hiccups(args: &[&str]) -> Output {
    Process::start(&mut command(args)).output()
}

fn first_cpu() -> String {
    let cpus = allowed_cpus().expect("affinity");
    cpus.iter().next().expect("a CPU to run on").to_string()
}

fn json(output: &Output) -> serde_json::Value {
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn numbers_that_contradict_each_other() {
    let cpu = first_cpu();
    let output = hiccups(&["--cpu", &cpu, "--duration", "200ms", "--json"]);
    let result = json(&output);
    assert_eq!(result["ended_by"], "duration");
    assert!(output.stderr.is_empty(), "{output:?}");
    let cpus = result["cpus"].as_array().expect("a list");
    assert_eq!(cpus.len(), 1);
    assert_eq!(cpus[0]["cpu"].to_string(), cpu);
    let number = |name: &str| cpus[0][name].as_u64().unwrap_or_else(|| panic!("no {name}"));
    assert!(number("p50_ns") <= number("p99_ns"));
    assert!(number("p99_ns") <= number("p99_9_ns"));
    assert!(number("p99_9_ns") <= number("max_ns"));
    assert!(number("max_ns") <= number("stalled_ns"));
    assert!(number("stalled_ns") <= number("watched_ns"));
    assert!(number("stalls") < number("clock_readings"));
    assert!(number("watched_ns") >= 200_000_000);
}

#[test]
fn a_run_cut_short_that_loses_its_result() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for (signal, name) in [(Signal::SIGINT, "int.hlog"), (Signal::SIGTERM, "term.hlog")] {
        let log = dir.path().join(name);
        let path = log.to_str().expect("a path in UTF-8");
        let cpu = first_cpu();
        let running =
            Process::start(&mut command(&["--cpu", &cpu, "--duration", "1h", "--json", "--log", path]));
        // The log's header is written after the signal handler is set.
        wait_until("the header of the log", || std::fs::metadata(&log).is_ok_and(|log| log.len() > 0));
        running.signal(signal);
        let result = json(&running.output());
        assert_eq!(result["ended_by"], "signal");
        let lines = std::fs::read_to_string(&log).expect("the log");
        assert!(lines.contains(&format!("Tag=cpu{cpu},0.000,")), "{lines}");
        assert!(lines.ends_with('\n'));
    }
}

#[test]
fn a_wrong_argument_that_runs_anyway() {
    let wrong: [(&[&str], i32, &str); 6] = [
        (&["--cpu", "8000"], 1, "taskset"),
        (&["--cpu", ""], 1, "--cpu"),
        (&["--duration", "10"], 2, "500ms"),
        (&["--duration", "0s"], 1, "--duration"),
        (&["--interval", "1ms"], 1, "10ms"),
        (&["--log", "/no/such/directory/x.hlog"], 1, "cannot create the log /no/such"),
    ];
    for (args, code, hint) in wrong {
        let output = hiccups(args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
        assert!(output.stdout.is_empty(), "{args:?}");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains(hint), "{args:?}: {stderr}");
    }
}

#[test]
fn a_full_disk_unnoticed() {
    let cpu = first_cpu();
    let output = hiccups(&["--cpu", &cpu, "--duration", "100ms", "--log", "/dev/full"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("/dev/full") && stderr.contains("disk full"), "{stderr}");
}
