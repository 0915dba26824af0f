//! `shmcast tune`: what it changes, what it puts back, and what it leaves alone.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap that fails is a finding")]

use serde_json::Value;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

const SHMCAST: &str = env!("CARGO_BIN_EXE_shmcast");
const THROTTLING: &str = "proc/sys/kernel/sched_rt_runtime_us";
const BUFFER: &str = "proc/sys/net/core/rmem_max";
const STATE: &str = "var/lib/shmcast-tune/before.json";
const SYSCTL: &str = "etc/sysctl.d/90-shmcast-tune.conf";

/// The files of a host that throttles real-time programs and has small buffers.
struct Host(TempDir);

impl Host {
    fn new() -> Self {
        let host = Self(tempfile::tempdir().unwrap());
        for (path, value) in [
            ("proc/sys/kernel/osrelease", "6.1.0"),
            ("proc/sys/kernel/sched_rt_period_us", "1000000"),
            (THROTTLING, "950000"),
            (BUFFER, "212992"),
        ] {
            fs::create_dir_all(host.path(path).parent().unwrap()).unwrap();
            host.write(path, value);
        }
        host
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn write(&self, path: &str, value: &str) {
        fs::write(self.path(path), format!("{value}\n")).unwrap();
    }

    fn values(&self) -> [String; 2] {
        [THROTTLING, BUFFER].map(|path| fs::read_to_string(self.path(path)).unwrap().trim().to_owned())
    }

    fn tune(&self, options: &str) -> Output {
        let root = self.0.path().to_str().unwrap();
        let mut command = Command::new(SHMCAST);
        command.args(["tune", "--root", root]).args(options.split_whitespace()).output().unwrap()
    }

    /// Exit code, and each check's outcome and problem.
    fn outcomes(&self, options: &str) -> (i32, Vec<(String, String, String)>) {
        let output = self.tune(&format!("{options} --json"));
        let report: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
        let text = |item: &Value, name: &str| item[name].as_str().unwrap_or_default().to_owned();
        let items = report["items"].as_array().unwrap().iter();
        let items = items.map(|item| (text(item, "check"), text(item, "outcome"), text(item, "problem")));
        (output.status.code().unwrap(), items.collect())
    }
}

fn words(found: &[(String, String, String)]) -> Vec<&str> {
    found.iter().map(|(_, outcome, _)| outcome.as_str()).collect()
}

const BEFORE: [&str; 2] = ["950000", "212992"];
const AFTER: [&str; 2] = ["-1", "67108864"];

#[test]
fn looking_changes_something() {
    for options in ["", "--dry-run"] {
        let host = Host::new();
        let output = host.tune(options);
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0), "{said}");
        for expected in
            ["rt-throttling: would change", "from 950000 to -1", "why", "measured", "price", "tune --apply"]
        {
            assert!(said.contains(expected), "{expected} is not in\n{said}");
        }
        assert_eq!(host.values(), BEFORE);
        assert!(!host.path("var").exists() && !host.path("etc").exists(), "files were made");
    }
}

#[test]
fn what_was_there_does_not_come_back() {
    let host = Host::new();
    assert_eq!(words(&host.outcomes("--apply").1), ["changed", "changed"]);
    assert_eq!(host.values(), AFTER);
    let state = fs::metadata(host.path(STATE)).unwrap();
    assert_eq!(state.mode() & 0o777, 0o600);
    // Once more: what was there is not forgotten over what we wrote.
    assert_eq!(words(&host.outcomes("--apply").1), ["as-wanted", "as-wanted"]);
    let (code, found) = host.outcomes("--undo");
    assert_eq!((code, words(&found)), (0, vec!["restored", "restored"]));
    assert_eq!(host.values(), BEFORE);
    assert!(!host.path(STATE).exists());
    let nothing = host.tune("--undo");
    assert!(nothing.status.success() && String::from_utf8_lossy(&nothing.stdout).contains("nothing to undo"));
}

#[test]
fn what_somebody_changed_since_is_overwritten() {
    let host = Host::new();
    host.tune("--apply");
    host.write(BUFFER, "134217728");
    let (code, found) = host.outcomes("--undo");
    assert_eq!((code, words(&found)), (0, vec!["restored", "left"]));
    assert!(found[1].2.contains("to 134217728"), "{found:?}");
    assert_eq!(host.values(), ["950000", "134217728"]);
}

#[test]
fn what_is_kept_over_reboots() {
    let host = Host::new();
    assert_eq!(host.tune("--persist").status.code(), Some(2), "without --apply");
    let said = host.tune("--apply --persist");
    assert!(said.status.success(), "{said:?}");
    let kept = fs::read_to_string(host.path(SYSCTL)).unwrap();
    let lines: Vec<&str> = kept.lines().skip(1).collect();
    assert_eq!(lines, ["kernel.sched_rt_runtime_us = -1", "net.core.rmem_max = 67108864"]);
    assert!(!host.path("etc/tmpfiles.d").exists(), "no setting needs it");
    // As after a reboot: the values are those of the file, and undoing knows those of before.
    assert!(host.tune("--undo").status.success());
    assert!(!host.path(SYSCTL).exists());
    assert_eq!(host.values(), BEFORE);
    // Kept later, when nothing is left to change.
    host.tune("--apply");
    host.tune("--apply --persist");
    assert!(fs::read_to_string(host.path(SYSCTL)).unwrap().contains("rmem_max = 67108864"));
}

#[test]
fn a_file_of_the_administrators_is_replaced_or_removed() {
    let host = Host::new();
    fs::create_dir_all(host.path("etc/sysctl.d")).unwrap();
    host.write(SYSCTL, "vm.swappiness = 1");
    for options in ["--apply --persist", "--undo"] {
        let refused = host.tune(options);
        assert_eq!(refused.status.code(), Some(1), "{options}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains("move it away"), "{refused:?}");
    }
    assert_eq!(host.values(), BEFORE, "half done");
    assert_eq!(fs::read_to_string(host.path(SYSCTL)).unwrap(), "vm.swappiness = 1\n");
}

#[test]
fn a_value_that_cannot_be_written_holds_up_the_others() {
    let host = Host::new();
    let throttling = host.path(THROTTLING);
    fs::set_permissions(&throttling, fs::Permissions::from_mode(0o444)).unwrap();
    let command = format!("{SHMCAST} tune --root {} --apply", host.0.path().display());
    let mut shell = Command::new("bash");
    if nix::unistd::geteuid().is_root() {
        // Modes do not keep root from writing; a mount that is read-only does.
        shell = Command::new("unshare");
        shell.args(["--mount", "bash"]);
    }
    let at = throttling.display();
    let protect = "if [ $UID = 0 ]; then mount --bind $0 $0 && mount -o remount,ro,bind $0; fi";
    shell.args(["-c", &format!("{protect} || exit 77; {command}"), &at.to_string()]);
    let output = shell.output().unwrap();
    if output.status.code() == Some(77) {
        return println!("SKIPPED a_value_that_cannot_be_written_holds_up_the_others: {output:?}");
    }
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("rt-throttling: FAILED: cannot write -1 to /proc/sys/kernel"), "{said}");
    assert!(said.contains("1 of 2 values could not be written"), "{said}");
    assert_eq!(host.values(), ["950000", "67108864"]);
    assert_eq!(words(&host.outcomes("--undo").1), ["restored"], "only what was changed");
    assert_eq!(host.values(), BEFORE);
}

#[test]
fn a_list_that_others_may_write_to_is_trusted() {
    let host = Host::new();
    host.tune("--apply");
    let dir = host.path("var/lib/shmcast-tune");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
    let refused = host.tune("--undo");
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("may be written by others"), "{refused:?}");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
    let list = fs::read_to_string(host.path(STATE)).unwrap();
    for wrong in [list.replace("/proc/sys/net", "/proc/sys/../../etc"), "no list".to_owned()] {
        fs::write(host.path(STATE), wrong).unwrap();
        let refused = host.tune("--undo");
        assert_eq!(refused.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&refused.stderr).contains("is no list of values"), "{refused:?}");
    }
    assert_eq!(host.values(), AFTER, "somebody else's list was obeyed");
}

#[test]
fn an_ordinary_user_is_told_to_be_root() {
    let name = "an_ordinary_user_is_told_to_be_root";
    // Nobody need not be able to reach the program where it was built.
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = dir.path().join("shmcast");
    fs::copy(SHMCAST, &program).unwrap();
    let as_nobody = |options: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program).arg("tune");
        command.args(options).output()
    };
    match as_nobody(&[]) {
        // It looks at this host, whatever that is like.
        Ok(looked) if looked.status.success() => {}
        other => return println!("SKIPPED {name}: {other:?}"),
    }
    for option in ["--apply", "--undo"] {
        let refused = as_nobody(&[option]).unwrap();
        assert_eq!(refused.status.code(), Some(1));
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(said.contains(&format!("sudo shmcast tune {option}")), "{said}");
    }
}

/// On this very host, for some milliseconds, with a list of its own.
#[test]
fn the_kernel_takes_what_is_written_and_what_is_put_back() {
    let name = "the_kernel_takes_what_is_written_and_what_is_put_back";
    let script = "set -e
        mkdir -p /var/lib && mount -t tmpfs none /var/lib || exit 77
        trap '$0 tune --undo >/dev/null' EXIT
        $0 tune --apply --json
        grep . /proc/sys/kernel/sched_rt_runtime_us /proc/sys/net/core/rmem_max >&2";
    let values = || [THROTTLING, BUFFER].map(|path| fs::read_to_string(Path::new("/").join(path)).ok());
    let before = values();
    let output = Command::new("unshare").args(["--mount", "bash", "-c", script, SHMCAST]).output();
    let Some(output) = output.ok().filter(|output| output.status.success()) else {
        return println!("SKIPPED {name}: only root may, where settings can be written");
    };
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let now = String::from_utf8(output.stderr).unwrap();
    for item in report["items"].as_array().unwrap() {
        println!("{}: {} {}", item["check"], item["outcome"], item["problem"]);
        if item["outcome"] == "changed" {
            let line = format!("{}:{}", item["file"].as_str().unwrap(), item["after"].as_str().unwrap());
            assert!(now.contains(&line), "{line} is not in\n{now}");
        }
    }
    assert_eq!(values(), before);
}
