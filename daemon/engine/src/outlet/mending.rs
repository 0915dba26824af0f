//! Answers readers that lack something, from the ring or from the channel's journal.

use shmcast::{Event, Start, SubscriberBuilder};
use shmcast_bridge::proto::wire::Meta;
use shmcast_bridge::times::Moment;
use std::time::{Duration, Instant};

use super::is_end;
use crate::proto::block::{Cut, Packing, max_whole_bytes};
use crate::proto::want::Want;

/// How long the disk may take for one answer: live messages wait meanwhile.
const PATIENCE: Duration = Duration::from_millis(200);

/// The block that begins with the sequence wanted; `None` if that is not published yet, or takes too long.
pub(super) fn cut_for(
    channel: &SubscriberBuilder,
    want: &Want,
    block_bytes: usize,
    moment: Option<&Moment>,
) -> Option<Cut> {
    let mut past = channel.clone().page(false).start(Start::Sequence(want.first)).open().ok()?;
    let deadline = Instant::now() + PATIENCE;
    let mut packing = Packing::new(block_bytes);
    let gap = |from: u64, to: u64| (from <= want.first && to >= want.first).then(|| Cut::gap(want.first, to));
    loop {
        let event = match past.try_recv() {
            Ok(Some(event)) => event,
            Ok(None) if packing.is_empty() && Instant::now() < deadline => {
                std::thread::yield_now();
                continue;
            }
            _ => break,
        };
        match event {
            Event::Message(message) => {
                let time_ns = moment.map_or(0, |moment| moment.wall_of(message.time));
                let meta = Meta { tag: message.tag, key: message.key, time_ns };
                if packing.is_empty() && message.sequence != want.first {
                    return gap(want.first, message.sequence.checked_sub(1)?);
                }
                if packing.is_empty() && message.payload.len() > max_whole_bytes(block_bytes) {
                    let offset = (want.offset as usize).min(message.payload.len() - 1);
                    return Some(Cut::part(message.sequence, message.payload, meta, offset, block_bytes));
                }
                let is_next = packing.next().is_none_or(|next| next == message.sequence);
                if !is_next || !packing.push(message.sequence, message.payload, meta) {
                    break;
                }
            }
            Event::Lapped(lapped) if packing.is_empty() => return gap(want.first, lapped.resumed_at - 1),
            Event::Gap { from, to } | Event::Lost { from, to, .. } if packing.is_empty() => {
                return gap(from, to);
            }
            event if is_end(&event) || !packing.is_empty() => break,
            _ => {}
        }
    }
    packing.cut()
}
