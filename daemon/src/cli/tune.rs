//! `shmcast tune`: shows, applies and undoes settings of this host that help according to measurements. [`crate::tune`] does the work.

use super::say::{print, print_json};
use crate::doctor::{Host, Root};
use crate::tune::{self, Item, Outcome, STATE, Tuned};
use anyhow::{Result, bail};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

/// Apply settings of this host that were measured to help, and undo them.
///
/// Without options, it shows what it would change, and changes nothing. With --apply, it first saves the present values in
/// /var/lib/shmcast-tune/before.json, and then writes the new ones. With --undo, it writes the saved values back. If somebody has changed a
/// value since then, --undo leaves this value as it is.
///
/// It acts only on findings of `shmcast doctor` whose correction was measured to help shmcast: the receive buffers of bridges and huge
/// pages for rings. Some other corrections were measured and did not help, such as net.core.busy_poll. Most others depend on the machine
/// and were not measured, so you must decide about them.
///
/// Exits with 0 if everything was done, and with 1 if a value could not be written. In that case the other values are written nevertheless.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Change it, as root
    #[arg(long, conflicts_with = "undo")]
    apply: bool,

    /// With --apply: keep the settings over reboots, by files in /etc/sysctl.d and /etc/tmpfiles.d
    #[arg(long, requires = "apply")]
    persist: bool,

    /// Restore the saved values, and remove the files that keep the settings over reboots, as root
    #[arg(long)]
    undo: bool,

    /// Print everything as one JSON object
    #[arg(long)]
    json: bool,

    /// Tune the host whose files lie below this directory
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    root: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  shmcast tune                           what would be changed, and why
  sudo shmcast tune --apply              until the next boot
  sudo shmcast tune --apply --persist    for good
  sudo shmcast tune --undo               as it was before";

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let root = Root::at(&args.root)?;
    let changes = args.apply || args.undo;
    if changes && root.is_live() && !nix::unistd::geteuid().is_root() {
        let option = if args.apply { "--apply" } else { "--undo" };
        bail!("only root may change settings of the host: sudo shmcast tune {option}");
    }
    let tuned = if args.undo {
        tune::undo(&root)?
    } else {
        let host = Host::new(root, None)?;
        if args.apply { tune::apply(&host, args.persist)? } else { tune::plan(&host) }
    };
    if args.json {
        print_json(&tuned)?;
    } else {
        print(for_eyes(&tuned, args))?;
    }
    Ok(if tuned.count(Outcome::Failed) > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn for_eyes(tuned: &Tuned, args: &Args) -> String {
    let mut out = String::new();
    for item in &tuned.items {
        describe(&mut out, item, args.undo);
    }
    for file in &tuned.kept {
        let _ = writeln!(out, "{} {}", if args.undo { "removed" } else { "kept in" }, file.display());
    }
    let _ = writeln!(out, "{}", conclusion(tuned, args));
    out
}

fn describe(out: &mut String, item: &Item, undone: bool) {
    let [before, after] = [&item.before, &item.after].map(|value| value.as_deref().unwrap_or("?"));
    let file = item.file.as_deref().unwrap_or(&item.check);
    let problem = item.problem.as_deref().unwrap_or_default();
    let _ = match item.outcome {
        Outcome::AsWanted => writeln!(out, "{}: as wanted: {}", item.check, item.says),
        Outcome::WouldChange => writeln!(out, "{}: would change {file} from {before} to {after}", item.check),
        Outcome::Changed => writeln!(out, "{}: changed {file} from {before} to {after}", item.check),
        Outcome::Restored => writeln!(out, "{}: {file} is {before} again", item.check),
        Outcome::Left => writeln!(out, "{}: left {file} as it is: {problem}", item.check),
        Outcome::Unknown => writeln!(out, "{}: unknown: {problem}", item.check),
        Outcome::Failed => writeln!(out, "{}: FAILED: {problem}", item.check),
    };
    if !undone && item.outcome != Outcome::AsWanted {
        let _ =
            writeln!(out, "  why       {}\n  measured  {}\n  price     {}", item.why, item.gain, item.price);
    }
}

/// The last line: the result, and what to do next.
fn conclusion(tuned: &Tuned, args: &Args) -> String {
    let [would, changed, failed, left] =
        [Outcome::WouldChange, Outcome::Changed, Outcome::Failed, Outcome::Left]
            .map(|outcome| tuned.count(outcome));
    match () {
        () if args.undo && tuned.items.is_empty() && tuned.kept.is_empty() => {
            "nothing to undo: `shmcast tune --apply` has changed nothing here".to_owned()
        }
        () if failed > 0 => format!("{failed} of {} values could not be written", tuned.items.len()),
        () if args.undo && left > 0 => format!("undone, but for {left} that somebody has changed since"),
        () if args.undo => "all is undone".to_owned(),
        () if changed > 0 => {
            format!("{changed} changed; what was there is in {STATE}: `shmcast tune --undo`")
        }
        () if would > 0 => {
            "nothing was changed: `sudo shmcast tune --apply` does, `--undo` puts it back".to_owned()
        }
        () => "nothing to change".to_owned(),
    }
}
