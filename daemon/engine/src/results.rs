//! The results of the commands about a stream, and of the check of a bridge.

use serde::Serialize;

/// A stream as its servers describe it.
#[derive(Debug, Clone, Serialize)]
pub struct StreamInfo {
    /// The stream's name.
    pub stream: String,
    /// The subjects that the stream keeps. A mirror keeps none.
    pub subjects: Vec<String>,
    /// The number of entries in the stream.
    pub entries: u64,
    /// The bytes of these entries.
    pub bytes: u64,
    /// The number of the first entry.
    pub first_entry: u64,
    /// The number of the last entry.
    pub last_entry: u64,
    /// Number of servers that keep a copy.
    pub replicas: usize,
    /// The leader, if there are several servers.
    pub leader: Option<String>,
    /// The servers that have fallen behind or cannot be reached.
    pub lagging: Vec<String>,
    /// The session of the stream's last valid block.
    pub session: Option<String>,
    /// The sequence after the last sequence in the stream.
    pub next_sequence: Option<u64>,
}

/// A range of sequences, including both ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Range {
    /// The first sequence.
    pub from: u64,
    /// The last sequence.
    pub to: u64,
}

/// The result of a check of a whole stream.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Verified {
    /// The number of valid blocks.
    pub blocks: u64,
    /// Messages in valid blocks. A message that is in several blocks counts once.
    pub messages: u64,
    /// Ranges of sequences that blocks report as lost for ever.
    pub gaps: Vec<Range>,
    /// Ranges of sequences that no block has, although blocks have lower and higher sequences.
    pub missing: Vec<Range>,
    /// Entries that are damaged, or that are no blocks. The list has the number of each entry, and the reason.
    pub damaged: Vec<(u64, String)>,
    /// Blocks whose stored CRC of the previous block differs from the CRC of the block before them in the stream.
    pub chain_breaks: u64,
    /// Sequences that are in more than one block.
    pub repeated: u64,
    /// Sealed blocks. If keys were given, the seals of these blocks were checked too.
    pub sealed: u64,
    /// The sessions, in their order.
    pub sessions: Vec<String>,
}

impl Verified {
    /// Whether the stream has no damaged entry, no missing sequence and no broken link between blocks.
    pub fn is_sound(&self) -> bool {
        self.damaged.is_empty() && self.missing.is_empty() && self.chain_breaks == 0
    }
}

/// The seriousness of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The check found no problem.
    Ok,
    /// Something might not work as intended.
    Doubtful,
    /// Something cannot work.
    Fails,
}

/// One finding of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The subject of the check.
    pub about: String,
    /// The seriousness of the finding.
    pub verdict: Verdict,
    /// The finding, and the step to take.
    pub says: String,
}

impl Finding {
    pub(crate) fn new(about: impl ToString, verdict: Verdict, says: impl ToString) -> Finding {
        Finding { about: about.to_string(), verdict, says: says.to_string() }
    }
}
