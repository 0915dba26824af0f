//! Reads the datagrams of a capture in order. From a file, datagrams are read some time before they must be published.

use shmcast_bridge::pcap::unwrap::HELD_PACKETS;
use shmcast_bridge::pcap::{Capture, CaptureCounters, CaptureError, Protocols};
use std::collections::VecDeque;

/// A datagram that is to be published.
#[derive(Debug, Default)]
pub(super) struct Packet {
    pub(super) time_ns: Option<u64>,
    pub(super) payload: Vec<u8>,
}

/// A capture that is being read.
pub(super) struct Packets<'a> {
    capture: Capture<'a>,
    /// Datagrams that were read but must not be published yet. Datagrams of a pipe are not read ahead.
    ahead: VecDeque<Packet>,
    most_ahead: usize,
    spare: Vec<Packet>,
    has_ended: bool,
    failure: Option<CaptureError>,
}

impl<'a> Packets<'a> {
    pub(super) fn new(capture: Capture<'a>, is_file: bool) -> Self {
        let most_ahead = if is_file { HELD_PACKETS } else { 0 };
        Self {
            capture,
            ahead: VecDeque::new(),
            most_ahead,
            spare: Vec::new(),
            has_ended: false,
            failure: None,
        }
    }

    /// Returns the next datagram. Returns `None` at the end, and after a read error.
    pub(super) fn next(&mut self) -> Option<Packet> {
        while !self.has_ended && self.ahead.len() <= self.most_ahead {
            match self.capture.read() {
                Ok(Some(datagram)) => {
                    let mut packet = self.spare.pop().unwrap_or_default();
                    packet.time_ns = datagram.time_ns;
                    packet.payload.clear();
                    packet.payload.extend_from_slice(datagram.payload);
                    self.ahead.push_back(packet);
                }
                end => (self.has_ended, self.failure) = (true, end.err()),
            }
        }
        self.ahead.pop_front()
    }

    /// Returns the payloads of the datagrams that come next, as far as they were read ahead.
    pub(super) fn ahead(&self) -> impl Iterator<Item = &[u8]> {
        self.ahead.iter().map(|packet| &packet.payload[..])
    }

    /// Puts a datagram back to the front of the queue, because it was not published.
    pub(super) fn put_back(&mut self, packet: Packet) {
        self.ahead.push_front(packet);
    }

    /// Keeps the buffer of a published datagram, so that a later datagram can use it.
    pub(super) fn recycle(&mut self, packet: Packet) {
        self.spare.push(packet);
    }

    /// Returns the counts of the capture and the read error, if there was one. Datagrams that were read ahead and not returned do not
    /// count.
    pub(super) fn finish(self) -> (CaptureCounters, Protocols, Option<CaptureError>) {
        let mut counters = self.capture.counters;
        counters.datagrams -= self.ahead.len() as u64;
        counters.packets -= self.ahead.len() as u64;
        (counters, self.capture.protocols.clone(), self.failure)
    }
}
