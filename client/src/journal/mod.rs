//! Journals: files that keep the messages of channels. This module reads them.
//!
//! A recorder writes a journal. The recorder is part of a daemon, or is the command `shmcast record`. `JOURNAL.md` of the crate
//! `shmcast-layout` defines the bytes of the files.
//!
//! This module reads journals. It opens only regular files, follows no link in the directory, and maps nothing. It checks each byte before
//! use. Only two items of this module write:
//!
//! - [`create`] writes one small file when a journal begins.
//! - [`Ending`] writes one small file when a channel continues after the journal in a new ring.
//!
//! A [`Subscriber`](crate::Subscriber) reads the journal of its channel by itself if there is one; see
//! [`SubscriberBuilder::history`](crate::SubscriberBuilder::history). To read a journal without its channel:
//!
//! ```no_run
//! use shmcast::journal::{Entry, Journal};
//! let journal = Journal::open("/var/lib/shmcast/ticks")?;
//! let mut reader = journal.read_from(1)?;
//! while let Some(entry) = reader.next()? {
//!     match entry {
//!         Entry::Message(m) => println!("{}: {} B", m.sequence, m.payload.len()),
//!         Entry::Lost(loss) => println!("{} to {} are missing: {}", loss.from, loss.to, loss.cause.name()),
//!         other => println!("{other:?}"),
//!     }
//! }
//! # Ok::<(), shmcast::journal::JournalError>(())
//! ```

mod cursor;
mod ending;
mod entry;
mod error;
mod files;
mod header;
mod index;
mod list;
mod lookup;
mod reader;
mod reserve;
mod spare;
mod streams;
mod verified;
mod verify;
mod window;

pub use ending::{Ending, create};
pub use entry::Entry;
pub use error::JournalError;
pub use files::{Lent, Wanted};
pub use header::{header_of, largest_message_of, ring_identity, salt};
pub use list::{FileInfo, Journal, JournalLock, Problem, take_lock};
pub use reader::Reader;
pub use shmcast_layout::journal as format;
pub use shmcast_layout::journal::{Cause, JournalControl, Loss};
pub use streams::{Streams, folder_of};
pub use verified::{Damage, Verdict, Verified};
pub use verify::Verify;

pub(crate) use ending::create_for;
pub(crate) use files::{Files, PATIENCE_FOR_DAEMON};
pub(crate) use reserve::wait_for_reserve;
