//! Answers to questions of programs: channels and their readers, bridges, events. Nothing here changes the state of the daemon.

use super::{Connection, End};
use crate::server::bridges::BridgeFigures;
use crate::server::registry::Refused;
use shmcast::control::{Event, RefusalCode, Response};
use tokio::sync::broadcast::{Receiver, error::RecvError};

/// Readers reported in one packet.
const READERS_A_PACKET: usize = 64;

impl Connection<'_> {
    /// Sends what is known of the bridges of those channels that the program may read.
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

    /// Makes a bridge that stands by send in place of its peer.
    pub(super) fn take_over_bridge(&self, name: &str) -> Result<(), Refused> {
        let refuse = |why: String| Refused::new(RefusalCode::BadRequest, why);
        let channel = self.shared.bridges.channel_of(name);
        let channel = channel.ok_or_else(|| refuse(format!("the daemon has no bridge {name:?}")))?;
        self.shared.registry().check_publisher(&self.who, &channel)?;
        self.shared.bridges.take_over(name).map_err(refuse)?;
        let events = &self.shared.events;
        events.tell("bridge-taken-over", Some(&channel), None, Some(&self.who), &format!("{name:?}"));
        Ok(())
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

    /// Answers a program that may read the channel and asks for its journal: this daemon keeps none.
    pub(super) async fn lend_history(&mut self, channel: &str) -> Result<(), End> {
        let readable = self.shared.registry().check_reader(&self.who, channel);
        let none = || {
            Refused::new(
                RefusalCode::NoJournal,
                format!("the daemon keeps no journal of channel {channel:?}"),
            )
        };
        self.refuse(readable.err().unwrap_or_else(none), Some(channel)).await
    }

    /// Sends a channel, or all that the program may read, with their readers.
    pub(super) async fn report(&mut self, only: Option<&str>) -> Result<(), End> {
        let report = self.shared.registry().report(&self.who, only);
        let channels = match report {
            Ok(channels) => channels,
            Err(refused) => return self.refuse(refused, only).await,
        };
        for mut channel in channels {
            let readers = std::mem::take(&mut channel.readers);
            self.send(&Response::Channel(Box::new(channel)), &[]).await?;
            for some in readers.chunks(READERS_A_PACKET) {
                self.send(&Response::Readers { readers: some.to_vec() }, &[]).await?;
            }
        }
        self.send(&Response::Done {}, &[]).await
    }
}

/// The next event for a client that follows events. For any other client it never completes.
pub(super) async fn next_event(follows: &mut Option<Receiver<Event>>) -> Event {
    let Some(events) = follows else { return std::future::pending().await };
    match events.recv().await {
        Ok(event) => event,
        Err(RecvError::Lagged(lost)) => Event {
            time_ns: 0,
            event: "lost".into(),
            channel: None,
            role: None,
            process: None,
            detail: Some(format!("{lost} events came faster than they were read")),
        },
        Err(RecvError::Closed) => std::future::pending().await,
    }
}
