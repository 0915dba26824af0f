//! A forger, which receives every packet of a line and sends false packets.

use super::super::carry::forged;
use super::Network;
use super::frames::{Place, with_payload};
use crate::log::now;
use crate::story::Forgery;
use anyhow::Result;
use fastrand::Rng;

/// The size of a MoldUDP64 header in bytes: session, sequence, count.
const HEADER: usize = 20;
/// Offset of the flags and the key id in a native packet.
const FLAGS: usize = 24;
/// On a plain line, the number of the feed's datagrams between two forged packets. A receiver forgets a forged packet after this many
/// datagrams.
const BETWEEN: u64 = 12;
const BETWEEN_NS: u64 = 400_000_000;
/// Number of packets that are replayed together.
const AGAIN: usize = 200;

impl Network {
    /// Sends forged packets. Returns whether there were any.
    pub(super) fn play(&mut self, line: usize, forgery: Forgery, random: &mut Rng) -> Result<bool> {
        let heard = self.hubs[line].heard();
        match forgery {
            Forgery::Replay => heard.iter().rev().take(AGAIN).for_each(|frame| self.hubs[line].inject(frame)),
            Forgery::Plain(kind) => return self.forge_one(line, usize::from(kind), &heard),
            Forgery::Damaged => {
                for frame in heard.iter().rev().take(AGAIN) {
                    let Some(place) = Place::of(frame) else { continue };
                    let payload = damaged(place.payload(frame), random);
                    self.hubs[line].inject(&with_payload(frame, &payload)?);
                }
            }
            Forgery::Unsealed => {
                for frame in heard.iter().rev().take(AGAIN) {
                    let Some(place) = Place::of(frame) else { continue };
                    let mut payload = place.payload(frame).to_vec();
                    if let Some(flags) = payload.get_mut(FLAGS..FLAGS + 2) {
                        (flags[0], flags[1]) = (flags[0] & !1, 0);
                        self.hubs[line].inject(&with_payload(frame, &payload)?);
                    }
                }
            }
        }
        Ok(!heard.is_empty())
    }

    /// Sends one well-formed packet with false content, in the name of the feed's sender.
    fn forge_one(&mut self, line: usize, kind: usize, heard: &[Vec<u8>]) -> Result<bool> {
        let (carried, time) = self.forged_at[line];
        let now = (self.hubs[line].carried(), now());
        if now.0 < carried + BETWEEN || now.1 < time + BETWEEN_NS {
            return Ok(false);
        }
        let is_feed = |frame: &&Vec<u8>| {
            Place::of(frame)
                .is_some_and(|place| place.is_for_a_group(frame) && place.payload(frame).len() >= HEADER)
        };
        let Some(frame) = heard.iter().rev().find(is_feed) else { return Ok(false) };
        let Some(place) = Place::of(frame) else { return Ok(false) };
        let header = place.payload(frame);
        let (Some(name), Some(sequence)) = (header.first_chunk::<10>(), header[10..].first_chunk::<8>())
        else {
            return Ok(false);
        };
        let count = u64::from(u16::from_be_bytes([header[18], header[19]]));
        let count = if count == u64::from(u16::MAX) { 0 } else { count };
        let packet = forged(*name, kind, u64::from_be_bytes(*sequence) + count);
        self.hubs[line].inject(&with_payload(frame, &packet)?);
        self.forged_at[line] = now;
        Ok(true)
    }
}

/// Returns this packet with some bits changed, or some bytes removed or added.
fn damaged(packet: &[u8], random: &mut Rng) -> Vec<u8> {
    let mut packet = packet.to_vec();
    match random.u8(..4) {
        0 => packet.truncate(random.usize(..=packet.len())),
        1 => {
            let more = random.usize(..40);
            packet.extend((0..more).map(|_| random.u8(..)));
        }
        _ => {
            for _ in 0..random.u8(1..4) {
                if !packet.is_empty() {
                    let at = random.usize(..packet.len());
                    packet[at] ^= 1 << random.u8(..8);
                }
            }
        }
    }
    packet
}
