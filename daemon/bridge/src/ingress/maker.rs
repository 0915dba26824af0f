//! A thread that opens the local channel. Allocating the memory of a large ring takes seconds, and the receiving thread continues to empty
//! its sockets meanwhile.

use shmcast::{ChannelError, Publisher, PublisherBuilder};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use crate::BridgeError;
use crate::thread::spawn;

type Made = Result<Publisher, ChannelError>;

/// A thread that opens channels, one at a time.
#[derive(Debug)]
pub(super) struct Maker {
    /// `None` once the maker is being dropped.
    orders: Option<Sender<PublisherBuilder>>,
    made: Receiver<Made>,
    thread: Option<JoinHandle<()>>,
    is_busy: bool,
}

impl Maker {
    /// Starts the thread. It runs on the caller's CPUs, not on the CPU of a pinned receiving thread.
    pub(super) fn start(title: &str) -> Result<Maker, BridgeError> {
        let (orders, taken) = channel::<PublisherBuilder>();
        let (give, made) = channel();
        let thread = spawn(&format!("make-{title}"), None, move || {
            for order in taken {
                if give.send(order.open()).is_err() {
                    return;
                }
            }
        })?;
        Ok(Maker { orders: Some(orders), made, thread: Some(thread), is_busy: false })
    }

    pub(super) fn is_busy(&self) -> bool {
        self.is_busy
    }

    pub(super) fn order(&mut self, channel: PublisherBuilder) {
        if let Some(orders) = &self.orders {
            self.is_busy = orders.send(channel).is_ok();
        }
    }

    /// Returns the channel that was ordered, once it is open.
    pub(super) fn take(&mut self) -> Option<Made> {
        match self.made.try_recv() {
            Ok(made) => {
                self.is_busy = false;
                Some(made)
            }
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => None,
        }
    }

    /// Like `take`, but waits until the channel is open.
    pub(super) fn wait(&mut self) -> Option<Made> {
        let made = self.is_busy.then(|| self.made.recv().ok()).flatten();
        self.is_busy = false;
        made
    }
}

impl Drop for Maker {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
