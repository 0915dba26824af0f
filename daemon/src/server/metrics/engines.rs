//! The figures of bridges through an engine: what its servers have stored and lost, and how long they take.

use super::exposition::Text;
use super::families::{Figure, by, cumulative, families};
use crate::server::bridges::{BridgeFigures, Counted};
use shmcast_engine::status::{ReceiveCounters, SendCounters};

type Sends = Figure<SendCounters>;
type Receives = Figure<ReceiveCounters>;

/// All families of all bridges through an engine.
pub(super) fn render(text: &mut Text, bridges: &[BridgeFigures]) {
    senders(text, bridges);
    receivers(text, bridges);
    answers(text, bridges);
}

fn sent(bridge: &BridgeFigures) -> Option<SendCounters> {
    match &bridge.counted {
        Some(Counted::EngineSend(counters, _)) => Some(**counters),
        _ => None,
    }
}

fn received(bridge: &BridgeFigures) -> Option<ReceiveCounters> {
    match &bridge.counted {
        Some(Counted::EngineReceive(counters)) => Some(**counters),
        _ => None,
    }
}

fn senders(text: &mut Text, bridges: &[BridgeFigures]) {
    let gauges: [(&str, &str, Sends); 6] = [
        (
            "engine_stored_sequence",
            "The sequence after the last message that the servers have acknowledged.",
            |c| c.stored,
        ),
        ("engine_behind_messages", "Messages that are published and not acknowledged.", |c| c.behind),
        ("engine_behind_milliseconds", "Age of the oldest block without an answer.", |c| c.behind_ms),
        ("engine_in_flight_blocks", "Blocks without an answer.", |c| c.in_flight),
        ("engine_fenced", "1 while another bridge writes the stream, and this one waits.", |c| c.is_fenced),
        ("engine_send_connected", "1 while the sender has a connection to a server.", |c| c.is_connected),
    ];
    families(text, bridges, "gauge", &gauges, sent);
    let totals: [(&str, &str, Sends); 8] = [
        ("engine_sent_messages_total", "Messages put into blocks, those sent again included.", |c| {
            c.messages
        }),
        ("engine_sent_blocks_total", "Blocks that the servers have acknowledged.", |c| c.blocks),
        ("engine_sent_bytes_total", "Bytes of those blocks.", |c| c.bytes),
        ("engine_missed_messages_total", "Messages overwritten before they were sent.", |c| {
            c.messages_missed
        }),
        ("engine_fenced_total", "Times that another bridge owned the stream.", |c| c.fenced),
        (
            "engine_lost_messages_total",
            "Messages that the servers had acknowledged and then did not have; they are sent again.",
            |c| c.lost_by_engine,
        ),
        ("engine_wanted_total", "Requests of receivers for messages that the stream lacks.", |c| c.wanted),
        ("engine_send_disconnects_total", "Connections of the sender that broke.", |c| c.disconnects),
    ];
    families(text, bridges, "counter", &totals, sent);
    let causes: [(&str, Sends); 5] = [
        ("refused", |c| c.resyncs_refused),
        ("silent", |c| c.resyncs_silent),
        ("busy", |c| c.resyncs_busy),
        ("disconnected", |c| c.resyncs_disconnected),
        ("rival", |c| c.resyncs_rival),
    ];
    let help = "Times that the sender asked for the end of the stream again.";
    by(text, bridges, ("engine_resyncs_total", "cause"), help, &causes, sent);
}

fn receivers(text: &mut Text, bridges: &[BridgeFigures]) {
    let gauges: [(&str, &str, Receives); 2] = [
        ("engine_mending", "1 while a receiver waits for messages that the stream lacks.", |c| c.is_mending),
        ("engine_receive_connected", "1 while the receiver has a connection to a server.", |c| {
            c.is_connected
        }),
    ];
    families(text, bridges, "gauge", &gauges, received);
    let totals: [(&str, &str, Receives); 10] = [
        ("engine_published_messages_total", "Messages published into the local channel.", |c| {
            c.messages_published
        }),
        ("engine_missing_messages_total", "Messages that nobody has: gaps in the local channel.", |c| {
            c.messages_missing
        }),
        ("engine_received_bytes_total", "Bytes of entries that came.", |c| c.bytes),
        ("engine_damaged_entries_total", "Entries that are no sound blocks.", |c| c.damaged),
        (
            "engine_unopened_blocks_total",
            "Those of them without a seal that opens with the keys here, where one is needed.",
            |c| c.unopened,
        ),
        ("engine_chain_breaks_total", "Blocks that were not built behind the one before them.", |c| {
            c.chain_breaks
        }),
        ("engine_ends_moved_total", "Times that the stream had less than it had shown.", |c| c.ends_moved),
        ("engine_holes_total", "Holes in the stream.", |c| c.holes),
        ("engine_mended_messages_total", "Messages of holes that a sender had.", |c| c.mended),
        ("engine_receive_disconnects_total", "Connections of the receiver that broke.", |c| c.disconnects),
    ];
    families(text, bridges, "counter", &totals, received);
}

fn answers(text: &mut Text, bridges: &[BridgeFigures]) {
    let name = "shmcast_bridge_engine_answer_seconds";
    text.family(name, "histogram", "Time from an append to the answer of the servers.");
    for bridge in bridges {
        if let Some(Counted::EngineSend(_, acks)) = &bridge.counted {
            let sum = acks.steps().map(|(limit_ns, count)| limit_ns as f64 * count as f64).sum::<f64>();
            let labels = [("bridge", bridge.spec.title())];
            text.histogram(name, &labels, cumulative(acks), acks.count(), sum / 1e9);
        }
    }
}
