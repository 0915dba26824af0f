//! `board` of a channel: the bytes of a message that are its key, and the size of the board.

use super::fields;
use super::rules::Broken;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use shmcast::{BoardSizes, BoardSpec, ChannelError};
use std::ops::Range;

/// The board of a channel.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table such as { key = \"0..8\" }")]
pub struct BoardConfig {
    /// The bytes of a payload that are its key.
    #[serde(deserialize_with = "key")]
    pub key: Range<usize>,
    /// Most keys on the board. The default is 1024.
    #[serde(default = "keys_default")]
    pub keys: u64,
    /// The largest size of a message on the board in bytes. The size includes the key. The default is 256, or the offset of the key's end
    /// if that offset is higher.
    #[serde(default, deserialize_with = "fields::optional_size")]
    pub value: Option<u64>,
    /// Messages with this tag remove their key.
    #[serde(default)]
    pub remove_tag: Option<u16>,
}

fn keys_default() -> u64 {
    BoardSpec::DEFAULT_KEYS
}

/// Reads the bytes of a payload that are a board's key, such as `0..8`.
///
/// # Errors
/// If the text names no bytes.
pub fn key<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Range<usize>, D::Error> {
    parse_key(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

/// Reads `0..8`.
fn parse_key(text: &str) -> Result<Range<usize>, String> {
    let ends = text.split_once("..").and_then(|(start, end)| Some((start.parse().ok()?, end.parse().ok()?)));
    match ends {
        Some((start, end)) if start < end => Ok(start..end),
        _ => Err(format!(
            "{text:?} names no bytes of a payload: write the first one and the one after the last, as in \"0..8\""
        )),
    }
}

impl BoardConfig {
    /// Returns the board in the client library's form.
    pub fn spec(&self) -> BoardSpec {
        let mut spec = BoardSpec::new(self.key.clone()).keys(self.keys);
        if let Some(value) = self.value {
            spec = spec.value(value);
        }
        if let Some(tag) = self.remove_tag {
            spec = spec.remove_tag(tag);
        }
        spec
    }

    pub(super) fn broken(&self) -> Broken {
        let Err(error) = self.spec().bytes() else { return Broken::new() };
        let field = match &error {
            ChannelError::Board(BoardSizes::Key { .. }) => "board.key",
            ChannelError::Board(BoardSizes::Value { .. }) => "board.value",
            _ => "board.keys",
        };
        vec![(field, format!("{field}: {error}"))]
    }
}
