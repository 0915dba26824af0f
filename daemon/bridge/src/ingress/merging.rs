//! Decides when the kernel merges the packets of a socket.
//!
//! With merging, packets that arrive together cost much less, and a packet that arrives alone costs more. So the bridge switches merging on
//! when many packets arrive together. It switches merging off after a second in which few packets arrived together.

/// Merging saves time if at least this many packets of a window (10 ms or more) arrive together. A feed whose packets arrive one by one
/// reaches this number only if the receiver did not run for most of the window.
const MANY: usize = 64;
/// Merging is switched off after this many consecutive windows in which fewer than `MANY` packets arrived together. A window lasts from one
/// update of the shown counters to the next, which is 10 ms or more.
const CALM_WINDOWS: u32 = 100;

/// The state of merging for one socket.
#[derive(Debug, Default)]
pub(super) struct Merging {
    is_on: bool,
    /// The number of packets in this window that arrived together with other packets.
    together: usize,
    /// The number of consecutive windows in which fewer than `MANY` packets arrived together.
    calm: u32,
}

impl Merging {
    /// Notes how many packets one receive call returned. Returns whether to switch merging on.
    #[inline]
    pub(super) fn note(&mut self, together: usize) -> bool {
        self.together += together;
        let switches = self.together >= MANY && !self.is_on;
        self.is_on |= switches;
        switches
    }

    /// Ends a window. Returns whether to switch merging off.
    pub(super) fn end_window(&mut self) -> bool {
        self.calm = if self.together >= MANY { 0 } else { self.calm.saturating_add(1) };
        self.together = 0;
        let switches = self.is_on && self.calm >= CALM_WINDOWS;
        self.is_on &= !switches;
        switches
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging_begins_with_many_at_once_and_ends_after_a_second_without() {
        let mut merging = Merging::default();
        for _ in 0..1_000 {
            // Packets arrive one by one, and now and then a few arrive together.
            assert!((0..MANY).all(|_| !merging.note(0)) && !merging.note(MANY - 1) && !merging.end_window());
        }
        assert!(!merging.note(MANY - 1) && merging.note(2), "at once, not when the window ends");
        for windows in [1, CALM_WINDOWS, 2] {
            assert!((1..windows).all(|_| !merging.end_window() && !merging.note(1)));
            assert!(!merging.note(MANY), "it is on");
            assert!(!merging.end_window());
        }
        assert!((1..CALM_WINDOWS).all(|_| !merging.end_window()));
        assert!(merging.end_window());
        assert!((0..1_000).all(|_| !merging.end_window()));
        assert!(merging.note(MANY));
    }
}
