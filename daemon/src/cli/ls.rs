//! `shmcast ls`: all channels, a line each.

use super::figures::{grouped, size, table};
use super::{DirArg, print_json};
use anyhow::Result;
use serde_json::{Value, json};
use shmcast::{ChannelInfo, Holder, Publishing, State};
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
#[command(after_help = "Example: shmcast ls --json")]
pub(super) struct Args {
    #[command(flatten)]
    dir: DirArg,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let directory = args.dir.directory();
    let channels = directory.channels()?;
    if args.json {
        print_json(&channels.iter().map(to_json).collect::<Vec<_>>())?;
        return Ok(ExitCode::SUCCESS);
    }
    if channels.is_empty() {
        eprintln!(
            "shmcast: no channels in {}: publish one with `shmcast pub NAME`",
            directory.path().display()
        );
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows =
        table(["CHANNEL", "STATE", "PUBLISHER", "READERS", "EPOCH", "CAPACITY", "OLDEST", "NEXT"], 3);
    for info in &channels {
        let readers = info.readers.len().to_string();
        let (epoch, capacity, oldest, next) = match &info.detail {
            Ok(d) => {
                let sequence = |place: &Result<shmcast::Place, String>| match place {
                    Ok(place) => grouped(place.sequence),
                    Err(_) => "?".to_owned(),
                };
                let capacity = size(d.header.geometry.capacity);
                (d.epoch.to_string(), capacity, sequence(&d.oldest), sequence(&d.tail))
            }
            Err(_) => Default::default(),
        };
        let publisher = match &info.publisher {
            Publishing::By(Holder::Publisher { pid: Some(pid), command }) => {
                format!("{pid} {}", command.as_deref().unwrap_or(""))
            }
            Publishing::By(_) => "yes".to_owned(),
            Publishing::Nobody => "-".to_owned(),
            Publishing::Unknown => "?".to_owned(),
        };
        rows.add_row([
            info.name.clone(),
            state(info).to_owned(),
            publisher,
            readers,
            epoch,
            capacity,
            oldest,
            next,
        ]);
    }
    println!("{}", rows.trim_fmt());
    for info in &channels {
        if let Err(what) = &info.detail {
            eprintln!("shmcast: {}: {what}", info.name);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// One word for how a channel is.
pub(super) fn state(info: &ChannelInfo) -> &'static str {
    let Ok(detail) = &info.detail else { return "damaged" };
    if detail.tail.is_err() {
        return "damaged";
    }
    match (detail.state, &info.publisher) {
        (Some(State::Active | State::Recovering), Publishing::Nobody) => "orphaned",
        (Some(State::Active), _) => "active",
        (Some(State::Recovering), _) => "recovering",
        (Some(State::Closed), _) => "closed",
        (Some(State::Superseded), _) => "superseded",
        (None, _) => "new",
    }
}

/// A channel as `ls` and `stat` print it.
pub(super) fn to_json(info: &ChannelInfo) -> Value {
    let publisher = match &info.publisher {
        Publishing::By(Holder::Publisher { pid, command }) => json!({"pid": pid, "command": command}),
        Publishing::By(_) => json!({}),
        Publishing::Nobody => json!(null),
        Publishing::Unknown => json!("unknown"),
    };
    let mut value = json!({"channel": info.name, "state": state(info), "publisher": publisher});
    let tail = match &info.detail {
        Err(what) => {
            value["error"] = json!(what);
            None
        }
        Ok(detail) => {
            let (header, geometry) = (&detail.header, &detail.header.geometry);
            value["epoch"] = json!(detail.epoch);
            value["capacity_bytes"] = json!(geometry.capacity);
            value["max_message_bytes"] = json!(geometry.max_message);
            value["uuid"] = json!(format!("{:016x}{:016x}", header.uuid[0], header.uuid[1]));
            value["created_ns"] = json!(header.created_ns);
            value["clock"] =
                json!({"kind": format!("{:?}", header.clock).to_lowercase(), "hz": header.clock_hz});
            value["schema"] = json!({"id": header.schema_id, "name": header.schema});
            value["labels"] = json!(header.labels);
            value["published_bytes"] = json!(detail.published_bytes);
            for (name, place) in [("oldest_sequence", &detail.oldest), ("next_sequence", &detail.tail)] {
                match place {
                    Ok(place) => value[name] = json!(place.sequence),
                    Err(what) => value["error"] = json!(what),
                }
            }
            detail.tail.as_ref().ok()
        }
    };
    let readers = info.readers.iter().map(|reader| {
        let s = &reader.stats;
        json!({
            "pid": s.pid, "command": reader.command, "next_sequence": s.place.sequence,
            "lag": tail.map(|tail| tail.sequence.saturating_sub(s.place.sequence)),
            "received": s.received, "lapped": s.lapped, "missed": s.missed, "started_at": s.started_at,
            "latency_ns": s.latency_ns(0.5).map(|p50| json!({
                "p50": p50, "p99": s.latency_ns(0.99), "p999": s.latency_ns(0.999), "max": s.latency_ns(1.0),
            })),
        })
    });
    value["readers"] = readers.collect();
    value
}
