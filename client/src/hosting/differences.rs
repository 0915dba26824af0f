//! The differences between a segment and the spec that it should have.
//!
//! Functions of this module have no examples, because they are useful only with a control socket.

use super::{HostedSegment, HostedSpec};
use crate::board::BoardSpec;
use crate::clock::Clock;
use crate::publisher::required::check;
use shmcast_layout::control::{Properties, Required, SchemaTerms};

impl HostedSpec {
    /// Returns the properties of the channel if they do not satisfy `required`, and otherwise `None`.
    pub fn unfit(&self, required: &Required) -> Option<Properties> {
        let (id, name) = self.schema.clone();
        let found = Properties {
            capacity: self.capacity,
            max_message: self.max_message_bytes().ok()?,
            schema: SchemaTerms { id, name },
            board: self.board.map(|BoardSpec(spec)| spec.into()),
        };
        check(&self.name, required, &found).is_err().then_some(found)
    }
}

impl HostedSegment {
    /// Returns the settings in which the segment differs from `spec`, by their names in the daemon's configuration. Labels are not
    /// compared. If an earlier host made the segment, its preparation is unknown, and counts as equal.
    pub fn differences(&self, spec: &HostedSpec) -> Vec<&'static str> {
        let header = self.header();
        let (found, wanted) = (header.geometry, spec.preparation);
        let asked = self.asked.unwrap_or(wanted);
        let is_large_enough = spec.max_message_bytes().is_ok_and(|bytes| bytes == found.max_message);
        let differs = [
            ("capacity", spec.capacity != found.capacity),
            // The default of `max_message` depends on the capacity. So the default is compared only if the capacities are equal.
            (
                "max_message",
                (spec.max_message.is_some() || spec.capacity == found.capacity) && !is_large_enough,
            ),
            ("schema_id", spec.schema.0 != header.schema_id),
            ("schema", spec.schema.1 != header.schema),
            ("board", spec.board != self.board()),
            ("clock", Clock::of_kind(spec.clock).kind() != header.clock),
            ("mlock", asked.lock != wanted.lock),
            ("hugepages", asked.huge_pages != wanted.huge_pages),
            ("numa_node", asked.numa_node != wanted.numa_node),
        ];
        differs.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
    }
}
