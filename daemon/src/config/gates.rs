//! `[[channel.gate]]`: readers for which the publisher of a channel waits, within a limit.

use super::ChannelConfig;
use super::fields::{self, Principal};
use super::rules::Broken;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, Unexpected, Visitor};
use shmcast::{ChannelError, Gate, GateError};
use std::fmt;
use std::time::Duration;

/// The longest wait that a configuration can set.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// The paths of a channel's gates.
const PATHS: [&str; 15] = [
    "gate.0", "gate.1", "gate.2", "gate.3", "gate.4", "gate.5", "gate.6", "gate.7", "gate.8", "gate.9",
    "gate.10", "gate.11", "gate.12", "gate.13", "gate.14",
];

/// A gate of a channel.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GateConfig {
    /// The name of the gate. A reader requests the gate by this name. Names are unique within a channel.
    pub name: String,
    /// Users who may take the gate, if they may also read the channel. Root and the daemon's own user are always permitted.
    #[serde(default)]
    pub users: Vec<Principal>,
    /// The largest lag of the gate's reader. With a larger lag, the publisher waits.
    #[serde(default)]
    pub lag: Lag,
    /// The longest wait of the publisher for one message: 0 to 10 s. The default is 200 us.
    #[serde(default = "wait_default", deserialize_with = "wait")]
    pub wait: Duration,
    /// The action after the wait, if the reader still lags.
    #[serde(default)]
    pub then: Then,
}

/// The largest lag of a gate's reader for which the publisher does not wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lag {
    /// A part of the ring, in percent.
    Percent(u8),
    /// A number of bytes of the ring.
    Bytes(u64),
}

impl Default for Lag {
    fn default() -> Self {
        Self::Percent(50)
    }
}

/// The action after a gate's wait, if the reader still lags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Then {
    /// The gate is dropped, and the message goes out.
    #[default]
    Drop,
    /// The message is not published, and the publisher is told.
    Refuse,
}

fn wait_default() -> Duration {
    Duration::from_micros(200)
}

fn wait<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    match text.strip_suffix("us").map(str::parse) {
        Some(Ok(microseconds)) => Ok(Duration::from_micros(microseconds)),
        Some(Err(_)) => Err(D::Error::custom(format!("{text:?} is no duration: write it like 200us"))),
        None if text == "0" => Ok(Duration::ZERO),
        None => fields::parse_duration(&text).map_err(|why| D::Error::custom(format!("{why}, or 200us"))),
    }
}

impl<'de> Deserialize<'de> for Lag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Lag;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a part of the ring such as \"50%\", or a size such as \"16MiB\"")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Lag, E> {
                match text.strip_suffix('%').map(str::parse) {
                    Some(Ok(percent @ 0..=100)) => Ok(Lag::Percent(percent)),
                    Some(_) => Err(E::invalid_value(Unexpected::Str(text), &self)),
                    None => fields::parse_size(text).map(Lag::Bytes).map_err(E::custom),
                }
            }
        }
        deserializer.deserialize_str(Text)
    }
}

impl GateConfig {
    /// Returns the gate in the client library's form.
    pub fn gate(&self) -> Gate {
        let gate = Gate::new(self.name.clone()).wait(self.wait);
        let gate = match self.lag {
            Lag::Percent(percent) => gate.lag_percent(percent),
            Lag::Bytes(bytes) => gate.lag_bytes(bytes),
        };
        match self.then {
            Then::Drop => gate,
            Then::Refuse => gate.refuse(),
        }
    }
}

impl GateConfig {
    /// Refuses a wait that is too long.
    pub(crate) fn check_wait(&self) -> Result<(), String> {
        match self.wait {
            wait if wait > LONGEST_WAIT => Err(format!("wait = {wait:?}: must be from 0 to 10s")),
            _ => Ok(()),
        }
    }
}

impl ChannelConfig {
    /// Returns the gates in the client library's form.
    pub fn client_gates(&self) -> Vec<Gate> {
        self.gates.iter().map(GateConfig::gate).collect()
    }

    /// Checks the gates of a channel. The sizes of the channel must be valid.
    pub(super) fn broken_gates(&self) -> Broken {
        let mut broken = Vec::new();
        let path = |at: usize| *PATHS.get(at).unwrap_or(&"gate");
        for (at, gate) in self.gates.iter().enumerate() {
            let why = gate.check_wait().err();
            broken.extend(why.map(|why| (path(at), format!("gate {:?}: {why}", gate.name))));
        }
        if let Err(ChannelError::Gate { gate, why, .. }) = self.spec().gate_terms(&self.client_gates()) {
            let field = match why {
                GateError::Lag { .. } => "lag",
                _ => "name",
            };
            // Of two gates with one name, the later one is the mistake.
            let at = self.gates.iter().rposition(|own| own.name == gate).map_or("gate", path);
            broken.push((at, format!("gate {gate:?}: {field}: {why}")));
        }
        let is_there = |name: &&String| self.gates.iter().any(|gate| gate.name == **name);
        let wanted = self.journal.as_ref().and_then(|journal| journal.gate.as_ref());
        if let Some(name) = wanted.filter(|name| !is_there(name)) {
            let what =
                format!("journal.gate = {name:?}: the channel has no such gate: add a [[channel.gate]]");
            broken.push(("journal.gate", what));
        }
        if let Some(why) = wanted.and_then(|name| self.shared_gate(name)) {
            broken.push(("journal.gate", format!("journal.gate = {why}")));
        }
        broken
    }

    /// Refuses the gate `name`, which the daemon itself takes, if the gate has `users`. Each of these users can get a descriptor of the
    /// gate's page, and could shorten the page. The daemon maps the page, so it would die of SIGBUS.
    pub(super) fn shared_gate(&self, name: &str) -> Option<String> {
        let gate = self.gates.iter().find(|gate| gate.name == name)?;
        let why = format!(
            "{name:?}: the daemon takes this gate itself, and the gate's `users` could end the daemon: remove `users` from the gate, and \
             add a [[channel.gate]] for them"
        );
        (!gate.users.is_empty()).then_some(why)
    }
}
