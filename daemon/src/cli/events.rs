//! `shmcast events`: shows past events of the daemon's channels, and new events as they happen.

use super::figures::printable;
use super::ls::who;
use super::say::{note, print, print_json};
use super::stop::Stop;
use super::units::{now_ns, parse_duration};
use super::{Host, HostArg};
use anyhow::{Result, bail};
use shmcast::control::Event;
use shmcast::{ChannelError, Client, Events};
use std::process::ExitCode;
use std::time::Duration;

const EXAMPLE: &str = "\
Examples:
  shmcast events --follow
  shmcast events --last 20
  shmcast events --since 10m --json | jq -r .event | sort | uniq -c
  shmcast events --follow --json | jq 'select(.event == \"refused\")'

Exit codes: 0 success, 1 error, 2 wrong usage. Ctrl-C and SIGTERM end --follow with 0; without it
the code is 130 (Ctrl-C), 143 (SIGTERM) or 129 (SIGHUP) if no event came.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    /// Begin with this many of the last events. The daemon keeps the events since its start, at most 1024 unless configured otherwise
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    last: Option<u32>,
    /// Begin with the past events that are not older than this
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    since: Option<Duration>,
    /// Continue until interrupted, also through restarts of the daemon. Without this option, print the past events that --last or --since
    /// asks for and end; without --last and --since, wait for one event, print it and end
    #[arg(long, short)]
    follow: bool,
    /// Print as JSON, one line an event
    #[arg(long)]
    json: bool,
}

/// Pause between two attempts to reach a daemon that has gone.
const PAUSE: Duration = Duration::from_millis(200);

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let stop = Stop::listen()?;
    let host = HostArg::default().host()?;
    let Host::Daemon(client) = host else {
        bail!("{host} has no events: only a daemon tells them; start shmcastd, or set SHMCAST_SOCKET");
    };
    let asks_for_past = args.last.is_some() || args.since.is_some();
    let last = args.last.unwrap_or(if args.since.is_some() { u32::MAX } else { 0 });
    let (past, mut events) = client.events_after(last)?;
    let first_ns = args.since.map_or(0, |since| now_ns().saturating_sub(since.as_nanos() as u64));
    // The time of the last event that was shown. After a restart of the daemon, only events that happened later are shown.
    let mut shown_ns = now_ns();
    for event in past.iter().filter(|event| event.time_ns >= first_ns) {
        show(event, args.json)?;
        shown_ns = event.time_ns;
    }
    if asks_for_past && !args.follow {
        return Ok(ExitCode::SUCCESS);
    }
    while !stop.is_set() {
        match events.next_event() {
            Ok(None) => {}
            Ok(Some(event)) => {
                show(&event, args.json)?;
                shown_ns = event.time_ns;
                if !args.follow {
                    return Ok(ExitCode::SUCCESS);
                }
            }
            Err(e @ ChannelError::NoDaemon { .. }) if args.follow => {
                note!("{e}; waiting for it to come back");
                let Some((past, back)) = wait_for(&client, &stop) else { break };
                note!("it is back; what happened without it is not known");
                let known_ns = shown_ns;
                for event in past.iter().filter(|event| event.time_ns > known_ns) {
                    show(event, args.json)?;
                    shown_ns = event.time_ns;
                }
                events = back;
            }
            Err(e) => return Err(e.into()),
        }
    }
    if !args.follow {
        return Err(stop.interrupted("INTERRUPTED: no event came").into());
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits for the next daemon. Returns its events since its start, or `None` after a signal.
fn wait_for(client: &Client, stop: &Stop) -> Option<(Vec<Event>, Events)> {
    while !stop.is_set() {
        if let Ok(events) = client.events_after(u32::MAX) {
            return Some(events);
        }
        std::thread::sleep(PAUSE);
    }
    None
}

fn show(event: &Event, json: bool) -> Result<()> {
    if json {
        return print_json(event);
    }
    print(line(event))
}

/// Formats an event: time, event, channel, role, process and detail. Parts that the event lacks are left out.
fn line(event: &Event) -> String {
    let process = event.process.as_ref().map(who);
    let words = [event.channel.as_deref(), event.role.as_deref(), process.as_deref()];
    let words: Vec<&str> = words.into_iter().flatten().collect();
    let detail = event.detail.as_ref().map_or(String::new(), |detail| format!(": {detail}"));
    let line = format!("{} {:<12} {}{detail}", utc(event.time_ns), event.event, words.join(" "));
    printable(line.trim_end())
}

/// Formats nanoseconds since 1970 as date and time of day, to the millisecond.
fn utc(time_ns: u64) -> String {
    let ms = time_ns / 1_000_000;
    let (year, month, day) = date(ms / 86_400_000);
    let (hour, minute, second) = (ms / 3_600_000 % 24, ms / 60_000 % 60, ms / 1000 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1000)
}

/// Returns the Gregorian date of the day that is `days` after 1970-01-01. Years begin with March here, so that the leap day is the last day
/// of a year. A cycle of 400 years always has the same number of days.
fn date(days: u64) -> (u64, u64, u64) {
    const CYCLE: u64 = 146_097;
    // The days from 0000-03-01 to 1970-01-01.
    let days = days + 719_468;
    let (cycle, of_cycle) = (days / CYCLE, days % CYCLE);
    let year = (of_cycle - of_cycle / 1460 + of_cycle / 36_524 - of_cycle / 146_096) / 365;
    let of_year = of_cycle - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (cycle * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use shmcast::Process;

    #[test]
    fn a_leap_day_that_shifts_the_date() {
        let at = |seconds: u64| utc(seconds * 1_000_000_000);
        // These are the answers of `date -u -d @SECONDS`.
        assert_eq!(at(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.000Z");
        assert_eq!(at(1_709_251_199), "2024-02-29T23:59:59.000Z");
        assert_eq!(at(1_709_251_200), "2024-03-01T00:00:00.000Z");
        assert_eq!(at(1_798_761_599), "2026-12-31T23:59:59.000Z");
        assert_eq!(at(4_107_542_399), "2100-02-28T23:59:59.000Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00.000Z");
        assert_eq!(utc(1_234_567), "1970-01-01T00:00:00.001Z");
    }

    #[test]
    fn a_process_name_that_writes_a_line_of_its_own() {
        let process = Process { pid: Some(7), uid: Some(0), command: Some("x\n1970 refused\x1b[2J".into()) };
        let event = Event {
            time_ns: 0,
            event: "attached".into(),
            channel: Some("ticks".into()),
            role: Some("reader".into()),
            process: Some(process),
            detail: None,
        };
        assert_eq!(line(&event), "1970-01-01T00:00:00.000Z attached     ticks reader 7 x?1970 refused?[2J");
    }
}
