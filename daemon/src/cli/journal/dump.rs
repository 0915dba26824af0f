//! `shmcast journal dump`: prints the records of a journal.

use super::Source;
use super::span::{Lacking, Part, Span};
use crate::cli::code_if;
use crate::cli::framing::{OutputFraming, write_message};
use crate::cli::say::{Out, note};
use crate::cli::stop::Stop;
use anyhow::{Error, Result};
use serde_json::json;
use shmcast::journal::{Cause, Entry, JournalControl, Loss};
use std::io::Write;
use std::process::ExitCode;

const EXAMPLE: &str = "\
Examples:
  shmcast journal dump /var/lib/shmcast/ticks --from 4711 --count 10
  shmcast journal dump /var/lib/shmcast/ticks --from 09:30 --framing lines

Exit codes: 0 nothing missing, 3 sequences are missing or skipped, 1 error; 130 (Ctrl-C),
143 (SIGTERM) or 129 (SIGHUP) if it came before the end.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    span: Span,
    /// End after this many messages
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// How messages are written
    #[arg(long, value_enum, default_value = "json")]
    framing: OutputFraming,
    /// As --framing json
    #[arg(long, conflicts_with = "framing")]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let stop = Stop::listen()?;
    let mut part = args.span.open(&args.source)?;
    let begin = part.due();
    let mut lacking = Lacking { missing: part.too_old, skipped: 0 };
    let mut out = Out::stdout()?;
    let mut left = args.count.unwrap_or(u64::MAX);
    let framing = if args.json { OutputFraming::Json } else { args.framing };
    while left > 0 {
        if stop.is_set() {
            out.flush()?;
            return Err(interrupted(args, begin, part.due(), &stop));
        }
        match write_next(&mut part, framing, &mut out)? {
            Wrote::Message => left -= 1,
            Wrote::Loss(loss) => lacking.add(loss),
            Wrote::Other => {}
            Wrote::Nothing => break,
        }
        out.end_message()?;
    }
    out.flush()?;
    let lacks_files = if left > 0 { part.lacks_files(part.due()) } else { part.lacks_beginning() };
    Ok(code_if(lacking.is_any() || lacks_files))
}

/// Returns the error for a dump that a signal stopped. The dump began at the sequence `begin`, and `due` is the first sequence that it did
/// not print.
fn interrupted(args: &Args, begin: u64, due: u64, stop: &Stop) -> Error {
    let dir = args.source.dir.display();
    let done = if due > begin { format!("up to sequence {}", due - 1) } else { "nothing".to_owned() };
    stop.interrupted(format!("{dir}: INTERRUPTED, dumped {done}")).into()
}

enum Wrote {
    Message,
    Loss(Loss),
    Other,
    Nothing,
}

fn write_next(part: &mut Part, framing: OutputFraming, out: &mut Out) -> Result<Wrote> {
    let in_band = framing == OutputFraming::Json;
    let Some(entry) = part.next()?.map(|item| item.entry) else { return Ok(Wrote::Nothing) };
    if let Some(loss) = entry.missing() {
        if in_band {
            writeln!(
                out,
                "{}",
                json!({"event": "lost", "from": loss.from, "to": loss.to, "cause": loss.cause.name()})
            )?;
        } else if loss.cause == Cause::Reserve {
            note!("{} to {} are skipped: a reserve", loss.from, loss.to);
        } else {
            note!("{} to {} are missing: {}", loss.from, loss.to, loss.cause.name());
        }
        return Ok(Wrote::Loss(loss));
    }
    let line = match entry {
        Entry::Message(message) => {
            write_message(framing, out, &message, None)?;
            return Ok(Wrote::Message);
        }
        Entry::Control { sequence, control, .. } => describe(sequence, control),
        _ => return Ok(Wrote::Other),
    };
    if in_band {
        writeln!(out, "{line}")?;
    }
    Ok(Wrote::Other)
}

fn describe(sequence: u64, control: JournalControl) -> serde_json::Value {
    match control {
        JournalControl::Clock { wall_ns, ticks, step_ns } => {
            json!({"event": "clock", "sequence": sequence, "wall_ns": wall_ns, "ticks": ticks, "step_ns": step_ns})
        }
        JournalControl::Source { ring, generation, epoch, first } => {
            let ring = format!("{:016x}{:016x}", ring[0], ring[1]);
            json!({"event": "source", "sequence": sequence, "ring": ring, "generation": generation, "epoch": epoch, "first": first})
        }
        JournalControl::Reserve { sequence: reserve } => {
            json!({"event": "reserve", "sequence": sequence, "reserve": reserve})
        }
        JournalControl::Clean { next } => json!({"event": "clean", "sequence": sequence, "next": next}),
        JournalControl::Mended { file, frames, bytes } => {
            json!({"event": "mended", "sequence": sequence, "file": file, "frames": frames, "bytes": bytes})
        }
        other => json!({"event": "control", "sequence": sequence, "detail": format!("{other:?}")}),
    }
}
