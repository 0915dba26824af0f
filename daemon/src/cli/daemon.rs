//! `shmcastd`: the daemon's own command line.

use crate::config::DEFAULT_CONFIG;
use crate::server::{Options, run};
use clap::{CommandFactory, Parser};
use shmcast_bridge::spec::server::without_accounts;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

const EXAMPLE: &str = "\
Examples:
  shmcastd --print-default-config > shmcast.toml
  shmcast check shmcast.toml && shmcastd --config shmcast.toml

SIGHUP reads the configuration again, from a regular file; a bad one is refused and the old
one stays.
RUST_LOG sets what is logged [default: info].";

/// Owns shmcast channels: decides who may attach, watches and measures, and is never on the data path.
#[derive(Debug, Parser)]
#[command(name = "shmcastd", version, after_help = EXAMPLE, max_term_width = 110)]
struct Cli {
    /// Configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where to listen [default: the configuration's, else /run/shmcast/control.sock or $XDG_RUNTIME_DIR]
    #[arg(long, value_name = "PATH", env = "SHMCAST_SOCKET")]
    socket: Option<PathBuf>,
    /// Print a configuration with every setting explained, and end
    #[arg(long)]
    print_default_config: bool,
}

/// The command line, for manuals and completions.
pub(super) fn command() -> clap::Command {
    Cli::command()
}

/// Parses the arguments of this process, and runs the daemon.
pub fn main() -> ExitCode {
    let cli: Cli = match super::parse(without_accounts) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    if cli.print_default_config {
        let printed = super::say::print(DEFAULT_CONFIG);
        return printed.map_or_else(|e| ExitCode::from(super::end(&e)), |()| ExitCode::SUCCESS);
    }
    log();
    if let Err(e) = super::stop::survive_file_size_limit() {
        tracing::error!("no handler for the limit on file sizes: {e}");
        return ExitCode::FAILURE;
    }
    match run(&Options { config_path: cli.config, socket: cli.socket }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            tracing::error!("{}", super::describe(&e));
            ExitCode::FAILURE
        }
    }
}

/// Logs to the journal under systemd, and as text elsewhere.
fn log() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let registry = tracing_subscriber::registry().with(filter);
    if std::env::var_os("JOURNAL_STREAM").is_some()
        && let Ok(journal) = tracing_journald::layer()
    {
        registry.with(journal).init();
        return;
    }
    // If stderr cannot be written, the daemon continues without a log. By default, the library would report the failed write on stderr, and
    // panic when that fails, too.
    let text = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).log_internal_errors(false);
    // A terminal gets colours, a file does not.
    registry.with(text.with_ansi(std::io::stderr().is_terminal())).init();
}
