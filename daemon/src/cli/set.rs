//! `--set KEY=VALUE`: settings with the names that they have in a configuration file. The daemon's own code reads them. So a setting has
//! the same name, range and default in both places, and errors list the possible keys.

use crate::config::{explain, without_string, words_of};
use anyhow::{Result, anyhow};
use serde::de::DeserializeOwned;
use std::str::FromStr;
use toml::{Table, Value};

/// A key and its value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Setting {
    pub(super) key: String,
    pub(super) value: Value,
}

impl FromStr for Setting {
    type Err = String;

    /// Parses the value as TOML. If the value is not TOML, uses it as a text, so that a word or an address needs no quotes.
    fn from_str(text: &str) -> Result<Setting, String> {
        let Some((key, value)) = text.split_once('=') else {
            return Err("no \"=\": write it like KEY=VALUE".to_owned());
        };
        // The name of a gate can also have the characters `.`, `:`, `@` and `+`.
        let others = if key.starts_with("gate.") { "_-.:@+" } else { "_-" };
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || others.contains(c);
        let is_name = |part: &&str| !part.is_empty() && part.chars().all(is_allowed);
        if !parts(key).iter().all(is_name) {
            return Err(format!("{key:?} is no key: write it like KEY=VALUE, or TABLE.KEY=VALUE"));
        }
        let read = format!("value = {value}").parse::<Table>().ok();
        let read = read.filter(|table| table.len() == 1).and_then(|mut table| table.remove("value"));
        Ok(Setting { key: key.to_owned(), value: read.unwrap_or_else(|| Value::String(value.to_owned())) })
    }
}

/// Splits a key at its dots. The name of a gate can have dots: in `gate.NAME.wait`, it is all between the first dot and the last one.
fn parts(key: &str) -> Vec<&str> {
    match key.strip_prefix("gate.").and_then(|rest| rest.rsplit_once('.')) {
        Some((name, field)) => vec!["gate", name, field],
        None => key.split('.').collect(),
    }
}

impl Setting {
    /// The key up to its first dot, which is the name of a table if there is a dot.
    pub(super) fn table(&self) -> &str {
        self.key.split('.').next().unwrap_or_default()
    }
}

/// A table of a configuration that is being made.
#[derive(Debug, Default)]
pub(super) struct Draft(pub(super) Table);

impl Draft {
    /// Makes a table with these settings.
    pub(super) fn of<'a>(settings: impl IntoIterator<Item = &'a Setting>) -> Self {
        let mut draft = Self::default();
        draft.set(settings);
        draft
    }

    pub(super) fn set<'a>(&mut self, settings: impl IntoIterator<Item = &'a Setting>) {
        settings.into_iter().for_each(|Setting { key, value }| self.put(key, value.clone()));
    }

    /// Gives a key its value. The name can contain tables, as in `send.linger_ms`.
    pub(super) fn put(&mut self, key: &str, value: impl Into<Value>) {
        let mut parts = parts(key).into_iter().peekable();
        let mut table = &mut self.0;
        while let Some(part) = parts.next() {
            if parts.peek().is_none() {
                table.insert(part.to_owned(), value.into());
                return;
            }
            let below = table.entry(part).or_insert_with(|| Value::Table(Table::new()));
            if !below.is_table() {
                *below = Value::Table(Table::new());
            }
            let Value::Table(below) = below else { return };
            table = below;
        }
    }

    /// Reads the table.
    ///
    /// # Errors
    /// The first mistake, worded as an error of a configuration file.
    pub(super) fn read<T: DeserializeOwned>(self) -> Result<T> {
        let table = self.0.clone();
        Value::Table(self.0).try_into().map_err(|e: toml::de::Error| {
            let Some(place) = place_of(&e) else { return anyhow!("{}", explain(e.message())) };
            // The settings of servers can contain an account.
            if place.starts_with("nats") {
                return anyhow!("{place}: {}", explain(&without_string(e.message())));
            }
            if e.message() == NO_WORD {
                return anyhow!("{place}: {}", no_word::<T>(table, &place));
            }
            let mut message = explain(e.message());
            if message.ends_with("write a table") {
                message += &format!(", or its entries as {place}.KEY=VALUE");
            }
            anyhow!("{place}: {message}")
        })
    }
}

/// The TOML library's error if a value must be one of certain words and is not a string.
const NO_WORD: &str = "invalid type: unit variant, expected string only";

/// Returns the key that an error is about.
fn place_of(error: &toml::de::Error) -> Option<String> {
    let shown = error.to_string();
    shown.lines().find_map(|line| Some(line.strip_prefix("in `")?.strip_suffix('`')?.to_owned()))
}

/// Formats a value as in a configuration file. For a list, a table or a date, returns only the kind of the value.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{text:?}"),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(is) => is.to_string(),
        other => format!("a value of the kind {}", other.type_str()),
    }
}

/// Returns the error text for the value at `place`, which must be one of certain words. To learn the words, reads the table with an empty
/// string in place of the value: the error of that attempt lists them.
fn no_word<T: DeserializeOwned>(mut table: Table, place: &str) -> String {
    let (holder, key) = place.rsplit_once('.').map_or((None, place), |(holder, key)| (Some(holder), key));
    let holder = holder.into_iter().flat_map(|holder| holder.split('.'));
    let found = holder.into_iter().try_fold(&mut table, |table, key| table.get_mut(key)?.as_table_mut());
    let value = found.and_then(|table| table.insert(key.to_owned(), Value::String(String::new())));
    let value = value.map_or_else(|| "this value".to_owned(), |value| shown(&value));
    let tried = Value::Table(table).try_into::<T>().err();
    let words = tried.and_then(|e| words_of(e.message())).map_or(String::new(), |words| format!(": {words}"));
    format!("cannot be {value}: write one of its words{words}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_toml_or_a_text() {
        let read = |text: &str| text.parse::<Setting>().expect("it is a setting").value;
        assert_eq!(read("a=1_000"), Value::Integer(1000));
        assert_eq!(read("a.b=10.0.0.1:30002"), Value::String("10.0.0.1:30002".to_owned()));
        assert_eq!(read("a=[\"x\"]"), Value::Array(vec![Value::String("x".to_owned())]));
        assert_eq!(read("a=1\nb=2"), Value::String("1\nb=2".to_owned()));
        for text in ["linger", "=5", "a b=5", "send.=5", "gate..wait=5", "gate.a b.wait=5", "send.a:b=5"] {
            assert!(text.parse::<Setting>().is_err(), "{text}");
        }
    }

    /// An earlier mistake: a gate whose name has a dot or another sign could not be set.
    #[test]
    fn every_name_of_a_gate_can_be_set() {
        for name in ["a", "a.b", "a:b", "a@b", "a+b", "a-b", "a.b.c"] {
            let settings: Vec<Setting> =
                ["wait=1ms", "then=refuse"].map(|rest| format!("gate.{name}.{rest}").parse().unwrap()).into();
            assert!(settings.iter().all(|setting| setting.table() == "gate"));
            let Draft(table) = Draft::of(&settings);
            let gates = table["gate"].as_table().unwrap();
            assert_eq!(gates.keys().collect::<Vec<_>>(), [name]);
            assert_eq!(gates[name]["wait"].as_str(), Some("1ms"));
        }
    }
}
