//! The state that the threads of each end share with its owner.

use shmcast_bridge::Keys;
use shmcast_bridge::status::{Board, Life, SharedHistogram};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};

use shmcast_bridge::proto::session::Session;

use crate::proto::block::Stream;
use crate::status::{Link, ReceiveCounters, SendCounters};

/// State that the threads of the end that sends share with the owner.
#[derive(Debug)]
pub(crate) struct SendState {
    pub(crate) stop: AtomicBool,
    pub(crate) leave: AtomicBool,
    pub(crate) takes_over: AtomicBool,
    /// Whether the thread with the ring has ended.
    pub(crate) is_over: AtomicBool,
    /// Requests of readers that came.
    pub(crate) wanted: AtomicU64,
    carried: Mutex<Option<(Stream, Session)>>,
    pub(crate) life: Life,
    pub(crate) counters: Board<SendCounters>,
    pub(crate) acks: SharedHistogram,
    pub(crate) link: Arc<Link>,
    pub(crate) keys: Arc<Keys>,
}

impl SendState {
    pub(crate) fn new(life: Life, link: Arc<Link>, keys: Arc<Keys>) -> Self {
        Self {
            stop: AtomicBool::new(false),
            leave: AtomicBool::new(false),
            takes_over: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            wanted: AtomicU64::new(0),
            carried: Mutex::new(None),
            life,
            counters: Board::default(),
            acks: SharedHistogram::default(),
            link,
            keys,
        }
    }

    /// The stream and the session that are sent now.
    pub(crate) fn carried(&self) -> Option<(Stream, Session)> {
        *self.carried.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note_carried(&self, carried: (Stream, Session)) {
        *self.carried.lock().unwrap_or_else(PoisonError::into_inner) = Some(carried);
    }
}

/// State that the thread of the end that receives shares with the owner.
#[derive(Debug)]
pub(crate) struct ReceiveState {
    pub(crate) stop: AtomicBool,
    pub(crate) life: Life,
    pub(crate) counters: Board<ReceiveCounters>,
    pub(crate) link: Arc<Link>,
    pub(crate) keys: Arc<Keys>,
}
