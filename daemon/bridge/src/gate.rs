//! Decides for how long a bridge tries to attach again to its channel. If a reader has a gate of a channel, the publisher waits for this
//! reader. A bridge loses its gate when it loses its channel, and needs a gate again in the next channel.

use shmcast::ChannelError;
use shmcast::control::RefusalCode;

use crate::proto::SECOND_NS;
use crate::spec::BridgeSpec;
use crate::status::Life;

/// The bridge gives up once its gate has been refused for this time, in nanoseconds. Until then, the next publisher might create the gate,
/// or the system might release the lock of the gate's last reader. Any other error is shown after this time.
pub const PATIENCE_NS: u64 = 2 * SECOND_NS;

/// Whether this error of opening a channel is the refusal of a gate.
pub fn is_gate_refused(error: &ChannelError) -> bool {
    match error {
        ChannelError::Gate { .. } => true,
        ChannelError::Refused { code, .. } => matches!(code, RefusalCode::UnknownGate | RefusalCode::Denied),
        _ => false,
    }
}

/// Measures how long a bridge has tried in vain to attach again.
#[derive(Debug, Clone, Copy, Default)]
pub struct AttachWait {
    /// The time of the first attempt that failed, and whether the bridge waits after its error without limit.
    since: Option<(u64, bool)>,
}

impl AttachWait {
    /// Notes that an attempt to attach has failed. Only a refusal of the bridge's gate ends the bridge. After any other error the bridge
    /// waits without limit, and after two seconds `life` gives the error: the channel does not exist, the daemon does not answer, or this
    /// user is not allowed to read the channel.
    ///
    /// # Errors
    /// The refusal, once the gate has been refused for two seconds. The bridge's owner then reports the error. A daemon restarts the bridge.
    pub fn bear(
        &mut self,
        spec: &BridgeSpec,
        life: &Life,
        now_ns: u64,
        error: &ChannelError,
    ) -> Result<(), String> {
        let waits = !is_gate_refused(error) || spec.gate().is_none();
        let since_ns =
            self.since.filter(|(_, waited)| *waited == waits).map_or(now_ns, |(since_ns, _)| since_ns);
        self.since = Some((since_ns, waits));
        match (now_ns.saturating_sub(since_ns) < PATIENCE_NS, waits) {
            (true, _) => {}
            (false, false) => return Err(error.to_string()),
            (false, true) => life.note_away(Some(error.to_string())),
        }
        Ok(())
    }

    /// Notes that the bridge has attached.
    pub fn end(&mut self, life: &Life) {
        if self.since.take().is_some() {
            life.note_away(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{SendSpec, WaitMode};
    use crate::waiting::Choice;
    use shmcast::{GateError, Subscriber};

    #[test]
    fn a_gate_that_stays_refused_ends_the_bridge_and_any_other_error_is_told() {
        let send = |gate: Option<&str>| {
            let gate = gate.map(str::to_owned);
            BridgeSpec { send: Some(SendSpec { gate, ..SendSpec::default() }), ..BridgeSpec::new("t") }
        };
        let life = Life::new(Vec::new(), Choice::of(WaitMode::Block).shown);
        let taken = || {
            let (name, gate, why) = ("t".to_owned(), "wan".to_owned(), GateError::Taken { pid: 7 });
            ChannelError::Gate { name, gate, why }
        };
        let nowhere = tempfile::tempdir().unwrap();
        let gone = Subscriber::builder("t").dir(nowhere.path()).open().unwrap_err();
        let gated = send(Some("wan"));
        let mut wait = AttachWait::default();
        assert_eq!(wait.bear(&gated, &life, 5, &taken()), Ok(()));
        assert_eq!(wait.bear(&gated, &life, PATIENCE_NS, &gone), Ok(()));
        assert_eq!(wait.bear(&gated, &life, PATIENCE_NS + 5, &taken()), Ok(()), "the wait begins again");
        assert_eq!(wait.bear(&gated, &life, 2 * PATIENCE_NS + 4, &taken()), Ok(()));
        assert_eq!(wait.bear(&gated, &life, 2 * PATIENCE_NS + 5, &taken()), Err(taken().to_string()));
        // An earlier mistake: a bridge that may no longer read its channel waited and told nobody.
        for (spec, error) in [(gated, gone), (send(None), ChannelError::NoBoard { name: "t".to_owned() })] {
            let mut wait = AttachWait::default();
            assert_eq!((wait.bear(&spec, &life, 5, &error), life.away()), (Ok(()), None));
            assert_eq!(wait.bear(&spec, &life, 100 * PATIENCE_NS, &error), Ok(()));
            let told = life.away().unwrap();
            assert!(told.contains("the bridge waits for it") && told.contains(&error.to_string()), "{told}");
            wait.end(&life);
            assert_eq!(life.away(), None);
        }
    }
}
