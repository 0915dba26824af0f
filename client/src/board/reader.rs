//! Reads single keys of a board, or all keys at one moment.

use crate::clock::Clock;
use crate::error::ChannelError;
use crate::message::{Message, RecvError};
use crate::subscriber::{Subscriber, SubscriberBuilder};
use shmcast_layout::board::{Counters, JoinError, Listed, Lookup, Snapshot, View};
use shmcast_layout::layout::charter::Verdict;
use shmcast_layout::ring::reader::{Copied, Poll};
use std::fmt;
use std::ops::Range;
use std::time::{Duration, Instant};

/// The largest number of attempts to read the slot of a key while the slot changes during each attempt.
const TRIES: usize = 64;
/// The longest time that a call waits for the channel's next segment, and the pause between two checks.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_micros(100);
/// The largest number of records of the ring that a search for a key reads. The ring is searched if the key's slot keeps changing.
const RECORDS: usize = 4096;

/// The last message of each key of a channel.
///
/// A `Board` reads the channel's memory through a read-only mapping, so neither the publisher nor any reader notices it. A `Board` is not a
/// subscriber, so it receives no messages. To get the board and every later message, open a [`Subscriber`] with
/// [`Start::Board`](crate::Start::Board). When a daemon's channel moves to another segment, its `Board` follows.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// use shmcast::{BoardSpec, Publisher, Subscriber};
/// let builder = Publisher::builder("prices").dir(dir.path()).capacity(64 << 10);
/// let mut prices = builder.board(BoardSpec::new(0..3)).open()?;
/// let mut board = Subscriber::builder("prices").dir(dir.path()).open_board()?;
/// prices.publish(b"EUR 1.08")?;
/// prices.publish(b"EUR 1.09")?;
/// let euro = board.get(b"EUR")?.expect("it was published");
/// assert_eq!(euro.message.map(|m| m.payload), Some(&b"EUR 1.09"[..]));
/// assert_eq!((euro.sequence, euro.count), (2, 2));
/// assert!(board.get(b"GBP")?.is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Board {
    subscriber: Subscriber,
    view: View,
    value: Box<[u8]>,
    /// A copy of the whole board. It is made at the first call of [`entries`](Self::entries).
    snapshot: Option<Snapshot>,
    moves: u64,
}

/// A key of a board.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BoardEntry<'a> {
    /// The bytes of the key.
    pub key: &'a [u8],
    /// The newest message of the key. `None` if the board does not have the message: it is larger than
    /// [`BoardSpec::value`](crate::BoardSpec::value), or a program that does not update the board published it.
    pub message: Option<Message<'a>>,
    /// The sequence of the newest message.
    pub sequence: u64,
    /// Number of messages of this key since the key came onto the board, including messages that removed the key. If a removed key comes
    /// back, the count continues, unless the board has given the key's slot to another key.
    pub count: u64,
}

impl SubscriberBuilder {
    /// Opens the channel's board, to read single keys. Options that concern receiving have no effect.
    ///
    /// # Errors
    /// [`ChannelError::NoBoard`] for a channel without a board, and the errors of [`open`](Self::open).
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let builder = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10);
    /// # let mut publisher = builder.board(shmcast::BoardSpec::new(0..1)).open()?;
    /// publisher.publish(b"a key, and its value")?;
    /// let mut board = shmcast::Subscriber::builder("t").dir(dir.path()).open_board()?;
    /// assert!(board.get(b"a")?.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open_board(self) -> Result<Board, ChannelError> {
        board_of(self.receives_nothing().open()?)
    }

    /// Does the same as [`open_board`](Self::open_board), but first waits until the channel exists. The wait ends with an error when
    /// `goes_on` returns false. See [`open_while`](Self::open_while).
    ///
    /// # Errors
    /// The same as for `open_board`.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// let mut looks = 0;
    /// let opened = shmcast::Subscriber::builder("nobody").dir(dir.path()).open_board_while(|| {
    ///     looks += 1;
    ///     looks < 3
    /// });
    /// assert!(opened.is_err_and(|e| e.is_unknown_channel()) && looks == 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open_board_while(self, goes_on: impl FnMut() -> bool) -> Result<Board, ChannelError> {
        board_of(self.receives_nothing().open_while(goes_on)?)
    }
}

fn board_of(subscriber: Subscriber) -> Result<Board, ChannelError> {
    let name = || subscriber.header().channel.clone();
    let view = subscriber.board_view().ok_or_else(|| ChannelError::NoBoard { name: name() })?;
    let value = vec![0; view.geometry().stride() as usize].into_boxed_slice();
    Ok(Board { moves: 0, subscriber, view, value, snapshot: None })
}

impl Board {
    /// The newest message of a key, copied and checked; `None` if the board does not have the key. If `key` has another length than the
    /// board's keys, the result is `None`.
    ///
    /// Cost: three or four cache lines for small values, and a reading of the clock for a channel of files. The call takes no lock and
    /// allocates nothing. It makes no system call, with two exceptions. For a channel of files, one call in each second checks that the
    /// files still have their name. When the channel of a daemon moves to another segment, the call waits for the next segment, at most
    /// some milliseconds if the daemon runs.
    ///
    /// # Errors
    /// [`RecvError::Superseded`] if the channel was made anew, or its files were removed or moved. [`RecvError::Unmapped`] if the channel
    /// has moved to a segment that this process cannot map, and [`RecvError::NoBoard`] if that segment has no board. [`RecvError::Forked`]
    /// in a forked child. [`RecvError::Board`] if the key's slot always changes while it is read, or if the channel's next segment does not
    /// come within five seconds.
    ///
    /// See [`Board`] for an example.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let builder = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10);
    /// # let mut publisher = builder.board(shmcast::BoardSpec::new(0..1)).open()?;
    /// # let mut board = shmcast::Subscriber::builder("t").dir(dir.path()).open_board()?;
    /// assert!(board.get(b"x")?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get(&mut self, key: &[u8]) -> Result<Option<BoardEntry<'_>>, RecvError> {
        let found = self.valid(|board| board.look(key))?;
        let Some(Found { copied, is_whole, count, is_in_ring }) = found else { return Ok(None) };
        let payload = if is_in_ring { self.subscriber.own_payload() } else { &self.value };
        Ok(entry(payload, self.view.geometry().spec.key(), copied, is_whole, count))
    }

    /// Calls `read` until its result is valid. The result is valid if the daemon had not ended the segment when `read` returned.
    fn valid<T>(&mut self, mut read: impl FnMut(&mut Self) -> Result<T, RecvError>) -> Result<T, RecvError> {
        let mut until = None;
        loop {
            self.follow()?;
            let found = read(self);
            if self.subscriber.verdict_now() == Verdict::Open {
                return found;
            }
            let now = Instant::now();
            if now >= *until.get_or_insert(now + PATIENCE) {
                return Err(RecvError::Board(JoinError::TooFast));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Searches for the newest message of a key. The result is not valid if the daemon has ended the segment.
    fn look(&mut self, key: &[u8]) -> Result<Option<Found>, RecvError> {
        let through = self.view.through();
        for _ in 0..TRIES {
            match self.view.get(key, &mut self.value) {
                Lookup::None => return Ok(None),
                Lookup::Found { head, bytes } => {
                    let (time, tag, is_key) = (head.time, head.meta.tag(), head.meta.has(KEY));
                    let copied = Copied { length: bytes, sequence: head.sequence, tag, key: is_key, time };
                    let (is_whole, count) = (head.meta.is_whole(), head.count());
                    return Ok(Some(Found { copied, is_whole, count, is_in_ring: false }));
                }
                Lookup::Busy => {
                    let Some(newest) = self.find_in_ring(key) else { continue };
                    let found = |(copied, count)| Found { copied, is_whole: true, count, is_in_ring: true };
                    return Ok(newest.map(found));
                }
            }
        }
        if self.view.through() == through {
            return Ok(None); // the publisher was stopped while it gave the slot of this removed key to another key
        }
        Err(RecvError::Board(JoinError::TooFast))
    }

    /// Searches the ring for the newest message of a key. This search is necessary while the key's slot is being changed, or if the
    /// publisher stopped in the middle of a change. The board is complete up to the sequence in its word THROUGH, so the search begins
    /// after this sequence. Returns `Some(None)` if the newest message removed the key, and `None` if the search found nothing certain.
    fn find_in_ring(&mut self, key: &[u8]) -> Option<Option<(Copied, u64)>> {
        let through = self.view.through();
        let count = self.view.count_of(key)?;
        let spec = self.view.geometry().spec;
        let mut reader = self.subscriber.reader_at(through.saturating_add(1))?;
        for _ in 0..RECORDS {
            match reader.poll(self.subscriber.own_payload_mut()) {
                Poll::Message(copied) => {
                    let payload = &self.subscriber.own_payload()[..copied.length];
                    if payload.get(spec.key()) == Some(key) {
                        // If THROUGH has changed, the count may include a later message than this one.
                        if self.view.through() != through {
                            return None;
                        }
                        let is_removal = spec.is_removal(copied.length, copied.tag);
                        return Some((!is_removal).then_some((copied, count)));
                    }
                }
                Poll::Control(_) => {}
                _ => break,
            }
        }
        None
    }

    /// All keys with their newest messages, as they were at one moment, in the order of their sequences. The first call allocates memory
    /// for a copy of the board. Later calls copy only the slots that have changed.
    ///
    /// # Errors
    /// As for [`get`](Self::get), and [`RecvError::Board`] if the ring is overwritten faster than the board can be read.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let builder = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10);
    /// # let mut publisher = builder.board(shmcast::BoardSpec::new(0..1)).open()?;
    /// # let mut board = shmcast::Subscriber::builder("t").dir(dir.path()).open_board()?;
    /// for message in ["a1", "b1", "a2"] {
    ///     publisher.publish(message.as_bytes())?;
    /// }
    /// let keys: Vec<&[u8]> = board.entries()?.map(|entry| entry.key).collect();
    /// assert_eq!(keys, [b"b", b"a"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn entries(&mut self) -> Result<BoardEntries<'_>, RecvError> {
        let listed = self.valid(|board| {
            let view = &board.view;
            let snapshot = board.snapshot.get_or_insert_with(|| Snapshot::new(view.clone()));
            board.subscriber.join_into(snapshot)?;
            Ok(snapshot.list_all_live())
        })?;
        let view = &self.view;
        let snapshot = self.snapshot.get_or_insert_with(|| Snapshot::new(view.clone()));
        Ok(BoardEntries { snapshot, next: 0, listed })
    }

    /// Number of keys on the board. If the channel has moved to another segment since the last [`get`](Self::get) or
    /// [`entries`](Self::entries), it is the number in the old segment.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let builder = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10);
    /// # let mut publisher = builder.board(shmcast::BoardSpec::new(0..1)).open()?;
    /// let board = shmcast::Subscriber::builder("t").dir(dir.path()).open_board()?;
    /// assert_eq!(board.len(), 0);
    /// publisher.publish(b"a1")?;
    /// assert_eq!(board.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn len(&self) -> usize {
        self.counters().live as usize
    }

    /// Whether the board has no key.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let builder = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10);
    /// # let mut publisher = builder.board(shmcast::BoardSpec::new(0..1)).open()?;
    /// assert!(shmcast::Subscriber::builder("t").dir(dir.path()).open_board()?.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The board's own counters. They include the last sequence on the board, and the number of messages for which it had no room. As with
    /// [`len`](Self::len), the counters are those of the segment that was read last. Cost: a few loads.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let builder = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10);
    /// # let mut publisher = builder.board(shmcast::BoardSpec::new(0..2)).open()?;
    /// let board = shmcast::Subscriber::builder("t").dir(dir.path()).open_board()?;
    /// publisher.publish(b"a")?;
    /// let counters = board.counters();
    /// assert_eq!((counters.through, counters.no_key), (1, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn counters(&self) -> Counters {
        self.view.counters()
    }

    /// The channel's name.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let builder = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10);
    /// # let publisher = builder.board(shmcast::BoardSpec::new(0..1)).open()?;
    /// let board = shmcast::Subscriber::builder("t").dir(dir.path()).open_board()?;
    /// assert_eq!(board.channel(), "t");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn channel(&self) -> &str {
        &self.subscriber.header().channel
    }

    /// The properties of the board.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let builder = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10);
    /// # let mut publisher = builder.board(shmcast::BoardSpec::new(0..2)).open()?;
    /// let board = shmcast::Subscriber::builder("t").dir(dir.path()).open_board()?;
    /// assert_eq!(board.spec(), shmcast::BoardSpec::new(0..2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn spec(&self) -> super::BoardSpec {
        super::BoardSpec(self.view.geometry().spec)
    }

    /// The channel's clock, for the ages of messages.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let builder = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10);
    /// # let mut publisher = builder.board(shmcast::BoardSpec::new(0..1)).open()?;
    /// let mut board = shmcast::Subscriber::builder("t").dir(dir.path()).open_board()?;
    /// publisher.publish(b"a1")?;
    /// let clock = board.clock();
    /// let age_ns = board.get(b"a")?.and_then(|entry| entry.message?.latency_ns(&clock));
    /// assert!(age_ns.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn clock(&self) -> Clock {
        self.subscriber.clock()
    }

    /// If the channel has moved to another segment, continues with the board of that segment.
    fn follow(&mut self) -> Result<(), RecvError> {
        self.subscriber.follow_without_receiving()?;
        let moves = self.subscriber.moves_made();
        if self.moves == moves {
            return Ok(());
        }
        self.view = self.subscriber.board_view().ok_or(RecvError::NoBoard)?;
        self.value = vec![0; self.view.geometry().stride() as usize].into_boxed_slice();
        (self.snapshot, self.moves) = (None, moves);
        Ok(())
    }
}

const KEY: shmcast_layout::layout::board::Meta = shmcast_layout::layout::board::Meta::KEY;

/// The result of a search for a key. If the message comes from the ring, its bytes are in the subscriber's buffer. Otherwise they are in
/// the buffer of the board's values.
struct Found {
    copied: Copied,
    is_whole: bool,
    count: u64,
    is_in_ring: bool,
}

fn entry(
    value: &[u8],
    key: Range<usize>,
    copied: Copied,
    is_whole: bool,
    count: u64,
) -> Option<BoardEntry<'_>> {
    let Copied { length, sequence, tag, key: is_key, time } = copied;
    let payload = &value[..length];
    let message = Message { payload, sequence, tag, key: is_key, time, conflated: None };
    Some(BoardEntry { key: value.get(key)?, message: is_whole.then_some(message), sequence, count })
}

impl fmt::Debug for Board {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("Board");
        f.field("channel", &self.subscriber.header().channel)
            .field("keys", &self.len())
            .finish_non_exhaustive()
    }
}

/// The keys of a board as they were at one moment. [`Board::entries`] returns this value.
#[derive(Debug)]
pub struct BoardEntries<'a> {
    snapshot: &'a Snapshot,
    next: usize,
    listed: usize,
}

impl<'a> Iterator for BoardEntries<'a> {
    type Item = BoardEntry<'a>;

    fn next(&mut self) -> Option<BoardEntry<'a>> {
        let listed: Listed = self.snapshot.listed(self.next).filter(|_| self.next < self.listed)?;
        self.next += 1;
        let key = self.snapshot.view().geometry().spec.key();
        entry(self.snapshot.value(&listed), key, listed.message, listed.is_whole, listed.count)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.listed - self.next, Some(self.listed - self.next))
    }
}

impl ExactSizeIterator for BoardEntries<'_> {}
