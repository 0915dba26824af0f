//! Boards and gates of a story's channels.

use super::{Change, Channel};
use crate::keys::Keys;
use serde::{Deserialize, Serialize};

/// A board, which has the last message of each key. `keys.rs` says which bytes of a message are its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Board {
    /// The number of keys for which there is room.
    pub keys: u32,
    /// The largest message on the board.
    pub value: u32,
}

/// The lag of a gate's reader from which on the publisher waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lag {
    /// The smallest lag that is allowed.
    Least,
    /// The mean of the smallest and the largest lag.
    Middle,
    /// The largest lag that is allowed.
    Most,
}

/// A gate. Its name is `g` and its number among the gates of the channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Gate {
    /// The largest lag.
    pub lag: Lag,
    /// The longest wait of one message, in microseconds.
    pub wait_us: u32,
    /// Whether the gate refuses messages after the wait. Otherwise the gate is dropped.
    pub refuse: bool,
}

/// Returns the name of the gate with this number.
pub fn gate_name(number: usize) -> String {
    format!("g{number}")
}

impl Gate {
    /// Returns the lag in bytes for a ring of this capacity, with messages of up to `largest` bytes.
    pub fn lag_bytes(self, capacity: u64, largest: u64) -> u64 {
        // The limits are those of the specification of gates (SPEC.md, 4.3).
        let chunk = chunk(capacity);
        let record = (largest + 16).next_multiple_of(64);
        let (least, most) = (2 * record + chunk + 2048, capacity - 2 * chunk);
        match self.lag {
            Lag::Least => least,
            Lag::Middle => u64::midpoint(least, most),
            Lag::Most => most,
        }
    }
}

/// Returns the size of the steps in which the publisher of a ring moves the ring's frontier.
pub fn chunk(capacity: u64) -> u64 {
    if capacity < 512 << 10 { capacity / 8 } else { (capacity / 64).max(64 << 10) }
}

/// The board and the gates of a channel, as a publisher must make them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Shape {
    /// The board.
    pub board: Option<Board>,
    /// The gates.
    pub gates: Vec<Gate>,
}

impl Channel {
    /// Changes the board or the gates, if the messages of the channel have keys.
    pub fn change_shape(&mut self, change: Change) {
        if let (Some(shape), Some(keys)) = (&mut self.shape, Keys::of(&self.name)) {
            shape.change(change, keys);
        }
    }
}

impl Shape {
    /// Changes the board or the gates. Repeated changes lead from none to different boards or gates, and then
    /// back to none.
    fn change(&mut self, change: Change, keys: Keys) {
        let least = keys.end as u32;
        match (change, self.board, &self.gates[..]) {
            (Change::Board, None, _) => self.board = Some(Board { keys: keys.used * 2, value: least + 40 }),
            (Change::Board, Some(Board { keys, value }), _) if keys % 2 == 0 => {
                self.board = Some(Board { keys: keys + 1, value: (value / 2).max(least) });
            }
            (Change::Board, ..) => self.board = None,
            (Change::Gates, _, []) => {
                self.gates = vec![Gate { lag: Lag::Middle, wait_us: 500, refuse: false }]
            }
            (Change::Gates, _, [gate]) => {
                let other = Gate { refuse: !gate.refuse, lag: Lag::Most, wait_us: 1000 };
                self.gates = vec![*gate, other];
            }
            (Change::Gates, _, [_, gate, ..]) if gate.wait_us == 1000 => {
                self.gates = vec![Gate { lag: Lag::Least, wait_us: 2000, refuse: gate.refuse }; 2];
            }
            (Change::Gates, ..) => self.gates.clear(),
            _ => {}
        }
    }
}
