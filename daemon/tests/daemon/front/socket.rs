//! The path at which a daemon listens. A daemon removes no file there that is not a daemon's leftover.

use super::NOBODY;
use shmcast::Client;
use shmcast::sys::handoff;
use shmcast_testkit::daemon::{Daemon, FOR_ALL, channel};
use shmcast_testkit::place::program;
use shmcast_testkit::{PATIENCE, scratch, skip, wait_for};
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

fn config() -> String {
    channel("ticks", FOR_ALL).replace("16MiB", "64KiB")
}

fn daemon_at(dir: &Path, socket: &Path) -> Child {
    // An earlier daemon may be reading it.
    if !dir.join("shmcast.toml").exists() {
        fs::write(dir.join("shmcast.toml"), config()).unwrap();
    }
    let mut command = Command::new(program("shmcastd"));
    command.arg("--config").arg(dir.join("shmcast.toml")).arg("--socket").arg(socket);
    command.env_remove("NOTIFY_SOCKET").stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// The output of a daemon that should end by itself. If it does not end in time, it is killed, and the result is `None`.
fn ended(mut child: Child) -> Option<Output> {
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if started.elapsed() > PATIENCE {
            child.kill().unwrap();
            child.wait().unwrap();
            return None;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    Some(child.wait_with_output().unwrap())
}

fn assert_refused(what: &str, dir: &Path, socket: &Path) {
    let before = fs::symlink_metadata(socket).unwrap();
    let output = ended(daemon_at(dir, socket)).unwrap_or_else(|| panic!("{what}: the daemon started"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{what}: {said}");
    assert!(said.contains(&socket.display().to_string()), "{what}: which path: {said}");
    assert!(said.contains("--socket"), "{what}: what to do: {said}");
    let after = fs::symlink_metadata(socket).unwrap_or_else(|e| panic!("{what}: it is gone: {e}"));
    assert_eq!((before.ino(), before.mode()), (after.ino(), after.mode()), "{what}: it was replaced");
    let left: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().contains("leftover")), "{what}: {left:?}");
}

#[test]
fn what_is_at_the_sockets_path_and_is_no_leftover_stays() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("file"), "somebody's work").unwrap();
    assert_refused("an ordinary file", dir.path(), &at("file"));
    assert_eq!(fs::read_to_string(at("file")).unwrap(), "somebody's work");

    fs::create_dir(at("directory")).unwrap();
    assert_refused("a directory", dir.path(), &at("directory"));

    nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_refused("a pipe", dir.path(), &at("fifo"));

    let stream = UnixListener::bind(at("stream")).unwrap();
    assert_refused("a live stream socket", dir.path(), &at("stream"));
    drop(stream);

    let datagram = UnixDatagram::bind(at("datagram")).unwrap();
    assert_refused("a live datagram socket", dir.path(), &at("datagram"));
    UnixDatagram::unbound().unwrap().send_to(b"still there", at("datagram")).unwrap();
    drop(datagram);

    drop(handoff::listen(&at("dead")).unwrap());
    symlink(at("dead"), at("link")).unwrap();
    assert_refused("a link to a leftover", dir.path(), &at("link"));
    symlink(at("nowhere"), at("dangling")).unwrap();
    assert_refused("a link to nothing", dir.path(), &at("dangling"));
    assert!(!at("nowhere").exists() && at("dead").exists());
    for name in ["file", "directory", "fifo", "link", "dangling"] {
        assert!(!at(&format!("{name}.lock")).exists(), "a refused daemon left the lock of {name}");
    }
}

/// An earlier mistake: a refused daemon left the lock of a path that no socket can have.
#[test]
fn a_path_that_is_too_long_for_a_socket_is_refused_and_nothing_is_made() {
    let dir = scratch();
    let path = dir.path().join("below").join("x".repeat(130));
    let output = ended(daemon_at(dir.path(), &path)).expect("the daemon started");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("the kernel allows 107: give a shorter --socket"), "{said}");
    assert!(!dir.path().join("below").exists(), "{said}");
}

/// An earlier mistake: such a daemon ended with the words of the system alone.
#[test]
fn a_service_manager_that_does_not_answer_is_named() {
    for channels in [String::new(), config()] {
        let dir = scratch();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("shmcast.toml"), channels).unwrap();
        let mut command = Command::new(program("shmcastd"));
        command.arg("--config").arg(at("shmcast.toml")).arg("--socket").arg(at("s"));
        command.env("NOTIFY_SOCKET", at("nobody")).stdin(Stdio::null()).stderr(Stdio::piped());
        let output = ended(command.spawn().unwrap()).expect("the daemon started");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{said}");
        assert!(said.contains(&format!("NOTIFY_SOCKET={}", at("nobody").display())), "{said}");
        assert!(said.contains("unset it if no service manager runs this"), "{said}");
        // An earlier mistake: the marker stayed, so the next daemon waited for programs of this one.
        assert!(!at("s.running").exists(), "{said}");
    }
}

/// An earlier mistake: a daemon without a free descriptor said that another file was in the way.
#[test]
fn a_daemon_without_descriptors_says_what_it_lacks() {
    let dir = scratch();
    fs::write(dir.path().join("shmcast.toml"), config()).unwrap();
    let mut lacked = 0;
    for limit in 6..14 {
        let script = format!(
            "ulimit -n {limit}; exec {} --config {}/shmcast.toml --socket {}/s",
            program("shmcastd").display(),
            dir.path().display(),
            dir.path().display()
        );
        let mut command = Command::new("bash");
        command.args(["-c", &script]).env_remove("NOTIFY_SOCKET").stdin(Stdio::null());
        let child = command.stderr(Stdio::piped()).spawn().unwrap();
        let said = ended(child).map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
        let said = said.unwrap_or_else(|| panic!("a daemon with {limit} descriptors started"));
        assert!(!said.contains("move it away"), "{limit}: {said}");
        lacked += usize::from(said.contains("raise the limit on open files"));
    }
    assert!(lacked > 0);
}

#[test]
fn a_leftover_of_another_user_stays() {
    if !nix::unistd::geteuid().is_root() {
        return skip("a_leftover_of_another_user_stays", "only root can give files away");
    }
    let dir = scratch();
    let path = dir.path().join("control.sock");
    drop(handoff::listen(&path).unwrap());
    std::os::unix::fs::chown(&path, Some(NOBODY), None).unwrap();
    assert_refused("a leftover of another user", dir.path(), &path);
}

#[test]
fn a_leftover_is_replaced() {
    let mut daemon = Daemon::start(&config());
    let before = fs::metadata(daemon.socket()).unwrap().ino();
    daemon.crash();
    assert_ne!(before, fs::metadata(daemon.socket()).unwrap().ino());
    let left: Vec<_> = fs::read_dir(daemon.dir()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().contains("leftover")), "{left:?}");
}

/// The names of a daemon's other files are the socket's name with another extension.
#[test]
fn a_daemon_whose_socket_differs_only_in_the_extension_is_refused() {
    let daemon = Daemon::start(&config());
    for extension in ["other", ""] {
        let path = daemon.socket().with_extension(extension);
        let output = ended(daemon_at(daemon.dir(), &path)).expect("the second daemon started");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("--socket"), "{extension}: {said}");
    }
    assert_eq!(daemon.client().channels().unwrap().len(), 1);
    let beside = daemon.socket().with_file_name("beside.sock");
    let mut other = daemon_at(daemon.dir(), &beside);
    wait_for("the answer of a daemon with another name", || Client::at(&beside).ok());
    other.kill().unwrap();
    other.wait().unwrap();
}

#[test]
fn of_daemons_that_start_at_once_one_wins_and_the_others_say_so() {
    for round in 0..8 {
        let dir = scratch();
        let path = dir.path().join("control.sock");
        if round % 2 == 1 {
            drop(handoff::listen(&path).unwrap());
        }
        let mut running: Vec<Child> = (0..4).map(|_| daemon_at(dir.path(), &path)).collect();
        let mut said = Vec::new();
        wait_for("all but one to end", || {
            let mut index = 0;
            while index < running.len() {
                if running[index].try_wait().unwrap().is_some() {
                    let output = running.remove(index).wait_with_output().unwrap();
                    assert!(!output.status.success());
                    said.push(String::from_utf8_lossy(&output.stderr).into_owned());
                } else {
                    index += 1;
                }
            }
            assert!(!running.is_empty(), "nobody won: {said:?}");
            (running.len() == 1).then_some(())
        });
        let answered = wait_for("the winner's answer", || Client::at(&path).ok());
        assert_eq!(answered.channels().unwrap().len(), 1);
        assert!(running[0].try_wait().unwrap().is_none());
        for said in said {
            assert!(said.contains("a daemon listens at") && said.contains("already"), "{said}");
        }
        running[0].kill().unwrap();
        running[0].wait().unwrap();
    }
}
