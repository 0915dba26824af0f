//! The configuration of a bridge that uses an engine: a log that servers keep, in place of lines.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::server::{Account, NoAccount, ServerAddress, addresses};
use super::{BridgeSpec, HistoryFrom};
use crate::private;

/// The sizes of a block, in bytes.
const BLOCK_BYTES: RangeInclusive<usize> = 1 << 10..=8 << 20;
/// How many blocks may be without an answer.
const IN_FLIGHT: RangeInclusive<usize> = 1..=1_024;
/// The times without an answer after which an append has failed, in milliseconds.
const ACK_MS: RangeInclusive<u64> = 100..=60_000;
/// Greatest size of a file with an account, in bytes.
const MAX_ACCOUNT_BYTES: u64 = 64 << 10;
/// Greatest number of copies that the servers keep of a stream.
const MAX_REPLICAS: u8 = 5;

/// What carries a bridge's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// Datagrams, on lines and leases.
    #[default]
    Lines,
    /// A stream of NATS JetStream.
    Nats,
}

/// The servers of NATS, and the stream there.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NatsSpec {
    /// The servers, such as `tls://n1:4222`: any one of them is enough to begin with. With `tls://` nothing is sent
    /// before the server has shown its certificate. One alone may stand without a list.
    #[serde(deserialize_with = "addresses")]
    pub servers: Vec<ServerAddress>,
    /// The file with the account, as `USER:PASSWORD` or a token. It belongs to root or to the bridge's user, and nobody else may read it. If
    /// `None`, the account is the one that stands in an address, if one does.
    pub account: Option<PathBuf>,
    /// The file with the credentials of the account, as `nsc` writes it; none if `None`.
    pub creds: Option<PathBuf>,
    /// The certificates that the server's is checked against; the system's if `None`.
    pub ca: Option<PathBuf>,
    /// The certificate that the servers know this host by; none if `None`. Give `key` as well.
    pub cert: Option<PathBuf>,
    /// The private key of `cert`.
    pub key: Option<PathBuf>,
    /// The name of the stream; `SHMCAST_` and the channel's name if `None`.
    pub stream: Option<String>,
    /// The subject that messages have in the stream; `shmcast.` and the channel's name if `None`. Take the same at
    /// both ends.
    pub subject: Option<String>,
    /// The domain of JetStream in which the stream is; that of the servers if `None`.
    pub domain: Option<String>,
    /// The most bytes of a block. Many messages go as one block. 1024 to 8388608, and no more than the servers'
    /// `max_payload`; 65536 by default.
    pub block_bytes: usize,
    /// How many blocks may be without an answer, 1 to 1024; 32 by default.
    pub in_flight: usize,
    /// The time without an answer after which an append has failed, in milliseconds, 100 to 60 000; 1000 by default.
    pub ack_ms: u64,
    /// For a sender: where messages come from that the ring has no more. `true`, the default: from the channel's
    /// journal, if it has one; `false`: from nowhere; or the directory of a journal.
    pub history: HistoryFrom,
    /// For a sender: whether it makes the stream if there is none; false by default.
    pub create: bool,
    /// With `create`: how many servers keep a copy; if `None`, 3 when three servers or more are named, otherwise 1.
    pub replicas: Option<u8>,
    /// With `create`: the most bytes that the stream keeps, before the oldest are dropped; no limit if `None`.
    pub keep_bytes: Option<u64>,
    /// With `create`: how long the stream keeps messages, in seconds; no limit if `None`.
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
    /// Returns the name of the stream that carries `channel`. Names of streams have no dots.
    pub fn stream_of(&self, channel: &str) -> String {
        self.stream.clone().unwrap_or_else(|| format!("SHMCAST_{}", channel.replace('.', "=")))
    }

    /// The subject of the stream that carries `channel`.
    pub fn subject_of(&self, channel: &str) -> String {
        self.subject.clone().unwrap_or_else(|| format!("shmcast.{}", channel.replace('.', "=")))
    }

    /// Returns how many servers keep a copy of a new stream.
    pub fn replicas(&self) -> u8 {
        self.replicas.unwrap_or(if self.servers.len() >= 3 { 3 } else { 1 })
    }

    /// Returns the account of this host on the servers, from its file or from an address.
    ///
    /// # Errors
    /// A sentence, if the file cannot be read, if others may read it, or if it has no account.
    pub fn read_account(&self) -> Result<Option<Account>, String> {
        let Some(file) = &self.account else { return Ok(self.accounts().next().cloned()) };
        let read = private::read(file, MAX_ACCOUNT_BYTES);
        let account = read.and_then(|text| text.parse().map_err(|e: NoAccount| e.to_string()));
        account.map(Some).map_err(|why| format!("account {}: {why}", self.shown_account_file()))
    }

    /// Returns the account's file, as errors show it. A text without a directory may be the account itself, and is not shown.
    pub fn shown_account_file(&self) -> String {
        let Some(file) = &self.account else { return String::new() };
        let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty());
        match file.exists() || parent.is_some_and(Path::is_dir) {
            true => file.display().to_string(),
            false => "(not shown, as it may be the account itself: give the path of a file that holds it)"
                .to_owned(),
        }
    }

    /// Returns the accounts in addresses.
    pub fn accounts(&self) -> impl Iterator<Item = &Account> {
        self.servers.iter().filter_map(ServerAddress::account)
    }

    /// The time without an answer after which an append has failed.
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
        let send = self.send.as_ref();
        for (field, is_given) in [
            ("line", !self.lines.is_empty()),
            ("role", send.is_some_and(|send| send.claim_bind.is_some() || !send.peers.is_empty())),
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
