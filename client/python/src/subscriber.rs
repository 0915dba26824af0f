//! The receiving end.

use crate::batch::{Batch, Pool};
use crate::error;
use crate::event::object;
use crate::handle::Handle;
use crate::options::{self, Place, SLICE, opening, place, seconds};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use shmcast::{Armed, EndWatch, Event, RecvError, Start};
use std::ops::{Deref, DerefMut};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Receives a channel's messages, in order, each once: `for event in subscriber` until the channel is over.
///
/// Where the channel is: `dir` is a directory, `socket` the path of a daemon's socket or `""` for the usual one. With neither, the library's
/// default: `$SHMCAST_DIR`, else /dev/shm/shmcast, else this user's directory.
///
/// - `start`: "latest" (the next message to be published), "oldest", a sequence, or "board": the newest message of each key, then `Live`, and
///   then every later message.
/// - `gate`: takes the channel's gate of this name. The publisher waits for this reader, within the gate's limit.
/// - `conflate`: `True` leaves out messages that are no longer the newest of their key once it is more than half of the ring behind, or more
///   than so many bytes if it is a number. `Message.conflated` counts them. The channel must have a board.
/// - `wait`: how it waits while nothing comes. "yield", "spin" (a core of its own), "burst", "spin-then-yield", "backoff", "sleep" with a
///   `pause` in seconds, or "park", which is woken by the daemon and is what event loops want. Other threads of Python run meanwhile.
/// - `resume`: where it goes on after a lap: "oldest", "latest", or "key" for the last message with a key mark.
/// - `tags`: only messages with one of these.
/// - `wait_for_channel`: seconds to wait for a channel that is not there yet.
/// - `schema`: the number of the schema that the channel must have.
/// - `watch_publisher`: whether the death of a publisher is told, as `PublisherGone`.
/// - `record_latency`, `hidden`: what tools see of this reader: latencies, or nothing at all.
/// - `longest_nap`: seconds that it sleeps at most with "park", 0.1 by default.
/// - `prepare`: steps to make memory ready, of "prefault", "huge-pages" and "lock"; by default the first.
/// - `batch_bytes`: bytes of records in a batch, at most 1 GiB; 256 KiB by default. One larger message fits in any case.
///
/// One thread at a time uses it; another one gets a `MisuseError`. A forked child gets a `ForkedError`. Ctrl-C ends a wait within some 50 ms,
/// and so does any exception of a signal handler.
#[pyclass(frozen, weakref, module = "shmcast")]
pub(crate) struct Subscriber {
    pub(crate) handle: Handle<Reader>,
    /// Whether the last event of an iteration was an end.
    gave_end: AtomicBool,
    pub(crate) channel: String,
    pool: Arc<Pool>,
    /// Bytes of a batch. By default it fits into a core's second cache until it has been read.
    room: usize,
}

/// A subscriber, and whether the channel is over for it.
pub(crate) struct Reader {
    pub(crate) subscriber: shmcast::Subscriber,
    pub(crate) end: EndWatch,
}

impl Reader {
    pub(crate) fn is_over(&self) -> bool {
        self.end.is_over(&self.subscriber)
    }
}

impl Deref for Reader {
    type Target = shmcast::Subscriber;

    fn deref(&self) -> &Self::Target {
        &self.subscriber
    }
}

impl DerefMut for Reader {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.subscriber
    }
}

/// The deadline of a wait; `None` if it has none.
pub(crate) fn deadline(timeout: Option<f64>) -> PyResult<Option<Instant>> {
    let Some(timeout) = timeout else { return Ok(None) };
    if timeout == f64::INFINITY {
        return Ok(None);
    }
    Ok(Instant::now().checked_add(seconds("timeout", timeout)?))
}

/// Calls `attempt` for one slice of the wait after the other until it returns something, detached from the interpreter. Checks for signals
/// in between.
pub(crate) fn wait_in_slices<R>(
    py: Python<'_>,
    deadline: Option<Instant>,
    mut attempt: impl FnMut(Instant) -> PyResult<Option<R>>,
) -> PyResult<Option<R>> {
    loop {
        py.check_signals()?;
        let slice = Instant::now() + SLICE;
        let until = deadline.map_or(slice, |deadline| deadline.min(slice));
        let found = attempt(until)?;
        if found.is_some() || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Ok(found);
        }
    }
}

impl Subscriber {
    /// Returns the next event if there is one. Stays attached to the interpreter.
    #[inline]
    fn take<R>(&self, of: impl FnOnce(&Event<'_>) -> PyResult<R>) -> PyResult<Option<R>> {
        let mut reader = self.handle.enter()?;
        let Reader { subscriber, end } = &mut *reader;
        match subscriber.try_recv() {
            Ok(Some(event)) => {
                end.note(&event);
                of(&event).map(Some)
            }
            Ok(None) => Ok(None),
            Err(error) => Err(error::receiving(&self.channel, &error)),
        }
    }

    #[cold]
    #[inline(never)]
    fn wait<R>(
        &self,
        py: Python<'_>,
        deadline: Option<Instant>,
        of: impl Fn(&Event<'_>) -> PyResult<R>,
    ) -> PyResult<Option<R>> {
        wait_in_slices(py, deadline, |until| {
            let mut reader = self.handle.enter()?;
            let Reader { subscriber, end } = &mut *reader;
            match py.detach(|| subscriber.recv_deadline(until)) {
                Ok(Some(event)) => {
                    end.note(&event);
                    of(&event).map(Some)
                }
                Ok(None) => Ok(None),
                Err(error) => Err(error::receiving(&self.channel, &error)),
            }
        })
    }

    /// As [`wait`](Self::wait) without a deadline, for an iteration. `None` if the channel is over and its `End` was
    /// given before.
    #[cold]
    #[inline(never)]
    fn wait_on<R>(&self, py: Python<'_>, of: impl Fn(&Event<'_>) -> PyResult<R>) -> PyResult<Option<R>> {
        loop {
            let found = self.wait(py, Some(Instant::now() + SLICE), &of)?;
            let is_behind_end = self.gave_end.load(Ordering::Relaxed);
            if found.is_some() || is_behind_end && self.handle.ask(Reader::is_over)? {
                return Ok(found);
            }
        }
    }
}

#[pymethods]
impl Subscriber {
    #[new]
    #[pyo3(signature = (channel, *, dir = None, socket = None, start = None, wait = "yield", pause = None,
        resume = "oldest", tags = None, wait_for_channel = None, schema = None, watch_publisher = false,
        record_latency = false, hidden = false, longest_nap = None, prepare = None, batch_bytes = 262_144,
        conflate = None, gate = None))]
    #[allow(clippy::too_many_arguments, reason = "Python's keywords are the options")]
    fn new(
        py: Python<'_>,
        channel: String,
        dir: Option<PathBuf>,
        socket: Option<PathBuf>,
        start: Option<&Bound<'_, PyAny>>,
        wait: &str,
        pause: Option<f64>,
        resume: &str,
        tags: Option<Vec<u16>>,
        wait_for_channel: Option<f64>,
        schema: Option<u64>,
        watch_publisher: bool,
        record_latency: bool,
        hidden: bool,
        longest_nap: Option<f64>,
        prepare: Option<&Bound<'_, PyAny>>,
        batch_bytes: usize,
        conflate: Option<&Bound<'_, PyAny>>,
        gate: Option<&str>,
    ) -> PyResult<Self> {
        let start = start.map_or(Ok(Start::Latest), options::start)?;
        let mut builder = shmcast::Subscriber::builder(channel.clone()).start(start);
        builder = builder.wait(options::wait(wait, pause)?).resume(options::resume(resume)?);
        builder = builder.page(!hidden).record_latency(record_latency).watch_publisher(watch_publisher);
        builder = match place(py, dir, socket)? {
            Place::Default => builder,
            Place::Directory(dir) => builder.dir(dir),
            Place::Daemon(client) => builder.client(&client),
        };
        if let Some(tags) = tags {
            builder = builder.tags(tags);
        }
        if let Some(schema) = schema {
            builder = builder.schema(schema);
        }
        if let Some(longest) = longest_nap {
            builder = builder.longest_nap(seconds("longest_nap", longest)?);
        }
        if let Some(steps) = prepare {
            builder = builder.prepare(options::preparation(steps)?);
        }
        if let Some(gate) = gate {
            builder = builder.gate(gate);
        }
        if let Some(conflate) = conflate {
            builder = options::conflation(builder, conflate)?;
        }
        if batch_bytes > 1 << 30 {
            return Err(PyValueError::new_err(format!("batch_bytes={batch_bytes}: give at most 1 GiB")));
        }
        let subscriber = opening(py, wait_for_channel, |goes_on| builder.open_while(goes_on))?;
        let end = EndWatch::of(&subscriber, start);
        let handle = Handle::new("subscriber", Reader { subscriber, end });
        Ok(Self {
            handle,
            gave_end: AtomicBool::new(false),
            channel,
            pool: Arc::default(),
            room: batch_bytes,
        })
    }

    fn __repr__(&self) -> String {
        format!("<shmcast.Subscriber of {:?}>", self.channel)
    }

    /// The channel's name.
    #[getter]
    fn channel(&self) -> &str {
        &self.channel
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[inline]
    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let object = |event: &Event<'_>| Ok((object(py, event)?, *event == Event::End));
        let event = match self.take(object)? {
            None => self.wait_on(py, object)?,
            event => event,
        };
        let is_over = match event {
            None => true,
            Some((_, is_end)) => is_end && self.handle.ask(Reader::is_over)?,
        };
        // The next iteration waits for the next publisher.
        let gave_end = !is_over && event.as_ref().is_some_and(|(_, is_end)| *is_end);
        self.gave_end.store(gave_end, Ordering::Relaxed);
        Ok(event.filter(|_| !is_over).map(|(event, _)| event))
    }

    /// The next event, after a wait of at most `timeout` seconds, or without end; `None` if nothing came.
    ///
    /// A loss is an event. `ReceiveError` if nothing more can be received.
    #[pyo3(signature = (timeout = None))]
    fn recv(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Py<PyAny>>> {
        if let Some(event) = self.take(|event| object(py, event))? {
            return Ok(Some(event));
        }
        self.wait(py, deadline(timeout)?, |event| object(py, event))
    }

    /// The next event if it is there, else `None`, as `recv(0)`. Never waits for one.
    fn try_recv(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.recv(py, Some(0.0))
    }

    /// Up to `most` messages that are there, in one call, after a wait of at most `timeout` seconds for the first of them. A batch ends early
    /// at an event, and when `batch_bytes` are full. It is empty, and false, if nothing came.
    #[pyo3(signature = (most = 65_536, timeout = None))]
    pub(crate) fn recv_batch(&self, py: Python<'_>, most: usize, timeout: Option<f64>) -> PyResult<Batch> {
        if most == 0 {
            return Err(PyValueError::new_err("a batch of at most 0 messages would never hold one"));
        }
        let mut records = self.pool.take(self.room);
        let (clock, received) = {
            let mut reader = self.handle.enter()?;
            let received = reader.recv_records(most, &mut records);
            (reader.clock(), received.map_err(|error| error::receiving(&self.channel, &error))?)
        };
        if received == 0 {
            wait_in_slices(py, deadline(timeout)?, |until| {
                let mut reader = self.handle.enter()?;
                let (this, records) = (&mut reader.subscriber, &mut records);
                match py.detach(|| this.recv_records_deadline(most, records, until)) {
                    Ok(received) => Ok((received > 0).then_some(())),
                    Err(error) => Err(error::receiving(&self.channel, &error)),
                }
            })?;
        }
        if let Some(event) = records.event() {
            self.handle.enter()?.end.note(&event);
        }
        Ok(Batch::new(records, &self.pool, clock))
    }

    /// Batches as of `recv_batch`, until the channel is over. With a timeout, there is an empty one each time nothing came for so long.
    #[pyo3(signature = (most = 65_536, timeout = None))]
    fn batches(slf: Py<Self>, most: usize, timeout: Option<f64>) -> PyResult<Batches> {
        deadline(timeout)?;
        Ok(Batches { subscriber: slf, most, timeout, gave_end: AtomicBool::new(false) })
    }

    /// Goes on at this sequence, forwards or backwards. `TooOldError` if it has been overwritten, `NotYetError` if it has not been published.
    fn seek(&self, sequence: u64) -> PyResult<()> {
        let mut reader = self.handle.enter()?;
        reader.end = EndWatch::default();
        let sought = reader.seek(sequence);
        sought.map_err(|error| error::seeking(&self.channel, &error))
    }

    /// The descriptor for event loops, which is readable when there is something to receive; `None` unless it waits by "park".
    #[getter]
    fn descriptor(&self) -> PyResult<Option<i32>> {
        self.handle.ask(|this| this.descriptor().map(|descriptor| descriptor.as_raw_fd()))
    }

    /// For event loops other than asyncio, before each sleep: the event that was there after all, or the seconds to wait at most until the
    /// descriptor is readable.
    fn arm(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let mut reader = self.handle.enter()?;
        let Reader { subscriber, end } = &mut *reader;
        let armed: Result<Armed<'_>, RecvError> = subscriber.arm();
        match armed {
            Ok(Armed::Event(event)) => {
                end.note(&event);
                object(py, &event)
            }
            Ok(Armed::Wait(limit)) => Ok(limit.as_secs_f64().into_pyobject(py)?.into_any().unbind()),
            Err(error) => Err(error::receiving(&self.channel, &error)),
        }
    }

    /// Takes the request of `arm` back, and empties the descriptor.
    fn disarm(&self) -> PyResult<()> {
        self.handle.enter()?.disarm();
        Ok(())
    }

    /// The sequence of the next message expected.
    #[getter]
    fn next_sequence(&self) -> PyResult<u64> {
        self.handle.ask(|this| this.next_sequence())
    }

    /// Messages that are published and not yet received; up to 64 too low.
    #[getter]
    fn lag(&self) -> PyResult<u64> {
        self.handle.ask(|this| this.lag())
    }

    /// The publisher's epoch, as far as the stream has given it.
    #[getter]
    fn epoch(&self) -> PyResult<u64> {
        self.handle.ask(|this| this.epoch())
    }

    /// Whether the channel is over as things stand: an end was received last, nobody publishes, and nothing comes after. Each publisher that
    /// has closed gives an `End`. A subscriber that begins with the latest message of a closed channel waits for the next publisher.
    #[getter]
    fn is_over(&self) -> PyResult<bool> {
        self.handle.ask(Reader::is_over)
    }

    /// Whether a daemon knows of it at the moment; `None` if the channel is a file.
    #[getter]
    fn is_registered(&self) -> PyResult<Option<bool>> {
        self.handle.ask(|this| this.is_registered())
    }

    /// Nanoseconds since a message's `time`; `None` for 0, a message that carries none.
    fn age_ns(&self, time: u64) -> PyResult<Option<u64>> {
        self.handle.ask(|this| (time != 0).then(|| this.clock().ns_since(time)))
    }

    /// Ends the subscription. `with` calls it.
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

    /// As `recv` without a timeout, in asyncio: other tasks run until something comes, and no thread waits. To be opened with wait="park"; with any
    /// other strategy, and on channels that are files, this looks every millisecond. A task that is cancelled has received nothing.
    /// `async for event in subscriber` gives events until the channel is over. Iterating again waits for the next publisher.
    fn recv_async<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("shmcast._aio")?.call_method1("recv", (slf,))
    }

    fn __aiter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("shmcast._aio")?.call_method1("events", (slf,))
    }

    fn __aenter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("shmcast._aio")?.call_method1("enter", (slf,))
    }

    fn __aexit__<'py>(
        slf: &Bound<'py, Self>,
        _kind: &Bound<'py, PyAny>,
        _error: &Bound<'py, PyAny>,
        _trace: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("shmcast._aio")?.call_method1("leave", (slf,))
    }
}

/// The iterator of `Subscriber.batches`.
#[pyclass(frozen, module = "shmcast")]
pub(crate) struct Batches {
    subscriber: Py<Subscriber>,
    most: usize,
    timeout: Option<f64>,
    /// Whether the last batch contained an end.
    gave_end: AtomicBool,
}

#[pymethods]
impl Batches {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        let subscriber = self.subscriber.get();
        let is_over = || subscriber.handle.ask(Reader::is_over);
        if !self.gave_end.swap(false, Ordering::Relaxed) {
            let batch = subscriber.recv_batch(py, self.most, self.timeout)?;
            self.gave_end.store(batch.records().event() == Some(Event::End), Ordering::Relaxed);
            return Ok(Some(batch));
        }
        // After an end, this checks now and then whether it was the channel's end.
        let until = deadline(self.timeout)?;
        loop {
            if is_over()? {
                return Ok(None);
            }
            let slice = Instant::now() + SLICE;
            let left =
                until.map_or(slice, |until| until.min(slice)).saturating_duration_since(Instant::now());
            let batch = subscriber.recv_batch(py, self.most, Some(left.as_secs_f64()))?;
            let is_empty = batch.records().is_empty() && batch.records().event().is_none();
            if !is_empty || until.is_some_and(|until| Instant::now() >= until) {
                let has_end = is_empty || batch.records().event() == Some(Event::End);
                self.gave_end.store(has_end, Ordering::Relaxed);
                return Ok(Some(batch));
            }
        }
    }
}
