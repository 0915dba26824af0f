//! The bridges' figures for Prometheus: messages and packets sent, received, repaired, lost, dropped and refused, by
//! line, server and reason.

use super::engines;
use super::exposition::Text;
use super::families::{Figure, by, cumulative, each, families};
use crate::server::bridges::{BridgeFigures, Counted};
use shmcast_bridge::spec::BridgeSpec;
use shmcast_bridge::status::{LineStatus, ReceiveCounters, RepairCounters, SendCounters, ServerStatus};

/// All families of all bridges.
pub(super) fn render(text: &mut Text, bridges: &[BridgeFigures]) {
    let name = "shmcast_bridge_up";
    text.family(name, "gauge", "1 while the bridge runs, 0 while it waits or has failed.");
    for bridge in bridges {
        let direction = if bridge.spec.send.is_some() { "send" } else { "receive" };
        let labels =
            [("bridge", bridge.spec.title()), ("channel", &bridge.spec.channel), ("direction", direction)];
        text.sample(
            name,
            &labels,
            u64::from(matches!(bridge.state, "running" | "listening" | "standby" | "ending" | "leaving")),
        );
    }
    senders(text, bridges);
    repairs(text, bridges);
    receivers(text, bridges);
    lines(text, bridges);
    servers(text, bridges);
    engines::render(text, bridges);
}

type Sends = Figure<SendCounters>;
type Repairs = Figure<RepairCounters>;
type Receives = Figure<ReceiveCounters>;

fn senders(text: &mut Text, bridges: &[BridgeFigures]) {
    let totals: [(&str, &str, Sends); 17] = [
        ("sent_messages_total", "Messages sent, each once however many lines there are.", |c| c.messages),
        ("sent_packets_total", "Packets with messages sent, each once.", |c| c.packets),
        ("sent_bytes_total", "Bytes of those packets.", |c| c.bytes),
        ("sent_heartbeats_total", "Heartbeats sent.", |c| c.heartbeats),
        ("sent_datagrams_total", "Datagrams that the kernel took, for all lines and leases.", |c| {
            c.datagrams_sent
        }),
        ("refused_datagrams_total", "Datagrams that the kernel refused to send.", |c| c.datagrams_refused),
        ("lapped_total", "Times that the publisher overtook the sending bridge.", |c| c.lapped),
        ("missed_messages_total", "Messages overwritten before the bridge had sent them.", |c| {
            c.messages_missed
        }),
        ("too_long_messages_total", "Messages too long for a packet.", |c| c.messages_too_long),
        ("line_pauses_total", "Times that a line took nothing for a while, its buffer being full.", |c| {
            c.pauses
        }),
        (
            "link_waits_total",
            "Times that live packets had used up their share of the link and waited.",
            |c| c.link_waits,
        ),
        (
            "segmented_datagrams_total",
            "Datagrams that left in one call with others of the same length.",
            |c| c.datagrams_segmented,
        ),
        ("segments_refused_total", "Times that the kernel refused packets in segments on a line.", |c| {
            c.segments_refused
        }),
        ("state_errors_total", "Times that the state file could not be written.", |c| c.state_errors),
        ("sending_lines_anew_total", "Times that a line was opened anew, with its interface.", |c| {
            c.lines_anew
        }),
        (
            "takeovers_total",
            "Times that the bridge began to send in place of a peer, or because none did.",
            |c| c.takeovers,
        ),
        ("yields_total", "Times that the bridge left the sending to a peer.", |c| c.yields),
    ];
    let of = |bridge: &BridgeFigures| match &bridge.counted {
        Some(Counted::Send(counters, _)) => Some(**counters),
        _ => None,
    };
    families(text, bridges, "counter", &totals, of);
    let help = "1 while the bridge sends, 0 while it stands by for a peer.";
    let is_sending = |counters: SendCounters| u64::from(!counters.is_standing_by());
    each(text, bridges, "sending", "gauge", help, |bridge| of(bridge).map(is_sending));
    let help = "The speed of the link that packets are held to, in bytes a second; 0 if none.";
    let link = |counters: SendCounters| counters.link_bits / 8;
    each(text, bridges, "link_rate_bytes", "gauge", help, |bridge| of(bridge).map(link));
}

/// The figures of repairs: the name, the kind, the help and the figure.
const REPAIRED: [(&str, &str, &str, Repairs); 22] = [
    ("repair_requests_total", "counter", "Requests for retransmission received.", |c| c.requests),
    ("repair_messages_total", "counter", "Messages sent again.", |c| c.messages),
    ("repair_bytes_total", "counter", "Bytes of retransmissions sent.", |c| c.bytes),
    ("repair_multicasts_total", "counter", "Retransmissions that went to all receivers at once.", |c| {
        c.multicast_replies
    }),
    (
        "repair_pauses_total",
        "counter",
        "Times that all receivers were told to wait: the rate was used up.",
        |c| c.pauses,
    ),
    (
        "repair_journal_messages_total",
        "counter",
        "Of the messages sent again, those that the ring had no more and the journal had.",
        |c| c.journal.messages,
    ),
    (
        "repair_journal_bytes_total",
        "counter",
        "Of the bytes of retransmissions, those from the journal.",
        |c| c.journal.bytes,
    ),
    ("repair_journal_waited_total", "counter", "Requests that waited until the journal was read.", |c| {
        c.journal.waited
    }),
    (
        "repair_journal_queue_full_total",
        "counter",
        "Requests told to ask later, as many others waited for the journal.",
        |c| c.journal.queue_full,
    ),
    (
        "repair_journal_not_yet_total",
        "counter",
        "Requests told to ask later, as the recorder had not written the messages.",
        |c| c.journal.not_yet,
    ),
    (
        "repair_journal_blocks_total",
        "counter",
        "Blocks of messages read from the journal for retransmissions.",
        |c| c.journal.blocks,
    ),
    (
        "repair_journal_errors_total",
        "counter",
        "Times that the journal could not be read for retransmissions.",
        |c| c.journal.errors,
    ),
    (
        "repair_journal_unusable_total",
        "counter",
        "Times that there was no journal of this stream where one was to be read.",
        |c| c.journal.unusable,
    ),
    ("repair_kernel_drops_total", "counter", "Requests that the kernel dropped.", |c| c.kernel_drops),
    (
        "repair_link_rate_bytes",
        "gauge",
        "Bytes a second that live packets leave to repairs on the link; 0 if its speed is not known.",
        |c| c.link_rate_bytes,
    ),
    ("leases", "gauge", "Unicast leases held by receivers.", |c| c.leases.held),
    ("repair_plain_refused_total", "counter", "Plain requests to a server of native lines alone.", |c| {
        c.plain_refused
    }),
    ("repair_forged_total", "counter", "Native requests whose seal does not open.", |c| c.forged),
    ("repair_replayed_total", "counter", "Native requests that were taken already.", |c| c.replayed),
    ("repair_unopened_total", "counter", "Native requests without a seal, or of an unknown key.", |c| {
        c.unopened
    }),
    ("repair_replies_refused_total", "counter", "Replies that the kernel refused to send.", |c| {
        c.replies_refused
    }),
    ("told_stale_total", "counter", "Times that a receiver said that it follows a later session.", |c| {
        c.told_stale
    }),
];

/// Requests that drew no messages: the reason and the figure.
const REFUSED: [(&str, Repairs); 10] = [
    ("not-allowed", |c| c.refused.not_allowed),
    ("malformed", |c| c.refused.malformed),
    ("foreign-session", |c| c.refused.foreign_session),
    ("source-rate", |c| c.refused.source_rate),
    ("global-rate", |c| c.refused.global_rate),
    ("not-yet", |c| c.refused.not_yet),
    ("gone", |c| c.refused.gone),
    ("unproved", |c| c.refused.unproved),
    ("journal-busy", |c| c.refused.journal_busy),
    ("on-its-way", |c| c.refused.on_its_way),
];

/// What became of requests for leases: the event and the figure.
const LEASED: [(&str, Repairs); 11] = [
    ("granted", |c| c.leases.granted),
    ("renewed", |c| c.leases.renewed),
    ("released", |c| c.leases.released),
    ("expired", |c| c.leases.expired),
    ("full", |c| c.leases.full),
    ("cookie", |c| c.leases.cookies),
    ("cookie-refused", |c| c.leases.cookies_refused),
    ("not-allowed", |c| c.leases.not_allowed),
    ("over-rate", |c| c.leases.over_rate),
    ("malformed", |c| c.leases.malformed),
    ("replaced", |c| c.leases.replaced),
];

fn repairs(text: &mut Text, bridges: &[BridgeFigures]) {
    let of = |bridge: &BridgeFigures| match &bridge.counted {
        Some(Counted::Send(_, repair)) => repair.as_deref().copied(),
        _ => None,
    };
    for (name, kind, help, figure) in REPAIRED {
        each(text, bridges, name, kind, help, |bridge| of(bridge).map(|counters| figure(&counters)));
    }
    let help = "Requests that drew no messages, by reason.";
    by(text, bridges, ("repair_refused_total", "reason"), help, &REFUSED, of);
    by(text, bridges, ("lease_events_total", "event"), "What became of requests for leases.", &LEASED, of);
}

/// The figures of receiving: the name, the kind, the help and the figure.
const RECEIVED: [(&str, &str, &str, Receives); 35] = [
    ("received_packets_total", "counter", "Sound packets of the session received.", |c| c.packets),
    ("received_messages_total", "counter", "Messages in them.", |c| c.messages_received),
    ("delivered_messages_total", "counter", "Messages published into the channel.", |c| c.messages_published),
    ("missing_messages_total", "counter", "Messages that readers were told will never come.", |c| {
        c.messages_missing
    }),
    ("expired_messages_total", "counter", "Messages given up after asking.", |c| c.messages_expired),
    ("duplicate_messages_total", "counter", "Messages that were there already.", |c| c.messages_duplicate),
    (
        "store_full_messages_total",
        "counter",
        "Early messages dropped for want of room; asked for again.",
        |c| c.messages_refused,
    ),
    ("too_large_messages_total", "counter", "Messages larger than the channel takes.", |c| {
        c.messages_too_large
    }),
    ("gaps_total", "counter", "Holes found.", |c| c.gaps),
    ("gap_messages_total", "counter", "Messages in those holes.", |c| c.gap_messages),
    ("gaps_open", "gauge", "Holes that are being mended.", |c| c.gaps_open),
    ("behind_messages", "gauge", "Messages known to be published and not in the channel yet.", |c| {
        c.horizon.saturating_sub(c.next_sequence)
    }),
    ("reordered_packets_total", "counter", "Packets that came late and were still of use.", |c| {
        c.packets_reordered
    }),
    ("requested_needlessly_total", "counter", "Messages asked for that a line then brought.", |c| {
        c.requested_needlessly
    }),
    (
        "receiving_lines_anew_total",
        "counter",
        "Times that a line was opened anew, with its interface.",
        |c| c.lines_anew,
    ),
    ("lines_rejoined_total", "counter", "Times that a silent line's group was joined again.", |c| {
        c.lines_rejoined
    }),
    ("receive_errors_total", "counter", "Errors of receiving.", |c| c.receive_errors),
    ("sessions_total", "counter", "Sessions followed.", |c| c.sessions),
    (
        "contradicted_claims_total",
        "counter",
        "Claims of messages that do not exist, forgotten when contradicted: more than a few are a forger's.",
        |c| c.claims_contradicted,
    ),
    ("forged_packets_total", "counter", "Native packets whose seal does not open: forged or damaged.", |c| {
        c.forged
    }),
    (
        "replayed_packets_total",
        "counter",
        "Sealed packets taken already, among them the copies of other lines.",
        |c| c.replayed,
    ),
    ("unopened_packets_total", "counter", "Native packets without a seal, or of an unknown key.", |c| {
        c.unopened
    }),
    ("fragments_total", "counter", "Fragments of messages larger than a packet.", |c| c.fragments),
    (
        "refused_fragments_total",
        "counter",
        "Fragments of early messages dropped for want of room; asked for again.",
        |c| c.fragments_refused,
    ),
    (
        "reassembly_bytes",
        "gauge",
        "Bytes of messages larger than a packet that are not delivered yet.",
        |c| c.reassembly_bytes,
    ),
    ("origin_times", "gauge", "1 while messages keep the times of their publication.", |c| c.origin_times),
    (
        "old_packets_total",
        "counter",
        "Native packets not looked into: copies, or older than what is missing.",
        |c| c.copies,
    ),
    ("leases_full_total", "counter", "Times that a server had no place for a lease.", |c| c.leases_full),
    (
        "delayed_requests_total",
        "counter",
        "Losses not asked for at once: others may have lost the same.",
        |c| c.requests_delayed,
    ),
    ("saved_requests_total", "counter", "Losses mended before they were asked for: others had asked.", |c| {
        c.requests_saved
    }),
    (
        "overheard_repairs_total",
        "counter",
        "Repairs for all receivers that brought nothing missing here.",
        |c| c.repairs_overheard,
    ),
    (
        "merged_datagrams_total",
        "counter",
        "Datagrams of lines that came in one with others of the same length.",
        |c| c.datagrams_merged,
    ),
    ("pauses_total", "counter", "Times that a server told all receivers to wait.", |c| c.pauses),
    ("group_receivers", "gauge", "Receivers that the server has, as it says; 0 if it says nothing.", |c| {
        c.group
    }),
    ("place", "gauge", "The place among them, from 0: the first 16 ask at once for what they lost.", |c| {
        c.place
    }),
];

fn receivers(text: &mut Text, bridges: &[BridgeFigures]) {
    for (name, kind, help, figure) in RECEIVED {
        each(text, bridges, name, kind, help, |bridge| received(bridge).map(figure));
    }
    let sources: [(&str, Receives); 2] =
        [("line", |c| c.recovered_by_lines), ("server", |c| c.recovered_by_servers)];
    let help = "Missing messages that came after all, by where from.";
    by(text, bridges, ("recovered_messages_total", "source"), help, &sources, |bridge| {
        received(bridge).copied()
    });
    let reasons: [(&str, Receives); 8] = [
        ("too-short", |c| c.malformed.too_short),
        ("sequence-zero", |c| c.malformed.sequence_zero),
        ("sequence-overflow", |c| c.malformed.sequence_overflow),
        ("truncated", |c| c.malformed.truncated),
        ("trailing-bytes", |c| c.malformed.trailing_bytes),
        ("control", |c| c.malformed.control),
        ("native", |c| c.malformed.native),
        ("native-version", |c| c.malformed.native_version),
    ];
    let help = "Datagrams dropped unread because they are damaged, by reason.";
    by(text, bridges, ("malformed_datagrams_total", "reason"), help, &reasons, |bridge| {
        received(bridge).copied()
    });
    let ignored: [(&str, Receives); 7] = [
        ("stale-session", |c| c.packets_stale),
        ("foreign-session", |c| c.packets_foreign),
        ("implausible", |c| c.packets_implausible),
        ("unexpected-source", |c| c.datagrams_unexpected),
        ("other-source", |c| c.datagrams_locked_out),
        ("early-session", |c| c.packets_early),
        ("unasked-repair", |c| c.repairs_unasked),
    ];
    let help = "Sound packets that were not for this bridge, by reason.";
    by(text, bridges, ("ignored_packets_total", "reason"), help, &ignored, |bridge| {
        received(bridge).copied()
    });
    recovery_times(text, bridges);
}

fn recovery_times(text: &mut Text, bridges: &[BridgeFigures]) {
    for (name, help, is_recovery) in [
        (
            "shmcast_bridge_recovery_seconds",
            "From noticing a loss to having the message, from servers.",
            true,
        ),
        (
            "shmcast_bridge_receive_to_ring_seconds",
            "From the kernel's time stamp of a packet to the ring.",
            false,
        ),
    ] {
        text.family(name, "histogram", help);
        for bridge in bridges {
            if let Some(Counted::Receive { recovery, to_ring, .. }) = &bridge.counted {
                let histogram = if is_recovery { recovery } else { to_ring };
                let sum =
                    histogram.steps().map(|(limit_ns, count)| limit_ns as f64 * count as f64).sum::<f64>();
                let labels = [("bridge", bridge.spec.title())];
                text.histogram(name, &labels, cumulative(histogram), histogram.count(), sum / 1e9);
            }
        }
    }
}

fn lines(text: &mut Text, bridges: &[BridgeFigures]) {
    let families: [(&str, &str, Figure<LineStatus>); 5] = [
        ("line_datagrams_total", "Datagrams received on the line, sound or not.", |l| l.datagrams),
        ("line_first_messages_total", "Messages that came on this line first.", |l| l.messages_first),
        ("line_duplicate_messages_total", "Messages of the line that were there already.", |l| {
            l.messages_duplicate
        }),
        (
            "line_kernel_drops_total",
            "Datagrams that the kernel dropped, the buffer being full; those that came as one count as one.",
            |l| l.kernel_drops,
        ),
        ("line_truncated_total", "Datagrams longer than expected, cut off.", |l| l.truncated),
    ];
    for (name, help, figure) in families {
        let name = format!("shmcast_bridge_{name}");
        text.family(&name, "counter", help);
        for bridge in bridges {
            let Some(counters) = received(bridge) else { continue };
            for (line, counted) in line_names(&bridge.spec).iter().zip(&counters.lines) {
                text.sample(&name, &[("bridge", bridge.spec.title()), ("line", line)], figure(counted));
            }
        }
    }
}

/// The names of the lines: first the configured ones, then one for each server of unicast leases.
fn line_names(spec: &BridgeSpec) -> Vec<String> {
    let unicast = spec.receive.iter().filter(|receive| receive.unicast).flat_map(|receive| &receive.servers);
    let groups = spec.lines.iter().enumerate().map(|(index, line)| format!("{index}:{}", line.group));
    groups.chain(unicast.map(|server| format!("unicast:{server}"))).collect()
}

/// The names of the servers.
fn server_names(spec: &BridgeSpec) -> Vec<String> {
    let servers = spec.receive.iter().flat_map(|receive| &receive.servers).enumerate();
    servers.map(|(index, server)| format!("{index}:{server}")).collect()
}

fn servers(text: &mut Text, bridges: &[BridgeFigures]) {
    let families: [(&str, &str, Figure<ServerStatus>); 7] = [
        ("server_requests_total", "Requests sent to the server.", |s| s.requests),
        ("server_timeouts_total", "Requests that it did not answer in time.", |s| s.timeouts),
        ("server_repair_bytes_total", "Bytes of retransmissions from it.", |s| s.repair_bytes),
        ("server_recovered_messages_total", "Missing messages that it brought.", |s| s.messages_recovered),
        ("server_gone_total", "Times that it no longer held what was asked.", |s| s.gone),
        ("server_later_total", "Times that it held what was asked, but had sent as much as it may.", |s| {
            s.later
        }),
        ("server_held_total", "Times that nothing of what was asked was published yet.", |s| s.held),
    ];
    let mut each = |name: &str, kind, help, figure: &dyn Fn(&ServerStatus) -> f64| {
        let name = format!("shmcast_bridge_{name}");
        text.family(&name, kind, help);
        for bridge in bridges {
            let Some(counters) = received(bridge) else { continue };
            for (server, counted) in server_names(&bridge.spec).iter().zip(&counters.servers) {
                text.sample(&name, &[("bridge", bridge.spec.title()), ("server", server)], figure(counted));
            }
        }
    };
    for (name, help, figure) in families {
        each(name, "counter", help, &|server| figure(server) as f64);
    }
    let help = "1 while the server is down: it leaves requests unanswered and says nothing else.";
    each("server_down", "gauge", help, &|server| server.down as f64);
    let help = "Smoothed round trip to the server; 0 before the first.";
    each("server_rtt_seconds", "gauge", help, &|server| server.rtt_ns as f64 / 1e9);
}

fn received(bridge: &BridgeFigures) -> Option<&ReceiveCounters> {
    match &bridge.counted {
        Some(Counted::Receive { counters, .. }) => Some(counters),
        _ => None,
    }
}
