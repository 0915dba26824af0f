//! The egress sends a local channel to other hosts. It reads the ring, and packs the waiting messages into packets. If a packet is not
//! full, the egress sends it anyway, and does not wait for more messages.
//!
//! One thread reads the ring and sends to every line and lease. Another thread, `repair`, retransmits, so that retransmissions do not delay
//! live packets. The publisher waits for neither thread, unless the bridge uses a gate. If the publisher overwrites messages that the
//! bridge has not read, and no journal has them, receivers get a gap with exactly these messages.
//!
//! After the start, the first thread makes system calls only to send, sleep or yield. On native lines, it makes one more system call for
//! each pulse (a packet with the sender's state): it asks the kernel for the clock's error.

use shmcast::sys::slice;
use shmcast::{ChannelError, History, Subscriber, SubscriberBuilder, Wait};
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;

mod anew;
mod failover;
mod hearing;
mod invoker;
mod leaving;
mod line;
mod listening;
mod live;
mod native;
mod opening;
mod outlet;
mod standby;

use super::BridgeError;
use super::end::RunningEnd;
use super::origins::{Origins, run_of};
use super::pcap::Tap;
use super::proto::session::Session;
use super::renewal::Watch;
use super::repair::{Repair, RepairSockets, Surroundings};
use super::sending::Sending;
pub use super::sending::Stopped;
use super::spec::{BridgeSpec, Direction, SendSpec, WaitMode};
use super::state::Progress;
use super::status::{RepairCounters, SendCounters};
use super::thread::Clock;
use super::waiting::Choice;
use failover::Failover;
pub use invoker::EgressInvoker;
use line::Line;
use live::Live;
use opening::{Opened, ServerSockets};
use outlet::Outlet;

/// The time slice of a sending thread that polls and yields is the publisher's time slice divided by this number. If both threads share a
/// CPU, the sending thread then runs whenever the publisher yields. With equal slices, every second message might wait for the publisher's
/// next yield.
const SHORTER: u32 = 2;

/// Options that the bridge's owner sets. They are not part of the spec.
#[derive(Debug, Default)]
pub struct EgressOptions {
    /// The capture that every sent packet is copied to.
    pub tap: Option<Tap>,
    /// Whether the bridge stops after the channel is closed and the end of the session was repeated. If not, the bridge waits for the next
    /// publisher.
    pub ends_with_channel: bool,
    /// Whether everything in the channel is new, because the channel appeared while the bridge waited for it. A bridge that resumes no
    /// earlier state then begins with the oldest message, even if `from` says something else.
    pub is_channel_new: bool,
    /// The list in which the bridge notes the sessions that begin on this host.
    pub origins: Origins,
    /// The progress of an earlier egress, which this egress replaces. If the channel is still the same, this egress continues where the
    /// earlier one stopped, even if `from` says something else.
    pub after: Option<Stopped>,
}

/// A running egress. Dropping it stops it.
#[derive(Debug)]
pub struct Egress {
    end: RunningEnd,
    shared: Arc<Sending>,
    /// The address of the retransmission server, if there is one.
    repair_address: Option<SocketAddr>,
}

impl Deref for Egress {
    type Target = RunningEnd;

    fn deref(&self) -> &RunningEnd {
        &self.end
    }
}

impl DerefMut for Egress {
    fn deref_mut(&mut self) -> &mut RunningEnd {
        &mut self.end
    }
}

impl Egress {
    /// Attaches to the channel, opens the sockets and starts the threads. Blocks for `listen_ms` if a new session begins and the bridge has
    /// a multicast line.
    ///
    /// `channel` says where the channel is. Its [`history`](SubscriberBuilder::history) says where the channel's journal is. The egress
    /// sends only messages of the ring. If a receiver requests a message that the ring no longer has, the retransmission server reads this
    /// message from the journal.
    ///
    /// # Errors
    /// [`BridgeError`]. After an error nothing is left running.
    pub fn start(
        spec: &BridgeSpec,
        channel: SubscriberBuilder,
        options: EgressOptions,
    ) -> Result<Egress, BridgeError> {
        let (mut egress, live) = Egress::assemble(spec, channel, options)?;
        let polls = live.idle.yields();
        let run = move || {
            if polls {
                // If the system refuses the shorter time slice, some of the publisher's yields do not switch to this thread.
                let _ = slice::scale(1, SHORTER);
            }
            live.run();
        };
        egress.end.spawn(&format!("send-{}", spec.title()), spec.cpu, run)?;
        Ok(egress)
    }

    /// Prepares everything that the egress needs, but does not start the sending thread.
    fn assemble(
        spec: &BridgeSpec,
        channel: SubscriberBuilder,
        options: EgressOptions,
    ) -> Result<(Egress, Live), BridgeError> {
        BridgeError::check(spec)?;
        let choice = Choice::of(spec.wait);
        let spec = &BridgeSpec { wait: choice.mode, ..spec.clone() };
        let Some(Direction::Send(send)) = spec.direction() else {
            return Err(BridgeError::of(spec, "send: this bridge receives"));
        };
        // The feed is read only from the ring. A journal is read at the speed of a disk, and receivers would have to wait for it. Repairs
        // are read from the ring and the journal, on another thread.
        let (past, channel) = (channel.clone(), channel.history(History::Never));
        let opened = Opened::open(spec, send, &channel, &options)?;
        let Opened { feeds, mut refusals, attached, state, .. } = opened;
        let subscriber = &attached.subscriber;
        let begun = options.after.filter(|after| after.progress.session == feeds.session);
        let clock = Clock::start();
        let failover = Failover::open(spec, send, &feeds, subscriber, clock.now_ns(), &mut refusals)?;
        let most_leases = send.repair.as_ref().map_or(0, |repair| repair.max_leases);
        let session = feeds.session;
        let progress =
            Progress { ring: run_of(subscriber.header()), session, next: subscriber.next_sequence() };
        let state = state.map(|file| (file, progress));
        let shared =
            Arc::new(Sending::new(refusals, choice.shown.clone(), most_leases, progress.next, state));
        shared.set_session(session);
        shared.note_start(subscriber, session, opened.resumes, begun.map(|after| after.begin));
        let end = RunningEnd::new(shared.life.clone(), feeds.keys.clone());
        let mut egress = Egress { end, shared: shared.clone(), repair_address: None };
        let with = Surroundings { clock, tap: options.tap.as_ref(), link: feeds.link };
        let leases = egress.start_beside(spec, send, opened.server, past, with, opened.watch)?;
        let mut outlet = Outlet::new(spec, send, feeds, subscriber, leases, clock, shared)?;
        if opened.resumes {
            outlet.note_resumption();
        }
        outlet.counters.role = failover.as_ref().map_or(0, Failover::role);
        outlet.tap = options.tap;
        outlet.note_ring(subscriber);
        outlet.show();
        let live = Live {
            ends_with_channel: options.ends_with_channel,
            failover,
            ..Live::new(spec, channel, attached, options.origins, outlet, choice)
        };
        Ok((egress, live))
    }

    /// Starts the threads that run beside the sending thread: the repair server, the thread that writes the state file, and the thread that
    /// watches the lines. Returns the line that sends the live packets to receivers with a lease.
    fn start_beside(
        &mut self,
        spec: &BridgeSpec,
        send: &SendSpec,
        server: Option<ServerSockets<'_>>,
        channel: SubscriberBuilder,
        with: Surroundings<'_>,
        watch: Watch,
    ) -> Result<Option<Line>, BridgeError> {
        let requests = server.as_ref().map(|server| server.requests.try_clone()).transpose();
        let requests = requests.map_err(BridgeError::Start)?;
        let leases = server.map(|server| self.serve(spec, server, channel, with)).transpose()?;
        if send.state.is_some() {
            let (shared, name) = (self.shared.clone(), format!("note-{}", spec.title()));
            self.end.spawn(&name, None, move || shared.keep_noting())?;
        }
        self.watch(spec, send, (watch, requests))?;
        Ok(leases)
    }

    /// Starts the repair server. Returns the line that sends the live packets to receivers with a lease.
    fn serve(
        &mut self,
        spec: &BridgeSpec,
        ServerSockets { repair, requests, groups, live }: ServerSockets<'_>,
        channel: SubscriberBuilder,
        with: Surroundings<'_>,
    ) -> Result<Line, BridgeError> {
        let address = requests.local_addr().ok();
        let sockets = RepairSockets { requests, groups };
        let keys = self.end.keys.clone();
        let server = Repair::new(spec, repair, sockets, channel, with, keys, self.shared.clone())?;
        self.repair_address = address;
        self.end.spawn("bridge-repair", None, move || server.run())?;
        Ok(Line::to(repair.bind, address, live, false))
    }

    /// Stops the egress and returns where it stopped, so that another egress can continue there.
    pub fn into_stopped(mut self) -> Stopped {
        self.stop();
        self.join();
        self.shared.stopped()
    }

    /// Tells the egress to leave. The egress sends the messages that are in the ring at this moment, serves repairs for the time that the
    /// spec gives, and then stops. If there are other egresses of the same stream, one of them takes over immediately.
    ///
    /// Leaving does not end the session, and no packet announces that the egress leaves. The channel's publisher can continue, and another
    /// bridge can send the session.
    pub fn leave(&self) {
        self.shared.leave.store(true, Ordering::Relaxed);
    }

    /// Tells a standby to take over from the active peer. No message is lost, and the stream has no pause. If this egress is already
    /// active, nothing changes.
    ///
    /// # Errors
    /// [`BridgeError::NoPeers`] if the spec's role is `only`.
    pub fn take_over(&self) -> Result<(), BridgeError> {
        if self.shared.counters.read().role == 0 {
            return Err(BridgeError::NoPeers);
        }
        self.shared.takes_over.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the last error of writing the state file.
    pub fn state_error(&self) -> Option<String> {
        self.shared.state_error()
    }

    /// The counters of the sending thread, at most some milliseconds old.
    pub fn counters(&self) -> SendCounters {
        self.shared.counters.read()
    }

    /// The counters of the retransmission server, at most some milliseconds old.
    pub fn repair_counters(&self) -> RepairCounters {
        self.shared.repair.read()
    }

    /// The address of the retransmission server, if there is one.
    pub fn repair_address(&self) -> Option<SocketAddr> {
        self.repair_address
    }
}

/// A subscriber that a sending thread reads.
#[derive(Debug)]
pub struct Attached {
    /// The subscriber.
    pub subscriber: Subscriber,
    /// Whether a daemon wakes the thread.
    pub parks: bool,
}

/// Attaches to the channel. With [`WaitMode::Block`] the subscriber parks if a daemon can wake it.
///
/// # Errors
/// [`ChannelError`].
pub fn attach(channel: &SubscriberBuilder, wait: WaitMode) -> Result<Attached, ChannelError> {
    if wait == WaitMode::Block {
        match channel.clone().wait(Wait::Park).open() {
            Err(ChannelError::NoWaker { .. }) => {}
            opened => return opened.map(|subscriber| Attached { subscriber, parks: true }),
        }
    }
    Ok(Attached { subscriber: channel.clone().open()?, parks: false })
}

/// The tag of the sessions that this bridge begins.
fn tag_bytes(spec: &BridgeSpec) -> [u8; 4] {
    Session::of_channel(&spec.tag(), 0).map_or([0; 4], |session| session.tag())
}
