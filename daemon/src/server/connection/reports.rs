//! Answers requests for information about channels, readers, bridges and events. Passes promotions and takeovers to the bridges.

use super::{Connection, End};
use crate::server::access::FRESH;
use crate::server::bridges::BridgeFigures;
use crate::server::events::Events;
use crate::server::journals::{Asked, Journals, Loan};
use crate::server::registry::Refused;
use shmcast::StreamId;
use shmcast::control::{Event, History, Promotion, RefusalCode, Response};
use shmcast::hosting::fault;
use shmcast::journal::Wanted;
use shmcast::journal::format::FILE_HEADER_BYTES;
use std::fmt::Display;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

/// The longest wait of a reader for its turn at a journal's file, and for a journal's first file.
const DISK_PATIENCE: Duration = Duration::from_millis(300);
/// The pause before the next search for the first file of a journal.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Readers reported in one packet.
const READERS_A_PACKET: usize = 64;

impl Connection<'_> {
    /// Sends the state of the bridges whose channels the program may read.
    pub(super) async fn report_bridges(&mut self) -> Result<(), End> {
        let readable = |figures: &BridgeFigures| {
            self.shared.registry().report(&self.who, Some(&figures.spec.channel)).is_ok()
        };
        let bridges: Vec<_> = self.shared.bridges.figures().into_iter().filter(readable).collect();
        for bridge in bridges {
            self.send(&Response::Bridge(Box::new(bridge.status())), &[]).await?;
        }
        self.send(&Response::Done {}, &[]).await
    }

    /// Lets a bridge that stands by take over from its peer.
    pub(super) fn take_over_bridge(&self, name: &str) -> Result<(), Refused> {
        let refuse = |why: String| Refused::new(RefusalCode::BadRequest, why);
        let channel = self.shared.bridges.channel_of(name);
        let channel = channel.ok_or_else(|| {
            refuse(format!("the daemon has no bridge {name:?}: `shmcast bridge status` shows its bridges"))
        })?;
        self.shared.registry().check_publisher(&self.who, &channel)?;
        self.shared.bridges.take_over(name).map_err(refuse)?;
        let events = &self.shared.events;
        events.tell("bridge-taken-over", Some(&channel), None, Some(&self.who), &format!("{name:?}"));
        Ok(())
    }

    /// Promotes a received channel, so that it becomes a channel of this host. Another thread waits for the bridge, so the wait does not
    /// block the daemon.
    pub(super) async fn promote(&mut self, channel: &str, force: bool) -> Result<Promotion, Refused> {
        self.shared.registry().check_publisher(&self.who, channel)?;
        let (bridges, name) = (self.shared.bridges.clone(), channel.to_owned());
        // During the promotion, the bridge might have to attach to its channel. If the requesting program has the same user as the bridge,
        // the bridge needs this user's turn. So the request gives up the turn for the time of the promotion.
        if !fault!("a_promotion_keeps_its_turn") {
            self.served = None;
        }
        let promoted = spawn_blocking(move || bridges.promote(&name, force)).await;
        self.wait_for_turn().await;
        let failed = |e: &dyn Display| Refused::new(RefusalCode::Failed, format!("promote: {e}"));
        let promoted = promoted.map_err(|e| failed(&e))?;
        let done = promoted.map_err(|why| Refused::new(RefusalCode::BadRequest, why))?;
        let (session, from, to) = (done.session.to_string(), done.from, done.to);
        let what = format!(
            "session {} ends, {session} begins; messages {from} to {to} will never come",
            done.before
        );
        self.shared.events.tell("bridge-promoted", Some(channel), None, Some(&self.who), &what);
        Ok(Promotion { session, from, to })
    }

    /// Sends past events, and new ones from then on.
    pub(super) async fn send_events(&mut self, last: usize) -> Result<(), End> {
        let (past, follows) = self.shared.events.subscribe(&self.who, last);
        self.follows = Some(follows);
        for event in past {
            self.send(&Response::Event(event), &[]).await?;
        }
        self.send(&Response::Done {}, &[]).await
    }

    /// Passes an event on to a program that follows events. Does nothing if the program's user is not allowed to see the event.
    pub(super) async fn pass_on(&mut self, event: Event) -> Result<(), End> {
        if self.named.elapsed() >= FRESH {
            self.look_up_names().await;
        }
        match self.shared.events.concerns(&self.who, event) {
            Some(event) => self.send(&Response::Event(event), &[]).await,
            None => Ok(()),
        }
    }

    /// Passes a file of a channel's journal to a program that may read the channel. Another thread reads the disk.
    pub(super) async fn lend_history(
        &mut self,
        channel: &str,
        stream: Option<&str>,
        wanted: Wanted,
        read: Option<u64>,
    ) -> Result<(), End> {
        let parsed = stream.and_then(StreamId::parse);
        if stream.is_some() && parsed.is_none() {
            let refused = Refused::new(RefusalCode::BadRequest, "a stream is 32 hexadecimal digits");
            return self.refuse(refused, Some(channel)).await;
        }
        let asked = Asked { stream: parsed, wanted, read };
        let loan = match self.find_history(channel, asked).await {
            Ok(loan) => loan,
            Err(refused) => return self.refuse(refused, Some(channel)).await,
        };
        let history = History {
            file: loan.lent.number,
            first: loan.lent.first,
            // This is the first frame. The reader searches for its position itself.
            offset: FILE_HEADER_BYTES as u64,
            recording: loan.is_recording,
        };
        self.send(&Response::History(history), &[loan.lent.file.as_fd()]).await
    }

    async fn find_history(&mut self, channel: &str, asked: Asked) -> Result<Loan, Refused> {
        self.shared.registry().check_reader(&self.who, channel)?;
        let journals = self.shared.journals.clone();
        let turn = journals.turn(channel).ok_or_else(|| no_journal(channel))?;
        self.served = None;
        let found = find_file(&journals, channel, &turn, asked).await;
        self.wait_for_turn().await;
        found
    }

    /// Sends the state of one channel, or of all channels that the program may read, with their readers.
    pub(super) async fn report(&mut self, only: Option<&str>) -> Result<(), End> {
        let report = self.shared.registry().report(&self.who, only);
        let channels = match report {
            Ok(channels) => channels,
            Err(refused) => return self.refuse(refused, only).await,
        };
        for mut channel in channels {
            channel.journal = self.shared.journals.status(&channel.channel);
            let readers = std::mem::take(&mut channel.readers);
            self.send(&Response::Channel(Box::new(channel)), &[]).await?;
            for some in readers.chunks(READERS_A_PACKET) {
                self.send(&Response::Readers { readers: some.to_vec() }, &[]).await?;
            }
        }
        self.send(&Response::Done {}, &[]).await
    }
}

fn no_journal(channel: &str) -> Refused {
    let why = format!("the daemon keeps no journal of channel {channel:?}, or it has no file yet");
    Refused::new(RefusalCode::NoJournal, why)
}

/// Finds the file that a reader wants. If the recorder is about to make its first file, waits for the file up to [`DISK_PATIENCE`].
async fn find_file(
    journals: &Journals,
    channel: &str,
    turn: &Arc<Semaphore>,
    asked: Asked,
) -> Result<Loan, Refused> {
    let failed = |e: &dyn Display| Refused::new(RefusalCode::Failed, format!("read the journal: {e}"));
    let until = Instant::now() + DISK_PATIENCE;
    loop {
        let is_last = Instant::now() >= until;
        let turn = timeout(DISK_PATIENCE, turn.clone().acquire_owned()).await.map_err(|_| {
            Refused::new(RefusalCode::Limit, "read the journal: others have their turn first: ask again")
        })?;
        let (lending, name) = (journals.clone(), channel.to_owned());
        let lend = move || {
            let _turn = turn;
            lending.lend(&name, asked)
        };
        let found = spawn_blocking(lend).await.map_err(|e| failed(&e))?.map_err(|e| failed(&e))?;
        if let Some(loan) = found {
            return Ok(loan);
        }
        // The recorder has perhaps taken messages from the ring already, and is about to write them into its first file.
        if !journals.may_record(channel) {
            return Err(no_journal(channel));
        }
        if is_last {
            return Err(failed(&"it has no file yet: ask again"));
        }
        sleep(LOOK_AGAIN).await;
    }
}

/// Returns the next event for a client that follows events. For other clients it never returns.
pub(super) async fn next_event(follows: &mut Option<Receiver<Event>>) -> Event {
    let Some(events) = follows else { return std::future::pending().await };
    match events.recv().await {
        Ok(event) => event,
        Err(RecvError::Lagged(lost)) => Events::lost(lost),
        Err(RecvError::Closed) => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    /// An earlier mistake: a reader that came some milliseconds before the first file was refused, and asked again a second later.
    #[tokio::test]
    async fn the_first_file_of_a_journal_is_waited_for() {
        let room = tempfile::tempdir().unwrap();
        let dir = room.path().join("journal");
        let text =
            format!("[[channel]]\nname = \"a\"\ncapacity = \"64KiB\"\njournal = {{ dir = {dir:?} }}\n");
        let config = Config::parse(&text, "test").unwrap();
        let journals = Journals::starting("a", config.channels[0].journal.as_ref().unwrap());
        let turn = journals.turn("a").unwrap();
        let asked = Asked { stream: None, wanted: Wanted::Sequence(1), read: None };
        let publisher = shmcast::Publisher::builder("a").dir(room.path()).capacity(64 << 10).open().unwrap();
        // The second branch runs at the first wait of the first branch.
        let (found, ()) = tokio::join!(find_file(&journals, "a", &turn, asked), async {
            std::fs::create_dir(&dir).unwrap();
            shmcast::journal::create(&dir, publisher.header()).unwrap();
        });
        assert!(found.unwrap().is_recording);
    }
}
