//! The receiving loop. It feeds datagrams to the state machine, and sends requests and control datagrams about leases.

use rustix::thread::sched_yield;
use shmcast::Publisher;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::IngressState;
use super::control::{is_from_server, server_of, take_word};
use super::inlet::Inlet;
use super::native::{self, NativeReceiving, head_of};
use super::port::{Port, Role, explain_a_loss, note_datagram, record_to_ring};
use super::silence::{Answer, Heard, Places, Silence};
use super::stale::Stale;
use crate::pcap::Tap;
use crate::proto::awake::Awake;
use crate::proto::control::CONTROL_MAX_BYTES;
use crate::proto::counters::Histogram;
use crate::proto::lease_client::{LeaseClient, LeaseState};
use crate::proto::native::is_native;
use crate::proto::pace::{Advice, Pace};
use crate::proto::receiver::{Origin, Receiver};
use crate::proto::session::Session;
use crate::proto::source::{Kept, SourceLock};
use crate::proto::{MAX_LINES, MAX_SERVERS, MILLISECOND_NS, SECOND_NS};
use crate::socket;
use crate::spec::WaitMode;
use crate::status::Phase;
use crate::thread::{Clock, SHOW_EVERY_NS, wall_ns};
use crate::waiting::Choice;

/// A sleeping thread wakes at least this often to check the stop flag. The unit is nanoseconds.
const LOOK_UP_NS: u64 = 20 * MILLISECOND_NS;
/// The number of turns of the loop between two yields, if the turns find no datagram. After a turn that found datagrams, the loop yields
/// immediately, so that a reader on the same CPU can run.
const TURNS_PER_YIELD: u32 = 32;
/// The number of idle turns after which the loop checks whether work is due.
const TURNS_PER_LOOK: u32 = 8;
/// While nothing is missing, the servers' socket is read only once in this many turns of the loop.
const TURNS_PER_ANSWER: u32 = 16;
/// The longest time for which a stopping bridge waits until the servers confirm that its leases are returned. It then waits for at most the
/// same time for messages that a gate of the channel holds up.
const LEAVE_NS: u64 = SECOND_NS / 2;
/// The histograms are shown once for this many updates of the counters, because a histogram is long.
const SHOWS_PER_HISTOGRAM: u64 = 10;
/// Whether one turn of the loop found datagrams in the sockets, and whether more datagrams might be waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Found {
    Nothing,
    /// The loop found datagrams, and probably no more are waiting.
    All,
    /// The loop found datagrams, and more might be waiting.
    More,
}

/// The state of the receiving loop.
pub(super) struct Receiving {
    pub(super) ports: Vec<Port>,
    pub(super) servers: Vec<SocketAddr>,
    /// The number of lines, not counting those of unicast leases.
    pub(super) lines: usize,
    pub(super) receiver: Receiver,
    pub(super) inlet: Inlet,
    /// One source lock for each line of the spec. Empty if seals make source locks unnecessary.
    pub(super) locks: Vec<SourceLock>,
    /// The state of native lines; `None` if the lines are plain.
    pub(super) native: Option<NativeReceiving>,
    pub(super) choice: Choice,
    /// The rate at which messages arrive. A thread that sleeps uses the rate to choose when it wakes.
    pub(super) pace: Pace,
    /// For each server, how many of its timeouts the loop has handled.
    pub(super) timeouts: [u64; MAX_SERVERS],
    pub(super) stale: Stale,
    pub(super) silence: Silence,
    pub(super) places: Places,
    /// Whether the spec forbids to give messages up.
    pub(super) never_skips: bool,
    /// The time at which the last native packet arrived on plain lines.
    pub(super) native_ns: Option<u64>,
    /// The last session of another feed that was reported.
    pub(super) stranger: Option<Session>,
    pub(super) to_ring: Histogram,
    /// The time at which the thread began, in nanoseconds since 1970. The histogram `to_ring` leaves out datagrams that arrived earlier.
    pub(super) since_ns: u64,
    pub(super) tap: Option<Tap>,
    pub(super) clock: Clock,
    pub(super) awake: Awake,
    /// The total time in which the receiver had not run, in nanoseconds, at the last renewal of all leases. Once the total has grown by a
    /// second, the loop renews all leases again.
    pub(super) left_out_ns: u64,
    pub(super) shared: Arc<IngressState>,
    pub(super) turns: u32,
    /// The tag that the spec gives to the session of a promoted channel.
    pub(super) tag: String,
    /// Whether the last turn found datagrams.
    pub(super) has_found: bool,
    pub(super) shown_ns: u64,
    pub(super) shows: u64,
}

impl Receiving {
    pub(super) fn run(mut self) {
        while self.turn() {}
    }

    /// Takes the datagrams that have arrived, and does the work that is due. Then waits, unless more datagrams are likely to arrive soon.
    /// Returns false once the ingress has ended.
    pub(super) fn turn(&mut self) -> bool {
        if self.shared.life.is_stopping() || self.inlet.local.error.is_some() {
            self.end();
            return false;
        }
        if self.shared.orders.is_given() && self.execute_order() {
            return false;
        }
        if self.inlet.is_waiting() && self.inlet.local.is_try_due() {
            self.inlet.catch_up(false);
        }
        // Due work is done before receiving. After receiving, it would delay a reader that waits for the CPU of this thread. A polling
        // thread that has found nothing checks for due work only in some turns.
        let now_ns = self.awake.at(self.clock.now_ns());
        if self.has_found || self.choice.mode == WaitMode::Block || self.turns.is_multiple_of(TURNS_PER_LOOK)
        {
            self.act(now_ns);
        }
        if now_ns.saturating_sub(self.shown_ns) >= SHOW_EVERY_NS {
            (self.shown_ns, self.shows) = (now_ns, self.shows + 1);
            self.renew_lines();
            self.inlet.local.look_for_files();
            self.ports.iter_mut().for_each(Port::end_window);
            self.show(self.shows.is_multiple_of(SHOWS_PER_HISTOGRAM));
            if self.shows.is_multiple_of(SHOWS_PER_HISTOGRAM) {
                self.note_silence();
            }
            self.look_up();
        }
        self.turns = self.turns.wrapping_add(1);
        let hears_servers = self.choice.mode == WaitMode::Block
            || self.turns.is_multiple_of(TURNS_PER_ANSWER)
            || !self.receiver.backlog().0.is_empty();
        let found = self.receive_all(now_ns, hears_servers);
        self.has_found = found != Found::Nothing;
        match found {
            Found::More => {}
            _ if self.receiver.next_deadline().is_some_and(|due_ns| due_ns <= now_ns) => {}
            Found::Nothing
                if self.choice.mode == WaitMode::Yield && !self.turns.is_multiple_of(TURNS_PER_YIELD) => {}
            Found::Nothing | Found::All => self.park(now_ns),
        }
        true
    }

    /// Reads the keys and the clocks again, for native lines.
    fn look_up(&mut self) {
        if let Some(native) = &mut self.native {
            native.look();
            let clock = self.inlet.local.publisher.as_ref().map(Publisher::clock);
            self.inlet.local.times.refresh(clock, self.receiver.pulse());
        }
    }

    #[cold]
    fn end(&mut self) {
        self.leave();
        // Messages that a gate still holds up after this wait are not published. An ingress that continues this session requests these
        // messages again.
        self.inlet.drain(Duration::from_nanos(LEAVE_NS));
        self.show(true);
        match self.inlet.local.error.take().or_else(|| self.inlet.unpublished()) {
            Some(why) => self.shared.life.fail(why),
            None => self.shared.life.enter(Phase::Ended),
        }
    }

    /// Takes one batch of datagrams from every socket. Skips the servers' socket unless `hears_servers` is set.
    fn receive_all(&mut self, now_ns: u64, hears_servers: bool) -> Found {
        let mut found = Found::Nothing;
        for at in 0..self.ports.len() {
            let Port { inbox, socket, role, drops, .. } = &mut self.ports[at];
            if *role == Role::Servers && !hears_servers {
                continue;
            }
            match inbox.receive(&*socket) {
                Ok(0) => drops.note_empty(),
                Ok(_) => {
                    found = found.max(if inbox.expects_more() { Found::More } else { Found::All });
                    self.handle_batch(now_ns, at);
                    self.ports[at].note_batch();
                }
                // A host has replied that no program listens on the port. The error needs no other handling: the request times out, and is
                // repeated at another server.
                Err(_) => self.inlet.counters.host.receive_errors += 1,
            }
        }
        found
    }

    fn handle_batch(&mut self, now_ns: u64, at: usize) {
        let Self { ports, servers, lines, locks, receiver, inlet, to_ring, since_ns, tap, .. } = self;
        let Self { native, native_ns, pace, .. } = self;
        let published = inlet.local.counts.published;
        let dropping_line = ports[at].line_or(*lines);
        let Port { inbox, role, drops, socket, leases, local, .. } = &mut ports[at];
        for datagram in inbox.datagrams() {
            if let Some(tap) = tap {
                let time_ns = datagram.time_ns.unwrap_or_else(wall_ns);
                tap.record(time_ns, datagram.from, *local, datagram.bytes);
            }
            let origin = if is_from_server(*role, &datagram, native.is_some()) {
                let Some(server) = server_of(servers, &datagram, inlet) else { continue };
                let lease = leases.get_mut(server);
                if take_word(now_ns, server, &datagram, lease, native.as_mut(), (receiver, inlet)) {
                    continue;
                }
                match role {
                    Role::Unicast => Origin::Line((*lines + server).min(MAX_LINES - 1)),
                    Role::Servers => Origin::Server(server),
                    Role::Line(_) | Role::Repairs => Origin::Repair(server),
                }
            } else {
                Origin::Line(role.line().unwrap_or(0))
            };
            let of_line = if let Origin::Line(line) = origin { Some(line) } else { None };
            let head = of_line.and_then(|_| head_of(native.is_some(), datagram.bytes));
            if let Some(line) = of_line {
                note_datagram(&mut inlet.counters, line, &datagram);
            }
            if native.is_none() && !matches!(origin, Origin::Server(_)) && is_native(datagram.bytes) {
                receiver.count_foreign();
                *native_ns = Some(now_ns);
                continue;
            }
            if let Some(lock) = role.line().filter(|_| of_line.is_some()).and_then(|line| locks.get_mut(line))
            {
                let (from, bytes) = (datagram.from.ip(), datagram.bytes);
                if !lock.admits(now_ns, from, (head.as_ref(), bytes), receiver.horizon()) {
                    inlet.counters.host.datagrams_locked_out += 1;
                    continue;
                }
                for kept in lock.take_kept().iter().flat_map(Kept::iter) {
                    native::take(native.as_mut(), now_ns, origin, kept, (&mut *receiver, &mut *inlet));
                }
            }
            if let (Some(line), Some(head)) = (dropping_line, &head) {
                let dropped = &mut inlet.counters.lines[line].socket.kernel_drops;
                explain_a_loss(head, socket, drops, dropped, receiver);
            }
            if datagram.is_truncated {
                // The datagram was truncated, so it is not parsed: a parser would only report that its end is missing.
                continue;
            }
            native::take(native.as_mut(), now_ns, origin, datagram.bytes, (&mut *receiver, &mut *inlet));
        }
        if inlet.local.counts.published > published {
            pace.note(now_ns);
        }
        if *role != Role::Servers {
            record_to_ring(inbox, *since_ns, to_ring);
        }
    }

    /// Does the work that is due: timeouts, requests and leases.
    fn act(&mut self, now_ns: u64) {
        if self.receiver.next_deadline().is_some_and(|due_ns| due_ns <= now_ns) {
            let inlet = &mut self.inlet;
            self.receiver.handle_timeout(now_ns, &mut |delivery| inlet.take(delivery));
        }
        self.ask_all(now_ns);
        if let Some((word, size)) = self.stale.poll(now_ns, &self.receiver) {
            (0..self.servers.len()).for_each(|server| self.tell(server, &word[..size]));
        }
        self.doubt_leases(now_ns);
        self.keep_leases(now_ns);
    }

    /// Sends the requests that are due.
    fn ask_all(&mut self, now_ns: u64) {
        let Self { ports, servers, receiver, native, inlet, tap, .. } = self;
        let port = ports.iter().find(|port| port.role == Role::Servers);
        let mut send = |server: usize, request: &[u8]| {
            let (Some(port), Some(&to)) = (port, servers.get(server)) else { return };
            inlet.counters.host.sends_refused += port.send(to, request, tap.as_ref());
        };
        match native {
            Some(native) => {
                while let Some((server, request)) = native.poll_ask(now_ns, receiver) {
                    send(server, request);
                }
            }
            None => {
                while let Some((server, request)) = receiver.poll_request(now_ns) {
                    send(server, &request);
                }
            }
        }
    }

    /// Sends a control datagram to a server.
    fn tell(&mut self, server: usize, word: &[u8]) {
        let port = self.ports.iter().find(|port| port.role == Role::Servers);
        let (Some(port), Some(&to)) = (port, self.servers.get(server)) else { return };
        let packet = native::packet_of(self.native.as_mut(), word);
        self.inlet.counters.host.sends_refused += port.send(to, packet, self.tap.as_ref());
    }

    /// Renews leases early in two cases. If a server left a request unanswered, the server might have restarted and lost its leases. If
    /// this host did not run for a second, all leases might have expired.
    fn doubt_leases(&mut self, now_ns: u64) {
        if self.awake.left_out_ns() - self.left_out_ns >= SECOND_NS {
            self.left_out_ns = self.awake.left_out_ns();
            self.ports.iter_mut().flat_map(|port| &mut port.leases).for_each(|lease| lease.doubt(now_ns));
        }
        let Some(port) = self.ports.iter_mut().find(|port| port.role == Role::Servers) else { return };
        let servers = self.receiver.counters().servers.iter().zip(&mut self.timeouts);
        for (lease, (server, known)) in port.leases.iter_mut().zip(servers) {
            if server.timeouts > *known {
                *known = server.timeouts;
                lease.doubt(now_ns);
            }
        }
    }

    fn keep_leases(&mut self, now_ns: u64) {
        for port in &mut self.ports {
            for (at, to) in self.servers.iter().enumerate() {
                let mut out = [0; CONTROL_MAX_BYTES];
                let lease = port.leases.get_mut(at);
                if let Some(size) = lease.and_then(|lease| lease.poll_transmit(now_ns, &mut out)) {
                    let packet = native::packet_of(self.native.as_mut(), &out[..size]);
                    self.inlet.counters.host.sends_refused += port.send(*to, packet, self.tap.as_ref());
                }
            }
        }
    }

    /// Waits for a datagram or for the time of the next due work.
    fn park(&self, now_ns: u64) {
        match self.choice.mode {
            WaitMode::Spin => {}
            WaitMode::Yield => sched_yield(),
            WaitMode::Block | WaitMode::Auto => {
                let leases = self.ports.iter().flat_map(|port| &port.leases);
                let due_ns =
                    leases.filter_map(LeaseClient::next_deadline).chain(self.receiver.next_deadline());
                let due_ns = due_ns.min().unwrap_or(u64::MAX);
                let due_ns = match self.pace.advice(now_ns) {
                    Advice::Poll => return sched_yield(),
                    Advice::Later(wait_ns) => due_ns.min(now_ns + wait_ns),
                    Advice::Overdue(_) | Advice::Unknown => due_ns,
                };
                let look_up_ns = match self.inlet.is_waiting() {
                    true => self.inlet.local.try_again_after().as_nanos() as u64,
                    false => LOOK_UP_NS,
                };
                let limit_ns = due_ns.saturating_sub(now_ns).min(look_up_ns);
                if limit_ns > 0 {
                    let sockets = self.ports.iter().map(|port| port.socket.as_fd());
                    socket::wait_for_any(sockets, Duration::from_nanos(limit_ns));
                }
            }
        }
    }

    /// Gives the leases back to the servers, and waits up to [`LEAVE_NS`] for the answers. If a server does not answer, the lease at this
    /// server expires by itself.
    pub(super) fn leave(&mut self) {
        let mut now_ns = self.awake.at(self.clock.now_ns());
        let until_ns = now_ns + LEAVE_NS;
        let is_gone = |lease: &LeaseClient| lease.state() == LeaseState::Gone;
        self.ports.iter_mut().flat_map(|port| &mut port.leases).for_each(|lease| lease.stop(now_ns));
        while now_ns < until_ns && !self.ports.iter().flat_map(|port| &port.leases).all(is_gone) {
            self.keep_leases(now_ns);
            let sockets = self.ports.iter().filter(|port| !port.leases.is_empty());
            socket::wait_for_any(sockets.map(|port| port.socket.as_fd()), Duration::from_millis(5));
            self.receive_all(now_ns, true);
            now_ns = self.awake.at(self.clock.now_ns());
        }
    }

    /// Notes whether packets of the feed arrive. If the feed had already ended when the bridge began, no packets are expected.
    fn note_silence(&mut self) {
        let now_ns = self.awake.at(self.clock.now_ns());
        let (lines, servers) = (&self.inlet.counters.lines, &self.receiver.counters().servers);
        let is_held =
            |port: &Port| port.leases.iter().any(|lease| matches!(lease.state(), LeaseState::Held { .. }));
        let is_full = |port: &Port| {
            port.role == Role::Unicast && port.leases.iter().any(LeaseClient::is_refused) && !is_held(port)
        };
        let answer = match () {
            () if self.ports.iter().any(is_full) => Answer::Full,
            () if self.ports.iter().any(is_held) || servers.iter().any(|server| server.packets > 0) => {
                Answer::Something
            }
            () => Answer::Nothing,
        };
        let next = self.inlet.next_sequence();
        let heard = Heard {
            now_ns,
            silence_ns: self.receiver.silence_ns(now_ns),
            datagrams: lines.iter().map(|line| line.socket.datagrams).sum(),
            unopened: self.native.as_ref().map_or(0, |native| {
                let unopened = native.unopened();
                unopened.unknown + unopened.forged
            }),
            native_ns: self.native_ns,
            answer,
            waits_for: Some(next).filter(|next| self.never_skips && *next < self.receiver.horizon()),
        };
        let silent = self.silence.look(heard, wall_ns(), &self.places);
        let silent = silent.filter(|_| !self.inlet.local.is_ended_as_found());
        *self.shared.silent.lock().unwrap_or_else(PoisonError::into_inner) = silent;
    }

    pub(super) fn show(&mut self, histograms: bool) {
        self.shared.life.note_held(self.inlet.local.held());
        let stranger = self.receiver.stranger(self.clock.now_ns());
        if stranger != std::mem::replace(&mut self.stranger, stranger) {
            self.shared.life.note_stranger(stranger);
        }
        for port in &mut self.ports {
            if let Some(line) = port.line_or(self.lines) {
                port.drops.look(&port.socket, &mut self.inlet.counters.lines[line].socket.kernel_drops);
            }
        }
        let is_held = |lease: &&LeaseClient| matches!(lease.state(), LeaseState::Held { .. });
        let held = self.ports.iter().flat_map(|port| &port.leases).filter(is_held).count();
        let next = self.inlet.next_sequence();
        let counters = &mut self.inlet.counters;
        counters.set(&self.receiver, self.servers.len());
        counters.host.leases_held = held as u64;
        let counts = self.inlet.local.counts;
        counters.host.messages_published = counts.published;
        counters.host.messages_missing = counts.missing;
        counters.host.messages_too_large = counts.too_large;
        counters.host.messages_behind = counts.behind;
        counters.host.messages_held = self.inlet.backlog.messages();
        if let Some(native) = &self.native {
            let unopened = native.unopened();
            counters.host.forged = unopened.forged;
            counters.host.replayed = unopened.replayed;
            counters.host.unopened = unopened.unknown;
            counters.host.origin_times = u64::from(self.inlet.local.times.are_kept());
            counters.host.clock_error_ns = self.inlet.local.times.own_error_ns.into();
            counters.host.sender_clock_error_ns = self.inlet.local.times.sender_error_ns.into();
        }
        counters.host.leases_full =
            self.ports.iter().flat_map(|port| &port.leases).map(LeaseClient::times_full).sum();
        counters.host.next_sequence = next;
        self.shared.counters.show(counters);
        if histograms {
            self.shared.recovery.show(&self.receiver.counters().recovery);
            self.shared.to_ring.show(&self.to_ring);
        }
    }
}
