//! `shmcast tune`: which settings it changes, which it restores, and which it leaves alone.

use serde_json::Value;
use shmcast_testkit::place::program;
use shmcast_testkit::skip;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

const BUFFER: &str = "proc/sys/net/core/rmem_max";
const PAGES: &str = "sys/kernel/mm/transparent_hugepage/shmem_enabled";
const STATE: &str = "var/lib/shmcast-tune/before.json";
const SYSCTL: &str = "etc/sysctl.d/90-shmcast-tune.conf";
const TMPFILES: &str = "etc/tmpfiles.d/shmcast-tune.conf";

/// The files of a host that has small buffers and denies huge pages.
struct Host(TempDir);

impl Host {
    fn new() -> Self {
        let host = Self(tempfile::tempdir().unwrap());
        for (path, value) in [
            ("proc/sys/kernel/osrelease", "6.1.0"),
            (BUFFER, "212992"),
            (PAGES, "always within_size advise never [deny] force"),
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

    /// The values in the files. If a file shows a choice as the kernel does, its value is the chosen word.
    fn values(&self) -> [String; 2] {
        [BUFFER, PAGES].map(|path| {
            let text = fs::read_to_string(self.path(path)).unwrap();
            text.split(['[', ']']).nth(1).unwrap_or(&text).trim().to_owned()
        })
    }

    fn tune(&self, options: &str) -> Output {
        let root = self.0.path().to_str().unwrap();
        let mut command = Command::new(program("shmcast"));
        command.args(["tune", "--root", root]).args(options.split_whitespace()).output().unwrap()
    }

    /// Returns the exit code, and for each check its id, its outcome and its problem.
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

const BEFORE: [&str; 2] = ["212992", "deny"];
const AFTER: [&str; 2] = ["67108864", "never"];

#[test]
fn looking_changes_something() {
    let host = Host::new();
    let output = host.tune("");
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    for expected in
        ["rmem-max: would change", "from 212992 to 67108864", "why", "measured", "price", "tune --apply"]
    {
        assert!(said.contains(expected), "{expected} is not in\n{said}");
    }
    assert_eq!(host.values(), BEFORE);
    assert!(!host.path("var").exists() && !host.path("etc").exists(), "files were made");
}

#[test]
fn what_was_there_does_not_come_back() {
    let host = Host::new();
    assert_eq!(words(&host.outcomes("--apply").1), ["changed", "changed"]);
    assert_eq!(host.values(), AFTER);
    let state = fs::metadata(host.path(STATE)).unwrap();
    assert_eq!(state.mode() & 0o777, 0o600);
    // The kernel shows a choice in this form.
    host.write(PAGES, "always within_size advise [never] deny force");
    // `tune` runs once more. The original values must not be replaced by those that `tune` wrote.
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
    assert_eq!((code, words(&found)), (0, vec!["left", "restored"]));
    assert!(found[0].2.contains("to 134217728"), "{found:?}");
    assert_eq!(host.values(), ["134217728", "deny"]);
}

#[test]
fn what_is_kept_over_reboots() {
    let host = Host::new();
    assert_eq!(host.tune("--persist").status.code(), Some(2), "without --apply");
    let said = host.tune("--apply --persist");
    assert!(said.status.success(), "{said:?}");
    for (path, line) in [
        (SYSCTL, "net.core.rmem_max = 67108864"),
        (TMPFILES, "w /sys/kernel/mm/transparent_hugepage/shmem_enabled - - - - never"),
    ] {
        let kept = fs::read_to_string(host.path(path)).unwrap();
        assert_eq!(kept.lines().skip(1).collect::<Vec<_>>(), [line]);
        assert_eq!(fs::metadata(host.path(path)).unwrap().mode() & 0o777, 0o644);
    }
    // This is the state after a reboot: the values are those of the file, and undoing knows the original
    // ones.
    assert!(host.tune("--undo").status.success());
    assert!(!host.path(SYSCTL).exists() && !host.path(TMPFILES).exists());
    assert_eq!(host.values(), BEFORE);
    // The option to keep the values comes only now, when no value is left to change.
    host.tune("--apply");
    host.tune("--apply --persist");
    assert!(fs::read_to_string(host.path(SYSCTL)).unwrap().contains("rmem_max = 67108864"));
}

/// The file for hosts that are set up by hand has exactly the settings that `tune` writes.
#[test]
fn the_file_that_is_copied_by_hand_asks_for_more_than_what_was_measured() {
    let host = Host::new();
    host.tune("--apply --persist");
    let settings = |text: String| -> Vec<String> {
        text.lines()
            .filter(|line| line.contains('='))
            .filter(|line| !line.starts_with('#'))
            .map(str::to_owned)
            .collect()
    };
    let by_hand = concat!(env!("CARGO_MANIFEST_DIR"), "/../systemd/shmcast.sysctl");
    let by_hand = settings(fs::read_to_string(by_hand).unwrap());
    assert_eq!(by_hand, settings(fs::read_to_string(host.path(SYSCTL)).unwrap()));
    assert!(!by_hand.is_empty());
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
    let buffer = host.path(BUFFER);
    fs::set_permissions(&buffer, fs::Permissions::from_mode(0o444)).unwrap();
    let command = format!("{} tune --root {} --apply", program("shmcast").display(), host.0.path().display());
    let mut shell = Command::new("bash");
    if nix::unistd::geteuid().is_root() {
        // File modes do not keep root from writing, but a read-only mount does.
        shell = Command::new("unshare");
        shell.args(["--mount", "bash"]);
    }
    let at = buffer.display();
    let protect = "if [ $UID = 0 ]; then mount --bind $0 $0 && mount -o remount,ro,bind $0; fi";
    shell.args(["-c", &format!("{protect} || exit 77; {command}"), &at.to_string()]);
    let output = shell.output().unwrap();
    if output.status.code() == Some(77) {
        return skip("a_value_that_cannot_be_written_holds_up_the_others", format!("{output:?}"));
    }
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("rmem-max: FAILED: cannot write 67108864 to /proc/sys/net"), "{said}");
    assert!(said.contains("1 of 2 values could not be written"), "{said}");
    assert_eq!(host.values(), ["212992", "never"]);
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
    // The user nobody might not be able to reach the program where it was built.
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = dir.path().join("shmcast");
    fs::copy(program("shmcast"), &copy).unwrap();
    let as_nobody = |options: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&copy).arg("tune");
        command.args(options).output()
    };
    match as_nobody(&[]) {
        // The command examines this host, whatever the host's state is.
        Ok(looked) if looked.status.success() => {}
        other => return skip(name, format!("{other:?}")),
    }
    for option in ["--apply", "--undo"] {
        let refused = as_nobody(&[option]).unwrap();
        assert_eq!(refused.status.code(), Some(1));
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(said.contains(&format!("sudo shmcast tune {option}")), "{said}");
    }
}

/// This test runs on the real host, for some milliseconds, with a list of its own.
#[test]
fn the_kernel_takes_what_is_written_and_what_is_put_back() {
    let name = "the_kernel_takes_what_is_written_and_what_is_put_back";
    let script = "set -e
        pages=/sys/kernel/mm/transparent_hugepage/shmem_enabled
        before=$(grep -o '\\[.*\\]' $pages | tr -d '[]')
        mkdir -p /var/lib && mount -t tmpfs none /var/lib
        trap 'echo $before >$pages' EXIT
        echo deny >$pages
        $0 tune --apply --json
        cat $pages >&2
        $0 tune --undo >&2
        cat $pages >&2";
    let pages = || fs::read_to_string(Path::new("/").join(PAGES)).ok();
    let before = pages();
    let output =
        Command::new("unshare").args(["--mount", "bash", "-c", script]).arg(program("shmcast")).output();
    let output = match output {
        Ok(output) if output.status.success() => output,
        other => return skip(name, format!("only root may, where settings can be written: {other:?}")),
    };
    assert_eq!(pages(), before, "this test leaves the host otherwise than it was");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let items = report["items"].as_array().unwrap();
    let item = items.iter().find(|item| item["check"] == "thp-shmem").unwrap();
    assert_eq!((&item["outcome"], &item["before"]), (&"changed".into(), &"deny".into()), "{item}");
    let said = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].contains("[never]") && lines.last().unwrap().contains("[deny]"), "{said}");
}
