//! The status of channels and readers, as tools show it. The status comes from a directory or from a daemon.

use crate::directory::{ChannelDetail, ChannelInfo, GateSight, Publishing, ReaderInfo, command_of};
use crate::error::Holder;
use crate::gate::{GateState, Then};
use shmcast_layout::control::{ChannelStatus, GateReport, GateTerms, LatencyStatus, Process, ReaderStatus};
use shmcast_layout::layout::header::{ClockKind, State};
use shmcast_layout::reader_page::ReaderStats;
use shmcast_layout::ring::locate::Place;

impl ChannelInfo {
    /// Returns the channel and its readers in the form that tools print and daemons send.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// let channel = shmcast::Directory::at(dir.path()).channel("t")?;
    /// assert_eq!(channel.status().state, "active");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn status(&self) -> ChannelStatus {
        let publisher = match &self.publisher {
            Publishing::By(Holder::Publisher { pid, command }) => {
                Some(Process { pid: *pid, uid: None, command: command.clone() })
            }
            Publishing::By(_) => Some(Process { pid: None, uid: None, command: None }),
            Publishing::Nobody | Publishing::Unknown => None,
        };
        let orphaned = self.publisher == Publishing::Nobody;
        let mut status = match &self.detail {
            Ok(detail) => detail.status(&self.name, orphaned),
            Err(_) if self.is_private => unseen(&self.name, "private", None),
            Err(what) => unseen(&self.name, "damaged", Some(what.clone())),
        };
        status.publisher = publisher;
        let mut hide = |field: &str| status.unknown.push(field.to_owned());
        if self.publisher == Publishing::Unknown {
            hide("publisher");
        }
        if self.is_private {
            hide("epoch");
        }
        if self.are_readers_unknown || self.is_private && self.readers.is_empty() {
            hide("readers");
        }
        let tail = self.detail.as_ref().ok().and_then(|detail| detail.tail.clone().ok());
        let report = |sight| gate_report(sight, tail, !orphaned, process_of);
        status.gates = self.gates.iter().map(report).collect();
        status.readers = self
            .readers
            .iter()
            .map(|ReaderInfo { stats, command }| {
                let pid = u32::try_from(stats.pid).ok().filter(|pid| *pid > 0);
                reader_status(
                    stats,
                    Process { pid, uid: None, command: command.clone() },
                    status.next_sequence,
                )
            })
            .collect();
        status
    }
}

impl ChannelDetail {
    /// Returns the channel's status. The caller adds the publisher and the readers. `unheld` says that no process holds the writer lock.
    pub(crate) fn status(&self, name: &str, unheld: bool) -> ChannelStatus {
        let (header, geometry) = (&self.header, &self.header.geometry);
        let error = [&self.oldest, &self.tail].into_iter().find_map(|place| place.as_ref().err().cloned());
        let state = match self.state {
            _ if error.is_some() => "damaged",
            Some(State::Active | State::Recovering) if unheld => "orphaned",
            Some(State::Active) => "active",
            Some(State::Recovering) => "recovering",
            Some(State::Closed) => "closed",
            Some(State::Superseded) => "superseded",
            None => "new",
        };
        let clock = match header.clock {
            ClockKind::Counter => "counter",
            ClockKind::Monotonic => "monotonic",
        };
        ChannelStatus {
            channel: name.to_owned(),
            state: state.to_owned(),
            publisher: None,
            epoch: self.epoch,
            capacity_bytes: geometry.capacity,
            max_message_bytes: geometry.max_message,
            uuid: format!("{:016x}{:016x}", header.uuid[0], header.uuid[1]),
            stream: header.stream.to_string(),
            created_ns: header.created_ns,
            clock: clock.to_owned(),
            clock_hz: header.clock_hz,
            schema_id: header.schema_id,
            schema: header.schema.clone(),
            labels: header.labels.clone(),
            published_bytes: self.published_bytes,
            oldest_sequence: self.oldest.as_ref().ok().map(|place| place.sequence),
            next_sequence: self.tail.as_ref().ok().map(|place| place.sequence),
            error,
            generation: None,
            mode: None,
            journal: None,
            board: self.board,
            gates: Vec::new(),
            readers: Vec::new(),
            unknown: Vec::new(),
        }
    }
}

/// The status of a channel of which only the name is known.
fn unseen(name: &str, state: &str, error: Option<String>) -> ChannelStatus {
    ChannelStatus {
        channel: name.to_owned(),
        state: state.to_owned(),
        publisher: None,
        epoch: 0,
        capacity_bytes: 0,
        max_message_bytes: 0,
        uuid: String::new(),
        stream: String::new(),
        created_ns: 0,
        clock: String::new(),
        clock_hz: 0,
        schema_id: 0,
        schema: String::new(),
        labels: String::new(),
        published_bytes: 0,
        oldest_sequence: None,
        next_sequence: None,
        error,
        generation: None,
        mode: None,
        journal: None,
        board: None,
        gates: Vec::new(),
        readers: Vec::new(),
        unknown: Vec::new(),
    }
}

/// Makes the report of a gate. `tail` is the ring's tail, if it is known. `has_publisher` says whether a publisher lives. Without a
/// publisher, no message waits for the gate. `process` finds the process for an id that a reader claims.
pub(crate) fn gate_report(
    GateSight { figures, claim }: &GateSight,
    tail: Option<Place>,
    has_publisher: bool,
    process: impl Fn(u64) -> Process,
) -> GateReport {
    // The figures have the gate's state at the publisher's last check. The gate's reader can have changed since then.
    let state = match claim {
        None => GateState::Absent,
        Some(_) if !has_publisher => GateState::Joining,
        Some(_) => match GateState::of_word(figures.state) {
            // The publisher has not checked the gate since this reader took it.
            GateState::Absent => GateState::Joining,
            told => told,
        },
    };
    let waits_ns = figures.wait_ns(0.5).map(|p50| {
        let at = |quantile| figures.wait_ns(quantile).unwrap_or(p50);
        LatencyStatus { p50, p99: at(0.99), p999: at(0.999), max: figures.longest_ns }
    });
    let at = claim.and_then(|claim| Some((claim.said.place()?, claim.sequence))).zip(tail);
    GateReport {
        terms: GateTerms {
            gate: figures.name.clone(),
            lag_bytes: figures.lag_bytes,
            wait_ns: figures.wait_ns,
            refuse: figures.then == Then::Refuse as u64,
        },
        state: state.name().to_owned(),
        reader: claim.map(|claim| process(claim.pid)),
        behind_bytes: at.map(|((position, _), tail)| tail.position.saturating_sub(position)),
        behind_messages: at.map(|((_, sequence), tail)| tail.sequence.saturating_sub(sequence)),
        held: figures.held,
        longest_ns: figures.longest_ns,
        total_ns: figures.total_ns,
        waits_ns,
        waits: figures.histogram.to_vec(),
        dropped: figures.dropped,
        refused: figures.refused,
        turned_away: figures.turned_away,
        impossible: figures.impossible,
    }
}

/// The process with this id. The command is `None` if this process cannot see that process.
fn process_of(pid: u64) -> Process {
    let pid = u32::try_from(pid).ok().filter(|pid| *pid > 0);
    Process { pid, uid: None, command: pid.and_then(command_of) }
}

/// Makes the status of a reader from its page. `next` is the channel's next sequence.
pub(crate) fn reader_status(stats: &ReaderStats, process: Process, next: Option<u64>) -> ReaderStatus {
    let latency_ns = stats.latency_ns(0.5).map(|p50| {
        let at = |quantile| stats.latency_ns(quantile).unwrap_or(p50);
        LatencyStatus { p50, p99: at(0.99), p999: at(0.999), max: at(1.0) }
    });
    ReaderStatus {
        process,
        role: stats.role.name().to_owned(),
        next_sequence: stats.place.sequence,
        lag: next.map(|next| next.saturating_sub(stats.place.sequence)),
        received: stats.received,
        lapped: stats.lapped,
        missed: stats.missed,
        conflated: stats.conflated,
        started_at: stats.started_at,
        latency_ns,
    }
}
