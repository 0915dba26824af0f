//! Errors as exceptions. The classes are in `python/shmcast/_errors.py`. Each exception has a `code` whose meaning never changes, and the
//! operating system's `os_errno`.

use pyo3::prelude::*;
use shmcast::control::RefusalCode;
use shmcast::{ChannelError, LocateError, PublishError, RecvError};

/// Makes an exception of the class for this code. `shmcast.h` has the same codes, as `SHMCAST_ERROR_...`.
#[cold]
fn exception(code: &str, sentence: &str, os: Option<i32>) -> PyErr {
    Python::attach(|py| {
        let make = || py.import("shmcast._errors")?.getattr("make")?.call1((code, sentence, os));
        make().map_or_else(|error| error, PyErr::from_value)
    })
}

pub(crate) fn misuse(code: &str, sentence: &str) -> PyErr {
    exception(code, sentence, None)
}

/// Makes an exception for a call that the system refused.
#[cold]
pub(crate) fn system(what: &str, error: &std::io::Error) -> PyErr {
    exception("os", &format!("cannot {what}: {error}"), error.raw_os_error())
}

#[cold]
pub(crate) fn opening(error: &ChannelError) -> PyErr {
    let (code, os) = match error {
        ChannelError::Name { .. } => ("name", None),
        ChannelError::NotFound { .. } => ("not found", None),
        ChannelError::InUse { .. } => ("in use", None),
        ChannelError::Mismatch { .. } | ChannelError::Schema { .. } => ("mismatch", None),
        ChannelError::Segment { .. } => ("segment", None),
        ChannelError::NoRoom { .. } => ("no room", None),
        ChannelError::Geometry(_) => ("geometry", None),
        ChannelError::Locate { source, .. } => (locating(source), None),
        ChannelError::Board(_) => ("geometry", None),
        ChannelError::Gate { .. } => ("gate", None),
        ChannelError::NoBoard { .. } => ("no board", None),
        ChannelError::Join { .. } => ("board", None),
        ChannelError::Superseded { .. } => ("superseded", None),
        ChannelError::NotAChannel { .. } => ("not a channel", None),
        ChannelError::Mode { .. } => ("mode", None),
        ChannelError::ForeignDirectory { .. } => ("foreign directory", None),
        ChannelError::NoDaemon { source, .. } => ("no daemon", source.raw_os_error()),
        ChannelError::Silent { .. } => ("silent", None),
        ChannelError::Refused { code, .. } => (refused(*code), None),
        ChannelError::NoWaker { .. } => ("no waker", None),
        ChannelError::Os { source, .. } | ChannelError::Private { source, .. } => {
            ("os", source.raw_os_error())
        }
        _ => ("other", None),
    };
    exception(code, &error.to_string(), os)
}

fn refused(why: RefusalCode) -> &'static str {
    match why {
        RefusalCode::UnknownChannel => "not found",
        RefusalCode::Busy => "in use",
        RefusalCode::Denied => "denied",
        RefusalCode::Limit => "limit",
        RefusalCode::UnknownGate => "gate",
        _ => "refused",
    }
}

fn locating(error: &LocateError) -> &'static str {
    match error {
        LocateError::TooOld { .. } => "too old",
        LocateError::NotYet { .. } => "not yet",
        LocateError::Corrupt(_) => "corrupt",
        LocateError::Forked => "forked",
        _ => "other",
    }
}

#[cold]
pub(crate) fn seeking(channel: &str, error: &LocateError) -> PyErr {
    exception(locating(error), &format!("channel {channel:?}: {error}"), None)
}

#[cold]
pub(crate) fn receiving(channel: &str, error: &RecvError) -> PyErr {
    let code = match error {
        RecvError::TooSmall { .. } => "too small",
        RecvError::Corrupt(_) => "corrupt",
        RecvError::Locate(error) => locating(error),
        RecvError::Unmapped => "unmapped",
        RecvError::Superseded => "superseded",
        RecvError::GateLost { .. } => "gate",
        RecvError::Stalled { .. } => "stalled",
        RecvError::Board(_) => "board",
        RecvError::NoBoard => "no board",
        _ => "other",
    };
    exception(code, &format!("channel {channel:?}: {error}"), None)
}

/// Makes a `FullError`, which names the gate that refused the message.
#[cold]
fn full(channel: &str, error: &PublishError, gate: &str, behind: u64) -> PyErr {
    let refused = exception("full", &format!("channel {channel:?}: {error}"), None);
    Python::attach(|py| {
        let value = refused.value(py);
        let set = || value.setattr("gate", gate).and_then(|()| value.setattr("behind", behind));
        set().map_or_else(|error| error, |()| refused.clone_ref(py))
    })
}

#[cold]
pub(crate) fn publishing(channel: &str, error: &PublishError) -> PyErr {
    let code = match error {
        PublishError::TooLarge(_) => "too large",
        PublishError::OutOfSequences(_) => "out of sequences",
        PublishError::Full { gate, behind } => return full(channel, error, gate.as_str(), *behind),
        PublishError::CutOff => "cut off",
        _ => "other",
    };
    exception(code, &format!("channel {channel:?}: {error}"), None)
}
