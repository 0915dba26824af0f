//! Requests that count messages, or measure the client.

use super::words::subscribe;
use super::{Place, Testee};
use anyhow::{Context, Result};
use shmcast::{Event, Preparation, Start, Wait};
use shmcast_conformance::payload::Payloads;
use std::time::{Duration, Instant};

impl Testee {
    /// Receives a channel from its first message to its end, and counts the events.
    pub(super) fn consume(&mut self, at: Place, in_batches: bool, longest: usize) -> Result<Vec<String>> {
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

    /// Reads all available messages from this sequence on, `passes` times. Measures the time.
    pub(super) fn drain(&mut self, in_batches: bool, passes: u32, sequence: u64) -> Result<Vec<String>> {
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

    /// Receives messages as they arrive, and returns their ages.
    pub(super) fn live(&mut self, messages: usize) -> Result<Vec<String>> {
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

    /// Publishes messages, and measures the time.
    pub(super) fn fill(&mut self, length: usize, messages: u64) -> Result<Vec<String>> {
        let publisher = self.publisher.as_mut().context("no publisher")?;
        let payload = vec![1; length];
        let began = Instant::now();
        for _ in 0..messages {
            publisher.publish(&payload)?;
        }
        Ok(vec![format!("ns {}", began.elapsed().as_nanos())])
    }
}
