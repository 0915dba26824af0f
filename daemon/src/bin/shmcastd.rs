//! The daemon.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    shmcast_daemon::cli::daemon::main()
}
