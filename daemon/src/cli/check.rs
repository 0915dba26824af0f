//! `shmcast check`: checks a configuration file before a daemon reads it.

use super::figures::{size, table};
use super::say::{note, print, print_json};
use crate::config::{Config, ConfigError, Problem, Warning};
use anyhow::Result;
use comfy_table::{ContentArrangement, Table};
use serde_json::json;
use shmcast_bridge::spec::BridgeSpec;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLE: &str = "\
Examples:
  shmcast check /etc/shmcast/shmcast.toml && systemctl reload shmcastd
  shmcastd --print-default-config | shmcast check -

Errors keep a configuration from loading: exit code 1. Warnings are legal, and will be regretted: exit code 0.
Memory, CPUs, interfaces, limits, users and groups are those of this machine and this shell: of
a file for another host, some warnings mean nothing. A bridge whose interface is not there does
not start.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    /// The configuration file; - for stdin
    file: PathBuf,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let read = match args.file.as_path() == Path::new("-") {
        true => Config::read(std::io::stdin().lock(), "stdin"),
        false => Config::load(&args.file),
    };
    match read {
        Ok(config) => {
            report_valid(args, &config)?;
            Ok(ExitCode::SUCCESS)
        }
        Err(ConfigError::Invalid { origin, problems }) => {
            if args.json {
                print_json(&json!({"file": origin, "valid": false, "errors": problems, "warnings": []}))?;
            } else {
                print(error_table(&problems).trim_fmt())?;
            }
            note!("{origin}: {}; the daemon refuses this file", count(problems.len(), "error"));
            Ok(ExitCode::FAILURE)
        }
        Err(unreadable) => Err(unreadable.into()),
    }
}

fn report_valid(args: &Args, config: &Config) -> Result<()> {
    let warnings = config.warnings();
    let bytes = |channel: &crate::config::ChannelConfig| channel.spec().segment_bytes();
    let memory: u64 = config.channels.iter().map(bytes).sum::<Result<u64, _>>()?;
    if args.json {
        let channels: Vec<_> = config.channels.iter().map(|channel| &channel.name).collect();
        let bridges: Vec<_> = config.bridges.iter().map(BridgeSpec::title).collect();
        print_json(&json!({
            "file": args.file, "valid": true, "channels": channels, "bridges": bridges, "memory_bytes": memory,
            "errors": [], "warnings": warnings,
        }))?;
        return Ok(());
    }
    if !warnings.is_empty() {
        print(warning_table(&warnings).trim_fmt())?;
    }
    let mut channels = count(config.channels.len(), "channel");
    if !config.bridges.is_empty() {
        channels += &format!(", {}", count(config.bridges.len(), "bridge"));
    }
    note!(
        "{}: valid, {channels}, {} of memory, {}",
        args.file.display(),
        size(memory),
        count(warnings.len(), "warning")
    );
    Ok(())
}

fn error_table(problems: &[Problem]) -> Table {
    let mut rows = table(["LINE", "COLUMN", "SECTION", "ERROR"], 4);
    rows.set_content_arrangement(ContentArrangement::Dynamic);
    for problem in problems {
        let place = problem.position;
        let section = if problem.section.is_empty() { "-" } else { &problem.section };
        rows.add_row([&place.line.to_string(), &place.column.to_string(), section, &problem.what]);
    }
    rows
}

fn warning_table(warnings: &[Warning]) -> Table {
    let mut rows = table(["LINE", "CHANNEL", "FIELD", "WARNING", "INSTEAD"], 5);
    rows.set_content_arrangement(ContentArrangement::Dynamic);
    for warning in warnings {
        let line = warning.line.map_or("-".to_owned(), |line| line.to_string());
        let channel = warning.channel.as_deref().unwrap_or("-");
        rows.add_row([&line, channel, warning.field, &warning.what, &warning.instead]);
    }
    rows
}

fn count(number: usize, of: &str) -> String {
    format!("{number} {of}{}", if number == 1 { "" } else { "s" })
}
