//! The suite's words for the client's refusals and errors.

use super::Place;
use shmcast::control::RefusalCode;
use shmcast::{
    ChannelError, Client, GateError, LocateError, OpenError, PublishError, RecvError, Subscriber,
    SubscriberBuilder,
};

pub(super) fn subscribe(at: Place) -> std::result::Result<SubscriberBuilder, ChannelError> {
    let builder = Subscriber::builder(at.channel);
    match (at.dir, at.socket) {
        (Some(dir), _) => Ok(builder.dir(dir)),
        (None, socket) => Client::at(socket.unwrap_or_default()).map(|client| builder.client(&client)),
    }
}

pub(super) fn unpublished(error: &PublishError) -> String {
    match error {
        PublishError::TooLarge(_) => "too large".into(),
        PublishError::CutOff => "cut off".into(),
        PublishError::Full { .. } => "full".into(),
        other => other.to_string(),
    }
}

pub(super) fn locate(why: &LocateError) -> &'static str {
    match why {
        LocateError::TooOld { .. } => "too old",
        LocateError::NotYet { .. } => "not yet",
        _ => "corrupt",
    }
}

pub(super) fn reason(error: &ChannelError) -> String {
    let class = match error {
        ChannelError::Segment { source, .. } => match source {
            OpenError::Truncated { .. } => "truncated",
            OpenError::Foreign { .. } => "foreign",
            OpenError::Version { .. } => "version",
            OpenError::Checksum { .. } => "checksum",
            OpenError::Geometry(_) => "geometry",
            OpenError::Field { .. } => "field",
            _ => "system",
        },
        ChannelError::Locate { source, .. } => locate(source),
        ChannelError::InUse { .. } => "in use",
        ChannelError::NotFound { .. } => "not found",
        ChannelError::Refused { code, .. } => match code {
            RefusalCode::UnknownChannel => "not found",
            RefusalCode::Denied => "denied",
            RefusalCode::Busy => "in use",
            RefusalCode::Limit => "limit",
            RefusalCode::UnknownGate => "unknown gate",
            _ => "refused",
        },
        ChannelError::NoBoard { .. } | ChannelError::Join { .. } => "no board",
        ChannelError::Gate { why: GateError::Unknown { .. }, .. } => "unknown gate",
        ChannelError::Gate { why: GateError::Taken { .. }, .. } => "in use",
        ChannelError::NoDaemon { .. } | ChannelError::Silent { .. } => "no daemon",
        _ => return error.to_string(),
    };
    class.to_owned()
}

pub(super) fn failure(error: &RecvError) -> String {
    match error {
        RecvError::Superseded => "superseded".to_owned(),
        RecvError::Board(_) | RecvError::NoBoard => "no board".to_owned(),
        RecvError::Corrupt(_) | RecvError::Locate(_) => "corrupt".to_owned(),
        other => other.to_string(),
    }
}
