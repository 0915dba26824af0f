//! Errors. A function that fails returns a code, and stores a sentence about the error for the calling thread.

use crate::codes::code;
use shmcast::control::RefusalCode;
use shmcast::{ChannelError, LocateError, PublishError, RecvError};
use std::cell::RefCell;
use std::ffi::{CStr, c_char};
use std::fmt::{self, Display, Write};
use std::mem::offset_of;

/// Size in bytes of the buffer for an error's sentence, including the zero at the end. A longer sentence is cut.
const ROOM: usize = 1024;
/// Bytes of a gate's name, including the zero after it.
const NAME_ROOM: usize = 32;

/// The last error of a thread. This value has no destructor, so it stays valid until the thread ends.
struct Last {
    text: [u8; ROOM],
    os: i32,
    /// The name of the gate that refused a message, with a zero after it. The field `behind` is the number of bytes that the gate's reader
    /// has not read yet.
    gate: [u8; NAME_ROOM],
    behind: u64,
}

impl Last {
    const NONE: Self = Self { text: [0; ROOM], os: 0, gate: [0; NAME_ROOM], behind: 0 };
}

thread_local! {
    static LAST: RefCell<Last> = const { RefCell::new(Last::NONE) };
}

/// Writes an error's sentence into a buffer. Drops text that does not fit, and never cuts a character.
struct Text<'a> {
    room: &'a mut [u8; ROOM],
    length: usize,
}

impl Write for Text<'_> {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let mut end = more.len().min(ROOM - 1 - self.length);
        while !more.is_char_boundary(end) {
            end -= 1;
        }
        self.room[self.length..self.length + end].copy_from_slice(&more.as_bytes()[..end]);
        self.length += end;
        if end < more.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

/// The code with which a function failed. The sentence about the error is already stored for the calling thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failure(pub(crate) i32);

impl Failure {
    /// Stores the sentence for the calling thread. Replaces each zero byte in the sentence with a question mark, because a zero byte ends a
    /// text in C.
    #[cold]
    pub(crate) fn new(code: i32, sentence: impl Display) -> Self {
        Self::with_os(code, 0, sentence)
    }

    fn with_os(code: i32, os: i32, sentence: impl Display) -> Self {
        LAST.with_borrow_mut(|last| {
            let mut text = Text { room: &mut last.text, length: 0 };
            // A sentence that is cut still describes the error.
            let _ = write!(text, "{sentence}");
            let length = text.length;
            last.text[..length].iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b'?');
            last.text[length] = 0;
            (last.os, last.gate, last.behind) = (os, [0; NAME_ROOM], 0);
        });
        Self(code)
    }

    /// Returns the same failure, and puts `which` before its sentence. `which` names the item that failed, such as one
    /// subscriber of a select.
    #[cold]
    pub(crate) fn of(self, which: impl Display) -> Self {
        let (text, os) = LAST.with_borrow(|last| (last.text, last.os));
        let text = CStr::from_bytes_until_nul(&text).map_or("".into(), CStr::to_string_lossy);
        Self::with_os(self.0, os, format_args!("{which}: {text}"))
    }

    /// Makes the failure for an operation that the operating system refused. `what` names the operation.
    #[cold]
    pub(crate) fn system(what: &str, error: &std::io::Error) -> Self {
        let os = error.raw_os_error().unwrap_or(0);
        Self::with_os(code::OS, os, format_args!("cannot {what}: {error}"))
    }

    pub(crate) fn argument(sentence: impl Display) -> Self {
        Self::new(code::ARGUMENT, sentence)
    }

    #[cold]
    pub(crate) fn publishing(channel: &str, error: PublishError) -> Self {
        let code = match error {
            PublishError::TooLarge(_) => code::TOO_LARGE,
            PublishError::OutOfSequences(_) => code::OUT_OF_SEQUENCES,
            PublishError::CutOff => code::CUT_OFF,
            PublishError::Forked => code::FORKED,
            PublishError::Full { .. } => code::FULL,
            _ => code::OTHER,
        };
        let failure = Self::new(code, format_args!("channel {channel:?}: {error}"));
        if let PublishError::Full { gate, behind } = error {
            let name = gate.as_str().as_bytes();
            LAST.with_borrow_mut(|last| {
                last.gate[..name.len()].copy_from_slice(name);
                last.behind = behind;
            });
        }
        failure
    }

    #[cold]
    pub(crate) fn receiving(channel: &str, error: RecvError) -> Self {
        let code = match error {
            RecvError::TooSmall { .. } => code::TOO_SMALL,
            RecvError::Corrupt(_) => code::CORRUPT,
            RecvError::Locate(error) => locating(error),
            RecvError::Unmapped => code::UNMAPPED,
            RecvError::Superseded => code::SUPERSEDED,
            RecvError::GateLost { .. } => code::GATE,
            RecvError::Stalled { .. } => code::STALLED,
            RecvError::Forked => code::FORKED,
            RecvError::Board(_) => code::BOARD,
            RecvError::NoBoard => code::NO_BOARD,
            _ => code::OTHER,
        };
        Self::new(code, format_args!("channel {channel:?}: {error}"))
    }

    #[cold]
    pub(crate) fn seeking(channel: &str, error: LocateError) -> Self {
        Self::new(locating(error), format_args!("channel {channel:?}: {error}"))
    }
}

fn locating(error: LocateError) -> i32 {
    match error {
        LocateError::TooOld { .. } => code::TOO_OLD,
        LocateError::NotYet { .. } => code::NOT_YET,
        LocateError::Corrupt(_) => code::CORRUPT,
        LocateError::Forked => code::FORKED,
        _ => code::OTHER,
    }
}

impl From<ChannelError> for Failure {
    fn from(error: ChannelError) -> Self {
        let (code, os) = match &error {
            ChannelError::Name { .. } => (code::NAME, None),
            ChannelError::NotFound { .. } => (code::NOT_FOUND, None),
            ChannelError::InUse { .. } => (code::IN_USE, None),
            ChannelError::Mismatch { .. } | ChannelError::Schema { .. } => (code::MISMATCH, None),
            ChannelError::Segment { .. } => (code::SEGMENT, None),
            ChannelError::NoRoom { .. } => (code::NO_ROOM, None),
            ChannelError::Geometry(_) => (code::GEOMETRY, None),
            ChannelError::Locate { source, .. } => (locating(*source), None),
            ChannelError::Board(_) => (code::GEOMETRY, None),
            ChannelError::Gate { .. } => (code::GATE, None),
            ChannelError::NoBoard { .. } => (code::NO_BOARD, None),
            ChannelError::Join { .. } => (code::BOARD, None),
            ChannelError::Superseded { .. } => (code::SUPERSEDED, None),
            ChannelError::NotAChannel { .. } => (code::NOT_A_CHANNEL, None),
            ChannelError::Mode { .. } => (code::MODE, None),
            ChannelError::ForeignDirectory { .. } => (code::FOREIGN_DIRECTORY, None),
            ChannelError::NoDaemon { source, .. } => (code::NO_DAEMON, source.raw_os_error()),
            ChannelError::Silent { .. } => (code::SILENT, None),
            ChannelError::Refused { code, .. } => (refused(*code), None),
            ChannelError::NoWaker { .. } => (code::NO_WAKER, None),
            ChannelError::Os { source, .. } | ChannelError::Private { source, .. } => {
                (code::OS, source.raw_os_error())
            }
            _ => (code::OTHER, None),
        };
        Self::with_os(code, os.unwrap_or(0), error)
    }
}

fn refused(why: RefusalCode) -> i32 {
    match why {
        RefusalCode::UnknownChannel => code::NOT_FOUND,
        RefusalCode::Busy => code::IN_USE,
        RefusalCode::Denied => code::DENIED,
        RefusalCode::Limit => code::LIMIT,
        RefusalCode::UnknownGate => code::GATE,
        _ => code::REFUSED,
    }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn shmcast_error_message() -> *const c_char {
    text_at(offset_of!(Last, text))
}

/// Returns a pointer to a text of this thread's last error. `offset` is the offset of the text in `Last`.
fn text_at(offset: usize) -> *const c_char {
    LAST.with(|last| last.as_ptr().cast::<c_char>().wrapping_add(offset))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn shmcast_error_os() -> i32 {
    LAST.with_borrow(|last| last.os)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn shmcast_error_gate() -> *const c_char {
    text_at(offset_of!(Last, gate))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn shmcast_error_behind() -> u64 {
    LAST.with_borrow(|last| last.behind)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn shmcast_error_name(code: i32) -> *const c_char {
    name(code).as_ptr()
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn shmcast_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => panic!("a version with a zero byte"),
        };
    VERSION.as_ptr()
}

const fn name(code: i32) -> &'static CStr {
    match code {
        code::OK => c"ok",
        code::EVENT => c"event",
        code::ARGUMENT => c"argument",
        code::MISUSE => c"misuse",
        code::INTERNAL => c"internal",
        code::OTHER => c"other",
        code::NAME => c"name",
        code::NOT_FOUND => c"not found",
        code::IN_USE => c"in use",
        code::MISMATCH => c"mismatch",
        code::SEGMENT => c"segment",
        code::NO_ROOM => c"no room",
        code::GEOMETRY => c"geometry",
        code::NOT_A_CHANNEL => c"not a channel",
        code::MODE => c"mode",
        code::FOREIGN_DIRECTORY => c"foreign directory",
        code::NO_DAEMON => c"no daemon",
        code::SILENT => c"silent",
        code::DENIED => c"denied",
        code::LIMIT => c"limit",
        code::REFUSED => c"refused",
        code::NO_WAKER => c"no waker",
        code::OS => c"os",
        code::NO_BOARD => c"no board",
        code::GATE => c"gate",
        code::TOO_LARGE => c"too large",
        code::OUT_OF_SEQUENCES => c"out of sequences",
        code::FORKED => c"forked",
        code::CUT_OFF => c"cut off",
        code::FULL => c"full",
        code::TOO_SMALL => c"too small",
        code::CORRUPT => c"corrupt",
        code::UNMAPPED => c"unmapped",
        code::SUPERSEDED => c"superseded",
        code::TOO_OLD => c"too old",
        code::NOT_YET => c"not yet",
        code::STALLED => c"stalled",
        code::BOARD => c"board",
        _ => c"unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last() -> String {
        // SAFETY: the pointer leads to this thread's text, which always ends with a zero byte. Nothing changes the text meanwhile.
        unsafe { CStr::from_ptr(shmcast_error_message()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_sentence_that_is_too_long_is_cut_between_characters() {
        assert_eq!(last(), "", "before the first error");
        let _ = Failure::argument("a\u{e9}".repeat(ROOM));
        assert_eq!(last().len(), ROOM - 1);
        let _ = Failure::argument(format_args!("{}\u{20ac}!", "x".repeat(ROOM - 2)));
        assert_eq!(last(), "x".repeat(ROOM - 2));
        let _ = Failure::argument("zero\0in it");
        assert_eq!(last(), "zero?in it");
        assert!(std::thread::spawn(|| last().is_empty()).join().unwrap(), "each thread has its own");
    }
}
