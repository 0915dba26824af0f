//! The subscriber of a channel.

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

/// Receives a channel's messages, in order, each once: `for event in subscriber`, until the channel is over.
///
/// `dir` and `socket` say where the channel is. `dir` is a directory. `socket` is the path of a daemon's socket, or `""` for the default
/// socket. If neither is given, the directory is `$SHMCAST_DIR` if this variable is set. Otherwise it is /dev/shm/shmcast if root made this
/// directory and this user can list it, and otherwise this user's own directory.
///
/// - `start`: "latest" (the next message to be published), "oldest", a sequence, or "board". With "board" the subscriber gets the newest
///   message of each key, then `Live`, and then every later message.
/// - `gate`: takes the channel's gate of this name. The publisher waits for this reader, up to the gate's limit.
/// - `conflate`: with `True`, a reader that is more than half of the ring behind skips old messages, and gets only the newest message of
///   each key. A number sets another distance, in bytes. `Message.conflated` counts the skipped messages. The channel must have a board.
/// - `wait`: how the subscriber waits while nothing arrives: "yield", "spin" (uses a whole core), "burst", "spin-then-yield", "backoff",
///   "sleep" with a `pause` in seconds, or "park". With "park" the daemon wakes the subscriber, and event loops can wait for it. Other
///   threads of Python run during a wait.
/// - `resume`: where the subscriber continues after a lap: "oldest", "latest", or "key" for the last message with a key mark.
/// - `tags`: receives only messages with one of these tags. Not with `conflate` or `start="board"`.
/// - `wait_for_channel`: seconds to wait for a channel that does not exist yet.
/// - `schema`: the number of the schema that the channel must have. The subscriber checks the schema only when it opens. Later messages and
///   older messages of the journal can have another schema, and are received too.
/// - `watch_publisher`: whether the subscriber gets the event `PublisherGone` when the publisher dies.
/// - `record_latency`: whether the subscriber records latencies, which tools show.
/// - `hidden`: whether this reader is invisible to tools.
/// - `longest_nap`: with "park", the longest sleep of the subscriber in seconds; 0.1 by default.
/// - `prepare`: steps that prepare the memory: any of "prefault", "huge-pages" and "lock". The default is "prefault".
/// - `batch_bytes`: the size of a batch in bytes of records, at most 1 GiB; 256 KiB by default. A larger message is alone in its batch.
///
/// Only one thread at a time can use a subscriber. Another thread gets a `MisuseError`, and a forked child gets a `ForkedError`. Ctrl-C or
/// an exception of a signal handler ends a wait within about 50 ms.
#[pyclass(frozen, weakref, module = "shmcast")]
pub(crate) struct Subscriber {
    pub(crate) handle: Handle<Reader>,
    /// Whether the last event of an iteration was an end.
    gave_end: AtomicBool,
    pub(crate) channel: String,
    pool: Arc<Pool>,
    /// The size of a batch in bytes. A batch of the default size stays in the core's second-level cache until the program has read it.
    room: usize,
}

/// A subscriber, with the watch that detects the end of its channel.
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

/// Returns the deadline of a wait; `None` if the wait has no time limit.
pub(crate) fn deadline(timeout: Option<f64>) -> PyResult<Option<Instant>> {
    let Some(timeout) = timeout else { return Ok(None) };
    if timeout == f64::INFINITY {
        return Ok(None);
    }
    Ok(Instant::now().checked_add(seconds("timeout", timeout)?))
}

/// Calls `attempt`, which waits for a short time, until it returns something or the deadline has passed. Checks for signals before each
/// call.
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
    /// Returns the next event, if there is one. Does not release the interpreter's lock.
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

    /// Waits for the next event, for an iteration. Returns `None` if the channel is over and its `End` was already returned.
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
        tags: Option<&Bound<'_, PyAny>>,
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
            let tags = tags.try_iter()?.map(|tag| tag?.extract::<u16>()).collect::<PyResult<Vec<_>>>()?;
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

    /// Returns the next event, or `None` if nothing arrived. Waits at most `timeout` seconds, or without limit if no timeout is given.
    ///
    /// A loss is an event. Raises `ReceiveError` if nothing more can be received.
    #[pyo3(signature = (timeout = None))]
    fn recv(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Py<PyAny>>> {
        if let Some(event) = self.take(|event| object(py, event))? {
            return Ok(Some(event));
        }
        self.wait(py, deadline(timeout)?, |event| object(py, event))
    }

    /// Returns the next event if there is one, else `None`. Never waits, like `recv(0)`. With tags, `None` can also mean that this call has
    /// left out many messages, and that more can follow.
    fn try_recv(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.recv(py, Some(0.0))
    }

    /// Returns up to `most` available messages in one batch. Waits at most `timeout` seconds for the first message. A batch ends early at
    /// an event, or when `batch_bytes` are full. If nothing arrived, the batch is empty. With tags and a `timeout` of 0, an empty batch can
    /// also mean that many messages were left out, and that more can follow.
    #[pyo3(signature = (most = 65_536, timeout = None))]
    pub(crate) fn recv_batch(&self, py: Python<'_>, most: usize, timeout: Option<f64>) -> PyResult<Batch> {
        if most == 0 {
            return Err(PyValueError::new_err("a batch of at most 0 messages would never hold one"));
        }
        let mut records = self.pool.take(self.room);
        let received = self.handle.enter()?.recv_records(most, &mut records);
        let received = received.map_err(|error| error::receiving(&self.channel, &error))?;
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
        let mut reader = self.handle.enter()?;
        if let Some(event) = records.event() {
            reader.end.note(&event);
        }
        // The event after the messages can give the subscriber another clock.
        let clock = records.clock().unwrap_or_else(|| reader.clock());
        Ok(Batch::new(records, &self.pool, clock))
    }

    /// Returns batches like those of `recv_batch`, until the channel is over. With a timeout, returns an empty batch if nothing arrived for
    /// that long.
    #[pyo3(signature = (most = 65_536, timeout = None))]
    fn batches(slf: Py<Self>, most: usize, timeout: Option<f64>) -> PyResult<Batches> {
        deadline(timeout)?;
        Ok(Batches { subscriber: slf, most, timeout, gave_end: AtomicBool::new(false) })
    }

    /// Continues at this sequence, forwards or backwards. Raises `TooOldError` if the message was overwritten, and `NotYetError` if it was
    /// not published yet.
    fn seek(&self, py: Python<'_>, sequence: u64) -> PyResult<()> {
        let mut reader = self.handle.enter()?;
        let Reader { subscriber, end } = &mut *reader;
        py.detach(|| subscriber.seek(sequence)).map_err(|error| error::seeking(&self.channel, &error))?;
        *end = EndWatch::default();
        Ok(())
    }

    /// The descriptor for event loops, which is readable when there is something to receive. `None` if the subscriber does not wait by
    /// "park".
    #[getter]
    fn descriptor(&self) -> PyResult<Option<i32>> {
        self.handle.ask(|this| this.descriptor().map(|descriptor| descriptor.as_raw_fd()))
    }

    /// Prepares a sleep, for event loops other than asyncio. Call this before each sleep. If an event has arrived, returns the event.
    /// Otherwise returns the longest time in seconds to wait until the descriptor is readable.
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

    /// Ends the sleep that `arm` prepared, and empties the descriptor.
    fn disarm(&self) -> PyResult<()> {
        self.handle.enter()?.disarm();
        Ok(())
    }

    /// The sequence of the next message.
    #[getter]
    fn next_sequence(&self) -> PyResult<u64> {
        self.handle.ask(|this| this.next_sequence())
    }

    /// The number of messages that are published and not yet received. It can be up to 64 too low.
    #[getter]
    fn lag(&self) -> PyResult<u64> {
        self.handle.ask(|this| this.lag())
    }

    /// The publisher's epoch, as far as the received events show it.
    #[getter]
    fn epoch(&self) -> PyResult<u64> {
        self.handle.ask(|this| this.epoch())
    }

    /// Whether the channel is over at the moment: the last event was an `End`, nobody publishes, and no message is left.
    ///
    /// Each publisher that closes the channel causes an `End`. A subscriber that begins with the latest message of a closed channel waits
    /// for the next publisher.
    #[getter]
    fn is_over(&self) -> PyResult<bool> {
        self.handle.ask(Reader::is_over)
    }

    /// Whether a daemon knows this subscriber at the moment; `None` if the channel is in files.
    #[getter]
    fn is_registered(&self) -> PyResult<Option<bool>> {
        self.handle.ask(|this| this.is_registered())
    }

    /// Returns the nanoseconds since a message's `time`; `None` if `time` is 0, as for a message without a time.
    fn age_ns(&self, time: u64) -> PyResult<Option<u64>> {
        self.handle.ask(|this| (time != 0).then(|| this.clock().ns_since(time)))
    }

    /// Ends the subscription. The end of a `with` block also does this.
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

    /// Receives like `recv` without a timeout, in asyncio: other tasks run until an event arrives, and no thread waits.
    ///
    /// Open the subscriber with wait="park". With any other strategy, and on channels in files, this call polls every millisecond. A task
    /// that is cancelled has received nothing. `async for event in subscriber` returns events until the channel is over. A second iteration
    /// waits for the next publisher.
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
        if !self.gave_end.load(Ordering::Relaxed) {
            let batch = subscriber.recv_batch(py, self.most, self.timeout)?;
            self.gave_end.store(batch.records().event() == Some(Event::End), Ordering::Relaxed);
            return Ok(Some(batch));
        }
        // After an end, the loop checks every 50 ms or more often whether the channel is over.
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
