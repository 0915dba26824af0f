//! The sections ENVIRONMENT, FILES and SEE ALSO of the manual pages. They list what the programs use besides their command lines.

use crate::cli::bridge::ACCOUNT_VARIABLE;
use clap::Command;
use clap_mangen::roff::{Roff, bold, roman};
use shmcast::{DIR_VARIABLE, SOCKET_VARIABLE};

type Entry = (&'static str, &'static str);

const SOCKET: Entry =
    (SOCKET_VARIABLE, "Path of the daemon's socket. If it is set, no other daemon is tried.");
const RUNTIME_DIR: Entry = (
    "XDG_RUNTIME_DIR",
    "Directory below which the daemon of an ordinary user listens, at shmcast/control.sock. It counts where the system's \
     daemon does not listen.",
);

const OF_COMMAND: [Entry; 6] = [
    (
        DIR_VARIABLE,
        "Directory of channels that are files. It counts before any daemon, and --dir counts before it.",
    ),
    SOCKET,
    RUNTIME_DIR,
    (
        "SHMCAST_JOURNALS",
        "Directory of the journals of channels that are files: that of channel ticks is ticks in it.",
    ),
    ("NO_COLOR", "If it is set and not empty, shmcast doctor shows no colours."),
    (
        "SHMCAST_COMPLETE",
        "Name of a shell, such as bash. If it is set, shmcast prints what that shell needs in order to complete its command \
         lines, and does nothing else. The completions that the package installs set it.",
    ),
];

/// The variable that verbs about servers of NATS read too.
const OF_ENGINE: Entry = (
    ACCOUNT_VARIABLE,
    "Account at the servers of NATS, as USER:PASSWORD or a token. nats.account counts before it. An account in an argument is refused, because \
     every user of the host can read arguments.",
);

const OF_DAEMON: [Entry; 4] = [
    (SOCKET_VARIABLE, "Where to listen, as --socket."),
    ("XDG_RUNTIME_DIR", "Directory below which an ordinary user's daemon listens, at shmcast/control.sock."),
    (
        "RUST_LOG",
        "Level of the log: off, error, warn, info, debug or trace; info if it is not set or empty. An error that ends the daemon is always \
         printed.",
    ),
    (
        "NOTIFY_SOCKET, LISTEN_FDS, WATCHDOG_USEC, JOURNAL_STREAM",
        "Set by systemd: where to say that the daemon is ready, its socket and the memory that was kept for it, how often \
         it is to give a sign of life, and that its log goes to the journal.",
    ),
];

const CHANNEL_FILES: [Entry; 2] = [
    ("/dev/shm/shmcast", "Channels that all users of the host share, if root has made this directory."),
    (
        "/dev/shm/shmcast-UID",
        "Channels of one user. Each is a directory with the segment, the publisher's lock, and in readers/ a page for each \
         reader.",
    ),
];

const SOCKET_FILE: Entry = (shmcast::DEFAULT_SOCKET, "Socket of the system's daemon.");

const DAEMON_FILES: [Entry; 5] = [
    ("/etc/shmcast/shmcast.toml", "Configuration that the unit names; see shmcast.toml(5)."),
    SOCKET_FILE,
    ("SOCKET.lock", "Without systemd: decides between daemons that start at once. It stays there."),
    (
        "control.running",
        "Beside the socket while the daemon runs. If it is there at the start, the last daemon did not end in an orderly way.",
    ),
    (
        "control.charters",
        "Beside the socket: says which memory each channel is, and up to where it is valid.",
    ),
];

/// Returns the sections that come after clap's own sections, for the page of a program or of a verb.
pub(super) fn sections(page: &Command, section: &str, is_program: bool) -> String {
    let mut text = Roff::new();
    if section == "8" {
        list(&mut text, "ENVIRONMENT", &OF_DAEMON);
        list(&mut text, "FILES", &DAEMON_FILES);
        see_also(&mut text, &[("shmcast", "1"), ("shmcast-check", "1"), ("shmcast.toml", "5")]);
    } else if is_program {
        let all: Vec<Entry> = OF_COMMAND.into_iter().chain([OF_ENGINE]).collect();
        list(&mut text, "ENVIRONMENT", &all);
        let files: Vec<Entry> = CHANNEL_FILES.into_iter().chain([SOCKET_FILE]).collect();
        list(&mut text, "FILES", &files);
        see_also(&mut text, &[("shmcastd", "8"), ("shmcast.toml", "5")]);
    } else {
        // A verb with `--dir` looks for channels, so its page also has the variables and files with which channels are found.
        let has = |name| page.get_arguments().any(|argument| argument.get_long() == Some(name));
        let of_channels = if has("dir") { 3 + usize::from(has("history")) } else { 0 };
        let of_engine = has("nats").then_some(OF_ENGINE);
        let read: Vec<Entry> = OF_COMMAND[..of_channels].iter().copied().chain(of_engine).collect();
        if !read.is_empty() {
            list(&mut text, "ENVIRONMENT", &read);
        }
        if has("dir") {
            list(&mut text, "FILES", &CHANNEL_FILES);
        }
        see_also(&mut text, &[("shmcast", "1"), ("shmcastd", "8")]);
    }
    text.render()
}

fn list(text: &mut Roff, heading: &str, entries: &[Entry]) {
    text.control("SH", [heading]);
    for (name, what) in entries {
        text.control("TP", []).text([bold(*name)]).text([roman(*what)]);
    }
}

fn see_also(text: &mut Roff, pages: &[(&'static str, &'static str)]) {
    text.control("SH", ["SEE ALSO"]);
    let mut line = Vec::new();
    for (index, (name, section)) in pages.iter().enumerate() {
        let after = if index + 1 < pages.len() { "), " } else { ")" };
        line.extend([bold(*name), roman(format!("({section}{after}"))]);
    }
    text.text(line);
}
