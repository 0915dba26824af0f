//! The common parts of all verbs that publish: the settings of a channel and its publisher, the wait for readers, and the summary.

use super::Host;
use super::figures::{grouped, readers_of, size};
use super::say::note;
use super::set::{Draft, Setting, shown};
use super::stop::Stop;
use super::units::{parse_cpu, parse_mode, parse_name, parse_size};
use crate::config::{BoardConfig, GateConfig, optional_size};
use anyhow::{Error, Result, anyhow, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use serde_json::{Value, json};
use shmcast::hosting::largest_message;
use shmcast::{
    ChannelError, DEFAULT_CAPACITY, Preparation, PublishError, Publisher, PublisherBuilder, SchemaId,
};
use std::ffi::CString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

/// Returns a help text: the keys of `--set`, followed by `examples`.
pub(super) fn keys_and(examples: &str) -> String {
    format!("{KEYS}\n\n{examples}")
}

const KEYS: &str = "\
Keys of --set:
  max_message       Largest message of a new channel [default: an eighth of the
                    capacity, up to 16MiB]
  permissions       Who reads a new channel: 700, you alone; 750, your group;
                    755, all users [default: 700]. One that is there must have
                    them
  board.key         Give a new channel a board of the last message of each key:
                    the bytes of a payload that are its key, as 0..8
  board.keys        Keys for which the board has room [default: 1024]
  board.value       Largest message on the board [default: 256, or up to the
                    end of the key]
  board.remove_tag  Messages with this tag remove their key
  gate.NAME.wait    Give the channel this gate: a message waits for the reader
                    that takes the gate, at most this long [default: 200us]
  gate.NAME.lag     The reader may be this far behind before messages wait, as
                    16MiB or as a part of the ring [default: 50%]
  gate.NAME.then    What comes after the wait: drop, the message goes out and
                    the reader can be lapped; refuse, the message is not
                    published and the verb fails [default: drop]
  schema_id         Schema of the messages, which the channel has or gets;
                    without it, a channel with a schema is refused
  continue_from     Directory of the journal behind which a new channel goes
                    on, so that no sequence is given twice; a journal is begun
                    if there is none
  prepare           How the ring's memory is made ready: quick, touched and
                    locked, most of a large ring while it publishes; full,
                    before the first message and on huge pages, up to seconds;
                    none, by the message that needs it [default: quick]
  process           Name of this process in tools, of 1 to 15 bytes [default:
                    shmcast]";

/// Options of a verb that publishes.
#[derive(Debug, clap::Args)]
pub(super) struct RingArgs {
    /// Size of the ring for a new channel: a power of two from 64KiB to 16GiB [default: 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    capacity: Option<u64>,
    /// Set one of the rarer options, such as max_message=1378; the keys are listed below
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<Setting>,
    /// Wait until this many readers are attached. Recorders and bridges do not count
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) wait_readers: usize,
    /// Pin the publisher to this CPU
    #[arg(long, value_name = "N", value_parser = parse_cpu)]
    cpu: Option<usize>,
}

impl RingArgs {
    /// Returns the settings of the publisher. Gives this process the name and the CPU that the user asked for.
    pub(super) fn begin(&self) -> Result<Settings> {
        let settings = Settings::read(self.capacity, &self.set)?;
        super::name_and_pin(settings.process.as_deref(), self.cpu)?;
        Ok(settings)
    }
}

/// Settings of a channel and its publisher. If a daemon's `[[channel]]` table has the same setting, its name and form are the same here.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Settings {
    #[serde(deserialize_with = "optional_size")]
    pub(super) capacity: Option<u64>,
    #[serde(deserialize_with = "optional_size")]
    pub(super) max_message: Option<u64>,
    #[serde(deserialize_with = "permissions")]
    permissions: Option<u32>,
    board: Option<BoardConfig>,
    #[serde(rename = "gate", deserialize_with = "gates")]
    gates: Vec<GateConfig>,
    schema_id: Option<u64>,
    continue_from: Option<PathBuf>,
    prepare: Option<Prepare>,
    #[serde(deserialize_with = "process")]
    process: Option<CString>,
}

/// The preparation of the ring's memory.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Prepare {
    Quick,
    Full,
    None,
}

/// Reads octal digits, with quotes or without.
fn permissions<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    let digits = match toml::Value::deserialize(deserializer)? {
        toml::Value::Integer(digits) => digits.to_string(),
        toml::Value::String(digits) => digits,
        toml::Value::Float(number) => number.to_string(),
        other => format!("a {}", other.type_str()),
    };
    parse_mode(&digits).map(Some).map_err(D::Error::custom)
}

/// Reads gates from a table. Each key of the table is the name of a gate, and the value is a table with the gate's settings.
fn gates<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<GateConfig>, D::Error> {
    let gate = |(name, value): (String, toml::Value)| {
        let toml::Value::Table(mut gate) = value else {
            return Err(D::Error::custom(format!("{name}: write it like gate.NAME.wait=10ms")));
        };
        if gate.contains_key("users") {
            let why = "every user who may read a channel that is a file may take its gates: leave users out";
            return Err(D::Error::custom(format!("{name}: {why}")));
        }
        // `--set` reads a value without a unit as a number, but a gate needs text.
        for (_, value) in gate.iter_mut() {
            if let toml::Value::Integer(number) = value {
                *value = toml::Value::String(number.to_string());
            }
        }
        gate.insert("name".to_owned(), toml::Value::String(name.clone()));
        let gate: GateConfig =
            Draft(gate).read().map_err(|why| D::Error::custom(format!("{name}: {why}")))?;
        gate.check_wait().map_err(|why| D::Error::custom(format!("{name}: {why}")))?;
        Ok(gate)
    };
    match toml::Value::deserialize(deserializer)? {
        toml::Value::Table(gates) => gates.into_iter().map(gate).collect(),
        other => {
            Err(D::Error::custom(format!("cannot be {}: write it like gate.NAME.wait=10ms", shown(&other))))
        }
    }
}

fn process<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<CString>, D::Error> {
    parse_name(&String::deserialize(deserializer)?).map(Some).map_err(D::Error::custom)
}

impl Settings {
    /// Returns the settings of `--set`. The option `--capacity` overrides the capacity in them.
    pub(super) fn read<'a>(
        capacity: Option<u64>,
        set: impl IntoIterator<Item = &'a Setting>,
    ) -> Result<Self> {
        let settings: Self = Draft::of(set).read()?;
        if settings.max_message == Some(0) {
            bail!("max_message: nothing fits into 0 B: give at least one byte, or leave it out");
        }
        Ok(Self { capacity: capacity.or(settings.capacity), ..settings })
    }

    /// Returns the largest message of a channel that is made with these settings; `None` if there can be no such channel.
    pub(super) fn largest_message(&self) -> Option<u64> {
        largest_message(self.capacity.unwrap_or(DEFAULT_CAPACITY), self.max_message)
    }

    /// Returns a builder of the channel's publisher.
    pub(super) fn publisher(&self, host: &Host, channel: &str) -> Result<PublisherBuilder> {
        let mut builder = host.publisher(channel);
        if let Some(capacity) = self.capacity {
            builder = builder.capacity(capacity);
        }
        if let Some(max_message) = self.max_message {
            builder = builder.max_message(max_message);
        }
        if let Some(board) = &self.board {
            builder = builder.board(board.spec());
        }
        if let (Host::Daemon(_), [gate, ..]) = (host, &self.gates[..]) {
            let name = &gate.name;
            bail!("{host} gives its channels their gates: leave gate.{name} out, or give --dir to use files");
        }
        builder = self.gates.iter().fold(builder, |builder, gate| builder.gate(gate.gate()));
        if let (Host::Daemon(_), Some(_)) = (host, self.permissions) {
            bail!("{host} says who may read its channels: leave permissions out, or give --dir to use files");
        }
        if let Some(mode) = self.permissions {
            builder = builder.mode(mode);
        }
        if let (Host::Daemon(_), Some(_)) = (host, &self.continue_from) {
            bail!("{host} goes on behind its channels' journals by itself: leave continue_from out");
        }
        if let Some(journal) = &self.continue_from {
            builder = builder.continue_from(journal);
        }
        Ok(match self.prepare {
            None | Some(Prepare::Quick) => builder,
            Some(Prepare::Full) => builder.prepare(Preparation::FULL),
            Some(Prepare::None) => builder.prepare(Preparation::NONE),
        })
    }

    /// Opens the channel for input whose schema only the user knows. If the channel has a schema, the user must have given the same one.
    pub(super) fn open_for_input(&self, host: &Host, channel: &str) -> Result<Publisher> {
        let builder = self.publisher(host, channel)?;
        let builder = match self.schema_id {
            Some(schema) => builder.schema(schema, ""),
            None => builder,
        };
        builder.untyped().open().map_err(|error| match error {
            ChannelError::Schema { found: SchemaId { id, name }, wanted, .. } if wanted.id == 0 => anyhow!(
                "{channel} has schema {id} {name:?}, as which its readers decode each message: give --set schema_id={id} if that is \
                 what you publish"
            ),
            other => other.into(),
        })
    }
}

/// Whether a gate refused a message.
pub(super) fn is_full(error: &Error) -> bool {
    matches!(error.downcast_ref(), Some(PublishError::Full { .. }))
}

/// Closes the channel. If a gate has refused a message, does not wait for this gate again.
pub(super) fn close<T>(mut publisher: Publisher, outcome: &Result<T>) {
    if outcome.as_ref().is_err_and(is_full) {
        publisher.hurry_after(Arc::new(AtomicUsize::new(1)));
    }
    publisher.close();
}

/// Waits until `wanted` readers are attached.
pub(super) fn wait_for_readers(wanted: usize, host: &Host, channel: &str, stop: &Stop) -> Result<()> {
    if wanted == 0 {
        return Ok(());
    }
    let bar = ProgressBar::new(wanted as u64).with_style(
        ProgressStyle::with_template("waiting for readers {bar:40} {pos}/{len}")
            .expect("the template is ours"),
    );
    loop {
        let attached = readers_of(&host.channel(channel)?);
        bar.set_position(attached as u64);
        if attached >= wanted {
            bar.finish_and_clear();
            return Ok(());
        }
        if stop.is_set() {
            bar.finish_and_clear();
            let said = format!(
                "{channel}: INTERRUPTED with {attached} of {wanted} readers attached, published nothing"
            );
            return Err(stop.interrupted(said).into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The messages that a verb has published.
#[derive(Clone, Copy)]
pub(super) struct Counts {
    pub(super) messages: u64,
    pub(super) bytes: u64,
    /// Whether all messages of the input were published.
    pub(super) is_complete: bool,
}

/// Counts of the messages that a verb has published, with their sequences and their epoch.
pub(super) struct Published {
    pub(super) messages: u64,
    pub(super) bytes: u64,
    pub(super) is_complete: bool,
    pub(super) first: u64,
    pub(super) next: u64,
    pub(super) epoch: u64,
    pub(super) seconds: f64,
}

impl Published {
    /// Counts the messages that `publisher` has published since the sequence `first`.
    pub(super) fn by(
        publisher: &Publisher,
        first: u64,
        Counts { messages, bytes, is_complete }: Counts,
        started: Instant,
    ) -> Self {
        let (epoch, next) = (publisher.epoch(), publisher.next_sequence());
        Self { messages, bytes, is_complete, first, next, epoch, seconds: started.elapsed().as_secs_f64() }
    }

    /// The sums as JSON, with the additional fields of `more`.
    pub(super) fn json(&self, channel: &str, more: Value) -> Value {
        let mut sums = json!({
            "channel": channel, "epoch": self.epoch, "published": self.messages, "bytes": self.bytes,
            "interrupted": !self.is_complete, "first_sequence": self.first, "next_sequence": self.next,
            "seconds": self.seconds,
        });
        if let (Value::Object(sums), Value::Object(more)) = (&mut sums, more) {
            sums.extend(more);
        }
        sums
    }

    /// Formats the summary of a verb for people. `verb` says whether the messages were `published` or `replayed`.
    pub(super) fn text(&self, verb: &str, channel: &str) -> String {
        let &Self { messages, bytes, is_complete, first, next, seconds, .. } = self;
        let sequences = match next - first {
            0 => format!("the next sequence is {next}"),
            _ => format!("sequences {first} to {}", next - 1),
        };
        format!(
            "{channel}: {}{verb} {} messages, {} of payload, in {seconds:.3} s ({}/s), {sequences}",
            if is_complete { "" } else { "INTERRUPTED: " },
            grouped(messages),
            size(bytes),
            grouped((messages as f64 / seconds.max(1e-9)) as u64),
        )
    }

    /// Ends a verb with the text `said`. If a signal came before the work was done, the text becomes the error.
    pub(super) fn end(&self, said: String, is_silent: bool, stop: &Stop) -> Result<()> {
        if !self.is_complete {
            return Err(stop.interrupted(said).into());
        }
        if !is_silent {
            note!("{said}");
        }
        Ok(())
    }
}

/// Returns the steps that prepared the ring's memory. While the memory of a large ring is still being prepared, the list is empty.
pub(super) fn memory(publisher: &Publisher) -> Vec<String> {
    publisher.preparation().iter().map(ToString::to_string).collect()
}
