//! The state that the threads of a sender or a receiver share with their owner.

use shmcast::StreamId;
use shmcast_bridge::Keys;
use shmcast_bridge::status::{Board, Life, SharedHistogram};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};

use crate::proto::block::{Carried, Damaged};
use crate::status::{Link, ReceiveCounters, SendCounters};

/// The state that the threads of a sender share with its owner.
#[derive(Debug)]
pub(crate) struct SendState {
    pub(crate) leave: AtomicBool,
    pub(crate) takes_over: AtomicBool,
    /// Whether the ring's thread has ended.
    pub(crate) is_over: AtomicBool,
    /// Number of requests of readers that arrived.
    pub(crate) wanted: AtomicU64,
    /// The stream and the session that are sent now, and the stream of the ring that has the messages.
    carried: Mutex<Option<(Carried, StreamId)>>,
    /// The reason why the last block cannot be opened.
    shut_out: Mutex<Option<Damaged>>,
    pub(crate) life: Arc<Life>,
    pub(crate) counters: Board<SendCounters>,
    pub(crate) acks: SharedHistogram,
    pub(crate) link: Arc<Link>,
    pub(crate) keys: Arc<Keys>,
}

impl SendState {
    pub(crate) fn new(life: Arc<Life>, link: Arc<Link>, keys: Arc<Keys>) -> Self {
        Self {
            leave: AtomicBool::new(false),
            takes_over: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            wanted: AtomicU64::new(0),
            carried: Mutex::new(None),
            shut_out: Mutex::new(None),
            life,
            counters: Board::default(),
            acks: SharedHistogram::default(),
            link,
            keys,
        }
    }

    /// The stream and the session that are sent now, and the stream of the ring that has the messages.
    pub(crate) fn carried(&self) -> Option<(Carried, StreamId)> {
        *self.carried.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a sentence about a last block that cannot be opened; `None` if it can be opened.
    pub(crate) fn shut_out(&self) -> Option<String> {
        let why = (*self.shut_out.lock().unwrap_or_else(PoisonError::into_inner))?;
        Some(format!(
            "NOTHING IS WRITTEN: the stream's last block does not open here: {why}. Somebody writes with other keys: give all senders of the \
             channel one keys file, or go on behind that block by `shmcast bridge takeover`"
        ))
    }

    pub(crate) fn note_shut_out(&self, why: Option<Damaged>) {
        *self.shut_out.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    pub(crate) fn note_carried(&self, carried: Carried, of_ring: StreamId) {
        *self.carried.lock().unwrap_or_else(PoisonError::into_inner) = Some((carried, of_ring));
    }
}

/// The state that the thread of a receiver shares with its owner.
#[derive(Debug)]
pub(crate) struct ReceiveState {
    pub(crate) life: Arc<Life>,
    pub(crate) counters: Board<ReceiveCounters>,
    pub(crate) link: Arc<Link>,
    pub(crate) keys: Arc<Keys>,
}
