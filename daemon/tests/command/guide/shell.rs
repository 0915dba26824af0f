//! A shell that runs the commands of a chapter, one after the other, and records the output of each.
//!
//! The shell belongs to an ordinary user on a host that seems to be separate: network, processes, `/dev/shm` and `/run` are namespaces of
//! its own. So fixed ports and default directories are free, and all remaining processes end with the shell.

use super::book::{Chapter, Step};
use shmcast_testkit::place::program;
use shmcast_testkit::{is_root, skip};
use snapbox::{Assert, IntoData};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The mark between the outputs of two commands. After it comes the exit code of the first command.
const MARK: char = '\x1e';
/// Seconds that a chapter may take on a machine that is busy with other things.
const PATIENCE: &str = "300";

/// Makes the host, and runs the script there. `$1` is the directory of the programs, `$2` that of the steps.
/// The other arguments are a command that becomes the user. The shell that runs this stays until the script
/// has ended: it is the first process, and its end ends all others.
const HOST: &str = r#"
set -eu
ip link set lo up
mount -t tmpfs -o mode=1777,size=1g tmpfs /dev/shm
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -m 755 /run/programs /run/steps
mkdir -m 700 /run/home /run/user
[ "$(id -u)" != 0 ] || chown 65534:65534 /run/home /run/user
mount --bind "$1" /run/programs
mount --bind "$2" /run/steps
shift 2
cd /run/home
unset SHMCAST_DIR SHMCAST_SOCKET
export HOME=/run/home XDG_RUNTIME_DIR=/run/user PATH="/run/programs:$PATH" LC_ALL=C
"$@" bash /run/steps/script 2>&1
"#;

/// Runs all commands of a chapter, and compares their output.
pub(crate) fn play(name: &str) {
    let chapter = Chapter::read(name);
    let steps = chapter.steps();
    assert!(!steps.is_empty(), "{name}.md has no command");
    if let Some(why) = lacking() {
        return skip(&format!("guide {name}"), why);
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    write_script(dir.path(), &steps);
    let output = run(dir.path());
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let results = parse(&printed);
    let mut wrong = Vec::new();
    for (step, (text, code)) in steps.iter().zip(&results) {
        wrong.extend(compare(step, text, *code));
    }
    if results.len() < steps.len() {
        let said = String::from_utf8_lossy(&output.stderr);
        wrong.push(format!("{}: no end within {PATIENCE} s: {said}", steps[results.len()].place));
    }
    for block in chapter.failing() {
        let failed =
            steps.iter().zip(&results).any(|(step, (_, code))| *code != 0 && block.contains(&step.place));
        if !failed {
            wrong.push(format!("{}: `fails`, but no command of it did", block[0]));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    println!("{name}: {} commands", steps.len());
}

/// The reason why this machine cannot run the shell, if there is one.
fn lacking() -> Option<String> {
    for program in ["bash", "curl", "ip", "jq", "setpriv", "unshare"] {
        let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap();
        if !found.status.success() {
            return Some(format!("{program} is not installed"));
        }
    }
    let tried = unshare().arg("true").output().unwrap();
    let said = String::from_utf8_lossy(&tried.stderr).trim().to_owned();
    (!tried.status.success()).then(|| format!("no namespaces of its own: {said}"))
}

/// A command in namespaces of its own, which end with its first process. Root can make them. Other users need
/// a namespace of users as well.
fn unshare() -> Command {
    let mut command = Command::new("unshare");
    if !is_root() {
        command.args(["--user", "--map-current-user", "--keep-caps"]);
    }
    command.args(["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    command
}

/// Writes each command to a file of its own. One shell reads all of them, so an incomplete command cannot
/// affect the others.
fn write_script(dir: &Path, steps: &[Step]) {
    let mut script = String::new();
    for (number, step) in steps.iter().enumerate() {
        let name = format!("step-{number}");
        fs::write(dir.join(&name), &step.command).unwrap();
        script += &format!(". /run/steps/{name} </dev/null\nprintf '\\036%s\\n' \"$?\"\n");
    }
    fs::write(dir.join("script"), script).unwrap();
}

fn run(steps: &Path) -> Output {
    let shmcast = program("shmcast");
    let programs = shmcast.parent().unwrap();
    // The commands run as an ordinary user: root becomes nobody, and a user who got rights in a namespace of
    // users gives them up.
    let become_user: &[&str] = match is_root() {
        true => &["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"],
        false => &["setpriv", "--inh-caps=-all", "--ambient-caps=-all"],
    };
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", PATIENCE]);
    command.arg(unshare().get_program()).args(unshare().get_args());
    command.args(["bash", "-c", HOST, "bash"]).args([programs, steps]).args(become_user);
    command.stdin(Stdio::null()).output().unwrap()
}

/// The output of each command, and its exit code.
fn parse(printed: &str) -> Vec<(&str, i32)> {
    let mut results = Vec::new();
    let mut rest = printed;
    while let Some((text, after)) = rest.split_once(MARK) {
        let Some((code, after)) = after.split_once('\n') else { break };
        results.push((text, code.parse().unwrap()));
        rest = after;
    }
    results
}

/// The difference between a command's result and the guide, if there is one.
fn compare(step: &Step, text: &str, code: i32) -> Option<String> {
    let Step { place, command, expected, may_fail } = step;
    let command = command.trim_end();
    if code != 0 && !may_fail {
        return Some(format!("{place}: {command:?} ended with {code}:\n{text}"));
    }
    let (actual, expected) = (text.to_owned().into_data(), expected.clone().into_data());
    let differs = Assert::new().try_eq(Some(place), actual, expected).err()?;
    Some(format!("{place}: {command:?} printed something else:\n{differs}"))
}
