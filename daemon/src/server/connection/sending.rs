//! Sends packets to a program, and ends the connection of a program that does not read them.

use super::{Connection, End, PATIENCE, to_reply};
use crate::server::access::Identity;
use crate::server::registry::{Notice, Refused};
use crate::server::state::ServerState;
use rustix::net::{Shutdown, shutdown};
use shmcast::MAX_NAME;
use shmcast::control::{RefusalCode, Response, encode};
use shmcast::sys::handoff;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

/// The largest number of unread packets with descriptors. The kernel limits the descriptors that a user has sent and nobody has received,
/// and refuses further ones. So without this limit, a program that reads nothing would keep the daemon from passing descriptors to others.
const MOST_UNREAD: u32 = 8;
/// The first pause between two looks at a socket whose program has unread packets.
const LOOK: Duration = Duration::from_millis(1);
/// The longest pause between two looks at a socket whose program has unread packets.
const LAST_LOOK: Duration = Duration::from_secs(1);

impl Connection<'_> {
    /// Sends a refusal. The connection continues.
    pub(super) async fn refuse(&mut self, refused: Refused, channel: Option<&str>) -> Result<(), End> {
        // A name that is too long for a channel is left out, because text that a client has made up must not get into logs.
        let channel = channel.filter(|name| name.len() <= MAX_NAME);
        self.shared.events.refused(refused.code, &self.who, channel, &refused.why);
        self.send(&to_reply(&refused), &[]).await
    }

    /// Sends a refusal. The caller ends the connection after this.
    pub(super) async fn cut_off(&mut self, refused: Refused) -> End {
        match self.refuse(refused, None).await {
            Ok(()) => End::CutOff,
            Err(end) => end,
        }
    }

    /// Sends a packet that answers no request. Before a reader gets the next segment, the channel's lists are checked again. If they no
    /// longer name the user, sends a refusal instead, and ends the connection.
    pub(super) async fn notify(&mut self, Notice { reply, descriptors }: Notice) -> Result<(), End> {
        if matches!(reply, Response::Moved(_))
            && let Some(channel) = self.reads.clone()
            && !self.may_still_read(&channel).await
        {
            let why =
                format!("{} may no longer read {channel:?}: add it to the channel's subscribers", self.who);
            // A user whose names could not be looked up keeps its gates.
            if self.who.names.is_some() {
                self.shared.registry().withdraw_gates(self.id, &channel);
            }
            self.refuse(Refused::new(RefusalCode::Denied, why), Some(&channel)).await?;
            return Err(End::CutOff);
        }
        let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        self.send(&reply, &descriptors).await
    }

    /// Whether the channel's lists still name the user. The user's names can have changed since the reader attached. So they are looked up
    /// again, unless the lists name the user's number or everybody.
    async fn may_still_read(&mut self, channel: &str) -> bool {
        if !is_denied(self.shared, &Identity { names: None, ..self.who.clone() }, channel) {
            return true;
        }
        self.look_up_names().await;
        !is_denied(self.shared, &self.who, channel)
    }

    pub(super) async fn send(&mut self, reply: &Response, descriptors: &[BorrowedFd<'_>]) -> Result<(), End> {
        if !descriptors.is_empty() {
            self.count_descriptors().await?;
        }
        let packet = encode(reply);
        match handoff::send(&self.socket, &packet, descriptors) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            sent => {
                sent?;
                // Between two packets of a long answer, other connections are served.
                yield_now().await;
                return Ok(());
            }
        }
        // A program that does not read must not block the other programs of its user.
        let is_served = self.served.take().is_some();
        let write =
            self.socket.async_io(Interest::WRITABLE, || handoff::send(&self.socket, &packet, descriptors));
        match timeout(PATIENCE, write).await {
            Ok(sent) => sent?,
            Err(_) => return Err(does_not_read()),
        }
        if is_served {
            self.wait_for_turn().await;
        }
        Ok(())
    }

    /// Counts a packet with descriptors that is about to be sent. If too many earlier packets with descriptors are unread, an answer to a
    /// request waits until the program reads. For a packet that answers no request there is no wait: the connection ends.
    async fn count_descriptors(&mut self) -> Result<(), End> {
        let until = Instant::now() + PATIENCE;
        let is_served = self.served.is_some();
        loop {
            if !has_unread(&self.socket) {
                self.unread = 0;
            }
            if self.unread < MOST_UNREAD {
                break;
            }
            if !is_served || Instant::now() >= until {
                return Err(does_not_read());
            }
            // A program that does not read must not block the other programs of its user.
            self.served = None;
            sleep(LOOK).await;
        }
        self.unread += 1;
        if is_served && self.served.is_none() {
            self.wait_for_turn().await;
        }
        Ok(())
    }
}

/// Whether the channel's lists do not name this user. A channel that does not exist denies nobody.
fn is_denied(shared: &ServerState, who: &Identity, channel: &str) -> bool {
    let checked = shared.registry().check_reader(who, channel);
    checked.is_err_and(|refused| refused.code == RefusalCode::Denied)
}

/// Whether the channel's lists still name the user of another connection. The user's names are looked up again. If no names are known,
/// returns true, so that a failed look-up takes nothing from the user.
pub(super) async fn may_other_read(shared: &ServerState, who: Identity, channel: &str) -> bool {
    if !is_denied(shared, &Identity { names: None, ..who.clone() }, channel) {
        return true;
    }
    let names = shared.access.names(who.peer()).await.or(who.names.clone());
    names.is_none() || !is_denied(shared, &Identity { names, ..who }, channel)
}

fn does_not_read() -> End {
    End::Broken(io::Error::new(io::ErrorKind::TimedOut, "it does not read its answers"))
}

/// Shuts the connection down. Returns whether the program still has unread packets.
pub(super) fn end(socket: &UnixDatagram) -> bool {
    let _ = shutdown(socket, Shutdown::Both);
    has_unread(socket)
}

/// Whether the program has unread packets. If the kernel does not report this, returns false.
fn has_unread(socket: &UnixDatagram) -> bool {
    handoff::unread(socket).is_ok_and(|unread| unread > 0)
}

/// Waits until the program has read its packets or has hung up, after [`end`] has shut down the connection.
pub(super) async fn wait_until_read(socket: UnixDatagram) {
    let mut pause = LOOK;
    while has_unread(&socket) {
        sleep(pause).await;
        pause = (pause * 2).min(LAST_LOOK);
    }
}
