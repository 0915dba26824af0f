//! The `doctor` verb as a user runs it: exit codes, JSON, and errors about wrong arguments.

use shmcast_testkit::place::program;
use std::fs;
use std::process::{Command, Output};

fn doctor(args: &[&str]) -> Output {
    Command::new(program("shmcast")).arg("doctor").args(args).output().expect("the program runs")
}

fn host(swaps: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    fs::create_dir(dir.path().join("proc")).expect("a directory");
    fs::write(dir.path().join("proc/swaps"), swaps).expect("a fake file");
    dir
}

#[test]
fn a_failed_check_that_exits_with_zero() {
    let good = host("Filename Type Size Used Priority\n");
    let waiting = host("Filename Type Size Used Priority\n/dev/sda2 partition 9 0 -2\n");
    let bad = host("Filename Type Size Used Priority\n/dev/sda2 partition 9 9 -2\n");
    for (host, code) in [(&good, 0), (&waiting, 0), (&bad, 1)] {
        let root = host.path().to_str().expect("a path in UTF-8");
        let output = doctor(&["--root", root]);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        let lines = String::from_utf8(output.stdout).expect("UTF-8");
        assert!(lines.lines().all(|line| line.split('\t').count() == 5), "{lines}");
    }
}

#[test]
fn json_that_lacks_something() {
    let host = host("Filename Type Size Used Priority\n/dev/sda2 partition 9 9 -2\n");
    let root = host.path().to_str().expect("a path in UTF-8");
    let output = doctor(&["--root", root, "--json", "swap", "ksm"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["count"]["fail"], 1);
    assert_eq!(report["count"]["unknown"], 1);
    let swap = &report["checks"][0];
    assert_eq!(swap["id"], "swap");
    assert_eq!(swap["status"], "fail");
    assert_eq!(swap["read"][0]["path"], "/proc/swaps");
    assert_eq!(swap["mend"]["command"], "swapoff -a");
    assert!(swap["why"].as_str().is_some_and(|why| why.len() > 20));
    let ksm = &report["checks"][1];
    assert_eq!(ksm["status"], "unknown");
    assert_eq!(ksm["read"][0]["path"], "/sys/kernel/mm/ksm/run");
    assert!(ksm["mend"].is_null());
}

#[test]
fn a_wrong_argument_that_looks_like_a_finding() {
    let wrong: [(&[&str], i32, &str); 4] = [
        (&["swop"], 2, "swap"),
        (&["--root", "/no/such/directory"], 1, "/no/such/directory"),
        (&["--cpu", "4000"], 1, "CPU 4000"),
        (&["--cpu", "1-x"], 2, "0,2-5"),
    ];
    for (args, code, hint) in wrong {
        let output = doctor(args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
        assert!(output.stdout.is_empty(), "{args:?}");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains(hint), "{args:?}: {stderr}");
    }
}
