//! The receiving end.

use crate::batch::{Batch, Batches, Pool, failure};
use crate::error;
use crate::event::object;
use crate::handle::Handle;
use crate::options::{self, Place, place, seconds};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use shmcast::{Armed, ChannelError, Event, RecvError, Start, SubscriberBuilder};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// How long a wait lasts at most between two looks at signals.
const SLICE: Duration = Duration::from_millis(50);
/// Bytes of a batch: it stays in a core's second cache until it has been looked at.
const BATCH_BYTES: usize = 256 << 10;
const MOST: usize = 65_536;

/// Receives a channel's messages, in order, each once.
#[pyclass(frozen, weakref, module = "shmcast")]
pub(crate) struct Subscriber {
    handle: Handle<shmcast::Subscriber>,
    channel: String,
    pool: Arc<Pool>,
    room: usize,
}

/// The deadline of a wait; `None` if it has none.
fn deadline(timeout: Option<f64>) -> PyResult<Option<Instant>> {
    let Some(timeout) = timeout else { return Ok(None) };
    if timeout == f64::INFINITY {
        return Ok(None);
    }
    Ok(Instant::now().checked_add(seconds("timeout", timeout)?))
}

/// Calls `attempt` with one slice of the wait after the other until it returns something, detached from the interpreter. Looks at
/// signals in between.
fn wait_in_slices<R>(
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

/// Opens the channel as the builder says, and waits for it for at most `patience`.
fn open(
    py: Python<'_>,
    mut builder: SubscriberBuilder,
    start: Start,
    patience: Option<f64>,
) -> PyResult<shmcast::Subscriber> {
    let patience = patience.map(|patience| seconds("wait_for_channel", patience)).transpose()?;
    let deadline = patience.and_then(|patience| Instant::now().checked_add(patience));
    let has_end = patience.is_none() || deadline.is_some();
    loop {
        let left = deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
        let slice = if patience.is_some() { left.min(SLICE) } else { Duration::ZERO };
        let this = builder.clone().wait_for_channel(slice);
        match py.detach(|| this.open()) {
            Err(error) if is_absent(&error) && (!has_end || slice < left && patience.is_some()) => {
                // All messages of a channel that appears now are published after this call began.
                if start == Start::Latest {
                    builder = builder.start(Start::Oldest);
                }
                py.check_signals()?;
            }
            opened => return opened.map_err(|error| error::opening(&error)),
        }
    }
}

fn is_absent(error: &ChannelError) -> bool {
    error.is_unknown_channel()
}

impl Subscriber {
    /// The next event if there is one. Stays attached to the interpreter.
    #[inline]
    fn take<R>(&self, of: impl FnOnce(&Event<'_>) -> PyResult<R>) -> PyResult<Option<R>> {
        let mut subscriber = self.handle.enter()?;
        match subscriber.try_recv() {
            Ok(Some(event)) => of(&event).map(Some),
            Ok(None) => Ok(None),
            Err(error) => Err(failure(&subscriber, &error)),
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
            let mut subscriber = self.handle.enter()?;
            let this = &mut *subscriber;
            match py.detach(|| this.recv_deadline(until)) {
                Ok(Some(event)) => of(&event).map(Some),
                Ok(None) => Ok(None),
                Err(error) => Err(failure(&subscriber, &error)),
            }
        })
    }

    /// `None` only if it is closed or in use.
    fn ask<R>(&self, what: impl FnOnce(&shmcast::Subscriber) -> R) -> PyResult<R> {
        Ok(what(&*self.handle.enter()?))
    }
}

#[pymethods]
impl Subscriber {
    #[new]
    #[pyo3(signature = (channel, *, dir = None, socket = None, start = None, wait = "yield", pause = None,
        resume = "oldest", tags = None, wait_for_channel = None, schema = None, watch_publisher = false,
        record_latency = false, hidden = false, longest_nap = None, prepare = None, batch_bytes = BATCH_BYTES))]
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
        if batch_bytes > 1 << 30 {
            return Err(PyValueError::new_err(format!("batch_bytes={batch_bytes}: give at most 1 GiB")));
        }
        let subscriber = open(py, builder, start, wait_for_channel)?;
        let handle = Handle::new("subscriber", subscriber);
        Ok(Self { handle, channel, pool: Arc::default(), room: batch_bytes })
    }

    fn __repr__(&self) -> String {
        format!("<shmcast.Subscriber of {:?}>", self.channel)
    }

    #[getter]
    fn channel(&self) -> &str {
        &self.channel
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[inline]
    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let object = |event: &Event<'_>| match event {
            Event::End => Ok(None),
            event => object(py, event).map(Some),
        };
        Ok(match self.take(object)? {
            Some(event) => event,
            None => self.wait(py, None, object)?.flatten(),
        })
    }

    #[pyo3(signature = (timeout = None))]
    fn recv(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Py<PyAny>>> {
        if let Some(event) = self.take(|event| object(py, event))? {
            return Ok(Some(event));
        }
        self.wait(py, deadline(timeout)?, |event| object(py, event))
    }

    fn try_recv(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.take(|event| object(py, event))
    }

    #[pyo3(signature = (most = MOST, timeout = None))]
    pub(crate) fn recv_batch(&self, py: Python<'_>, most: usize, timeout: Option<f64>) -> PyResult<Batch> {
        if most == 0 {
            return Err(PyValueError::new_err("a batch of at most 0 messages would never hold one"));
        }
        let mut records = self.pool.take(self.room);
        let (clock, received) = {
            let mut subscriber = self.handle.enter()?;
            let received = subscriber.recv_records(most, &mut records);
            (subscriber.clock(), received.map_err(|error| failure(&subscriber, &error))?)
        };
        if received == 0 {
            wait_in_slices(py, deadline(timeout)?, |until| {
                let mut subscriber = self.handle.enter()?;
                let (this, records) = (&mut *subscriber, &mut records);
                match py.detach(|| this.recv_records_deadline(most, records, until)) {
                    Ok(received) => Ok((received > 0).then_some(())),
                    Err(error) => Err(failure(&subscriber, &error)),
                }
            })?;
        }
        Ok(Batch::new(records, &self.pool, clock))
    }

    #[pyo3(signature = (most = MOST, timeout = None))]
    fn batches(slf: Py<Self>, most: usize, timeout: Option<f64>) -> PyResult<Batches> {
        deadline(timeout)?;
        Ok(Batches { subscriber: slf, most, timeout, is_over: AtomicBool::new(false) })
    }

    fn seek(&self, sequence: u64) -> PyResult<()> {
        let sought = self.handle.enter()?.seek(sequence);
        sought.map_err(|error| error::seeking(&self.channel, &error))
    }

    /// The descriptor for event loops; `None` unless it parks.
    #[getter]
    fn descriptor(&self) -> PyResult<Option<i32>> {
        self.ask(|this| this.descriptor().map(|descriptor| descriptor.as_raw_fd()))
    }

    fn arm(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let mut subscriber = self.handle.enter()?;
        let armed: Result<Armed<'_>, RecvError> = subscriber.arm();
        match armed {
            Ok(Armed::Event(event)) => object(py, &event),
            Ok(Armed::Wait(limit)) => Ok(limit.as_secs_f64().into_pyobject(py)?.into_any().unbind()),
            Err(error) => Err(failure(&subscriber, &error)),
        }
    }

    fn disarm(&self) -> PyResult<()> {
        self.handle.enter()?.disarm();
        Ok(())
    }

    #[getter]
    fn next_sequence(&self) -> PyResult<u64> {
        self.ask(shmcast::Subscriber::next_sequence)
    }

    #[getter]
    fn lag(&self) -> PyResult<u64> {
        self.ask(shmcast::Subscriber::lag)
    }

    #[getter]
    fn epoch(&self) -> PyResult<u64> {
        self.ask(shmcast::Subscriber::epoch)
    }

    #[getter]
    fn is_registered(&self) -> PyResult<Option<bool>> {
        self.ask(shmcast::Subscriber::is_registered)
    }

    fn age_ns(&self, time: u64) -> PyResult<Option<u64>> {
        self.ask(|this| (time != 0).then(|| this.clock().ns_since(time)))
    }

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
