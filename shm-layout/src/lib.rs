//! shmcast's shared-memory ring: one writer, any number of read-only readers, one cache line per message.
//!
//! This crate has the code that both sides of a segment share, and all `unsafe` code of the library and the daemon. Another language
//! implements `SPEC.md`, which lies beside this source.
//!
//! Functions of this crate have no examples, except for a few. Programs use the crate `shmcast`, whose functions have examples.
//!
//! | module | layer | must not |
//! |---|---|---|
//! | [`layout`] | the bytes | touch memory, call the system |
//! | [`journal`] | the bytes of recorded channels | touch files, call the system |
//! | [`ring`], [`board`] | the protocol | map, open, log, ask the time |
//! | [`mem`] | maps, prefault, locks, huge pages | know about rings |
//! | [`sys`] | datagrams in batches, descriptors beside packets | know about rings |
//! | [`segment`], [`reader_page`], [`gate`], [`charter`] | a mapped file whose words the protocol uses | |
//! | [`fault`](mod@fault) | corrected faults; a special build can put one back, to prove that a test finds it | put back a fault in an ordinary build |
#![deny(unsafe_op_in_unsafe_fn)]

#[cfg(not(target_endian = "little"))]
compile_error!(
    "segments are little-endian and payload words are not swapped: big-endian machines cannot share them"
);

pub mod board;
pub mod charter;
pub mod error;
pub mod fault;
pub mod gate;
#[cfg(not(loom))]
pub mod journal;
pub mod layout;
pub mod ring;
pub mod sync;

#[cfg(not(loom))]
pub mod control;
#[cfg(not(loom))]
pub mod counter;
#[cfg(not(loom))]
pub mod mem;
#[cfg(not(loom))]
pub mod reader_page;
#[cfg(not(loom))]
pub mod segment;
#[cfg(not(loom))]
pub mod sys;
