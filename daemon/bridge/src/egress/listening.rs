//! Listens on the bridge's own lines before a new session begins.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::hearing::Hearing;
use super::tag_bytes;
use crate::BridgeError;
use crate::native::Keys;
use crate::socket::{self, RefusedSettings, Tuning};
use crate::spec::{BridgeSpec, SendSpec};
use crate::thread::Clock;

/// Bytes of the receive buffer. Packets that find no room are lost; each session sends more like them.
const BUFFER_BYTES: usize = 1 << 18;

/// Returns the highest term of this bridge's tag, up to `most`, that is heard on its multicast lines during the listening time. Returns
/// early only if there is no such line. A line that cannot be listened to is noted as a refusal. On native lines, only packets that open
/// are heard.
pub(super) fn heard_term(
    spec: &BridgeSpec,
    send: &SendSpec,
    keys: &Arc<Keys>,
    most: u64,
    refusals: &mut RefusedSettings,
) -> Result<Option<u64>, BridgeError> {
    let tuning = Tuning { buffer_bytes: BUFFER_BYTES, busy_poll_us: 0 };
    let mut hearing = Hearing::new(spec, keys, Vec::new())?;
    for line in Hearing::lines_of(spec).filter(|_| send.listen_ms > 0) {
        if let Err(e) = hearing.add(spec, line, tuning, &mut RefusedSettings::default()) {
            refusals.0.push(format!("listen for other sessions: {e}"));
        }
    }
    let (clock, until) = (Clock::start(), Instant::now() + Duration::from_millis(send.listen_ms));
    let tag = tag_bytes(spec);
    let mut highest = None;
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        if hearing.sockets().next().is_none() {
            break;
        }
        socket::wait_for_any(hearing.sockets(), left);
        hearing.hear(clock.now_ns(), false, |_, packet| {
            let term = packet.session.epoch().filter(|term| packet.session.tag() == tag && *term <= most);
            highest = highest.max(term);
        });
    }
    Ok(highest)
}
