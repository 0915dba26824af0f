//! The protocol by which one writer and any number of read-only readers share a ring of granules. The writer and the readers never wait for
//! each other.
//!
//! # The idea
//! Positions only grow. Position `p` lies at offset `p mod capacity`. The writer publishes a record by storing its commit word last. A
//! reader that is caught up polls the commit word at its own position. So one cache line has both the message and the sign that the message
//! exists. The reader loads no other line that changes with each message.
//!
//! Two rules make this safe, although the writer never reads what a reader wrote:
//!
//! * **Clean ahead.** Before a record is committed, the first word of the granule right after it is zero. So the word at the tail is zero
//!   until the commit, whatever bytes earlier laps and payloads left there.
//! * **Frontier.** Before the writer touches any granule below a position `F`, it announces `F` as the frontier. It does so once a chunk.
//!   After a reader has copied a record at `p`, it loads the frontier. If `F - p > capacity`, the copy can be torn.
//!
//! # The pairs
//! Each release has one acquire. `sync_points.rs` holds both ends. The rest of this text refers to each pair by its name.
//!
//! | SYNC POINT | writer | reader | gives |
//! |---|---|---|---|
//! | commit | `w0.store(Release)` | `w0.load(Relaxed)`, `fence(Acquire)` | the payload, and the zero where the next commit word will be |
//! | window | `FRONTIER.store`, `fence(Release)`, data stores | data loads, `fence(Acquire)`, `FRONTIER.load` | a reader that read a byte written under `F` sees at least `F` |
//! | index | `index.store(Release)` | `index.load(Relaxed)`, `fence(Acquire)` | the zeros at the entry's position, and the lazy line at the time of the store |
//! | lazy | `LAZY.store(Release)` | `LAZY.load(Relaxed)`, `fence(Acquire)` | the index entries of all counted messages, and of the next |
//! | close | `STATE.store(Release)` | `STATE.load(Relaxed)`, `fence(Acquire)` | everything published before the end |
//! | takeover | the kernel's lock | the kernel's lock | all stores of the dead writer |
//!
//! Readers use relaxed loads and fences instead of acquire loads, because the standard library documents only relaxed loads for read-only
//! pages. On x86-64 the fences cost nothing. On aarch64 each is one `dmb ishld`.
//!
//! # Why a reader believes a record
//! *Assumption.* A reader at `p`, where sequence `s` is due, finds `w0 != 0` and afterwards `F - p <= capacity`.
//!
//! *Proof.*
//! 1. By *window*, no load in between saw a store made for `p + capacity` or later.
//! 2. By clean-ahead and the *commit* of the record before, the reader's loads see nothing older than the zero stored for this lap. For a
//!    reader that has just joined, *index* takes the place of that *commit*.
//! 3. So `w0` is the commit of this lap, and by *commit* the payload is the one published with it.
//!
//! An implausible word inside the window is therefore no race. Another program has written to the segment:
//! [`Corrupt`](crate::error::Corrupt).
//!
//! # Joining
//! - The lazy line counts messages. When the writer stores the count, the tail's position is in the index entry of the next sequence. A
//!   joiner or a successor walks from this position to the present tail.
//! - The writer reuses an entry only after the lazy line has moved on from the entry. So a joiner has the right entry if the line is
//!   unchanged after the joiner has read the entry.
//! - A gap can span the whole index, so that every entry is reused. For this reason, the writer stores the position of the gap record in
//!   the entries of the gap's sequences and of the next sequence. A joiner is allowed to start at the gap record, whether or not the lazy
//!   line counts the gap already. After the lazy line has counted the gap, the writer stores the tail's position in the entry of the next
//!   sequence.
//!
//! # After a crash
//! The successor holds the kernel's lock, so it sees every store of the dead writer. It walks from the lazy line to the last commit. Then
//! it *first* raises the frontier and *then* zeroes the commit words up to it. Half-written records of the dead writer lie below the old
//! frontier and above the tail, where no reader accepts a record yet.
//!
//! # A reader that the writer waits for
//! The caller can give the writer a bound, which the frontier does not pass. The caller knows the position `p` of a reader, which has
//! copied everything before `p`. The caller loads `p` with an acquire (`gate.rs`). With a bound of at most `p + capacity`, the writer
//! stores only over bytes that this reader has copied. So the reader is never lapped while the caller sets no higher bound. The writer
//! checks the bound only when it is about to announce a frontier.
//!
//! The model shows that the writer keeps the bound, also with pads and with the granules that it cleans ahead. Loom runs loads in program
//! order. So it cannot show a load that is delayed until after the store of the reader's position. The release and the acquire of SYNC
//! POINT gate forbid this delay.
//!
//! Each mutant (`fault.rs`) breaks one of these orderings alone. The model in `loom_model/` must detect each of them
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
