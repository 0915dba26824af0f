//! The state of a gate. Only the channel's publisher changes this state, after each check of the gate.
//!
//! ```text
//!             nobody holds the lock
//!   ABSENT <------------------------- each other state
//!     |
//!     | somebody holds it, and
//!     |   is farther behind than half of the lag,
//!     |   or has no place in the ring                    at most half of the lag behind
//!     +----------> JOINING ------------------------------------+
//!     |               ^                                        v
//!     |               +-------- no place in the ring ------- IN FORCE <--+
//!     |                                                        ^  |      |
//!     +---- at most half of the lag behind --------------------+  |      | at most half of the lag behind
//!                            a message waited as long as it may   v      |
//!                                                              DROPPED --+
//! ```
//! A reader has no place in the ring (no position from which it will read the ring) while it reads the journal, or before it has reported a
//! loss. Such a reader needs nothing from the ring, so no message waits for it. If neither the journal nor the ring has a message, the
//! reader reports the message as lost.
//!
//! A reader that holds the gate when a new ring begins can still be reading the previous ring. It needs all of the new ring. So its gate is
//! IN FORCE at position 0 from the publisher's first check on.
//!
//! A gate that refuses is never dropped.
//!
//! The publisher waits only for a gate that is *in force*. For such a gate, the publisher knows a position that the gate's reader has
//! passed. The invariant is that the ring's frontier is at most this position plus the capacity. So no record that the reader still has to
//! copy is overwritten.

use super::config::Then;
use shmcast_layout::fault;
use shmcast_layout::layout::gate::Said;
use std::fmt;

/// The state of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GateState {
    /// No reader holds the gate.
    #[default]
    Absent,
    /// A reader holds the gate, but the publisher does not wait for it, so the reader can be lapped. The reader has not caught up yet, or
    /// it reads the journal.
    Joining,
    /// The publisher waits for the gate's reader, so this reader is not lapped.
    InForce,
    /// A message has waited for the gate's reader for as long as the gate allows. The publisher does not wait for this reader again until
    /// the reader's lag is at most half of the lag that the gate allows.
    Dropped,
}

impl GateState {
    const ALL: [Self; 4] = [Self::Absent, Self::Joining, Self::InForce, Self::Dropped];

    /// The word that tools show: `absent`, `joining`, `in-force` or `dropped`.
    ///
    /// ```
    /// assert_eq!(shmcast::GateState::InForce.name(), "in-force");
    /// ```
    pub const fn name(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Joining => "joining",
            Self::InForce => "in-force",
            Self::Dropped => "dropped",
        }
    }

    /// Returns the state with this number. Any unknown number means [`GateState::Absent`].
    pub(crate) fn of_word(word: u64) -> Self {
        Self::ALL.into_iter().find(|state| *state as u64 == word).unwrap_or_default()
    }
}

impl fmt::Display for GateState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The ring at the time of a check of the gates.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ring {
    pub(super) tail: u64,
    pub(super) frontier: u64,
    pub(super) capacity: u64,
}

/// The result of a check of a gate.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    /// Whether a reader holds the gate's lock.
    pub(super) is_held: bool,
    /// The reader's place in this segment, as the page reports it.
    pub(super) said: Said,
    /// Whether the page says that the reader has no place in any segment.
    pub(super) is_placeless: bool,
}

impl Seen {
    /// Whether a reader holds the gate, but its page has no position for this segment. The reader was just writing to its page, or reads
    /// another segment.
    pub(super) fn is_unheard(self) -> bool {
        self.is_held && self.said == Said::Nothing
    }
}

/// A gate's state, and the last known position of its reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Standing {
    pub(super) state: GateState,
    /// The position that the reader has passed, or the tail if the tail is lower; `None` if the position is unknown.
    pub(super) passed: Option<u64>,
}

impl Standing {
    /// Returns the state of the gate after a check. The position in `seen` can have any value, because the reader can write anything to its
    /// page.
    ///
    /// The publisher begins to wait for a reader when the reader's lag is at most half of `lag`. If `is_unheard` is true, the publisher
    /// waits at any lag, because the previous publisher might have waited for the reader.
    pub(super) fn after(self, seen: Seen, ring: Ring, lag: u64, is_unheard: bool) -> Self {
        if !seen.is_held {
            return Self::default();
        }
        let position = match seen.said {
            Said::Place(position) => position.min(ring.tail),
            Said::NoPlace => {
                let is_dropped = self.state == GateState::Dropped;
                let state = if is_dropped { GateState::Dropped } else { GateState::Joining };
                return Self { state, passed: None };
            }
            Said::Nothing => return self.after_silence(seen, ring, is_unheard),
        };
        let near = if is_unheard { u64::MAX } else { lag / 2 };
        let is_safe = ring.frontier <= position.saturating_add(ring.capacity);
        let is_within = |most: u64| is_safe && ring.tail - position <= most;
        let has_gone_back = self.passed.is_some_and(|before| position < before);
        let state = match self.state {
            GateState::InForce if is_safe && !has_gone_back => GateState::InForce,
            // Another reader took the gate between two checks, or this reader went back. The gate stays in force only if the reader's lag
            // is small enough.
            GateState::InForce if is_within(lag) => GateState::InForce,
            _ if is_within(near) => GateState::InForce,
            GateState::Dropped => GateState::Dropped,
            _ => GateState::Joining,
        };
        Self { state, passed: Some(position) }
    }

    /// Returns the state of a held gate after a check that found no position: the reader was writing its page during the check, or reads
    /// another segment. The known position stays.
    fn after_silence(self, seen: Seen, ring: Ring, is_unheard: bool) -> Self {
        let is_waited_for = matches!(self.state, GateState::InForce | GateState::Dropped);
        // A reader of the previous segment needs this segment from its beginning on.
        if is_unheard && !is_waited_for && !seen.is_placeless && ring.frontier <= ring.capacity {
            return Self { state: GateState::InForce, passed: Some(0) };
        }
        let state = if self.state == GateState::Absent { GateState::Joining } else { self.state };
        Self { state, ..self }
    }

    /// Whether the writer could use the space up to `frontier + spare` without overwriting records that the reader has not copied yet.
    /// False if the reader's position is unknown.
    pub(super) fn has_room(self, frontier: u64, spare: u64, capacity: u64) -> bool {
        self.passed.is_some_and(|passed| frontier.saturating_add(spare) <= passed.saturating_add(capacity))
    }

    /// The position up to which this gate lets the frontier (the end of the space that the writer can use) move.
    pub(super) fn bound(self, lag: u64) -> u64 {
        match (self.state, self.passed) {
            (GateState::InForce, Some(passed)) if !fault!("readers_in_force_are_overtaken") => {
                passed.saturating_add(lag)
            }
            _ => u64::MAX,
        }
    }
}

/// Returns the position beyond which the writer must check the gates again. The caller has checked that no gate in force holds up a record
/// that needs `frontier`. `standings` has the states of all gates with their lags. `step` is the number of bytes by which the tail can move
/// between two checks while a gate is not in force.
pub(super) fn bound_until_next_look(
    standings: impl Iterator<Item = (Standing, u64)> + Clone,
    tail: u64,
    step: u64,
    frontier: u64,
) -> u64 {
    let allowed = standings.clone().map(|(standing, lag)| standing.bound(lag)).min().unwrap_or(u64::MAX);
    let is_any_open = standings.into_iter().any(|(standing, _)| standing.state != GateState::InForce);
    let next_look = tail.saturating_add(step).max(frontier);
    if is_any_open { allowed.min(next_look) } else { allowed }
}

/// The way in which a call waits if a gate holds up its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// The call waits for at most the gate's longest wait.
    Waits,
    /// The call never waits.
    Never,
    /// The call waits at most as long as the gate allows, and then publishes a control record. If the gate refuses, the record can use the
    /// ring beyond the lag. But it must not overwrite records that the reader has not copied, and must leave one chunk of the ring free.
    /// That chunk is for the end of the stream, or for the first record of the next publisher.
    Insists,
    /// Does the same as [`Insists`](Self::Insists) for the record that ends the stream. This record can use the last chunk.
    Ends,
}

/// The decision about a record that a gate holds up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// The record waits until the next check.
    Waits,
    /// The gate is dropped, and does not hold up the record any more.
    Drops,
    /// The record is published although the gate holds it up. The gate stays in force.
    Passes,
    /// The record is refused.
    Refuses,
}

impl Patience {
    /// Decides whether a record waits, is published or is refused. `is_over` says whether the gate has held up the record for its longest
    /// wait. For a call that never waits, `is_over` says whether all such calls have been refused for that time. `has_room` says whether
    /// the ring has room for the control record beyond the lag.
    pub(super) fn fate(self, then: Then, is_over: bool, has_room: bool) -> Fate {
        match (self, then) {
            (Self::Waits | Self::Insists | Self::Ends, _) if !is_over => Fate::Waits,
            (Self::Insists | Self::Ends, Then::Refuse) if has_room => Fate::Passes,
            (_, Then::Refuse) => Fate::Refuses,
            (Self::Never, Then::Drop) if !is_over => Fate::Refuses,
            (_, Then::Drop) => Fate::Drops,
        }
    }

    /// Decides as [`fate`](Self::fate) does, but for a publisher that must not wait any more. A record that would have to wait is refused,
    /// or is published if it is a control record for which there is room. No gate is dropped before its longest wait is over.
    pub(super) fn fate_in_a_hurry(self, then: Then, is_over: bool, has_room: bool) -> Fate {
        match self.fate(then, is_over, has_room) {
            Fate::Waits if matches!(self, Self::Insists | Self::Ends) && has_room => Fate::Passes,
            Fate::Waits => Fate::Refuses,
            decided => decided,
        }
    }

    /// The number of free bytes that a control record beyond the lag must leave in the ring. `chunk` is the ring's chunk.
    pub(super) fn spare(self, chunk: u64) -> u64 {
        if self == Self::Ends { 0 } else { chunk }
    }
}

#[cfg(test)]
impl Patience {
    /// All values of `Patience`. If a new value is missing in the match, the match does not compile.
    pub(super) fn each() -> [Self; 4] {
        let next = |patience| match patience {
            Self::Waits => Self::Never,
            Self::Never => Self::Insists,
            Self::Insists => Self::Ends,
            Self::Ends => Self::Waits,
        };
        [Self::Waits, next(Self::Waits), next(next(Self::Waits)), next(next(next(Self::Waits)))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CAPACITY: u64 = 1 << 16;
    const LAG: u64 = CAPACITY / 2;

    fn ring(tail: u64) -> Ring {
        Ring { tail, frontier: tail + 8192, capacity: CAPACITY }
    }

    fn look(standing: Standing, is_held: bool, claim: Option<u64>, tail: u64) -> Standing {
        look_at(standing, is_held, claim, ring(tail))
    }

    fn look_at(standing: Standing, is_held: bool, claim: Option<u64>, ring: Ring) -> Standing {
        let said = claim.map_or(Said::Nothing, Said::Place);
        standing.after(Seen { is_held, said, is_placeless: false }, ring, LAG, false)
    }

    #[test]
    fn a_gate_joins_when_its_reader_has_caught_up_and_comes_back_at_half() {
        let tail = 1 << 20;
        let far = look(Standing::default(), true, Some(tail - LAG / 2 - 1), tail);
        assert_eq!(far.state, GateState::Joining);
        let near = look(far, true, Some(tail - LAG / 2), tail);
        assert_eq!((near.state, near.bound(LAG)), (GateState::InForce, tail + LAG / 2));
        let behind = look(near, true, Some(tail - LAG / 2), tail + LAG / 2);
        assert_eq!(behind.state, GateState::InForce, "held up, and not more than the lag behind");
        let dropped = Standing { state: GateState::Dropped, ..behind };
        assert_eq!(dropped.bound(LAG), u64::MAX);
        assert_eq!(look(dropped, true, Some(tail), tail + LAG).state, GateState::Dropped);
        assert_eq!(look(dropped, true, Some(tail + LAG / 2), tail + LAG).state, GateState::InForce);
        for state in GateState::ALL {
            let any = Standing { state, passed: Some(tail) };
            assert_eq!(look(any, false, Some(tail), tail), Standing::default(), "nobody holds it");
        }
    }

    #[test]
    fn a_reader_of_another_segment_is_joining_and_what_was_known_stays_known() {
        let tail = 1 << 20;
        assert_eq!(look(Standing::default(), true, None, tail).state, GateState::Joining);
        let known = Standing { state: GateState::InForce, passed: Some(tail - 64) };
        assert_eq!(look(known, true, None, tail), known);
    }

    /// An earlier mistake: the publisher of a new ring overwrote messages that the reader of the old ring had not reached yet.
    #[test]
    fn a_reader_of_the_ring_before_is_waited_for_from_the_first_look_on() {
        let elsewhere = Seen { is_held: true, said: Said::Nothing, is_placeless: false };
        let fresh = Ring { tail: 64, frontier: 8192, capacity: CAPACITY };
        let first = Standing::default().after(elsewhere, fresh, LAG, true);
        assert_eq!((first.state, first.bound(LAG)), (GateState::InForce, LAG));
        let full = Ring { tail: LAG, frontier: LAG, ..fresh };
        assert_eq!(first.after(elsewhere, full, LAG, true), first);
        let come = Seen { said: Said::Place(128), ..elsewhere };
        assert_eq!(first.after(come, full, LAG, true).bound(LAG), LAG + 128);
        let dropped = Standing { state: GateState::Dropped, ..first };
        assert_eq!(dropped.after(elsewhere, full, LAG, true), dropped);
        let late = Ring { tail: CAPACITY, frontier: CAPACITY + 64, ..fresh };
        assert_eq!(Standing::default().after(elsewhere, late, LAG, true).state, GateState::Joining);
        // A reader that reads the journal needs nothing of the new ring until the reader comes back to the old ring.
        let past = Seen { is_placeless: true, ..elsewhere };
        let joining = Standing::default().after(past, fresh, LAG, true);
        assert_eq!((joining.state, joining.bound(LAG)), (GateState::Joining, u64::MAX));
        assert!(past.is_unheard());
        assert_eq!(joining.after(elsewhere, full, LAG, true).state, GateState::InForce);
    }

    #[test]
    fn a_control_record_passes_a_gate_that_refuses_only_while_there_is_room() {
        let known = Standing { state: GateState::InForce, passed: Some(4096) };
        let chunk = CAPACITY / 8;
        for (patience, most) in
            [(Patience::Insists, 4096 + CAPACITY - chunk), (Patience::Ends, 4096 + CAPACITY)]
        {
            let fate = |frontier| {
                patience.fate(Then::Refuse, true, known.has_room(frontier, patience.spare(chunk), CAPACITY))
            };
            assert_eq!([fate(most), fate(most + 1)], [Fate::Passes, Fate::Refuses], "{patience:?}");
        }
        for patience in Patience::each() {
            assert_ne!(patience.fate(Then::Refuse, true, false), Fate::Drops, "{patience:?}");
            assert_eq!(patience.fate(Then::Drop, true, false), Fate::Drops, "{patience:?}");
        }
    }

    #[test]
    fn a_publisher_in_a_hurry_neither_waits_nor_drops_a_gate_early() {
        for patience in Patience::each() {
            let is_control = matches!(patience, Patience::Insists | Patience::Ends);
            for then in [Then::Drop, Then::Refuse] {
                let fate = |has_room| patience.fate_in_a_hurry(then, false, has_room);
                let with_room = if is_control { Fate::Passes } else { Fate::Refuses };
                assert_eq!([fate(false), fate(true)], [Fate::Refuses, with_room], "{patience:?}, {then:?}");
                let over = patience.fate_in_a_hurry(then, true, false);
                assert_eq!(over, patience.fate(then, true, false), "{patience:?}, {then:?}");
            }
        }
    }

    /// An earlier mistake: a publisher refused every message while the reader of a gate in force read the journal.
    #[test]
    fn a_reader_without_a_place_is_not_waited_for_until_it_has_caught_up() {
        let tail = 1 << 20;
        let without = |standing: Standing| {
            let seen = Seen { is_held: true, said: Said::NoPlace, is_placeless: true };
            standing.after(seen, ring(tail), LAG, true)
        };
        for state in GateState::ALL {
            let left = without(Standing { state, passed: Some(tail) });
            assert_eq!(left.bound(LAG), u64::MAX, "{state}");
            let far = look(left, true, Some(tail - LAG / 2 - 1), tail);
            assert_ne!(far.state, GateState::InForce, "{state}");
            assert_eq!(look(left, true, Some(tail - LAG / 2), tail).state, GateState::InForce, "{state}");
        }
        let seen = Seen { is_held: true, said: Said::NoPlace, is_placeless: true };
        assert!(!seen.is_unheard(), "a successor waits for it when it has caught up, and not for any place");
    }

    #[test]
    fn a_reader_that_goes_back_beyond_what_is_safe_is_no_longer_waited_for() {
        let tail = 1 << 20;
        let known = Standing { state: GateState::InForce, passed: Some(tail) };
        assert_eq!(look(known, true, Some(tail - LAG), tail).state, GateState::InForce);
        assert_eq!(look(known, true, Some(tail - LAG - 64), tail).state, GateState::Joining);
        assert_eq!(look(known, true, Some(0), tail).state, GateState::Joining);
    }

    proptest! {
        /// For any claim in the page: if the gate is in force, the ring still has all records from the reader's position on, and the gate's
        /// bound keeps the writer from overwriting these records.
        #[test]
        fn any_claim(
            state in 0..4u64, known in any::<Option<u64>>(), held: bool, claim in any::<Option<u64>>(),
            tail in 0..1u64 << 61, ahead in 0..CAPACITY,
        ) {
            let before = Standing { state: GateState::of_word(state), passed: known.map(|known| known.min(tail)) };
            let ring = Ring { tail, frontier: tail + ahead, capacity: CAPACITY };
            let after = look_at(before, held, claim, ring);
            prop_assert!(after.passed.is_none_or(|passed| passed <= tail));
            prop_assert_eq!(after.state == GateState::Absent, !held);
            if after.state == GateState::InForce && claim.is_some() {
                let passed = after.passed.expect("in force at a place");
                prop_assert!(ring.frontier <= passed.saturating_add(CAPACITY));
                prop_assert!(after.bound(LAG) <= passed.saturating_add(CAPACITY));
            }
        }
    }
}
