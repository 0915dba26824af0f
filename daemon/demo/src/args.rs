//! The command line of the demo.

use crate::talk::STAMP;

const EXAMPLE: &str = "\
Examples:
  shmcast demo
  shmcast demo --readers 100 --messages 10000 --json
  shmcast demo --wait 300                       # for a quiet machine, up to 5 minutes

Latency is measured from just before the publisher sends to just after the slowest reader has the bytes. The
transports are played in short turns, so that what else the machine does meets both alike. What that was is
measured. A comparison is printed if other programs and the hypervisor took at most 20 % of the CPUs' time in
three of four pairs of turns.

Exit codes: 0 success, 1 error or loss, 2 wrong usage; 130 (Ctrl-C), 143 (SIGTERM) or
129 (SIGHUP) if it came before the end.";

/// The options of the demo.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub struct Args {
    /// Reader processes
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) readers: u32,
    /// Messages to publish through each transport
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(crate) messages: u64,
    /// Bytes of payload, 16 to 1400
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(STAMP as i64..=1400))]
    pub(crate) size: u32,
    /// Microseconds between two messages
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    pub(crate) interval_us: u64,
    /// Leave kernel multicast out
    #[arg(long)]
    pub(crate) no_multicast: bool,
    /// Wait up to this many seconds until other programs use little CPU time
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=86_400))]
    pub(crate) wait: u32,
    /// Print as JSON
    #[arg(long)]
    pub(crate) json: bool,
}
