//! Copies and hashes a writer with all its fields.

use crate::core::Pool;
use crate::core::writer::{Purpose, Writer};
use std::collections::VecDeque;
use std::hash::{Hash, Hasher};

/// Copies a writer, which must have no errors. The function names every field. So if a field is added but not copied here, the code does
/// not compile.
pub(super) fn copy(of: &Writer) -> Writer {
    Writer {
        settings: of.settings.clone(),
        header: of.header.clone(),
        pool: Pool::default(),
        salts: of.salts,
        waiting: of.waiting.clone(),
        pending: of.pending.clone(),
        freed: of.freed,
        files: of.files.clone(),
        spare: of.spare,
        next_number: of.next_number,
        help: of.help.clone(),
        busy: of.busy.clone(),
        last_op: of.last_op,
        last_sync: of.last_sync,
        retry_at: of.retry_at,
        spare_retry_at: of.spare_retry_at,
        failures: of.failures,
        errors: VecDeque::new(),
        written: of.written,
        durable: of.durable,
        reserve: of.reserve,
        buffered: of.buffered,
        bytes_written: of.bytes_written,
        forgotten: of.forgotten,
        named: of.named,
        is_closing: of.is_closing,
        gave_up: of.gave_up,
    }
}

/// Hashes the work of a lane. The match names every kind of work. So if a kind is added but not hashed here, the code does not compile.
pub(super) fn hash_doing(doing: &Purpose, hasher: &mut impl Hasher) {
    match doing {
        Purpose::Frames { file, frames, next, .. } => (0, file, frames, next).hash(hasher),
        Purpose::Footer { file, .. } => (1, file).hash(hasher),
        Purpose::Sync { file, covers } => (2, file, covers).hash(hasher),
        Purpose::Spare => 3.hash(hasher),
        Purpose::Name { file } => (4, file).hash(hasher),
        Purpose::Finish { file } => (5, file).hash(hasher),
        Purpose::GiveUp => 6.hash(hasher),
    }
}
