//! The protocol: how one writer and any number of read-only readers share a ring of granules without ever waiting
//! for each other.
//!
//! # The idea
//! Positions only grow. Position `p` lies at offset `p mod capacity`. The writer publishes a record by storing its commit word
//! last. A reader that is caught up polls the commit word at its own position, so the message and the news of it arrive in
//! the same cache line. The reader looks at no other line that changes with each message.
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
//! | window | `FRONTIER.store`, `fence(Release)`, data stores | data loads, `fence(Acquire)`, `FRONTIER.load` | a reader that read a byte written under `F` sees at least `F` |
//! | index | `index.store(Release)` | `index.load(Relaxed)`, `fence(Acquire)` | zeros where the entry points, and the lazy line of its time |
//! | lazy | `LAZY.store(Release)` | `LAZY.load(Relaxed)`, `fence(Acquire)` | the index entries of all messages counted, and of the next |
//! | close | `STATE.store(Release)` | `STATE.load(Relaxed)`, `fence(Acquire)` | everything published before the end |
//! | takeover | the kernel's lock | the kernel's lock | all stores of the dead writer |
//!
//! Readers use relaxed loads and fences instead of acquire loads, because the standard library documents only relaxed loads for
//! read-only pages. On x86-64 both cost nothing, on aarch64 one `dmb ishld`.
//!
//! # Why a reader believes a record
//! *Assumption.* A reader at `p`, where sequence `s` is due, finds `w0 != 0` and afterwards `F - p <= capacity`.
//!
//! *Proof.*
//! 1. By *window*, no load in between saw a store made for `p + capacity` or later.
//! 2. By clean-ahead and the *commit* of the record before, its loads see nothing older than the zero stored for this lap. For
//!    a reader that has just joined, *index* takes the place of that *commit*.
//! 3. So `w0` is the commit of this lap, and by *commit* the payload is the one published with it.
//!
//! An implausible word inside the window is therefore no race. Another program has written to the segment:
//! [`Corrupt`](crate::error::Corrupt).
//!
//! # Joining
//! - The lazy line counts messages. The index entry of the next sequence is the tail of that time. A joiner or a successor
//!   walks from there to the tail of now.
//! - The writer reuses an entry only after the lazy line has moved on from it. So a joiner that finds the line unchanged after
//!   it read the entry has the right one.
//! - A gap may span the whole index, so its entries name the gap record itself. That record is a true start both before and
//!   after the lazy line counts it. Only then does the entry of the next sequence move on.
//!
//! # After a crash
//! The successor holds the kernel's lock, so it sees every store of the dead writer. It walks from the lazy line to the last
//! commit. Then it *first* raises the frontier and *then* zeroes the commit words up to it. Half-written records of the dead
//! writer lie below the old frontier and above the tail, where no reader believes a record yet.
//!
//! # A reader that the writer waits for
//! The caller may give the writer a bound, which the frontier does not pass. The caller knows position `p` of a reader: the reader
//! has copied everything before it, and the caller's look at that word is acquired (`gate.rs`). With a bound of at most `p + capacity`, the writer stores
//! only over bytes that this reader has copied. So the reader is never lapped, as long as the caller keeps to that. The writer looks at the bound only where
//! it would announce a frontier.
//!
//! The model shows that the bound is kept, with pads and with what is cleaned ahead. Loom runs loads in the order of the program, so it cannot
//! show that a load is delayed behind the store that says it is over. Release and acquire of SYNC POINT gate forbid that.
//!
//! Each mutant (`fault.rs`) breaks one of these orderings alone. The model in `loom_model/` must notice each of them
//! (`shm-layout/tests/loom.rs`).

pub mod bound;
pub mod cells;
pub mod copy;
pub mod locate;
pub mod reader;
mod sync_points;
pub mod writer;

#[cfg(all(loom, test))]
mod loom_model;
