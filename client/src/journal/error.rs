//! Errors of reading a journal.

use crate::error::{ChannelError, advice, is_absent, is_shortage};
use shmcast_layout::control::RefusalCode;
use shmcast_layout::journal::{Codec, FormatError, StreamId};
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The reason why a journal cannot be read. A damaged frame is no such error: the reader reports its messages as lost.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JournalError {
    /// A call of the operating system failed.
    #[error("cannot {what} {}: {source}{}", path.display(), next_step(what, source))]
    Os {
        /// The operation.
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The directory holds no file of a journal.
    #[error("no file of a journal in {}: give the directory that was recorded to", path.display())]
    Empty {
        /// The directory.
        path: PathBuf,
    },
    /// Files of a journal lie directly in the journal's directory, and not in the folder of their stream.
    #[error(
        "{}: {}", path.display(), moving(path, *stream)
    )]
    Flat {
        /// The directory.
        path: PathBuf,
        /// The stream of the files, if the files name it.
        stream: Option<StreamId>,
    },
    /// A link has the name of a stream's folder. No reader follows the link.
    #[error(
        "{}: is a link, and the folder of a stream must be a real one: move the folder back, or make the journal's directory the link",
        path.display()
    )]
    Link {
        /// The link.
        path: PathBuf,
    },
    /// A file does not belong to a journal, or has a format that this build does not read.
    #[error("{}: {source}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The fault that was found.
        source: FormatError,
    },
    /// A frame is compressed in a way that this build cannot read.
    #[error("{}: a frame at byte {offset} is compressed by {codec}: read it with a build that has this codec", path.display())]
    Codec {
        /// The file.
        path: PathBuf,
        /// Byte offset of the frame.
        offset: u64,
        /// Name of the codec.
        codec: &'static str,
    },
    /// A recorder writes to the journal.
    #[error("{}: a recorder writes there: end it first, or wait until it has ended", path.display())]
    Busy {
        /// The directory.
        path: PathBuf,
    },
    /// A recorder writes to the journal, but has not yet reserved the channel's next sequence there.
    #[error(
        "{}: its recorder has not noted that the channel goes on at sequence {next}: a power cut would give it again. Look whether \
         the recorder runs and records this channel, and try again",
        path.display()
    )]
    Unreserved {
        /// The directory.
        path: PathBuf,
        /// The sequence of the next message.
        next: u64,
    },
    /// The journal belongs to another channel.
    #[error("{}: holds the journal of channel {found:?}, not of {channel:?}: give another directory", path.display())]
    OtherChannel {
        /// The directory.
        path: PathBuf,
        /// The channel of the journal.
        found: String,
        /// The channel that should continue after the journal.
        channel: String,
    },
    /// Files of two journals lie in one directory, so it is unknown after which journal the channel continues.
    #[error("{}: belongs to another journal than the files beside it: move it elsewhere", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The journal keeps another stream of the channel. Each stream has its own sequences from 1.
    #[error(
        "{}: holds stream {found}, not {wanted}: the channel's sequences began again in between; read it by itself, with `shmcast journal`",
        path.display()
    )]
    OtherStream {
        /// The file or directory.
        path: PathBuf,
        /// The stream that was found.
        found: StreamId,
        /// The stream that was to be read or continued.
        wanted: StreamId,
    },
    /// No sequence is left after the journal's end.
    #[error("{}: the journal has used up all sequences: move it away, and the channel begins at 1", path.display())]
    UsedUp {
        /// The directory.
        path: PathBuf,
    },
    /// The channel's ring continues at a sequence that the journal of the same stream already has, so some sequences would be used twice.
    #[error(
        "{}: the journal goes on at sequence {due}, and the channel's ring, of the same stream, at {next}: remove the \
         channel, and it begins behind the journal; or give another directory",
        path.display()
    )]
    Behind {
        /// The directory.
        path: PathBuf,
        /// The sequence due after the journal.
        due: u64,
        /// The sequence at which the ring continues.
        next: u64,
    },
    /// A daemon owns the channel, so the publisher cannot name a journal. The daemon itself continues the channel after the journal that
    /// its configuration names.
    #[error(
        "the channel is a daemon's, which goes on behind the channel's journal by itself: leave the directory out"
    )]
    Hosted,
    /// The daemon does not lend the journal.
    #[error(transparent)]
    Channel(#[from] ChannelError),
}

/// The next step after an error of the system.
fn next_step(what: &str, source: &io::Error) -> &'static str {
    match what {
        "open the directory" if is_absent(source) => ": give the directory that was recorded to",
        _ => advice(source),
    }
}

/// Returns advice for a directory that holds files of a journal directly. If `path` is the folder of one stream, the advice is to give the
/// directory above. Otherwise it is to move the files to a folder of their stream.
fn moving(path: &Path, stream: Option<StreamId>) -> String {
    let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let is_named = |stream: StreamId| whole.file_name().is_some_and(|name| *name == *stream.to_string());
    if let (true, Some(above)) = (stream.is_some_and(is_named), whole.parent()) {
        return format!("this is the folder of one stream: give its directory, {}", above.display());
    }
    let path = path.display();
    let advice = match stream {
        Some(stream) => format!("make it with `mkdir {path}/{stream} && mv {path}/*.smj* {path}/{stream}/`"),
        None => format!("move them away, with `mv {path}/*.smj*`"),
    };
    format!("files of a journal lie in the directory itself, and each stream has a folder there: {advice}")
}

impl JournalError {
    /// Makes the error for a frame that this build cannot read because it is compressed by `codec`.
    pub(super) fn codec(path: impl Into<PathBuf>, offset: u64, codec: Codec) -> Self {
        let codec = if codec == Codec::Lz4 { "LZ4" } else { "zstd" };
        Self::Codec { path: path.into(), offset, codec }
    }

    /// Whether the error says that no daemon answers now, or that the daemon has too many requests of this user. A later request can
    /// succeed.
    pub(crate) const fn is_absence(&self) -> bool {
        matches!(self, Self::Channel(ChannelError::NoDaemon { .. } | ChannelError::Silent { .. }))
            || self.is_crowded()
    }

    /// Whether the cause might pass soon, such as a lack of descriptors or memory, here or in the daemon.
    pub(crate) const fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::Os { .. }
                | Self::Channel(
                    ChannelError::Os { .. } | ChannelError::Refused { code: RefusalCode::Failed, .. }
                )
        )
    }

    /// Whether the daemon answers that it could not read the journal.
    pub(crate) const fn is_failure(&self) -> bool {
        matches!(self, Self::Channel(e) if e.is_failure())
    }

    /// Whether this error leaves it open whether the journal has a message. This is so if no daemon answers, or if descriptors or memory
    /// are short, here or in the daemon.
    pub(crate) fn is_undecided(&self) -> bool {
        let is_short = match self {
            Self::Os { source, .. } => is_shortage(source),
            Self::Channel(e) => e.is_shortage() || e.is_failure(),
            _ => false,
        };
        is_short || self.is_absence()
    }

    /// Whether the error says that there is no journal of the channel's stream.
    pub(crate) const fn is_none(&self) -> bool {
        matches!(
            self,
            Self::Empty { .. }
                | Self::OtherStream { .. }
                | Self::Channel(ChannelError::Refused { code: RefusalCode::NoJournal, .. })
        )
    }

    /// Whether the directory does not exist.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Os { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// Whether the daemon has too many requests of this user.
    pub(crate) const fn is_crowded(&self) -> bool {
        matches!(self, Self::Channel(ChannelError::Refused { code: RefusalCode::Limit, .. }))
    }

    pub(super) fn os(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Os { what, path, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An earlier mistake: if a daemon could not open a journal's file at the moment, the journal counted as gone. With the same fault in a
    /// directory, the reader waited.
    #[test]
    fn a_file_that_cannot_be_opened_now_is_waited_for_in_a_directory_and_at_a_daemon() {
        let refused = |code| JournalError::Channel(ChannelError::Refused { code, why: String::new() });
        let source = || io::Error::from(io::ErrorKind::ResourceBusy);
        assert!(JournalError::os("open", "ticks")(source()).is_passing());
        assert!(refused(RefusalCode::Failed).is_passing());
        for code in [RefusalCode::NoJournal, RefusalCode::Denied] {
            assert!(!refused(code).is_passing(), "{code:?}");
        }
        assert!(!JournalError::Empty { path: PathBuf::new() }.is_passing());
        let undecided = |source: io::Error| JournalError::os("open", "ticks")(source).is_undecided();
        assert!(undecided(rustix::io::Errno::MFILE.into()) && !undecided(source()));
        assert!(
            refused(RefusalCode::Failed).is_undecided() && !refused(RefusalCode::NoJournal).is_undecided()
        );
    }
}
