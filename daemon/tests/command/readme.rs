//! The transcripts of README.md. Each of their commands is run here. Its output must be what the README
//! shows, except for figures.
//!
//! A comment before a block tells this test things that readers of the README do not see:
//!
//! | comment | what is done |
//! |---|---|
//! | `<!-- run: COMMAND -->` | runs it first, for what the text around the block takes for granted |
//! | `<!-- shows: COMMAND -->` | the block holds no command: it is what this one prints |
//! | `<!-- background -->` | the block's commands go on while the next ones run |
//! | `<!-- ends: COMMAND -->` | the block is what the command in the background that begins so prints when it gets Ctrl-C |
//!
//! `SHMCAST_WRITE_README=1 cargo test --profile dist -p shmcast-daemon --test command readme` writes what was printed into the README.
use nix::sys::signal::{Signal, killpg};
use shmcast_testkit::place::program;
use shmcast_testkit::{Process, skip, wait_until};
use std::cell::RefCell;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

const SECTIONS: [&str; 3] = ["From the command line", "With a daemon", "Between hosts"];
/// Commands in the background whose task has begun when another command ends.
const BEGUN: [(&str, &str); 3] = [
    ("shmcast check", "until [ -S $SHMCAST_SOCKET ]; do sleep 0.05; done"),
    // The group 239.1.2.3 has been joined.
    ("shmcast bridge recv", "until grep -q 030201EF /proc/net/igmp; do sleep 0.05; done"),
    ("shmcast sub", "until shmcast stat ticks 2>/dev/null | grep -q '^1 reader'; do sleep 0.05; done"),
];

fn readme() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md")
}

/// A command as the README shows it, and the lines below it.
#[derive(Debug, Default)]
struct Shown {
    /// `$`, or `a$` and `b$` where there are two hosts.
    prompt: String,
    command: String,
    output: Vec<String>,
}

/// A block of commands and outputs.
#[derive(Debug, Default)]
struct Block {
    section: String,
    text: String,
    before: Vec<String>,
    shows: Option<String>,
    ends: Option<String>,
    is_background: bool,
    shown: Vec<Shown>,
}

impl Block {
    fn parse(&mut self) {
        let mut lines = self.text.lines();
        while let Some(line) = lines.next() {
            let prompt = ["$ ", "a$ ", "b$ "].into_iter().find(|prompt| line.starts_with(prompt));
            if let Some(prompt) = prompt {
                let mut command = line[prompt.len()..].to_owned();
                while let Some(begun) = command.strip_suffix('\\') {
                    command = format!("{begun}{}", lines.next().expect("a command goes on").trim_start());
                }
                self.shown.push(Shown { prompt: prompt.trim().into(), command, output: Vec::new() });
            } else {
                if self.shown.is_empty() {
                    let command = self.shows.clone().or_else(|| self.ends.clone());
                    let command = command.unwrap_or_else(|| panic!("{line:?}: no command prints it"));
                    self.shown.push(Shown { prompt: "$".into(), command, output: Vec::new() });
                }
                self.shown.last_mut().unwrap().output.push(line.to_owned());
            }
        }
    }
}

/// Each block of commands in `text`.
fn blocks(text: &str) -> Vec<Block> {
    let (mut blocks, mut block, mut section) = (Vec::new(), Block::default(), String::new());
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let comment = line.strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->"));
        if let Some(heading) = line.strip_prefix("## ") {
            heading.clone_into(&mut section);
        } else if let Some(command) = comment.and_then(|comment| comment.strip_prefix("run: ")) {
            block.before.push(command.to_owned());
        } else if let Some(command) = comment.and_then(|comment| comment.strip_prefix("shows: ")) {
            block.shows = Some(command.to_owned());
        } else if let Some(command) = comment.and_then(|comment| comment.strip_prefix("ends: ")) {
            block.ends = Some(command.to_owned());
        } else if comment == Some("background") {
            block.is_background = true;
        } else if line == "```console" {
            let within: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            (block.section, block.text) = (section.clone(), format!("{}\n", within.join("\n")));
            block.parse();
            blocks.push(std::mem::take(&mut block));
        }
    }
    blocks
}

/// The line with a 0 for each number, and without the padding of units and columns: no two runs have the same
/// figures.
fn pattern(line: &str) -> String {
    let mut out = String::new();
    let mut in_number = false;
    for c in line.chars() {
        let is_digit = c.is_ascii_digit() || in_number && matches!(c, ',' | '.');
        match (is_digit, in_number) {
            (true, false) => out.push('0'),
            (true, true) => {}
            // A comma or full stop after a number belongs to the sentence.
            (false, _) => out.push(c),
        }
        in_number = is_digit;
    }
    let words: Vec<&str> = out.split_whitespace().collect();
    let out = words.join(" ");
    ["ns", "us", "ms", "s", "KiB", "MiB"].iter().fold(format!("{out} "), |out, unit| {
        [" ", ",", ";", ")"]
            .iter()
            .fold(out, |out, end| out.replace(&format!("0 {unit}{end}"), &format!("0 U{end}")))
    })
}

/// The place where commands run: a directory of their own, and a network of their own for each host.
struct Place {
    dir: tempfile::TempDir,
    environment: Vec<(&'static str, String)>,
    hosts: Option<[String; 2]>,
    /// The shells that were started, each of which leads a process group.
    shells: RefCell<Vec<Process>>,
    /// Commands in the background: their shells, and the files that they print to.
    background: RefCell<Vec<(String, usize, PathBuf)>>,
}

impl Place {
    fn new(environment: &[(&'static str, &str)]) -> Self {
        let dir = tempfile::Builder::new().prefix("shmcast-readme-").tempdir_in("/dev/shm").unwrap();
        let at = |path: &str| dir.path().join(path).display().to_string();
        let environment = environment.iter().map(|(name, path)| (*name, at(path))).collect();
        Self { dir, environment, hosts: None, shells: RefCell::default(), background: RefCell::default() }
    }

    /// Starts a command. Its output and its errors go to one file.
    fn start(&self, prompt: &str, command: &str) -> (usize, PathBuf) {
        let mut shell = match (&self.hosts, prompt) {
            (Some(names), "a$" | "b$") => {
                let mut ip = Command::new("ip");
                ip.args(["netns", "exec", &names[usize::from(prompt == "b$")], "bash"]);
                ip
            }
            _ => Command::new("bash"),
        };
        let path =
            format!("{}:{}", program("shmcast").parent().unwrap().display(), std::env::var("PATH").unwrap());
        let dir = self.dir.path().join(prompt.trim_end_matches('$'));
        fs::create_dir_all(&dir).unwrap();
        let number = self.shells.borrow().len();
        let printed = self.dir.path().join(format!("{number}.out"));
        let out = File::create(&printed).unwrap();
        shell.args(["-c", command]).current_dir(&dir).process_group(0).env("PATH", path);
        shell.env_remove("SHMCAST_DIR").env_remove("SHMCAST_SOCKET").env_remove("NOTIFY_SOCKET");
        shell.envs(self.environment.iter().map(|(name, value)| (name, value)));
        if prompt != "$" {
            shell.env("SHMCAST_DIR", dir.join("channels"));
        }
        shell.stdin(Stdio::null()).stdout(out.try_clone().unwrap()).stderr(out);
        self.shells.borrow_mut().push(Process::start(&mut shell));
        (number, printed)
    }

    /// Waits for the end of a shell. Returns its exit code.
    fn end(&self, number: usize) -> i32 {
        self.shells.borrow_mut()[number].wait().code().unwrap_or(-1)
    }

    /// Runs a command to its end. Returns exit code and output.
    fn run(&self, prompt: &str, command: &str) -> (i32, String) {
        let (number, printed) = self.start(prompt, command);
        (self.end(number), fs::read_to_string(printed).unwrap())
    }

    /// Whether a command in the background has ended well, shows something on its terminal, or listens for Ctrl-C.
    fn has_begun(&self, command: &str, number: usize, printed: &Path) -> bool {
        if let Some(status) = self.shells.borrow_mut()[number].try_wait() {
            let code = status.code().unwrap_or(-1);
            // Exit code 1 of the doctor means that it has found something. That is no failure of the README's.
            let is_well = code == 0 || command.starts_with("shmcast doctor") && code == 1;
            assert!(is_well, "{command}: {code}\n{}", fs::read_to_string(printed).unwrap());
            return true;
        }
        match command.split_once(' ') {
            Some(("shmcast", rest)) if rest.contains("&&") => true,
            Some(("shmcast", _)) => self.listens(number),
            Some(("env", _)) => fs::metadata(printed).unwrap().len() > 0,
            _ => false,
        }
    }

    /// Whether a shell has become the command, which listens for Ctrl-C.
    fn listens(&self, number: usize) -> bool {
        let shell = &self.shells.borrow()[number];
        // A process that has ended, and was waited for, has no name.
        let name = fs::read_to_string(format!("/proc/{}/comm", shell.id())).unwrap_or_default();
        name.trim() == "shmcast" && shell.handles(Signal::SIGINT)
    }

    /// Sends a shell and its commands what Ctrl-C sends.
    fn interrupt(&self, number: usize) {
        killpg(self.shells.borrow()[number].pid(), Signal::SIGINT).unwrap();
    }

    /// Ends a command that runs in the background, as Ctrl-C does. Returns its exit code, and its output from
    /// then on.
    fn end_by_name(&self, command: &str) -> (i32, String) {
        let background = self.background.borrow();
        let found = background.iter().find(|(begun, ..)| begun.starts_with(command));
        let (_, number, printed) = found.unwrap_or_else(|| panic!("{command} is not in the background"));
        let before = fs::read_to_string(printed).unwrap().len();
        self.interrupt(*number);
        (self.end(*number), fs::read_to_string(printed).unwrap().split_off(before))
    }

    /// Ends the commands in the background that listen for Ctrl-C. None of them has failed until then.
    fn end_all(&self) {
        for (command, number, printed) in self.background.borrow().iter().rev() {
            if self.has_begun(command, *number, printed) && self.listens(*number) {
                self.interrupt(*number);
                let code = self.end(*number);
                assert_eq!(code, 0, "{command}\n{}", fs::read_to_string(printed).unwrap());
            }
        }
    }

    fn play(&self, block: &Block) {
        for command in &block.before {
            let (code, printed) = self.run("$", command);
            assert_eq!(code, 0, "{command}\n{printed}");
        }
        let mut written = String::new();
        for Shown { prompt, command, output } in &block.shown {
            if block.is_background {
                // This command needs a terminal.
                let command = match command.strip_prefix("shmcast top ") {
                    Some(comment) => &format!("env TERM=xterm script -qec 'shmcast top' /dev/null {comment}"),
                    None => command,
                };
                // Of one program the shell becomes that program, which then gets the signals itself.
                let is_one = !command.contains("&&");
                let (number, printed) =
                    self.start(prompt, &format!("{}{command}", if is_one { "exec " } else { "" }));
                self.background.borrow_mut().push((command.clone(), number, printed.clone()));
                wait_until(&format!("the beginning of {command}"), || {
                    self.has_begun(command, number, &printed)
                });
                if let Some((_, until)) = BEGUN.iter().find(|(begin, _)| command.starts_with(begin)) {
                    self.run(prompt, until);
                }
                continue;
            }
            let (code, printed) = match block.ends {
                Some(_) => self.end_by_name(command),
                None => self.run(prompt, command),
            };
            let shown = output.join("\n");
            if block.shows.is_none() && block.ends.is_none() {
                written += &format!("{prompt} {command}\n");
            }
            written += &printed;
            // Blank lines stand between commands too.
            let [mine, theirs] =
                [&printed, &shown].map(|text| text.trim_end().lines().map(pattern).collect::<Vec<_>>());
            if output.last().is_some_and(String::is_empty) {
                written.push('\n');
            }
            assert!(
                mine == theirs || is_writing(),
                "{command} ends with {code} and prints\n{printed}\nnot\n{shown}"
            );
        }
        if is_writing() && !block.is_background {
            write(&block.text, &written);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for shell in self.shells.get_mut() {
            // Its processes in the background are in its process group.
            let _ = killpg(shell.pid(), Signal::SIGKILL);
        }
        for name in self.hosts.iter().flatten() {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

fn is_writing() -> bool {
    std::env::var_os("SHMCAST_WRITE_README").is_some()
}

/// Replaces a block of the README by another text.
fn write(old: &str, new: &str) {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let text = fs::read_to_string(readme()).unwrap();
    let [old, new] = [old, new].map(|within| format!("```console\n{within}```"));
    fs::write(readme(), text.replacen(&old, &new, 1)).unwrap();
}

fn play(section: &str, place: &Place) {
    let text = fs::read_to_string(readme()).unwrap();
    let blocks: Vec<Block> = blocks(&text).into_iter().filter(|block| block.section == section).collect();
    assert!(!blocks.is_empty(), "the README has no transcript in {section:?}");
    blocks.iter().for_each(|block| place.play(block));
    place.end_all();
}

#[test]
fn a_transcript_that_nobody_runs() {
    let blocks = blocks(&fs::read_to_string(readme()).unwrap());
    let unknown = blocks.iter().find(|block| !SECTIONS.contains(&block.section.as_str()));
    assert!(unknown.is_none(), "a section with a transcript is new: {unknown:?}");
    assert!(blocks.len() >= 8, "{} blocks", blocks.len());
}

#[test]
fn the_command_line_is_shown_as_it_is() {
    play(SECTIONS[0], &Place::new(&[("SHMCAST_DIR", "channels")]));
}

#[test]
fn the_daemon_is_shown_as_it_is() {
    let place = Place::new(&[("SHMCAST_SOCKET", "control.sock"), ("XDG_RUNTIME_DIR", "run")]);
    play(SECTIONS[1], &place);
}

#[test]
fn two_hosts_are_shown_as_they_are() {
    let mut place = Place::new(&[]);
    let names = ["a", "b"].map(|host| format!("shmcast-readme-{host}-{}", std::process::id()));
    place.hosts = Some(names.clone());
    let [a, b] = &names;
    let wire = format!(
        "set -e; ip netns add {a}; ip netns add {b}; ip -n {a} link set lo up; ip -n {b} link set lo up
         ip link add eth0 netns {a} type veth peer name eth0 netns {b}
         ip -n {a} addr add 10.0.0.1/24 dev eth0; ip -n {a} link set eth0 up
         ip -n {b} addr add 10.0.0.2/24 dev eth0; ip -n {b} link set eth0 up"
    );
    let (code, printed) = place.run("$", &wire);
    if code != 0 {
        return skip("two_hosts_are_shown_as_they_are", format_args!("no network namespaces: {printed}"));
    }
    play(SECTIONS[2], &place);
}

#[test]
fn figures_differ_and_words_do_not() {
    let like = |a: &str, b: &str| assert_eq!(pattern(a), pattern(b));
    like(
        "published 1,000,000 messages, 5.6 MiB, in 0.045 s (22,239/s)",
        "published 1 messages, 9 KiB, in 10 ms (1/s)",
    );
    like(" 10192  shmcast    0  18.9 ms  1.01 s", " 7 shmcast 12,000  1 us  3 ns");
    assert_ne!(pattern("3 readers"), pattern("3 writers"));
    assert_ne!(pattern("lapped 1 times"), pattern("lapped - times"));
}
