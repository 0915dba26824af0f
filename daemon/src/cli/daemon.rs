//! `shmcastd`: the daemon's own command line.

use crate::config::DEFAULT_CONFIG;
use crate::server::{Options, run};
use clap::{CommandFactory, Parser};
use shmcast_bridge::spec::server::without_accounts;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

const EXAMPLE: &str = "\
Examples:
  shmcastd --print-default-config > shmcast.toml
  shmcast check shmcast.toml && shmcastd --config shmcast.toml

SIGHUP reads the configuration again, from a regular file; a bad one is refused and the old
one stays.
RUST_LOG sets what is logged: a level, or shmcast_daemon=LEVEL [default: info]. An error that
ends the daemon is always printed.";

/// The prefix of the targets of all log lines of the daemon.
const LOGGER: &str = "shmcast_daemon";

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
    let wanted = std::env::var(EnvFilter::DEFAULT_ENV).ok().filter(|text| !text.trim().is_empty());
    let (filter, trouble) = wanted.map_or_else(|| (EnvFilter::new("info"), None), |text| filter(&text));
    log(filter);
    trouble.iter().for_each(|trouble| super::say::line(format_args!("shmcastd: {trouble}")));
    if let Err(e) = super::stop::survive_file_size_limit() {
        return fail(&format!("no handler for the limit on file sizes: {e}"));
    }
    match run(&Options { config_path: cli.config, socket: cli.socket }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => fail(&super::describe(&e).to_string()),
    }
}

/// Logs the reason why the daemon ends. If the log's filter leaves out errors, writes the reason to stderr.
fn fail(why: &str) -> ExitCode {
    tracing::error!("{why}");
    if !tracing::enabled!(tracing::Level::ERROR) {
        super::say::line(format_args!("shmcastd: {why}"));
    }
    ExitCode::FAILURE
}

/// Parses log directives, and returns their filter. Also returns a sentence for the user if the directives are malformed, or if none of
/// them is about the daemon.
fn filter(directives: &str) -> (EnvFilter, Option<String>) {
    const INSTEAD: &str = "write a level such as RUST_LOG=info, or shmcast_daemon=info";
    match EnvFilter::try_new(directives) {
        Ok(filter) if is_about_daemon(directives) => (filter, None),
        Ok(filter) => {
            (filter, Some(format!("RUST_LOG={directives:?} logs nothing of this program: {INSTEAD}")))
        }
        Err(e) => {
            (EnvFilter::new("info"), Some(format!("RUST_LOG={directives:?} is not used: {e}: {INSTEAD}")))
        }
    }
}

/// Whether at least one of the directives is a level, or names a target of the daemon's log lines.
fn is_about_daemon(directives: &str) -> bool {
    directives.split(',').any(|directive| {
        let target = directive.split(['=', '[']).next().unwrap_or_default().trim();
        target.parse::<LevelFilter>().is_ok()
            || LOGGER.starts_with(target)
            || target.strip_prefix(LOGGER).is_some_and(|rest| rest.starts_with("::"))
    })
}

/// Logs to the journal under systemd, and as text elsewhere.
fn log(filter: EnvFilter) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directive_that_logs_nothing_of_the_daemon_is_told() {
        assert!(module_path!().starts_with(LOGGER));
        for text in [
            "info",
            "OFF",
            "2",
            "shmcast=debug",
            "shmcast_daemon::server=info",
            "tokio=warn,error",
            "[x]=info",
        ] {
            assert_eq!(filter(text).1, None, "{text}");
        }
        for text in ["inof", "9", "shmcastd=info", "shmcast_daemons=info", "info=shmcast"] {
            let said = filter(text).1.unwrap_or_else(|| panic!("{text}"));
            assert!(said.contains(&format!("RUST_LOG={text:?}")) && said.contains("RUST_LOG=info"), "{said}");
        }
    }
}
