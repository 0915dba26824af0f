//! Tests with other users of the host. These tests need a program that can become another user, and are skipped without such a program.

use super::daemon::Daemon;
use super::errands::publish;
use super::{World, tools};
use crate::actor::Place;
use crate::log::Deed;
use crate::story::Maker;
use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::{geteuid, mkfifo};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The user `nobody`, who is not the user of this process.
const STRANGER: u32 = 65534;
/// The name of a channel that other users are not allowed to read.
const SECRET: &str = "secret";
/// The name of a channel that everybody is allowed to read.
const OPEN: &str = "open";
/// The time within which a daemon must answer a user whose name it does not have to look up.
const PROMPT: Duration = Duration::from_secs(4);

/// The time for which the daemon is observed.
const LOOKS: Duration = Duration::from_millis(1500);

/// A script that starts a daemon with a user database that does not answer. $1 is a pipe that nobody writes to. The other arguments are the
/// command of the daemon.
const HANGING_NAMES: &str = r#"
pipe=$1; shift
mount --bind "$pipe" /etc/passwd && mount --bind "$pipe" /etc/group || exit 9
exec "$@"
"#;

/// A script that publishes as several users. $1 is the user who makes the shared directory, and $2 is the command. The other arguments are
/// the users.
const NEIGHBOURS: &str = r#"
maker=$1; command=$2; shift 2
mount -t tmpfs -o mode=1777 none /dev/shm || exit 9
case $maker in
  User) mkdir -m 700 /dev/shm/shmcast && chown "$1:$1" /dev/shm/shmcast ;;
  Closed) mkdir -m 700 /dev/shm/shmcast ;;
  Open) mkdir /dev/shm/shmcast && chmod 1777 /dev/shm/shmcast ;;
esac
for user in "$@"; do
  as="setpriv --reuid=$user --regid=$user --clear-groups"
  echo "a line" | $as "$command" pub "t$user" --capacity 64KiB || { echo "user $user cannot publish" >&2; exit 1; }
  $as "$command" sub "t$user" --from oldest | grep -qx "a line" || { echo "user $user cannot read" >&2; exit 1; }
  $as "$command" rm "t$user" || { echo "user $user cannot remove" >&2; exit 1; }
done
"#;

/// Makes a command that runs `program` as another user. Returns `None` if this is not possible here.
fn as_stranger(program: &Path) -> Option<Command> {
    let through = |program: &Path| {
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={STRANGER}"), format!("--regid={STRANGER}"), "--clear-groups".into()]);
        command.arg(program);
        command
    };
    if !geteuid().is_root() {
        return None;
    }
    let tried = through(Path::new("test")).arg("-x").arg(program).status();
    tried.is_ok_and(|status| status.success()).then(|| through(program))
}

/// Whether this process is allowed to mount file systems in a separate mount namespace.
fn can_mount() -> bool {
    let tried = Command::new("unshare").args(["-m", "mount", "--bind", "/etc/group", "/etc/passwd"]).status();
    geteuid().is_root() && tried.is_ok_and(|status| status.success())
}

/// Returns the configuration table of a channel that only `subscribers` are allowed to read.
fn table(name: &str, subscribers: &str) -> String {
    format!(
        "[[channel]]\nname = \"{name}\"\ncapacity = \"64KiB\"\nmax_message = \"1KiB\"\nmode = \"takeover\"\n\
         publishers = [\"uid:0\"]\nsubscribers = [{subscribers}]\nmlock = false\nhugepages = false\n"
    )
}

impl World<'_> {
    /// Starts a separate daemon with these configuration tables, for a test. Other users are allowed to connect to its socket.
    fn daemon_for_all(&self, name: &'static str, tables: String) -> Result<Daemon> {
        fs::set_permissions(&self.dir, Permissions::from_mode(0o755))
            .context("open the story's directory")?;
        let daemon = Daemon::new(name, &self.dir, &self.logs, &[], false, tables)?;
        daemon.configure(false)?;
        Ok(daemon)
    }

    /// Tests a user who is in no list of a channel. A daemon's answers must not show the channel to this user.
    pub(super) fn show_an_outsider(&mut self) -> Result<bool> {
        if as_stranger(&self.programs.shmcast).is_none() {
            return Ok(false);
        }
        let tables = table(SECRET, "\"uid:0\"") + &table(OPEN, "\"*\"");
        let mut daemon = self.daemon_for_all("visited", tables)?;
        self.begin(&mut daemon)?;
        for channel in [OPEN, SECRET] {
            let mut actor = self.start_publisher(&Place::Socket(daemon.socket()), channel)?;
            self.ask(&mut actor, publish(3))?;
            self.dismiss(actor)?;
        }
        daemon.signal(Signal::SIGHUP);
        for arguments in [
            &["ls", "--json"][..],
            &["top", "--json", "--interval", "100ms"],
            &["events", "--last", "100", "--json"],
            // The daemon logs this refusal as an event, and the outsider is allowed to see that event.
            &["stat", SECRET],
        ] {
            self.look_as_stranger(&daemon, arguments)?;
        }
        self.finish(&mut daemon)?;
        Ok(true)
    }

    fn look_as_stranger(&mut self, daemon: &Daemon, arguments: &[&str]) -> Result<()> {
        let Some(mut command) = as_stranger(&self.programs.shmcast) else { return Ok(()) };
        self.programs.cleanse(&mut command);
        command.args(arguments).env("SHMCAST_SOCKET", daemon.socket());
        let deed = tools::run(0, command, &self.logs)?;
        let Deed::Ran { out, .. } = &deed else { return Ok(()) };
        let (what, out) = (format!("{}: {out}", arguments.join(" ")), out.clone());
        self.note(deed)?;
        let who = "outsider".to_owned();
        if out.contains(SECRET) {
            self.note(Deed::Disclosed { who: who.clone(), what: what.clone() })?;
        }
        if !out.contains(OPEN) && arguments[0] != "stat" {
            self.note(Deed::Refused {
                who,
                what: format!("to see a channel that is for everybody by {what}"),
            })?;
        }
        Ok(())
    }

    /// Tests that each user can publish and read at the default place, whichever user was the first.
    pub(super) fn let_neighbours_publish(&mut self, maker: Maker) -> Result<bool> {
        let shmcast = &self.programs.shmcast;
        // This test mounts an empty directory at the channels' place. The mount would hide the command if the command were in this place.
        if !can_mount() || as_stranger(shmcast).is_none() || shmcast.starts_with("/dev/shm") {
            return Ok(false);
        }
        let mut command = self.programs.command(Path::new("unshare"));
        command.args(["-m", "bash", "-c", NEIGHBOURS, "bash", &format!("{maker:?}")]).arg(shmcast);
        command.args(["1", "65534", "0"]);
        let deed = tools::run(0, command, &self.logs)?;
        let refused = match &deed {
            Deed::Ran { code, err, .. } if !matches!(code, Some(0 | 9)) => Some(err.clone()),
            _ => None,
        };
        self.note(deed)?;
        if let Some(err) = refused {
            let what = format!("a default directory, which was made by {maker:?}: {err}");
            self.note(Deed::Refused { who: "neighbour".into(), what })?;
        }
        Ok(true)
    }

    /// Tests a user database that does not answer. While the daemon waits for the name of one user, it must promptly answer another user
    /// whose name it does not have to look up.
    pub(super) fn let_names_hang(&mut self) -> Result<bool> {
        let Some(mut stranger) = as_stranger(&self.programs.shmcast).filter(|_| can_mount()) else {
            return Ok(false);
        };
        let tables = table(SECRET, "\"group:nogroup\"") + &table(OPEN, "\"uid:65534\"");
        let mut daemon = self.daemon_for_all("nameless", tables)?;
        let pipe = self.dir.join(format!("pipe{}", self.actors));
        self.actors += 1;
        mkfifo(&pipe, Mode::from_bits_truncate(0o644)).context("make a pipe")?;
        let words = ["unshare", "-m", "sh", "-c", HANGING_NAMES, "sh"].map(str::to_owned);
        daemon.through = words.into_iter().chain([pipe.display().to_string()]).collect();
        self.begin(&mut daemon)?;
        let client = shmcast::Client::at(daemon.socket());
        self.programs.cleanse(&mut stranger);
        stranger.args(["ls"]).env("SHMCAST_SOCKET", daemon.socket());
        let mut stranger =
            stranger.stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null()).spawn()?;
        let mut slowest = Duration::ZERO;
        let until = Instant::now() + LOOKS;
        while let (Ok(client), None) = (&client, stranger.try_wait()?) {
            let asked = Instant::now();
            let answered = client.channels();
            slowest = slowest.max(asked.elapsed());
            if answered.is_ok() && slowest < PROMPT && Instant::now() > until {
                break;
            }
            if answered.is_err() || slowest > PROMPT {
                let what = format!(
                    "an answer within {PROMPT:?} while another user's names are looked up: {slowest:?}, {:?}",
                    answered.err().map(|e| e.to_string())
                );
                self.note(Deed::Refused { who: "root".into(), what })?;
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = stranger.kill();
        stranger.wait()?;
        self.finish(&mut daemon)?;
        Ok(true)
    }
}
