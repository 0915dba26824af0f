//! Writes the metrics in Prometheus's text format, version 0.0.4 (<https://prometheus.io/docs/instrumenting/exposition_formats/>).
//!
//! This module uses no metrics library, because such libraries keep counters of their own, and these metrics are a snapshot.

use super::bridges;
use super::exposition::Text;
use super::gates;
use super::journals;
use super::snapshot::{ChannelFigures, ReaderFigures, Snapshot};
use shmcast::control::{BoardStatus, RefusalCode};
use std::time::SystemTime;

/// The states of a channel, with the names of [`shmcast::ChannelStatus::state`].
const STATES: [&str; 7] = ["new", "active", "recovering", "closed", "orphaned", "superseded", "damaged"];
const REFUSALS: [RefusalCode; 9] = [
    RefusalCode::Version,
    RefusalCode::UnknownChannel,
    RefusalCode::Denied,
    RefusalCode::Busy,
    RefusalCode::Limit,
    RefusalCode::BadRequest,
    RefusalCode::Failed,
    RefusalCode::NoJournal,
    RefusalCode::UnknownGate,
];

/// All metrics as one text.
pub fn render(snapshot: &Snapshot) -> String {
    let mut text = Text::default();
    channels(&mut text, &snapshot.channels);
    boards(&mut text, &snapshot.channels);
    readers(&mut text, &snapshot.channels);
    gates::render(&mut text, &snapshot.channels);
    bridges::render(&mut text, &snapshot.bridges);
    journals::render(&mut text, &snapshot.journals);
    daemon(&mut text, snapshot);
    text.0
}

fn channels(text: &mut Text, channels: &[ChannelFigures]) {
    let mut each = |name, kind, help, figure: fn(&ChannelFigures) -> Option<u64>| {
        text.family(name, kind, help);
        for channel in channels {
            if let Some(value) = figure(channel) {
                text.sample(name, &[("channel", &channel.status.channel)], value);
            }
        }
    };
    each(
        "shmcast_published_messages_total",
        "counter",
        "Messages published on the channel since it was made, with those that a bridge found lost.",
        |c| c.status.next_sequence.map(|next| next.saturating_sub(1)),
    );
    each(
        "shmcast_published_bytes_total",
        "counter",
        "Payload bytes published on the channel since it was made; up to 64 messages behind.",
        |c| c.status.error.is_none().then_some(c.status.published_bytes),
    );
    each("shmcast_channel_sequence", "gauge", "Sequence of the newest message; 0 before the first.", |c| {
        c.status.next_sequence.map(|next| next.saturating_sub(1))
    });
    each(
        "shmcast_channel_oldest_sequence",
        "gauge",
        "Sequence of the oldest message that a reader can start from.",
        |c| c.status.oldest_sequence,
    );
    each("shmcast_channel_epoch", "gauge", "Incarnations of the publisher so far.", |c| Some(c.status.epoch));
    each("shmcast_channel_capacity_bytes", "gauge", "Size of the ring.", |c| Some(c.status.capacity_bytes));
    each("shmcast_publisher_up", "gauge", "1 while a publisher is attached.", |c| {
        Some(u64::from(c.status.publisher.is_some()))
    });
    each("shmcast_readers", "gauge", "Readers attached.", |c| Some(c.reader_count as u64));
    let name = "shmcast_channel_state";
    text.family(name, "gauge", "1 for the state that the channel is in, 0 for the others.");
    for channel in channels {
        for state in STATES {
            let is_in = u64::from(channel.status.state == state);
            text.sample(name, &[("channel", &channel.status.channel), ("state", state)], is_in);
        }
    }
    let name = "shmcast_channel_info";
    text.family(name, "gauge", "Always 1; the operator's labels of the channel.");
    for channel in channels {
        let own = channel.status.labels.lines().filter_map(|line| line.split_once('='));
        let own = own.filter(|(key, _)| is_label(key) && *key != "channel");
        let labels: Vec<(&str, &str)> =
            [("channel", channel.status.channel.as_str())].into_iter().chain(own).collect();
        text.sample(name, &labels, 1);
    }
}

/// The boards of channels that have one.
fn boards(text: &mut Text, channels: &[ChannelFigures]) {
    let mut each = |name, kind, help, figure: fn(&BoardStatus) -> u64| {
        text.family(name, kind, help);
        for (channel, board) in
            channels.iter().filter_map(|c| Some((&c.status.channel, c.status.board.as_ref()?)))
        {
            text.sample(name, &[("channel", channel)], figure(board));
        }
    };
    each("shmcast_board_keys", "gauge", "Keys on the channel's board.", |b| b.keys);
    each("shmcast_board_room", "gauge", "Keys for which the channel's board has room.", |b| b.room);
    each("shmcast_board_through", "gauge", "Sequence up to which all messages are on the board.", |b| {
        b.through
    });
    let help = "Messages that the board left out because their key found no room.";
    each("shmcast_board_refused_messages_total", "counter", help, |b| b.refused);
    let help = "Messages that were too large for the board.";
    each("shmcast_board_too_large_messages_total", "counter", help, |b| b.too_large);
    let help = "Messages that were too short to have a key.";
    each("shmcast_board_no_key_messages_total", "counter", help, |b| b.no_key);
}

/// Whether `key` is a valid label name. It must match `[a-zA-Z_][a-zA-Z0-9_]*`, and must not begin with two underscores, which Prometheus
/// reserves.
fn is_label(key: &str) -> bool {
    let is_word = key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    is_word && !key.starts_with("__") && key.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}

/// Returns the labels of a reader. They include the command, so that an alert names the program in a form that people know.
fn labels_of<'a>(channel: &'a str, reader: &'a ReaderFigures) -> [(&'static str, &'a str); 4] {
    let ReaderFigures { reader: number, command, role, .. } = reader;
    [("channel", channel), ("reader", number), ("command", command), ("role", role)]
}

fn readers(text: &mut Text, channels: &[ChannelFigures]) {
    let all = || channels.iter().flat_map(|c| c.readers.iter().map(|r| (c.status.channel.as_str(), r)));
    let mut each = |name, kind, help, figure: fn(&ReaderFigures) -> u64| {
        text.family(name, kind, help);
        for (channel, reader) in all() {
            text.sample(name, &labels_of(channel, reader), figure(reader));
        }
    };
    each(
        "shmcast_reader_lag",
        "gauge",
        "Messages published that the reader has not read. For reader=\"other\", the most of any.",
        |r| r.lag,
    );
    each("shmcast_reader_received_messages_total", "counter", "Messages the reader received.", |r| {
        r.received
    });
    each("shmcast_reader_lapped_total", "counter", "Times the reader was overtaken.", |r| r.lapped);
    each(
        "shmcast_reader_missed_messages_total",
        "counter",
        "Messages the reader missed, overtaken or lost before this host.",
        |r| r.missed,
    );
    let help =
        "Messages that a conflating reader left out because newer ones of their keys came from the board.";
    each("shmcast_reader_conflated_messages_total", "counter", help, |r| r.conflated);
    let name = "shmcast_reader_latency_seconds";
    let help = "From publish to receipt, as far as readers record it. The sum is up to 6.25 % high.";
    text.family(name, "histogram", help);
    for (channel, reader) in all() {
        // A reader that records no latencies gets no series. A series of zeros would mean that the reader records latencies and has had
        // none yet.
        let count = reader.latencies.count();
        if count > 0 {
            let labels = labels_of(channel, reader);
            let latencies = &reader.latencies;
            text.histogram(name, &labels, latencies.cumulative(), count, latencies.sum_seconds());
        }
    }
}

fn daemon(text: &mut Text, snapshot: &Snapshot) {
    let name = "shmcast_refusals_total";
    text.family(name, "counter", "Requests that the daemon refused, by reason.");
    for reason in REFUSALS {
        let count = snapshot.refusals.get(&reason).copied().unwrap_or(0);
        text.sample(name, &[("reason", reason.name())], count);
    }
    let name = "shmcast_reload_refused";
    text.family(
        name,
        "gauge",
        "1 if the last reload was refused, so that an older configuration is in force.",
    );
    text.sample(name, &[], u64::from(snapshot.is_reload_refused));
    let name = "shmcast_daemon_start_time_seconds";
    text.family(
        name,
        "gauge",
        "When the daemon started, in seconds since 1970; it changes with each restart.",
    );
    let started = snapshot.started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    text.sample(name, &[], format_args!("{:.3}", started.as_secs_f64()));
    let name = "shmcast_daemon_info";
    text.family(name, "gauge", "Always 1; the daemon's version.");
    text.sample(name, &[("version", env!("CARGO_PKG_VERSION"))], 1);
    let name = "shmcast_daemon_hiccups_seconds";
    text.family(name, "histogram", "How late the daemon's event loop was, looked at ten times a second.");
    let hiccups = &snapshot.hiccups;
    text.histogram(name, &[], hiccups.cumulative(), hiccups.count(), hiccups.sum_seconds());
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::server::registry::Measured;
    use shmcast::{ChannelStatus, Place, Process, ReaderStats};
    use std::collections::{BTreeSet, HashMap};
    use std::sync::Arc;

    pub(in crate::server::metrics) fn stats(received: u64) -> ReaderStats {
        let mut histogram = vec![0; 480].into_boxed_slice();
        histogram[100] = received;
        ReaderStats {
            role: shmcast::Role::Reader,
            pid: 1,
            started_at: 1,
            segment: [0, 0],
            place: Place { position: 0, sequence: received },
            received,
            lapped: 0,
            missed: 0,
            conflated: 0,
            heartbeat: 0,
            histogram,
        }
    }

    pub(in crate::server::metrics) fn measured(
        channel: &str,
        readers: Vec<(Process, ReaderStats)>,
    ) -> Measured {
        let status: ChannelStatus = serde_json::from_value(serde_json::json!({
            "channel": channel, "state": "active", "publisher": null, "epoch": 2, "capacity_bytes": 65536,
            "max_message_bytes": 100, "uuid": "", "created_ns": 0, "clock": "counter", "clock_hz": 1,
            "schema_id": 0, "schema": "", "labels": "venue=X \"1\" \\ \nno label=1\nchannel=2\n",
            "published_bytes": 77, "oldest_sequence": 1, "next_sequence": 1001
        }))
        .unwrap();
        Measured { status, readers }
    }

    fn snapshot(channels: Vec<ChannelFigures>) -> Snapshot {
        let refusals = HashMap::from([(RefusalCode::Denied, 3)]);
        Snapshot {
            channels,
            bridges: Vec::new(),
            journals: Vec::new(),
            refusals,
            is_reload_refused: true,
            started: SystemTime::UNIX_EPOCH,
            hiccups: Arc::default(),
        }
    }

    #[test]
    fn a_hostile_command_name_that_adds_a_line() {
        let command = "a\"} 1\nshmcast_readers{channel=\"x\\";
        let process = Process { pid: Some(7), uid: None, command: Some(command.to_owned()) };
        let text = render(&snapshot(vec![ChannelFigures::of(measured("t", vec![(process, stats(5))]))]));
        let expected = r#"shmcast_reader_received_messages_total{channel="t",reader="7",command="a\"} 1\nshmcast_readers{channel=\"x\\",role="reader"} 5"#;
        assert!(text.lines().any(|line| line == expected), "{text}");
        let expected = r#"shmcast_channel_info{channel="t",venue="X \"1\" \\ "} 1"#;
        assert!(text.lines().any(|line| line == expected), "{text}");
    }

    #[test]
    fn a_series_that_is_told_twice() {
        let process = Process { pid: Some(7), uid: None, command: None };
        let readers = || (0..200).map(|i| (process.clone(), stats(i))).collect();
        let channels = ["a", "b"].map(|name| ChannelFigures::of(measured(name, readers())));
        let text = render(&snapshot(channels.into()));
        let mut seen = BTreeSet::new();
        for line in text.lines() {
            let series = line.rsplit_once(' ').unwrap().0;
            assert!(seen.insert(series.to_owned()), "twice: {series}");
        }
        assert!(
            text.contains(
                "shmcast_reader_latency_seconds_bucket{channel=\"b\",reader=\"other\",command=\"\",role=\"\",le=\"+Inf\"}"
            )
        );
        assert!(text.contains("\nshmcast_refusals_total{reason=\"denied\"} 3\n"));
        assert!(text.contains("\nshmcast_refusals_total{reason=\"busy\"} 0\n"));
        assert!(text.contains("\nshmcast_reload_refused 1\n"));
        assert!(text.contains("\nshmcast_published_messages_total{channel=\"a\"} 1000\n"));
    }
}
