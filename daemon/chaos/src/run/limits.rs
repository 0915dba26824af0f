//! Limits of processes and of the host, which steps set and lift.

use super::World;
use super::clock::Clock;
use super::programs::Programs;
use crate::log::Deed;
use crate::story::{Bound, Held, HostStep, Limits, Setup, Step, Where, Whom};
use anyhow::{Context, Result, ensure};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::geteuid;
use rustix::fs::statvfs;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use std::cell::Cell;
use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// The first user of daemons and recorders. Each story has another user, so that nobody else's threads count.
const FIRST_USER: u32 = 61_000;
const USERS: u32 = 3_000;
/// The size of a small file system in MiB. The next constant is the largest number of its files.
const SMALL: u32 = 12;
const FILES: u32 = 300;
/// Without these capabilities, root obeys the modes of files and directories.
const ORDINARY: [&str; 2] = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"];

/// The state of a limited host.
#[derive(Debug)]
pub(super) struct Limited {
    setup: Limits,
    /// The directory of all channels or journals.
    place: PathBuf,
    is_mounted: bool,
    /// The user of daemons and recorders.
    user: Option<u32>,
    /// Files without a name, which take the space of the small file system.
    held: Vec<File>,
    /// Directories that lack permissions, each with its earlier mode.
    closed: BTreeMap<PathBuf, u32>,
}

/// Returns the programs for a story: with pipes and a clock, if the story has limits.
pub(super) fn programs(setup: &Setup, programs: &Programs) -> Result<Programs> {
    let mut programs = programs.clone();
    if let Some(limits) = &setup.limits {
        programs.pipes = Some(super::pipes::Pipes::default());
        programs.clock = if limits.clock { Clock::make()? } else { None };
    }
    Ok(programs)
}

/// Whether this process is allowed to mount file systems and to start programs as other users.
pub fn has_small_file_systems() -> bool {
    geteuid().is_root() && in_own_namespace().is_ok()
}

/// Moves this thread into a mount namespace of its own, if it is not yet in one. No other process sees its mounts.
fn in_own_namespace() -> Result<()> {
    thread_local!(static IS_THERE: Cell<bool> = const { Cell::new(false) });
    if IS_THERE.get() {
        return Ok(());
    }
    unshare(CloneFlags::CLONE_NEWNS).context("make a mount namespace")?;
    run("mount", &["--make-rprivate", "/"])?;
    IS_THERE.set(true);
    Ok(())
}

fn run(program: &str, arguments: &[&str]) -> Result<()> {
    let status = Command::new(program).args(arguments).stdin(Stdio::null()).status()?;
    ensure!(status.success(), "{program} {arguments:?}: {status}");
    Ok(())
}

impl Limited {
    pub(super) fn new(setup: &Setup, dir: &Path) -> Result<Option<Self>> {
        static USED: AtomicU32 = AtomicU32::new(0);
        let Some(limits) = setup.limits.clone() else { return Ok(None) };
        let place = dir.join(if limits.files { "channels" } else { "journals" });
        let is_root = geteuid().is_root();
        let number = std::process::id() + USED.fetch_add(1, Ordering::Relaxed) * 37;
        let user = (limits.user && is_root).then(|| FIRST_USER + number % USERS);
        let mut limited =
            Self { setup: limits, place, is_mounted: false, user, held: Vec::new(), closed: BTreeMap::new() };
        fs::set_permissions(dir, Permissions::from_mode(0o755))?;
        if limited.setup.small && is_root {
            in_own_namespace()?;
            let options = format!("size={SMALL}m,nr_inodes={FILES},mode=755");
            let place = limited.place.display().to_string();
            run("mount", &["-t", "tmpfs", "-o", &options, "none", &place])?;
            limited.is_mounted = true;
        }
        if let Some(user) = user {
            chown(dir, Some(user), Some(user))?;
            chown(&limited.place, Some(user), Some(user))?;
        }
        Ok(Some(limited))
    }

    /// Returns the command and arguments through which daemons and recorders are started.
    pub(super) fn through(&self) -> Vec<String> {
        match self.user {
            Some(user) => {
                let [uid, gid] = ["reuid", "regid"].map(|option| format!("--{option}={user}"));
                vec!["setpriv".into(), uid, gid, "--clear-groups".into()]
            }
            None if geteuid().is_root() => ORDINARY.map(str::to_owned).to_vec(),
            None => Vec::new(),
        }
    }

    fn fill(&mut self, held: Held) -> Result<bool> {
        if !self.is_mounted {
            return Ok(false);
        }
        match held {
            Held::Space(kib) => {
                let room = statvfs(&self.place)?;
                let free = room.f_bavail * room.f_frsize;
                let take = free.saturating_sub(u64::from(kib) << 10);
                // A file system without space or files is full already.
                let Ok(file) = self.nameless() else { return Ok(true) };
                if take > 0 {
                    // Another process can take the last space at the same time.
                    let _ = nix::fcntl::posix_fallocate(&file, 0, take as i64);
                }
                self.held.push(file);
            }
            Held::Files => {
                for _ in 0..FILES {
                    match self.nameless() {
                        Ok(file) => self.held.push(file),
                        Err(_) => break,
                    }
                }
            }
        }
        Ok(true)
    }

    /// Makes a file without a name in the small file system.
    fn nameless(&self) -> io::Result<File> {
        let tmpfile = rustix::fs::OFlags::TMPFILE.bits() as i32;
        File::options().read(true).write(true).custom_flags(tmpfile).open(&self.place)
    }

    /// Returns the directories of a place.
    fn directories(&self, place: Where, name_of: impl Fn(u8) -> String) -> Vec<PathBuf> {
        let below = |dir: &Path| -> Vec<PathBuf> {
            let entries = fs::read_dir(dir).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
        };
        let of = |channel: u8| -> Vec<PathBuf> {
            let name = name_of(channel);
            let is_of = |path: &PathBuf| {
                let found = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                found == name || found.starts_with(&format!("{name}-by-hand"))
            };
            below(&self.place).into_iter().filter(is_of).collect()
        };
        match place {
            Where::All => vec![self.place.clone()],
            Where::Of(channel) => of(channel),
            Where::Within(channel) => of(channel).iter().flat_map(|dir| below(dir)).collect(),
        }
    }

    fn close(&mut self, directories: Vec<PathBuf>, mode: u16) -> bool {
        let mut has_closed = false;
        for dir in directories {
            // Retention can remove a folder.
            let Ok(before) = fs::metadata(&dir).map(|it| it.permissions().mode()) else { continue };
            if fs::set_permissions(&dir, Permissions::from_mode(mode.into())).is_err() {
                continue;
            }
            self.closed.entry(dir).or_insert(before);
            has_closed = true;
        }
        has_closed
    }

    fn open(&mut self) -> bool {
        let closed = std::mem::take(&mut self.closed);
        for (dir, mode) in &closed {
            // The directory might have been removed.
            let _ = fs::set_permissions(dir, Permissions::from_mode(*mode));
        }
        !closed.is_empty()
    }

    /// Makes the file system large enough for everything.
    fn lift(&mut self) -> Result<()> {
        self.open();
        self.held.clear();
        if self.is_mounted {
            let place = self.place.display().to_string();
            run("mount", &["-o", "remount,size=2g,nr_inodes=100000", &place])?;
        }
        Ok(())
    }

    /// Lets everybody read everything in the place. An actor must read the journals of another user.
    pub(super) fn publish(&self) {
        let mut open = vec![self.place.clone()];
        while let Some(path) = open.pop() {
            let is_dir = fs::symlink_metadata(&path).is_ok_and(|it| it.is_dir());
            let _ = fs::set_permissions(&path, Permissions::from_mode(if is_dir { 0o755 } else { 0o644 }));
            if is_dir {
                open.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()));
            }
        }
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        self.open();
        self.held.clear();
        if self.is_mounted {
            let _ = run("umount", &["--lazy", &self.place.display().to_string()]);
        }
    }
}

/// Sets a limit of a process, or lifts it. Returns whether the process exists.
fn set_bound(pid: u32, bound: Bound, most: Option<u32>) -> bool {
    let (resource, unit) = match bound {
        Bound::FileSize => (Resource::Fsize, 1 << 10),
        Bound::Locked => (Resource::Memlock, 1 << 10),
        Bound::Threads => (Resource::Nproc, 1),
        Bound::Address => (Resource::As, 1 << 20),
        Bound::Descriptors => return false,
    };
    let own = getrlimit(resource);
    let current = most.map(|most| u64::from(most) * unit).or(own.current);
    // Without a process id, `prlimit` would limit this process.
    let Some(process) = Pid::from_raw(pid as i32) else { return false };
    prlimit(Some(process), resource, Rlimit { current, maximum: own.maximum }).is_ok()
}

impl World<'_> {
    pub(super) fn limit_something(&mut self, step: &Step) -> Result<bool> {
        match *step {
            Step::Bound { whom, bound, most } => {
                Ok(self.pid_of(whom).is_some_and(|pid| set_bound(pid, bound, most)))
            }
            Step::Host(HostStep::Clock { seconds }) => {
                let Some(clock) = &self.programs.clock else { return Ok(false) };
                clock.set(seconds).map(|()| true)
            }
            Step::Host(step) => self.change_the_host(step),
            Step::Verb { verb, channel, bound, most } => self.call_a_verb(verb, channel, bound, most),
            _ => Ok(false),
        }
    }

    fn change_the_host(&mut self, step: HostStep) -> Result<bool> {
        let names: Vec<String> = self.channels.iter().map(|channel| channel.name.clone()).collect();
        let name_of = |channel: u8| names[usize::from(channel) % names.len()].clone();
        let Some(limited) = &mut self.limited else { return Ok(false) };
        match step {
            HostStep::Fill(held) => limited.fill(held),
            HostStep::Free => {
                let was_full = !limited.held.is_empty();
                limited.held.clear();
                Ok(was_full)
            }
            HostStep::Close { place, mode } => {
                let directories = limited.directories(place, name_of);
                Ok(limited.close(directories, mode))
            }
            HostStep::Open => Ok(limited.open()),
            HostStep::Clock { .. } => Ok(false),
        }
    }

    /// Lifts all limits at the end of a story.
    pub(super) fn lift_all(&mut self) -> Result<()> {
        let Some(limited) = &mut self.limited else { return Ok(()) };
        limited.lift()?;
        if let Some(clock) = &self.programs.clock {
            clock.set(0)?;
        }
        let recorders: Vec<Whom> = self.recorders.keys().map(|at| Whom::Recorder(*at)).collect();
        for whom in self.everybody().into_iter().chain(recorders) {
            let Some(pid) = self.pid_of(whom) else { continue };
            set_descriptor_limit(pid, None);
            for bound in [Bound::FileSize, Bound::Locked, Bound::Threads, Bound::Address] {
                set_bound(pid, bound, None);
            }
        }
        Ok(())
    }

    /// Returns the path of a channel, if a failed opening must not leave a part of the channel there. Returns `None` if the channel exists
    /// or a daemon runs. Also returns `None` if other actors are busy, because they could make the channel.
    pub(super) fn is_to_be_made(&mut self, channel: &str) -> Option<PathBuf> {
        let is_of_files = self.limited.as_ref().is_some_and(|limited| limited.setup.files);
        let mut actors = self.publishers.iter_mut().chain(&mut self.readers).flatten();
        let is_calm = !self.is_racing && actors.all(|actor| !actor.is_stopped && actor.is_free());
        let path = self.channels_dir().join(channel);
        (is_of_files && is_calm && !path.exists()).then_some(path)
    }

    /// Notes a part of a channel that a failed opening has left.
    pub(super) fn note_half_made(&mut self, made: Option<PathBuf>, whom: Whom) -> Result<()> {
        let is_open = self.there(whom).is_none_or(|actor| actor.holds || !actor.is_free());
        match made.filter(|path| !is_open && path.exists()) {
            Some(path) => {
                self.note(Deed::Left { what: format!("{} of an opening that failed", path.display()) })
            }
            None => Ok(()),
        }
    }

    /// Makes a command that runs under the same user and capabilities as daemons and recorders.
    pub(super) fn command_of_a_host(&self, program: &Path) -> Command {
        let through = self.limited.as_ref().map(Limited::through).unwrap_or_default();
        let Some((first, rest)) = through.split_first() else { return self.programs.command(program) };
        let mut command = self.programs.command(Path::new(first));
        command.args(rest).arg(program);
        command
    }
}

/// Limits a process to this many descriptors more than it has now. `None` removes the limit. Returns whether the process exists.
pub(super) fn set_descriptor_limit(pid: u32, spare: Option<u8>) -> bool {
    let Ok(open) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    let open: HashSet<u64> =
        open.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    // The limit applies to descriptor numbers, and a new descriptor gets the lowest free number.
    let free = |spare: u8| (0..4096).filter(|number| !open.contains(number)).nth(spare.into());
    let current = spare.and_then(free).unwrap_or(4096);
    let limit = Rlimit { current: Some(current), maximum: Some(4096) };
    // Without a process id, `prlimit` would limit this process.
    let Some(process) = Pid::from_raw(pid as i32) else { return false };
    prlimit(Some(process), Resource::Nofile, limit).is_ok()
}
