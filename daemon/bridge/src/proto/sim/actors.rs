//! The actors of a simulated network: the publisher and its sender, the receivers, the retransmission
//! servers. Each does the work of its thread in the daemon, on the virtual clock.

use super::super::MILLISECOND_NS;
use super::super::control::{ControlDatagram, is_control};
use super::super::native::container::{Container, Kind};
use super::super::native::pulse::Pulse;
use super::super::receiver::{Delivery, Join, Origin, Receiver};
use super::super::replay::Past;
use super::super::sender::{MAX_PULSE_BYTES, PushError};
use super::super::wire::{Body, Downstream, Request};
use super::check::check_receiver;
use super::event::Event;
use super::native;
use super::net::Arrival;
use super::scenario::PAYLOAD_BYTES;
use super::world::{World, new_sender, sum_receiver};

impl World {
    pub(super) fn publish(&mut self) {
        let left = self.scenario.messages - self.published;
        let burst = self.rng.u64(1..=self.scenario.burst).min(left);
        let current = self.history.current();
        self.history.published[current] += burst;
        self.published += burst;
        for peer in &mut self.peers {
            let size = self.history.published[current] as usize + 1;
            peer.came[current].resize(size, false);
            peer.served[current].resize(size, 0);
        }
        if let Some(sender) = &mut self.sender {
            let mut buffer = vec![0; self.history.max_message];
            let mut waiting: Vec<Vec<u8>> = Vec::new();
            for sequence in self.history.published[current] - burst + 1..=self.history.published[current] {
                let size = self.history.write_message(current, sequence, &mut buffer).unwrap();
                let meta = self.history.meta(current, sequence);
                let mut result = sender.push_with(sequence, &buffer[..size], meta);
                while result == Err(PushError::BatchFull) {
                    waiting.extend(sender.datagrams().map(<[u8]>::to_vec));
                    sender.clear(self.now_ns);
                    result = sender.push_with(sequence, &buffer[..size], meta);
                }
                assert_eq!(result, Ok(()));
                // A sending thread can send its closed packets at any time, without closing the packet that it is filling.
                if self.rng.u8(..) < 20 {
                    waiting.extend(sender.datagrams().map(<[u8]>::to_vec));
                    sender.clear(self.now_ns);
                }
            }
            sender.close();
            waiting.extend(sender.datagrams().map(<[u8]>::to_vec));
            sender.clear(self.now_ns);
            waiting.iter().for_each(|datagram| self.multicast(datagram));
        }
        self.schedule_restarts(burst);
        if self.published < self.scenario.messages {
            let pause = if self.rng.u8(..) < 3 { self.rng.u64(0..20 * MILLISECOND_NS) } else { 0 };
            let at_ns = self.now_ns + self.rng.u64(1..=2 * self.scenario.pace_ns) + pause;
            self.at(at_ns, Event::Publish);
        } else if self.scenario.ends
            && let Some(sender) = &mut self.sender
        {
            sender.end(self.now_ns);
        }
        self.run_sender();
    }

    pub(super) fn schedule_restarts(&mut self, burst: u64) {
        let due = self.published - burst + 1..=self.published;
        for (_, fresh) in
            self.scenario.sender_restarts.clone().into_iter().filter(|(after, _)| due.contains(after))
        {
            self.sender = None;
            let down_ns = self.rng.u64(0..5 * MILLISECOND_NS);
            self.at(self.now_ns + down_ns, Event::SenderReturns { fresh });
        }
        for (_, peer) in
            self.scenario.peer_restarts.clone().into_iter().filter(|(after, _)| due.contains(after))
        {
            self.peers[peer].up = false;
            let down_ns = self.rng.u64(0..20 * MILLISECOND_NS);
            self.at(self.now_ns + down_ns, Event::PeerReturns { peer });
        }
    }

    pub(super) fn return_sender(&mut self, fresh: bool) {
        if fresh && self.published < self.scenario.messages {
            self.history.published.push(0);
            self.pasts.iter_mut().for_each(|past| *past = Past::new(1));
            for peer in &mut self.peers {
                peer.came.push(vec![false]);
                peer.served.push(vec![0]);
            }
        }
        let session = self.history.session(self.history.current());
        self.senders += 1;
        let wire = (self.scenario.wire, self.senders);
        let mut sender = new_sender(session, self.history.next(), self.now_ns, wire);
        if self.scenario.ends && self.published == self.scenario.messages {
            sender.end(self.now_ns);
        }
        self.sender = Some(sender);
        self.run_sender();
    }

    pub(super) fn return_peer(&mut self, at: usize) {
        let peer = &mut self.peers[at];
        sum_receiver(&mut peer.earlier, &peer.receiver);
        let mut config = self.scenario.config;
        if let Some(session) = peer.receiver.session() {
            config.join = Join::Resume { session, next: peer.receiver.next() };
        }
        peer.receiver = Receiver::new(config);
        self.peers[at].codec = self.new_codec(true);
        let peer = &mut self.peers[at];
        peer.served.iter_mut().for_each(|served| served.fill(0));
        peer.checker.ended = false;
        peer.up = true;
        peer.life += 1;
        peer.wakes_ns = u64::MAX;
        self.note_rtt(at);
    }

    pub(super) fn run_sender(&mut self) {
        let Some(sender) = &mut self.sender else {
            return;
        };
        let beat = match sender.is_native() {
            true => {
                let mut out = [0; MAX_PULSE_BYTES];
                let size = sender.poll_pulse(self.now_ns, Pulse::default, &mut out);
                size.map(|size| out[..size].to_vec())
            }
            false => sender.poll_idle(self.now_ns).map(|beat| beat.to_vec()),
        };
        let wakes = sender.next_deadline(self.now_ns);
        if let Some(beat) = beat {
            self.multicast(&beat);
        }
        if let Some(at_ns) = wakes.filter(|&at_ns| at_ns != self.sender_wakes_ns) {
            self.sender_wakes_ns = at_ns;
            self.at(at_ns.max(self.now_ns + 1), Event::SenderWakes);
        }
    }

    pub(super) fn multicast(&mut self, datagram: &[u8]) {
        assert!(datagram.len() <= PAYLOAD_BYTES);
        for peer in 0..self.peers.len() {
            for line in 0..self.scenario.lines.len() {
                let arrivals = self.peers[peer].lines[line].send(&mut self.rng, self.now_ns, datagram);
                let life = self.peers[peer].life;
                for arrival in arrivals {
                    self.at(arrival.at_ns, Event::ToPeer { peer, life, origin: Origin::Line(line), arrival });
                }
            }
        }
    }

    pub(super) fn note_arrival(&mut self, peer: usize, origin: Origin, arrival: &Arrival) {
        if let (Origin::Line(_), true, true) = (origin, arrival.sound, self.is_native()) {
            self.note_native_arrival(peer, arrival);
        } else if let (Origin::Line(_), true) = (origin, arrival.sound)
            && let Ok(Downstream { session, body: Body::Messages(messages), .. }) =
                Downstream::parse(&arrival.bytes)
        {
            let came = &mut self.peers[peer].came[self.history.index(session)];
            (messages.first()..messages.end()).for_each(|sequence| came[sequence as usize] = true);
        }
    }

    // Does the work of a receiving thread: takes a datagram or a timeout, sends the requests, and sleeps until the deadline.
    pub(super) fn run_peer(&mut self, at: usize, input: Option<(Origin, Vec<u8>)>) {
        let (now_ns, is_native) = (self.now_ns, self.is_native());
        let peer = &mut self.peers[at];
        if !peer.up {
            return;
        }
        let (history, checker) = (&self.history, &mut peer.checker);
        let mut sink = |delivery: Delivery<'_>| checker.take(delivery, history);
        let refused = peer.receiver.counters().totals.messages_refused;
        let received = peer.receiver.counters().totals.messages_received;
        let repair_bytes = match &input {
            Some((Origin::Server(_), bytes)) => bytes.len() as u64,
            _ => 0,
        };
        match input {
            Some((origin, bytes)) if is_native => {
                native::take(now_ns, origin, &bytes, (&mut peer.codec, &mut peer.receiver), &mut sink);
            }
            Some((Origin::Server(server), bytes)) if is_control(&bytes) => {
                take_word(&mut peer.receiver, now_ns, server, &bytes, &mut sink);
            }
            Some((origin, bytes)) => peer.receiver.handle_datagram(now_ns, origin, &bytes, &mut sink),
            None => {}
        }
        if peer.receiver.next_deadline().is_some_and(|at_ns| at_ns <= now_ns) {
            peer.receiver.handle_timeout(now_ns, &mut sink);
        }
        let counters = peer.receiver.counters();
        let refused = counters.totals.messages_refused - refused;
        self.totals.unusable_repair_bytes +=
            repair_bytes * refused / (counters.totals.messages_received - received).max(1);
        let (receiver, codec) = (&mut peer.receiver, &mut peer.codec);
        let poll = || match is_native {
            true => native::poll_ask(now_ns, codec, receiver),
            false => receiver.poll_request(now_ns).map(|(server, request)| (server, request.to_vec())),
        };
        let asks: Vec<_> = std::iter::from_fn(poll).take(10_000).collect();
        let most = 2 * self.scenario.config.gaps.max_requests + self.scenario.servers.len();
        assert!(asks.len() <= most, "asks without end");
        check_receiver(&peer.receiver, &self.scenario.config, checker);
        let wakes_ns = peer.receiver.next_deadline().unwrap_or(u64::MAX);
        if wakes_ns != u64::MAX && wakes_ns != peer.wakes_ns {
            assert!(wakes_ns > now_ns, "wants to be woken in the past");
            peer.wakes_ns = wakes_ns;
            self.at(wakes_ns, Event::PeerWakes { peer: at });
        }
        for (server, request) in asks {
            self.last_request = Request::parse(&request).ok().map(|request| (server, request, now_ns));
            let life = self.peers[at].life;
            let arrivals = self.peers[at].requests[server].send(&mut self.rng, now_ns, &request);
            for (n, arrival) in arrivals.into_iter().enumerate() {
                let event = Event::ToServer { server, peer: at, life, bytes: arrival.bytes, copy: n > 0 };
                self.at(arrival.at_ns, event);
            }
        }
    }

    pub(super) fn account(
        &mut self,
        at: usize,
        life: u32,
        request: &[u8],
        reply: &[u8],
        copy: bool,
        arrives: bool,
    ) {
        let request = Request::parse(request).expect("it was answered");
        let Ok(Downstream { session, body: Body::Messages(messages), .. }) = Downstream::parse(reply) else {
            panic!("a reply that is no packet")
        };
        assert_eq!(messages.first(), request.first, "a reply must start where the request does");
        assert!(messages.count() <= u64::from(request.count), "a reply must not reach past the request");
        let peer = &mut self.peers[at];
        // Answers to copies of a request that the network made, and answers for an earlier life of the receiver, do not count.
        if copy || !peer.up || peer.life != life {
            return;
        }
        let served = &mut peer.served[self.history.index(session)];
        for (sequence, data) in messages.iter() {
            let size = data.len() as u64 + 2;
            let times = &mut served[sequence as usize];
            *times += 1;
            match *times {
                1 => self.totals.first_round_bytes += size,
                _ => self.totals.repeated_bytes += size,
            }
            self.totals.lost_repair_bytes += if arrives { 0 } else { size };
        }
    }
}

impl World {
    pub(super) fn note_native_arrival(&mut self, peer: usize, arrival: &Arrival) {
        let Ok((container, _)) = Container::parse(&arrival.bytes) else { return };
        if container.kind == Kind::Data {
            let came = &mut self.peers[peer].came[self.history.index(container.session)];
            let head = container.head();
            (head.sequence..head.end()).for_each(|sequence| came[sequence as usize] = true);
        }
    }
}

/// Passes a server's answer without messages to a receiver.
fn take_word(
    receiver: &mut Receiver,
    now_ns: u64,
    server: usize,
    bytes: &[u8],
    sink: &mut impl FnMut(Delivery<'_>),
) {
    match ControlDatagram::parse(bytes) {
        Ok(ControlDatagram::Gone { session, first, oldest }) => {
            receiver.handle_gone(now_ns, server, (session, first, oldest), sink);
        }
        Ok(ControlDatagram::Later { session, first }) => {
            receiver.handle_later(now_ns, server, (session, first));
        }
        Ok(ControlDatagram::Held { session, first, next, .. }) => {
            receiver.handle_held(now_ns, server, (session, first, next), sink);
        }
        _ => {}
    }
}
