//! Requests of the suite.

use serde::Deserialize;
use std::path::PathBuf;

#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub(super) enum Request {
    Open(Open),
    Get {
        key: String,
    },
    Poll {
        most: Option<usize>,
    },
    Batch {
        most: Option<usize>,
    },
    Seek {
        sequence: u64,
    },
    Close {},
    Consume {
        #[serde(flatten)]
        at: Place,
        how: String,
        longest: usize,
    },
    Create(Create),
    Publish {
        length: usize,
        fill: u8,
        tag: u16,
        key: u8,
    },
    Produce {
        to: u64,
        longest: usize,
    },
    Drain {
        how: String,
        passes: u32,
        sequence: u64,
    },
    Live {
        messages: usize,
    },
    Fill {
        length: usize,
        messages: u64,
    },
    End {},
}

/// The request to open a reader.
#[derive(Debug, Deserialize)]
pub(super) struct Open {
    #[serde(flatten)]
    pub(super) at: Place,
    pub(super) start: Begin,
    #[serde(default)]
    pub(super) conflate: u8,
    pub(super) gate: Option<String>,
    #[serde(default)]
    pub(super) watch: u8,
}

/// The request to open a publisher.
#[derive(Debug, Deserialize)]
pub(super) struct Create {
    #[serde(flatten)]
    pub(super) at: Place,
    pub(super) capacity: u64,
    /// If given, a new channel gets a board. The text is `FIRST..END`: a payload's key is its bytes from `FIRST` to `END - 1`.
    pub(super) board: Option<String>,
    #[serde(default)]
    pub(super) keys: u64,
    #[serde(default)]
    pub(super) value: u64,
    pub(super) gate: Option<String>,
    #[serde(default)]
    pub(super) lag: u64,
    #[serde(default)]
    pub(super) wait: u64,
    #[serde(default)]
    pub(super) refuse: u8,
}

/// A channel in a directory, or of a daemon.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Place {
    pub(super) dir: Option<PathBuf>,
    pub(super) socket: Option<PathBuf>,
    pub(super) channel: String,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Begin {
    Sequence(u64),
    Word(String),
}
