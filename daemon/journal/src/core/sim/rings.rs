//! Tests of a channel that continues in another ring during the recording.

use super::super::Recovered;
use super::{Life, World, header};
use std::sync::Arc;

impl World {
    /// Moves the channel to another ring after everything in the old ring was taken.
    pub(super) fn change_ring(&mut self, life: &mut Life) {
        self.drain(life, usize::MAX);
        if life.packer.due() == self.tail {
            self.ring_id += 1;
            self.ring.clear();
            let due = life.packer.due();
            life.packer.go_on_in(Arc::new(header(&Recovered::default(), due, self.ring_id, self.epoch)));
            self.push(life);
        }
    }
}
