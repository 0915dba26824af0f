//! A program that a channel let in as its publisher.

use super::Notice;
use crate::server::access::{ConnectionId, Identity};
use tokio::sync::mpsc::UnboundedSender;

/// A publisher that was let in.
#[derive(Debug, Clone)]
pub(super) struct Attached {
    pub(super) id: ConnectionId,
    pub(super) who: Identity,
    pub(super) notices: UnboundedSender<Notice>,
}
