//! The protocol: how one writer and any number of read-only readers share a ring of granules without ever waiting
//! for each other.
//!
//! # The idea
//! Positions only grow; position `p` lies at offset `p mod capacity`. The writer publishes a record by storing its
//! commit word last. A reader that is caught up polls the commit word at its own position: the message and the news
//! of it arrive in the same cache line, and no other line that changes with each message is ever looked at.
//!
//! Two things make this safe without the writer ever reading what a reader wrote:
//!
//! * **Clean ahead.** Before a record is committed, the first word of the granule right after it is zero. So the word at
//!   the tail is zero until the commit, whatever bytes earlier laps and payloads left there.
//! * **Frontier.** Before the writer touches any granule below position `F`, it announces `F`, once a chunk. A reader
//!   that copied a record at `p` looks at the frontier afterwards: `F - p > capacity` means that the copy may be torn.
//!
//! # The pairs
//! Each release has one acquire. `sync_points.rs` holds both ends, and the rest of this module calls them by their names.
//!
//! | SYNC POINT | writer | reader | gives |
//! |---|---|---|---|
//! | commit | `w0.store(Release)` | `w0.load(Relaxed)`, `fence(Acquire)` | the payload, and the zero where the next commit word will be |
//! | window | `FRONTIER.store`, `fence(Release)`, data stores | data loads, `fence(Acquire)`, `FRONTIER.load` | who read a byte written under `F` sees at least `F` |
//! | index | `index.store(Release)` | `index.load(Relaxed)`, `fence(Acquire)` | zeros where the entry points, and the lazy line of its time |
//! | lazy | `LAZY.store(Release)` | `LAZY.load(Relaxed)`, `fence(Acquire)` | the index entries of all messages counted, and of the next |
//! | close | `STATE.store(Release)` | `STATE.load(Relaxed)`, `fence(Acquire)` | everything published before the end |
//! | takeover | the kernel's lock | the kernel's lock | all stores of the dead writer |
//!
//! Readers use relaxed loads and fences rather than acquire loads because that is all the standard library documents
//! for read-only pages; on x86-64 both cost nothing, on aarch64 one `dmb ishld`.
//!
//! # Why a reader believes a record
//! Let a reader at `p`, where sequence `s` is due, find `w0 != 0` and afterwards `F - p <= capacity`. By *window*, no
//! load in between saw a store made for `p + capacity` or later. By clean-ahead and the *commit* of the record
//! before (or *index*, for one who has just joined), its loads cannot see anything older than the zero stored for
//! this lap. So `w0` is the commit of this lap, and by *commit* the payload is the one published with it. An
//! implausible word inside the window is therefore no race but foreign interference: [`Corrupt`](crate::error::Corrupt).
//!
//! # Joining
//! The lazy line counts messages, and the index entry of the next sequence is the tail of that time: a walk from there
//! takes a joiner, or a successor, to the tail of now. The writer reuses an entry only after the lazy line has moved on
//! from it, so a joiner that finds the line unchanged after it read the entry has the right one. A gap may span the
//! whole index; its entries therefore name the gap record itself, which is a true start on both sides of the moment
//! when the lazy line counts it, and only then does the entry of the next sequence move on.
//!
//! # After a crash
//! The successor holds the kernel's lock, so it sees every store of the dead. It walks from the lazy line to the last
//! commit, then *first* raises the frontier and *then* zeroes the commit words up to it: what the dead left half
//! written lies below the old frontier and above the tail, where no reader may believe anything yet.
//!
//! Each of these orderings can be broken alone by `--cfg mutant="..."`; the model in `loom_model.rs` must notice every
//! one (`shm-layout/tests/loom.rs`).

pub mod bound;
pub mod cells;
pub mod copy;
pub mod locate;
pub mod reader;
mod sync_points;
pub mod writer;

#[cfg(all(loom, test))]
mod loom_model;
