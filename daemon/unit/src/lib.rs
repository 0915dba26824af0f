//! Runs a program as a systemd unit says, on a host where PID 1 is not systemd.
//!
//! Tests start the daemon through this, so that it has the system calls, socket families, rights, limits and files that the
//! shipped `shmcastd.service` gives it. The unit file is read and not repeated here: [`Settings::read`] refuses a line that
//! this crate does not know, so a new line of the unit cannot go untested.
//!
//! What systemd itself does with the process (starting it again, the watchdog, the descriptor store) is not done here.
//! `daemon/tests/restart/` boots systemd for that, and compares what a process may do under both.
//!
//! | file | what it applies |
//! |---|---|
//! | `settings.rs` | nothing: it reads the unit |
//! | `identity.rs` | user, capabilities, limits, file modes |
//! | `view.rs` | which files there are, and which of them can be written |
//! | `calls.rs` | which system calls there are |
#![forbid(unsafe_code)]

use anyhow::{Context, Result, ensure};
use nix::fcntl::{OFlag, open};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::Mode;
use nix::unistd::{fexecve, geteuid};
use std::convert::Infallible;
use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

mod calls;
mod identity;
mod settings;
mod view;

pub use settings::Settings;

/// Why a unit cannot be applied on this host; `None` where it can.
pub fn missing() -> Option<&'static str> {
    if !geteuid().is_root() {
        return Some("only root may apply the unit");
    }
    let analyze = std::process::Command::new("systemd-analyze").arg("--version").output();
    analyze.is_err().then_some("no systemd-analyze, which names the system calls (Debian package systemd)")
}

/// Becomes `program`, its first word, restricted by `settings`, with `runtime` as the unit's runtime directory.
///
/// `runtime` must exist. It becomes the unit's user's own and appears to the program at the unit's path, below `/run`.
/// The program is opened before anything else is done, so it may lie where the unit hides it.
/// The environment stays the caller's. Restrictions hold for the calling thread, which replaces the whole process: call
/// this where nothing else runs.
///
/// # Errors
/// The setting that could not be applied. The process is then partly restricted and good for nothing but to end.
pub fn exec(settings: &Settings, runtime: &Path, program: &[OsString]) -> Result<Infallible> {
    if let Some(reason) = missing() {
        anyhow::bail!("{reason}");
    }
    let first = program.first().context("no program is given")?;
    ensure!(settings.is_set("NoNewPrivileges"), "under-unit knows NoNewPrivileges=yes");
    let file = open(Path::new(first), OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())
        .with_context(|| format!("open {}", first.display()))?;
    let c_string = |text: OsString| CString::new(text.into_vec()).context("a zero byte in an argument");
    let arguments = program.iter().cloned().map(c_string).collect::<Result<Vec<_>>>()?;
    // The groups of system calls are asked for while a program can still be run.
    let filters = calls::compile(settings).context("compile the filters of system calls")?;
    let user = identity::User::of(settings)?;

    identity::limit(settings)?;
    let namespaces = CloneFlags::CLONE_NEWNS
        | if settings.is_set("ProtectHostname") { CloneFlags::CLONE_NEWUTS } else { CloneFlags::empty() };
    unshare(namespaces).context("unshare the view of files")?;
    view::apply(settings, runtime, &user)?;
    user.become_it()?;
    let mut environment = Vec::new();
    for (name, value) in std::env::vars_os().chain(user.environment(settings)) {
        let mut pair = name;
        pair.push("=");
        pair.push(value);
        environment.push(c_string(pair)?);
    }
    for filter in &filters {
        seccompiler::apply_filter(filter).context("apply a filter of system calls")?;
    }
    fexecve(&file, &arguments, &environment).with_context(|| format!("run {}", first.display()))
}
