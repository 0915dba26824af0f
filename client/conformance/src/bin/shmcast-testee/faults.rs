//! Planted faults, and the text of each event that the testee reports.

use super::words::failure;
use shmcast::{BoardEntry, Event, Lapped, Message, RecvError};

/// The faults that can be planted. The number of a fault is the level of the suite that finds it.
pub(super) const FAULTS: [(&str, u8); 35] = [
    ("gaps-are-not-told", 2),
    ("a-lap-counts-one-less", 2),
    ("ends-come-twice", 2),
    ("the-key-mark-is-lost", 2),
    ("seek-begins-one-later", 2),
    ("a-batch-ends-at-a-pad", 2),
    ("any-header-is-accepted", 1),
    ("a-poll-looks-once", 2),
    ("tags-have-a-byte", 2),
    ("times-have-32-bits", 2),
    ("takeovers-are-not-told", 2),
    ("sessions-have-8-bytes", 2),
    ("a-removed-channel-ends", 3),
    ("missed-messages-do-not-count", 4),
    ("published-tags-are-lost", 7),
    ("any-lock-is-ignored", 7),
    ("the-last-byte-is-not-published", 7),
    ("restarts-are-not-told", 6),
    ("deaths-are-not-told", 6),
    ("the-board-is-the-oldest", 8),
    ("nothing-is-left-out", 8),
    ("live-is-not-told", 8),
    ("what-was-left-out-is-not-counted", 8),
    ("a-key-counts-one-less", 8),
    ("too-large-is-nothing", 8),
    ("no-board-is-made", 8),
    ("values-have-more-room", 8),
    ("no-gate-is-taken", 9),
    ("gates-are-kept", 9),
    ("positions-run-ahead", 9),
    ("positions-stand-still", 9),
    ("no-gate-is-made", 9),
    ("lags-are-longer", 9),
    ("refusals-and-drops-are-swapped", 9),
    ("full-is-not-told", 9),
];

/// The planted fault.
pub(super) struct Fault(pub(super) Option<String>);

impl Fault {
    pub(super) fn has(&self, fault: &str) -> bool {
        assert!(FAULTS.iter().any(|(name, _)| *name == fault), "{fault} stands in the list");
        self.0.as_deref() == Some(fault)
    }

    fn tell_message(&self, message: Message<'_>) -> String {
        let Message { payload, sequence, tag, key, time, conflated, .. } = message;
        let key = u8::from(key && !self.has("the-key-mark-is-lost"));
        let tag = if self.has("tags-have-a-byte") { tag & 0xff } else { tag };
        let time = if self.has("times-have-32-bits") { time & 0xffff_ffff } else { time };
        let (length, crc) = (payload.len(), crc32c::crc32c(payload));
        let told =
            format!("message {sequence} tag={tag} key={key} time={time} length={length} crc={crc:08x}");
        match conflated {
            None => told,
            Some(_) if self.has("what-was-left-out-is-not-counted") => format!("{told} conflated=0"),
            Some(left_out) => format!("{told} conflated={left_out}"),
        }
    }

    /// Returns the text of the event for an entry of a board.
    pub(super) fn tell_entry(&self, entry: &BoardEntry<'_>) -> String {
        let count = entry.count - u64::from(self.has("a-key-counts-one-less"));
        match entry.message {
            Some(message) => format!("{} count={count}", self.tell_message(message)),
            None if self.has("too-large-is-nothing") => String::new(),
            None => format!("too large count={count}"),
        }
    }

    pub(super) fn tell(&self, event: Event<'_>, events: &mut Vec<String>) {
        let text = match event {
            Event::Message(message) => self.tell_message(message),
            Event::Lapped(Lapped { missed, resumed_at }) => {
                format!("lapped {} {resumed_at}", missed - u64::from(self.has("a-lap-counts-one-less")))
            }
            Event::Gap { .. } if self.has("gaps-are-not-told") => return,
            Event::Gap { from, to } => format!("gap {from} {to}"),
            Event::NewEpoch { .. } if self.has("takeovers-are-not-told") => return,
            Event::NewEpoch { epoch } => format!("epoch {epoch}"),
            Event::NewSession { session } => {
                let most = if self.has("sessions-have-8-bytes") { 8 } else { 10 };
                format!(
                    "session {}",
                    session.iter().take(most).map(|byte| format!("{byte:02x}")).collect::<String>()
                )
            }
            Event::Live { .. } if self.has("live-is-not-told") => return,
            Event::Live { sequence } => format!("live {sequence}"),
            Event::End => {
                if self.has("ends-come-twice") {
                    events.push("end".into());
                }
                "end".into()
            }
            Event::Restarted if self.has("restarts-are-not-told") => return,
            Event::PublisherGone { .. } if self.has("deaths-are-not-told") => return,
            Event::Restarted => "restarted".into(),
            Event::PublisherGone { epoch } => format!("gone {epoch}"),
            other => format!("{other:?}"),
        };
        events.push(text);
    }
}

impl Fault {
    pub(super) fn failure(&self, error: &RecvError) -> String {
        match error {
            RecvError::Superseded if self.has("a-removed-channel-ends") => "end".to_owned(),
            other => failure(other),
        }
    }
}
