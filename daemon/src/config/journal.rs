//! `journal` of a channel: where the channel is recorded, and how.

use super::fields;
use super::rules::Broken;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use shmcast_journal::Keep;
use shmcast_journal::core::{Io, Settings, SyncPolicy};
use std::path::PathBuf;
use std::time::Duration;

/// The permitted sizes of a journal's file, in bytes.
const FILE_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=shmcast::journal::format::MAX_FILE;
/// Least memory for frames that wait for the disk.
const LEAST_BUFFER: u64 = 1 << 20;

/// The journal of a channel.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JournalConfig {
    /// Absolute path of the journal's directory, which is created if it does not exist. Each channel needs a directory of its own.
    pub dir: PathBuf,
    /// The setting that says when written data is synced, so that a power cut cannot remove the data. The default is every 10 ms.
    #[serde(default = "sync_default", deserialize_with = "sync")]
    pub sync: SyncPolicy,
    /// The way in which files are written. The default is `direct`, if the file system supports that.
    #[serde(default, deserialize_with = "io")]
    pub io: Io,
    /// The limit for the bytes in memory that wait for the disk, at least 1 MiB. The default is 64 MiB.
    #[serde(default = "buffer_default", deserialize_with = "fields::size")]
    pub buffer: u64,
    /// The size at which the recorder finishes (seals) a file, in bytes: 1 MiB to 64 GiB. The default is 1 GiB.
    #[serde(default = "file_default", deserialize_with = "fields::size")]
    pub file: u64,
    /// Age at which a file is sealed.
    #[serde(default, deserialize_with = "duration")]
    pub roll_after: Option<Duration>,
    /// The limit for the bytes of all files together, at least twice `file`. Above this limit, the oldest files are removed.
    #[serde(default, deserialize_with = "fields::optional_size")]
    pub keep_bytes: Option<u64>,
    /// Age at which files are removed.
    #[serde(default, deserialize_with = "duration")]
    pub keep_age: Option<Duration>,
    /// The number of bytes that must stay free on the file system. If fewer are free, the oldest files are removed as long as that frees
    /// space. Even files that `hold` keeps are removed.
    #[serde(default, deserialize_with = "fields::optional_size")]
    pub keep_free: Option<u64>,
    /// The name of the gate that the recorder takes. With the gate, the publisher waits for the recorder. If this is `None`, the publisher
    /// can overtake the recorder.
    #[serde(default)]
    pub gate: Option<String>,
}

fn sync_default() -> SyncPolicy {
    Settings::default().sync
}

fn buffer_default() -> u64 {
    Settings::default().buffer as u64
}

fn file_default() -> u64 {
    Settings::default().file_bytes
}

fn sync<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SyncPolicy, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_sync(&text).map_err(|why| D::Error::custom(format!("{text:?}: {why}")))
}

fn io<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Io, D::Error> {
    parse_io(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    fields::parse_duration(&String::deserialize(deserializer)?).map(Some).map_err(D::Error::custom)
}

/// Reads `direct` or `buffered`.
fn parse_io(text: &str) -> Result<Io, String> {
    let found = [Io::Direct, Io::Buffered].into_iter().find(|io| io.name() == text);
    found.ok_or_else(|| format!("{text:?}: give direct, past the page cache, or buffered, through it"))
}

/// Reads `none`, `each`, or an interval of at least 1 ms.
pub(crate) fn parse_sync(text: &str) -> Result<SyncPolicy, String> {
    match text {
        "none" => Ok(SyncPolicy::None),
        "each" => Ok(SyncPolicy::Each),
        interval => match fields::parse_duration(interval) {
            Ok(every) if every >= Duration::from_millis(1) => Ok(SyncPolicy::Interval(every)),
            _ => Err("give each, none, or an interval of 1ms or more, as in 10ms".to_owned()),
        },
    }
}

impl JournalConfig {
    /// The settings of the recorder.
    pub fn settings(&self) -> Settings {
        Settings {
            sync: self.sync,
            io: self.io,
            file_bytes: self.file,
            roll_after: self.roll_after,
            buffer: usize::try_from(self.buffer).unwrap_or(usize::MAX),
            ..Settings::default()
        }
    }

    /// The limits for the files that the journal keeps.
    pub const fn keep(&self) -> Keep {
        Keep { bytes: self.keep_bytes, age: self.keep_age, free: self.keep_free }
    }

    pub(crate) fn broken(&self) -> Broken {
        let mut broken = Vec::new();
        if !self.dir.is_absolute() {
            broken.push((
                "journal.dir",
                format!("journal.dir {:?} is not absolute: begin it with /", self.dir),
            ));
        }
        if !FILE_BYTES.contains(&self.file) {
            broken
                .push(("journal.file", format!("journal.file = {}: must be from 1MiB to 64GiB", self.file)));
        }
        if self.buffer < LEAST_BUFFER {
            broken
                .push(("journal.buffer", format!("journal.buffer = {}: must be 1MiB or more", self.buffer)));
        }
        if let Some(bytes) = self.keep_bytes.filter(|bytes| *bytes < self.file.saturating_mul(2)) {
            let what = format!(
                "journal.keep_bytes = {bytes}: must be at least twice file, which is {}, since the file that is written always stays",
                fields::size_text(self.file)
            );
            broken.push(("journal.keep_bytes", what));
        }
        broken
    }
}
