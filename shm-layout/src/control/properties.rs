//! The properties of a channel that its publisher can require.

use crate::layout::board::Spec;
use serde::{Deserialize, Serialize};

/// The properties that a new publisher requires of its channel. If the publisher does not state a property, the channel's property can have
/// any value.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Required {
    /// Bytes of the ring.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u64>,
    /// Largest payload in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_message: Option<u64>,
    /// The schema. With the number 0, the channel must have no schema number. With an empty name, the schema can have any name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<SchemaTerms>,
    /// The board.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub board: Option<BoardTerms>,
}

impl Required {
    /// Whether the publisher requires no property at all.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// The properties that a channel has, or gets with its next publisher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Properties {
    /// Bytes of the ring.
    pub capacity: u64,
    /// Largest payload in bytes.
    pub max_message: u64,
    /// The schema. Without a schema, the number is 0 and the name is empty.
    pub schema: SchemaTerms,
    /// The board, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub board: Option<BoardTerms>,
}

/// A message schema.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SchemaTerms {
    /// The application's number.
    pub id: u64,
    /// The application's name.
    pub name: String,
}

/// The properties of a board.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BoardTerms {
    /// The number of keys for which there is room.
    pub keys: u64,
    /// Bytes of the largest message on the board.
    pub value: u64,
    /// The bytes of the key in each payload: the offset of the key's first byte, and the offset after the key's last byte.
    pub key: [u64; 2],
    /// The tag of messages that remove their key, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remove_tag: Option<u16>,
}

impl From<Spec> for BoardTerms {
    fn from(Spec { keys, value, key_start, key_end, remove_tag }: Spec) -> Self {
        Self { keys, value, key: [key_start, key_end], remove_tag }
    }
}

impl From<BoardTerms> for Spec {
    fn from(BoardTerms { keys, value, key: [key_start, key_end], remove_tag }: BoardTerms) -> Self {
        Self { keys, value, key_start, key_end, remove_tag }
    }
}
