//! `ulimit -f`: a write beyond the limit on file sizes is an error that is told, where it was a death without a word.

use shmcast_testkit::Process;
use shmcast_testkit::command::{Host, text};
use shmcast_testkit::place::program;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};

/// Runs a program under a limit on file sizes, in blocks of 1 KiB.
fn limited(host: &Host, blocks: u32, program_and_arguments: &str) -> Output {
    let script = format!("ulimit -c 0; ulimit -f {blocks}; exec {program_and_arguments}");
    let mut command = Command::new("bash");
    command.args(["-c", &script]).env("SHMCAST_DIR", host.dir.path().join("channels"));
    let output =
        Process::start(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped())).output();
    assert_eq!(output.status.signal(), None);
    assert!(output.status.code().unwrap() < 128, "{}: {}", output.status, text(&output.stderr));
    output
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
    // A reader needs no file: it has no page then.
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
