//! `shmcast bridge stream`: manages the stream of NATS JetStream through which a channel is sent.

use super::{Options, Side, progress};
use crate::cli::MISSED;
use crate::cli::figures::{grouped, size, table};
use crate::cli::say::{note, print, print_json};
use anyhow::{Result, bail};
use serde_json::json;
use shmcast::hosting::check_channel_name;
use shmcast_bridge::spec::BridgeSpec;
use shmcast_engine::stream::{self, Range, StreamInfo, Verified};
use std::process::ExitCode;

/// The exit code for a stream that is damaged.
const DAMAGED: u8 = 4;
/// Number of entries between two updates of the progress line.
const EVERY: u64 = 256;
/// The limit for printed ranges and for printed entries without `--json`.
const MOST_PRINTED: usize = 20;

const EXAMPLE: &str = "\
Examples:
  shmcast bridge stream create ticks nats://10.0.0.1:4222 --set nats.keep_bytes=10_000_000_000
  shmcast bridge stream info ticks nats://10.0.0.1:4222
  shmcast bridge stream verify ticks nats://10.0.0.1:4222
  shmcast bridge stream rm ticks nats://10.0.0.1:4222

Exit codes: 0 success, 1 error, 2 wrong usage; verify: 3 messages are named as lost, 4 the stream is damaged.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Make the stream
    Create {
        #[command(flatten)]
        what: What,
        /// Copy the stream that has the same name in this domain of JetStream
        #[arg(long, value_name = "DOMAIN")]
        mirror_of: Option<String>,
    },
    /// Show the stream's size, its last sequence, and the server that leads it
    Info {
        #[command(flatten)]
        what: What,
    },
    /// Read the whole stream, and check each block and how the blocks join
    Verify {
        #[command(flatten)]
        what: What,
    },
    /// Remove the stream with all its messages
    Rm {
        #[command(flatten)]
        what: What,
    },
}

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
struct What {
    /// Name of the channel
    channel: String,
    /// Servers of NATS JetStream, such as nats://10.0.0.1:4222, or tls://host:4222 with TLS; several with commas between
    #[arg(value_name = "URL", num_args = 1, value_delimiter = ',', required_unless_present_any = ["config", "set"])]
    servers: Vec<String>,
    #[command(flatten)]
    options: Options,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

impl What {
    fn spec(&self) -> Result<BridgeSpec> {
        check_channel_name(&self.channel)?;
        let draft = self.options.draft(&self.channel, Side::Neither)?;
        let spec = self.options.finish(draft, Side::Neither, &self.servers)?;
        if spec.nats().is_none() {
            bail!("give the servers, as in nats://HOST:4222");
        }
        Ok(spec)
    }
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    match &args.verb {
        Verb::Create { what, mirror_of } => show(what, &stream::create(&what.spec()?, mirror_of.as_deref())?),
        Verb::Info { what } => show(what, &stream::info(&what.spec()?)?),
        Verb::Verify { what } => verify(what),
        Verb::Rm { what } => {
            stream::remove(&what.spec()?)?;
            if what.json {
                print_json(&json!({ "channel": what.channel, "removed": true }))?;
            } else {
                note!("{}: removed its stream", what.channel);
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn show(what: &What, info: &StreamInfo) -> Result<ExitCode> {
    if what.json {
        print_json(info)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = table(["STREAM", &info.stream], 1);
    let next = info.next_sequence.map_or_else(|| "-".to_owned(), grouped);
    let leader = info.leader.clone().unwrap_or_else(|| "-".to_owned());
    let session = info.session.clone().unwrap_or_else(|| "-".to_owned());
    rows.add_row(["session", &session]);
    rows.add_row(["next sequence", &next]);
    rows.add_row(["blocks", &grouped(info.entries)]);
    rows.add_row(["size", &size(info.bytes)]);
    rows.add_row(["copies", &info.replicas.to_string()]);
    rows.add_row(["leader", &leader]);
    print(rows.trim_fmt())?;
    for server in &info.lagging {
        note!("{}: server {server} is behind, or gone", what.channel);
    }
    Ok(ExitCode::SUCCESS)
}

fn verify(what: &What) -> Result<ExitCode> {
    let (spec, bar) = (what.spec()?, progress());
    let found = stream::verify(&spec, |done, of| {
        if done % EVERY == 0 {
            bar.set_message(format!("{} of {} blocks", grouped(done), grouped(of)));
            bar.tick();
        }
    })?;
    bar.finish_and_clear();
    if what.json {
        print_json(&found)?;
    } else {
        report(&what.channel, &found, spec.keys.is_some());
    }
    Ok(match (found.is_sound(), found.gaps.is_empty()) {
        (false, _) => ExitCode::from(DAMAGED),
        (true, false) => ExitCode::from(MISSED),
        (true, true) => ExitCode::SUCCESS,
    })
}

fn report(name: &str, found: &Verified, has_keys: bool) {
    let tell = |ranges: &[Range], what: &str| {
        for Range { from, to } in ranges.iter().take(MOST_PRINTED) {
            note!("{name}: {what} {from} to {to}");
        }
        if ranges.len() > MOST_PRINTED {
            note!("{name}: {} more; --json has them", ranges.len() - MOST_PRINTED);
        }
    };
    tell(&found.gaps, "named as lost:");
    tell(&found.missing, "MISSING:");
    for (number, why) in found.damaged.iter().take(MOST_PRINTED) {
        note!("{name}: entry {number} is DAMAGED: {why}");
    }
    if found.chain_breaks > 0 {
        note!("{name}: {} blocks do not join the one before them", grouped(found.chain_breaks));
    }
    if found.sealed > 0 && !has_keys {
        note!("{name}: {} blocks are sealed: --set keys=FILE looks inside", grouped(found.sealed));
    }
    let is = if found.is_sound() { "whole" } else { "DAMAGED" };
    note!("{name}: {} messages in {} blocks: {is}", grouped(found.messages), grouped(found.blocks));
}
