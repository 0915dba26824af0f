//! Waits for several subscribers at the same time.

use crate::error;
use crate::event::object;
use crate::handle::{Handle, InUse};
use crate::options::{self, SLICE};
use crate::subscriber::{Reader, Subscriber, deadline, wait_in_slices};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use shmcast::{EndWatch, SelectError, Turns};
use std::time::Instant;

/// The return value of `wait`.
type Selected = (Py<Subscriber>, Py<PyAny>);

/// Waits for several channels at the same time: `for subscriber, event in shmcast.Select([quotes, trades])`, until all of the channels are
/// over.
///
/// The subscribers take turns: after an event of one subscriber, the select polls all other subscribers before it polls this subscriber
/// again. The events of one subscriber come in their order. There is no order between the events of different subscribers.
///
/// Between calls of the select, the program can use and close the subscribers as usual. If a subscriber is closed, the select raises a
/// `MisuseError` for it.
///
/// - `wait`, `pause`: how the select waits while nothing arrives, as for `Subscriber`. The strategies of the subscribers have no effect.
///   With "park", the daemon only wakes subscribers that were opened with wait="park". The select polls the others every millisecond.
///
/// Only one thread at a time can use a select and its subscribers. Another thread gets a `MisuseError`. Other threads of Python run during
/// a wait. Ctrl-C or an exception of a signal handler ends a wait within about 50 ms.
#[pyclass(frozen, weakref, module = "shmcast")]
pub(crate) struct Select {
    subscribers: Vec<Py<Subscriber>>,
    turns: Handle<Turns>,
}

/// The subscribers while this thread uses them.
type AllInUse<'a> = Vec<InUse<'a, Reader>>;

fn parts(reader: &mut Reader) -> (&mut shmcast::Subscriber, &mut EndWatch) {
    let Reader { subscriber, end } = reader;
    (subscriber, end)
}

impl Select {
    fn enter(&self) -> PyResult<AllInUse<'_>> {
        self.subscribers.iter().map(|subscriber| subscriber.get().handle.enter()).collect()
    }

    /// Returns the next event that arrives before `until`. If `until` is `None`, does not wait.
    fn take(&self, py: Python<'_>, until: Option<Instant>) -> PyResult<Option<Selected>> {
        let mut turns = self.turns.enter()?;
        let mut all = self.enter()?;
        let (mut lent, mut ends): (Vec<_>, Vec<_>) = all.iter_mut().map(|reader| parts(reader)).unzip();
        let turns = &mut *turns;
        let found = match until {
            None => turns.try_recv(&mut lent[..]),
            Some(until) => py.detach(|| turns.recv_deadline(&mut lent[..], until)),
        };
        match found {
            Ok(None) => Ok(None),
            Ok(Some((index, event))) => {
                ends[index].note(&event);
                Ok(Some((self.subscribers[index].clone_ref(py), object(py, &event)?)))
            }
            Err(SelectError { index, source }) => {
                Err(error::receiving(&self.subscribers[index].get().channel, &source))
            }
        }
    }

    /// Whether all channels are over at the moment.
    fn is_over(&self) -> PyResult<bool> {
        Ok(self.enter()?.iter().all(|reader| reader.is_over()))
    }
}

#[pymethods]
impl Select {
    #[new]
    #[pyo3(signature = (subscribers, *, wait = "yield", pause = None))]
    fn new(subscribers: &Bound<'_, PyAny>, wait: &str, pause: Option<f64>) -> PyResult<Self> {
        let mut turns = Turns::new(options::wait(wait, pause)?);
        let mut found: Vec<Py<Subscriber>> = Vec::new();
        for subscriber in subscribers.try_iter()? {
            let subscriber = subscriber?;
            let subscriber = subscriber.cast::<Subscriber>().map_err(|_| {
                PyTypeError::new_err(format!("a select is of subscribers, and {subscriber} is none"))
            })?;
            if found.iter().any(|other| other.is(subscriber)) {
                let given = subscriber.get().channel.clone();
                return Err(PyValueError::new_err(format!(
                    "the subscriber of {given:?} is given twice: give each once"
                )));
            }
            let reader = subscriber.get().handle.enter()?;
            turns.add(&reader.subscriber).map_err(|error| error::system("wait for a subscriber", &error))?;
            drop(reader);
            found.push(subscriber.clone().unbind());
        }
        if found.is_empty() {
            return Err(PyValueError::new_err("a select without subscribers would wait for ever: give some"));
        }
        Ok(Self { subscribers: found, turns: Handle::new("select", turns) })
    }

    fn __repr__(&self) -> String {
        let names: Vec<String> =
            self.subscribers.iter().map(|subscriber| format!("{:?}", subscriber.get().channel)).collect();
        format!("<shmcast.Select of {}>", names.join(", "))
    }

    /// The subscribers, in the order in which they were given.
    #[getter]
    fn subscribers(&self, py: Python<'_>) -> Vec<Py<Subscriber>> {
        self.subscribers.iter().map(|subscriber| subscriber.clone_ref(py)).collect()
    }

    /// Returns the next event of any subscriber, as `(subscriber, event)`, or `None` if nothing arrived. Waits at most `timeout` seconds,
    /// or without limit if no timeout is given. With a timeout of 0, never waits.
    ///
    /// A loss or an end is an event. If a subscriber can receive nothing more, the call raises a `ReceiveError` each time this subscriber
    /// has its turn. The error names the channel, and the next call continues with the other subscribers.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Selected>> {
        let deadline = deadline(timeout)?;
        if let Some(found) = self.take(py, None)? {
            return Ok(Some(found));
        }
        if timeout == Some(0.0) {
            return Ok(None);
        }
        wait_in_slices(py, deadline, |until| self.take(py, Some(until)))
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Returns the next event. Each end of a channel is an event, including the last one. When all channels are over, the iteration stops.
    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Selected>> {
        if let Some(found) = self.take(py, None)? {
            return Ok(Some(found));
        }
        loop {
            if self.is_over()? {
                return Ok(None);
            }
            let slice = Some(Instant::now() + SLICE);
            if let Some(found) = wait_in_slices(py, slice, |until| self.take(py, Some(until)))? {
                return Ok(Some(found));
            }
        }
    }
}
