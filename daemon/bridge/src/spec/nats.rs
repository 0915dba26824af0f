//! The configuration of a bridge that uses an engine in place of lines. An engine is a log on servers.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::server::{Account, NoAccount, ServerAddress, addresses};
use super::{BridgeSpec, HistoryFrom, SendSpec};
use crate::private;

/// The allowed sizes of a block, in bytes.
const BLOCK_BYTES: RangeInclusive<usize> = 1 << 10..=8 << 20;
/// The allowed numbers of blocks that wait for an answer.
const IN_FLIGHT: RangeInclusive<usize> = 1..=1_024;
/// The limits of [`ack_ms`](NatsSpec::ack_ms), in milliseconds.
const ACK_MS: RangeInclusive<u64> = 100..=60_000;
/// The largest size of a file with an account, in bytes.
const MAX_ACCOUNT_BYTES: u64 = 64 << 10;
/// The greatest number of copies of a stream that the servers can keep.
const MAX_REPLICAS: u8 = 5;

/// The transport of a bridge's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// Datagrams, on lines and leases.
    #[default]
    Lines,
    /// A stream of NATS JetStream.
    Nats,
}

/// The servers of NATS, and the stream on them.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NatsSpec {
    /// The servers, such as `tls://n1:4222`. The bridge needs only one server that it can reach. With `tls://`, nothing is sent before the
    /// server has shown its certificate. A single server can be given without a list.
    #[serde(deserialize_with = "addresses")]
    pub servers: Vec<ServerAddress>,
    /// The file with the account, as `USER:PASSWORD` or a token. The file must belong to root or to the bridge's user, and must not be
    /// readable or writable by anybody else. With `None`, the account comes from one of the addresses, if any address has one.
    pub account: Option<PathBuf>,
    /// The file with the account's credentials, as `nsc` writes it; no file if this is `None`.
    pub creds: Option<PathBuf>,
    /// The certificates against which the server's certificate is checked; those of the system if this is `None`.
    pub ca: Option<PathBuf>,
    /// The file with the certificate that identifies this host to the servers; no file if this is `None`. A certificate also needs `key`.
    pub cert: Option<PathBuf>,
    /// The private key of `cert`.
    pub key: Option<PathBuf>,
    /// The name of the stream. If this is `None`, it is `SHMCAST_` and the channel's name.
    pub stream: Option<String>,
    /// The subject of the messages in the stream. If this is `None`, the subject is `shmcast.` and the channel's name. The sender and all
    /// receivers must use the same subject.
    pub subject: Option<String>,
    /// The JetStream domain of the stream. If this is `None`, it is the domain of the servers.
    pub domain: Option<String>,
    /// The greatest size of a block, in bytes: 1024 to 8388608, and at most the servers' `max_payload`; 65536 by default. A block can have
    /// many messages.
    pub block_bytes: usize,
    /// The limit for the number of blocks that wait for an answer, 1 to 1024; 32 by default.
    pub in_flight: usize,
    /// The time after which an append without an answer has failed, in milliseconds, 100 to 60 000; 1000 by default.
    pub ack_ms: u64,
    /// For a sender: the journal from which it reads messages that the ring no longer has. The default `true` means the channel's journal,
    /// if there is one. `false` means no journal. A path means the journal in that directory.
    pub history: HistoryFrom,
    /// For a sender: whether it creates the stream if there is none; false by default.
    pub create: bool,
    /// With `create`: the number of servers that keep a copy of the stream. `None` means 3 if at least three servers are given, and
    /// otherwise 1.
    pub replicas: Option<u8>,
    /// With `create`: the limit for the bytes of the stream. Beyond this limit, the oldest messages are dropped. `None` means no limit.
    pub keep_bytes: Option<u64>,
    /// With `create`: the time for which the stream keeps messages, in seconds. `None` means no limit.
    pub keep_s: Option<u64>,
}

impl Default for NatsSpec {
    fn default() -> NatsSpec {
        NatsSpec {
            servers: Vec::new(),
            account: None,
            creds: None,
            ca: None,
            cert: None,
            key: None,
            stream: None,
            subject: None,
            domain: None,
            block_bytes: 64 << 10,
            in_flight: 32,
            ack_ms: 1_000,
            history: HistoryFrom::default(),
            create: false,
            replicas: None,
            keep_bytes: None,
            keep_s: None,
        }
    }
}

impl NatsSpec {
    /// Returns the name of the stream for `channel`. Dots are replaced, because names of streams have none.
    pub fn stream_of(&self, channel: &str) -> String {
        self.stream.clone().unwrap_or_else(|| format!("SHMCAST_{}", channel.replace('.', "=")))
    }

    /// Returns the subject for `channel` in the stream.
    pub fn subject_of(&self, channel: &str) -> String {
        self.subject.clone().unwrap_or_else(|| format!("shmcast.{}", channel.replace('.', "=")))
    }

    /// Returns the number of servers that keep a copy of a new stream.
    pub fn replicas(&self) -> u8 {
        self.replicas.unwrap_or(if self.servers.len() >= 3 { 3 } else { 1 })
    }

    /// Returns the account of this host on the servers, from its file or from an address.
    ///
    /// # Errors
    /// A sentence with the problem: the file cannot be read, other users have access to it, or it has no account.
    pub fn read_account(&self) -> Result<Option<Account>, String> {
        let Some(file) = &self.account else { return Ok(self.accounts().next().cloned()) };
        let read = private::read(file, MAX_ACCOUNT_BYTES);
        let account = read.and_then(|text| text.parse().map_err(|e: NoAccount| e.to_string()));
        account.map(Some).map_err(|why| format!("account {}: {why}", self.shown_account_file()))
    }

    /// Returns the path of the account's file, as errors show it. A path without a directory is not shown, because the user might have
    /// written the account itself in place of a path.
    pub fn shown_account_file(&self) -> String {
        let Some(file) = &self.account else { return String::new() };
        let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty());
        match file.exists() || parent.is_some_and(Path::is_dir) {
            true => file.display().to_string(),
            false => "(not shown, as it may be the account itself: give the path of a file that holds it)"
                .to_owned(),
        }
    }

    /// Returns the accounts that are part of addresses.
    pub fn accounts(&self) -> impl Iterator<Item = &Account> {
        self.servers.iter().filter_map(ServerAddress::account)
    }

    /// Returns the time after which an append without an answer has failed.
    pub fn ack(&self) -> Duration {
        Duration::from_millis(self.ack_ms)
    }
}

impl NatsSpec {
    /// Reports the problems of the servers and their settings, each with its field.
    fn problems(&self, report: &mut dyn FnMut(&'static str, String)) {
        if self.servers.is_empty() {
            report("nats.servers", "none: give one, such as \"tls://host:4222\"".to_owned());
        }
        let mut accounts = self.accounts();
        if let Some(first) = accounts.next() {
            if accounts.any(|other| other != first) {
                let what = "two accounts: all servers are to know this host by one";
                report("nats.servers", what.to_owned());
            }
            if self.account.is_some() {
                report(
                    "nats.account",
                    "an account stands in an address too: leave one of them out".to_owned(),
                );
            }
        }
        for (field, problem) in [
            ("nats.block_bytes", is_out(&BLOCK_BYTES, &self.block_bytes)),
            ("nats.in_flight", is_out(&IN_FLIGHT, &self.in_flight)),
            ("nats.ack_ms", is_out(&ACK_MS, &self.ack_ms)),
            ("nats.replicas", is_out(&(1..=MAX_REPLICAS), &self.replicas())),
        ] {
            if let Some(what) = problem {
                report(field, what);
            }
        }
        if self.cert.is_some() != self.key.is_some() {
            report("nats.cert", "give both cert and key, or neither".to_owned());
        }
        for (field, name) in [("nats.stream", &self.stream), ("nats.subject", &self.subject)] {
            let is_bad = |c: char| c.is_whitespace() || c.is_control() || "*>/\\".contains(c);
            if let Some(name) = name.as_ref().filter(|name| name.is_empty() || name.contains(is_bad)) {
                report(field, format!("{name:?}: write letters, digits, '-' and '_'"));
            }
        }
        if self.stream.as_ref().is_some_and(|stream| stream.contains('.')) {
            report("nats.stream", "a stream's name has no dots".to_owned());
        }
    }
}

fn is_out<T: PartialOrd + std::fmt::Display>(range: &RangeInclusive<T>, value: &T) -> Option<String> {
    let (least, most) = (range.start(), range.end());
    (!range.contains(value)).then(|| format!("{value} is out of range: write {least} to {most}"))
}

impl BridgeSpec {
    /// Returns the engine's settings, if the bridge uses an engine.
    pub fn nats(&self) -> Option<&NatsSpec> {
        self.nats.as_ref().filter(|_| self.engine == Engine::Nats)
    }

    /// Reports the problems of a bridge that uses an engine.
    pub(super) fn problems_of_nats(&self, report: &mut impl FnMut(&'static str, String)) {
        let Some(nats) = self.nats() else {
            let what = "give the servers as well: nats = { servers = [\"tls://host:4222\"] }";
            return report("nats", what.to_owned());
        };
        nats.problems(&mut |field, what| report(field, what));
        self.problems_beside_nats(report);
    }

    /// Reports fields that have no meaning with an engine.
    fn problems_beside_nats(&self, report: &mut impl FnMut(&'static str, String)) {
        let (send, alone) = (self.send.as_ref(), SendSpec::default());
        for (field, is_given) in [
            ("line", !self.lines.is_empty()),
            ("role", send.is_some_and(|send| send.claim_bind.is_some() || !send.peers.is_empty())),
            ("rank", send.is_some_and(|send| send.rank != alone.rank)),
            ("takeover_ms", send.is_some_and(|send| send.takeover_ms != alone.takeover_ms)),
            ("repair", send.is_some_and(|send| send.repair.is_some())),
            ("state", send.is_some_and(|send| send.state.is_some())),
            ("servers", self.receive.as_ref().is_some_and(|receive| !receive.servers.is_empty())),
            ("unicast", self.receive.as_ref().is_some_and(|receive| receive.unicast)),
        ] {
            if is_given {
                report(
                    field,
                    "it is for lines, and this bridge goes through an engine: leave it out".to_owned(),
                );
            }
        }
    }
}
