//! The publishing actor. Before each call it logs what it will publish, and after the call how much was published.

use super::gates::{self, Watch};
use super::recorder::AGE_NS;
use super::{Opening, Orders, Place, client, kind};
use crate::log::{Fact, Log};
use crate::payload::{Identity, Marks, Sizes, fill};
use crate::story::Sending;
use anyhow::Result;
use serde_json::{Value, json};
use shmcast::{ChannelError, Mark, Preparation, PublishError, Publisher};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

/// Greatest number of messages in one batch.
const BATCH: u32 = 64;

/// An open channel and its publisher.
pub(super) struct Publishing {
    publisher: Publisher,
    channel: String,
    /// The next message.
    next: Identity,
    buffer: Vec<u8>,
}

impl Publishing {
    pub(super) fn open(log: &mut Log, opening: &Opening) -> Result<Option<Self>> {
        let Opening { channel, publisher, .. } = opening.clone();
        log.write(Fact::Opening { channel: channel.clone(), publisher })?;
        match open(opening) {
            Ok(opened) => {
                let largest = opened.max_message();
                let (next, epoch, capacity) = (opened.next_sequence(), opened.epoch(), opened.capacity());
                log.write(Fact::Opened { next, epoch, capacity, largest })?;
                gates::note_figures(&opened, log)?;
                if let (Some(wanted), Place::Dir(dir)) = (opening.mode, &opening.place) {
                    let found = fs::metadata(dir.join(&channel))?.permissions().mode() & 0o777;
                    log.write(Fact::Mode { wanted, found })?;
                }
                Ok(Some(Self {
                    publisher: opened,
                    channel,
                    next: Identity { publisher, counter: 0 },
                    buffer: Vec::new(),
                }))
            }
            Err(e) => {
                log.write(Fact::OpenFailed { kind: kind(&e), why: e.to_string() })?;
                Ok(None)
            }
        }
    }

    pub(super) fn next_sequence(&self) -> u64 {
        self.publisher.next_sequence()
    }

    pub(super) fn epoch(&self) -> u64 {
        self.publisher.epoch()
    }

    pub(super) fn is_registered(&self) -> Option<bool> {
        self.publisher.is_registered()
    }

    pub(super) fn publish(
        &mut self,
        log: &mut Log,
        count: u32,
        sizes: Sizes,
        sending: Sending,
        pause: Duration,
    ) -> Result<Value> {
        let first = self.next;
        let old = sending == Sending::Old;
        log.write(Fact::Publishing { first, count, sizes, next: self.publisher.next_sequence(), old })?;
        let mut error = None;
        let mut done = 0;
        let (mut watch, mut goes_on) = (Watch::new(&self.publisher), true);
        while done < count && error.is_none() && goes_on {
            let expected = self.publisher.next_sequence();
            let some = if sending == Sending::Batch { BATCH.min(count - done) } else { 1 };
            let begun = watch.begin();
            match self.send(some, sizes, sending) {
                Ok(sequence) if sequence == expected => {
                    done += some;
                    self.next.counter += some;
                }
                Ok(sequence) => error = Some(format!("told sequence {sequence} and not {expected}")),
                Err(PublishError::Full { gate, .. }) => {
                    // If a message of a batch is refused, the messages before it have been published.
                    let sent = (self.publisher.next_sequence() - expected) as u32;
                    (done, self.next.counter) = (done + sent, self.next.counter + sent);
                    goes_on = watch.refused(gate.as_str(), begun.as_ref());
                }
                Err(e) => error = Some(kind(&e)),
            }
            watch.end(begun, "publish", some);
            if !pause.is_zero() {
                std::thread::sleep(pause);
            }
        }
        let next = self.publisher.next_sequence();
        log.write(Fact::Published { count: done, next, error })?;
        watch.finish(&self.publisher, sending == Sending::Try, log)?;
        let last = Identity { counter: self.next.counter.saturating_sub(1), ..self.next };
        Ok(json!({ "last": last, "next": next, "count": done }))
    }

    /// Sends the next message, or the next `some` messages in one call. Returns the sequence of the first message.
    fn send(&mut self, some: u32, sizes: Sizes, sending: Sending) -> Result<u64, PublishError> {
        let (who, largest) = (self.next, self.publisher.max_message());
        let length = who.length(sizes, largest);
        let marks = if sending == Sending::Single { Marks::default() } else { who.marks() };
        let mark = Mark { tag: marks.tag, key: marks.key };
        match sending {
            Sending::Single | Sending::Marked | Sending::Try => {
                self.buffer.resize(length, 0);
                fill(&self.channel, who, marks, &mut self.buffer);
                match sending {
                    Sending::Try => self.publisher.try_publish_with(&self.buffer, mark),
                    _ => self.publisher.publish_with(&self.buffer, mark),
                }
            }
            Sending::Old => {
                self.buffer.resize(length, 0);
                fill(&self.channel, who, marks, &mut self.buffer);
                let clock = self.publisher.clock();
                let age = (AGE_NS * u128::from(clock.hz()) / 1_000_000_000) as u64;
                self.publisher.publish_at(&self.buffer, mark, clock.now().wrapping_sub(age))
            }
            Sending::Claim => {
                // Some claims are dropped. Most claims are larger than the part that is committed.
                if who.counter.is_multiple_of(5) {
                    self.publisher.claim(largest)?.abort();
                }
                let mut claim = self.publisher.claim((length + 7).min(largest))?;
                fill(&self.channel, who, marks, &mut claim[..length]);
                claim.mark(mark).commit(length)
            }
            Sending::Batch => {
                let messages: Vec<Vec<u8>> = (who.counter..who.counter + some)
                    .map(|counter| {
                        let who = Identity { counter, ..who };
                        let mut message = vec![0; who.length(sizes, largest)];
                        fill(&self.channel, who, Marks::default(), &mut message);
                        message
                    })
                    .collect();
                self.publisher.publish_batch(messages).map(|sequences| sequences.start)
            }
        }
    }

    /// Publishes empty messages until the next order. Returns their number.
    pub(super) fn rush(&mut self, orders: &mut Orders) -> u64 {
        const AT_ONCE: u64 = 4096;
        let mut done = 0;
        while !orders.is_one_waiting() {
            if (0..AT_ONCE).any(|_| self.publisher.publish_at(&[], Mark::default(), 0).is_err()) {
                break;
            }
            done += AT_ONCE;
        }
        done
    }

    pub(super) fn gap(&mut self, log: &mut Log, by: u64) -> Result<()> {
        let next = self.publisher.next_sequence();
        // `next` is the first sequence of the gap, and `to` is the last. If `by` is 0, the gap is empty, and `to`
        // is below `next`.
        let to = next.saturating_add(by).saturating_sub(1);
        log.write(Fact::Gapping { to, next })?;
        let error = self.publisher.gap(to).err().map(|e| kind(&e));
        log.write(Fact::Gapped { next: self.publisher.next_sequence(), error })?;
        Ok(())
    }

    pub(super) fn session(&mut self, log: &mut Log, identity: String) -> Result<()> {
        let mut bytes = [b' '; 10];
        bytes.iter_mut().zip(identity.bytes()).for_each(|(to, from)| *to = from);
        let error = self.publisher.session(bytes).err().map(|e| kind(&e));
        log.write(Fact::Session { identity, error })?;
        Ok(())
    }
}

/// Tries to open a channel whose description does not fit into a header. Returns whether this failed.
pub(super) fn misopen(dir: &Path, channel: &str) -> bool {
    Publisher::builder(channel).dir(dir).capacity(1 << 16).labels("x".repeat(5000)).open().is_err()
}

fn open(opening: &Opening) -> Result<Publisher, ChannelError> {
    let Opening { place, channel, sizes, anew, full, mode, shape, .. } = opening;
    let mut builder = Publisher::builder(channel);
    builder = match (client(place)?, place) {
        (Some(client), _) => builder.client(&client),
        (None, Place::Dir(dir)) => builder.dir(dir),
        (None, Place::Socket(_)) => builder,
    };
    if let Some([capacity, largest]) = sizes {
        builder = builder.capacity(*capacity).max_message(*largest);
        builder = gates::equip(builder, channel, [*capacity, *largest], shape);
    }
    if *anew {
        builder = builder.anew();
    }
    if let Some(mode) = mode {
        builder = builder.mode(*mode);
    }
    builder.prepare(if *full { Preparation::FULL } else { Preparation::NONE }).open()
}
