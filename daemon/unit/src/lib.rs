//! Runs a program with the restrictions of a systemd unit, on a host where PID 1 is not systemd. Tests start the daemon through this crate.
//! The daemon then has the system calls, socket families, rights, limits and files that the shipped `shmcastd.service` gives it.
//!
//! The settings are read from the unit file itself. [`Settings::read`] refuses a line that this crate does not know. So no line of the unit
//! stays untested.
//!
//! This crate does not restart the program, watch it, or store its descriptors. The tests in
//! `daemon/tests/daemon/restart/` boot systemd for this. They also compare the rights of a process under systemd and under this crate.
//!
//! | file | settings that it applies |
//! |---|---|
//! | `settings.rs` | none: it reads the unit |
//! | `identity.rs` | user, capabilities, limits, file modes |
//! | `view.rs` | the visible files, and which of them can be written |
//! | `calls.rs` | the allowed system calls |
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

/// Returns the reason why a unit cannot be applied on this host, or `None` if it can.
pub fn missing() -> Option<&'static str> {
    if !geteuid().is_root() {
        return Some("only root may apply the unit");
    }
    let analyze = std::process::Command::new("systemd-analyze").arg("--version").output();
    analyze.is_err().then_some("no systemd-analyze, which names the system calls (Debian package systemd)")
}

/// Replaces this process by a program with the restrictions of `settings`. Call this while no other thread runs, because the restrictions
/// apply only to the calling thread.
///
/// - `program` is the path of the program and then its arguments. The unit can hide the program's directory, because this function opens
///   the program first.
/// - `runtime` is an existing directory. This function gives it to the unit's user, and the program sees it as the unit's runtime
///   directory, below `/run`.
/// - The program gets the caller's environment, and the variables that systemd adds.
///
/// # Errors
/// The setting that could not be applied. The process is then partly restricted, and must end.
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
    // The groups of system calls come from a program, so they are read while a program can still be run.
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
