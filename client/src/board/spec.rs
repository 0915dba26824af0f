//! The properties of a board.

use crate::error::ChannelError;
use shmcast_layout::layout::board::Spec;
use std::ops::Range;

/// Returns the range of bytes that a field has in a plain-old-data type. The range can be the key of a board.
///
/// ```
/// # #[cfg(feature = "pod")] {
/// use shmcast::{BoardSpec, key_field};
/// #[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
/// #[repr(C)]
/// struct Quote { bid: i64, ask: i64, instrument: [u8; 8] }
/// assert_eq!(key_field!(Quote, instrument), 16..24);
/// let board = BoardSpec::new(key_field!(Quote, instrument));
/// # assert_eq!(board.key(), 16..24);
/// # }
/// ```
#[macro_export]
macro_rules! key_field {
    ($type:ty, $field:ident) => {{
        const fn size<T, F>(_: fn(T) -> F) -> usize {
            ::core::mem::size_of::<F>()
        }
        let start = ::core::mem::offset_of!($type, $field);
        start..start + size(|value: $type| value.$field)
    }};
}

/// The properties of a channel's board: which bytes of a message are its key, and how much room there is.
///
/// The key of a message is a range of its payload's bytes. So packets between hosts need no field for keys, and each copy of the channel on
/// another host can have a board of its own. All keys of a board have the same length.
///
/// - A message that is too short to have a key is published like any other message, but is not on the board.
/// - A message that ends right after its key removes the key from the board.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// use shmcast::{BoardSpec, Event, Publisher, Start, Subscriber};
/// let board = BoardSpec::new(0..3).keys(100).value(64);
/// let mut prices = Publisher::builder("prices").dir(dir.path()).capacity(64 << 10).board(board).open()?;
/// for price in ["EUR 1.08", "GBP 1.27", "EUR 1.09", "GBP"] {
///     prices.publish(price.as_bytes())?;
/// }
/// let mut late = Subscriber::builder("prices").dir(dir.path()).start(Start::Board).open()?;
/// assert!(matches!(late.recv()?, Event::Message(m) if m.payload == b"EUR 1.09" && m.sequence == 3));
/// assert_eq!(late.recv()?, Event::Live { sequence: 5 });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use]
pub struct BoardSpec(pub(crate) Spec);

impl BoardSpec {
    /// Default number of keys.
    pub const DEFAULT_KEYS: u64 = 1024;
    /// Default size of the largest message on the board, in bytes.
    pub const DEFAULT_VALUE: u64 = 256;

    /// Makes the properties of a board. The range `key` says which bytes of each payload are the key; a key has 1 to 256 bytes. The board
    /// has room for 1024 keys and for messages of up to 256 bytes, or up to the end of `key` if `key` ends after byte 256. For messages
    /// that are values of a type, the macro [`key_field`](crate::key_field) names the bytes of a field.
    ///
    /// ```
    /// use shmcast::BoardSpec;
    /// let board = BoardSpec::new(8..16);
    /// assert_eq!(board.key(), 8..16);
    /// ```
    pub fn new(key: Range<usize>) -> Self {
        let (key_start, key_end) = (key.start as u64, key.end as u64);
        let value = Self::DEFAULT_VALUE.max(key_end);
        Self(Spec { keys: Self::DEFAULT_KEYS, value, key_start, key_end, remove_tag: None })
    }

    /// Sets the number of keys for which there is room, 1 to 16,777,216. When the board is full, it refuses new keys: their messages are
    /// published and counted, and are not on the board. Removing a key makes room.
    ///
    /// ```
    /// assert_eq!(shmcast::BoardSpec::new(0..8).keys(10_000).room(), (10_000, 256));
    /// ```
    pub fn keys(mut self, keys: u64) -> Self {
        self.0.keys = keys;
        self
    }

    /// Sets the size of the largest message on the board, in bytes, key included. After a larger message, the board shows that it does not
    /// have the newest message of that key.
    ///
    /// ```
    /// assert_eq!(shmcast::BoardSpec::new(0..8).value(64).room(), (1024, 64));
    /// ```
    pub fn value(mut self, bytes: u64) -> Self {
        self.0.value = bytes;
        self
    }

    /// Sets the tag of messages that remove their key, whatever payload follows the key.
    ///
    /// ```
    /// let board = shmcast::BoardSpec::new(0..8).remove_tag(7);
    /// ```
    pub fn remove_tag(mut self, tag: u16) -> Self {
        self.0.remove_tag = Some(tag);
        self
    }

    /// The bytes of a payload that are its key.
    ///
    /// ```
    /// assert_eq!(shmcast::BoardSpec::new(0..8).key(), 0..8);
    /// ```
    pub fn key(&self) -> Range<usize> {
        self.0.key()
    }

    /// The number of keys and the size of the largest message.
    ///
    /// ```
    /// assert_eq!(shmcast::BoardSpec::new(0..8).room(), (1024, 256));
    /// ```
    pub fn room(&self) -> (u64, u64) {
        (self.0.keys, self.0.value)
    }

    /// The tag that removes a key, if there is one.
    ///
    /// ```
    /// assert_eq!(shmcast::BoardSpec::new(0..8).remove_tag(7).tag_that_removes(), Some(7));
    /// ```
    pub fn tag_that_removes(&self) -> Option<u16> {
        self.0.remove_tag
    }

    /// The key of a payload; `None` if the payload is too short to have one.
    ///
    /// ```
    /// let board = shmcast::BoardSpec::new(0..3);
    /// assert_eq!((board.key_of(b"EUR 1.08"), board.key_of(b"EU")), (Some(&b"EUR"[..]), None));
    /// ```
    pub fn key_of<'a>(&self, payload: &'a [u8]) -> Option<&'a [u8]> {
        payload.get(self.key())
    }

    /// Whether a message removes its key from the board: its payload ends directly after the key, or it has the tag that removes keys.
    ///
    /// ```
    /// let board = shmcast::BoardSpec::new(0..3).remove_tag(7);
    /// assert!(board.is_removal(b"EUR", 0) && board.is_removal(b"EUR 1.08", 7));
    /// assert!(!board.is_removal(b"EUR 1.08", 0));
    /// ```
    pub fn is_removal(&self, payload: &[u8], tag: u16) -> bool {
        self.0.is_removal(payload.len(), tag)
    }

    /// Bytes of memory that the board takes: for each key, the size of a value, 64 bytes more, and 16 to 32 bytes of the index.
    ///
    /// # Errors
    /// [`ChannelError::Board`] if no board can have these sizes.
    ///
    /// ```
    /// let bytes = shmcast::BoardSpec::new(0..8).keys(10_000).bytes()?;
    /// assert!(bytes > 10_000 * (64 + 256) && bytes < 10_000 * (64 + 256 + 32));
    /// # Ok::<(), shmcast::ChannelError>(())
    /// ```
    pub fn bytes(&self) -> Result<u64, ChannelError> {
        Ok(shmcast_layout::layout::board::Geometry::new(self.0, 0).map_err(ChannelError::Board)?.bytes())
    }

    /// Returns an error if the channel has no board, or if the board `found` has other properties than this one.
    pub(crate) fn check(&self, name: &str, found: Option<Spec>) -> Result<(), ChannelError> {
        let wanted = self.0;
        let Some(found) = found else { return Err(ChannelError::NoBoard { name: name.to_owned() }) };
        let tag = |spec: Spec| spec.remove_tag.map_or(u64::from(u16::MAX) + 1, u64::from);
        let properties = [
            ("keys on its board from byte", found.key_start, wanted.key_start),
            ("keys on its board up to byte", found.key_end, wanted.key_end),
            ("room on its board for keys:", found.keys, wanted.keys),
            ("values on its board of bytes:", found.value, wanted.value),
            ("a tag that removes keys from its board:", tag(found), tag(wanted)),
        ];
        match properties.into_iter().find(|(_, found, wanted)| found != wanted) {
            Some((what, found, wanted)) => {
                Err(ChannelError::Mismatch { name: name.to_owned(), what, found, wanted })
            }
            None => Ok(()),
        }
    }
}
