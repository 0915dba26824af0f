//! The state that the threads of each end share with its owner.

use shmcast_bridge::Keys;
use shmcast_bridge::status::{Board, Life, SharedHistogram};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::status::{Link, ReceiveCounters, SendCounters};

/// State that the threads of the end that sends share with the owner.
#[derive(Debug)]
pub(crate) struct SendState {
    pub(crate) stop: AtomicBool,
    pub(crate) end: AtomicBool,
    pub(crate) takes_over: AtomicBool,
    pub(crate) life: Life,
    pub(crate) counters: Board<SendCounters>,
    pub(crate) acks: SharedHistogram,
    pub(crate) link: Arc<Link>,
    pub(crate) keys: Arc<Keys>,
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
