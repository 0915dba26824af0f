//! The reader processes of the demo: this program again, one process a reader, as real receivers are.
//!
//! A reader writes one byte when it is ready. At the end it writes an 8-byte latency in ticks for each
//! message, and `u64::MAX` for each one that it never got.

use super::STAMP;
use super::multicast::Group;
use crate::cli::stop::Stop;
use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use shmcast::{Clock, Event, Subscriber, Wait};
use std::io::{ErrorKind, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::time::Duration;

const READY: u8 = b'!';
const LOST: u64 = u64::MAX;
/// Silence after which a multicast reader counts the rest as lost. The publisher's pauses are at most a
/// second.
const SILENCE: Duration = Duration::from_secs(3);

/// The source of the readers' messages.
#[derive(Debug)]
pub(super) enum Source {
    Channel { dir: PathBuf, spin: bool },
    Multicast(Group),
}

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    #[arg(long)]
    messages: usize,
    #[arg(long)]
    dir: Option<PathBuf>,
    #[arg(long)]
    spin: bool,
    #[arg(long)]
    group: Option<Group>,
}

/// Latencies in ticks by message number; `None` for a lost message.
type Latencies = Vec<Option<u64>>;

/// The reader processes. They are killed on drop, so that an error leaves none behind.
pub(super) struct Pool {
    readers: Vec<(Child, ChildStdout)>,
    messages: usize,
}

impl Pool {
    /// Starts the readers and waits until each is ready for the first message.
    pub(super) fn start(readers: u32, messages: u64, source: &Source, stop: &Stop) -> Result<Self> {
        let program = std::env::current_exe().context("find this program to start readers from")?;
        let mut pool = Self { readers: Vec::new(), messages: messages as usize };
        let style =
            ProgressStyle::with_template("{msg:>16} {bar:40} {pos}/{len}").expect("the template is ours");
        let bar = ProgressBar::new(u64::from(readers)).with_style(style).with_message("starting readers");
        for _ in 0..readers {
            let mut command = Command::new(&program);
            command.arg("demo-reader").arg("--messages").arg(messages.to_string());
            match source {
                Source::Channel { dir, spin } => {
                    command.arg("--dir").arg(dir).args(spin.then_some("--spin"));
                }
                Source::Multicast(group) => {
                    command.arg("--group").arg(group.0.to_string());
                }
            }
            let mut child =
                command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("start a reader")?;
            let stdout = child.stdout.take().expect("stdout was asked for");
            pool.readers.push((child, stdout));
        }
        for (_, stdout) in &mut pool.readers {
            let mut ready = [0];
            if stdout.read(&mut ready)? != 1 || ready[0] != READY {
                bail!("a reader ended before it was ready; its error is above");
            }
            if stop.is_set() {
                return Err(stop.interrupted("INTERRUPTED: the readers were not ready yet").into());
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(pool)
    }

    /// Waits for the readers to end and returns the latencies of each.
    pub(super) fn collect(mut self) -> Result<Vec<Latencies>> {
        let mut all = Vec::with_capacity(self.readers.len());
        for (child, stdout) in &mut self.readers {
            let mut bytes = Vec::with_capacity(self.messages * 8);
            stdout.read_to_end(&mut bytes)?;
            let status = child.wait()?;
            if !status.success() || bytes.len() != self.messages * 8 {
                bail!("a reader failed ({status}); its error is above");
            }
            let words =
                bytes.chunks_exact(8).map(|b| u64::from_le_bytes(b.try_into().expect("chunks of eight")));
            all.push(words.map(|ticks| (ticks != LOST).then_some(ticks)).collect());
        }
        Ok(all)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for (child, _) in &mut self.readers {
            // This fails for processes that have ended already, which is fine.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs the hidden verb.
pub(in crate::cli) fn run(args: &Args) -> Result<ExitCode> {
    // A reader polls for ever, so it must not outlive a demo that was killed.
    set_pdeathsig(Signal::SIGKILL)?;
    let mut latencies = vec![LOST; args.messages];
    match (&args.dir, args.group) {
        (Some(dir), _) => from_channel(dir, args.spin, &mut latencies)?,
        (None, Some(group)) => from_multicast(group, &mut latencies)?,
        (None, None) => bail!("demo-reader is started by `shmcast demo`"),
    }
    let bytes: Vec<u8> = latencies.iter().flat_map(|ticks| ticks.to_le_bytes()).collect();
    std::io::stdout().write_all(&bytes)?;
    Ok(ExitCode::SUCCESS)
}

fn ready() -> Result<()> {
    let mut out = std::io::stdout();
    out.write_all(&[READY])?;
    out.flush()?;
    Ok(())
}

/// Notes a message's latency. Returns true for the last message.
fn note(latencies: &mut [u64], payload: &[u8], now: u64) -> Result<bool> {
    let Some((stamp, _)) = payload.split_at_checked(STAMP) else { bail!("a message of {} B", payload.len()) };
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("half of a stamp"));
    let (sent, number) = (word(&stamp[..8]), word(&stamp[8..]) as usize);
    match latencies.get_mut(number) {
        Some(latency) if *latency == LOST => *latency = now.saturating_sub(sent),
        Some(_) => bail!("message {number} came twice"),
        None => bail!("message {number} of {} came", latencies.len()),
    }
    Ok(number + 1 == latencies.len())
}

fn from_channel(dir: &std::path::Path, spin: bool, latencies: &mut [u64]) -> Result<()> {
    let wait = if spin { Wait::Spin } else { Wait::Yield };
    let mut subscriber = Subscriber::builder("demo").dir(dir).wait(wait).open()?;
    let clock = subscriber.clock();
    ready()?;
    loop {
        match subscriber.recv()? {
            Event::Message(message) => {
                let now = clock.now();
                note(latencies, message.payload, now)?;
            }
            Event::End => return Ok(()),
            _ => {} // what was missed stays marked as lost
        }
    }
}

fn from_multicast(group: Group, latencies: &mut [u64]) -> Result<()> {
    let socket = group.receiver().context("join the multicast group on lo")?;
    socket.set_read_timeout(Some(SILENCE))?;
    let clock = Clock::of_this_host();
    ready()?;
    let mut buffer = [0; 2048];
    let mut started = false;
    loop {
        match socket.recv(&mut buffer) {
            Ok(length) => {
                let now = clock.now();
                started = true;
                if note(latencies, &buffer[..length], now)? {
                    return Ok(());
                }
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) && started => {
                return Ok(());
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                // The publisher starts when all readers are ready; if it never does, we are killed with it.
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e.into()),
        }
    }
}
