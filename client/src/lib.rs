//! One publisher, a hundred local readers, one cache line per message.
//!
//! A **channel** is a named stream of messages with one publisher. The channel's messages are in a **segment** of shared memory, which
//! contains a ring. The publisher writes each message once, as a record in the ring.
//!
//! Each reader maps the segment read-only, and polls the place of the next record. Publishing and polling need no copy per reader, no
//! system call and no lock. A hundredth reader costs the publisher nothing.
//!
//! ```
//! # let dir = tempfile::tempdir()?;
//! use shmcast::{Event, Publisher, Subscriber};
//!
//! let mut publisher = Publisher::builder("ticks").dir(dir.path()).open()?;
//! let mut subscriber = Subscriber::builder("ticks").dir(dir.path()).open()?;
//!
//! publisher.publish(b"bid 100.25")?;
//! publisher.close();
//!
//! loop {
//!     match subscriber.recv()? {
//!         Event::Message(m) => println!("{}: {}", m.sequence, String::from_utf8_lossy(m.payload)),
//!         Event::Lapped(l) => eprintln!("missed {} messages", l.missed),
//!         Event::End => break,
//!         other => eprintln!("{other:?}"),
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Properties:
//! * **Loss is a result.** The publisher never waits for a reader, unless the channel has a [`Gate`]. It can overwrite messages that a
//!   slow reader has not read. Then this reader gets [`Event::Lapped`] with the exact number of missed messages.
//! * **Crashes are survived.** When a publisher dies, the kernel frees the publisher's lock, and another publisher can continue in the same
//!   segment with the next sequence. Readers stay attached and get [`Event::NewEpoch`].
//! * **Ways to wait.** If there are more readers than cores, use [`Wait::Yield`]. If each reader has a core of its own, use [`Wait::Spin`].
//!   If a reader should cost nothing while it waits, and can be some microseconds late, use [`Wait::Park`] or, in an event loop,
//!   `Subscriber::recv_async` (feature `tokio`).
//!
//! More features:
//! * **Several channels** in one thread or task, also of several types: [`Select`], and [`Turns`], which only borrows its subscribers.
//! * **Types**: a channel of one type has a [`typed::Publisher`] and [`typed::Subscriber`]s. They compare their schema with the channel's
//!   when they attach (features `pod` and `serde`).
//! * **Selection by tag**: [`SubscriberBuilder::tags`].
//! * **Events that own their bytes**: [`Event::into_owned`], [`Subscriber::iter`] and, with feature `tokio`,
//!   `Subscriber::stream`.
//! * **The death of a publisher** is an event for subscribers that request it by [`SubscriberBuilder::watch_publisher`].
// A library does not print to the terminal.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod attach;
mod board;
mod clock;
mod directory;
mod ends;
mod error;
mod gate;
pub mod hosting;
pub mod journal;
mod lock;
mod message;
mod owned;
mod publisher;
mod status;
mod subscriber;
#[cfg(any(feature = "pod", feature = "serde"))]
pub mod typed;
mod wait;

pub use attach::connect::{Client, DEFAULT_SOCKET, Events, SOCKET_VARIABLE};
pub use board::{Board, BoardCounters, BoardEntries, BoardEntry, BoardSizes, BoardSpec, JoinError};
pub use clock::Clock;
pub use directory::{
    ChannelDetail, ChannelInfo, DIR_VARIABLE, Directory, MAX_NAME, Publishing, ReaderInfo, Removed,
    SHARED_DIR,
};
pub use ends::EndWatch;
pub use error::{ChannelError, Holder, PublishError, SchemaId};
pub use gate::{Gate, GateError, GateName, GateState, GateStatus, Then};
pub use message::{Event, Lapped, Message, RecvError};
pub use owned::{OwnedEvent, OwnedMessage};
pub use publisher::{Claim, DEFAULT_CAPACITY, Mark, Publisher, PublisherBuilder, Stamps};
pub use shmcast_layout::control::{self, BoardStatus, ChannelStatus, LatencyStatus, Process, ReaderStatus};
pub use shmcast_layout::error::{Corrupt, OpenError, OutOfSequences, TooLarge};
pub use shmcast_layout::layout::geometry::MAX_SEQUENCE;
pub use shmcast_layout::layout::header::{ClockKind, Header, State};
pub use shmcast_layout::layout::reader_page::Role;
pub use shmcast_layout::layout::stream::StreamId;
pub use shmcast_layout::mem::{Preparation, Step};
pub use shmcast_layout::reader_page::ReaderStats;
pub use shmcast_layout::ring::locate::{LocateError, Place};
pub use shmcast_layout::ring::reader::Flow;
pub use shmcast_layout::sys;
#[cfg(feature = "tokio")]
pub use subscriber::EventStream;
pub use subscriber::{
    Armed, ChannelJournal, History, Iter, Lent, Records, Resume, Select, SelectError, Start, Subscriber,
    SubscriberBuilder, Turns,
};
#[cfg(any(feature = "pod", feature = "serde"))]
pub use typed::DecodeError;
#[cfg(feature = "serde")]
pub use typed::EncodeError;
pub use wait::{BURST, BURST_CLOSE, BURST_PAUSE, BURST_WITHIN, Wait, pin_current_thread};
