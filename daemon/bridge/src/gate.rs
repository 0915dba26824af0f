//! Decides for how long a bridge tries to attach again to its channel. If a reader has a gate of a channel, the publisher waits for this
//! reader. A bridge loses its gate when it loses its channel, and needs a gate again in the next channel.

use shmcast::ChannelError;
use shmcast::control::RefusalCode;

use crate::proto::SECOND_NS;
use crate::status::Life;

/// The bridge gives up once an error has lasted for this time, in nanoseconds. Until then, the next publisher might create the gate, or the
/// system might release the lock of the gate's last reader.
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
    /// The time of the first attempt that failed, and whether the bridge then waited for the channel.
    since: Option<(u64, bool)>,
}

impl AttachWait {
    /// Notes that an attempt to attach has failed. For a channel that does not exist, and for a daemon that does not answer, the bridge can
    /// wait without limit. After two seconds, `life` says for what the bridge waits.
    ///
    /// # Errors
    /// The error of the attempt, once another error has lasted for two seconds: the gate is refused, or this user may no longer read the
    /// channel. The bridge's owner then reports the error. A daemon restarts the bridge.
    pub fn bear(&mut self, life: &Life, now_ns: u64, error: &ChannelError) -> Result<(), String> {
        let waits = error.is_unknown_channel() || error.is_passing();
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
    use crate::spec::WaitMode;
    use crate::waiting::Choice;
    use shmcast::{GateError, Subscriber};

    #[test]
    fn an_error_that_stays_is_told_and_a_channel_that_is_away_is_waited_for() {
        let life = Life::new(Vec::new(), Choice::of(WaitMode::Block).shown);
        let taken = || {
            let (name, gate, why) = ("t".to_owned(), "wan".to_owned(), GateError::Taken { pid: 7 });
            ChannelError::Gate { name, gate, why }
        };
        let nowhere = tempfile::tempdir().unwrap();
        let gone = Subscriber::builder("t").dir(nowhere.path()).open().unwrap_err();
        assert!(gone.is_unknown_channel());
        // An earlier mistake: only the refusal of a gate was told, and a bridge that may no longer read its channel was silent for ever.
        for error in [taken(), ChannelError::NoBoard { name: "t".to_owned() }] {
            let mut wait = AttachWait::default();
            assert_eq!(wait.bear(&life, 5, &error), Ok(()));
            assert_eq!(wait.bear(&life, PATIENCE_NS, &gone), Ok(()));
            assert_eq!(wait.bear(&life, PATIENCE_NS + 5, &error), Ok(()), "the wait begins again");
            assert_eq!(wait.bear(&life, 2 * PATIENCE_NS + 4, &error), Ok(()));
            assert_eq!(wait.bear(&life, 2 * PATIENCE_NS + 5, &error), Err(error.to_string()));
        }
        let mut wait = AttachWait::default();
        assert_eq!((wait.bear(&life, 5, &gone), life.away()), (Ok(()), None));
        assert_eq!(wait.bear(&life, 100 * PATIENCE_NS, &gone), Ok(()));
        let told = life.away().unwrap();
        assert!(told.contains("the bridge waits for it") && told.contains(&gone.to_string()), "{told}");
        wait.end(&life);
        assert_eq!(life.away(), None);
    }
}
