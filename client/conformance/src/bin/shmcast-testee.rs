//! The testee in Rust. README.md of this package has its contract.
//!
//! `SHMCAST_TESTEE_FAULT` plants a fault, to prove that the suite finds it: each of [`FAULTS`] fails some vector.
#![allow(clippy::print_stdout, reason = "it is a program")]

use anyhow::{Context, Result};
use serde::Deserialize;
use shmcast::control::RefusalCode;
use shmcast::{
    ChannelError, Client, Event, Lapped, LocateError, Mark, Message, OpenError, Preparation, PublishError,
    Publisher, Records, RecvError, Start, Subscriber, SubscriberBuilder, Wait,
};
use shmcast_conformance::payload::Payloads;
use std::io::{BufRead, stdin, stdout};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Faults that can be planted, each with the level that finds it.
const FAULTS: [(&str, u8); 19] = [
    ("gaps-are-not-told", 2),
    ("a-lap-counts-one-less", 2),
    ("ends-come-twice", 2),
    ("the-key-mark-is-lost", 2),
    ("seek-begins-one-later", 2),
    ("a-batch-ends-at-a-pad", 2),
    ("any-header-is-accepted", 1),
    ("a-poll-looks-once", 2),
    ("tags-have-a-byte", 2),
    ("times-have-32-bits", 2),
    ("takeovers-are-not-told", 2),
    ("sessions-have-8-bytes", 2),
    ("a-removed-channel-ends", 3),
    ("missed-messages-do-not-count", 4),
    ("published-tags-are-lost", 7),
    ("any-lock-is-ignored", 7),
    ("the-last-byte-is-not-published", 7),
    ("restarts-are-not-told", 6),
    ("deaths-are-not-told", 6),
];

#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
enum Request {
    Open {
        #[serde(flatten)]
        at: Place,
        start: Begin,
        #[serde(default)]
        watch: u8,
    },
    Poll {
        most: Option<usize>,
    },
    Batch {
        most: Option<usize>,
    },
    Seek {
        sequence: u64,
    },
    Close {},
    Consume {
        #[serde(flatten)]
        at: Place,
        how: String,
        longest: usize,
    },
    Create {
        #[serde(flatten)]
        at: Place,
        capacity: u64,
    },
    Publish {
        length: usize,
        fill: u8,
        tag: u16,
        key: u8,
    },
    Produce {
        to: u64,
        longest: usize,
    },
    Drain {
        how: String,
        passes: u32,
        sequence: u64,
    },
    Live {
        messages: usize,
    },
    Fill {
        length: usize,
        messages: u64,
    },
    End {},
}

/// A channel in a directory, or of a daemon.
#[derive(Debug, Deserialize)]
struct Place {
    dir: Option<PathBuf>,
    socket: Option<PathBuf>,
    channel: String,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Begin {
    Sequence(u64),
    Word(String),
}

struct Testee {
    subscriber: Option<Subscriber>,
    publisher: Option<Publisher>,
    records: Records,
    fault: Fault,
}

/// The planted fault.
struct Fault(Option<String>);

fn main() -> Result<()> {
    let fault = std::env::var("SHMCAST_TESTEE_FAULT").ok();
    if let Some(fault) = &fault {
        anyhow::ensure!(FAULTS.iter().any(|(name, _)| name == fault), "no such fault; there are {FAULTS:?}");
    }
    let version = env!("CARGO_PKG_VERSION");
    println!(r#"{{"testee":"rust","version":"{version}","levels":[1,2,3,4,5,6,7]}}"#);
    let mut testee = Testee {
        subscriber: None,
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
            Request::Open { at, start, watch } => return Ok(answer(self.open(at, &start, watch == 1))),
            Request::Close {} => {
                self.subscriber = None;
                return Ok(answer(None));
            }
            Request::Seek { sequence } => {
                let later = u64::from(self.fault.has("seek-begins-one-later"));
                let subscriber = self.subscriber.as_mut().context("nothing is open")?;
                let sought = subscriber.seek(sequence + later);
                return Ok(answer(sought.err().map(|why| locate(&why).to_owned())));
            }
            Request::Poll { most } => self.poll(most.unwrap_or(usize::MAX))?,
            Request::Batch { most } => self.batch(most.unwrap_or(usize::MAX))?,
            Request::Consume { at, how, longest } => self.consume(at, how == "batch", longest)?,
            Request::Create { at, capacity } => return Ok(answer(self.create(at, capacity))),
            Request::Publish { length, fill, tag, key } => {
                let payload: Vec<u8> = (0..length).map(|i| fill.wrapping_add(i as u8)).collect();
                let tag = if self.fault.has("published-tags-are-lost") { 0 } else { tag };
                let short = usize::from(self.fault.has("the-last-byte-is-not-published")).min(length);
                let mark = Mark { tag, key: key == 1 };
                let publisher = self.publisher.as_mut().context("no publisher")?;
                return Ok(answer(
                    publisher.publish_with(&payload[..length - short], mark).err().map(|e| unpublished(&e)),
                ));
            }
            Request::Produce { to, longest } => {
                let payloads = Payloads::new(longest);
                let publisher = self.publisher.as_mut().context("no publisher")?;
                while publisher.next_sequence() <= to {
                    if let Err(e) = publisher.publish(payloads.of(publisher.next_sequence())) {
                        return Ok(answer(Some(unpublished(&e))));
                    }
                }
                return Ok(answer(None));
            }
            Request::Drain { how, passes, sequence } => self.drain(how == "batch", passes, sequence)?,
            Request::Live { messages } => self.live(messages)?,
            Request::Fill { length, messages } => {
                let publisher = self.publisher.as_mut().context("no publisher")?;
                let payload = vec![1; length];
                let began = Instant::now();
                for _ in 0..messages {
                    publisher.publish(&payload)?;
                }
                vec![format!("ns {}", began.elapsed().as_nanos())]
            }
            Request::End {} => {
                self.publisher = None;
                return Ok(answer(None));
            }
        };
        Ok(serde_json::json!({"events": events}))
    }

    fn open(&mut self, at: Place, start: &Begin, watch: bool) -> Option<String> {
        self.subscriber = None;
        let start = match start {
            Begin::Sequence(sequence) => Start::Sequence(*sequence),
            Begin::Word(word) if word == "oldest" => Start::Oldest,
            Begin::Word(_) => Start::Latest,
        };
        let opened = subscribe(at).and_then(|builder| {
            let builder = builder.start(start).wait(Wait::Spin).watch_publisher(watch);
            builder.prepare(Preparation::NONE).page(false).open()
        });
        match opened {
            Ok(subscriber) => {
                self.subscriber = Some(subscriber);
                None
            }
            Err(_) if self.fault.has("any-header-is-accepted") => None,
            Err(e) => Some(reason(&e)),
        }
    }

    fn create(&mut self, at: Place, capacity: u64) -> Option<String> {
        self.publisher = None;
        let builder = Publisher::builder(at.channel).prepare(Preparation::NONE);
        let builder = match (at.dir, at.socket) {
            (Some(dir), _) => Ok(builder.dir(dir).capacity(capacity)),
            (None, socket) => Client::at(socket.unwrap_or_default()).map(|client| builder.client(&client)),
        };
        match builder.and_then(|builder| builder.open()) {
            Ok(publisher) => self.publisher = Some(publisher),
            Err(ChannelError::InUse { .. }) if self.fault.has("any-lock-is-ignored") => {}
            Err(e) => return Some(reason(&e)),
        }
        None
    }

    /// Receives a channel from its first message to its end, and counts the events.
    fn consume(&mut self, at: Place, in_batches: bool, longest: usize) -> Result<Vec<String>> {
        let payloads = Payloads::new(longest);
        let builder = subscribe(at)?.start(Start::Sequence(1)).wait(Wait::Yield).prepare(Preparation::NONE);
        let mut subscriber = builder.wait_for_channel(Duration::from_secs(30)).open()?;
        let (mut received, mut missed, mut wrong, mut is_over) = (0_u64, 0_u64, 0_u64, false);
        while !is_over {
            let mut count = |event: Event<'_>| match event {
                Event::Message(m) if m.payload == payloads.of(m.sequence) => received += 1,
                Event::Lapped(_) if self.fault.has("missed-messages-do-not-count") => {}
                Event::Lapped(lapped) => missed += lapped.missed,
                Event::Gap { from, to } => missed += to - from + 1,
                Event::End => is_over = true,
                Event::NewEpoch { .. } => {}
                _ => wrong += 1,
            };
            if !in_batches {
                count(subscriber.recv()?);
                continue;
            }
            if subscriber.recv_records(256, &mut self.records)? == 0 {
                std::thread::yield_now();
            }
            self.records.iter().for_each(|message| count(Event::Message(message)));
            self.records.event().into_iter().for_each(count);
        }
        Ok(vec![format!("received {received}"), format!("missed {missed}"), format!("wrong {wrong}")])
    }

    /// Reads all available messages from this sequence on, again and again, and measures the time.
    fn drain(&mut self, in_batches: bool, passes: u32, sequence: u64) -> Result<Vec<String>> {
        let subscriber = self.subscriber.as_mut().context("nothing is open")?;
        let (mut sum, mut messages) = (0_u64, 0_u64);
        let mut add = |payload: &[u8]| {
            messages += 1;
            sum = sum.wrapping_add(payload.first_chunk().map_or(0, |word| u64::from_le_bytes(*word)));
        };
        let began = Instant::now();
        for _ in 0..passes {
            subscriber.seek(sequence)?;
            if in_batches {
                while subscriber.recv_records(256, &mut self.records)? > 0 {
                    self.records.iter().for_each(|message| add(message.payload));
                }
            } else {
                while let Some(event) = subscriber.try_recv()? {
                    if let Event::Message(message) = event {
                        add(message.payload);
                    }
                }
            }
        }
        let ns = began.elapsed().as_nanos();
        Ok(vec![format!("ns {ns}"), format!("messages {messages}"), format!("sum {sum}")])
    }

    /// Receives messages as they arrive, and keeps their ages.
    fn live(&mut self, messages: usize) -> Result<Vec<String>> {
        let subscriber = self.subscriber.as_mut().context("nothing is open")?;
        let clock = subscriber.clock();
        let mut ages = Vec::with_capacity(messages);
        while ages.len() < messages {
            if let Some(Event::Message(message)) = subscriber.try_recv()? {
                ages.push(clock.latency_ns(message.time, clock.now()));
            }
        }
        ages.sort_unstable();
        Ok(vec![format!("p50 {}", ages[messages / 2]), format!("p99 {}", ages[messages * 99 / 100])])
    }

    /// Receives one event at a time, until 130 calls in a row found nothing.
    fn poll(&mut self, most: usize) -> Result<Vec<String>> {
        let enough = if self.fault.has("a-poll-looks-once") { 1 } else { 130 };
        let (mut events, mut empty) = (Vec::new(), 0);
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

impl Fault {
    fn has(&self, fault: &str) -> bool {
        assert!(FAULTS.iter().any(|(name, _)| *name == fault), "{fault} stands in the list");
        self.0.as_deref() == Some(fault)
    }

    fn tell(&self, event: Event<'_>, events: &mut Vec<String>) {
        let text = match event {
            Event::Message(Message { payload, sequence, tag, key, time, .. }) => {
                let key = u8::from(key && !self.has("the-key-mark-is-lost"));
                let tag = if self.has("tags-have-a-byte") { tag & 0xff } else { tag };
                let time = if self.has("times-have-32-bits") { time & 0xffff_ffff } else { time };
                let (length, crc) = (payload.len(), crc32c::crc32c(payload));
                format!("message {sequence} tag={tag} key={key} time={time} length={length} crc={crc:08x}")
            }
            Event::Lapped(Lapped { missed, resumed_at }) => {
                format!("lapped {} {resumed_at}", missed - u64::from(self.has("a-lap-counts-one-less")))
            }
            Event::Gap { .. } if self.has("gaps-are-not-told") => return,
            Event::Gap { from, to } => format!("gap {from} {to}"),
            Event::NewEpoch { .. } if self.has("takeovers-are-not-told") => return,
            Event::NewEpoch { epoch } => format!("epoch {epoch}"),
            Event::NewSession { session } => {
                let most = if self.has("sessions-have-8-bytes") { 8 } else { 10 };
                format!(
                    "session {}",
                    session.iter().take(most).map(|byte| format!("{byte:02x}")).collect::<String>()
                )
            }
            Event::End => {
                if self.has("ends-come-twice") {
                    events.push("end".into());
                }
                "end".into()
            }
            Event::Restarted if self.has("restarts-are-not-told") => return,
            Event::PublisherGone { .. } if self.has("deaths-are-not-told") => return,
            Event::Restarted => "restarted".into(),
            Event::PublisherGone { epoch } => format!("gone {epoch}"),
            other => format!("{other:?}"),
        };
        events.push(text);
    }
}

fn subscribe(at: Place) -> std::result::Result<SubscriberBuilder, ChannelError> {
    let builder = Subscriber::builder(at.channel);
    match (at.dir, at.socket) {
        (Some(dir), _) => Ok(builder.dir(dir)),
        (None, socket) => Client::at(socket.unwrap_or_default()).map(|client| builder.client(&client)),
    }
}

fn unpublished(error: &PublishError) -> String {
    match error {
        PublishError::TooLarge(_) => "too large".into(),
        PublishError::CutOff => "cut off".into(),
        other => other.to_string(),
    }
}

fn locate(why: &LocateError) -> &'static str {
    match why {
        LocateError::TooOld { .. } => "too old",
        LocateError::NotYet { .. } => "not yet",
        _ => "corrupt",
    }
}

fn reason(error: &ChannelError) -> String {
    let class = match error {
        ChannelError::Segment { source, .. } => match source {
            OpenError::Truncated { .. } => "truncated",
            OpenError::Foreign { .. } => "foreign",
            OpenError::Version { .. } => "version",
            OpenError::Checksum { .. } => "checksum",
            OpenError::Geometry(_) => "geometry",
            OpenError::Field { .. } => "field",
            _ => "system",
        },
        ChannelError::Locate { source, .. } => locate(source),
        ChannelError::InUse { .. } => "in use",
        ChannelError::NotFound { .. } => "not found",
        ChannelError::Refused { code, .. } => match code {
            RefusalCode::UnknownChannel => "not found",
            RefusalCode::Denied => "denied",
            RefusalCode::Busy => "in use",
            RefusalCode::Limit => "limit",
            _ => "refused",
        },
        ChannelError::NoDaemon { .. } | ChannelError::Silent { .. } => "no daemon",
        _ => return error.to_string(),
    };
    class.to_owned()
}

impl Fault {
    fn failure(&self, error: &RecvError) -> String {
        match error {
            RecvError::Superseded if self.has("a-removed-channel-ends") => "end".to_owned(),
            other => failure(other),
        }
    }
}

fn failure(error: &RecvError) -> String {
    match error {
        RecvError::Superseded => "superseded".to_owned(),
        RecvError::Corrupt(_) | RecvError::Locate(_) => "corrupt".to_owned(),
        other => other.to_string(),
    }
}
