//! `bcast`: a log of variable-length frames in a mapped file, overwritten without regard for readers. It has no flow
//! control, so the rig's gate holds it back where nothing may be lost; under the name `bcast-ungated` it runs free and
//! loses what its readers do not take in time.

use anyhow::{Context, Result, bail};
use bcast::{HEADER_SIZE, MappedReader, MappedWriter, MmapMutStorage, MmapStorage, StorageExt, error::Error};
use shmcast_bench::rig::publish::Sender;
use shmcast_bench::rig::receive::{Receiver, Sink};
use shmcast_bench::rig::spec::Spec;
use std::path::PathBuf;

/// Behind the rig's gate.
pub(crate) const NAME: &str = "bcast";
/// Without it.
pub(crate) const UNGATED: &str = "bcast-ungated";
/// The release in Cargo.toml.
pub(crate) const VERSION: &str = "1.0.0-rc.7";

/// Share of the ring that the writer claims at once: the most that the crate's own bench tries. A reader looks at the
/// claim twice a message, so the less often it moves the better.
const RESERVE: f64 = 0.05;

fn path(spec: &Spec) -> PathBuf {
    spec.dir.join("bcast")
}

fn is_gated(spec: &Spec) -> bool {
    spec.contestant.transport_name() == NAME
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
}

impl Receiving {
    pub(crate) fn open(spec: &Spec) -> Result<Self> {
        let storage = MmapStorage::attach(path(spec)).context("map and lock the ring")?;
        Ok(Self { reader: storage.into_reader(), buffer: vec![0; spec.size], gated: is_gated(spec) })
    }
}

impl Receiver for Receiving {
    #[inline]
    fn poll(&mut self, sink: &mut Sink) -> Result<bool> {
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
