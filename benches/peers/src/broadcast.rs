//! `bcast`: a ring of variable-length frames in a mapped file. The writer does not wait for readers, and overwrites old frames.
//!
//! In rounds in which nothing may be lost, the rig's gate makes the writer wait for its readers. `bcast-ungated` is the ring without this
//! gate, so a slow reader loses messages. `bcast-bulk` and `bcast-plain` are the same ring with other ways to receive.

use anyhow::{Context, Result, bail};
use bcast::{HEADER_SIZE, MappedReader, MappedWriter, MmapMutStorage, MmapStorage, StorageExt, error::Error};
use shmcast_bench::rig::publish::Sender;
use shmcast_bench::rig::receive::{Receiver, Sink};
use shmcast_bench::rig::spec::Spec;
use std::path::PathBuf;

/// The ring with the rig's gate, which makes the writer wait for its readers.
pub(crate) const NAME: &str = "bcast";
/// The ring without the gate.
pub(crate) const UNGATED: &str = "bcast-ungated";
/// The ring with the gate. Its readers copy all available messages with one call of the crate.
pub(crate) const BULK: &str = "bcast-bulk";
/// The ring with the gate. Its readers receive one message with each call, as in a simple program.
pub(crate) const PLAIN: &str = "bcast-plain";
/// The names of all transports that use this ring.
pub(crate) const NAMES: [&str; 4] = [NAME, UNGATED, BULK, PLAIN];
/// The release in Cargo.toml.
pub(crate) const VERSION: &str = "1.0.0-rc.7";

/// The share of the ring that the writer claims in one step. It is the largest share that the crate's own bench tries. The writer stores
/// its position once for each claim, so a large share makes these stores rare.
const RESERVE: f64 = 0.05;

fn path(spec: &Spec) -> PathBuf {
    spec.dir.join("bcast")
}

fn is_gated(spec: &Spec) -> bool {
    spec.contestant.transport_name() != UNGATED
}

/// The writer.
pub(crate) struct Sending {
    writer: MappedWriter,
    gated: bool,
    ring_bytes: u64,
}

impl Sending {
    pub(crate) fn open(spec: &Spec) -> Result<Self> {
        let bytes = HEADER_SIZE + spec.ring_bytes as usize;
        let storage = MmapMutStorage::new(path(spec), bytes).with_context(|| {
            format!("map and lock {bytes} B; if memory is refused, raise `ulimit -l` or use a smaller --ring-bytes")
        })?;
        Ok(Self {
            writer: storage.into_writer_with_cfg(|config| config.claim_reserve_ratio(RESERVE)),
            gated: is_gated(spec),
            ring_bytes: spec.ring_bytes,
        })
    }
}

impl Sender for Sending {
    #[inline(always)]
    fn send(&mut self, payload: &[u8], _: u64) -> Result<u64> {
        self.writer.publish(payload.len(), true, |frame| frame.copy_from_slice(payload));
        Ok(0)
    }

    fn needs_gate(&self) -> bool {
        self.gated
    }

    fn notes(&self) -> Vec<String> {
        vec![format!("bcast {VERSION}, ring of {} B, locked", self.ring_bytes)]
    }
}

/// A reader.
pub(crate) struct Receiving {
    reader: MappedReader,
    buffer: Vec<u8>,
    gated: bool,
    way: Way,
}

/// The calls by which a reader receives messages.
#[derive(PartialEq)]
enum Way {
    Batch,
    Bulk,
    Plain,
}

impl Receiving {
    pub(crate) fn open(spec: &Spec) -> Result<Self> {
        let storage = MmapStorage::attach(path(spec)).context("map and lock the ring")?;
        let way = match spec.contestant.transport_name() {
            BULK => Way::Bulk,
            PLAIN => Way::Plain,
            _ => Way::Batch,
        };
        let mut buffer = vec![1; if way == Way::Bulk { spec.ring_bytes as usize } else { spec.size }];
        buffer.fill(0); // touches every page now
        Ok(Self { reader: storage.into_reader(), buffer, gated: is_gated(spec), way })
    }

    fn poll_bulk(&mut self, sink: &mut Sink) -> Result<bool> {
        let Some(bulk) = self.reader.read_bulk() else { return Ok(false) };
        match bulk.and_then(|bulk| bulk.into_iter(&mut self.buffer)) {
            Ok(messages) => messages.for_each(|message| sink.message(message.payload)),
            Err(Error::Overrun(_)) => {
                sink.lost(1); // it does not say how many
                self.reader.reset();
            }
            Err(e) => bail!("{e}"),
        }
        Ok(true)
    }

    #[inline(always)]
    fn poll_plain(&mut self, sink: &mut Sink) -> Result<bool> {
        match self.reader.receive_next(&mut self.buffer) {
            None => return Ok(false),
            Some(Ok(message)) => sink.message(message.payload),
            Some(Err(Error::Overrun(_))) => {
                sink.lost(1); // it does not say how many
                self.reader.reset();
            }
            Some(Err(e)) => bail!("{e}"),
        }
        Ok(true)
    }
}

impl Receiver for Receiving {
    #[inline]
    fn poll(&mut self, sink: &mut Sink) -> Result<bool> {
        match self.way {
            Way::Bulk => return self.poll_bulk(sink),
            Way::Plain => return self.poll_plain(sink),
            Way::Batch => {}
        }
        let Some(mut batch) = self.reader.read_batch() else { return Ok(false) };
        while let Some(message) = batch.receive_next(&mut self.buffer) {
            match message {
                Ok(message) => sink.message(message.payload),
                Err(Error::Overrun(_)) => {
                    sink.lost(1); // it does not say how many
                    batch.reset();
                    break;
                }
                Err(e) => bail!("{e}"),
            }
        }
        Ok(true)
    }

    fn needs_gate(&self) -> bool {
        self.gated
    }
}
