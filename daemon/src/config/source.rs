//! Positions in a configuration's text: of sections, of fields, and of mistakes.

use serde::Serialize;
use shmcast_bridge::spec::server::without_accounts;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use toml::de::{DeTable, DeValue};

/// A position in a text. Line and column count from 1; columns are in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Position {
    /// The line, counted from 1.
    pub line: usize,
    /// The column in characters, counted from 1.
    pub column: usize,
}

/// One mistake, shown as `LINE:COLUMN: section: what`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The place of the mistake.
    #[serde(flatten)]
    pub position: Position,
    /// The section or channel with the problem; empty if the problem is outside of sections and channels.
    pub section: String,
    /// The mistake, and what to do about it.
    pub what: String,
}

impl Problem {
    /// Makes a problem. User names, passwords and tokens of servers are removed from the configuration text that the problem quotes.
    pub(super) fn new(position: Position, section: &str, what: &str) -> Self {
        Self { position, section: without_accounts(section), what: without_accounts(what) }
    }

    /// Makes the problem for a byte that is not UTF-8 text. It is the byte at `offset` of `bytes`. All bytes before it are valid.
    pub(super) fn not_text(bytes: &[u8], offset: usize) -> Self {
        let before = String::from_utf8_lossy(&bytes[..offset]);
        let position = Source::new(&before).position(offset);
        Self::new(position, "", "not UTF-8 text: save the file as UTF-8")
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { position: Position { line, column }, section, what } = self;
        let colon = if section.is_empty() { "" } else { ": " };
        write!(f, "{line}:{column}: {section}{colon}{what}")
    }
}

/// The positions of a file's sections and fields, by paths such as `daemon.http` and `channel.2.capacity`.
#[derive(Debug, Clone, Default)]
pub struct Positions(BTreeMap<String, Position>);

impl Positions {
    /// Returns the position of the field that `path` names. If the file does not have the field, returns the position of the nearest table
    /// around it that the file has.
    pub fn find(&self, path: &str) -> Option<Position> {
        let found = self.0.get(path).copied();
        found.or_else(|| path.rsplit_once('.').and_then(|(holder, _)| self.find(holder)))
    }
}

/// A text and the places of the values in it.
#[derive(Debug)]
pub(super) struct Source<'a> {
    text: &'a str,
    /// Offset of each line's first byte.
    lines: Vec<usize>,
    values: BTreeMap<String, Range<usize>>,
}

impl<'a> Source<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let lines = std::iter::once(0).chain(ends.map(|(at, _)| at + 1)).collect();
        Self { text, lines, values: BTreeMap::new() }
    }

    /// Notes the position of each value in `table`.
    pub(super) fn note_table(&mut self, path: &str, table: &DeTable<'_>) {
        for (key, value) in table {
            let path =
                if path.is_empty() { key.get_ref().to_string() } else { format!("{path}.{}", key.get_ref()) };
            self.note(path, value.span(), value.get_ref());
        }
    }

    fn note(&mut self, path: String, span: Range<usize>, value: &DeValue<'_>) {
        match value {
            DeValue::Table(table) => self.note_table(&path, table),
            DeValue::Array(array) => {
                for (index, element) in array.iter().enumerate() {
                    self.note(format!("{path}.{index}"), element.span(), element.get_ref());
                }
            }
            _ => {}
        }
        self.values.insert(path, span);
    }

    /// Returns the position of the byte at `offset`. An offset beyond the text means its end.
    pub(super) fn position(&self, offset: usize) -> Position {
        let offset = offset.min(self.text.len());
        let line = self.lines.partition_point(|start| *start <= offset);
        let start = self.lines[line - 1];
        let column = self.text.get(start..offset).map_or(offset - start, |before| before.chars().count()) + 1;
        Position { line, column }
    }

    pub(super) fn positions(&self) -> Positions {
        let places = self.values.iter().map(|(path, span)| (path.clone(), self.position(span.start)));
        Positions(places.collect())
    }

    /// Returns the field of `section` whose value begins at `offset`; `None` if there is no such field. If the offset is that of an element
    /// in a list, returns the field of the list.
    pub(super) fn field_at(&self, section: &str, offset: usize) -> Option<&str> {
        self.path_at(section, offset)?.split('.').next()
    }

    /// Returns the path, within `section`, of the innermost value that begins at `offset`, without the numbers of lists.
    pub(super) fn keys_at(&self, section: &str, offset: usize) -> Option<String> {
        let path = self.path_at(section, offset)?.split('.');
        Some(path.filter(|key| key.parse::<usize>().is_err()).collect::<Vec<_>>().join("."))
    }

    /// Returns the text at these offsets. Returns `None` if the text is empty, has several lines, or is longer than 40 bytes.
    pub(super) fn short_text(&self, span: Range<usize>) -> Option<&str> {
        self.text.get(span).filter(|text| !text.is_empty() && text.len() <= 40 && !text.contains('\n'))
    }

    /// Returns the path, within `section`, of the innermost value that begins at `offset`.
    pub(super) fn path_at(&self, section: &str, offset: usize) -> Option<&str> {
        let holder = format!("{section}.");
        let below = self.values.range(holder.clone()..).take_while(|(path, _)| path.starts_with(&holder));
        let (path, _) = below.filter(|(_, span)| span.start == offset).max_by_key(|(path, _)| path.len())?;
        Some(&path[holder.len()..])
    }
}
