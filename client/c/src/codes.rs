//! The numbers of the header. A number never changes its meaning; a new meaning gets a new number.

/// Codes that functions return. A code says that a call was done, that an event was received, or what kind of error happened.
#[allow(missing_docs, reason = "the header explains each")]
pub mod code {
    pub const OK: i32 = 0;
    pub const EVENT: i32 = 1;
    pub const ARGUMENT: i32 = -1;
    pub const MISUSE: i32 = -2;
    pub const INTERNAL: i32 = -3;
    pub const OTHER: i32 = -4;
    pub const FORKED: i32 = -5;
    pub const NAME: i32 = -10;
    pub const NOT_FOUND: i32 = -11;
    pub const IN_USE: i32 = -12;
    pub const MISMATCH: i32 = -13;
    pub const SEGMENT: i32 = -14;
    pub const NO_ROOM: i32 = -15;
    pub const GEOMETRY: i32 = -16;
    pub const NOT_A_CHANNEL: i32 = -17;
    pub const MODE: i32 = -18;
    pub const FOREIGN_DIRECTORY: i32 = -19;
    pub const NO_DAEMON: i32 = -20;
    pub const SILENT: i32 = -21;
    pub const DENIED: i32 = -22;
    pub const LIMIT: i32 = -23;
    pub const REFUSED: i32 = -24;
    pub const NO_WAKER: i32 = -25;
    pub const OS: i32 = -26;
    pub const NO_BOARD: i32 = -27;
    pub const GATE: i32 = -28;
    pub const TOO_LARGE: i32 = -40;
    pub const OUT_OF_SEQUENCES: i32 = -41;
    pub const CUT_OFF: i32 = -42;
    pub const FULL: i32 = -43;
    pub const TOO_SMALL: i32 = -50;
    pub const CORRUPT: i32 = -51;
    pub const UNMAPPED: i32 = -52;
    pub const SUPERSEDED: i32 = -53;
    pub const TOO_OLD: i32 = -54;
    pub const NOT_YET: i32 = -55;
    pub const STALLED: i32 = -56;
    pub const BOARD: i32 = -57;
}

/// Kinds of events.
#[allow(missing_docs, reason = "the header explains each")]
pub mod kind {
    pub const MESSAGE: u32 = 1;
    pub const LAPPED: u32 = 2;
    pub const GAP: u32 = 3;
    pub const NEW_EPOCH: u32 = 4;
    pub const NEW_SESSION: u32 = 5;
    pub const RESTARTED: u32 = 6;
    pub const END: u32 = 7;
    pub const PUBLISHER_GONE: u32 = 8;
    pub const LIVE: u32 = 9;
    pub const UNKNOWN: u32 = 255;
}

/// Causes of missing messages.
#[allow(missing_docs, reason = "the header explains each")]
pub mod cause {
    pub const LINE: u32 = 0;
    pub const OVERRUN: u32 = 1;
    pub const UNRECORDED: u32 = 2;
    pub const TORN: u32 = 3;
    pub const DAMAGED: u32 = 4;
    pub const RESERVE: u32 = 5;
    pub const CUT: u32 = 6;
}

/// Values of the fields of options.
#[allow(missing_docs, reason = "the header explains each")]
pub mod option {
    pub const START_LATEST: u32 = 0;
    pub const START_OLDEST: u32 = 1;
    pub const START_SEQUENCE: u32 = 2;
    pub const START_TIME: u32 = 3;
    pub const START_KEY: u32 = 4;
    pub const START_BOARD: u32 = 5;
    pub const WAIT_YIELD: u32 = 0;
    pub const WAIT_SPIN: u32 = 1;
    pub const WAIT_BURST: u32 = 2;
    pub const WAIT_SPIN_THEN_YIELD: u32 = 3;
    pub const WAIT_BACKOFF: u32 = 4;
    pub const WAIT_SLEEP: u32 = 5;
    pub const WAIT_PARK: u32 = 6;
    pub const RESUME_OLDEST: u32 = 0;
    pub const RESUME_LATEST: u32 = 1;
    pub const RESUME_KEY: u32 = 2;
    pub const PREPARE_NOTHING: u32 = 1;
    pub const PREPARE_PREFAULT: u32 = 2;
    pub const PREPARE_HUGE_PAGES: u32 = 4;
    pub const PREPARE_LOCK: u32 = 8;
    pub const PREPARE_NUMA_NODE: u32 = 16;
    pub const ANEW: u32 = 1;
    pub const MONOTONIC: u32 = 2;
    pub const REMOVE_BY_TAG: u32 = 4;
    pub const HIDDEN: u32 = 1;
    pub const RECORD_LATENCY: u32 = 2;
    pub const WATCH_PUBLISHER: u32 = 4;
    pub const CONFLATE: u32 = 8;
    pub const GATE_REFUSES: u32 = 1;
    pub const GATE_NEVER_WAITS: u32 = 2;
}

/// States of a channel's publisher.
#[allow(missing_docs, reason = "the header explains each")]
pub mod state {
    pub const UNKNOWN: i32 = 0;
    pub const ACTIVE: i32 = 1;
    pub const RECOVERING: i32 = 2;
    pub const CLOSED: i32 = 3;
    pub const SUPERSEDED: i32 = 4;
}

/// States of a gate.
#[allow(missing_docs, reason = "the header explains each")]
pub mod gate {
    pub const ABSENT: u32 = 0;
    pub const JOINING: u32 = 1;
    pub const IN_FORCE: u32 = 2;
    pub const DROPPED: u32 = 3;
}
