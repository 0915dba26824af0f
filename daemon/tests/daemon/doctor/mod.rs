//! Every check of `doctor` against fake hosts. Each must pass on a good host, complain about a bad one, and claim
//! nothing if it cannot read a file or the file makes no sense.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use shmcast_daemon::doctor::{Finding, Host, Root, Status, examine, ids};

mod cpu_cases;
mod kernel_cases;
mod limits_cases;
mod memory_cases;
mod network_cases;
mod storage_cases;

/// One fake host, and the result that one check must give for it.
struct Case {
    id: &'static str,
    /// The mistake that another result would show.
    fear: &'static str,
    cpus: Option<&'static str>,
    status: Status,
    /// A part of the text that the check must give.
    says: &'static str,
    /// A part of the advice that the check must give, if the advice is tested.
    mend: &'static str,
    files: &'static [(&'static str, &'static str)],
}

const fn case(
    id: &'static str,
    fear: &'static str,
    status: Status,
    says: &'static str,
    files: &'static [(&'static str, &'static str)],
) -> Case {
    Case { id, fear, cpus: None, status, says, mend: "", files }
}

impl Case {
    /// The same case with CPUs that the user named.
    const fn on(self, cpus: &'static str) -> Self {
        Self { cpus: Some(cpus), ..self }
    }

    /// The same case with the advice that the user must be given.
    const fn mended_by(self, mend: &'static str) -> Self {
        Self { mend, ..self }
    }
}

/// Files of every fake host. A file of the case replaces the one of the same path.
const BASE: &[(&str, &str)] = &[("/sys/devices/system/cpu/online", "0-1"), ("/proc/cmdline", "quiet")];

fn cases() -> impl Iterator<Item = &'static Case> {
    [
        cpu_cases::CASES,
        kernel_cases::CASES,
        memory_cases::CASES,
        limits_cases::CASES,
        network_cases::CASES,
        storage_cases::CASES,
    ]
    .into_iter()
    .flatten()
}

fn write(root: &Path, path: &str, contents: impl AsRef<[u8]>) {
    let path = root.join(path.trim_start_matches('/'));
    let dir = path.parent().expect("a file in a directory");
    // A garbage file might be where a directory is wanted, or the other way round. The one that was made first stays.
    if fs::create_dir_all(dir).is_ok() && !path.is_dir() {
        fs::write(path, contents).expect("a fake file");
    }
}

fn look(root: &Path, cpus: Option<&str>, id: &str) -> Finding {
    let cpus = cpus.map(|list| list.parse().expect("a list of CPUs"));
    let host = Host::new(Root::at(root).expect("a fake host"), cpus).expect("CPUs it has");
    let mut report = examine(&host, &[id.to_owned()]);
    assert_eq!(report.checks.len(), 1, "{id} is not in the catalogue");
    report.checks.remove(0)
}

#[test]
fn a_verdict_that_is_wrong() {
    let mut wrong = Vec::new();
    for case in cases() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for (path, contents) in BASE.iter().chain(case.files) {
            write(dir.path(), path, contents);
        }
        let found = look(dir.path(), case.cpus, case.id);
        if found.status != case.status || !found.says.contains(case.says) {
            wrong.push(format!(
                "{} ({}): {:?} {:?}, not {:?} {:?}; read {:?}",
                case.id, case.fear, found.status, found.says, case.status, case.says, found.read
            ));
        }
        let mend_expected = matches!(found.status, Status::Fail | Status::Warn);
        if mend_expected != found.mend.is_some() && found.status != Status::Unknown {
            wrong.push(format!("{}: the mend is {:?}", case.id, found.mend));
        }
        let mend =
            found.mend.as_ref().map_or(String::new(), |mend| format!("{} {}", mend.command, mend.persist));
        if !mend.contains(case.mend) {
            wrong.push(format!("{} ({}): {mend:?}, not {:?}", case.id, case.fear, case.mend));
        }
        if found.read.is_empty() {
            wrong.push(format!("{}: a verdict without evidence", case.id));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_check_nobody_has_tried() {
    let mut tried: BTreeMap<&str, BTreeSet<bool>> = BTreeMap::new();
    for case in cases().filter(|case| case.status != Status::Unknown) {
        let good = case.status == Status::Pass;
        tried.entry(case.id).or_default().insert(good);
    }
    for id in ids() {
        let tried = tried.get(id).map_or(0, BTreeSet::len);
        assert_eq!(tried, 2, "{id} lacks a good or a bad host");
    }
    assert!(ids().len() >= 25);
    let distinct: BTreeSet<_> = ids().into_iter().collect();
    assert_eq!(distinct.len(), ids().len(), "two checks have one name");
}

#[test]
fn an_empty_host_that_passes() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    fs::create_dir(dir.path().join("proc")).expect("a directory");
    for id in ids() {
        let found = look(dir.path(), None, id);
        assert_eq!(found.status, Status::Unknown, "{id}: {}", found.says);
        assert!(found.says.contains("is missing"), "{id}: {}", found.says);
        assert!(!found.why.is_empty() && found.why.ends_with('.'), "{id}");
    }
}

/// Puts nonsense into each file that a check reads, until the check finds no file missing.
fn with_nonsense(id: &str, nonsense: &[u8]) -> Finding {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for (path, contents) in BASE {
        write(dir.path(), path, contents);
    }
    for _ in 0..40 {
        let found = look(dir.path(), None, id);
        let Some(missing) =
            found.says.strip_suffix(" is missing").filter(|_| found.status == Status::Unknown)
        else {
            return found;
        };
        let missing = missing.replace("[0-9]*", "77");
        let below = dir.path().join(missing.trim_start_matches('/'));
        if !below.is_file() {
            write(dir.path(), &missing, nonsense);
            continue;
        }
        // The file exists and is still reported missing, so the check wants a directory.
        fs::remove_file(below).expect("a fake file");
        if missing == "/sys/class/net" {
            write(dir.path(), "/sys/class/net/eth0/device/vendor", nonsense);
            write(dir.path(), "/sys/class/net/eth0/operstate", "up");
        } else {
            write(dir.path(), &format!("{missing}/state0/name"), nonsense);
        }
    }
    panic!("{id} never stops asking");
}

#[test]
fn nonsense_that_passes() {
    let nonsense: [&[u8]; 5] = [
        b"zzz [?] (!)",
        b"",
        b"\xff\xfe\0",
        b"-99999999999999999999999",
        b"Udp: a\nUdp: b\n1 2 3 4 5 6 7 8 9: - :::",
    ];
    // For these checks, any text is valid. It is a list of processes without the harmful one.
    let any_text = ["irqbalance"];
    for id in ids() {
        for nonsense in nonsense {
            let found = with_nonsense(id, nonsense);
            let claims_good = found.status == Status::Pass && !any_text.contains(&id);
            assert!(!claims_good, "{id} on {nonsense:?}: {}", found.says);
        }
    }
}

#[test]
fn a_cpu_the_host_does_not_have() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    write(dir.path(), "/sys/devices/system/cpu/online", "0-1");
    for wrong in ["2", "0-7", ""] {
        let root = Root::at(dir.path()).expect("a fake host");
        let cpus = wrong.parse().expect("a list of CPUs");
        assert!(Host::new(root, Some(cpus)).is_err(), "{wrong:?}");
    }
}

#[test]
fn this_host_makes_a_check_panic() {
    let host = Host::new(Root::live(), None).expect("no CPU named");
    let report = examine(&host, &[]);
    assert_eq!(report.checks.len(), ids().len());
    let count = report.count;
    assert_eq!(count.fail + count.warn + count.unknown + count.pass, ids().len());
}
