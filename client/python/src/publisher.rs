//! The publisher of a channel.

use crate::board::BoardSpec;
use crate::error;
use crate::gate::{Gate, GateStatus};
use crate::handle::Handle;
use crate::options::{self, Place, place};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyMemoryView, PyRange};
use shmcast::{ClockKind, Mark, PublishError};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The interval at which signal handlers run during a batch for a channel with gates. The handlers run between two messages of the batch.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// Publishes a channel's messages. If the channel already exists, the publisher takes it over and continues its sequences.
///
/// - `dir`, `socket`, `prepare`: as for `Subscriber`.
/// - `capacity`, `max_message`: sizes of a new channel in bytes. The capacity is 64 KiB to 16 GiB.
/// - `mode`: the mode of a new channel's files, such as 0o755.
/// - `clock`: the clock of a new channel, "counter" or "monotonic".
/// - `schema`, `schema_name`, `labels`: properties of a new channel.
/// - `anew`: replaces an existing channel by a new one, whose sequences begin at 1 again.
/// - `continue_from`: the directory of a journal. The sequences of a new channel continue after this journal.
/// - `board`: a `BoardSpec`, which gives a new channel a board: the last message of each key.
/// - `gates`: the readers for which the publisher waits, each a `Gate`.
///
/// A daemon creates its channels itself, so the properties of a new channel apply only to channels in files.
///
/// `close`, or the end of a `with` block, tells readers that the stream has ended. Only one thread at a time can use a publisher. Another
/// thread gets a `MisuseError`, and a forked child gets a `ForkedError`.
#[pyclass(frozen, weakref, module = "shmcast")]
pub(crate) struct Publisher {
    handle: Handle<shmcast::Publisher>,
    channel: String,
    /// Whether the channel has gates. Then a call can wait for a reader, so other threads run during the call.
    has_gates: bool,
    signals: Arc<Signals>,
}

impl Drop for Publisher {
    /// Closes a publisher that was not closed. If the channel has gates, other threads run meanwhile, among them a reader of a gate.
    fn drop(&mut self) {
        if self.has_gates
            && let Ok(Some(publisher)) = self.handle.close()
        {
            let mut publisher = Some(publisher);
            // While the interpreter ends, no thread of Python runs, and `try_attach` does nothing. Then the end of this function drops the
            // publisher.
            Python::try_attach(|py| py.detach(|| drop(publisher.take())));
        }
    }
}

/// Runs signal handlers while a message waits for a gate. If a handler raises an exception, the wait ends.
#[derive(Default)]
struct Signals {
    /// Whether a call waits that can raise the exception of a handler.
    is_asked: AtomicBool,
    /// Set to 1 to end the wait.
    ends: Arc<AtomicUsize>,
    /// The time of the last check, and the exception of a handler.
    state: Mutex<(Option<Instant>, Option<PyErr>)>,
}

impl Signals {
    /// Lets the waits of a publisher run signal handlers.
    fn watch(publisher: &mut shmcast::Publisher) -> Arc<Self> {
        let signals = Arc::<Self>::default();
        publisher.hurry_after(signals.ends.clone());
        let watched = signals.clone();
        publisher.call_while_waiting(move || watched.check());
        signals
    }

    fn state(&self) -> MutexGuard<'_, (Option<Instant>, Option<PyErr>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self) {
        let is_due = |at: Option<Instant>| at.is_none_or(|at| at.elapsed() >= SIGNALS_EVERY);
        if !self.is_asked.load(Ordering::Relaxed) || !is_due(self.state().0) {
            return;
        }
        self.state().0 = Some(Instant::now());
        if let Some(Err(raised)) = Python::try_attach(|py| py.check_signals()) {
            self.state().1 = Some(raised);
            self.ends.store(1, Ordering::Relaxed);
        }
    }

    /// Runs a call that can wait, while other threads run.
    ///
    /// # Errors
    /// The exception of a signal handler.
    fn during<T: Send>(&self, py: Python<'_>, call: impl FnOnce() -> T + Send) -> PyResult<T> {
        self.state().0 = Some(Instant::now());
        self.is_asked.store(true, Ordering::Relaxed);
        let done = py.detach(call);
        self.is_asked.store(false, Ordering::Relaxed);
        self.ends.store(0, Ordering::Relaxed);
        let raised = self.state().1.take();
        raised.map_or(Ok(done), Err)
    }
}

/// A Python object that lends its memory.
struct Lent<'py> {
    buffer: PyUntypedBuffer,
    /// Keeps this thread attached to the Python interpreter. As long as this value lives, no other thread can change the object's memory by
    /// Python code.
    _py: Python<'py>,
}

impl<'py> Lent<'py> {
    fn of(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        let py = object.py();
        match PyUntypedBuffer::get(object) {
            Ok(buffer) => {
                refuse_objects(&buffer.format().to_string_lossy())?;
                Ok(Self { buffer, _py: py })
            }
            // A single value, such as one row of an array, has no shape. So its bytes are copied.
            Err(error) if error.is_instance_of::<PyBufferError>(py) => {
                let view = PyMemoryView::from(object)?;
                refuse_objects(&view.getattr("format")?.extract::<String>()?)?;
                let copy = view.call_method0("tobytes")?;
                Ok(Self { buffer: PyUntypedBuffer::get(&copy)?, _py: py })
            }
            Err(error) => Err(error),
        }
    }

    /// Returns all bytes.
    fn bytes(&self) -> PyResult<&[u8]> {
        if !self.buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err(
                "the bytes do not lie one behind the other: publish a copy, or publish_batch for one message a row",
            ));
        }
        let (at, length) = (self.buffer.buf_ptr().cast_const().cast::<u8>(), self.buffer.len_bytes());
        if length == 0 {
            return Ok(&[]);
        }
        // SAFETY: the buffer lives as long as the slice, so the buffer's owner keeps the bytes in place. This thread stays attached to the
        // interpreter, so no Python code changes the bytes.
        Ok(unsafe { std::slice::from_raw_parts(at, length) })
    }

    /// Returns the rows. The bytes of each row must be contiguous.
    fn rows(&self) -> PyResult<impl Iterator<Item = &[u8]>> {
        let shape = self.buffer.shape();
        let Some((&count, inner)) = shape.split_first() else {
            return Err(PyBufferError::new_err("there are no rows"));
        };
        if !inner.is_empty() && !self.buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err(
                "the bytes of a row do not lie one behind the other: publish a copy",
            ));
        }
        let row = inner.iter().product::<usize>() * self.buffer.item_size();
        let stride = self.buffer.strides().first().copied().unwrap_or(0);
        let start = self.buffer.buf_ptr().cast_const().cast::<u8>();
        let row_at = move |index: usize| -> &[u8] {
            if row == 0 {
                return &[];
            }
            // SAFETY: by the buffer protocol, item `index` of the first dimension begins `index * stride` bytes after the start, in the
            // same allocation.
            let at = unsafe { start.offset(index as isize * stride) };
            // SAFETY: the bytes of a row are contiguous, which was checked if there are inner dimensions. The buffer lives as long as the
            // slice, and no Python code changes it meanwhile, as in `bytes`.
            unsafe { std::slice::from_raw_parts(at, row) }
        };
        Ok((0..count).map(row_at))
    }
}

/// Refuses a buffer whose items contain pointers, for example to Python objects. The buffer's `format` shows this. Names of fields stand
/// between colons in the format, and can contain the same letters, so this function skips the names.
fn refuse_objects(format: &str) -> PyResult<()> {
    if format.split(':').step_by(2).any(|types| types.contains(['O', 'P', '&'])) {
        return Err(PyTypeError::new_err(format!(
            "a buffer of the format {format:?} has addresses and no values: publish the bytes of the values"
        )));
    }
    Ok(())
}

impl Publisher {
    #[cold]
    fn failure(&self, error: &PublishError) -> PyErr {
        error::publishing(&self.channel, error)
    }

    /// Publishes all messages with the same time.
    fn publish_all<'a>(
        &self,
        py: Python<'_>,
        messages: impl Iterator<Item = &'a [u8]>,
        mark: Mark,
    ) -> PyResult<Range<u64>> {
        if self.has_gates {
            return self.publish_all_through_gates(py, messages, mark);
        }
        let published = self.handle.enter()?.publish_batch_with(messages, mark);
        published.map_err(|error| self.failure(&error))
    }

    /// Publishes copies, as [`publish_through_gates`](Self::publish_through_gates) does. Each message of the batch can wait for a gate, so
    /// signal handlers run between messages. If a handler raises an exception, the batch stops there.
    #[cold]
    fn publish_all_through_gates<'a>(
        &self,
        py: Python<'_>,
        messages: impl Iterator<Item = &'a [u8]>,
        mark: Mark,
    ) -> PyResult<Range<u64>> {
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        for message in messages {
            bytes.extend_from_slice(message);
            ends.push(bytes.len());
        }
        let mut publisher = self.handle.enter()?;
        let publisher: &mut shmcast::Publisher = &mut publisher;
        let (mut checked, mut interrupted) = (Instant::now(), Ok(()));
        let published = self.signals.during(py, || {
            let mut start = 0;
            let copies = ends.iter().map_while(|&end| {
                if checked.elapsed() >= SIGNALS_EVERY {
                    interrupted = Python::attach(|py| py.check_signals());
                    checked = Instant::now();
                }
                let copy = &bytes[std::mem::replace(&mut start, end)..end];
                interrupted.is_ok().then_some(copy)
            });
            publisher.publish_batch_with(copies, mark)
        });
        interrupted?;
        published?.map_err(|error| self.failure(&error))
    }

    /// Publishes a copy of the payload. The call can wait, and other threads could change the original payload during the wait.
    #[cold]
    fn publish_through_gates(&self, payload: &Bound<'_, PyAny>, mark: Mark) -> PyResult<u64> {
        let copy = Lent::of(payload)?.bytes()?.to_vec();
        let mut publisher = self.handle.enter()?;
        let publisher: &mut shmcast::Publisher = &mut publisher;
        let published = self.signals.during(payload.py(), || publisher.publish_with(&copy, mark));
        published?.map_err(|error| self.failure(&error))
    }
}

#[pymethods]
impl Publisher {
    #[new]
    #[pyo3(signature = (channel, *, dir = None, socket = None, capacity = None, max_message = None, mode = None,
        clock = None, schema = 0, schema_name = "", labels = None, anew = false, continue_from = None,
        board = None, gates = None, prepare = None))]
    #[allow(clippy::too_many_arguments, reason = "Python's keywords are the options")]
    fn new(
        py: Python<'_>,
        channel: String,
        dir: Option<PathBuf>,
        socket: Option<PathBuf>,
        capacity: Option<u64>,
        max_message: Option<u64>,
        mode: Option<u32>,
        clock: Option<&str>,
        schema: u64,
        schema_name: &str,
        labels: Option<String>,
        anew: bool,
        continue_from: Option<PathBuf>,
        board: Option<PyRef<'_, BoardSpec>>,
        gates: Option<&Bound<'_, PyAny>>,
        prepare: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let mut builder = shmcast::Publisher::builder(channel.clone());
        builder = match place(py, dir, socket)? {
            Place::Default => builder,
            Place::Directory(dir) => builder.dir(dir),
            Place::Daemon(client) => builder.client(&client),
        };
        if let Some(bytes) = capacity {
            builder = builder.capacity(bytes);
        }
        if let Some(bytes) = max_message {
            builder = builder.max_message(bytes);
        }
        if let Some(mode) = mode {
            builder = builder.mode(mode);
        }
        builder = match clock {
            None => builder,
            Some("counter") => builder.clock_kind(ClockKind::Counter),
            Some("monotonic") => builder.clock_kind(ClockKind::Monotonic),
            Some(other) => {
                let todo = format!("clock={other:?}: give \"counter\" or \"monotonic\"");
                return Err(PyValueError::new_err(todo));
            }
        };
        if schema != 0 || !schema_name.is_empty() {
            builder = builder.schema(schema, schema_name);
        }
        if let Some(labels) = labels {
            builder = builder.labels(labels);
        }
        if anew {
            builder = builder.anew();
        }
        if let Some(journal) = continue_from {
            builder = builder.continue_from(journal);
        }
        if let Some(gates) = gates {
            let all = gates
                .try_iter()
                .map_err(|error| PyTypeError::new_err(format!("argument 'gates': {}", error.value(py))))?;
            for gate in all {
                let gate = gate?;
                let gate = gate
                    .cast::<Gate>()
                    .map_err(|error| PyTypeError::new_err(format!("argument 'gates': {error}")))?;
                builder = builder.gate(gate.get().0.clone());
            }
        }
        if let Some(board) = board {
            builder = builder.board(board.0);
        }
        if let Some(steps) = prepare {
            builder = builder.prepare(options::preparation(steps)?);
        }
        let mut publisher = py.detach(|| builder.open()).map_err(|error| error::opening(&error))?;
        let signals = Signals::watch(&mut publisher);
        let has_gates = !publisher.gates().is_empty();
        Ok(Self { handle: Handle::new("publisher", publisher), channel, has_gates, signals })
    }

    fn __repr__(&self) -> String {
        format!("<shmcast.Publisher of {:?}>", self.channel)
    }

    /// The channel's name.
    #[getter]
    fn channel(&self) -> &str {
        &self.channel
    }

    /// Publishes one message and returns its sequence. Waits only for the readers of gates. Other threads and signal handlers run during
    /// this wait. If a handler raises an exception, such as `KeyboardInterrupt`, the wait ends with it, and `next_sequence` tells whether the
    /// message was published.
    ///
    /// The payload is any object with contiguous bytes: bytes, bytearray, memoryview, array, numpy. `tag` is a number below 65536, by which
    /// readers can select messages. `key` marks a message at which a reader can start without earlier messages. Raises `PublishError` if
    /// the message is not published.
    #[pyo3(signature = (payload, tag = 0, key = false))]
    fn publish(&self, payload: &Bound<'_, PyAny>, tag: u16, key: bool) -> PyResult<u64> {
        let mark = Mark { tag, key };
        if self.has_gates {
            return self.publish_through_gates(payload, mark);
        }
        let published = if let Ok(bytes) = payload.cast_exact::<PyBytes>() {
            self.handle.enter()?.publish_with(bytes.as_bytes(), mark)
        } else {
            let lent = Lent::of(payload)?;
            self.handle.enter()?.publish_with(lent.bytes()?, mark)
        };
        published.map_err(|error| self.failure(&error))
    }

    /// Publishes like `publish`, but never waits for a gate. If a gate's reader is too far behind, publishes nothing and returns `None`.
    #[pyo3(signature = (payload, tag = 0, key = false))]
    fn try_publish(&self, payload: &Bound<'_, PyAny>, tag: u16, key: bool) -> PyResult<Option<u64>> {
        let lent = Lent::of(payload)?;
        match self.handle.enter()?.try_publish_with(lent.bytes()?, Mark { tag, key }) {
            Err(PublishError::Full { .. }) => Ok(None),
            published => published.map(Some).map_err(|error| self.failure(&error)),
        }
    }

    /// The channel's gates, each with the counts of this publisher.
    #[getter]
    fn gates(&self) -> PyResult<Vec<GateStatus>> {
        self.handle.ask(|publisher| publisher.gates().into_iter().map(GateStatus::from).collect())
    }

    /// Publishes many messages with the same time, tag and key mark, and returns their sequences as a `range`.
    ///
    /// Each row of an array is a message, even if the array has a stride, such as `Batch.view`. Each item of any other iterable is a
    /// message. If a message is too large, or a gate refuses it, the messages before it are published, and the later ones are not.
    ///
    /// Waits only for the readers of gates. Other threads run during this wait. If a signal handler raises an exception during the wait,
    /// the batch stops, and `next_sequence` tells how much of it was published.
    #[pyo3(signature = (messages, tag = 0, key = false))]
    fn publish_batch<'py>(
        &self,
        py: Python<'py>,
        messages: &Bound<'py, PyAny>,
        tag: u16,
        key: bool,
    ) -> PyResult<Bound<'py, PyRange>> {
        let mark = Mark { tag, key };
        let is_one_text = messages.cast::<PyBytes>().is_ok() || messages.cast::<PyByteArray>().is_ok();
        let published = match PyUntypedBuffer::get(messages) {
            Ok(_) if is_one_text => {
                return Err(PyValueError::new_err(
                    "one bytes object is one message: publish it, or give a list",
                ));
            }
            Ok(buffer) => self.publish_all(py, Lent { buffer, _py: py }.rows()?, mark)?,
            Err(error) => match messages.try_iter() {
                Ok(all) => {
                    let lent = all.map(|one| Lent::of(&one?)).collect::<PyResult<Vec<_>>>()?;
                    let rows = lent.iter().map(Lent::bytes).collect::<PyResult<Vec<_>>>()?;
                    self.publish_all(py, rows.into_iter(), mark)?
                }
                Err(_) if error.is_instance_of::<PyBufferError>(py) => {
                    return Err(PyValueError::new_err("a single value has no rows: publish it"));
                }
                Err(_) => return Err(error),
            },
        };
        PyRange::new(py, published.start as isize, published.end as isize)
    }

    /// The sequence that the next message gets.
    #[getter]
    fn next_sequence(&self) -> PyResult<u64> {
        self.handle.ask(shmcast::Publisher::next_sequence)
    }

    /// The epoch of this publisher: its number among the channel's publishers.
    #[getter]
    fn epoch(&self) -> PyResult<u64> {
        self.handle.ask(shmcast::Publisher::epoch)
    }

    /// The size of the ring in bytes.
    #[getter]
    fn capacity(&self) -> PyResult<u64> {
        self.handle.ask(shmcast::Publisher::capacity)
    }

    /// The size of the largest payload in bytes.
    #[getter]
    fn max_message(&self) -> PyResult<usize> {
        self.handle.ask(shmcast::Publisher::max_message)
    }

    /// Whether a daemon has given the channel to another publisher.
    #[getter]
    fn is_cut_off(&self) -> PyResult<bool> {
        self.handle.ask(shmcast::Publisher::is_cut_off)
    }

    /// Whether a daemon knows this publisher at the moment; `None` if the channel is in files.
    #[getter]
    fn is_registered(&self) -> PyResult<Option<bool>> {
        self.handle.ask(shmcast::Publisher::is_registered)
    }

    /// Ends the stream: readers get an `End`. The end of a `with` block also does this. Waits only for the readers of gates, and other
    /// threads run meanwhile.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let publisher = self.handle.close()?;
        self.signals.during(py, || drop(publisher))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.close(py)
    }
}
