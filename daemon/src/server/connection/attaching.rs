//! Attaches programs to channels, and takes channels away from their publishers.

use super::{Connection, End, LOOK_AGAIN};
use crate::server::registry::{Grant, Guest, MemoryRequest, Refused, Registry};
use crate::server::state::Newcomers;
use shmcast::control::{RefusalCode, Response};
use shmcast::hosting::fault;
use shmcast::sys::handoff;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;
use tokio::time::timeout;

impl Connection<'_> {
    /// Waits until programs that were attached to a crashed daemon have had time to attach again. Waits at most `at_most`. Returns false if
    /// this daemon ends earlier.
    async fn wait_for_those_who_come_back(&mut self, at_most: Duration) -> bool {
        self.served = None;
        let mut newcomers = self.shared.newcomers.subscribe();
        // `ServerState` owns the sender, so the sender outlives this wait.
        let _ = timeout(at_most, newcomers.wait_for(|now| *now != Newcomers::Wait)).await;
        self.wait_for_turn().await;
        *self.shared.newcomers.borrow() != Newcomers::SentAway
    }

    /// Waits until this new publisher of the channel can be let in. Returns false if this daemon ends earlier.
    async fn is_let_in(&mut self, channel: &str) -> bool {
        let pause = if self.who.pid == std::process::id() { LOOK_AGAIN } else { Duration::MAX };
        while *self.shared.newcomers.borrow() == Newcomers::Wait {
            if self.shared.registry().needs_no_grace(&self.who, channel) {
                return true;
            }
            self.wait_for_those_who_come_back(pause).await;
        }
        *self.shared.newcomers.borrow() != Newcomers::SentAway
    }

    /// Ends the connection if the program has hung up. The request of a program that left during a wait must not change the channel,
    /// because nobody would know of the change.
    fn check_presence(&self) -> Result<(), End> {
        match handoff::has_hung_up(&self.socket) {
            true => Err(End::HangUp),
            false => Ok(()),
        }
    }

    /// Waits for the memory that a channel needs to continue. If the program leaves during the wait, the memory serves the next program
    /// that needs it.
    async fn wait_for_memory(
        &mut self,
        channel: &str,
        request: MemoryRequest,
    ) -> Result<Result<(), Refused>, End> {
        self.served = None;
        let made = {
            // Each user can have only one request for memory at a time, so that users take turns. The semaphore is never closed.
            let _place = self.turns.memory.acquire().await;
            self.shared.make_memory(channel, request).await
        };
        self.wait_for_turn().await;
        self.check_presence()?;
        Ok(made)
    }

    /// Answers a request to take a channel away from its publisher.
    pub(super) async fn take_over(&mut self, channel: &str) -> Result<(), End> {
        // Programs that have not attached again yet might have the channel's memory, so they come first.
        if !fault!("takeovers_come_first") && !self.wait_for_those_who_come_back(Duration::MAX).await {
            let refused = Refused::new(RefusalCode::Failed, "this daemon ends: ask the next one");
            return self.refuse(refused, Some(channel)).await;
        }
        self.check_presence()?;
        loop {
            let needed = self.shared.registry().take_over(&self.who, channel);
            let made = match needed {
                Ok(None) => return self.send(&Response::Done {}, &[]).await,
                Ok(Some(request)) => self.wait_for_memory(channel, request).await?,
                Err(refused) => Err(refused),
            };
            if let Err(refused) = made {
                return self.refuse(refused, Some(channel)).await;
            }
        }
    }

    /// Answers a request to attach. `grant` decides on the request.
    pub(super) async fn attach(
        &mut self,
        channel: &str,
        is_let_in: bool,
        shown: &[File],
        mut grant: impl FnMut(&mut Registry, &Guest<'_>) -> Result<Grant, Refused>,
    ) -> Result<(), End> {
        if self.is_attached {
            let why = "one attachment a connection: open another";
            return Err(self.cut_off(Refused::new(RefusalCode::BadRequest, why)).await);
        }
        if !is_let_in {
            if !self.is_let_in(channel).await {
                return Err(End::HangUp);
            }
            self.check_presence()?;
        }
        loop {
            let guest = Guest {
                id: self.id,
                who: &self.who,
                channel,
                shown,
                notices: &self.notices.0,
                has_waited: *self.shared.newcomers.borrow() == Newcomers::LetIn,
            };
            let granted = grant(&mut self.shared.registry(), &guest);
            let made = match granted {
                Ok(Grant::Granted { reply, descriptors }) => {
                    self.is_attached = true;
                    let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
                    return self.send(&reply, &descriptors).await;
                }
                Ok(Grant::Unfit(found)) => return self.send(&Response::Unfit(found), &[]).await,
                Ok(Grant::NotYet) => {
                    if !self.wait_for_those_who_come_back(LOOK_AGAIN).await {
                        return Err(End::HangUp);
                    }
                    self.check_presence()?;
                    continue;
                }
                Ok(Grant::NeedsMemory(request)) => self.wait_for_memory(channel, *request).await?,
                Err(refused) => Err(refused),
            };
            if let Err(refused) = made {
                return self.refuse(refused, Some(channel)).await;
            }
        }
    }
}
