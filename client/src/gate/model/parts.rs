//! The parts of the model: the processes, what they do, and the faults that are planted.

use super::super::state::{Patience, Standing};
use shmcast_layout::layout::gate::Said;

/// A fault that a test plants in the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mutant {
    /// A planted fault: to find laps, the publisher compares a reader's position with the tail and not with the frontier.
    FrontierUnseen,
    /// A planted fault: the bound is never set.
    NoBound,
    /// A planted fault: the largest lag of a gate is the whole ring.
    LagOfTheRing,
    /// A planted fault: the publisher does not compare the time that a message has waited with the limit.
    NoLimit,
    /// A planted fault: the publisher does not check the lock.
    LockUnseen,
    /// A planted fault: if the publisher's first check of a gate comes between two stores of the reader, and so finds no position, it still
    /// counts as the first check.
    FirstLookTorn,
    /// A planted fault: a reader that has no place in the ring is treated as a reader between its two stores.
    NoPlaceUnseen,
    /// A planted fault: a call that never waits is treated as a call that waits.
    NeverIsWaits,
    /// A planted fault: a control record drops a gate that refuses.
    ControlDrops,
    /// A planted fault: a control record passes a gate that refuses, whether the ring has room or not.
    ControlPasses,
    /// A planted fault: in the new ring, the publisher does not wait for a reader of the previous ring until that reader has arrived.
    ElsewhereUnseen,
}

/// The reader of a gate.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Reader {
    /// Number of the reader, from 1; 0 if no reader holds the lock.
    pub(super) who: u8,
    /// The record that the reader copies next.
    pub(super) place: u64,
    /// Whether this reader has invalidated the position of the previous reader.
    pub(super) has_begun: bool,
    /// Whether this reader has stored a position that is further than its place.
    pub(super) lies: bool,
    /// Whether the reader has stored its position, but not yet the check word of this position.
    pub(super) is_torn: bool,
    /// Counts how often the reader left the ring for the journal and came back. The count is odd while the reader has no place in the ring.
    pub(super) moves: u8,
    /// Whether the reader had the gate before this ring began.
    pub(super) is_old: bool,
    /// Whether the reader still reads the previous ring.
    pub(super) is_elsewhere: bool,
}

/// A gate.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Gate {
    pub(super) reader: Reader,
    /// Number of readers that have held the gate.
    pub(super) holders: u8,
    /// The word of the gate's page, and the number of the reader that stored it.
    pub(super) page: (Said, u8),
    pub(super) standing: Standing,
    /// The number of the reader whose position the publisher knows.
    pub(super) known: u8,
    pub(super) is_held: bool,
    /// Whether the last check found that no reader held the lock, or that the reader had no place in the ring.
    pub(super) was_free: bool,
    /// The number of the reader for which the previous publisher waited when it died.
    pub(super) was_in_force: u8,
    /// The value of `One::is_unheard`.
    pub(super) is_unheard: bool,
    /// Time for which all calls that never wait have been refused.
    pub(super) refusing: Option<u8>,
}

/// The present work of the publisher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    Nothing,
    /// The publisher checks the gates. In even steps it reads a gate's lock, and in odd steps the page.
    Opens(usize),
    Publishes {
        patience: Patience,
        step: usize,
        waited: u8,
    },
    Dead,
}

#[derive(Debug, Clone)]
pub(super) struct State {
    pub(super) tail: u64,
    pub(super) frontier: u64,
    pub(super) bound: u64,
    pub(super) doing: Doing,
    pub(super) takeovers: u8,
    /// The frontier that the last publisher found.
    pub(super) found: u64,
    pub(super) gates: Vec<Gate>,
    pub(super) broken: Option<&'static str>,
    pub(super) reached: u64,
}

/// The next step of the model.
#[derive(Debug, Clone, Copy)]
pub(super) enum Action {
    /// `Publisher::publish`, `try_publish`, or a control record.
    Publish(Patience),
    /// One system call of `One::look`. After the last system call come `Gates::decide` and the rest of the publisher's call.
    GoOn,
    /// Time passes.
    Tick,
    /// The ring is a new one, and this gate has a reader that reads the previous ring.
    Elsewhere(usize),
    /// `HeldGate::go_on`: this reader comes to the ring.
    Arrive(usize),
    /// The publisher is killed.
    Kill,
    /// `Writer::take` and `Gates::begin` of the next publisher.
    TakeOver,
    /// `HeldGate::take`: the reader takes the lock, and begins at the oldest record or at the tail.
    Take(usize, bool),
    /// `GatePage::begin`.
    Begin(usize),
    /// `Reader::poll`, and after a lap `Reader::resume`.
    Copy(usize),
    /// The first store of `GatePage::passed`. A publisher that reads the page after this store finds a wrong check word.
    Tear(usize),
    /// The last store of `GatePage::passed`.
    Pass(usize),
    /// A hostile reader claims a position that the ring has not reached.
    Lie(usize),
    /// `GatePage::leave`. The reader then reads the journal and can come back to any place, or it closes.
    Leave(usize),
    /// The reader comes back from the journal.
    Return(usize),
    /// The reader dies, or closes the file.
    Release(usize),
}
