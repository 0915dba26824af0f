//! Boards: the newest message of each key of a channel.

use crate::error;
use crate::event::Message;
use crate::handle::Handle;
use crate::options::{Place, opening, place};
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::path::PathBuf;

/// The properties of a board. The key of a message is the bytes of its payload from `start` to `stop - 1`.
///
/// - `keys`: the largest number of keys; 1024 by default, and at most 16,777,216. A full board refuses messages with new keys.
///   `Board.counters` counts these messages.
/// - `value`: the size of the largest message on the board in bytes, key included; 256 by default.
/// - `remove_tag`: messages with this tag remove their key. A message that ends directly after its key also removes the key.
#[pyclass(frozen, eq, hash, module = "shmcast")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct BoardSpec(pub(crate) shmcast::BoardSpec);

#[pymethods]
impl BoardSpec {
    #[new]
    #[pyo3(signature = (start, stop, *, keys = None, value = None, remove_tag = None))]
    fn new(
        start: usize,
        stop: usize,
        keys: Option<u64>,
        value: Option<u64>,
        remove_tag: Option<u16>,
    ) -> PyResult<Self> {
        let mut spec = shmcast::BoardSpec::new(start..stop);
        if let Some(keys) = keys {
            spec = spec.keys(keys);
        }
        if let Some(value) = value {
            spec = spec.value(value);
        }
        if let Some(tag) = remove_tag {
            spec = spec.remove_tag(tag);
        }
        spec.bytes().map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Self(spec))
    }

    /// The index of the key's first byte in a payload.
    #[getter]
    fn start(&self) -> usize {
        self.0.key().start
    }

    /// The index of the byte after the key.
    #[getter]
    fn stop(&self) -> usize {
        self.0.key().end
    }

    /// The largest number of keys.
    #[getter]
    fn keys(&self) -> u64 {
        self.0.room().0
    }

    /// The size of the largest message on the board, in bytes.
    #[getter]
    fn value(&self) -> u64 {
        self.0.room().1
    }

    /// The tag that removes a key; `None` if the board has no such tag.
    #[getter]
    fn remove_tag(&self) -> Option<u16> {
        self.0.tag_that_removes()
    }

    fn __repr__(&self) -> String {
        let (keys, value) = self.0.room();
        let tag = self.0.tag_that_removes().map_or(String::new(), |tag| format!(", remove_tag={tag}"));
        let key = self.0.key();
        format!("BoardSpec({}, {}, keys={keys}, value={value}{tag})", key.start, key.end)
    }
}

/// A key of a board, with its newest message.
///
/// - `key`: the bytes of the key
/// - `message`: the newest message; `None` if the board does not have it, for example because it is too large
/// - `sequence`: the sequence of the newest message
/// - `count`: the number of messages of this key since the key came to the board, removals included. The count begins again if the key was
///   removed, and its slot was given to another key
#[pyclass(frozen, module = "shmcast")]
pub(crate) struct BoardEntry {
    #[pyo3(get)]
    key: Py<PyBytes>,
    #[pyo3(get)]
    message: Option<Py<Message>>,
    #[pyo3(get)]
    sequence: u64,
    #[pyo3(get)]
    count: u64,
}

impl BoardEntry {
    fn of(py: Python<'_>, entry: &shmcast::BoardEntry<'_>) -> PyResult<Self> {
        let message = entry.message.map(|message| Py::new(py, Message::of(py, &message))).transpose()?;
        let key = PyBytes::new(py, entry.key).unbind();
        Ok(Self { key, message, sequence: entry.sequence, count: entry.count })
    }
}

#[pymethods]
impl BoardEntry {
    #[classattr]
    #[allow(non_upper_case_globals, reason = "Python's name for it")]
    const __match_args__: (&'static str, &'static str, &'static str, &'static str) =
        ("key", "message", "sequence", "count");

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let key = self.key.bind(py).repr()?;
        let message = match &self.message {
            Some(message) => message.bind(py).repr()?.to_string(),
            None => "None".to_owned(),
        };
        Ok(format!(
            "BoardEntry(key={key}, message={message}, sequence={}, count={})",
            self.sequence, self.count
        ))
    }
}

/// The last message of each key of a channel, read at any time: `board[b"EURUSD"]`, `board.get(key)`, `len(board)`, `board.entries()`.
///
/// `dir`, `socket` and `wait_for_channel` have the same meaning as for `Subscriber`. Ctrl-C ends the wait for the channel. Publishers and
/// tools do not notice that a board is read.
///
/// A `Board` receives no messages. To get the newest message of each key and then every later message, use a `Subscriber` with
/// `start="board"`.
///
/// Raises `ChannelError` with the code "no board" if the channel has no board. Only one thread at a time can use a board. A forked child
/// must open its own board.
#[pyclass(frozen, weakref, module = "shmcast")]
pub(crate) struct Board {
    handle: Handle<shmcast::Board>,
    channel: String,
}

impl Board {
    fn look(&self, py: Python<'_>, key: &[u8]) -> PyResult<Option<BoardEntry>> {
        let mut board = self.handle.enter()?;
        // The call can wait while the channel moves to another segment, so other threads of Python run meanwhile.
        let board: &mut shmcast::Board = &mut board;
        let found = py.detach(|| board.get(key)).map_err(|error| error::receiving(&self.channel, &error))?;
        found.map(|entry| BoardEntry::of(py, &entry)).transpose()
    }
}

#[pymethods]
impl Board {
    #[new]
    #[pyo3(signature = (channel, *, dir = None, socket = None, wait_for_channel = None))]
    fn new(
        py: Python<'_>,
        channel: String,
        dir: Option<PathBuf>,
        socket: Option<PathBuf>,
        wait_for_channel: Option<f64>,
    ) -> PyResult<Self> {
        let mut builder = shmcast::Subscriber::builder(channel.clone());
        builder = match place(py, dir, socket)? {
            Place::Default => builder,
            Place::Directory(dir) => builder.dir(dir),
            Place::Daemon(client) => builder.client(&client),
        };
        let board = opening(py, wait_for_channel, |goes_on| builder.open_board_while(goes_on))?;
        Ok(Self { handle: Handle::new("board", board), channel })
    }

    fn __repr__(&self) -> String {
        format!("<shmcast.Board of {:?}>", self.channel)
    }

    /// The channel's name.
    #[getter]
    fn channel(&self) -> &str {
        &self.channel
    }

    /// The properties of the board.
    #[getter]
    fn spec(&self) -> PyResult<BoardSpec> {
        self.handle.ask(|board| BoardSpec(board.spec()))
    }

    /// Returns the entry of a key; `None` if the board does not have the key.
    fn get(&self, py: Python<'_>, key: &[u8]) -> PyResult<Option<BoardEntry>> {
        self.look(py, key)
    }

    fn __getitem__(&self, py: Python<'_>, key: &Bound<'_, PyBytes>) -> PyResult<BoardEntry> {
        self.look(py, key.as_bytes())?.ok_or_else(|| PyKeyError::new_err(key.clone().unbind()))
    }

    fn __contains__(&self, py: Python<'_>, key: &[u8]) -> PyResult<bool> {
        Ok(self.look(py, key)?.is_some())
    }

    fn __len__(&self) -> PyResult<usize> {
        self.handle.ask(shmcast::Board::len)
    }

    fn __bool__(&self) -> bool {
        true // also with no keys
    }

    /// Returns all entries as they were at one moment, in the order of their sequences.
    fn entries(&self, py: Python<'_>) -> PyResult<Vec<BoardEntry>> {
        let mut board = self.handle.enter()?;
        let board: &mut shmcast::Board = &mut board;
        let entries =
            py.detach(|| board.entries()).map_err(|error| error::receiving(&self.channel, &error))?;
        entries.map(|entry| BoardEntry::of(py, &entry)).collect()
    }

    /// The board's counters:
    ///
    /// - `through`: the board includes all messages up to this sequence
    /// - `since`: if it is above 1, the board might lack keys whose newest message has a lower sequence
    /// - `keys`: the present number of keys
    /// - `no_room`, `too_large`, `no_key`: numbers of messages that are not on the board, because there was no room for their key, because
    ///   they were too large, or because they had no key
    #[getter]
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counters = self.handle.ask(shmcast::Board::counters)?;
        let named = PyDict::new(py);
        named.set_item("through", counters.through)?;
        named.set_item("since", counters.since)?;
        named.set_item("keys", counters.live)?;
        named.set_item("no_room", counters.refused)?;
        named.set_item("too_large", counters.too_large)?;
        named.set_item("no_key", counters.no_key)?;
        Ok(named)
    }

    /// Returns the nanoseconds since a message's `time`; `None` if `time` is 0, as for a message without a time.
    fn age_ns(&self, time: u64) -> PyResult<Option<u64>> {
        self.handle.ask(|board| (time != 0).then(|| board.clock().ns_since(time)))
    }

    /// Closes the board. The end of a `with` block also closes it.
    fn close(&self) -> PyResult<()> {
        self.handle.close().map(drop)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        _kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.close()
    }
}
