//! Events in the layout of the header.

use crate::codes::kind;

/// The C type `shmcast_event`.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(missing_docs, reason = "the header explains each")]
pub struct Event {
    pub kind: u32,
    pub tag: u16,
    pub key: u8,
    pub reserved: u8,
    pub sequence: u64,
    pub time: u64,
    pub payload: *const u8,
    pub length: usize,
    pub what: What,
    pub reserved_too: u64,
}

/// The fields of an event that is no message.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(missing_docs, reason = "the header explains each")]
pub union What {
    pub lapped: Lapped,
    pub gap: Gap,
    pub epoch: u64,
    pub session: [u8; 10],
    pub conflated: Conflated,
}

/// The numbers of a lap.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[allow(missing_docs, reason = "the header explains each")]
pub struct Lapped {
    pub missed: u64,
    pub resumed_at: u64,
}

/// Whether a message comes from the channel's board, and how many earlier messages of its key were skipped.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[allow(missing_docs, reason = "the header explains each")]
pub struct Conflated {
    pub from_board: u64,
    pub left_out: u64,
}

/// The numbers of messages that never arrived.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[allow(missing_docs, reason = "the header explains each")]
pub struct Gap {
    pub from: u64,
    pub to: u64,
}

/// The C type `shmcast_batch`.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(missing_docs, reason = "the header explains each")]
pub struct Batch {
    pub records: *const u8,
    pub bytes: usize,
    pub messages: usize,
    pub first: u64,
    pub event: Event,
}

impl Batch {
    pub(crate) fn of(records: &shmcast::Records) -> Self {
        let bytes = records.as_bytes();
        Self {
            records: bytes.as_ptr(),
            bytes: bytes.len(),
            messages: records.len(),
            first: records.first_sequence(),
            event: records.event().map_or_else(|| Event::behind(records), |event| Event::of_other(&event)),
        }
    }
}

impl Event {
    /// No event.
    pub(crate) const NONE: Self = Self {
        kind: 0,
        tag: 0,
        key: 0,
        reserved: 0,
        sequence: 0,
        time: 0,
        payload: std::ptr::null(),
        length: 0,
        what: What { lapped: Lapped { missed: 0, resumed_at: 0 } },
        reserved_too: 0,
    };

    /// Returns the event "none", for a batch that no other event follows. If the batch's first message comes from the board, the event has
    /// that message's `left_out`: the number of messages of its key that the reader did not receive.
    fn behind(records: &shmcast::Records) -> Self {
        let conflated = records.iter().next().and_then(|message| message.conflated);
        let Some(left_out) = conflated else { return Self::NONE };
        Self { what: What { conflated: Conflated { from_board: 1, left_out } }, ..Self::NONE }
    }

    #[inline(always)]
    pub(crate) fn of_message(message: shmcast::Message<'_>) -> Self {
        let shmcast::Message { payload, sequence, tag, key, time, conflated } = message;
        Self {
            kind: kind::MESSAGE,
            tag,
            key: u8::from(key),
            reserved: 0,
            sequence,
            time,
            payload: payload.as_ptr(),
            length: payload.len(),
            what: What {
                conflated: Conflated {
                    from_board: u64::from(conflated.is_some()),
                    left_out: conflated.unwrap_or(0),
                },
            },
            reserved_too: 0,
        }
    }

    #[inline(always)]
    pub(crate) fn of(event: shmcast::Event<'_>) -> Self {
        match event {
            shmcast::Event::Message(message) => Self::of_message(message),
            other => Self::of_other(&other),
        }
    }

    #[cold]
    fn of_other(event: &shmcast::Event<'_>) -> Self {
        let mut what = What { lapped: Lapped { missed: 0, resumed_at: 0 } };
        let (mut sequence, mut tag) = (0, 0);
        let kind = match *event {
            shmcast::Event::Message(message) => return Self::of_message(message),
            shmcast::Event::Lapped(shmcast::Lapped { missed, resumed_at }) => {
                what.lapped = Lapped { missed, resumed_at };
                kind::LAPPED
            }
            shmcast::Event::Gap { from, to } => {
                what.gap = Gap { from, to };
                kind::GAP
            }
            // This is the header's event of missing messages. Its tag is the cause.
            shmcast::Event::Lost { from, to, cause } => {
                what.gap = Gap { from, to };
                tag = u16::try_from(cause.number()).unwrap_or(u16::MAX);
                kind::GAP
            }
            shmcast::Event::Live { sequence: next } => {
                sequence = next;
                kind::LIVE
            }
            shmcast::Event::NewEpoch { epoch } => {
                what.epoch = epoch;
                kind::NEW_EPOCH
            }
            shmcast::Event::PublisherGone { epoch } => {
                what.epoch = epoch;
                kind::PUBLISHER_GONE
            }
            shmcast::Event::NewSession { session } => {
                what.session = session;
                kind::NEW_SESSION
            }
            shmcast::Event::Restarted => kind::RESTARTED,
            shmcast::Event::End => kind::END,
            _ => kind::UNKNOWN,
        };
        Self { kind, tag, sequence, what, ..Self::NONE }
    }
}
