//! Listens on the bridge's own lines for sessions with the bridge's tag, before the bridge begins a new session.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::hearing::Hearing;
use super::tag_bytes;
use crate::BridgeError;
use crate::native::Keys;
use crate::socket::{self, RefusedSettings, Tuning};
use crate::spec::{BridgeSpec, SendSpec};
use crate::thread::Clock;

/// The size of the receive buffer in bytes. Packets are lost if the buffer is full, but one packet of a session is enough to learn the
/// session's term (the number in its name).
const BUFFER_BYTES: usize = 1 << 18;

/// Listens on the bridge's multicast lines for `listen_ms`, and looks for sessions with this bridge's tag. The name of a session consists
/// of a tag and a number, the term. Returns the highest term of the sessions that were found. Terms above `most` are ignored.
///
/// Returns immediately if the bridge has no multicast line. If a line cannot be opened, notes the failure in the list of refusals. On
/// native lines, only packets that can be opened count.
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
