//! Boards and gates of a story's channels: the daemon's configuration of them, and the readers that use them.

use super::errands::wanted;
use super::{Known, World};
use crate::actor::{Order, Subscribing};
use crate::payload::Identity;
use crate::story::{Channel, How, Shape, Start, Waiting, Whom, gate_name};
use anyhow::Result;

/// Without a daemon, each publisher whose number is a multiple of this number opens its channel without gates.
const WITHOUT_GATES: u32 = 5;

impl World<'_> {
    /// Returns the board and the gates that the next publisher of a channel must make. With a daemon, the publisher makes none.
    pub(super) fn shape(&self, channel: &Channel) -> Shape {
        let mut shape = channel.shape.clone().filter(|_| self.daemons.is_empty()).unwrap_or_default();
        if self.openings.is_multiple_of(WITHOUT_GATES) {
            shape.gates.clear();
        }
        shape
    }

    pub(super) fn attach(
        &mut self,
        who: u8,
        channel: u8,
        (start, wait): (Start, Waiting),
        (conflate, gate): (Option<u32>, Option<u8>),
    ) -> Result<bool> {
        let known = self.channel(channel);
        let (number, host) = (known.number(self.channels.len()), known.host as u8);
        let wanted = wanted(self.place(known.host), &known.channel.name);
        let gate = gate.map(|gate| gate_name(gate.into()));
        let wanted = Subscribing { host, start, wait, conflate, gate, ..wanted };
        self.order_to_attach(Whom::Reader(who), Order::Subscribe(wanted), number)
    }

    /// Searches a board in the process of a reader.
    pub(super) fn get(&mut self, who: u8, channel: u8, times: u16, pause_us: u32) -> Result<bool> {
        let Known { host, channel, .. } = self.channel(channel);
        let first = Identity { publisher: u32::from(who), counter: self.openings }.hash(6) as u32;
        let (place, channel) = (self.place(host), channel.name);
        Ok(self.order(Whom::Reader(who), Order::Get { place, channel, first, times, pause_us })?.is_some())
    }

    /// Lets all idle readers receive. Otherwise, a gate of an idle reader could refuse the last messages.
    pub(super) fn read_behind_gates(&mut self) {
        if self.channels.iter().all(|channel| channel.shape.is_none()) {
            return;
        }
        for actor in self.readers.iter_mut().flatten() {
            if actor.holds && actor.is_free() {
                actor.order(Order::Read { how: How::Mixed, ms: 0, rest_us: 0 });
            }
        }
    }
}
