//! Limits of the host. If a limit hinders a verb, the verb reports an error and leaves nothing half done.
//!
//! An earlier mistake: `ulimit -f` killed a verb without a message, and few descriptors left half-made channels and hid others.

use shmcast_testkit::Process;
use shmcast_testkit::command::{Host, text};
use shmcast_testkit::place::program;
use shmcast_testkit::process::as_user;
use shmcast_testkit::wait_until;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Runs a program under a limit on file sizes, in blocks of 1 KiB.
pub(crate) fn limited(host: &Host, blocks: u32, program_and_arguments: &str) -> Output {
    under(host, &format!("ulimit -f {blocks}"), program_and_arguments)
}

/// Runs a program under a limit, which must neither kill it nor let it panic.
pub(crate) fn under(host: &Host, limit: &str, program_and_arguments: &str) -> Output {
    let script = format!("ulimit -c 0; {limit}; exec {program_and_arguments}");
    let mut command = Command::new("bash");
    command.args(["-c", &script]).env("SHMCAST_DIR", host.dir.path().join("channels"));
    let output =
        Process::start(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped())).output();
    assert_eq!(output.status.signal(), None);
    assert!(output.status.code().unwrap() < 100, "{limit}: {}: {}", output.status, text(&output.stderr));
    output
}

/// Limits on descriptors, from too few for anything to enough for everything. The dynamic linker needs one descriptor.
const DESCRIPTORS: std::ops::Range<u32> = 4..18;

/// Runs a verb under a limit on descriptors. Returns `None` if the verb lacked descriptors and reported this.
fn with_descriptors(host: &Host, limit: u32, arguments: &str) -> Option<Output> {
    let verb = format!("{} {arguments}", program("shmcast").display());
    let output = under(host, &format!("ulimit -n {limit}"), &verb);
    let stderr = text(&output.stderr);
    match output.status.code() {
        Some(0) => return Some(output),
        Some(1) => assert!(stderr.contains("Too many open files"), "{limit}: {arguments}: {stderr}"),
        other => panic!("{limit}: {arguments}: {other:?} {stderr}"),
    }
    None
}

#[test]
fn a_verb_that_lacks_descriptors_says_so_and_leaves_nothing_half_made() {
    let host = Host::new();
    let input = host.file("input", b"1\n2\n3\n");
    let channels = host.dir.path().join("channels");
    std::fs::create_dir(&channels).unwrap();
    let (mut succeeded, mut recorded) = (0, 0);
    for limit in DESCRIPTORS {
        let published = with_descriptors(
            &host,
            limit,
            &format!("pub t --capacity 64KiB --set max_message=1000 --input {}", input.display()),
        );
        match published {
            None => {
                assert_eq!(std::fs::read_dir(&channels).unwrap().count(), 0, "{limit}: a half-made channel")
            }
            Some(_) => succeeded += 1,
        }
        let publish = format!("pub t --set max_message=1000 --input {}", input.display());
        assert!(host.run(&publish).status.success());
        if let Some(output) = with_descriptors(&host, limit, "sub t --from oldest --count 3") {
            assert_eq!(text(&output.stdout), "1\n2\n3\n");
        }
        let to = host.dir.path().join(format!("journal-{limit}"));
        let record = format!("record t --to {} --until-end", to.display());
        if with_descriptors(&host, limit, &record).is_some() {
            assert!(host.run(&format!("journal verify {}", to.display())).status.success());
            recorded += 1;
        }
        host.run("rm t");
        assert_eq!(std::fs::read_dir(&channels).unwrap().count(), 0);
    }
    assert!(succeeded > 0 && recorded > 0);
}

#[test]
fn a_verb_that_lacks_descriptors_does_not_say_that_nobody_is_there() {
    let host = Host::new();
    let mut publisher = host.start_with_input("pub t --capacity 64KiB");
    let reader = host.subscribe_to("t --wait-channel", &host.dir.path().join("output"));
    let is_read = || {
        let output = host.run("stat t --json");
        let stat: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        stat["readers"].as_array().is_some_and(|readers| readers.len() == 1)
    };
    wait_until("the reader", is_read);
    let mut seen = 0;
    for limit in DESCRIPTORS {
        if let Some(listed) = with_descriptors(&host, limit, "ls --json") {
            let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
            assert_eq!(listed[0]["channel"], "t", "{limit}");
            assert_eq!(listed[0]["readers"].as_array().unwrap().len(), 1, "{limit}");
            seen += 1;
        }
        let remove =
            under(&host, &format!("ulimit -n {limit}"), &format!("{} rm t", program("shmcast").display()));
        assert_eq!(remove.status.code(), Some(1), "{limit}: removed under its reader");
    }
    assert!(seen > 0);
    // The publisher has ended, and the reader lives.
    drop(publisher.child().stdin.take());
    assert!(publisher.wait().success());
    drop(reader);
}

#[test]
fn what_is_written_beyond_the_limit_is_an_error_and_leaves_nothing() {
    let host = Host::new();
    let shmcast = program("shmcast").display().to_string();
    let input = host.file("input", b"1\n2\n3\n");
    let publish = format!("{shmcast} pub t --capacity 4MiB --input {}", input.display());
    let output = limited(&host, 1_000, &publish);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("File too large"), "{}", text(&output.stderr));
    let channels = host.dir.path().join("channels");
    assert!(!channels.join("t").exists());
    assert!(host.run(&format!("pub t --capacity 4MiB --input {}", input.display())).status.success());
    // A reader needs no file, because it has no page under this limit.
    let output = limited(&host, 0, &format!("{shmcast} sub t --from oldest"));
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(0), "1\n2\n3\n"));
    assert!(text(&output.stderr).contains("no reader page"), "{}", text(&output.stderr));
    assert_eq!(std::fs::read_dir(channels.join("t/readers")).unwrap().count(), 0);
    let to = host.dir.path().join("journal");
    let output = limited(&host, 100, &format!("{shmcast} record t --to {} --until-end", to.display()));
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("File too large"), "{}", text(&output.stderr));
}

#[test]
fn a_daemon_beyond_the_limit_says_so() {
    let host = Host::new();
    let config = host.file("c.toml", b"[[channel]]\nname = \"big\"\ncapacity = \"64MiB\"\nmlock = false\n");
    let (shmcastd, socket) = (program("shmcastd").display().to_string(), host.dir.path().join("s"));
    let output = limited(
        &host,
        1_000,
        &format!("{shmcastd} --config {} --socket {}", config.display(), socket.display()),
    );
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("File too large"), "{}", text(&output.stderr));
}

/// Runs `shmcast` as a user without other processes. `limit` is the user's limit on processes.
fn with_processes(test: &str, host: &Host, limit: u32, program_and_arguments: &str) -> Option<Output> {
    const UID: u32 = 54_321;
    let mut command = as_user(test, UID, Path::new("bash"))?;
    std::os::unix::fs::chown(host.dir.path(), Some(UID), None).unwrap();
    let script = format!("ulimit -c 0; ulimit -u {limit}; exec {program_and_arguments}");
    command.args(["-c", &script]).env("SHMCAST_DIR", host.dir.path().join("channels"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Some(Process::start(&mut command).output())
}

#[test]
fn threads_that_cannot_be_started_are_told() {
    const NAME: &str = "threads_that_cannot_be_started_are_told";
    let host = Host::new();
    let shmcast = program("shmcast").display().to_string();
    let input = host.file("input", b"1\n2\n3\n");
    // A thread prepares the memory of a large ring. If no thread can be started, publishing still works.
    let publish =
        format!("{shmcast} pub t --capacity 64MiB --set max_message=1000 --input {}", input.display());
    let Some(published) = with_processes(NAME, &host, 1, &publish) else { return };
    assert!(published.status.success(), "{}", text(&published.stderr));
    let run = |verb: &str| with_processes(NAME, &host, 1, verb).unwrap();
    let read = run(&format!("{shmcast} sub t --from oldest"));
    assert_eq!((read.status.code(), text(&read.stdout).as_str()), (Some(0), "1\n2\n3\n"));
    let to = host.dir.path().join("journal");
    let config = host.file("c.toml", b"[[channel]]\nname = \"t\"\ncapacity = \"1MiB\"\nmlock = false\n");
    let socket = host.dir.path().join("s");
    for verb in [
        format!("{shmcast} record t --to {} --until-end", to.display()),
        format!("{shmcast} bridge send t --to 127.0.0.1:9 --until-end"),
        format!("{shmcast} bridge recv r --from 239.1.2.3:30001 --interface lo"),
        format!("{}d --config {} --socket {}", shmcast, config.display(), socket.display()),
    ] {
        let output = run(&verb);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{verb}: {stderr}");
        assert!(
            stderr.contains("Resource temporarily unavailable") && stderr.contains("thread"),
            "{verb}: {stderr}"
        );
    }
}
