//! `shmcast stat`: one channel and its readers, once or every second.

use super::figures::{Ns, grouped, size, table};
use super::ls::{state, to_json};
use super::{DirArg, print_json, stop_flag, stopped};
use anyhow::Result;
use shmcast::{ChannelInfo, Publishing};
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[derive(Debug, clap::Args)]
#[command(after_help = "Example: shmcast stat ticks --watch")]
pub(super) struct Args {
    /// Name of the channel
    channel: String,
    #[command(flatten)]
    dir: DirArg,
    /// Show it again every second, with rates, until interrupted
    #[arg(long)]
    watch: bool,
    /// Print as JSON, one line each time
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let stop = stop_flag()?;
    let directory = args.dir.directory();
    let clear = args.watch && std::io::stdout().is_terminal() && !args.json;
    let mut before: Option<(Instant, ChannelInfo)> = None;
    loop {
        let info = directory.channel(&args.channel)?;
        let now = Instant::now();
        if clear {
            print!("\x1b[H\x1b[2J");
        }
        if args.json {
            print_json(&to_json(&info))?;
        } else {
            let rate = before.as_ref().and_then(|(then, earlier)| rate(earlier, &info, now - *then));
            print_table(&info, rate);
        }
        if !args.watch {
            return Ok(ExitCode::SUCCESS);
        }
        before = Some((now, info));
        while now.elapsed() < Duration::from_secs(1) {
            if stopped(&stop) {
                return Ok(ExitCode::SUCCESS);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Messages a second between two looks.
fn rate(earlier: &ChannelInfo, later: &ChannelInfo, between: Duration) -> Option<u64> {
    let sequence = |info: &ChannelInfo| Some(info.detail.as_ref().ok()?.tail.as_ref().ok()?.sequence);
    let published = sequence(later)?.saturating_sub(sequence(earlier)?);
    Some((published as f64 / between.as_secs_f64()) as u64)
}

fn print_table(info: &ChannelInfo, rate: Option<u64>) {
    let mut facts = table(["CHANNEL", &info.name], 2);
    let mut fact = |name: &str, value: String| {
        facts.add_row([name.to_owned(), value]);
    };
    fact("state", state(info).to_owned());
    let publisher = match &info.publisher {
        Publishing::By(holder) => holder.to_string(),
        Publishing::Nobody => "none".to_owned(),
        Publishing::Unknown => "unknown: the lock file belongs to another user".to_owned(),
    };
    fact("publisher", publisher);
    let mut next = None;
    match &info.detail {
        Err(what) => fact("error", what.clone()),
        Ok(d) => {
            let g = &d.header.geometry;
            fact("epoch", d.epoch.to_string());
            match (&d.oldest, &d.tail) {
                (Ok(oldest), Ok(tail)) => {
                    next = Some(tail.sequence);
                    fact("next sequence", grouped(tail.sequence));
                    fact("oldest in the ring", grouped(oldest.sequence));
                }
                (Err(what), _) | (_, Err(what)) => fact("error", what.clone()),
            }
            if let Some(rate) = rate {
                fact("messages a second", grouped(rate));
            }
            fact("payload published", size(d.published_bytes));
            fact("capacity", size(g.capacity));
            fact("largest message", size(g.max_message));
            if d.header.schema_id != 0 {
                fact("schema", format!("{} {}", d.header.schema_id, d.header.schema));
            }
            for label in d.header.labels.lines() {
                fact("label", label.to_owned());
            }
        }
    }
    println!("{}", facts.trim_fmt());
    println!("\n{} reader{}", info.readers.len(), if info.readers.len() == 1 { "" } else { "s" });
    if info.readers.is_empty() {
        return;
    }
    let mut rows = table(["PID", "COMMAND", "LAG", "RECEIVED", "LAPPED", "MISSED", "P50", "P99", "MAX"], 2);
    for reader in &info.readers {
        let s = &reader.stats;
        let lag = next.map_or("?".to_owned(), |next| grouped(next.saturating_sub(s.place.sequence)));
        let latency = |q| s.latency_ns(q).map_or("-".to_owned(), |ns| Ns(ns).to_string());
        rows.add_row([
            s.pid.to_string(),
            reader.command.clone().unwrap_or_default(),
            lag,
            grouped(s.received),
            grouped(s.lapped),
            grouped(s.missed),
            latency(0.5),
            latency(0.99),
            latency(1.0),
        ]);
    }
    println!("{}", rows.trim_fmt());
}
