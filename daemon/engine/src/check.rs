//! Checks whether a bridge through an engine can work: its files, its servers, its stream, and the rights of its account. The check appends
//! nothing to the stream.

use async_nats::jetstream::stream::{Config, DiscardPolicy, Info, RetentionPolicy, StorageType};
use bytes::Bytes;
use futures_util::StreamExt;
use shmcast_bridge::files;
use shmcast_bridge::private;
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::spec::{BridgeSpec, Direction, NatsSpec};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::client::{Log, shown};
use crate::losses::losses_of;
use crate::proto::want::{Want, Wanted};
use crate::proto::writer::Trouble;
pub use crate::results::{Finding, Verdict};
use crate::send::runtime;

/// The longest wait for an answer to a request. The wait needs a limit, because servers might refuse a request without an answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// An entry number that no log reaches. If an append names this number as the previous entry, the servers always refuse the append, and
/// store nothing.
const NOWHERE: u64 = 1 << 62;

#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn note(&mut self, about: impl ToString, verdict: Verdict, says: impl ToString) {
        self.0.push(Finding::new(about, verdict, says));
    }
}

/// Checks everything that a bridge through an engine needs. Blocks for at most some seconds per server.
///
/// The check appends no block: its trial append names a last entry that does not exist, so the servers refuse it. For a receiver, the check
/// creates a consumer, which the servers remove after half a minute.
pub fn check(spec: &BridgeSpec) -> Vec<Finding> {
    let mut findings = Findings::default();
    let nats = spec.nats.clone().unwrap_or_default();
    for (about, file) in [
        ("account", &nats.account),
        ("creds", &nats.creds),
        ("ca", &nats.ca),
        ("cert", &nats.cert),
        ("key", &nats.key),
    ] {
        if let Some(file) = file {
            let shown = match about {
                "account" => nats.shown_account_file(),
                _ => file.display().to_string(),
            };
            look_at_file(about, (file, &shown), &mut findings);
        }
    }
    match runtime() {
        Err(e) => findings.note("servers", Verdict::Fails, e),
        Ok(runtime) => runtime.block_on(look_at_servers(spec, &nats, &mut findings)),
    }
    findings.0
}

fn look_at_file(about: &str, (file, shown): (&Path, &str), findings: &mut Findings) {
    let of = match files::open(file, std::fs::File::options().read(true)).and_then(|opened| opened.metadata())
    {
        Err(e) => return findings.note(about, Verdict::Fails, format!("{shown}: {e}")),
        Ok(of) => of,
    };
    let problem = match about {
        // The bridge refuses a file with this problem.
        "account" => private::problem(&of).map(|problem| (Verdict::Fails, problem)),
        // Kubernetes mounts these files readable for others.
        "creds" | "key" => private::problem(&of).map(|problem| (Verdict::Doubtful, problem)),
        _ => None,
    };
    let (verdict, says) = problem.unwrap_or((Verdict::Ok, "it can be read".to_owned()));
    findings.note(about, verdict, format!("{shown}: {says}"));
}

/// Connects to each server separately. Then examines the stream through the first server that answers.
async fn look_at_servers(spec: &BridgeSpec, nats: &NatsSpec, findings: &mut Findings) {
    let mut found = None;
    for server in &nats.servers {
        let alone = NatsSpec { servers: vec![server.clone()], ..nats.clone() };
        let about = format!("server {}", shown(&alone.servers));
        let started = Instant::now();
        match Log::reach(spec, &alone).await {
            Err(e) => findings.note(about, Verdict::Fails, e),
            Ok(log) => {
                let info = log.client.server_info();
                let safe = if server.is_tls() { "with TLS" } else { "WITHOUT TLS" };
                let says = format!(
                    "{} {}, answers after {:?}, {safe}, takes messages of up to {} B",
                    info.server_name,
                    info.version,
                    started.elapsed(),
                    info.max_payload
                );
                let is_near = server.is_tls() || is_loopback(server.host());
                findings.note(about, if is_near { Verdict::Ok } else { Verdict::Doubtful }, says);
                found.get_or_insert(log);
            }
        }
    }
    let Some(log) = found else { return };
    match log.info().await {
        Err(e) => findings.note("stream", Verdict::Fails, e),
        Ok(None) if nats.create && spec.send.is_some() => {
            findings.note("stream", Verdict::Ok, format!("{} is not there: the bridge makes it", log.name()));
        }
        Ok(None) => {
            let channel = &spec.channel;
            let says = format!(
                "there is no stream {}: make it by `shmcast bridge stream create {channel}`",
                log.name()
            );
            findings.note("stream", Verdict::Fails, says);
        }
        Ok(Some(info)) => {
            look_at_stream(&log, nats, &info, findings);
            match spec.direction() {
                Some(Direction::Send(_)) => look_at_sender(&log, findings).await,
                _ => look_at_receiver(&log, &info, findings).await,
            }
        }
    }
}

fn is_loopback(host: &str) -> bool {
    ["127.", "localhost", "[::1]"].iter().any(|near| host.starts_with(near))
}

/// Compares the stream's settings with what a bridge needs.
fn look_at_stream(log: &Log, nats: &NatsSpec, info: &Info, findings: &mut Findings) {
    let problems = problems_of(&info.config, &log.subject, nats);
    let state = &info.state;
    for says in &problems {
        findings.note("stream", Verdict::Fails, says);
    }
    if problems.is_empty() {
        let copies = info.config.num_replicas;
        let says = format!("{}: {} blocks, {} B, {copies} copies", log.name(), state.messages, state.bytes);
        findings.note("stream", Verdict::Ok, says);
    }
    findings.0.extend(losses_of(&info.config));
    let Some(cluster) = &info.cluster else { return };
    if info.config.num_replicas > 1 && cluster.leader.as_ref().is_none_or(String::is_empty) {
        findings.note("stream", Verdict::Fails, "no server leads it: most of those with a copy are away");
    }
    for peer in cluster.replicas.iter().filter(|peer| !peer.current || peer.offline) {
        findings.note(
            "stream",
            Verdict::Doubtful,
            format!("the copy of server {} is behind, or gone", peer.name),
        );
    }
    if info.config.num_replicas == 1 && nats.servers.len() >= 3 {
        let says = "one copy, and three servers are named: when the one dies, the feed waits for it";
        findings.note("stream", Verdict::Doubtful, says);
    }
}

fn problems_of(config: &Config, subject: &str, nats: &NatsSpec) -> Vec<String> {
    let mut problems = Vec::new();
    let is_mirror = config.mirror.is_some();
    if !is_mirror && config.subjects != [subject] {
        problems.push(format!(
            "it keeps {:?}, and the bridge writes {subject:?}: one subject alone, or numbers of blocks do not join",
            config.subjects
        ));
    }
    for (is_wrong, says) in [
        (
            config.storage != StorageType::File,
            "it is in memory, and when its servers stop, all blocks are lost: storage = file",
        ),
        (config.retention != RetentionPolicy::Limits, "messages go when they are read: retention = limits"),
        (
            config.discard != DiscardPolicy::Old,
            "it refuses blocks once it is full, the feed stops there, and the ring overwrites what waits: discard = old",
        ),
        (config.sealed, "it takes no more messages (sealed)"),
        (config.sources.is_some(), "blocks of other streams are put between its own: take the sources away"),
        (config.no_ack, "it acknowledges nothing: no_ack = false"),
        (!config.allow_direct && !is_mirror, "receivers cannot look for their place: allow_direct = true"),
        (is_mirror && !config.mirror_direct, "receivers cannot look for their place: mirror_direct = true"),
        (config.max_messages_per_subject > 0, "max_msgs_per_subject drops blocks: take the limit away"),
    ] {
        if is_wrong {
            problems.push(says.to_owned());
        }
    }
    let most = usize::try_from(config.max_message_size).unwrap_or(usize::MAX);
    if nats.block_bytes > most {
        problems.push(format!("it takes messages of up to {most} B: write block_bytes = {most} at most"));
    }
    problems
}

async fn look_at_sender(log: &Log, findings: &mut Findings) {
    let told = |log: &Log| log.link.why().unwrap_or_else(|| "no answer".to_owned());
    log.link.forget();
    let appended = match log.append_if(NOWHERE, (None, None), Bytes::from_static(b"not a block")).await {
        Ok(answer) => tokio::time::timeout(PATIENCE, answer).await.map_err(|_| None),
        Err(trouble) => Err(Some(trouble)),
    };
    let is_refused = matches!(&appended, Ok(Err(e)) if crate::client::trouble_of(e) == Trouble::Refused);
    match is_refused {
        true => findings.note("append", Verdict::Ok, format!("{} may be written", log.subject)),
        false => findings.note("append", Verdict::Fails, format!("{}: {}", log.subject, told(log))),
    }
    match log.last().await {
        Some(last) => {
            let has =
                last.head.map(|head| format!("up to sequence {}, session {}", head.end() - 1, head.session));
            let says = has.unwrap_or_else(|| "it has no sound block".to_owned());
            findings.note("last block", Verdict::Ok, says);
        }
        None => findings.note("last block", Verdict::Fails, told(log)),
    }
    look_at_subjects(log, &["pulse", "want"], findings).await;
    look_at_word(log, "pulse", findings).await;
}

/// Checks whether blocks can be requested by number.
async fn look_at_search(log: &Log, info: &Info, findings: &mut Findings) {
    log.link.forget();
    match log.get(info.state.first_sequence.max(1)).await {
        Some(_) => findings.note("search", Verdict::Ok, "blocks can be looked up"),
        None => {
            let says = log.link.why().unwrap_or_else(|| "no answer".to_owned());
            findings.note("search", Verdict::Fails, says);
        }
    }
}

/// Checks whether the stream's leader can be asked for blocks. A receiver asks the leader for messages that another server's copy lacks. If
/// a single server keeps the stream, there is no other copy, so a failure of this check is only doubtful.
async fn look_at_leader(log: &Log, info: &Info, findings: &mut Findings) {
    log.link.forget();
    if log.leaders_entry(info.state.first_sequence.max(1)).await.is_some() {
        return findings.note("mend", Verdict::Ok, "the stream's leader can be asked for missing messages");
    }
    let why = log.link.why().unwrap_or_else(|| "no answer".to_owned());
    let verdict = if info.config.num_replicas > 1 { Verdict::Fails } else { Verdict::Doubtful };
    let says = format!("the stream's leader cannot be asked for messages that a copy lacks: {why}");
    findings.note("mend", verdict, says);
}

async fn look_at_receiver(log: &Log, info: &Info, findings: &mut Findings) {
    let told = |log: &Log| log.link.why().unwrap_or_else(|| "no answer".to_owned());
    look_at_search(log, info, findings).await;
    look_at_leader(log, info, findings).await;
    log.link.forget();
    match log.follow(info.state.first_sequence.max(1)).await {
        Err(why) => findings.note("follow", Verdict::Fails, format!("{why}; {}", told(log))),
        Ok(mut entries) => {
            let found = tokio::time::timeout(PATIENCE, entries.next());
            let says = match (info.state.messages, found.await) {
                (0, _) => Ok("the stream is empty"),
                (_, Ok(Some(Ok(_)))) => Ok("blocks come"),
                (_, Ok(Some(Err(e)))) => Err(e.to_string()),
                (_, Ok(None) | Err(_)) => Err(format!("no block comes: {}", told(log))),
            };
            match says {
                Ok(says) => findings.note("follow", Verdict::Ok, says),
                Err(why) => findings.note("follow", Verdict::Fails, why),
            }
        }
    }
    look_at_word(log, "want", findings).await;
}

/// Checks whether this account is allowed to subscribe to the subjects on which writers and readers send short messages (pulses and
/// requests).
async fn look_at_subjects(log: &Log, words: &[&str], findings: &mut Findings) {
    for word in words {
        let subject = format!("{}.{word}", log.subject);
        log.link.forget();
        let subscribed = log.client.subscribe(subject.clone()).await;
        settle(log).await;
        match (subscribed, log.link.why()) {
            (Ok(_), None) => {
                findings.note(format!("hear .{word}"), Verdict::Ok, format!("{subject} can be heard"))
            }
            (Err(e), _) => findings.note(format!("hear .{word}"), Verdict::Fails, format!("{subject}: {e}")),
            (_, Some(why)) => {
                findings.note(format!("hear .{word}"), Verdict::Doubtful, format!("{subject}: {why}"))
            }
        }
    }
}

/// Checks whether this account is allowed to publish short messages of the kind `word`, for example requests. The check publishes a request
/// for a session that no stream has.
async fn look_at_word(log: &Log, word: &str, findings: &mut Findings) {
    let subject = format!("{}.{word}", log.subject);
    let nothing = Want { session: Session::from_bytes([b'.'; 10]), first: 1, wanted: Wanted::Exact(0) };
    log.link.forget();
    let said = log.client.publish(subject.clone(), nothing.encode().to_vec().into()).await;
    settle(log).await;
    match (said, log.link.why()) {
        (Ok(()), None) => {
            findings.note(format!("say .{word}"), Verdict::Ok, format!("{subject} may be written"))
        }
        (Err(e), _) => findings.note(format!("say .{word}"), Verdict::Fails, format!("{subject}: {e}")),
        (_, Some(why)) => {
            findings.note(format!("say .{word}"), Verdict::Doubtful, format!("{subject}: {why}"))
        }
    }
}

/// Waits until the server has received all sent data, and has had time to refuse it.
async fn settle(log: &Log) {
    let _ = tokio::time::timeout(PATIENCE, log.client.flush()).await;
    // A server reports a refusal in a separate message, not in an answer to a request. So this function waits for a fixed time.
    tokio::time::sleep(Duration::from_millis(100)).await;
}
