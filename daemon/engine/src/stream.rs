//! Commands about a stream: create, describe, remove and verify. Each call blocks until it is done.

use async_nats::jetstream::stream::Info;
use futures_util::StreamExt;
use shmcast_bridge::BridgeError;
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::spec::{BridgeSpec, NatsSpec};

use crate::EngineError;
use crate::client::Log;
use crate::proto::block::{Body, Head, Kind, parse};
use crate::proto::seal::Opener;
pub use crate::results::{Range, StreamInfo, Verified};
use crate::send::runtime;

/// The greatest length of each list in the result of a check.
const MOST_NAMED: usize = 1_000;

fn info_of(info: &Info, head: Option<Head>) -> StreamInfo {
    let cluster = info.cluster.as_ref();
    let late = cluster.map(|cluster| cluster.replicas.iter().filter(|peer| !peer.current || peer.offline));
    StreamInfo {
        stream: info.config.name.clone(),
        subjects: info.config.subjects.clone(),
        entries: info.state.messages,
        bytes: info.state.bytes,
        first_entry: info.state.first_sequence,
        last_entry: info.state.last_sequence,
        replicas: info.config.num_replicas,
        leader: cluster.and_then(|cluster| cluster.leader.clone()),
        lagging: late.map(|late| late.map(|peer| peer.name.clone()).collect()).unwrap_or_default(),
        session: head.map(|head| head.session.to_string()),
        next_sequence: head.map(|head| head.end()),
    }
}

fn with<T>(
    spec: &BridgeSpec,
    what: impl AsyncFnOnce(Log, &NatsSpec) -> Result<T, EngineError>,
) -> Result<T, EngineError> {
    let nats = spec.nats.clone().unwrap_or_default();
    let problems: Vec<String> =
        spec.problems().into_iter().filter(|(field, _)| *field != "send").map(|(_, what)| what).collect();
    if !problems.is_empty() {
        return Err(BridgeError::Spec { bridge: spec.title().to_owned(), problems }.into());
    }
    let runtime = runtime()?;
    runtime.block_on(async {
        let log = Log::reach(spec, &nats).await?;
        what(log, &nats).await
    })
}

fn missing(log: &Log, spec: &BridgeSpec) -> EngineError {
    EngineError::NoStream { stream: log.name().to_owned(), channel: spec.channel.clone() }
}

/// Creates the stream of a channel. If `mirror_of` names a domain, the stream is a mirror of the stream with the same name in that domain.
///
/// # Errors
/// [`EngineError`], also if the stream exists with other settings.
pub fn create(spec: &BridgeSpec, mirror_of: Option<&str>) -> Result<StreamInfo, EngineError> {
    with(spec, async |log, nats| Ok(info_of(&log.create(nats, mirror_of).await?, None)))
}

/// Returns the servers' description of a channel's stream.
///
/// # Errors
/// [`EngineError`], also if the stream does not exist.
pub fn info(spec: &BridgeSpec) -> Result<StreamInfo, EngineError> {
    with(spec, async |log, _| {
        let info = log.info().await?.ok_or_else(|| missing(&log, spec))?;
        let head = log.last().await.and_then(|last| last.head);
        Ok(info_of(&info, head))
    })
}

/// Removes the stream of a channel with all its blocks.
///
/// # Errors
/// [`EngineError`], also if the stream does not exist.
pub fn remove(spec: &BridgeSpec) -> Result<(), EngineError> {
    with(spec, async |log, _| match log.remove().await? {
        true => Ok(()),
        false => Err(missing(&log, spec)),
    })
}

impl Verified {
    fn take(&mut self, state: &mut Verifying, number: u64, block: &[u8]) {
        let opened = if state.has_keys { state.opener.open(block) } else { parse(block) };
        let (head, body) = match opened {
            Ok(opened) => opened,
            Err(e) => {
                note(&mut self.damaged, (number, e.to_string()));
                state.crc = None;
                return;
            }
        };
        self.blocks += 1;
        self.chain_breaks += u64::from(state.crc.is_some_and(|crc| crc != head.before));
        state.crc = Some(head.crc);
        if state.session != Some(head.session) {
            (state.session, state.due) = (Some(head.session), head.first);
            note(&mut self.sessions, head.session.to_string());
        }
        if head.first > state.due {
            note(&mut self.missing, Range { from: state.due, to: head.first - 1 });
            state.due = head.first;
        }
        let repeated = state.due.min(head.end()) - head.first;
        self.repeated += repeated;
        let fresh = u64::from(head.count) - repeated.min(u64::from(head.count));
        self.sealed += u64::from(head.key != 0);
        let part = if let Body::Fragment(part) = body { Some((part.offset, part.data.len())) } else { None };
        match (head.kind, part) {
            (Kind::Gap, _) if fresh > 0 => {
                note(&mut self.gaps, Range { from: state.due, to: head.end() - 1 })
            }
            (Kind::Gap | Kind::End | Kind::Takeover, _) => {}
            (Kind::Fragment, Some((offset, bytes))) if !joins(&mut state.part, &head, offset, bytes) => {
                note(&mut self.missing, Range { from: head.first, to: head.first });
            }
            (Kind::Data | Kind::Fragment, _) => self.messages += fresh,
        }
        state.due = state.due.max(head.end());
    }
}

fn note<T>(list: &mut Vec<T>, item: T) {
    if list.len() < MOST_NAMED {
        list.push(item);
    }
}

struct Verifying {
    session: Option<Session>,
    due: u64,
    crc: Option<u32>,
    /// A message in fragments: its sequence, and the number of its bytes that were read so far.
    part: (u64, usize),
    opener: Opener,
    /// Whether there are keys. Without keys, sealed bodies are not checked.
    has_keys: bool,
}

/// Whether a fragment continues the previous fragment of its message, or is the message's first. After a restart, a writer sends all
/// fragments of its message again, so a first fragment can follow any fragment.
fn joins(before: &mut (u64, usize), head: &Head, offset: u32, bytes: usize) -> bool {
    let (sequence, end) = *before;
    *before = (head.first, offset as usize + bytes);
    offset == 0 || (sequence == head.first && end == offset as usize)
}

/// Reads the whole stream of a channel, and checks each block and the links between blocks. `progress` receives the number of entries read
/// and the number of all entries.
///
/// # Errors
/// [`EngineError`] if the servers stop sending entries.
pub fn verify(spec: &BridgeSpec, mut progress: impl FnMut(u64, u64)) -> Result<Verified, EngineError> {
    with(spec, async |log, _| {
        let info = log.info().await?.ok_or_else(|| missing(&log, spec))?;
        let mut found = Verified::default();
        let (opener, has_keys) = (log.opener(), log.keys.ring().is_some());
        let mut state = Verifying { session: None, due: 0, crc: None, part: (0, 0), opener, has_keys };
        let (first, last) = (info.state.first_sequence, info.state.last_sequence);
        if info.state.messages == 0 {
            return Ok(found);
        }
        let refused = |why: String| EngineError::Refused { stream: log.name().to_owned(), why };
        let mut entries = log.follow(first).await.map_err(refused)?;
        loop {
            let entry =
                entries.next().await.ok_or_else(|| refused("the entries stopped coming".to_owned()))?;
            let entry = entry.map_err(|e| refused(e.to_string()))?;
            let number = entry.info().map_err(|e| refused(e.to_string()))?.stream_sequence;
            found.take(&mut state, number, &entry.payload);
            progress(number - first + 1, last - first + 1);
            if number >= last {
                return Ok(found);
            }
        }
    })
}
