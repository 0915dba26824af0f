//! The properties that a channel's owner gives a gate. From these properties, this module computes values in bytes for a ring of a given
//! size.

use super::name::{GateError, GateName};
use crate::error::ChannelError;
use shmcast_layout::control::GateTerms;
use shmcast_layout::layout::gate::MAX_GATES;
use shmcast_layout::layout::geometry::{AHEAD, Geometry, record_bytes};
use std::time::Duration;

/// A gate of a channel: a reader that the publisher waits for, within a limit.
///
/// By default, the reader's largest lag is half of the ring, and one message waits for at most 200 µs. After that wait, the gate is
/// dropped.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// use shmcast::{Gate, Publisher, Subscriber};
/// use std::time::Duration;
/// let risk = Gate::new("risk").lag_percent(50).wait(Duration::from_micros(200));
/// let mut publisher = Publisher::builder("ticks").dir(dir.path()).capacity(1 << 20).gate(risk).open()?;
/// let mut subscriber = Subscriber::builder("ticks").dir(dir.path()).gate("risk").open()?;
/// publisher.publish(b"the publisher would wait for this reader")?;
/// assert!(subscriber.try_recv()?.is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Gate {
    name: String,
    lag: Lag,
    wait: Duration,
    then: Then,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lag {
    Percent(u8),
    Bytes(u64),
}

/// The action of a publisher when a message has waited for the gate's longest wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Then {
    /// The publisher publishes the message and drops the gate: from now on it does not wait for the gate's reader, and can lap the reader.
    /// The gate is restored when the reader's lag is at most half of the lag that the gate allows.
    #[default]
    Drop,
    /// The publisher refuses the message, and the call returns an error. The publisher never drops the gate. Gaps and sessions can use the
    /// ring beyond the lag that the gate allows. A gap or session is refused if it would overwrite messages that the gate's reader has not
    /// read.
    Refuse,
}

impl Then {
    /// The word that configurations and tools use: `drop` or `refuse`.
    ///
    /// ```
    /// assert_eq!(shmcast::Then::Refuse.name(), "refuse");
    /// ```
    pub const fn name(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Refuse => "refuse",
        }
    }
}

impl Gate {
    /// Makes a gate of this name. A reader requests it by [`SubscriberBuilder::gate`](crate::SubscriberBuilder::gate).
    ///
    /// ```
    /// let gate = shmcast::Gate::new("risk");
    /// ```
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), lag: Lag::Percent(50), wait: Duration::from_micros(200), then: Then::Drop }
    }

    /// Sets the reader's largest lag, as a percentage of the ring. At a larger lag, the publisher waits. The publisher can begin to wait at
    /// a lag that is too small by up to a 64th of the ring or 64 KiB, whichever is more. In a ring below 512 KiB, the lag can be too small
    /// by an eighth of the ring.
    ///
    /// ```
    /// let gate = shmcast::Gate::new("risk").lag_percent(75);
    /// ```
    pub fn lag_percent(mut self, percent: u8) -> Self {
        self.lag = Lag::Percent(percent);
        self
    }

    /// Sets the reader's largest lag, in bytes of the ring. At a larger lag, the publisher waits. Each message takes a multiple of 64
    /// bytes.
    ///
    /// ```
    /// let gate = shmcast::Gate::new("risk").lag_bytes(16 << 20);
    /// ```
    pub fn lag_bytes(mut self, bytes: u64) -> Self {
        self.lag = Lag::Bytes(bytes);
        self
    }

    /// Sets the longest wait of one message. With zero, the publisher never waits. A gate with [`Then::Drop`] then only measures its
    /// reader.
    ///
    /// ```
    /// let gate = shmcast::Gate::new("risk").wait(std::time::Duration::from_millis(5));
    /// ```
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Makes the publisher refuse a message after the wait: the call returns [`PublishError::Full`](crate::PublishError::Full). Without
    /// this method, the publisher drops the gate and publishes the message.
    ///
    /// ```
    /// let gate = shmcast::Gate::new("ledger").refuse();
    /// ```
    pub fn refuse(mut self) -> Self {
        self.then = Then::Refuse;
        self
    }

    /// The gate's name.
    ///
    /// ```
    /// assert_eq!(shmcast::Gate::new("risk").name(), "risk");
    /// ```
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the gate's values for a ring of this size.
    pub(crate) fn settle(&self, geometry: &Geometry) -> Result<Settled, GateError> {
        let name = self.name.parse()?;
        let lag = match self.lag {
            Lag::Percent(percent) => (u128::from(geometry.capacity) * u128::from(percent) / 100) as u64,
            Lag::Bytes(bytes) => bytes,
        };
        let Limits { least, most } = Limits::of(geometry);
        if !(least..=most).contains(&lag) {
            return Err(GateError::Lag { lag, least, most });
        }
        Ok(Settled { name, lag, wait: self.wait, then: self.then })
    }
}

impl Settled {
    /// Returns the gate in the form in which a daemon sends it.
    pub(crate) fn terms(&self) -> GateTerms {
        GateTerms {
            gate: self.name.as_str().to_owned(),
            lag_bytes: self.lag,
            wait_ns: u64::try_from(self.wait.as_nanos()).unwrap_or(u64::MAX),
            refuse: self.then == Then::Refuse,
        }
    }
}

impl From<GateTerms> for Gate {
    fn from(GateTerms { gate, lag_bytes, wait_ns, refuse }: GateTerms) -> Self {
        let then = if refuse { Then::Refuse } else { Then::Drop };
        Self { name: gate, lag: Lag::Bytes(lag_bytes), wait: Duration::from_nanos(wait_ns), then }
    }
}

/// The lags that fit a ring, in bytes.
struct Limits {
    least: u64,
    most: u64,
}

impl Limits {
    /// Returns the limits for this ring.
    ///
    /// - The least lag leaves room for the largest record after the longest pad. So a publisher can always publish if the gate's reader has
    ///   caught up. The frontier (the end of the ring's space that the publisher can use) moves in chunks, so the least lag also has room
    ///   for a chunk.
    /// - The largest lag is smaller than the ring: a new publisher can raise the frontier by a chunk, and by the bytes that it cleans
    ///   ahead, before it reads any gate's page.
    fn of(geometry: &Geometry) -> Self {
        let record = record_bytes(geometry.max_message);
        let least = 2 * record + geometry.chunk + AHEAD;
        Self { least, most: geometry.capacity - 2 * geometry.chunk }
    }
}

/// A gate with its values in a ring of known size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Settled {
    pub(crate) name: GateName,
    pub(crate) lag: u64,
    pub(crate) wait: Duration,
    pub(crate) then: Then,
}

/// Computes the values of all gates of a channel, and refuses gates that do not fit.
pub(crate) fn settle(
    channel: &str,
    gates: &[Gate],
    geometry: &Geometry,
) -> Result<Vec<Settled>, ChannelError> {
    let refused =
        |gate: &Gate, why| ChannelError::Gate { name: channel.to_owned(), gate: gate.name.clone(), why };
    let mut settled: Vec<Settled> = Vec::with_capacity(gates.len());
    for gate in gates {
        let one = gate.settle(geometry).map_err(|why| refused(gate, why))?;
        if settled.iter().any(|other| other.name == one.name) {
            return Err(refused(gate, GateError::Twice));
        }
        if settled.len() == MAX_GATES {
            return Err(refused(gate, GateError::TooMany));
        }
        settled.push(one);
    }
    Ok(settled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use shmcast_layout::layout::geometry::{MAX_CAPACITY, MIN_CAPACITY};

    #[test]
    fn half_of_each_ring_is_a_lag_and_the_limits_are_told() {
        let mut capacity = MIN_CAPACITY;
        while capacity <= MAX_CAPACITY {
            let geometry = Geometry::new(capacity, None).unwrap();
            assert_eq!(Gate::new("g").settle(&geometry).unwrap().lag, capacity / 2);
            let Limits { least, most } = Limits::of(&geometry);
            for (lag, fits) in
                [(least, true), (least - 1, false), (most, true), (most + 1, false), (u64::MAX, false)]
            {
                let settled = Gate::new("g").lag_bytes(lag).settle(&geometry);
                let expected = GateError::Lag { lag, least, most };
                assert_eq!(settled.err(), (!fits).then_some(expected), "{lag} of {capacity}");
            }
            capacity *= 2;
        }
    }

    #[test]
    fn two_gates_of_one_name_and_sixteen_gates_are_refused() {
        let geometry = Geometry::new(1 << 20, None).unwrap();
        let why = |gates: &[Gate]| match settle("t", gates, &geometry) {
            Err(ChannelError::Gate { why, .. }) => Some(why),
            Err(other) => panic!("{other}"),
            Ok(_) => None,
        };
        let many: Vec<Gate> = (0..16).map(|n| Gate::new(format!("g{n}"))).collect();
        assert_eq!(why(&many[..15]), None);
        assert_eq!(why(&many), Some(GateError::TooMany));
        assert_eq!(why(&[Gate::new("a"), Gate::new("b"), Gate::new("a")]), Some(GateError::Twice));
        assert!(matches!(why(&[Gate::new("a b")]), Some(GateError::Name { .. })));
    }
}
