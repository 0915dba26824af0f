//! Decides for how long a bridge tries to get its gate back. If a reader has a gate of a channel, the publisher waits for this reader. A
//! bridge loses its gate when it loses its channel, and needs a gate again in the next channel.

use shmcast::ChannelError;
use shmcast::control::RefusalCode;

use crate::proto::SECOND_NS;
use crate::spec::BridgeSpec;

/// The bridge gives up once its gate has been refused for this time, in nanoseconds. Until then, the next publisher might create the gate,
/// or the system might release the lock of the gate's last reader.
pub const PATIENCE_NS: u64 = 2 * SECOND_NS;

/// Whether this error of opening a channel is the refusal of a gate.
pub fn is_gate_refused(error: &ChannelError) -> bool {
    match error {
        ChannelError::Gate { .. } => true,
        ChannelError::Refused { code, .. } => matches!(code, RefusalCode::UnknownGate | RefusalCode::Denied),
        _ => false,
    }
}

/// Measures how long the gate has been refused to a bridge that attaches again.
#[derive(Debug, Clone, Copy, Default)]
pub struct GateWait {
    since_ns: Option<u64>,
}

impl GateWait {
    /// Notes that an attempt to attach has failed. Only refusals of the gate count: for a channel that does not exist, the bridge can wait
    /// without limit.
    ///
    /// # Errors
    /// The reason of the refusal, once the gate has been refused for two seconds. The bridge's owner then reports the reason, and restarts
    /// the bridge.
    pub fn bear(&mut self, spec: &BridgeSpec, now_ns: u64, error: &ChannelError) -> Result<(), String> {
        if !is_gate_refused(error) || spec.gate().is_none() {
            *self = Self::default();
            return Ok(());
        }
        let since_ns = *self.since_ns.get_or_insert(now_ns);
        match now_ns.saturating_sub(since_ns) < PATIENCE_NS {
            true => Ok(()),
            false => Err(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::SendSpec;
    use shmcast::GateError;

    #[test]
    fn a_gate_that_stays_refused_is_told_and_a_channel_that_is_away_is_waited_for() {
        let send = |gate: Option<&str>| {
            let gate = gate.map(str::to_owned);
            BridgeSpec { send: Some(SendSpec { gate, ..SendSpec::default() }), ..BridgeSpec::new("t") }
        };
        let taken = || {
            let (name, gate, why) = ("t".to_owned(), "wan".to_owned(), GateError::Taken { pid: 7 });
            ChannelError::Gate { name, gate, why }
        };
        let gone = ChannelError::NoBoard { name: "t".to_owned() };
        let gated = send(Some("wan"));
        let mut wait = GateWait::default();
        assert_eq!(wait.bear(&gated, 5, &taken()), Ok(()));
        assert_eq!(wait.bear(&gated, PATIENCE_NS, &gone), Ok(()));
        assert_eq!(wait.bear(&gated, PATIENCE_NS + 5, &taken()), Ok(()), "the wait begins again");
        assert_eq!(wait.bear(&gated, 2 * PATIENCE_NS + 4, &taken()), Ok(()));
        let told = wait.bear(&gated, 2 * PATIENCE_NS + 5, &taken()).unwrap_err();
        assert!(told.contains("pid 7"), "{told}");
        let mut wait = GateWait::default();
        for now_ns in [5, 3 * PATIENCE_NS] {
            assert_eq!(wait.bear(&send(None), now_ns, &taken()), Ok(()), "it is not asked for");
        }
    }
}
