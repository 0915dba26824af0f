//! The sockets of the election among the egresses (sending ends) of one stream. They send this egress's claims (announcements of its role),
//! and receive the claims and packets of the other egresses.

use shmcast::Subscriber;
use shmcast::sys::datagrams::{self, Inbox};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use super::hearing::Hearing;
use super::line::Line;
use super::opening::Feeds;
use crate::BridgeError;
use crate::native::MOST_OF_CONTROL;
use crate::origins::run_of;
use crate::proto::MILLISECOND_NS;
use crate::proto::claim::{Election, ElectionConfig, Role};
use crate::proto::control::CONTROL_MAX_BYTES;
use crate::proto::session::Session;
use crate::socket::{self, RefusedSettings, Tuning};
use crate::spec::{BridgeSpec, SendRole, SendSpec};

/// The size of a receive buffer in bytes. The buffer must have room for the packets that arrive while the loop does not run.
const BUFFER_BYTES: usize = 4 << 20;
/// The settings of the sockets that receive claims and the packets of lines.
pub(super) const EARS: Tuning = Tuning { buffer_bytes: BUFFER_BYTES, busy_poll_us: 0 };

/// The election among the egresses of a stream, and the sockets that receive the claims and packets of the peers.
pub(super) struct Failover {
    pub(super) election: Election,
    socket: UdpSocket,
    inbox: Inbox,
    peers: Vec<SocketAddr>,
    /// Receives the packets on the multicast lines, as receivers do.
    hearing: Hearing,
    /// Whether this egress receives the packets of peers on other hosts, and recognises which peer sent them.
    hears_others: bool,
    /// Whether this egress receives the packets of peers on its own host, and recognises which peer sent them.
    hears_here: bool,
    bind: SocketAddr,
    pub(super) heard_ns: u64,
    /// The sequence at which this egress began to read the ring. If the egress has received no packets of a peer, it begins to send at this
    /// sequence.
    pub(super) start_at: u64,
}

impl Failover {
    /// Opens the sockets if the spec's role is `auto`. Returns `None` for any other role.
    pub(super) fn open(
        spec: &BridgeSpec,
        send: &SendSpec,
        feeds: &Feeds,
        subscriber: &Subscriber,
        now_ns: u64,
        refusals: &mut RefusedSettings,
    ) -> Result<Option<Failover>, BridgeError> {
        let (SendRole::Auto, Some(bind)) = (send.role, send.claim_bind) else { return Ok(None) };
        let socket = socket::open_unicast(bind, EARS, refusals)?;
        socket::mark(&socket, spec.marks(), format_args!("claims from {bind}"), refusals);
        let lines: Vec<&Line> = feeds.lines.iter().chain(&feeds.others).collect();
        let ours = lines.iter().filter_map(|line| line.from).collect();
        let mut hearing = Hearing::new(spec, &feeds.keys, ours)?;
        for line in Hearing::lines_of(spec) {
            hearing.add(spec, line, EARS, refusals)?;
        }
        let mut sender = [0; 8];
        getrandom::fill(&mut sender).map_err(|e| BridgeError::Start(io::Error::other(e)))?;
        let config = ElectionConfig {
            takeover_ns: send.takeover_ms * MILLISECOND_NS,
            rank: send.rank,
            sender: u64::from_ne_bytes(sender),
        };
        let (stream, is_mirror) = stream_of(subscriber);
        Ok(Some(Failover {
            election: Election::new(config, now_ns, feeds.session, stream, is_mirror),
            socket,
            inbox: Inbox::new(MOST_OF_CONTROL),
            peers: send.peers.clone(),
            hearing,
            hears_others: hears_peers(&lines, bind),
            hears_here: hears_peers(&lines, bind) && send.loopback,
            bind,
            heard_ns: 0,
            start_at: subscriber.next_sequence(),
        }))
    }

    /// Notes that one of our lines changed its source address from `was` to `is`.
    pub(super) fn note_own(&mut self, was: Option<SocketAddr>, is: Option<SocketAddr>) {
        self.hearing.note_own(was, is);
    }

    /// Replaces the sockets of lines that were opened again. Each new socket comes with the number of its line.
    pub(super) fn renew_ears(&mut self, opened: Vec<(usize, UdpSocket)>) {
        opened.into_iter().for_each(|(at, socket)| self.hearing.renew(at, socket));
    }

    /// Returns the role of this egress as the number that the counters show.
    pub(super) fn role(&self) -> u64 {
        match self.election.role() {
            Role::Listen => 1,
            Role::Standby => 2,
            Role::Active => 3,
        }
    }

    /// Notes that the egress has attached to another ring.
    pub(super) fn note_ring(&mut self, session: Session, subscriber: &Subscriber) {
        let (stream, is_mirror) = stream_of(subscriber);
        self.election.note_ring(session, stream, is_mirror);
        self.start_at = subscriber.next_sequence();
    }

    /// Returns the election's next deadline in nanoseconds, but at most one millisecond after `now_ns`.
    pub(super) fn next_deadline(&self, now_ns: u64) -> u64 {
        self.election.next_deadline().min(now_ns + MILLISECOND_NS)
    }

    /// Receives the claims and packets that are waiting in the sockets. Takes one batch from each socket, or all packets if `all` is set.
    /// The caller sets `all` if its loop has not run for a while.
    pub(super) fn hear(&mut self, now_ns: u64, all: bool) {
        let Failover { election, socket, inbox, peers, hearing, hears_others, hears_here, bind, .. } = self;
        hearing.look();
        while inbox.receive(&*socket).is_ok_and(|received| received > 0) {
            for datagram in inbox.datagrams().filter(|datagram| peers.contains(&datagram.from)) {
                if let Some(claim) = hearing.claim_in(now_ns, datagram.bytes) {
                    let hears = if datagram.from.ip() == bind.ip() { *hears_here } else { *hears_others };
                    election.handle_claim(now_ns, datagram.from.ip(), &claim, hears);
                }
            }
            if !inbox.expects_more() && !all {
                break;
            }
        }
        hearing.hear(now_ns, all, |from, packet| {
            election.handle_packet(now_ns, from.ip(), packet.session, (packet.sequence, packet.end()));
        });
    }

    pub(super) fn send_claim(&mut self, now_ns: u64, next: u64) {
        let Some(claim) = self.election.poll_claim(now_ns, next) else { return };
        let mut out = [0; CONTROL_MAX_BYTES];
        let Some(packet) = self.hearing.packet_of(claim, &mut out) else { return };
        for peer in &self.peers {
            // Ignore an error: it means that this peer is gone. The next claim is sent soon in any case.
            let _ = datagrams::send(&self.socket, *peer, [packet]);
        }
    }

    pub(super) fn sleep(&self, limit: Duration) {
        socket::wait_for_any(self.hearing.sockets().chain([self.socket.as_fd()]), limit);
    }
}

/// Whether this egress can receive the packets of its peers and recognise their senders. For this, each peer must send its claims and the
/// packets of a multicast line from the same IP address. The peers are assumed to be configured like this egress, so the function checks
/// this egress's own addresses.
fn hears_peers(lines: &[&Line], bind: SocketAddr) -> bool {
    let is_of_line = |line: &&Line| line.from.is_some_and(|from| from.ip() == bind.ip());
    lines.iter().any(|line| line.to.ip().is_multicast() && is_of_line(line))
}

/// Returns 64 bits of the stream's identity, and whether a bridge received the ring's messages from another host.
pub(super) fn stream_of(subscriber: &Subscriber) -> (u64, bool) {
    let [first, second] = run_of(subscriber.header());
    (first ^ second.rotate_left(32), subscriber.remote_session().is_some())
}
