//! A model of a channel with gates: a publisher, its successor, and readers. Each of them can stop, die and come back at any step.
//!
//! The model's publisher decides with the real functions of `state.rs`. A few numbers replace the ring's writer and the readers' pages. The
//! unit of positions is one record.

mod parts;

use super::config::Then;
use super::state::{Fate, GateState, Patience, Ring, Seen, bound_until_next_look};
use parts::{Action, Doing, Gate, Mutant, Reader, State};
use shmcast_layout::layout::gate::Said;
use shmcast_testkit::model::{Model, check};
use std::hash::{Hash, Hasher};

/// The size of the ring. As in `Limits::of`, the largest lag is `capacity - 2 * chunk`.
const CAPACITY: u64 = 5;
const CHUNK: u64 = 1;
const LAG: u64 = CAPACITY - 2 * CHUNK;
/// Number of records that a successor cleans ahead.
const AHEAD: u64 = 3;
/// The last position that the tail reaches.
const LAST: u64 = 6;
/// Number of readers that take a gate, one after another.
const HOLDERS: u8 = 2;

const NOT_LAPPED: &str = "a reader whose gate is in force is not lapped";
const NOT_LONGER: &str = "no message waits longer than the wait of a gate";
const NOT_FOR_NOBODY: &str = "no message waits for a gate that nobody holds, or for a reader without a place";
const NOT_AT_ONCE: &str = "a reader in force within its lag is in force behind a takeover";
const NEVER_WAITS: &str = "a call that never waits does not wait";
const NEVER_LAPPED: &str =
    "a gate that refuses never lets its reader be lapped, not even by control records or in a new ring";

struct Gates {
    mutant: Option<Mutant>,
    /// The action after the longest wait, for each gate. Gate `n` waits for `n + 1` ticks.
    then: Vec<Then>,
    /// True for a model of a new ring. In this model, each gate has one reader, which has held the gate since the previous ring, and the
    /// publisher can also end the stream.
    is_new_ring: bool,
}

impl Gates {
    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    fn lag(&self) -> u64 {
        if self.is(Mutant::LagOfTheRing) { CAPACITY } else { LAG }
    }

    fn bound(&self, state: &State, frontier: u64) -> u64 {
        let standings = state.gates.iter().map(|gate| (gate.standing, self.lag()));
        let bound = bound_until_next_look(standings, state.tail, self.lag() / 4, frontier);
        if self.is(Mutant::NoBound) { u64::MAX } else { bound }
    }

    /// A step of `Gates::look`. Returns whether this was the last step.
    fn look(&self, state: &mut State, step: usize) -> bool {
        let frontier = if self.is(Mutant::FrontierUnseen) { state.tail } else { state.frontier };
        let ring = Ring { tail: state.tail, frontier, capacity: CAPACITY };
        let count = state.gates.len();
        let gate = &mut state.gates[step / 2];
        if step.is_multiple_of(2) {
            gate.was_free = gate.reader.who == 0;
            gate.is_held = !gate.was_free || self.is(Mutant::LockUnseen);
            return false;
        }
        let before = *gate;
        let is_unseen = gate.page.0 == Said::NoPlace && self.is(Mutant::NoPlaceUnseen);
        let said = if is_unseen { Said::Nothing } else { gate.page.0 };
        let is_placeless = gate.page.0 == Said::NoPlace || self.is(Mutant::ElsewhereUnseen);
        let seen = Seen { is_held: gate.is_held, said, is_placeless };
        gate.standing = gate.standing.after(seen, ring, self.lag(), gate.is_unheard);
        gate.is_held = false;
        gate.is_unheard &= seen.is_unheard() && !self.is(Mutant::FirstLookTorn);
        let (Said::Place(position), author) = gate.page else {
            if gate.page.0 == Said::NoPlace {
                (gate.was_free, gate.was_in_force) = (true, 0);
            } else if gate.standing.passed == Some(0) && before.standing.passed.is_none() {
                gate.known = gate.reader.who;
            }
            return step + 1 == 2 * count;
        };
        gate.known = author;
        let was_in_force = std::mem::take(&mut gate.was_in_force) == author;
        let is_lapped = state.frontier > position + CAPACITY && state.frontier > state.found;
        let is_the_same =
            (before.known == author || was_in_force) && gate.reader.who == author && !gate.reader.lies;
        let has_lost = (before.standing.state == GateState::InForce || was_in_force)
            && gate.standing.state == GateState::Joining;
        let went_on = before.standing.passed.is_none_or(|passed| position >= passed);
        if is_the_same && has_lost && went_on && !is_lapped {
            state.broken = Some(NOT_AT_ONCE);
        }
        step + 1 == 2 * count
    }

    /// Models `Gates::decide`, and the last steps of `Gates::make_way` and of `publish_and_post`.
    fn decide(&self, state: &mut State, patience: Patience, waited: u8) {
        let frontier = frontier_for(state);
        let mut fates = Vec::new();
        for (number, gate) in state.gates.iter_mut().enumerate() {
            if gate.standing.bound(self.lag()) >= frontier {
                continue;
            }
            let wait = number as u8 + 1;
            let held_for = match patience {
                Patience::Never => *gate.refusing.get_or_insert(0),
                Patience::Waits | Patience::Insists | Patience::Ends => waited,
            };
            let acted = if self.is(Mutant::NeverIsWaits) { Patience::Waits } else { patience };
            let is_over = held_for >= wait && !self.is(Mutant::NoLimit);
            let has_room = gate.standing.has_room(frontier, patience.spare(CHUNK), CAPACITY);
            let fate = match acted.fate(self.then[number], is_over, has_room) {
                Fate::Passes if self.is(Mutant::ControlDrops) => Fate::Drops,
                Fate::Refuses if self.is(Mutant::ControlPasses) && patience == Patience::Insists => {
                    Fate::Passes
                }
                fate => fate,
            };
            match fate {
                Fate::Drops => gate.standing.state = GateState::Dropped,
                Fate::Refuses => {}
                Fate::Passes => state.reached |= 64,
                Fate::Waits if patience == Patience::Never => state.broken = Some(NEVER_WAITS),
                Fate::Waits if gate.was_free => state.broken = Some(NOT_FOR_NOBODY),
                Fate::Waits if waited > wait => state.broken = Some(NOT_LONGER),
                Fate::Waits => {}
            }
            fates.push(fate);
        }
        if fates.contains(&Fate::Refuses) {
            state.doing = Doing::Nothing;
            state.reached |= 1;
            self.end_if(state, patience);
        } else if fates.contains(&Fate::Waits) {
            state.doing = Doing::Publishes { patience, step: 0, waited };
            state.reached |= 2;
        } else {
            state.gates.iter_mut().for_each(|gate| gate.refusing = None);
            state.bound = self.bound(state, frontier);
            self.publish(state, patience);
        }
    }

    /// Models `Writer::publish` when the frontier can move, and `Writer::control`.
    fn publish(&self, state: &mut State, patience: Patience) {
        state.frontier = frontier_for(state);
        state.tail += 1;
        state.doing = Doing::Nothing;
        self.end_if(state, patience);
    }

    /// Ends the publisher if its record was to end the stream, even if the record was refused.
    fn end_if(&self, state: &mut State, patience: Patience) {
        if patience == Patience::Ends {
            self.die(state);
        }
    }

    fn die(&self, state: &mut State) {
        state.doing = Doing::Dead;
        for gate in &mut state.gates {
            let is_within = gate.standing.bound(self.lag()) >= state.frontier;
            let is_in_force = gate.standing.state == GateState::InForce && is_within;
            let was_in_force = if is_in_force { gate.known } else { 0 };
            *gate = Gate {
                was_in_force,
                is_unheard: true,
                reader: gate.reader,
                holders: gate.holders,
                page: gate.page,
                ..Gate::default()
            };
            state.reached |= if was_in_force > 0 { 128 } else { 0 };
        }
    }

    fn go_on(&self, state: &mut State) {
        match state.doing {
            Doing::Nothing | Doing::Dead => {}
            Doing::Opens(step) => {
                if self.look(state, step) {
                    state.bound = self.bound(state, state.frontier);
                    state.doing = Doing::Nothing;
                } else {
                    state.doing = Doing::Opens(step + 1);
                }
            }
            Doing::Publishes { patience, step, waited } if step < 2 * state.gates.len() => {
                self.look(state, step);
                state.doing = Doing::Publishes { patience, step: step + 1, waited };
            }
            Doing::Publishes { patience, waited, .. } => self.decide(state, patience, waited),
        }
    }

    /// Does one step of a reader, or one step that the system does for a reader, such as freeing its lock.
    fn read(&self, state: &mut State, action: Action) {
        let (tail, oldest) = (state.tail, state.frontier.saturating_sub(CAPACITY));
        match action {
            Action::Take(number, is_new) => {
                let gate = &mut state.gates[number];
                gate.holders += 1;
                let place = if is_new { tail } else { oldest };
                gate.reader = Reader { who: gate.holders, place, ..Reader::default() };
            }
            Action::Begin(number) => {
                state.gates[number].page = (Said::NoPlace, 0);
                state.gates[number].reader.has_begun = true;
            }
            Action::Copy(number) => {
                let place = &mut state.gates[number].reader.place;
                *place = if *place < oldest { tail } else { *place + 1 };
                state.reached |= if *place == tail { 4 } else { 0 };
            }
            Action::Pass(number) => {
                let gate = &mut state.gates[number];
                gate.page = (Said::Place(gate.reader.place), gate.reader.who);
                gate.reader.is_torn = false;
            }
            Action::Tear(number) => {
                (state.gates[number].page, state.gates[number].reader.is_torn) = ((Said::Nothing, 0), true);
            }
            Action::Lie(number) => {
                let gate = &mut state.gates[number];
                (gate.page, gate.reader.lies) = ((Said::Place(LAST * 2), gate.reader.who), true);
            }
            Action::Leave(number) => {
                state.gates[number].page = (Said::NoPlace, 0);
                state.gates[number].reader.moves += 1;
            }
            Action::Return(number) => {
                let Gate { reader, page, .. } = &mut state.gates[number];
                (reader.place, reader.moves, reader.is_torn) = (reader.place.max(oldest), 2, true);
                *page = (Said::Nothing, 0);
            }
            Action::Release(number) => state.gates[number].reader = Reader::default(),
            Action::Elsewhere(number) => {
                let gate = &mut state.gates[number];
                gate.holders = 1;
                let begun = Reader { who: 1, has_begun: true, ..Reader::default() };
                gate.reader = Reader { is_old: true, is_elsewhere: true, ..begun };
            }
            Action::Arrive(number) => {
                let Gate { reader, page, .. } = &mut state.gates[number];
                (reader.is_elsewhere, reader.is_torn, page.0) = (false, true, Said::Nothing);
            }
            Action::Publish(_) | Action::GoOn | Action::Tick | Action::Kill | Action::TakeOver => {}
        }
    }
}

/// Computes `Writer::frontier_for` for one record.
fn frontier_for(state: &State) -> u64 {
    let need = state.tail + 2;
    if need > state.frontier { need.next_multiple_of(CHUNK) } else { state.frontier }
}

impl Model for Gates {
    type State = State;
    type Action = Action;
    const LANDMARKS: &'static [&'static str] = &[
        "a message was refused",
        "a message waited",
        "a reader caught up",
        "absent",
        "joining",
        "in force",
        "dropped, or passed by a control record",
        "a successor finds a gate in force",
    ];

    fn begin(&self) -> State {
        let gates = vec![Gate { is_unheard: true, ..Gate::default() }; self.then.len()];
        State {
            tail: 0,
            frontier: CHUNK,
            bound: 0,
            doing: Doing::Opens(0),
            takeovers: 0,
            found: CHUNK,
            gates,
            broken: None,
            reached: 0,
        }
    }

    fn actions(&self, state: &State) -> Vec<Action> {
        let mut all = match state.doing {
            Doing::Nothing if state.tail < LAST => {
                let may_end = self.is_new_ring && state.takeovers == 0;
                let may = |patience: &Patience| *patience != Patience::Ends || may_end;
                Patience::each().into_iter().filter(may).map(Action::Publish).collect()
            }
            Doing::Nothing => Vec::new(),
            Doing::Opens(_) | Doing::Publishes { .. } => vec![Action::GoOn],
            Doing::Dead => vec![Action::TakeOver],
        };
        if state.doing != Doing::Dead && state.takeovers == 0 && state.tail > 2 {
            all.push(Action::Kill);
        }
        let is_waiting = |gate: &Gate| gate.refusing.is_some_and(|ticks| ticks < 1);
        if matches!(state.doing, Doing::Publishes { step, waited, .. } if waited < 2 && step == 2 * state.gates.len())
            || state.gates.iter().any(is_waiting)
        {
            all.push(Action::Tick);
        }
        for (number, gate) in state.gates.iter().enumerate() {
            let Reader { who, place, has_begun, lies, is_torn, moves, is_elsewhere, .. } = gate.reader;
            if self.is_new_ring && gate.holders == 0 {
                return vec![Action::Elsewhere(number)];
            }
            match (who, has_begun) {
                _ if is_elsewhere => all.extend([Action::Arrive(number), Action::Release(number)]),
                (0, _) if gate.holders < HOLDERS && !self.is_new_ring => {
                    all.extend([Action::Take(number, true), Action::Take(number, false)]);
                }
                (0, _) => {}
                (_, false) => all.extend([Action::Begin(number), Action::Release(number)]),
                (_, true) if is_torn => all.extend([Action::Pass(number), Action::Release(number)]),
                (1, true) if moves == 1 => all.extend([Action::Return(number), Action::Release(number)]),
                (_, true) if moves % 2 == 1 => all.push(Action::Release(number)),
                (_, true) => {
                    all.extend([Action::Release(number), Action::Leave(number)]);
                    if place < state.tail {
                        all.push(Action::Copy(number));
                    }
                    if !lies {
                        all.push(Action::Tear(number));
                    }
                    if who == 2 && !lies {
                        all.push(Action::Lie(number));
                    }
                }
            }
        }
        all
    }

    fn step(&self, state: &State, action: &Action) -> State {
        let mut next = state.clone();
        match *action {
            Action::Publish(patience) if frontier_for(state) > state.frontier.max(state.bound) => {
                next.doing = Doing::Publishes { patience, step: 0, waited: 0 };
            }
            Action::Publish(patience) => self.publish(&mut next, patience),
            Action::GoOn => self.go_on(&mut next),
            Action::Tick => {
                if let Doing::Publishes { waited, .. } = &mut next.doing {
                    *waited = 2.min(*waited + 1);
                }
                for ticks in next.gates.iter_mut().filter_map(|gate| gate.refusing.as_mut()) {
                    *ticks = 1.min(*ticks + 1);
                }
            }
            Action::Kill => self.die(&mut next),
            Action::TakeOver => {
                next.frontier = next.frontier.max((next.tail + AHEAD).next_multiple_of(CHUNK));
                (next.doing, next.takeovers, next.bound) = (Doing::Opens(0), next.takeovers + 1, u64::MAX);
                next.found = next.frontier;
            }
            action => self.read(&mut next, action),
        }
        next
    }

    fn identify(&self, state: &State, hasher: &mut impl Hasher) {
        let State { tail, frontier, bound, doing, takeovers, found, gates, broken, reached: _ } = state;
        (tail, frontier, bound.min(&(2 * LAST)), takeovers, frontier > found, broken).hash(hasher);
        match doing {
            Doing::Nothing => 0.hash(hasher),
            Doing::Opens(step) => (1, step).hash(hasher),
            Doing::Publishes { patience, step, waited } => (2, *patience as u8, step, waited).hash(hasher),
            Doing::Dead => 3.hash(hasher),
        }
        for gate in gates {
            let Gate { reader, holders, page: (said, author), standing, known, is_held, was_free, .. } = gate;
            let Reader { who, place, has_begun, lies, is_torn, moves, is_old, is_elsewhere } = reader;
            (who, place, has_begun, lies, is_torn, moves, is_old, is_elsewhere).hash(hasher);
            (holders, standing.state as u8, standing.passed, known, is_held, was_free).hash(hasher);
            (said.place(), *said == Said::NoPlace, author).hash(hasher);
            (gate.was_in_force, gate.is_unheard, gate.refusing).hash(hasher);
        }
    }

    fn broken(&self, state: &State) -> Option<&'static str> {
        let is_lapped = |gate: &Gate| {
            let Reader { who, place, lies, .. } = gate.reader;
            let is_in_force = gate.standing.state == GateState::InForce && gate.known == who && who > 0;
            is_in_force && !lies && state.frontier > place + CAPACITY
        };
        let is_known = !matches!(state.doing, Doing::Opens(_) | Doing::Dead);
        let lapped = (is_known && state.gates.iter().any(is_lapped)).then_some(NOT_LAPPED);
        // A reader that had the gate from the beginning, and never left the ring, can be lapped only by a takeover.
        let is_let_down = |(gate, then): (&Gate, &Then)| {
            let Reader { place, lies, moves, is_old, .. } = gate.reader;
            *then == Then::Refuse && is_old && !lies && moves == 0 && state.frontier > place + CAPACITY
        };
        let is_any = state.gates.iter().zip(&self.then).any(is_let_down);
        let let_down = (is_any && state.takeovers == 0).then_some(NEVER_LAPPED);
        state.broken.or(lapped).or(let_down)
    }

    fn landmarks(&self, state: &State) -> u64 {
        let of = |gate: &Gate| match gate.standing.state {
            GateState::Absent => 8,
            GateState::Joining => 16,
            GateState::InForce => 32,
            GateState::Dropped => 64,
        };
        state.gates.iter().map(of).fold(state.reached, |all, one| all | one)
    }
}

#[test]
fn a_publisher_waits_for_its_gates_within_their_limits_whoever_dies() {
    let invariants = [NOT_LAPPED, NOT_LONGER, NOT_FOR_NOBODY, NOT_AT_ONCE, NEVER_WAITS];
    let mutants = [
        (Mutant::FrontierUnseen, NOT_LAPPED),
        (Mutant::NoBound, NOT_LAPPED),
        (Mutant::LagOfTheRing, NOT_AT_ONCE),
        (Mutant::FirstLookTorn, NOT_AT_ONCE),
        (Mutant::NoLimit, NOT_LONGER),
        (Mutant::LockUnseen, NOT_FOR_NOBODY),
        (Mutant::NoPlaceUnseen, NOT_FOR_NOBODY),
        (Mutant::NeverIsWaits, NEVER_WAITS),
    ];
    let is_new_ring = false;
    check("gates", &invariants, &mutants, |mutant| Gates { mutant, then: vec![Then::Drop], is_new_ring });
    // The message is refused, and the gate stays in force.
    let mutants = [(Mutant::NoLimit, NOT_LONGER)];
    let refuse = |mutant| Gates { mutant, then: vec![Then::Refuse], is_new_ring };
    check("gates that refuse", &[NOT_LONGER], &mutants, refuse);
    let mutants = [
        (Mutant::ControlDrops, NEVER_LAPPED),
        (Mutant::ControlPasses, NOT_LAPPED),
        (Mutant::ElsewhereUnseen, NEVER_LAPPED),
    ];
    let anew = |mutant| Gates { mutant, then: vec![Then::Refuse], is_new_ring: true };
    check("gates that refuse, in a new ring", &[NEVER_LAPPED, NOT_LAPPED], &mutants, anew);
}
