//! A subscriber that holds a gate. The subscriber writes to the gate's page how far it has read.

use super::{Doubt, Subscriber};
use crate::gate::GateName;

impl Subscriber {
    /// The gate that this subscriber holds.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use shmcast::{Gate, Publisher, Subscriber};
    /// let publisher = Publisher::builder("t").dir(dir.path()).capacity(1 << 20).gate(Gate::new("risk")).open()?;
    /// let subscriber = Subscriber::builder("t").dir(dir.path()).gate("risk").open()?;
    /// assert_eq!(subscriber.gate().expect("asked for").as_str(), "risk");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn gate(&self) -> Option<GateName> {
        self.gate.as_ref().map(|gate| gate.name())
    }

    /// Writes the subscriber's place in the ring to the gate's page. The publisher can then overwrite the records before this place.
    ///
    /// - While the subscriber returns messages of the board, the place is the one at which the subscriber will continue in the ring.
    /// - While the subscriber reads the journal, or has a loss to report, the page says that the subscriber has no place in the ring.
    ///   Otherwise the publisher would wait until the subscriber has read the whole journal.
    #[inline]
    pub(super) fn note_passed(&self) {
        let Some(gate) = &self.gate else { return };
        let place = match self.doubt {
            Doubt::None | Doubt::Epoch => Some(self.reader.place()),
            Doubt::Board => self.place_after_board(),
            Doubt::Behind | Doubt::Past => None,
        };
        match place {
            Some(place) => gate.passed(place),
            None => gate.leave(),
        }
    }

    /// Whether messages must be returned one by one. This is the case if each message needs other checks besides the check for the gate.
    #[inline]
    pub(super) fn checks_each(&self) -> bool {
        let is_only_gated = || {
            let is_plain = !self.is_strict() && self.tags.is_none() && !self.is_conflating();
            self.gate.is_some() && is_plain && self.doubt == Doubt::None
        };
        self.is_checked && !is_only_gated()
    }
}
