//! The ideal ring as a transport: the lower bound for the latency of any shared-memory ring in this rig.

use crate::ideal::{IdealReader, IdealWriter, Shape};
use crate::rig::payload::zeros_from_a_line;
use crate::rig::publish::Sender;
use crate::rig::receive::{Receiver, Sink};
use crate::rig::spec::Spec;
use anyhow::{Context, Result};
use std::ops::Range;

fn shape(spec: &Spec) -> Shape {
    Shape::of_bytes(spec.size, spec.ring_bytes as usize)
}

/// The writer.
#[derive(Debug)]
pub struct IdealSender(IdealWriter);

impl IdealSender {
    /// Makes the round's ring.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(spec: &Spec) -> Result<Self> {
        Ok(Self(IdealWriter::create(&spec.dir.join("ring"), shape(spec)).context("make the ring")?))
    }
}

impl Sender for IdealSender {
    #[inline(always)]
    fn send(&mut self, payload: &[u8], _: u64) -> Result<u64> {
        self.0.publish(payload);
        Ok(0)
    }
}

/// A reader.
#[derive(Debug)]
pub struct IdealReceiver {
    reader: IdealReader,
    /// The bytes of one message, from the start of a cache line.
    buffer: Vec<u8>,
    place: Range<usize>,
}

impl IdealReceiver {
    /// Attaches to the round's ring.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(spec: &Spec) -> Result<Self> {
        let reader = IdealReader::open(&spec.dir.join("ring"), shape(spec)).context("open the ring")?;
        let (buffer, first) = zeros_from_a_line(spec.size);
        Ok(Self { reader, buffer, place: first..first + spec.size })
    }
}

impl Receiver for IdealReceiver {
    #[inline]
    fn poll(&mut self, sink: &mut Sink) -> Result<bool> {
        let message = &mut self.buffer[self.place.clone()];
        let there = self.reader.poll(message);
        if there {
            sink.message(message);
        }
        Ok(there)
    }
}
