//! The actor: a separate process that uses the library, and that the runner can kill, stop or starve at any moment. The actor gets orders
//! from its stdin: to publish, to receive, and so on. It writes answers to its stdout. Its log has its actions and the events that it
//! received.

#![allow(missing_docs, reason = "fields are explained with their variant")]

mod board;
mod foreign;
mod gates;
mod past;
mod publisher;
mod reader;
mod recorder;

use crate::log::{Fact, Log};
use crate::payload::{Identity, Sizes};
use crate::story::{How, Sending, Shape, Start, Waiting};
use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use shmcast::{ChannelError, Client};
use shmcast_layout::mem::forked::fork;
use std::io::{self, Write, stdin, stdout};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The place of the channels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Files in this directory.
    Dir(PathBuf),
    /// The daemon that listens at this socket.
    Socket(PathBuf),
}

/// The parameters of opening a channel for publishing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opening {
    pub place: Place,
    pub channel: String,
    /// The publisher's number, which is in its messages.
    pub publisher: u32,
    /// The capacity and the largest message, if the publisher can choose them.
    pub sizes: Option<[u64; 2]>,
    pub anew: bool,
    pub full: bool,
    /// The mode that the channel must have.
    #[serde(default)]
    pub mode: Option<u32>,
    /// Time during which a failed opening is tried again.
    pub patience_ms: u64,
    /// The board and the gates, if the publisher makes them.
    #[serde(default)]
    pub shape: Shape,
}

/// The parameters of a subscription.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subscribing {
    pub place: Place,
    pub channel: String,
    /// The reader's host: 0 for the host of the publishers, another number for a host to which bridges send the channel.
    pub host: u8,
    pub start: Start,
    pub wait: Waiting,
    /// Whether the reader continues at the latest message after a lap.
    pub skip: bool,
    pub page: bool,
    /// Whether the reader prepares all memory.
    #[serde(default)]
    pub full: bool,
    /// Whether the reader wants the event that reports its publisher's death.
    #[serde(default)]
    pub watch: bool,
    /// Whether the reader never reads from a journal.
    #[serde(default)]
    pub live_only: bool,
    /// The gate that the reader takes.
    #[serde(default)]
    pub gate: Option<String>,
    /// If the reader is more than this number of bytes behind, it skips old messages of a key; 0 for the default.
    #[serde(default)]
    pub conflate: Option<u32>,
    /// The command of a testee in another language. If there is a command, the testee receives in place of this process, and tools see no
    /// reader page of this process.
    #[serde(default)]
    pub testee: Option<String>,
}

/// The orders that an actor knows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Open a channel for publishing.
    Open(Opening),
    /// Publish messages.
    Publish { count: u32, sizes: Sizes, sending: Sending, pause_us: u32 },
    /// Publish a gap.
    Gap { by: u64 },
    /// Publish a session.
    Session { identity: String },
    /// Publish empty messages as fast as possible until the next order. No reader receives them, so the log does not list them.
    Rush {},
    /// Subscribe.
    Subscribe(Subscribing),
    /// Subscribe this many times in turn. Each subscription ends soon after its first lap.
    Join { wanted: Subscribing, times: u16 },
    /// Receive.
    Read { how: How, ms: u32, rest_us: u32 },
    /// Receive this many events.
    Block { events: u32 },
    /// Search the board of a channel for keys. The choice of the keys begins with `first`.
    Get { place: Place, channel: String, first: u32, times: u16, pause_us: u32 },
    /// Seek.
    Seek { by: i64 },
    /// Receive until the message with this sequence has arrived, or until nothing has arrived for `ms`.
    Finish { last: Identity, sequence: u64, ms: u64 },
    /// Answer whether a daemon knows this actor.
    Registered {},
    /// Close the publisher and the reader cleanly.
    Close {},
    /// Fork a child. The child drops its copies of publisher and reader, and then ends.
    Fork {},
    /// Try to open a channel with a description that is too long. The opening must fail.
    Misopen { dir: PathBuf, channel: String },
    /// Read the journal in this directory from its first message to its last.
    ReadJournal { dir: PathBuf },
}

/// An order to an actor, with the order's number. The runner writes it as one line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Told {
    /// The number of the order.
    pub id: u64,
    /// The order.
    pub order: Order,
}

/// The answer of an actor to an order. The actor writes it as one line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The number of the order that was carried out.
    pub id: u64,
    /// The result, as far as the runner needs it.
    pub value: Value,
}

/// The orders that have arrived and were not carried out yet. No separate thread reads them, because only a process with a single thread
/// can fork.
#[derive(Debug, Default)]
struct Orders {
    /// Bytes that were read and not used yet.
    unread: Vec<u8>,
    is_over: bool,
}

impl Orders {
    /// Whether another order is waiting, or the runner is gone.
    fn is_one_waiting(&mut self) -> bool {
        while !self.has_line() && self.is_there_more() {
            self.read();
        }
        self.has_line() || self.is_over
    }

    /// Waits for the next order and returns it. Returns `None` if the runner has ended.
    fn take(&mut self) -> Result<Option<Told>> {
        while !self.has_line() {
            if self.is_over {
                return Ok(None);
            }
            self.read();
        }
        let length = self.unread.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let line: Vec<u8> = self.unread.drain(..length).collect();
        let text = String::from_utf8_lossy(&line);
        Ok(Some(serde_json::from_slice(&line).with_context(|| format!("not an order: {text}"))?))
    }

    fn has_line(&self) -> bool {
        self.unread.contains(&b'\n')
    }

    /// Whether a read would return without a wait.
    fn is_there_more(&self) -> bool {
        let input = stdin();
        let mut input = [PollFd::new(&input, PollFlags::IN)];
        !self.is_over && poll(&mut input, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    fn read(&mut self) {
        let mut piece = [0; 4096];
        match rustix::io::read(stdin(), &mut piece) {
            Ok(0) => self.is_over = true,
            Ok(length) => self.unread.extend_from_slice(&piece[..length]),
            Err(Errno::INTR) => {}
            Err(_) => self.is_over = true,
        }
    }
}

/// Carries out orders until there are no more.
///
/// # Errors
/// A failure of the test program itself. Faults of the product are in the log, and are no errors here.
pub fn play(log: &Path) -> Result<()> {
    let log = Log::append(log).with_context(|| format!("open {}", log.display()))?;
    reader::on_cpu_and_waiting();
    obey_modes().context("give up the right to pass over modes")?;
    let mut actor = Actor { log, orders: Orders::default(), publisher: None, reader: None, board: None };
    while let Some(Told { id, order }) = actor.orders.take()? {
        let value = actor.carry_out(order)?;
        let mut line = serde_json::to_vec(&Answer { id, value })?;
        line.push(b'\n');
        // If the runner has died, nobody reads the answer.
        if stdout().write_all(&line).and_then(|()| stdout().flush()).is_err() {
            break;
        }
    }
    Ok(())
}

/// Drops the capabilities by which root reads and writes files regardless of their mode. Actors must be ordinary users.
fn obey_modes() -> io::Result<()> {
    let mut sets = capabilities(None)?;
    let kept = !(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH);
    sets.effective &= kept;
    Ok(set_capabilities(None, sets)?)
}

struct Actor {
    log: Log,
    orders: Orders,
    publisher: Option<publisher::Publishing>,
    reader: Option<reader::Reading>,
    /// The board that the actor last searched.
    board: Option<board::Open>,
}

impl Actor {
    fn carry_out(&mut self, order: Order) -> Result<Value> {
        match order {
            Order::Open(opening) => self.open(&opening),
            Order::Publish { count, sizes, sending, pause_us } => {
                let Some(publisher) = &mut self.publisher else { return Ok(Value::Null) };
                publisher.publish(
                    &mut self.log,
                    count,
                    sizes,
                    sending,
                    Duration::from_micros(pause_us.into()),
                )
            }
            Order::Gap { by } => {
                self.publisher.as_mut().map_or(Ok(()), |p| p.gap(&mut self.log, by)).map(|()| Value::Null)
            }
            Order::Session { identity } => {
                let told = self.publisher.as_mut().map_or(Ok(()), |p| p.session(&mut self.log, identity));
                told.map(|()| Value::Null)
            }
            Order::Subscribe(wanted) => {
                self.reader = None;
                self.reader = reader::Reading::open(&mut self.log, &wanted)?;
                Ok(json!(self.reader.is_some()))
            }
            Order::Rush {} => {
                let Self { publisher, orders, .. } = self;
                Ok(json!(publisher.as_mut().map(|publisher| publisher.rush(orders))))
            }
            Order::Join { wanted, times } => reader::join(&mut self.log, &wanted, times),
            Order::Read { how, ms, rest_us } => {
                let until = (ms > 0).then(|| Instant::now() + Duration::from_millis(ms.into()));
                let rest = Duration::from_micros(rest_us.into());
                self.read(|reader, log, orders| reader.read(log, orders, how, until, rest))
            }
            Order::Block { events } => self.read(|reader, log, _| reader.block(log, events)),
            Order::Get { place, channel, first, times, pause_us } => {
                let Self { board, log, .. } = self;
                board::look(board, log, (&place, &channel), (first, times), pause_us).map(|()| Value::Null)
            }
            Order::Seek { by } => self.read(|reader, log, _| reader.seek(log, by)),
            Order::Finish { last, sequence, ms } => {
                let patience = Duration::from_millis(ms);
                self.read(|reader, log, _| reader.finish(log, last, sequence, patience))
            }
            Order::Registered {} => Ok(json!(self.is_registered())),
            Order::Close {} => self.close().map(|()| Value::Null),
            Order::Fork {} => self.fork(),
            Order::Misopen { dir, channel } => Ok(json!(publisher::misopen(&dir, &channel))),
            Order::ReadJournal { dir } => past::read(&mut self.log, &dir).map(|()| Value::Null),
        }
    }

    /// Forks a child, and waits for its end. Returns null if the library cannot fork because it runs a thread for the connection to a
    /// daemon.
    fn fork(&mut self) -> Result<Value> {
        let Self { publisher, reader, .. } = self;
        let child = fork(|| {
            drop(publisher.take());
            reader.take().into_iter().for_each(reader::Reading::drop_subscriber);
        });
        match child {
            Ok(child) => Ok(json!(child.wait().context("wait for a child")?)),
            Err(e) if e.kind() == io::ErrorKind::Unsupported => Ok(Value::Null),
            Err(e) => Err(e).context("have a child"),
        }
    }

    /// Closes the actor's publisher and reader cleanly.
    fn close(&mut self) -> Result<()> {
        self.log.write(Fact::Closing)?;
        (self.publisher, self.reader, self.board) = (None, None, None);
        self.log.write(Fact::Closed)?;
        Ok(())
    }

    fn open(&mut self, opening: &Opening) -> Result<Value> {
        if self.publisher.is_some() {
            self.close()?;
        }
        let until = Instant::now() + Duration::from_millis(opening.patience_ms);
        loop {
            let opened = publisher::Publishing::open(&mut self.log, opening)?;
            match opened {
                Some(opened) => {
                    let value = json!({ "next": opened.next_sequence(), "epoch": opened.epoch() });
                    self.publisher = Some(opened);
                    return Ok(value);
                }
                None if Instant::now() < until => std::thread::sleep(Duration::from_millis(30)),
                None => return Ok(Value::Null),
            }
        }
    }

    /// Receives, if there is a reader. A reader that cannot continue is dropped.
    fn read(
        &mut self,
        receive: impl FnOnce(&mut reader::Reading, &mut Log, &mut Orders) -> Result<bool>,
    ) -> Result<Value> {
        let Some(reader) = &mut self.reader else { return Ok(Value::Null) };
        let is_well = receive(reader, &mut self.log, &mut self.orders)?;
        if reader.is_over() {
            self.reader = None;
        }
        Ok(json!({ "well": is_well, "live": self.reader.is_some() }))
    }

    fn is_registered(&self) -> Option<bool> {
        match (&self.publisher, &self.reader) {
            (Some(publisher), _) => publisher.is_registered(),
            (_, Some(reader)) => reader.is_registered(),
            _ => None,
        }
    }
}

/// A client of the daemon, if the place is a daemon's.
fn client(place: &Place) -> Result<Option<Client>, ChannelError> {
    match place {
        Place::Dir(_) => Ok(None),
        Place::Socket(socket) => Client::at(socket).map(Some),
    }
}

/// Returns the kind of an error, for the oracle, and the error's text.
fn kind(e: &impl std::fmt::Debug) -> String {
    let text = format!("{e:?}");
    let name = |text: &str| text.chars().take_while(|c| c.is_alphanumeric()).collect::<String>();
    let outer = name(&text);
    // For these three outer kinds, the kind of the inner error says what failed.
    let inner =
        ["code: ", "source: ", "Locate("].iter().find_map(|word| Some(name(text.split_once(word)?.1)));
    match (outer.as_str(), inner) {
        ("Refused" | "Locate" | "Segment", Some(inner)) => format!("{outer}.{inner}"),
        _ => outer,
    }
}
