//! Messages and events as immutable Python objects.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use shmcast::Event;

/// A message. It has its own copy of the payload.
///
/// - `payload`: a `bytes` object
/// - `sequence`: the number of the message in the channel, from 1 on, the same on every host
/// - `tag`, `key`: the marks that the publisher set
/// - `time`: the publish time for `Subscriber.age_ns`, the low 48 bits of the channel's clock; 0 for a message without a time
/// - `conflated`: `None` for a message that came in the order of the stream. For a message of the channel's board, the number of messages
///   of the same key that were skipped.
#[pyclass(frozen, module = "shmcast", freelist = 256)]
pub(crate) struct Message {
    #[pyo3(get)]
    payload: Py<PyBytes>,
    #[pyo3(get)]
    sequence: u64,
    #[pyo3(get)]
    time: u64,
    #[pyo3(get)]
    tag: u16,
    #[pyo3(get)]
    key: bool,
    #[pyo3(get)]
    conflated: Option<u64>,
}

impl Message {
    #[inline]
    pub(crate) fn of(py: Python<'_>, message: &shmcast::Message<'_>) -> Self {
        let shmcast::Message { payload, sequence, tag, key, time, conflated } = *message;
        Self { payload: PyBytes::new(py, payload).unbind(), sequence, time, tag, key, conflated }
    }
}

#[pymethods]
impl Message {
    #[classattr]
    #[allow(non_upper_case_globals, reason = "Python's name for it")]
    const __match_args__: (&'static str, &'static str, &'static str, &'static str, &'static str) =
        ("payload", "sequence", "tag", "key", "time");

    #[new]
    #[pyo3(signature = (payload, sequence, tag = 0, key = false, time = 0, conflated = None))]
    fn new(
        payload: Py<PyBytes>,
        sequence: u64,
        tag: u16,
        key: bool,
        time: u64,
        conflated: Option<u64>,
    ) -> Self {
        Self { payload, sequence, time, tag, key, conflated }
    }

    /// The arguments with which `pickle` and `copy` make the message again.
    fn __getnewargs__(&self, py: Python<'_>) -> (Py<PyBytes>, u64, u16, bool, u64, Option<u64>) {
        (self.payload.clone_ref(py), self.sequence, self.tag, self.key, self.time, self.conflated)
    }

    fn __eq__(&self, py: Python<'_>, other: &Self) -> bool {
        let all = |m: &Self| (m.sequence, m.time, m.tag, m.key, m.conflated);
        all(self) == all(other) && self.payload.as_bytes(py) == other.payload.as_bytes(py)
    }

    fn __hash__(&self) -> u64 {
        self.sequence
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        self.payload.as_bytes(py).len()
    }

    fn __bool__(&self) -> bool {
        true // also with a payload of no bytes
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let payload = self.payload.bind(py).repr()?;
        let key = if self.key { "True" } else { "False" };
        let Self { sequence, time, tag, .. } = self;
        let conflated = self.conflated.map_or(String::new(), |left_out| format!(", conflated={left_out}"));
        let fields = format!("payload={payload}, sequence={sequence}, tag={tag}, key={key}, time={time}");
        Ok(format!("Message({fields}{conflated})"))
    }
}

/// The messages from `first` to `last` (included) are missing: they never reached this host, or the channel's journal lacks them. If the
/// journal lacks them, `cause` is the reason: "overrun", "unrecorded", "torn", "damaged", "cut", or "reserve". For "reserve", it is unknown
/// which of the sequences had a message. Usually none had.
#[pyclass(frozen, eq, hash, module = "shmcast")]
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct Gap {
    #[pyo3(get)]
    first: u64,
    #[pyo3(get)]
    last: u64,
    #[pyo3(get)]
    cause: Option<String>,
}

#[pymethods]
impl Gap {
    #[classattr]
    #[allow(non_upper_case_globals, reason = "Python's name for it")]
    const __match_args__: (&'static str, &'static str) = ("first", "last");

    #[new]
    #[pyo3(signature = (first, last, cause = None))]
    fn new(first: u64, last: u64, cause: Option<String>) -> Self {
        Self { first, last, cause }
    }

    /// The arguments with which `pickle` and `copy` make the event again.
    fn __getnewargs__(&self) -> (u64, u64, Option<String>) {
        (self.first, self.last, self.cause.clone())
    }

    fn __repr__(&self) -> String {
        let cause = self.cause.as_ref().map_or(String::new(), |cause| format!(", cause='{cause}'"));
        format!("Gap(first={}, last={}{cause})", self.first, self.last)
    }
}

/// Makes the classes of the other events that are no messages, each with its fields.
macro_rules! events {
    ($($(#[doc = $doc:literal])* $name:ident ( $($field:ident : $type:ty),* ) $names:ty = $args:expr;)*) => {$(
        $(#[doc = $doc])*
        #[pyclass(frozen, eq, hash, module = "shmcast")]
        #[derive(PartialEq, Eq, Hash)]
        pub(crate) struct $name {
            $(#[pyo3(get)] $field: $type,)*
        }

        #[pymethods]
        impl $name {
            #[classattr]
            #[allow(non_upper_case_globals, reason = "Python's name for it")]
            const __match_args__: $names = $args;

            #[new]
            fn new($($field: $type),*) -> Self {
                Self { $($field),* }
            }

            /// The arguments with which `pickle` and `copy` make the event again.
            fn __getnewargs__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
                let fields: &[u64] = &[$(self.$field),*];
                PyTuple::new(py, fields)
            }

            fn __repr__(&self) -> String {
                let fields: &[String] = &[$(format!("{}={:?}", stringify!($field), self.$field)),*];
                format!("{}({})", stringify!($name), fields.join(", "))
            }
        }
    )*};
}

events! {
    /// The publisher overtook this reader: exactly `missed` messages are lost, and the next message has the sequence `resumed_at`.
    Lapped(missed: u64, resumed_at: u64) (&'static str, &'static str) = ("missed", "resumed_at");
    /// The reader has read the channel's journal or board, and has caught up. The next message, `sequence`, comes from the ring.
    Live(sequence: u64) (&'static str,) = ("sequence",);
    /// Another publisher took over, with a higher `epoch`. The sequences continue.
    NewEpoch(epoch: u64) (&'static str,) = ("epoch",);
    /// The publisher of this `epoch` is gone and has not closed the channel. Only subscribers with `watch_publisher=True` get this event.
    PublisherGone(epoch: u64) (&'static str,) = ("epoch",);
    /// The channel restarted: its sequences count from 1 again, or continue after the journal of another stream. The messages that this
    /// reader has not received are lost.
    Restarted() () = ();
    /// The publisher closed the channel. Receiving again waits for the next publisher.
    End() () = ();
}

/// The publisher at the other end of a bridge began a new session. `session` is the session's identity in ten bytes. The sequences
/// continue.
#[pyclass(frozen, eq, hash, module = "shmcast")]
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct NewSession {
    session: [u8; 10],
}

#[pymethods]
impl NewSession {
    #[classattr]
    #[allow(non_upper_case_globals, reason = "Python's name for it")]
    const __match_args__: (&'static str,) = ("session",);

    #[new]
    fn new(session: [u8; 10]) -> Self {
        Self { session }
    }

    /// The arguments with which `pickle` and `copy` make the event again.
    fn __getnewargs__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyBytes>,) {
        (self.session(py),)
    }

    #[getter]
    fn session<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.session)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("NewSession(session={})", self.session(py).repr()?))
    }
}

/// Makes the Python object of an event.
#[inline]
pub(crate) fn object(py: Python<'_>, event: &Event<'_>) -> PyResult<Py<PyAny>> {
    match event {
        Event::Message(message) => Ok(Py::new(py, Message::of(py, message))?.into_any()),
        other => rare(py, other),
    }
}

#[cold]
fn rare(py: Python<'_>, event: &Event<'_>) -> PyResult<Py<PyAny>> {
    Ok(match *event {
        Event::Message(message) => Py::new(py, Message::of(py, &message))?.into_any(),
        Event::Lapped(shmcast::Lapped { missed, resumed_at }) => {
            Py::new(py, Lapped { missed, resumed_at })?.into_any()
        }
        Event::Gap { from, to } => Py::new(py, Gap { first: from, last: to, cause: None })?.into_any(),
        Event::Lost { from, to, cause } => {
            Py::new(py, Gap { first: from, last: to, cause: Some(cause.name().to_owned()) })?.into_any()
        }
        Event::Live { sequence } => Py::new(py, Live { sequence })?.into_any(),
        Event::NewEpoch { epoch } => Py::new(py, NewEpoch { epoch })?.into_any(),
        Event::PublisherGone { epoch } => Py::new(py, PublisherGone { epoch })?.into_any(),
        Event::NewSession { session } => Py::new(py, NewSession { session })?.into_any(),
        Event::Restarted => Py::new(py, Restarted {})?.into_any(),
        Event::End => Py::new(py, End {})?.into_any(),
        _ => {
            let todo = format!("this module does not know the event {event:?}: install a newer one");
            return Err(crate::error::misuse("other", &todo));
        }
    })
}
