//! `shmcast man` and `shmcast completions`: write the manual pages and completion scripts that a package installs. Both are generated from
//! the programs' own command lines, so they always match.
//!
//! At each completion, the script of `shmcast` runs the program, because only the program knows the present channels.

use super::say::{self, note};
use super::{Cli, HostArg, daemon};
use anyhow::{Context, Result};
use clap::{CommandFactory, ValueHint};
use clap_complete::env::Shells;
use clap_complete::{ArgValueCandidates, CompleteEnv, CompletionCandidate, Shell};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

mod config_page;
mod surroundings;

#[derive(Debug, clap::Args)]
#[command(after_help = "Example: shmcast man /usr/local/share/man")]
pub(super) struct ManArgs {
    /// Directory of manuals, below which man1, man5 and man8 are made
    dir: PathBuf,
    /// Print the paths that were written as JSON
    #[arg(long)]
    json: bool,
}

/// Writes a manual page for each program, each verb, each nested verb, and the configuration.
pub(super) fn manuals(args: &ManArgs) -> Result<ExitCode> {
    let mut written = Vec::new();
    for (section, command) in [("1", Cli::command()), ("8", daemon::command())] {
        let mut command = command.disable_help_subcommand(true);
        command.build();
        let mut pages = vec![&command];
        while let Some(page) = pages.pop() {
            pages.extend(
                page.get_subcommands().filter(|verb| !verb.is_hide_set() && verb.get_name() != "help"),
            );
            // The display name, `shmcast-ls`, is the name of the page. The usage has the words that the user types: `shmcast ls`.
            let name = page.get_display_name().unwrap_or(page.get_name()).to_owned();
            let mut text = Vec::new();
            clap_mangen::Man::new(page.clone())
                .title(name.to_uppercase())
                .section(section)
                .render(&mut text)?;
            let is_program = std::ptr::eq(page, &command);
            text.extend(surroundings::sections(page, section, is_program).into_bytes());
            written.push(write(&args.dir, &name, section, &text)?);
        }
    }
    written.push(write(&args.dir, "shmcast.toml", "5", config_page::page().as_bytes())?);
    if args.json {
        say::print_json(&serde_json::json!({ "written": written }))?;
    } else {
        note!("{} manual pages in {}", written.len(), args.dir.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes one page to the path below `dir` where `man` looks for it.
fn write(dir: &Path, name: &str, section: &str, text: &[u8]) -> Result<PathBuf> {
    let dir = dir.join(format!("man{section}"));
    fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    let path = dir.join(format!("{name}.{section}"));
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    Ok(path)
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: shmcast completions bash > ~/.local/share/bash-completion/completions/shmcast"
)]
pub(super) struct CompletionsArgs {
    /// The shell
    shell: Shell,
    /// The program to complete
    #[arg(value_enum, default_value = "shmcast")]
    program: Program,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Program {
    Shmcast,
    Shmcastd,
}

/// The environment variable with which the script requests completions.
const ASKED: &str = "SHMCAST_COMPLETE";

/// Answers a shell that requests completions. Returns false if this process was not started to complete a command line.
pub(super) fn complete() -> clap::error::Result<bool> {
    let command = || with_channels(Cli::command());
    let dir = std::env::current_dir().ok();
    CompleteEnv::with_factory(command).var(ASKED).try_complete(std::env::args_os(), dir.as_deref())
}

/// Adds completion of existing channels to the channel arguments of a command.
fn with_channels(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|argument| match argument.get_id().as_str() {
        "channel" => argument.add(ArgValueCandidates::new(channels)),
        _ => argument,
    });
    command.mut_subcommands(with_channels)
}

/// Returns the channels that a verb without `--dir` would find. If they cannot be listed, returns an empty list.
fn channels() -> Vec<CompletionCandidate> {
    let host = HostArg::default().host();
    let channels = host.ok().and_then(|host| host.channels().ok()).unwrap_or_default();
    channels.into_iter().map(|channel| CompletionCandidate::new(channel.channel)).collect()
}

/// Disables the completion of values that are neither words nor paths. Otherwise, a shell would suggest the names of files for these
/// values.
fn without_files(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|argument| {
        let is_free = argument.get_action().takes_values() && argument.get_value_hint() == ValueHint::Unknown;
        if is_free { argument.value_hint(ValueHint::Other) } else { argument }
    });
    command.mut_subcommands(without_files)
}

/// Prints a completion script.
pub(super) fn completions(args: &CompletionsArgs) -> Result<ExitCode> {
    let mut script = Vec::new();
    match args.program {
        Program::Shmcast => {
            let shells = Shells::builtins();
            let shell = shells.completer(&args.shell.to_string()).expect("all shells are built in");
            shell.write_registration(ASKED, "shmcast", "shmcast", "shmcast", &mut script)?;
        }
        Program::Shmcastd => {
            clap_complete::generate(
                args.shell,
                &mut without_files(daemon::command()),
                "shmcastd",
                &mut script,
            );
        }
    }
    say::print(String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}
