//! The testee in Rust. README.md of this package has its contract.
//!
//! `SHMCAST_TESTEE_FAULT` plants a fault, to prove that the suite finds it: each of [`FAULTS`] fails some vector.
#![allow(clippy::print_stdout, reason = "it is a program")]

use anyhow::{Context, Result};
use serde::Deserialize;
use shmcast::{
    ChannelError, Event, Lapped, LocateError, Message, OpenError, Preparation, Records, RecvError, Start,
    Subscriber, Wait,
};
use std::io::{BufRead, stdin, stdout};
use std::path::PathBuf;

/// Faults that can be planted.
const FAULTS: [&str; 8] = [
    "gaps-are-not-told",
    "a-lap-counts-one-less",
    "ends-come-twice",
    "the-key-mark-is-lost",
    "seek-begins-one-later",
    "a-batch-ends-at-a-pad",
    "any-header-is-accepted",
    "a-poll-looks-once",
];

#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
enum Request {
    Open { dir: PathBuf, channel: String, start: Begin },
    Poll {},
    Batch {},
    Seek { sequence: u64 },
    Close {},
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Begin {
    Sequence(u64),
    Word(String),
}

struct Testee {
    subscriber: Option<Subscriber>,
    records: Records,
    fault: Fault,
}

/// The planted fault.
struct Fault(Option<String>);

fn main() -> Result<()> {
    let fault = std::env::var("SHMCAST_TESTEE_FAULT").ok();
    if let Some(fault) = &fault {
        anyhow::ensure!(FAULTS.contains(&&**fault), "no such fault; there are {FAULTS:?}");
    }
    let version = env!("CARGO_PKG_VERSION");
    println!(r#"{{"testee":"rust","version":"{version}","levels":[1,2,3]}}"#);
    let mut testee = Testee { subscriber: None, records: Records::with_room(16 << 10), fault: Fault(fault) };
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
        match request {
            Request::Open { dir, channel, start } => Ok(answer(self.open(dir, channel, &start))),
            Request::Close {} => {
                self.subscriber = None;
                Ok(answer(None))
            }
            Request::Seek { sequence } => {
                let later = u64::from(self.fault.has("seek-begins-one-later"));
                let subscriber = self.subscriber.as_mut().context("nothing is open")?;
                let sought = subscriber.seek(sequence + later);
                Ok(answer(sought.err().map(|why| locate(&why).to_owned())))
            }
            Request::Poll {} => {
                let events = self.poll()?;
                Ok(serde_json::json!({"events": events}))
            }
            Request::Batch {} => {
                let events = self.batch()?;
                Ok(serde_json::json!({"events": events}))
            }
        }
    }

    fn open(&mut self, dir: PathBuf, channel: String, start: &Begin) -> Option<String> {
        self.subscriber = None;
        let start = match start {
            Begin::Sequence(sequence) => Start::Sequence(*sequence),
            Begin::Word(word) if word == "oldest" => Start::Oldest,
            Begin::Word(_) => Start::Latest,
        };
        let builder = Subscriber::builder(channel).dir(dir).start(start).wait(Wait::Spin);
        match builder.prepare(Preparation::NONE).page(false).open() {
            Ok(subscriber) => {
                self.subscriber = Some(subscriber);
                None
            }
            Err(_) if self.fault.has("any-header-is-accepted") => None,
            Err(e) => Some(reason(&e)),
        }
    }

    /// Receives one at a time, until 130 calls in a row found nothing.
    fn poll(&mut self) -> Result<Vec<String>> {
        let enough = if self.fault.has("a-poll-looks-once") { 1 } else { 130 };
        let (mut events, mut empty) = (Vec::new(), 0);
        while empty < enough {
            let subscriber = self.subscriber.as_mut().context("nothing is open")?;
            match subscriber.try_recv() {
                Ok(None) => empty += 1,
                Ok(Some(event)) => {
                    empty = 0;
                    self.fault.tell(event, &mut events);
                }
                Err(e) => {
                    events.push(failure(&e));
                    break;
                }
            }
        }
        Ok(events)
    }

    fn batch(&mut self) -> Result<Vec<String>> {
        let (mut events, mut empty) = (Vec::new(), 0);
        while empty < 130 {
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
                    events.push(failure(&e));
                    break;
                }
            }
        }
        Ok(events)
    }
}

impl Fault {
    fn has(&self, fault: &str) -> bool {
        assert!(FAULTS.contains(&fault), "{fault} stands in the list");
        self.0.as_deref() == Some(fault)
    }

    fn tell(&self, event: Event<'_>, events: &mut Vec<String>) {
        let text = match event {
            Event::Message(Message { payload, sequence, tag, key, time }) => {
                let key = u8::from(key && !self.has("the-key-mark-is-lost"));
                let (length, crc) = (payload.len(), crc32c::crc32c(payload));
                format!("message {sequence} tag={tag} key={key} time={time} length={length} crc={crc:08x}")
            }
            Event::Lapped(Lapped { missed, resumed_at }) => {
                format!("lapped {} {resumed_at}", missed - u64::from(self.has("a-lap-counts-one-less")))
            }
            Event::Gap { .. } if self.has("gaps-are-not-told") => return,
            Event::Gap { from, to } => format!("gap {from} {to}"),
            Event::NewEpoch { epoch } => format!("epoch {epoch}"),
            Event::NewSession { session } => {
                format!("session {}", session.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
            }
            Event::End => {
                if self.has("ends-come-twice") {
                    events.push("end".into());
                }
                "end".into()
            }
            other => format!("{other:?}"),
        };
        events.push(text);
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
        _ => return error.to_string(),
    };
    class.to_owned()
}

fn failure(error: &RecvError) -> String {
    match error {
        RecvError::Superseded => "superseded".to_owned(),
        RecvError::Corrupt(_) | RecvError::Locate(_) => "corrupt".to_owned(),
        other => other.to_string(),
    }
}
