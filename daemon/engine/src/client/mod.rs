//! The client of the NATS servers. It uses one stream as a log, and three subjects.
//!
//! - `shmcast.CHANNEL`: the blocks, which the stream keeps.
//! - `shmcast.CHANNEL.pulse`: announcements of the writer. The stream does not keep them.
//! - `shmcast.CHANNEL.want`: requests of readers for missing messages. The stream does not keep them.

mod identity;
mod leader;
mod streams;
#[cfg(test)]
pub(crate) mod tests;
mod wants;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::context::{
    DeleteStreamErrorKind, GetStreamErrorKind, PublishAckFuture, PublishError, PublishErrorKind,
};
use async_nats::jetstream::stream::{
    Config, DirectGetErrorKind, DiscardPolicy, External, Info, RawMessageErrorKind, RetentionPolicy, Source,
    StorageType, Stream,
};
use async_nats::jetstream::{Context, ErrorCode, context};
use async_nats::{AuthError, Client, ConnectErrorKind, ConnectOptions, Event, HeaderMap, Subject};
use bytes::Bytes;
use shmcast_bridge::Keys;
use shmcast_bridge::spec::server::ServerAddress;
use shmcast_bridge::spec::{BridgeSpec, NatsSpec};
use shmcast_bridge::thread::wall_ns;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::EngineError;
use crate::proto::block::{BlockId, MIN_BYTES};
use crate::proto::seal::Opener;
use crate::proto::writer::{Last, Trouble};
use crate::status::Link;

pub(crate) use wants::Inbox;

/// The time in which a server must answer a new connection.
const CONNECT: Duration = Duration::from_secs(3);
/// The greatest number of attempts to connect when a bridge starts. Only attempts that time out are repeated.
const CONNECT_TRIES: u32 = 3;
/// The interval of the client's pings. The client leaves a silent connection after two intervals.
const PING: Duration = Duration::from_secs(1);
/// The longest pause between two attempts to connect again.
const RECONNECT: Duration = Duration::from_secs(1);
/// The longest time that a request about the log can take.
const REQUEST: Duration = Duration::from_secs(2);
/// The longest time for which the client waits until the servers of a stream have a leader.
const ELECTION: Duration = Duration::from_secs(10);
/// The header with a block's name.
const NAME: &str = "Nats-Msg-Id";
/// The time for which the servers remember the names of blocks.
const NAMES: Duration = Duration::from_secs(1);
/// The greatest number of pulses, and of requests, that wait in a sender's client. The client drops further ones, because writers and
/// readers send them again.
const MOST_WORDS: usize = 256;
/// The number of bytes of an append without its block: the subject, the reply subject, and the headers.
const OVERHEAD_BYTES: usize = 512;
/// Bytes that are fetched ahead of the reader.
const AHEAD_BYTES: usize = 8 << 20;
/// The interval of the servers' heartbeats to a reader that has read all entries.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// The time after which the servers remove a consumer whose reader is away.
const FORGET: Duration = Duration::from_secs(30);
/// The greatest number of damaged or missing entries in a row that a search for a valid block skips.
const MOST_DAMAGED: u64 = 256;

/// The log of a channel: one stream of the NATS servers.
#[derive(Debug, Clone)]
pub(crate) struct Log {
    pub(crate) client: Client,
    context: Context,
    stream: Stream<()>,
    name: String,
    pub(crate) subject: String,
    pub(crate) link: Arc<Link>,
    /// The keys of sealed blocks.
    pub(crate) keys: Arc<Keys>,
    /// Whether blocks without a seal are accepted.
    pub(crate) takes_open: bool,
    /// The settings for a stream that does not exist yet; `None` if this bridge creates no stream.
    creates: Option<NatsSpec>,
    /// Whether a single server keeps the stream. If so, an append also gives the name of the previous entry
    /// ([`append_if`](Log::append_if)).
    is_alone: Arc<AtomicBool>,
    /// The number of the log's last entry according to the last refusal of an append. 0 if no append was refused since the log's end was
    /// last read.
    stores_after: Arc<AtomicU64>,
}

/// Returns the number of the log's last entry, if a server named it when it refused an append.
fn stores_after(error: &PublishError) -> Option<u64> {
    let text = std::error::Error::source(error)?.to_string();
    let (_, number) = text.split_once("wrong last sequence: ")?;
    number.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}

/// Whether a stream's description comes from its leader. If a stream has no leader, any replica describes it, and a replica that lags might
/// describe an empty stream.
fn is_decided(info: &Info) -> bool {
    info.cluster.as_ref().is_none_or(|cluster| cluster.leader.as_ref().is_some_and(|name| !name.is_empty()))
}

/// Returns the number of the first entry of a new stream. The number comes from the clock, and grows by 1024 per millisecond. All numbers
/// of an earlier stream are lower, because no stream gets 1024 entries per millisecond.
fn first_number() -> u64 {
    (wall_ns() / 1_000_000) << 10
}

fn refused(name: &str, why: impl ToString) -> EngineError {
    EngineError::Refused { stream: name.to_owned(), why: why.to_string() }
}

/// Makes options with which each new connection reads the account and the credentials again. If they cannot be read, `link` notes the
/// reason.
fn identified(nats: &NatsSpec, link: &Arc<Link>) -> ConnectOptions {
    let (nats, told) = (nats.clone(), link.clone());
    ConnectOptions::with_auth_callback(move |nonce| {
        let read = identity::read(&nats, &nonce);
        told.identified(&read);
        std::future::ready(read.map_err(AuthError::new))
    })
}

/// Connects to one of the servers in the spec. If the connection breaks later, the client reconnects by itself.
async fn connect(spec: &BridgeSpec, nats: &NatsSpec, link: &Arc<Link>) -> Result<Client, EngineError> {
    let failed = |why: String| EngineError::Connect { servers: shown(&nats.servers), why };
    let told = link.clone();
    let direction = if spec.send.is_some() { "send" } else { "recv" };
    // A connection whose account cannot be read would fail without a reason, so the account is read here first.
    identity::read(nats, &[]).map_err(failed)?;
    let mut options = identified(nats, link)
        .name(format!("shmcast {direction} {}", spec.title()))
        .connection_timeout(CONNECT)
        .request_timeout(Some(REQUEST))
        .ping_interval(PING)
        .reconnect_delay_callback(|attempt| {
            RECONNECT.min(Duration::from_millis(50) * attempt.min(100) as u32)
        })
        .event_callback(move |event| {
            match event {
                Event::Connected => told.connected(),
                Event::Disconnected | Event::Closed => told.disconnected(),
                Event::ServerError(e) => told.note(format!("the servers say: {e}")),
                Event::ClientError(e) => told.note(e.to_string()),
                Event::LameDuckMode | Event::Draining | Event::SlowConsumer(_) => {}
            }
            std::future::ready(())
        });
    if spec.send.is_some() {
        options = options.subscription_capacity(MOST_WORDS);
    }
    if let Some(ca) = &nats.ca {
        std::fs::metadata(ca).map_err(|e| failed(format!("ca {}: {e}", ca.display())))?;
        options = options.add_root_certificates(ca.clone());
    }
    if let (Some(cert), Some(key)) = (&nats.cert, &nats.key) {
        options = options.add_client_certificate(cert.clone(), key.clone());
    }
    if nats.servers.iter().all(ServerAddress::is_tls) {
        options = options.require_tls(true);
    }
    // The client gets addresses without accounts, so that no error of the client can show an account.
    let addresses: Vec<String> = nats.servers.iter().map(ToString::to_string).collect();
    for tries in 1.. {
        match options.clone().connect(&addresses[..]).await {
            // Servers that are far away or busy might need longer than one try.
            Err(e) if e.kind() == ConnectErrorKind::TimedOut && tries < CONNECT_TRIES => {}
            Err(e) if e.kind() == ConnectErrorKind::Io => {
                return Err(failed(format!(
                    "{}: start a server there, or give the address of one",
                    sentence(&e)
                )));
            }
            Err(e) => return Err(failed(sentence(&e))),
            Ok(client) => {
                link.connected();
                return Ok(client);
            }
        }
    }
    unreachable!("the last try returns")
}

/// Returns the host names of the servers, separated by commas.
pub(crate) fn shown(servers: &[ServerAddress]) -> String {
    servers.iter().map(ServerAddress::host).collect::<Vec<_>>().join(", ")
}

/// Returns an error's text together with its causes. For a certificate or an account, only the causes say what is wrong.
fn sentence(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

impl Log {
    /// Connects, and finds the stream. A sender creates a missing stream if its spec allows that.
    pub(crate) async fn open(spec: &BridgeSpec, nats: &NatsSpec) -> Result<Log, EngineError> {
        let log = Log::reach(spec, nats).await?;
        if log.info().await?.is_none() {
            let Some(nats) = &log.creates else {
                return Err(EngineError::NoStream { stream: log.name, channel: spec.channel.clone() });
            };
            log.create(nats, None).await?;
        }
        Ok(log)
    }

    /// Connects, and does not check whether the stream exists.
    pub(crate) async fn reach(spec: &BridgeSpec, nats: &NatsSpec) -> Result<Log, EngineError> {
        let (link, keys) = (Arc::new(Link::default()), Arc::new(Keys::open(spec)?));
        let client = connect(spec, nats, &link).await?;
        let most = client.server_info().max_payload.saturating_sub(OVERHEAD_BYTES);
        if spec.send.is_some() && nats.block_bytes > most.max(MIN_BYTES) {
            return Err(EngineError::BlockTooLarge { block: nats.block_bytes, most });
        }
        let context = context::ContextBuilder::new().ack_timeout(nats.ack()).timeout(REQUEST);
        // An append that the sender has given up still counts against this limit until the append times out. An append above the limit must
        // fail without a wait, because the thread that would wait is the thread that takes the answers.
        let context = context.max_ack_inflight(8 * nats.in_flight + 64).backpressure_on_inflight(false);
        let context = match &nats.domain {
            Some(domain) => context.domain(domain).build(client.clone()),
            None => context.build(client.clone()),
        };
        let (name, subject) = (nats.stream_of(&spec.channel), nats.subject_of(&spec.channel));
        let stream = context.get_stream_no_info(&name).await.map_err(|e| refused(&name, sentence(&e)))?;
        // The stream has its own copy of the time limit for its requests. From now on, the context is used only for appends, which may take
        // longer.
        let mut context = context;
        context.set_timeout(REQUEST.max(nats.ack()));
        let takes_open = spec.takes_open();
        let creates = (nats.create && spec.send.is_some()).then(|| nats.clone());
        Ok(Log {
            client,
            context,
            stream,
            name,
            subject,
            link,
            keys,
            takes_open,
            creates,
            is_alone: Arc::default(),
            stores_after: Arc::default(),
        })
    }

    /// Returns an opener that has the present keys.
    pub(crate) fn opener(&self) -> Opener {
        Opener::new(self.keys.ring(), self.takes_open)
    }

    /// Creates the stream. If `mirror_of` names a domain, the stream is a mirror of the stream with the same name in that domain.
    pub(crate) async fn create(&self, nats: &NatsSpec, mirror_of: Option<&str>) -> Result<Info, EngineError> {
        let source = |domain: &str| Source {
            name: self.name.clone(),
            external: Some(External { api_prefix: format!("$JS.{domain}.API"), delivery_prefix: None }),
            ..Source::default()
        };
        let config = Config {
            name: self.name.clone(),
            subjects: if mirror_of.is_none() { vec![self.subject.clone()] } else { Vec::new() },
            mirror: mirror_of.map(source),
            mirror_direct: mirror_of.is_some(),
            description: Some("blocks of a shmcast channel".to_owned()),
            retention: RetentionPolicy::Limits,
            discard: DiscardPolicy::Old,
            storage: StorageType::File,
            num_replicas: usize::from(nats.replicas()),
            max_bytes: nats.keep_bytes.and_then(|bytes| i64::try_from(bytes).ok()).unwrap_or(-1),
            max_age: Duration::from_secs(nats.keep_s.unwrap_or(0)),
            // The time for which the servers remember the names of blocks. It is short, because the servers need only the last block's
            // name.
            duplicate_window: if mirror_of.is_none() { NAMES } else { Duration::ZERO },
            first_sequence: Some(first_number()).filter(|_| mirror_of.is_none() && nats.replicas() > 1),
            allow_direct: true,
            ..Config::default()
        };
        let created = self.context.create_stream(config).await;
        let stream = created.map_err(|e| refused(&self.name, sentence(&e)))?;
        self.note_copies(stream.cached_info());
        Ok(stream.cached_info().clone())
    }

    fn note_copies(&self, info: &Info) {
        self.is_alone.store(info.config.num_replicas <= 1, Ordering::Relaxed);
    }

    /// Checks how many servers keep the stream. An administrator can change the number at any time.
    pub(crate) async fn look_at_copies(&self) {
        if let Ok(info) = self.stream.get_info().await {
            self.note_copies(&info);
        }
    }

    /// The stream's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the servers' description of the stream; `None` if the stream does not exist. Waits up to [`ELECTION`] for a leader.
    pub(crate) async fn info(&self) -> Result<Option<Info>, EngineError> {
        let asked = Instant::now();
        loop {
            match self.context.get_stream(&self.name).await {
                Ok(stream) if is_decided(stream.cached_info()) => {
                    return Ok(Some(stream.cached_info().clone()));
                }
                Ok(_) if asked.elapsed() >= ELECTION => {
                    return Err(refused(&self.name, "its servers have elected none that decides: ask again"));
                }
                Ok(_) => tokio::time::sleep(ELECTION / 50).await,
                Err(e) => match e.kind() {
                    GetStreamErrorKind::JetStream(error)
                        if error.error_code() == ErrorCode::STREAM_NOT_FOUND =>
                    {
                        return Ok(None);
                    }
                    _ => return Err(refused(&self.name, sentence(&e))),
                },
            }
        }
    }

    /// Removes the stream, even while it has no leader. Returns false if the stream does not exist.
    pub(crate) async fn remove(&self) -> Result<bool, EngineError> {
        match self.context.delete_stream(&self.name).await {
            Ok(_) => Ok(true),
            Err(e) => match e.kind() {
                DeleteStreamErrorKind::JetStream(error)
                    if error.error_code() == ErrorCode::STREAM_NOT_FOUND =>
                {
                    Ok(false)
                }
                _ => Err(refused(&self.name, sentence(&e))),
            },
        }
    }

    /// Appends a block. The servers store it only if the log's last entry has the number `after` and, if a name is given, the name
    /// `behind`. The returned future yields the answer.
    ///
    /// If several servers keep the stream, `behind` is not sent. A server compares names with its own memory, and a server that has just
    /// caught up does not know the last name. Such a server would skip entries that the other servers store.
    ///
    /// Without names, the entry numbers must be unique. They are unique because a stream on several servers loses no stored entry, and a
    /// new stream begins with a higher number.
    ///
    /// If several blocks wait for their answers, the servers might refuse the first block, and store the second block after a rival's
    /// block. Readers detect such a block by its sequences.
    pub(crate) async fn append_if(
        &self,
        after: u64,
        (behind, id): (Option<BlockId>, Option<BlockId>),
        block: Bytes,
    ) -> Result<PublishAckFuture, Trouble> {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Expected-Last-Sequence", after.to_string().as_str());
        if let Some(behind) = behind.filter(|_| self.is_alone.load(Ordering::Relaxed)) {
            headers.insert("Nats-Expected-Last-Msg-Id", behind.to_string().as_str());
        }
        if let Some(id) = id {
            headers.insert(NAME, id.to_string().as_str());
        }
        let sent = self.context.publish_with_headers(self.subject.clone(), headers, block).await;
        sent.map_err(|e| self.met(&e))
    }

    /// Classifies the error of an append. If the cause is likely to last, `link` notes it.
    pub(crate) fn met(&self, error: &PublishError) -> Trouble {
        let trouble = trouble_of(error);
        if let Some(number) = stores_after(error) {
            self.stores_after.store(number, Ordering::Relaxed);
        }
        if trouble == Trouble::Busy && error.kind() != PublishErrorKind::MaxAckPending {
            let name = &self.name;
            self.link.refused(match error.kind() {
                PublishErrorKind::StreamNotFound => format!("there is no stream {name:?} any more"),
                _ => format!("stream {name:?}: {}", sentence(error)),
            });
        }
        trouble
    }

    /// The end of the log, from its leader.
    pub(crate) async fn last(&self) -> Option<Last> {
        let mut opener = self.opener();
        let state = self.state().await?;
        let sequence = state.last_sequence;
        let mut last = Last::new(sequence);
        // If several servers keep the stream, the number in a refusal also counts entries that have not reached the other servers yet. So
        // the number proves nothing.
        let number = self.stores_after.swap(0, Ordering::Relaxed);
        last.stores_after =
            Some(number).filter(|number| *number > 0 && self.is_alone.load(Ordering::Relaxed));
        if state.messages == 0 {
            return Some(last);
        }
        let (first, mut next) = (state.first_sequence.max(1), Some(sequence));
        while let Some(newest) = next.take() {
            let (oldest, mut is_there) = (first.max(newest.saturating_sub(MOST_DAMAGED)), false);
            for at in (oldest..=newest).rev() {
                match self.stream.get_raw_message(at).await {
                    Ok(message) => {
                        is_there = true;
                        let id = message.headers.get(NAME).and_then(|name| BlockId::parse(name.as_str()));
                        if last.look((at, id), &message.payload, &mut opener) {
                            return Some(last);
                        }
                    }
                    Err(e) if e.kind() == RawMessageErrorKind::NoMessageFound => {}
                    Err(_) => return None,
                }
            }
            // If all these entries are missing, the server has lost its last entries but still counts them. So the search goes on at the
            // newest entry that is there.
            if !is_there && oldest > first {
                next = self.newest_entry(first, oldest).await?;
            }
        }
        Some(last)
    }

    /// Returns the numbers of the log's first and last entries. If the log is empty, the first is higher than the last.
    pub(crate) async fn bounds(&self) -> Option<(u64, u64)> {
        let state = self.state().await?;
        let first = if state.messages == 0 { state.last_sequence + 1 } else { state.first_sequence };
        Some((first, state.last_sequence))
    }

    /// Returns the first entry with the number `from` or a higher one. `Some(None)` means that the log has no such entry, and `None` that
    /// no server answered. Any replica can return an entry, but only the leader's state proves that there is none.
    pub(crate) async fn get(&self, from: u64) -> Option<Option<(u64, Bytes)>> {
        let request = self.stream.direct_get_builder().sequence(from);
        match request.next_by_subject(self.subject.clone()).send().await {
            Ok(message) => Some(Some((message.sequence, message.payload))),
            Err(e) if e.kind() == DirectGetErrorKind::NotFound => {
                let state = self.state().await?;
                let lacks_some = state.deleted_count.is_some_and(|count| count > 0);
                let is_whole = state.messages > 0 && !lacks_some;
                (!is_whole || from > state.last_sequence).then_some(None)
            }
            Err(_) => None,
        }
    }

    /// Returns the entries from a number on, as they are appended. After an error, the stream of entries ends.
    pub(crate) async fn follow(&self, from: u64) -> Result<pull::Stream, String> {
        let config = pull::Config {
            deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: from },
            ack_policy: AckPolicy::None,
            inactive_threshold: FORGET,
            memory_storage: true,
            num_replicas: 1,
            description: Some("a shmcast bridge that receives".to_owned()),
            ..pull::Config::default()
        };
        let consumer = self.stream.create_consumer(config).await.map_err(|e| sentence(&e))?;
        let entries = consumer.stream().max_bytes_per_batch(AHEAD_BYTES).max_messages_per_batch(10_000);
        entries.heartbeat(HEARTBEAT).messages().await.map_err(|e| sentence(&e))
    }

    /// Publishes a short message that the stream does not keep. If the connection does not accept the message for some time, the message is
    /// dropped, because such messages are sent again and again.
    pub(crate) async fn say(&self, subject: impl Into<Subject>, word: Bytes) {
        // An error means that the client has ended. The next append then fails too, and reports the error.
        let _ = tokio::time::timeout(REQUEST, self.client.publish(subject.into(), word)).await;
    }
}

/// Returns the kind of trouble that an append's error means.
pub(crate) fn trouble_of(error: &PublishError) -> Trouble {
    match error.kind() {
        PublishErrorKind::WrongLastSequence | PublishErrorKind::WrongLastMessageId => Trouble::Refused,
        PublishErrorKind::TimedOut => Trouble::Silent,
        PublishErrorKind::BrokenPipe => Trouble::Disconnected,
        PublishErrorKind::StreamNotFound
        | PublishErrorKind::MaxAckPending
        | PublishErrorKind::MaxPayloadExceeded
        | PublishErrorKind::Other => Trouble::Busy,
    }
}
