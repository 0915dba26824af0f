//! Programs in C at a daemon's channels. They publish, receive and park, they are refused, and they survive the daemon's death.

use shmcast_testkit::daemon::{Daemon, FOR_ALL, channel, publishing};
use shmcast_testkit::{scratch, skip, wait_until};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Compiles `c.c`. Returns the program, or `None` without a compiler.
fn program(dir: &Path) -> Option<PathBuf> {
    if Command::new("cc").arg("--version").stdout(Stdio::null()).status().is_err() {
        return None;
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    // Cargo has put the library, on which this package depends for its tests, beside this program.
    let this = std::env::current_exe().unwrap();
    let built = this.parent().unwrap();
    let program = dir.join("c");
    let mut command = Command::new("cc");
    command.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-g", "-pthread"]);
    command
        .arg("-I")
        .arg(here.join("../client/c/include"))
        .arg(here.join("tests/daemon/c.c"))
        .arg("-o")
        .arg(&program);
    command.arg(built.join("libshmcast_c.so")).arg(format!("-Wl,-rpath,{}", built.display()));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(program)
}

fn config() -> String {
    let limits = "[limits]\nrequests_per_second = 1000000\nrequest_burst = 1000000\n";
    let shut = "publishers = [\"uid:12345\"]\nsubscribers = [\"uid:12345\"]";
    limits.to_owned()
        + &channel("ticks", FOR_ALL)
        + &channel("strict", &format!("mode = \"strict\"\n{FOR_ALL}"))
        + &channel("shut", shut)
}

#[test]
fn programs_in_c_use_a_daemons_channels() {
    let build = scratch();
    let Some(program) = program(build.path()) else {
        return skip("programs_in_c_use_a_daemons_channels", "cc is not installed");
    };
    let mut daemon = Daemon::start(&config());
    for part in ["traffic", "refusals", "anew"] {
        play(&program, part, &daemon);
    }
    let start = |part: &str| {
        let mut command = Command::new(&program);
        command.arg(part).arg(daemon.socket()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    };
    let list = || daemon.client().channels().unwrap();
    let mut child = start("cut");
    let mut word = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut word).unwrap();
    assert_eq!(word, "open\n");
    let taken = daemon.shmcast("takeover strict").output().unwrap();
    assert!(taken.status.success(), "{taken:?}");
    assert!(child.wait().unwrap().success());
    // A publisher and a reader that are attached continue without a daemon, and with the next one.
    let mut child = start("across");
    wait_until("a reader", || list().iter().any(|channel| !channel.readers.is_empty()));
    daemon.kill();
    std::thread::sleep(std::time::Duration::from_millis(50));
    daemon.restart();
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

/// An earlier mistake: an event of a select did not end the last batch, so ages were told by the clock of the ring before.
#[test]
fn an_age_is_told_by_the_clock_of_the_message_that_a_select_returned() {
    let build = scratch();
    let Some(program) = program(build.path()) else {
        return skip(
            "an_age_is_told_by_the_clock_of_the_message_that_a_select_returned",
            "cc is not installed",
        );
    };
    let with = |clock: &str| channel("strict", &format!("mode = \"strict\"\n{clock}\n{FOR_ALL}"));
    let daemon = Daemon::start(&with(""));
    let mut command = Command::new(&program);
    command.arg("clocks").arg(daemon.socket()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut word = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut word).unwrap();
    assert_eq!(word, "received\n");
    daemon.reload(&with("clock = \"monotonic\""));
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

/// The daemon recognizes programs by locks and sockets. An earlier mistake: a child kept its dead parent's.
#[test]
fn a_program_that_dies_is_not_kept_alive_by_its_children() {
    let build = scratch();
    let Some(program) = program(build.path()) else {
        return skip("a_program_that_dies_is_not_kept_alive_by_its_children", "cc is not installed");
    };
    let daemon = Daemon::start(&(channel("ticks", FOR_ALL) + &channel("rates", FOR_ALL)));
    let mut command = Command::new(&program);
    command.arg("orphan").arg(daemon.socket()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut parent = command.spawn().unwrap();
    let mut lines = BufReader::new(parent.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "forked");
    let ends = || {
        let list = daemon.client().channels().unwrap();
        let count = |name: &str| {
            let channel = list.iter().find(|channel| channel.channel == name).unwrap();
            usize::from(channel.publisher.is_some()) + channel.readers.len()
        };
        (count("ticks"), count("rates"))
    };
    assert_eq!(ends(), (1, 1));
    let child = parent.stdin.take();
    parent.kill().unwrap();
    parent.wait().unwrap();
    wait_until("the end of both", || ends() == (0, 0));
    publishing(&daemon.client(), "ticks").open().unwrap().publish(b"next").unwrap();
    drop(child);
    assert_eq!(lines.next().unwrap().unwrap(), "well");
}

fn play(program: &Path, part: &str, daemon: &Daemon) {
    let output = Command::new(program).arg(part).arg(daemon.socket()).output().unwrap();
    assert!(output.status.success(), "{part}: {}", String::from_utf8_lossy(&output.stderr));
}
