//! The properties that a publisher requires of a channel that exists.

use super::PublisherBuilder;
use crate::board::BoardSpec;
use crate::error::{ChannelError, SchemaId};
use shmcast_layout::control::{Properties, Required, SchemaTerms};
use shmcast_layout::segment::Segment;

impl PublisherBuilder {
    /// Makes [`open`](Self::open) refuse a channel that has a schema. Use this option if the program does not know the schema of its
    /// messages: readers of a channel with a schema would decode each message by that schema. After [`schema`](Self::schema) with a number,
    /// this call has no effect. A new channel gets no schema.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use shmcast::{ChannelError, Publisher};
    /// let builder = || Publisher::builder("t").dir(dir.path()).capacity(1 << 20);
    /// drop(builder().schema(7, "quote/1").open()?);
    /// assert!(matches!(builder().untyped().open(), Err(ChannelError::Schema { found, .. }) if found.id == 7));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn untyped(mut self) -> Self {
        self.is_untyped = true;
        self
    }

    /// The properties that an existing channel must have.
    pub(super) fn required(&self) -> Required {
        let (id, name) = self.schema.clone();
        let schema = match id {
            0 => self.is_untyped.then(SchemaTerms::default),
            _ => Some(SchemaTerms { id, name }),
        };
        let board = self.board.map(|BoardSpec(spec)| spec.into());
        Required { capacity: self.capacity, max_message: self.max_message, schema, board }
    }

    /// Returns an error if the properties of an existing channel differ from the options.
    pub(super) fn check(&self, segment: &Segment) -> Result<(), ChannelError> {
        check(&self.name, &self.required(), &properties_of(segment))
    }
}

fn properties_of(segment: &Segment) -> Properties {
    let header = segment.header();
    Properties {
        capacity: header.geometry.capacity,
        max_message: header.geometry.max_message,
        schema: SchemaTerms { id: header.schema_id, name: header.schema.clone() },
        board: segment.board_spec().map(Into::into),
    }
}

/// Returns an error if the properties `found` of the channel `name` are not the required ones.
pub(crate) fn check(name: &str, required: &Required, found: &Properties) -> Result<(), ChannelError> {
    let asked = [
        ("capacity", found.capacity, required.capacity),
        ("max_message", found.max_message, required.max_message),
    ];
    for (what, found, wanted) in asked {
        if let Some(wanted) = wanted.filter(|wanted| *wanted != found) {
            return Err(ChannelError::Mismatch { name: name.to_owned(), what, found, wanted });
        }
    }
    if let Some(board) = required.board {
        BoardSpec(board.into()).check(name, found.board.map(Into::into))?;
    }
    let schema = |SchemaTerms { id, name }: SchemaTerms| SchemaId { id, name };
    let wanted = required.schema.clone().map(schema);
    wanted.map_or(Ok(()), |wanted| wanted.check(name, schema(found.schema.clone())))
}
