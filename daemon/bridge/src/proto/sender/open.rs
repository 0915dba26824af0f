//! The packet that is being filled. Its form depends on the line's profile.

use super::super::native::container::Kind;
use super::super::native::records::RecordWriter;
use super::super::native::seal::Sealer;
use super::super::session::Session;
use super::super::wire::{Meta, PacketWriter};

/// The packet that is being filled.
#[derive(Debug, Clone, Copy)]
pub(super) enum Open {
    Plain(PacketWriter),
    Native(RecordWriter),
}

impl Open {
    pub(super) fn plain(first: u64) -> Open {
        Open::Plain(PacketWriter::new(first))
    }

    pub(super) fn native(first: u64) -> Open {
        Open::Native(RecordWriter::new(first))
    }

    /// Makes an empty packet of the same profile.
    pub(super) fn begin(&self, first: u64) -> Open {
        match self {
            Open::Plain(_) => Open::plain(first),
            Open::Native(_) => Open::native(first),
        }
    }

    /// Returns the sequence of the next message to push.
    pub(super) fn next(&self) -> u64 {
        match self {
            Open::Plain(packet) => packet.next(),
            Open::Native(packet) => packet.next(),
        }
    }

    pub(super) fn count(&self) -> u16 {
        match self {
            Open::Plain(packet) => packet.count(),
            Open::Native(packet) => packet.count(),
        }
    }

    /// Adds a message. Returns false, and changes nothing, if it does not fit.
    #[inline]
    pub(super) fn push(&mut self, buffer: &mut [u8], data: &[u8], meta: Meta) -> bool {
        match self {
            Open::Plain(packet) => packet.push(buffer, data),
            Open::Native(packet) => packet.push(buffer, data, meta),
        }
    }

    /// Completes the packet. Returns its size, or `None` if it has no message.
    pub(super) fn finish(
        self,
        buffer: &mut [u8],
        session: Session,
        sealer: Option<&mut Sealer>,
    ) -> Option<usize> {
        match self {
            Open::Plain(packet) => packet.finish(buffer, session),
            Open::Native(packet) => {
                let (body, count) = (packet.finish(buffer)?, packet.count());
                let about = (session, packet.next() - u64::from(count), count);
                sealer?.finish(buffer, (Kind::Data, false), about, body)
            }
        }
    }
}
