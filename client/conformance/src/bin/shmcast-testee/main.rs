//! The testee in Rust. README.md of this package describes what a testee must do.
//!
//! `SHMCAST_TESTEE_FAULT` plants a fault, to prove that the suite finds the fault. With each of [`FAULTS`], the testee fails at least one
//! vector (a test case).
#![allow(clippy::print_stdout, reason = "it is a program")]

mod faults;
mod figures;
mod requests;
mod words;

use anyhow::{Context, Result};
use faults::{FAULTS, Fault};
use requests::{Begin, Create, Open, Place, Request};
use shmcast::{
    Board, BoardSpec, ChannelError, Client, Event, Gate, Mark, Preparation, Publisher, Records, Start,
    Subscriber, Wait,
};
use shmcast_conformance::payload::Payloads;
use std::io::{BufRead, stdin, stdout};
use std::time::Duration;
use words::{failure, locate, reason, subscribe, unpublished};

struct Testee {
    subscriber: Option<Subscriber>,
    /// The place of the subscriber's channel, and the board of this channel.
    place: Option<Place>,
    board: Option<Board>,
    /// A second reader, for the planted fault `positions-stand-still`. This reader holds the gate, and `subscriber` holds none.
    idle: Option<Subscriber>,
    publisher: Option<Publisher>,
    records: Records,
    fault: Fault,
}

fn main() -> Result<()> {
    let fault = std::env::var("SHMCAST_TESTEE_FAULT").ok();
    if let Some(fault) = &fault {
        anyhow::ensure!(FAULTS.iter().any(|(name, _)| name == fault), "no such fault; there are {FAULTS:?}");
    }
    let version = env!("CARGO_PKG_VERSION");
    println!(r#"{{"testee":"rust","version":"{version}","levels":[1,2,3,4,5,6,7,8,9]}}"#);
    let mut testee = Testee {
        subscriber: None,
        place: None,
        board: None,
        idle: None,
        publisher: None,
        records: Records::with_room(16 << 10),
        fault: Fault(fault),
    };
    for line in stdin().lock().lines() {
        let line = line?;
        let request = serde_json::from_str(&line).with_context(|| format!("no request: {line}"))?;
        let answer = testee.answer(request)?;
        println!("{answer}");
        std::io::Write::flush(&mut stdout())?;
    }
    Ok(())
}

fn answer(refused: Option<String>) -> serde_json::Value {
    match refused {
        None => serde_json::json!({"ok": true}),
        Some(refused) => serde_json::json!({"refused": refused}),
    }
}

impl Testee {
    fn answer(&mut self, request: Request) -> Result<serde_json::Value> {
        let events = match request {
            Request::Poll { most } => self.poll(most.unwrap_or(usize::MAX))?,
            Request::Batch { most } => self.batch(most.unwrap_or(usize::MAX))?,
            Request::Get { key } => match self.get(&key)? {
                Ok(events) => events,
                Err(refused) => return Ok(answer(Some(refused))),
            },
            Request::Consume { at, how, longest } => self.consume(at, how == "batch", longest)?,
            Request::Drain { how, passes, sequence } => self.drain(how == "batch", passes, sequence)?,
            Request::Live { messages } => self.live(messages)?,
            Request::Fill { length, messages } => self.fill(length, messages)?,
            other => return Ok(answer(self.succeed(other)?)),
        };
        Ok(serde_json::json!({"events": events}))
    }

    /// Carries out a request whose answer has no events. Returns `None` for success, or the reason of a failure.
    fn succeed(&mut self, request: Request) -> Result<Option<String>> {
        Ok(match request {
            Request::Open(open) => self.open(open),
            Request::Create(create) => self.create(create),
            Request::Close {} => {
                self.close();
                None
            }
            Request::Seek { sequence } => {
                let later = u64::from(self.fault.has("seek-begins-one-later"));
                let subscriber = self.subscriber.as_mut().context("nothing is open")?;
                let sought = subscriber.seek(sequence + later);
                sought.err().map(|why| locate(&why).to_owned())
            }
            Request::Publish { length, fill, tag, key } => {
                let payload: Vec<u8> = (0..length).map(|i| fill.wrapping_add(i as u8)).collect();
                let tag = if self.fault.has("published-tags-are-lost") { 0 } else { tag };
                let short = usize::from(self.fault.has("the-last-byte-is-not-published")).min(length);
                let mark = Mark { tag, key: key == 1 };
                let publisher = self.publisher.as_mut().context("no publisher")?;
                let published = publisher.publish_with(&payload[..length - short], mark);
                let is_told = |refused: &String| refused != "full" || !self.fault.has("full-is-not-told");
                published.err().map(|e| unpublished(&e)).filter(is_told)
            }
            Request::Produce { to, longest } => {
                let payloads = Payloads::new(longest);
                let publisher = self.publisher.as_mut().context("no publisher")?;
                loop {
                    let next = publisher.next_sequence();
                    if next > to {
                        break None;
                    }
                    if let Err(e) = publisher.publish(payloads.of(next)) {
                        break Some(unpublished(&e));
                    }
                }
            }
            _ => {
                self.publisher = None;
                None
            }
        })
    }

    fn close(&mut self) {
        let subscriber = self.subscriber.take();
        if self.fault.has("gates-are-kept") {
            std::mem::forget(subscriber);
        }
        (self.place, self.board, self.idle) = (None, None, None);
    }

    fn open(&mut self, open: Open) -> Option<String> {
        self.close();
        let Open { at, start, conflate, gate, watch } = open;
        let has_fault = |fault| self.fault.has(fault);
        let start = match start {
            Begin::Sequence(sequence) => Start::Sequence(sequence),
            Begin::Word(word) if word == "oldest" => Start::Oldest,
            Begin::Word(word) if word == "board" && has_fault("the-board-is-the-oldest") => Start::Oldest,
            Begin::Word(word) if word == "board" => Start::Board,
            Begin::Word(_) => Start::Latest,
        };
        let opened = |gate: Option<&String>| {
            let builder = subscribe(at.clone())?.start(start).wait(Wait::Spin).watch_publisher(watch == 1);
            let builder = builder.prepare(Preparation::NONE).page(false);
            let conflates = conflate == 1 && !has_fault("nothing-is-left-out");
            let builder = if conflates { builder.conflate() } else { builder };
            let gate = gate.filter(|_| !has_fault("no-gate-is-taken"));
            gate.into_iter().fold(builder, |builder, gate| builder.gate(gate)).open()
        };
        let (gate, idle) = if has_fault("positions-stand-still") { (None, gate) } else { (gate, None) };
        let subscribers = opened(gate.as_ref())
            .and_then(|subscriber| Ok((subscriber, idle.map(|gate| opened(Some(&gate))).transpose()?)));
        match subscribers {
            Ok((subscriber, idle)) => {
                (self.subscriber, self.idle, self.place) = (Some(subscriber), idle, Some(at));
                None
            }
            Err(_) if self.fault.has("any-header-is-accepted") => None,
            Err(e) => Some(reason(&e)),
        }
    }

    fn create(&mut self, create: Create) -> Option<String> {
        self.publisher = None;
        let Create { at, capacity, board, keys, value, gate, lag, wait, refuse } = create;
        let builder = Publisher::builder(at.channel).prepare(Preparation::NONE);
        let mut builder = match (at.dir, at.socket) {
            (Some(dir), _) => builder.dir(dir).capacity(capacity),
            (None, socket) => match Client::at(socket.unwrap_or_default()) {
                Ok(client) => builder.client(&client),
                Err(e) => return Some(reason(&e)),
            },
        };
        let key = board
            .as_deref()
            .and_then(|key| key.split_once(".."))
            .filter(|_| !self.fault.has("no-board-is-made"));
        if let Some((Ok(from), Ok(to))) = key.map(|(from, to)| (from.parse(), to.parse())) {
            let more = 64 * u64::from(self.fault.has("values-have-more-room"));
            builder = builder.board(BoardSpec::new(from..to).keys(keys).value(value + more));
        }
        if let Some(gate) = gate.filter(|_| !self.fault.has("no-gate-is-made")) {
            let more = if self.fault.has("lags-are-longer") { lag / 4 } else { 0 };
            let gate = Gate::new(gate).lag_bytes(lag + more).wait(Duration::from_nanos(wait));
            let refuses = (refuse == 1) != self.fault.has("refusals-and-drops-are-swapped");
            builder = builder.gate(if refuses { gate.refuse() } else { gate });
        }
        match builder.open() {
            Ok(publisher) => self.publisher = Some(publisher),
            Err(ChannelError::InUse { .. }) if self.fault.has("any-lock-is-ignored") => {}
            Err(e) => return Some(reason(&e)),
        }
        None
    }

    /// Looks up a key on the open channel's board.
    fn get(&mut self, digits: &str) -> Result<std::result::Result<Vec<String>, String>> {
        let digits = digits.as_bytes().chunks(2).map(std::str::from_utf8);
        let key: Vec<u8> = digits.map(|two| Ok(u8::from_str_radix(two?, 16)?)).collect::<Result<_>>()?;
        if self.board.is_none() {
            let at = self.place.clone().context("nothing is open")?;
            match subscribe(at).and_then(|builder| builder.prepare(Preparation::NONE).open_board()) {
                Ok(board) => self.board = Some(board),
                Err(e) => return Ok(Err(reason(&e))),
            }
        }
        let board = self.board.as_mut().context("no board")?;
        Ok(match board.get(&key) {
            Ok(entry) => Ok(entry.map(|entry| self.fault.tell_entry(&entry)).into_iter().collect()),
            Err(e) => Err(failure(&e)),
        })
    }

    /// Receives one event at a time, until 130 calls in a row returned nothing.
    fn poll(&mut self, most: usize) -> Result<Vec<String>> {
        let enough = if self.fault.has("a-poll-looks-once") { 1 } else { 130 };
        let (mut events, mut empty) = (Vec::new(), 0);
        let most = if self.fault.has("positions-run-ahead") { most.saturating_add(3) } else { most };
        while empty < enough && events.len() < most {
            let subscriber = self.subscriber.as_mut().context("nothing is open")?;
            match subscriber.try_recv() {
                Ok(None) => empty += 1,
                Ok(Some(event)) => {
                    empty = 0;
                    self.fault.tell(event, &mut events);
                }
                Err(e) => {
                    events.push(self.fault.failure(&e));
                    break;
                }
            }
        }
        if self.fault.has("positions-run-ahead") {
            events.truncate(most - 3);
        }
        Ok(events)
    }

    fn batch(&mut self, most: usize) -> Result<Vec<String>> {
        let (mut events, mut empty) = (Vec::new(), 0);
        while empty < 130 && events.len() < most {
            let subscriber = self.subscriber.as_mut().context("nothing is open")?;
            match subscriber.recv_records(64, &mut self.records) {
                Ok(0) => empty += 1,
                Ok(_) => {
                    empty = 0;
                    for message in self.records.iter() {
                        self.fault.tell(Event::Message(message), &mut events);
                    }
                    if let Some(event) = self.records.event() {
                        self.fault.tell(event, &mut events);
                    }
                    if self.fault.has("a-batch-ends-at-a-pad") && self.records.len() < 64 {
                        break;
                    }
                }
                Err(e) => {
                    events.push(self.fault.failure(&e));
                    break;
                }
            }
        }
        Ok(events)
    }
}
