//! The arguments of `Publisher(...)` and `Subscriber(...)`, converted to the library's options.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBool;
use shmcast::{ChannelError, Client, Preparation, Resume, Start, SubscriberBuilder, Wait};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The longest wait between two checks for signals.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// The place where a channel is searched for.
pub(crate) enum Place {
    Default,
    Directory(PathBuf),
    Daemon(Client),
}

/// Returns the place that `dir` or `socket` names.
///
/// # Errors
/// If both a directory and a socket are given, or if no daemon answers.
pub(crate) fn place(py: Python<'_>, dir: Option<PathBuf>, socket: Option<PathBuf>) -> PyResult<Place> {
    let daemon = |client: Result<Client, ChannelError>| {
        client.map(Place::Daemon).map_err(|error| crate::error::opening(&error))
    };
    match (dir, socket) {
        (None, None) => Ok(Place::Default),
        (Some(dir), None) => Ok(Place::Directory(dir)),
        (None, Some(socket)) if socket.as_os_str().is_empty() => daemon(py.detach(Client::connect)),
        (None, Some(socket)) => daemon(py.detach(|| Client::at(socket))),
        (Some(_), Some(_)) => Err(PyValueError::new_err(
            "a channel lies in a directory or belongs to a daemon: give dir or socket, not both",
        )),
    }
}

pub(crate) fn seconds(what: &str, seconds: f64) -> PyResult<Duration> {
    let finite = Duration::try_from_secs_f64(seconds);
    finite.map_err(|_| PyValueError::new_err(format!("{what} of {seconds} s: give seconds, 0 or more")))
}

/// Opens a channel with `open`. While there is no channel, `open` calls its argument, and tries again if the result is true. The result is
/// false after `patience` seconds, or after an error of a Python signal handler.
pub(crate) fn opening<T: Send>(
    py: Python<'_>,
    patience: Option<f64>,
    open: impl FnOnce(&mut (dyn FnMut() -> bool + Send)) -> Result<T, ChannelError> + Send,
) -> PyResult<T> {
    let patience = patience.map_or(Ok(Duration::ZERO), |patience| seconds("wait_for_channel", patience))?;
    let start = Instant::now();
    let (mut looked, mut signals) = (start, Ok(()));
    let opened = py.detach(|| {
        open(&mut || {
            if looked.elapsed() >= SLICE {
                looked = Instant::now();
                signals = Python::attach(|py| py.check_signals());
            }
            signals.is_ok() && start.elapsed() < patience
        })
    });
    signals?;
    opened.map_err(|error| crate::error::opening(&error))
}

pub(crate) fn start(start: &Bound<'_, PyAny>) -> PyResult<Start> {
    if let Ok(sequence) = start.extract::<u64>() {
        return Ok(Start::Sequence(sequence));
    }
    match start.extract::<&str>() {
        Ok("latest") => Ok(Start::Latest),
        Ok("oldest") => Ok(Start::Oldest),
        Ok("board") => Ok(Start::Board),
        _ => Err(PyValueError::new_err(format!(
            "start={}: give \"latest\", \"oldest\", \"board\" or a sequence",
            start.repr()?
        ))),
    }
}

pub(crate) fn wait(wait: &str, pause: Option<f64>) -> PyResult<Wait> {
    let known = match wait {
        "yield" => Wait::Yield,
        "spin" => Wait::Spin,
        "burst" => Wait::Burst,
        "spin-then-yield" => Wait::SpinThenYield(10_000),
        "backoff" => Wait::Backoff,
        "park" => Wait::Park,
        "sleep" => return Ok(Wait::Sleep(seconds("pause", pause.unwrap_or(0.001))?)),
        other => {
            return Err(PyValueError::new_err(format!(
                "wait={other:?}: give \"yield\", \"spin\", \"burst\", \"spin-then-yield\", \"backoff\", \"sleep\" or \"park\""
            )));
        }
    };
    if pause.is_some() {
        return Err(PyValueError::new_err(format!("pause is for wait=\"sleep\", not for {wait:?}")));
    }
    Ok(known)
}

pub(crate) fn resume(resume: &str) -> PyResult<Resume> {
    match resume {
        "oldest" => Ok(Resume::Oldest),
        "latest" => Ok(Resume::Latest),
        "key" => Ok(Resume::Key),
        other => {
            Err(PyValueError::new_err(format!("resume={other:?}: give \"oldest\", \"latest\" or \"key\"")))
        }
    }
}

/// Sets the option `conflate`: `True`, `False`, or a number of bytes. With a number, the reader skips messages only if its lag is more
/// than this number of bytes.
pub(crate) fn conflation(
    builder: SubscriberBuilder,
    conflate: &Bound<'_, PyAny>,
) -> PyResult<SubscriberBuilder> {
    if let Ok(wanted) = conflate.cast::<PyBool>() {
        return Ok(if wanted.is_true() { builder.conflate() } else { builder });
    }
    let bytes = conflate.extract::<u64>();
    bytes.map(|bytes| builder.conflate_behind(bytes)).map_err(|_| {
        let given = conflate.repr().map_or_else(|_| String::new(), |repr| repr.to_string());
        PyValueError::new_err(format!("conflate={given}: give True, or a number of bytes"))
    })
}

/// Converts the argument `prepare`.
///
/// # Errors
/// `TypeError` if `steps` is a single text, because its letters would count as steps.
pub(crate) fn preparation(steps: &Bound<'_, PyAny>) -> PyResult<Preparation> {
    if steps.extract::<&str>().is_ok() {
        return Err(PyTypeError::new_err(format!("prepare={}: give a list of steps", steps.repr()?)));
    }
    let mut preparation = Preparation::NONE;
    for step in steps.try_iter()? {
        match step?.extract::<String>()?.as_str() {
            "prefault" => preparation.prefault = true,
            "huge-pages" => preparation.huge_pages = true,
            "lock" => preparation.lock = true,
            other => {
                return Err(PyValueError::new_err(format!(
                    "prepare: no step {other:?}: there are \"prefault\", \"huge-pages\" and \"lock\""
                )));
            }
        }
    }
    Ok(preparation)
}
