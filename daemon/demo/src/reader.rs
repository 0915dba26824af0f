//! The reader processes of the demo. Each reader is a process of its own, as real receivers are, and runs this same
//! program. `talk` describes the orders that readers get.

use crate::multicast::Group;
use crate::plan::Plan;
use crate::talk::{DONE, GO, LOST, READY, REPORT, STARTED, end_of_turn, stamp_of};
use anyhow::{Context, Result, bail};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use shmcast::{Clock, Event, Subscriber, Wait};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::UdpSocket;
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// The options of the hidden verb.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[arg(long)]
    messages: u64,
    #[arg(long)]
    messages_a_turn: u64,
    #[arg(long)]
    dir: Option<PathBuf>,
    #[arg(long)]
    spin: bool,
    #[arg(long)]
    group: Option<Group>,
}

/// Runs the hidden verb.
///
/// # Errors
/// The source cannot be opened or read, or it sends data that no demo sends.
pub fn run(args: &Args) -> Result<ExitCode> {
    // A reader polls for ever, so it must not outlive a demo that was killed.
    set_pdeathsig(Signal::SIGKILL)?;
    let mut source = match (&args.dir, args.group) {
        (Some(dir), _) => Source::channel(dir, args.spin)?,
        (None, Some(group)) => Source::multicast(group)?,
        (None, None) => bail!("demo-reader is started by `shmcast demo`"),
    };
    let plan = Plan {
        messages: args.messages,
        messages_a_turn: args.messages_a_turn.clamp(1, args.messages.max(1)),
        interval: Duration::ZERO,
    };
    let mut latencies = Latencies(vec![LOST; args.messages as usize]);
    let mut demo = Demo::new()?;
    demo.say(&[READY])?;
    let mut turn = 0;
    while demo.order()? == GO {
        demo.say(&[STARTED])?;
        source.receive(turn, &plan.turn(turn), &mut latencies)?;
        demo.say(&[DONE])?;
        turn += 1;
    }
    let bytes: Vec<u8> = latencies.0.iter().flat_map(|ticks| ticks.to_le_bytes()).collect();
    demo.say(&bytes)?;
    Ok(ExitCode::SUCCESS)
}

/// The reader's connection to the demo. All readers share the two pipes. So a reader must read exactly its own bytes, and must write an
/// answer without a buffer.
struct Demo {
    orders: File,
    answers: File,
}

impl Demo {
    fn new() -> Result<Self> {
        let orders = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        let answers = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        Ok(Self { orders, answers })
    }

    /// Sleeps until there is an order.
    fn order(&mut self) -> Result<u8> {
        let mut order = [0];
        self.orders.read_exact(&mut order).context("the demo that started this reader is gone")?;
        match order[0] {
            order @ (GO | REPORT) => Ok(order),
            other => bail!("demo-reader is started by `shmcast demo`, which gives no order {other:?}"),
        }
    }

    fn say(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.answers.write_all(bytes)?)
    }
}

/// Latencies in ticks by message number.
struct Latencies(Vec<u64>);

impl Latencies {
    /// Notes a message's latency. Returns the message's number.
    fn note(&mut self, payload: &[u8], now: u64) -> Result<u64> {
        let Some((sent, number)) = stamp_of(payload) else { bail!("a message of {} B", payload.len()) };
        match self.0.get_mut(number as usize) {
            Some(latency) if *latency == LOST => *latency = now.saturating_sub(sent),
            Some(_) => bail!("message {number} came twice"),
            None => bail!("message {number} of {} came", self.0.len()),
        }
        Ok(number)
    }
}

/// The source of the messages.
enum Source {
    Channel(Box<Subscriber>),
    Multicast(UdpSocket),
}

impl Source {
    fn channel(dir: &std::path::Path, spin: bool) -> Result<Self> {
        let wait = if spin { Wait::Spin } else { Wait::Yield };
        Ok(Self::Channel(Box::new(Subscriber::builder("demo").dir(dir).wait(wait).open()?)))
    }

    fn multicast(group: Group) -> Result<Self> {
        Ok(Self::Multicast(group.receiver().context("join the multicast group on lo")?))
    }

    /// Receives the messages of one turn.
    fn receive(&mut self, turn: u64, messages: &Range<u64>, latencies: &mut Latencies) -> Result<()> {
        match self {
            Self::Channel(subscriber) => from_channel(subscriber, messages, latencies),
            Self::Multicast(socket) => from_multicast(socket, turn, messages, latencies),
        }
    }
}

/// Receives the messages of a turn from the channel. The ring always has the newest message, so a reader that was overtaken also reaches
/// the end of the turn. The messages that it missed count as lost.
fn from_channel(subscriber: &mut Subscriber, messages: &Range<u64>, latencies: &mut Latencies) -> Result<()> {
    let clock = subscriber.clock();
    loop {
        match subscriber.recv()? {
            Event::Message(message) => {
                let now = clock.now();
                if latencies.note(message.payload, now)? + 1 >= messages.end {
                    return Ok(());
                }
            }
            Event::End => bail!("the publisher ended in the middle of a turn"),
            _ => {}
        }
    }
}

fn from_multicast(
    socket: &UdpSocket,
    turn: u64,
    messages: &Range<u64>,
    latencies: &mut Latencies,
) -> Result<()> {
    let clock = Clock::of_this_host();
    let mut buffer = [0; 2048];
    loop {
        match socket.recv(&mut buffer) {
            Ok(length) => {
                let now = clock.now();
                let datagram = &buffer[..length];
                let is_end = datagram == end_of_turn(turn);
                // The end of a turn is sent several times. So a short datagram that does not end this turn is a repeated end of an earlier
                // turn.
                let is_message = length > end_of_turn(turn).len();
                if is_end || is_message && latencies.note(datagram, now)? + 1 >= messages.end {
                    return Ok(());
                }
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e.into()),
        }
    }
}
