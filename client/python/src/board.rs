//! Boards: the last message of each key.

use crate::error;
use crate::event::Message;
use crate::handle::Handle;
use crate::options::{Place, opening, place};
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::path::PathBuf;

/// The properties of a board. Bytes `start` to `stop` of each payload, `stop` not included, are its key.
///
/// - `keys`: the number of keys for which there is room, 1024 by default and 16,777,216 at most. A key that comes when the board is full is
///   not on it, which `Board.counters` counts.
/// - `value`: the largest message on the board in bytes, key included; 256 by default.
/// - `remove_tag`: messages with this tag remove their key. A message that ends right behind its key removes it in any case.
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

    /// The first byte of the key in a payload.
    #[getter]
    fn start(&self) -> usize {
        self.0.key().start
    }

    /// The byte after the last of the key.
    #[getter]
    fn stop(&self) -> usize {
        self.0.key().end
    }

    /// The number of keys for which there is room.
    #[getter]
    fn keys(&self) -> u64 {
        self.0.room().0
    }

    /// Bytes of the largest message on the board.
    #[getter]
    fn value(&self) -> u64 {
        self.0.room().1
    }

    /// The tag that removes a key; `None` if there is none.
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

/// A key of a board: its `key`, the newest `message`, the `sequence` of that, and the `count` of messages of this key since it came to the
/// board. `message` is `None` if the board does not have it, such as one that is too large.
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
/// `dir` and `socket` as of `Subscriber`, and `wait_for_channel` too, whose wait Ctrl-C ends. Nobody notices a board that is read. It receives nothing: a `Subscriber`
/// with `start="board"` gets the newest message of each key and every later message.
///
/// `ChannelError` with the code "no board" if the channel has none. One thread at a time uses it, and a forked child opens its own.
#[pyclass(frozen, weakref, module = "shmcast")]
pub(crate) struct Board {
    handle: Handle<shmcast::Board>,
    channel: String,
}

impl Board {
    fn look(&self, py: Python<'_>, key: &[u8]) -> PyResult<Option<BoardEntry>> {
        let mut board = self.handle.enter()?;
        let found = board.get(key).map_err(|error| error::receiving(&self.channel, &error))?;
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

    /// The entry of a key; `None` if the board does not have it.
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

    /// All entries as they were at one moment, in the order of their sequences.
    fn entries(&self, py: Python<'_>) -> PyResult<Vec<BoardEntry>> {
        let mut board = self.handle.enter()?;
        let entries = board.entries().map_err(|error| error::receiving(&self.channel, &error))?;
        entries.map(|entry| BoardEntry::of(py, &entry)).collect()
    }

    /// What the board tells of itself: `through`, the sequence up to which each message is on it; `keys`, how many there are now; and how many
    /// messages were left out because there was `no_room` for their key, they were `too_large`, or they had `no_key`.
    #[getter]
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counters = self.handle.ask(shmcast::Board::counters)?;
        let named = PyDict::new(py);
        named.set_item("through", counters.through)?;
        named.set_item("keys", counters.live)?;
        named.set_item("no_room", counters.refused)?;
        named.set_item("too_large", counters.too_large)?;
        named.set_item("no_key", counters.no_key)?;
        Ok(named)
    }

    /// Nanoseconds since a message's `time`; `None` for 0, a message that carries none.
    fn age_ns(&self, time: u64) -> PyResult<Option<u64>> {
        self.handle.ask(|board| (time != 0).then(|| board.clock().ns_since(time)))
    }

    /// Ends the use of the board. `with` calls it.
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
