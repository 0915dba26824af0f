//! The part of the sending thread that only native lines need: the marks and times of messages, the key for seals, and pulses (packets that
//! report the sender's state).

use shmcast::sys::datagrams;
use shmcast::{Clock, Message, StreamId};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::line::Line;
use crate::BridgeError;
use crate::native::{Keys, KeysSeen, random_sender};
use crate::proto::claim::Election;
use crate::proto::link::BURST_BYTES;
use crate::proto::native::keys::GroupKey;
use crate::proto::native::pulse::Pulse;
use crate::proto::native::seal::Sealer;
use crate::proto::sender::{Sender, SenderConfig};
use crate::proto::session::Session;
use crate::proto::wire::Meta;
use crate::sending::Sending;
use crate::spec::{BridgeSpec, Profile, SendSpec};
use crate::thread::wall_ns;
use crate::times::{Moment, own_error_ns};

/// Splits the lines of an egress into two feeds, one for each profile (plain or native). Returns the profile and the lines of the first
/// feed, and then the lines of the second feed, which might be empty. Receivers with a lease get the first feed.
pub(super) fn split_lines(spec: &BridgeSpec, lines: Vec<Line>) -> (Profile, Vec<Line>, Vec<Line>) {
    let serves = spec.send.as_ref().is_some_and(|send| send.repair.is_some());
    let first = match spec.lines.first().filter(|_| !serves) {
        Some(line) => spec.profile_of(line),
        None => spec.profile,
    };
    let profiles = spec.lines.iter().map(|line| spec.profile_of(line));
    let (mut ours, mut others) = (Vec::new(), Vec::new());
    for (line, profile) in lines.into_iter().zip(profiles) {
        if profile == first { &mut ours } else { &mut others }.push(line);
    }
    (first, ours, others)
}

pub(super) fn sender_config(spec: &BridgeSpec, send: &SendSpec, is_paced: bool) -> SenderConfig {
    let linger_ns = send.linger().as_nanos() as u64;
    // On a paced link, a batch is at most one burst long.
    let most = if is_paced { BURST_BYTES as usize / spec.payload_bytes } else { datagrams::BATCH };
    let batch = most.clamp(1, datagrams::BATCH);
    SenderConfig { payload_bytes: spec.payload_bytes, batch, linger_ns }
}

/// Makes the sender of a feed.
pub(super) fn sender_of(
    profile: Profile,
    config: SenderConfig,
    (session, next, now_ns): (Session, u64, u64),
) -> Result<Sender, BridgeError> {
    Ok(match profile {
        Profile::Plain => Sender::new(config, session, next, now_ns),
        Profile::Native => {
            let sealer = Sealer::new(random_sender()?, false);
            Sender::native(config, session, next, now_ns, sealer)
        }
    })
}

/// Returns the other of the two profiles.
pub(super) fn other(profile: Profile) -> Profile {
    match profile {
        Profile::Plain => Profile::Native,
        Profile::Native => Profile::Plain,
    }
}

/// The state of an egress with native lines.
pub(super) struct NativeState {
    keys: Arc<Keys>,
    seen: KeysSeen,
    moment: Option<Moment>,
    /// The fields of a pulse that rarely change: the ring's identity, and the claim, rank and role of this egress. A pulse is a packet that
    /// reports the sender's state.
    state: Pulse,
}

impl NativeState {
    pub(super) fn new(keys: Arc<Keys>) -> NativeState {
        NativeState { keys, seen: KeysSeen::default(), moment: None, state: Pulse::default() }
    }

    /// Notes the stream that is sent.
    pub(super) fn set_stream(&mut self, stream: StreamId) {
        self.state.stream = stream.to_bytes();
    }

    /// Notes the claim, rank and role of this egress.
    pub(super) fn note_place(&mut self, election: &Election) {
        (self.state.claim, self.state.rank) = (election.claim(), election.rank());
        self.state.role = election.role() as u8 + 1;
    }

    /// Reads the ring's clock and the wall clock again.
    pub(super) fn look(&mut self, clock: Option<Clock>) {
        self.moment = clock.map(Moment::now);
    }

    /// Notes the ring's clock. If the ring has another clock than before, reads the ring's clock and the wall clock again.
    pub(super) fn note_clock(&mut self, clock: Clock) {
        self.moment = self.moment.map(|moment| moment.on(clock));
    }

    /// Returns the key with which packets are sealed from now on, if it has changed. The inner `None` means that packets are no longer
    /// sealed.
    pub(super) fn new_key(&mut self) -> Option<Option<GroupKey>> {
        let ring = self.seen.changed(&self.keys)?;
        Some(ring.and_then(|ring| ring.sealing(wall_ns()).copied()))
    }

    /// Returns the tag, the key and the time of a message in the form in which native lines send them.
    #[inline]
    pub(super) fn meta_of(&self, message: &Message<'_>) -> Meta {
        let time_ns = self.moment.as_ref().map_or(0, |moment| moment.wall_of(message.time));
        Meta { tag: message.tag, key: message.key, time_ns }
    }

    /// Returns a pulse (a packet with the sender's state) without the fields that the sender itself fills in. Makes one system call, for
    /// the clock's error.
    pub(super) fn pulse(&self, shared: &Sending) -> Pulse {
        let (wall_ns, clock_error_ns) = (wall_ns(), own_error_ns());
        let group = u16::try_from(shared.group.load(Ordering::Relaxed)).unwrap_or(u16::MAX);
        let longest_rtt_us = u32::try_from(shared.longest_us.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        Pulse { wall_ns, clock_error_ns, group, longest_rtt_us, ..self.state }
    }
}
