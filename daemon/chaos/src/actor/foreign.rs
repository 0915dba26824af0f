//! A reader in another language. This reader is a testee, a program that the conformance suite tests. The actor tells the testee to
//! receive, and logs the testee's answers.

use super::Place;
use super::recorder::Recorder;
use crate::log::Fact;
use anyhow::{Context, Result, bail};
use shmcast::{Event, Lapped, Message};
use shmcast_conformance::testee::{Answer, Testee};
use std::ffi::OsString;

/// Greatest number of events that one call receives.
const MOST: usize = 64;

/// The testee, and the sequence that it should receive next.
pub(super) struct Foreign {
    testee: Testee,
    next: u64,
}

impl Foreign {
    /// Starts the testee, and makes it attach at a sequence. The inner result is an `Err` if the testee's library refuses to open the
    /// channel.
    pub(super) fn open(
        command: &str,
        place: &Place,
        channel: &str,
        next: u64,
    ) -> Result<Result<Self, String>> {
        let words: Vec<OsString> = command.split_whitespace().map(OsString::from).collect();
        let mut testee = Testee::start(&words)?;
        let place = match place {
            Place::Dir(dir) => format!(r#""dir":"{}""#, dir.display()),
            Place::Socket(socket) => format!(r#""socket":"{}""#, socket.display()),
        };
        match testee.ask(&format!(r#"{{"do":"open",{place},"channel":"{channel}","start":{next}}}"#))? {
            Answer::Refused { refused } => Ok(Err(refused)),
            _ => Ok(Ok(Self { testee, next })),
        }
    }

    /// Receives the available events. Returns their number. If a failure followed the events, also returns the kind of the failure.
    pub(super) fn call(
        &mut self,
        recorder: &mut Recorder,
        in_batches: bool,
    ) -> Result<(usize, Option<String>)> {
        let how = if in_batches { "batch" } else { "poll" };
        let answer = self.testee.ask(&format!(r#"{{"do":"{how}","most":{MOST},"bytes":1}}"#))?;
        let Answer::Events { events } = answer else { bail!("to {how} it answers {answer:?}") };
        for (at, event) in events.iter().enumerate() {
            if !self.note(event, recorder).with_context(|| event.clone())? {
                return Ok((at, Some(event.clone())));
            }
        }
        Ok((events.len(), None))
    }

    /// Seeks by this many sequences. Logs the result.
    pub(super) fn seek(&mut self, by: i64, recorder: &mut Recorder) -> Result<()> {
        let to = self.next.saturating_add_signed(by).max(1);
        recorder.fact(Fact::Seeking { to });
        let error = match self.testee.ask(&format!(r#"{{"do":"seek","sequence":{to}}}"#))? {
            Answer::Refused { refused } => Some(kind(&refused)),
            _ => None,
        };
        if error.is_none() {
            self.next = to;
        }
        recorder.fact(Fact::Sought { error });
        Ok(())
    }

    /// Notes an event that the testee reported. Returns false if `told` is not an event, but the kind of a failure.
    fn note(&mut self, told: &str, recorder: &mut Recorder) -> Result<bool> {
        let mut words = told.split(' ');
        let name = words.next().unwrap_or_default();
        let mut number = || -> Result<u64> { Ok(words.next().context("a number is missing")?.parse()?) };
        let event = match name {
            "message" => {
                let sequence = number()?;
                self.message(sequence, told, recorder)?;
                return Ok(true);
            }
            "lapped" => Event::Lapped(Lapped { missed: number()?, resumed_at: number()? }),
            "gap" => Event::Gap { from: number()?, to: number()? },
            "live" => Event::Live { sequence: number()? },
            "epoch" => Event::NewEpoch { epoch: number()? },
            "gone" => Event::PublisherGone { epoch: number()? },
            "session" => {
                let session = bytes(words.next().unwrap_or_default())?;
                Event::NewSession { session: session.try_into().ok().context("not ten bytes")? }
            }
            "restarted" => Event::Restarted,
            "end" => Event::End,
            _ => return Ok(false),
        };
        match event {
            Event::Lapped(lapped) => self.next = lapped.resumed_at,
            Event::Gap { to, .. } => self.next = to + 1,
            Event::Restarted => self.next = 1,
            _ => {}
        }
        recorder.note(event);
        Ok(true)
    }

    /// Notes an event of the form `message S tag=T key=K time=N length=L crc=C bytes=H`.
    fn message(&mut self, sequence: u64, told: &str, recorder: &mut Recorder) -> Result<()> {
        let value = |name: &str| {
            let found = told.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            found.with_context(|| format!("no {name}"))
        };
        let payload = &bytes(value("bytes")?)?[..];
        anyhow::ensure!(payload.len() == value("length")?.parse::<usize>()?, "bytes are missing");
        let (tag, key, time) = (value("tag")?.parse()?, value("key")? == "1", value("time")?.parse()?);
        self.next = sequence + 1;
        recorder.note(Event::Message(Message { payload, sequence, tag, key, time, conflated: None }));
        Ok(())
    }
}

fn bytes(hexadecimal: &str) -> Result<Vec<u8>> {
    let digits: Vec<u8> = hexadecimal
        .chars()
        .map(|c| c.to_digit(16).map(|d| d as u8))
        .collect::<Option<_>>()
        .context("not hexadecimal")?;
    Ok(digits.chunks(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect())
}

/// Returns the library's name for a kind of error that a testee reported: `NotYet` for `not yet`.
pub(super) fn kind(words: &str) -> String {
    let capital = |word: &str| word[..1].to_uppercase() + &word[1..];
    words.split_whitespace().map(capital).collect()
}
