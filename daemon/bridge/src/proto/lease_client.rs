//! The client's side of a unicast lease: a client gets, renews and returns the lease. The module `lease` shows the exchange.
//!
//! The client renews after a third of the lease, and repeats unanswered questions at growing intervals. If the server no longer knows the
//! client, the client starts again from the beginning. The caller owns the socket, and must use it for requests, unicast packets and lease
//! messages.

use super::control::{CONTROL_MAX_BYTES, COOKIE_BYTES, ControlDatagram, Cookie};
use super::{MILLISECOND_NS, SECOND_NS, splitmix};

/// The first wait for an answer, in nanoseconds. It is doubled at each repeat, up to [`RETRY_MAX_NS`].
pub(crate) const RETRY_FIRST_NS: u64 = 50 * MILLISECOND_NS;
/// The longest wait for an answer, in nanoseconds.
pub(crate) const RETRY_MAX_NS: u64 = 2 * SECOND_NS;
/// The least time between an early renewal of a lease and the renewal before it, in nanoseconds.
pub(crate) const DOUBT_EVERY_NS: u64 = 2 * RETRY_FIRST_NS;
/// A stopping client sends Unsubscribe at most this number of times. After that it lets the lease expire.
pub(crate) const UNSUBSCRIBE_TRIES: u32 = 5;

/// The client sends Join this number of times to a server that might be too old to know Join. After that it sends Subscribe equally often.
const JOIN_TRIES: u32 = 2;

/// The state of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaseState {
    /// The client asks for a cookie.
    Greeting,
    /// The client asks for a lease.
    Subscribing,
    /// The client has a lease until this time of the client's clock.
    Held {
        /// The time at which the lease expires if it is not renewed.
        ends_ns: u64,
    },
    /// The client returns the lease.
    Leaving,
    /// The lease is over.
    Gone,
}

/// The client's side of a lease. It gets the lease, renews it and returns it.
#[derive(Debug)]
pub(crate) struct LeaseClient {
    live: bool,
    lease_ms: u32,
    /// The receiver's identity, 48 bits.
    receiver: Option<u64>,
    /// Whether the server is too old to know Join.
    is_old: bool,
    /// The nonce of the present question. Only the first answer with this nonce counts. A repeated question keeps its nonce, because an
    /// answer can take longer than the time between two repeats. The caller seeds the nonce, so that others cannot guess it.
    nonce: u64,
    /// The number of times that the question was sent.
    sent: u32,
    cookie: Cookie,
    state: LeaseState,
    send_at_ns: u64,
    wait_ns: u64,
    tries: u32,
    /// If the server sends no packet for this time, the client renews its lease early, because the server might have restarted.
    silence_ns: u64,
    heard_ns: u64,
    asked_ns: u64,
    rtt_ns: Option<u64>,
    /// The position of this receiver in the server's order of receivers, and the number of receivers.
    place: Option<(u16, u16)>,
    full: u64,
    /// Whether the server had no room for this client, and has granted no lease since.
    is_refused: bool,
}

impl LeaseClient {
    /// Makes a client that starts to ask at `now_ns`. With `live`, the client asks for the feed's live packets. Without `live`, the lease
    /// only proves our address to a retransmission server. `lease_ms` is the wanted duration; with 0 the server chooses. `seed` should be
    /// random.
    pub(crate) fn new(now_ns: u64, live: bool, lease_ms: u32, seed: u64) -> LeaseClient {
        LeaseClient {
            live,
            lease_ms,
            receiver: None,
            is_old: false,
            nonce: splitmix(seed),
            sent: 0,
            cookie: [0; COOKIE_BYTES],
            state: LeaseState::Greeting,
            send_at_ns: now_ns,
            wait_ns: RETRY_FIRST_NS,
            tries: 0,
            silence_ns: 3 * SECOND_NS,
            heard_ns: now_ns,
            asked_ns: now_ns,
            rtt_ns: None,
            place: None,
            full: 0,
            is_refused: false,
        }
    }

    /// Sets the receiver's identity, 48 bits that no other receiver has. By this identity the server recognises a receiver that returns.
    pub(crate) fn with_receiver(self, receiver: u64) -> LeaseClient {
        LeaseClient { receiver: Some(receiver & 0xFFFF_FFFF_FFFF), ..self }
    }

    /// Notes that the server sent a packet, and so still knows this client.
    pub(crate) fn note_traffic(&mut self, now_ns: u64) {
        self.heard_ns = now_ns;
    }

    /// Renews the lease early, because the server did not answer a request. The request might be lost, or the server might have restarted
    /// and lost its leases.
    pub(crate) fn doubt(&mut self, now_ns: u64) {
        let is_held = matches!(self.state, LeaseState::Held { .. });
        if is_held && now_ns.saturating_sub(self.asked_ns) >= DOUBT_EVERY_NS {
            self.send_at_ns = now_ns;
        }
    }

    /// Takes a control datagram. Ignores it if it does not answer the current question.
    pub(crate) fn handle_control(&mut self, now_ns: u64, control: &ControlDatagram) {
        let (ControlDatagram::Cookie { nonce, .. }
        | ControlDatagram::Granted { nonce, .. }
        | ControlDatagram::Joined { nonce, .. }
        | ControlDatagram::Released { nonce }
        | ControlDatagram::Full { nonce }) = *control
        else {
            return;
        };
        if nonce != self.nonce {
            return;
        }
        // After a repeat, it is not known which of the questions was answered. So only a question that was sent once measures the round
        // trip.
        if self.sent == 1 {
            self.rtt_ns = Some(now_ns.saturating_sub(self.asked_ns));
        }
        self.ask_anew();
        match *control {
            ControlDatagram::Cookie { cookie, .. } => {
                self.cookie = cookie;
                match self.state {
                    LeaseState::Greeting | LeaseState::Held { .. } => {
                        self.enter(now_ns, LeaseState::Subscribing);
                        self.send_at_ns = now_ns;
                    }
                    LeaseState::Subscribing | LeaseState::Leaving => self.send_at_ns = now_ns,
                    LeaseState::Gone => {}
                }
            }
            ControlDatagram::Granted { cookie, lease_ms, .. }
            | ControlDatagram::Joined { cookie, lease_ms, .. } => {
                self.is_old = matches!(control, ControlDatagram::Granted { .. });
                self.is_refused = false;
                if let ControlDatagram::Joined { place, group, .. } = *control {
                    self.place = Some((place, group));
                }
                if matches!(self.state, LeaseState::Subscribing | LeaseState::Held { .. }) {
                    let lease_ns = u64::from(lease_ms) * MILLISECOND_NS;
                    self.cookie = cookie;
                    self.heard_ns = now_ns;
                    self.enter(now_ns, LeaseState::Held { ends_ns: now_ns.saturating_add(lease_ns) });
                    self.send_at_ns = now_ns.saturating_add((lease_ns / 3).max(RETRY_FIRST_NS));
                }
            }
            ControlDatagram::Released { .. } if self.state == LeaseState::Leaving => {
                self.enter(now_ns, LeaseState::Gone);
            }
            ControlDatagram::Full { .. } => {
                (self.full, self.is_refused) = (self.full + 1, true);
                self.send_at_ns = now_ns.saturating_add(RETRY_MAX_NS);
            }
            _ => {}
        }
    }

    fn enter(&mut self, now_ns: u64, state: LeaseState) {
        self.state = state;
        // A client that greets again might reach another server, so it no longer counts the server as old.
        self.is_old &= state != LeaseState::Greeting;
        (self.tries, self.wait_ns, self.send_at_ns) = (0, RETRY_FIRST_NS, now_ns);
        self.ask_anew();
    }

    /// Chooses the nonce of the next question. Answers to earlier questions no longer count.
    fn ask_anew(&mut self) {
        (self.nonce, self.sent) = (splitmix(self.nonce), 0);
    }

    /// Starts to return the lease. The client sends an `Unsubscribe` datagram at most [`UNSUBSCRIBE_TRIES`] times.
    pub(crate) fn stop(&mut self, now_ns: u64) {
        match self.state {
            LeaseState::Greeting | LeaseState::Gone => self.enter(now_ns, LeaseState::Gone),
            LeaseState::Subscribing | LeaseState::Held { .. } => self.enter(now_ns, LeaseState::Leaving),
            LeaseState::Leaving => {}
        }
    }

    /// Writes to `out` the datagram that is due now, and returns its size. Returns `None` if no datagram is due.
    pub(crate) fn poll_transmit(&mut self, now_ns: u64, out: &mut [u8; CONTROL_MAX_BYTES]) -> Option<usize> {
        if self.next_deadline().is_none_or(|at_ns| at_ns > now_ns) {
            return None;
        }
        match self.state {
            LeaseState::Held { ends_ns } if now_ns >= ends_ns => self.enter(now_ns, LeaseState::Greeting),
            LeaseState::Leaving if self.tries >= UNSUBSCRIBE_TRIES => self.enter(now_ns, LeaseState::Gone),
            // The cookie might be older than the server's last restart, and then the server does not answer. So ask for a new cookie.
            LeaseState::Subscribing if self.tries >= UNSUBSCRIBE_TRIES => {
                self.enter(now_ns, LeaseState::Greeting)
            }
            _ => {}
        }
        let (cookie, live, lease_ms) = (self.cookie, self.live, self.lease_ms);
        let nonce = self.nonce;
        let question = match self.state {
            LeaseState::Greeting => ControlDatagram::Hello { nonce },
            LeaseState::Subscribing | LeaseState::Held { .. } => match self.receiver {
                // An older server drops datagrams of kinds that it does not know.
                Some(receiver) if !self.is_old && self.tries % 4 < JOIN_TRIES => {
                    ControlDatagram::Join { nonce, cookie, lease_ms, live, receiver }
                }
                _ => ControlDatagram::Subscribe { nonce, cookie, live, lease_ms },
            },
            LeaseState::Leaving => ControlDatagram::Unsubscribe { nonce, cookie },
            LeaseState::Gone => return None,
        };
        (self.tries, self.sent) = (self.tries.saturating_add(1), self.sent.saturating_add(1));
        (self.heard_ns, self.asked_ns) = (now_ns, now_ns);
        self.send_at_ns = now_ns.saturating_add(self.wait_ns);
        self.wait_ns = (self.wait_ns * 2).min(RETRY_MAX_NS);
        Some(question.encode(out))
    }

    /// Returns the time at which [`LeaseClient::poll_transmit`] next has something to send, or `None` once the lease is over.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        match self.state {
            LeaseState::Gone => None,
            // A feed with live packets has a heartbeat each second. A lease for repairs only can be silent for a long time.
            LeaseState::Held { .. } if self.live => {
                Some(self.send_at_ns.min(self.heard_ns.saturating_add(self.silence_ns)))
            }
            _ => Some(self.send_at_ns),
        }
    }

    /// The state of the client.
    pub(crate) fn state(&self) -> LeaseState {
        self.state
    }

    /// Returns the last measured round trip, for `Receiver::note_rtt`.
    pub(crate) fn rtt_ns(&self) -> Option<u64> {
        self.rtt_ns
    }

    /// Returns this receiver's position among the receivers that request repairs from the server, and the number of these receivers.
    /// Returns `None` if the server did not report it, or if the lease is for live packets.
    pub(crate) fn place(&self) -> Option<(u16, u16)> {
        self.place.filter(|_| !self.live)
    }

    /// Whether the server had no room for this client, and has granted no lease since.
    pub(crate) fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Returns how often the server had no room for this client.
    pub(crate) fn times_full(&self) -> u64 {
        self.full
    }
}
