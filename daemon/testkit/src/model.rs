//! A model checker. It visits every state that a model can reach, breadth first.
//!
//! A model is a state machine of several processes. Its steps call functions of the product. Its actions are the events that can happen to
//! a process: it runs, it is stopped or killed, or a message to it is lost.
//!
//! A *mutant* is a fault that is planted in the model or in the product. The checker must find every mutant, and each invariant needs a
//! mutant that breaks it.

use std::collections::{HashSet, VecDeque};
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Instant;

/// The greatest number of states. If a model has more states, the checker assumes that the model is endless, and panics.
const MOST_STATES: usize = 400_000;

/// A state machine.
pub trait Model {
    type State: Clone;
    type Action: Debug + Clone;

    /// The names of the landmarks. A landmark is an interesting state. The checker must reach every landmark, because a model in which
    /// nothing happens proves nothing.
    const LANDMARKS: &'static [&'static str];

    fn begin(&self) -> Self::State;

    /// Returns all actions that can happen next in a state.
    fn actions(&self, state: &Self::State) -> Vec<Self::Action>;

    fn step(&self, state: &Self::State, action: &Self::Action) -> Self::State;

    /// Feeds the hasher with everything that distinguishes this state from other states.
    fn identify(&self, state: &Self::State, hasher: &mut impl Hasher);

    /// Returns the invariant that the state breaks; `None` if it breaks none.
    fn broken(&self, state: &Self::State) -> Option<&'static str>;

    /// Bit `n` is set if the state is at landmark `n`.
    fn landmarks(&self, state: &Self::State) -> u64;
}

/// The result of a walk over all states.
#[derive(Debug)]
pub struct Explored {
    pub states: usize,
    pub depth: usize,
    pub seconds: f64,
    /// The landmarks that no state reached.
    pub unreached: Vec<&'static str>,
    /// The first broken invariant, and the shortest sequence of actions that breaks it.
    pub broken: Option<(&'static str, Vec<String>)>,
}

/// Visits all states of a model. Stops early at the first state that breaks an invariant.
pub fn explore<M: Model>(model: &M) -> Explored {
    let start = Instant::now();
    let print = |state: &M::State| {
        let mut hasher = DefaultHasher::new();
        model.identify(state, &mut hasher);
        hasher.finish()
    };
    let mut ways: Vec<(usize, usize, Option<M::Action>)> = vec![(0, 0, None)];
    let first = model.begin();
    let mut known = HashSet::from([print(&first)]);
    let mut reached = model.landmarks(&first);
    let mut broken = model.broken(&first).map(|invariant| (invariant, 0));
    let mut queue = VecDeque::from([(first, 0)]);
    'walk: while broken.is_none() {
        let Some((state, at)) = queue.pop_front() else { break };
        for action in model.actions(&state) {
            let next = model.step(&state, &action);
            reached |= model.landmarks(&next);
            if !known.insert(print(&next)) {
                continue;
            }
            assert!(
                known.len() <= MOST_STATES,
                "the model has too many states, at depth {}, behind {action:?}",
                ways[at].1
            );
            ways.push((at, ways[at].1 + 1, Some(action)));
            let here = ways.len() - 1;
            broken = model.broken(&next).map(|invariant| (invariant, here));
            if broken.is_some() {
                break 'walk;
            }
            queue.push_back((next, here));
        }
    }
    let way = |mut at: usize| {
        let mut way = Vec::new();
        while let (before, _, Some(action)) = &ways[at] {
            way.push(format!("{action:?}"));
            at = *before;
        }
        way.reverse();
        way
    };
    let is_unreached = |(bit, _): &(usize, &&str)| reached >> bit & 1 == 0;
    Explored {
        states: known.len(),
        depth: ways.last().map_or(0, |(_, depth, _)| *depth),
        seconds: start.elapsed().as_secs_f64(),
        unreached: M::LANDMARKS.iter().enumerate().filter(is_unreached).map(|(_, name)| *name).collect(),
        broken: broken.map(|(invariant, at)| (invariant, way(at))),
    }
}

/// Checks the model without a planted fault, and all its mutants, each with one planted fault.
///
/// - Without a fault, the model must break no invariant and reach all landmarks.
/// - Each mutant must break the invariant that it is planted for.
/// - Each invariant must have a mutant.
///
/// Prints a line that CI puts into its table.
pub fn check<M: Model, P: Copy + Debug>(
    name: &str,
    invariants: &[&str],
    mutants: &[(P, &str)],
    build: impl Fn(Option<P>) -> M,
) {
    let sound = explore(&build(None));
    if let Some((invariant, way)) = &sound.broken {
        panic!("model {name}: not so: {invariant}\n  {}", way.join("\n  "));
    }
    assert!(sound.unreached.is_empty(), "model {name}: nothing reaches {:?}", sound.unreached);
    for invariant in invariants {
        assert!(mutants.iter().any(|(_, by)| by == invariant), "no mutant breaks: {invariant}");
    }
    for (mutant, by) in mutants {
        assert!(invariants.contains(by), "{mutant:?} is planted for no invariant of the model");
        match explore(&build(Some(*mutant))).broken {
            Some((found, way)) if found == *by => {
                println!("{mutant:?}: found in {} steps: not so: {found}", way.len());
            }
            Some((found, way)) => {
                panic!("{mutant:?}: breaks {found:?} and not {by:?}\n  {}", way.join("\n  "))
            }
            None => panic!("model {name}: {mutant:?} lives"),
        }
    }
    let Explored { states, depth, seconds, .. } = sound;
    let (invariants, killed) = (invariants.len(), mutants.len());
    println!(
        "model|{name}|{states} states|depth {depth}|{seconds:.2} s|{invariants} invariants|{killed} of {killed} mutants found"
    );
}

/// Hashes a value by its `Debug` output. Use it for a state machine of the product that does not implement [`Hash`].
pub fn hash_debug(value: &impl Debug, hasher: &mut impl Hasher) {
    format!("{value:?}").hash(hasher);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts to three, or with a fault to four.
    struct Counter(u32);

    impl Model for Counter {
        type State = u32;
        type Action = u32;
        const LANDMARKS: &'static [&'static str] = &["one", "five"];

        fn begin(&self) -> u32 {
            0
        }

        fn actions(&self, state: &u32) -> Vec<u32> {
            (1..=2).filter(|step| state + step <= self.0).collect()
        }

        fn step(&self, state: &u32, action: &u32) -> u32 {
            state + action
        }

        fn identify(&self, state: &u32, hasher: &mut impl Hasher) {
            state.hash(hasher);
        }

        fn broken(&self, state: &u32) -> Option<&'static str> {
            (*state == 4).then_some("less than four")
        }

        fn landmarks(&self, state: &u32) -> u64 {
            u64::from(*state == 1) | u64::from(*state == 5) << 1
        }
    }

    #[test]
    fn a_walk_finds_each_state_the_shortest_way_and_what_is_missing() {
        let sound = explore(&Counter(3));
        assert_eq!((sound.states, sound.depth, sound.unreached), (4, 2, vec!["five"]));
        assert!(sound.broken.is_none());
        let (invariant, way) = explore(&Counter(9)).broken.unwrap();
        assert_eq!((invariant, way), ("less than four", vec!["2".to_owned(), "2".to_owned()]));
    }

    #[test]
    #[should_panic(expected = "lives")]
    fn a_mutant_that_lives_fails() {
        struct Reached(Counter);
        impl Model for Reached {
            type State = u32;
            type Action = u32;
            const LANDMARKS: &'static [&'static str] = &["one"];
            fn begin(&self) -> u32 {
                self.0.begin()
            }
            fn actions(&self, state: &u32) -> Vec<u32> {
                self.0.actions(state)
            }
            fn step(&self, state: &u32, action: &u32) -> u32 {
                self.0.step(state, action)
            }
            fn identify(&self, state: &u32, hasher: &mut impl Hasher) {
                self.0.identify(state, hasher);
            }
            fn broken(&self, state: &u32) -> Option<&'static str> {
                self.0.broken(state)
            }
            fn landmarks(&self, state: &u32) -> u64 {
                self.0.landmarks(state)
            }
        }
        check("counter", &["less than four"], &[((), "less than four")], |_| Reached(Counter(3)));
    }
}
