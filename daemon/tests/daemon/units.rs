//! The shipped units as systemd's own tools check them. No test needs a running systemd.

use shmcast::sys::handoff::MAX_KEPT;
use shmcast_testkit::place::program;
use shmcast_testkit::skip;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../systemd").join(name)
}

/// Runs a tool of systemd. If it is not installed, prints that and returns `None`.
fn tool(test: &str, program: &str, arguments: &[&str]) -> Option<Output> {
    let output = Command::new(program).args(arguments).output();
    output.inspect_err(|e| skip(test, format!("{program}: {e}"))).ok()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn units_hold_no_line_that_systemd_does_not_know() {
    let dir = tempfile::tempdir().unwrap();
    let service = fs::read_to_string(shipped("shmcastd.service")).unwrap();
    assert!(service.contains("ExecStart=/usr/bin/shmcastd "));
    assert!(service.contains("ExecReload=/usr/bin/shmcast check "), "a file with mistakes fails the reload");
    // The path is replaced, so that neither program need be installed.
    let daemon = program("shmcastd");
    let service = service.replace("/usr/bin/", &format!("{}/", daemon.parent().unwrap().display()));
    let units = ["shmcastd.service", "shmcastd.socket"].map(|name| dir.path().join(name));
    fs::write(&units[0], service).unwrap();
    fs::copy(shipped("shmcastd.socket"), &units[1]).unwrap();
    let units = units.each_ref().map(|path| path.to_str().unwrap());
    let test = "units_hold_no_line_that_systemd_does_not_know";
    let Some(output) = tool(test, "systemd-analyze", &["verify", units[0], units[1]]) else { return };
    assert!(output.status.success() && said(&output).is_empty(), "{}", said(&output));
}

#[test]
fn the_service_is_exposed_no_more_than_1_5() {
    let path = shipped("shmcastd.service");
    let arguments = ["security", "--offline=true", "--threshold=15", "--no-pager", path.to_str().unwrap()];
    let Some(output) = tool("the_service_is_exposed_no_more_than_1_5", "systemd-analyze", &arguments) else {
        return;
    };
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("Overall exposure level"), "{}", said(&output));
}

#[test]
fn the_daemon_takes_as_many_descriptors_as_the_unit_lets_systemd_keep() {
    let service = fs::read_to_string(shipped("shmcastd.service")).unwrap();
    let kept = service.lines().find_map(|line| line.strip_prefix("FileDescriptorStoreMax=")).unwrap();
    assert_eq!(kept.parse(), Ok(MAX_KEPT));
    let readme = fs::read_to_string(shipped("README.md")).unwrap();
    assert!(readme.contains(&format!("`FileDescriptorStoreMax={MAX_KEPT}`")));
}

#[test]
fn the_user_can_be_made() {
    let root = tempfile::tempdir().unwrap();
    let root_option = format!("--root={}", root.path().display());
    let file = fs::canonicalize(shipped("shmcast.sysusers")).unwrap();
    fs::create_dir(root.path().join("etc")).unwrap();
    let arguments = [root_option.as_str(), file.to_str().unwrap()];
    let Some(output) = tool("the_user_can_be_made", "systemd-sysusers", &arguments) else { return };
    if !output.status.success() && !nix::unistd::geteuid().is_root() {
        return skip("the_user_can_be_made", format!("only root may: {}", said(&output)));
    }
    assert!(output.status.success(), "{}", said(&output));
    let users = fs::read_to_string(root.path().join("etc/passwd")).unwrap();
    assert!(users.contains("shmcast:x:") && users.contains("/usr/sbin/nologin"), "{users}");
}
