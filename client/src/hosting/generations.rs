//! Moves a channel to another segment. First the host prepares all steps. Then a single store to the charter (the file with the host's
//! decisions) makes the move valid for all programs.
//!
//! Functions of this module have no examples, because they are useful only with a control socket.

use super::{HostedSegment, HostedSpec, LAST_EPOCH, fault};
use shmcast_layout::charter::{Charter, Entry, HostCharter};
use shmcast_layout::control::Generation;
use shmcast_layout::layout::charter::NO_CUT;
use shmcast_layout::layout::header::{LAZY_BYTES, State};
use shmcast_layout::mem::memfd::{self, Reopen};
use shmcast_layout::ring::locate::Locator;
use shmcast_layout::segment::Access;
use std::fs::File;
use std::io;

/// Highest sequence that a charter can name.
const LAST_SEQUENCE: u64 = NO_CUT - 1;

/// The cut: the point at which the channel's previous generation, its time in one segment, ends for all readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The cut is at the tail of the previous generation. Sequences continue from there. This cut needs a channel with a
    /// [tail](HostedCharter::has_tail).
    Tail,
    /// The cut is at the tail of the previous generation. Sequences begin at 1 again.
    Restart,
    /// There is no cut. The host has lost the previous generation's memory. Readers that still have this memory mapped receive all messages
    /// in it. The next generation's sequences begin at 1, or after the journal's sequences if the channel has a journal.
    Lost,
    /// The cut is at the present moment. Readers do not receive any further messages of the previous generation. The next generation's
    /// sequences begin at 1, or after the journal's sequences if the channel has a journal.
    Void,
}

impl Cut {
    /// Returns the sequence from which on the previous generation is not valid, and whether the stream ended at that sequence. `tail` is
    /// the sequence after all committed messages; `None` if it is unknown. The caller read `tail` from the ring while the charter said
    /// *closing*.
    pub(crate) fn at(self, tail: Option<u64>, has_ended: impl FnOnce() -> bool) -> (u64, bool) {
        match (self, tail) {
            (Self::Tail | Self::Restart, Some(tail)) => (tail, has_ended()),
            (Self::Lost, _) => (NO_CUT, false),
            (Self::Tail | Self::Restart, None) | (Self::Void, _) => (0, false),
        }
    }
}

/// A channel's charter, which only its host can write to. The charter is the file in which the host says which segments are valid.
#[derive(Debug)]
pub struct HostedCharter {
    file: File,
    charter: HostCharter,
}

impl HostedCharter {
    /// Writes the charter of channel `name` into `file`. The caller has just created `file` with mode 0600.
    ///
    /// # Errors
    /// The system's error.
    pub fn create(file: File, name: &str, boot: [u64; 2]) -> io::Result<Self> {
        Ok(Self { charter: HostCharter::create(&file, name, boot)?, file })
    }

    /// Opens the charter that an earlier host left in `file`. Returns `None` if it belongs to another channel or another boot.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(file: File, name: &str, boot: [u64; 2]) -> io::Result<Option<Self>> {
        let charter = HostCharter::open(&file, name, boot)?;
        Ok(charter.map(|charter| Self { charter, file }))
    }

    /// Opens a new read-only descriptor of the charter, for a program.
    ///
    /// # Errors
    /// The error of `open`.
    pub fn for_program(&self) -> io::Result<File> {
        memfd::reopen(&self.file, Reopen::ReadOnly)
    }

    /// The charter's file.
    pub const fn file(&self) -> &File {
        &self.file
    }

    /// The current generation; `None` before the first.
    pub fn current(&self) -> Option<&Entry> {
        self.charter.current()
    }

    /// The current generation, in the form that is sent to readers.
    pub fn generation(&self) -> Option<Generation> {
        let Entry { generation, first, restarted, is_strict, .. } = *self.charter.current()?;
        Some(Generation { generation, first, restarted, strict: is_strict, journal: false })
    }

    /// Marks in the charter that the host has let a publisher of the current generation in.
    pub fn grant(&mut self) {
        self.charter.grant();
    }

    /// Tells all programs, attached ones included, whether the host keeps a journal of the channel.
    pub fn set_journal(&self, has_journal: bool) {
        self.charter.set_journal(has_journal);
    }

    /// Moves the channel to the segment `next`, which was made for `spec` and which no program has seen yet. `before` is the channel's
    /// current segment; `None` if this segment is lost.
    ///
    /// If `next` [continues](HostedSegment::continue_from) the channel's journal, the sequences continue at the end of the journal,
    /// whatever the cut is. If that journal has another stream than the current generation, the stream restarts with the new generation.
    ///
    /// The closure `ready` does all other steps that can fail. If `ready` fails, nothing has changed. After `ready`, nothing can fail.
    ///
    /// # Errors
    /// The error of `ready` or of the system. The channel stays unchanged.
    pub fn go_on<E: From<io::Error>>(
        &mut self,
        before: Option<&HostedSegment>,
        next: &HostedSegment,
        spec: &HostedSpec,
        cut: Cut,
        ready: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let mut entry = next.entry(self.charter.next_generation(), spec.is_strict)?;
        if fault!("takeover_cuts_first") {
            self.charter.close();
        }
        ready()?;
        let current = self.charter.current().copied();
        let carry = before.filter(|_| cut == Cut::Tail).and_then(|before| before.segment.begin_to_carry());
        self.charter.close();
        let tail = match (cut, before, current) {
            (Cut::Tail | Cut::Restart, Some(before), Some(current)) => {
                tail(&before.segment.locator(), &current)
            }
            _ => None,
        };
        let (below, ended) = cut.at(tail, || before.is_some_and(has_ended));
        if let (Cut::Tail, Some(tail), Some(before), Some(current)) = (cut, tail, before, current) {
            // On a strict channel each generation has one publisher. On other channels the ring counts its publishers.
            let counted = before.segment.state().map_or(0, |(epoch, _)| epoch.min(LAST_EPOCH));
            let epoch = current.epoch + u64::from(current.is_granted);
            entry.epoch = if current.is_strict { epoch } else { counted.max(epoch) };
            (entry.first, entry.restarted) = (tail, current.restarted);
            let bytes = before.segment.header_word(LAZY_BYTES);
            next.segment.continue_from(tail, entry.epoch, bytes);
            before.segment.carry_board(carry, &next.segment, tail);
            if let Some(session) = before.segment.session() {
                next.segment.continue_session(session);
            }
        }
        let first = next.segment.first_sequence();
        if cut != Cut::Tail && first > 1 {
            entry.epoch = next.segment.state().map_or(0, |(epoch, _)| epoch);
            entry.first = first;
            // The journal can have another stream than the current generation, for example after a change of the configuration. Readers
            // must not mistake the messages of that stream for the continuation of their own.
            let goes_on = current.filter(|current| current.stream.is(entry.stream));
            entry.restarted = goes_on.map_or(entry.restarted, |current| current.restarted);
        }
        self.charter.go_on(entry, below, ended);
        // The mark in the old segment is for tools, and for a publisher that was granted the old segment and has not opened it yet. Nothing
        // else depends on the mark.
        if let Some(before) = before.filter(|before| before.segment.access() == Access::Write) {
            before.segment.supersede();
        }
        Ok(())
    }

    /// Whether a channel can continue after the last message in its present segment, `before`. It cannot continue there if the ring is
    /// damaged, or if its sequences are used up.
    pub fn has_tail(&self, before: Option<&HostedSegment>) -> bool {
        let known = before.zip(self.charter.current());
        known.is_some_and(|(before, current)| tail(&before.segment.locator(), current).is_some())
    }

    /// The view of the charter that programs have.
    pub fn view(&self) -> Charter {
        self.charter.view()
    }
}

/// Returns the sequence after all messages that were committed in the old memory before this call. Readers of this memory must not return
/// that sequence or a later one. Returns `None` if the ring is damaged.
fn tail(locator: &Locator, current: &Entry) -> Option<u64> {
    let next = locator.tail_bound().ok()?.next_sequence();
    (current.first..=LAST_SEQUENCE).contains(&next).then_some(next)
}

fn has_ended(before: &HostedSegment) -> bool {
    matches!(before.segment.state(), Some((_, State::Closed)))
}

/// Returns the identity of this boot. A charter from another boot is out of date, because its memory no longer exists.
///
/// # Errors
/// If the kernel does not report the identity.
pub fn boot_id() -> io::Result<[u64; 2]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
    let id = u128::from_str_radix(&digits, 16).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
    Ok([(id >> 64) as u64, id as u64])
}
