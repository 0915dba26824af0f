//! Gates: readers for which a publisher waits, up to a time limit.

use crate::options::seconds;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A reader for which the publisher waits, up to a time limit: `Publisher(..., gates=[Gate("risk")])` and `Subscriber(..., gate="risk")`.
///
/// - `lag`: how many bytes of the ring the reader can be behind before the publisher waits. `lag_percent` sets this limit as a percentage
///   of the ring; 50 by default.
/// - `wait`: the longest wait of one message in seconds; 0.0002 by default. With 0, no message waits.
/// - `refuse`: if true, the message is not published after the wait, and `publish` raises a `FullError`. If false, the message is published
///   and the gate is dropped. The publisher can then overtake the reader. The publisher waits for the reader again when the reader is at
///   most half of `lag` behind.
#[pyclass(frozen, module = "shmcast")]
pub(crate) struct Gate(pub(crate) shmcast::Gate);

#[pymethods]
impl Gate {
    #[new]
    #[pyo3(signature = (name, *, lag = None, lag_percent = None, wait = None, refuse = false))]
    fn new(
        name: &str,
        lag: Option<u64>,
        lag_percent: Option<u8>,
        wait: Option<f64>,
        refuse: bool,
    ) -> PyResult<Self> {
        let mut gate = shmcast::Gate::new(name);
        gate = match (lag, lag_percent) {
            (None, None) => gate,
            (Some(bytes), None) => gate.lag_bytes(bytes),
            (None, Some(percent)) => gate.lag_percent(percent),
            (Some(_), Some(_)) => return Err(PyValueError::new_err("give lag or lag_percent, not both")),
        };
        if let Some(wait) = wait {
            gate = gate.wait(seconds("wait", wait)?);
        }
        Ok(Self(if refuse { gate.refuse() } else { gate }))
    }

    /// The gate's name.
    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    fn __repr__(&self) -> String {
        format!("Gate({:?})", self.0.name())
    }
}

/// The state and the counts of a gate, as the publisher sees them.
///
/// - `state`: "absent", "joining", "in-force" or "dropped"
/// - `behind_bytes`: how many bytes the gate's reader is behind; `None` if there is no reader
/// - `pid`: the process id that the reader states; `None` if there is no reader
/// - `held`: the number of messages that waited for the gate
/// - `longest`, `total`: the longest wait of one message, and the sum of all waits, in seconds
/// - `dropped`: how often the gate was dropped
/// - `refused`: the number of messages that were refused after a wait
/// - `turned_away`: the number of messages that `try_publish` refused
#[pyclass(frozen, get_all, module = "shmcast")]
pub(crate) struct GateStatus {
    name: String,
    state: &'static str,
    lag_bytes: u64,
    behind_bytes: Option<u64>,
    pid: Option<u64>,
    held: u64,
    longest: f64,
    total: f64,
    dropped: u64,
    refused: u64,
    turned_away: u64,
}

impl From<shmcast::GateStatus> for GateStatus {
    fn from(gate: shmcast::GateStatus) -> Self {
        Self {
            name: gate.name.as_str().to_owned(),
            state: gate.state.name(),
            lag_bytes: gate.lag_bytes,
            behind_bytes: gate.behind_bytes,
            pid: gate.pid,
            held: gate.held,
            longest: gate.longest.as_secs_f64(),
            total: gate.total.as_secs_f64(),
            dropped: gate.dropped,
            refused: gate.refused,
            turned_away: gate.turned_away,
        }
    }
}

#[pymethods]
impl GateStatus {
    fn __repr__(&self) -> String {
        let behind = self.behind_bytes.map_or_else(|| "None".to_owned(), |bytes| bytes.to_string());
        let Self { name, state, held, dropped, .. } = self;
        format!("<GateStatus of {name:?}: {state}, behind_bytes={behind}, held={held}, dropped={dropped}>")
    }
}
