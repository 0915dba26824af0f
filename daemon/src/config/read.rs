//! Parses a configuration section by section, so that one mistake does not hide the others.

use super::rules::Broken;
use super::source::{Positions, Problem, Source};
use super::{ChannelConfig, Config, bridges, fields, rules};
use serde::de::DeserializeOwned;
use shmcast_bridge::spec::BridgeSpec;
use std::collections::HashMap;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue, ValueDeserializer};

const SECTIONS: [&str; 5] = ["daemon", "limits", "waker", "channel", "bridge"];

/// Parses the text of a configuration. The problems are in the order of the file. If there are any problems, the configuration must not be
/// used.
pub(super) fn read(text: &str) -> (Config, Vec<Problem>) {
    let mut reader = Reader {
        source: Source::new(text),
        positions: Positions::default(),
        problems: Vec::new(),
        channels: Vec::new(),
    };
    let config = match DeTable::parse(text) {
        Ok(root) => reader.read(root.into_inner()),
        Err(e) => {
            let octal =
                if e.message().contains("leading zero") { ": write octal digits in quotes" } else { "" };
            let key = e.span().filter(|_| e.message() == "duplicate key").and_then(|span| text.get(span));
            let key = key.map_or(String::new(), |key| format!(" `{key}`"));
            reader.report(e.span(), "", format!("{}{key}{octal}", fields::explain(e.message())));
            Config::default()
        }
    };
    reader.problems.sort_by_key(|problem| problem.position);
    (config, reader.problems)
}

/// Facts about a kind of table. With them, a table can be checked although some of its fields cannot be read.
struct Kind {
    /// The required fields. Each has a substitute value that causes no problem with another field.
    required: &'static [(&'static str, &'static str)],
    /// Fields whose rules depend on other fields of the table. These rules are not applied if any field of the table could not be read.
    depend_on_others: &'static [&'static str],
}

/// The limit for the mistakes that are reported for one table. Each mistake costs another pass over the table, and a file can have very
/// many mistakes.
const TRIES: usize = 20;

const SECTION: Kind = Kind { required: &[], depend_on_others: &["http", "shortest_us"] };
const CHANNEL: Kind =
    Kind { required: &[("name", "x"), ("capacity", "16GiB")], depend_on_others: &["schema"] };
const BRIDGE: Kind =
    Kind { required: &[("channel", "x")], depend_on_others: &["name", "channel", "line", "session"] };

/// The fields of a table that could not be read. Unknown fields are not included, because no rule depends on them.
#[derive(Default)]
struct LeftOut {
    fields: Vec<String>,
    /// The offset and the path of each entry that was removed, at any depth.
    removed: Vec<(usize, String)>,
}

/// Errors that can follow from the removal of a faulty part: the value around the part is then incomplete. Such a value is a table with a
/// required field, a list, or a word.
const OF_REMOVED: [&str; 2] = ["invalid length ", "wanted exactly 1 element"];

impl LeftOut {
    /// Removes the entry at the offset `at`. Returns false if there is no entry. In that case, another attempt would fail in the same way.
    fn take_out(
        &mut self,
        why: &str,
        field: Option<String>,
        at: usize,
        value: &mut Spanned<DeValue<'_>>,
    ) -> bool {
        if !why.starts_with("unknown field") {
            self.fields.extend(field);
        }
        remove_at(value.get_mut(), at)
    }

    /// Whether the error `message` at the offsets `at` only follows from the removal of a faulty entry. `path` is the path of the value at
    /// `at`.
    fn causes(&self, message: &str, at: &Range<usize>, path: Option<&str>) -> bool {
        let missing = missing_field(message);
        self.removed.iter().any(|(offset, removed)| {
            let (holder, key) = removed.rsplit_once('.').unwrap_or(("", removed));
            let is_within = at.contains(offset) || path == Some(holder);
            let is_missing = missing == Some(key) && is_within;
            is_missing || at.contains(offset) && OF_REMOVED.iter().any(|text| message.starts_with(text))
        })
    }

    /// Gives the required field `field` its substitute value, so that the other fields can be read. Returns false if this kind of table
    /// does not require the field.
    fn put_in(&mut self, field: &str, kind: &Kind, value: &mut Spanned<DeValue<'_>>) -> bool {
        let Some((name, text)) = kind.required.iter().find(|(name, _)| *name == field) else { return false };
        let DeValue::Table(table) = value.get_mut() else { return false };
        self.fields.push((*name).to_owned());
        let text = DeValue::String((*text).into());
        table.insert(Spanned::new(0..0, (*name).into()), Spanned::new(0..0, text)).is_none()
    }
}

/// The name in "missing field `name`".
fn missing_field(message: &str) -> Option<&str> {
    message.strip_prefix("missing field `")?.strip_suffix('`')
}

/// Removes the innermost entry or element whose key or value contains the offset `at`.
fn remove_at(value: &mut DeValue<'_>, at: usize) -> bool {
    match value {
        DeValue::Table(table) => {
            let before = table.len();
            table.iter_mut().any(|(_, value)| remove_at(value.get_mut(), at)) || {
                let kept = std::mem::take(table).into_iter();
                let stands_elsewhere = |span: Range<usize>| !span.contains(&at);
                *table = kept
                    .filter(|(key, value)| stands_elsewhere(key.span()) && stands_elsewhere(value.span()))
                    .collect();
                table.len() < before
            }
        }
        DeValue::Array(array) => {
            let before = array.len();
            array.iter_mut().any(|element| remove_at(element.get_mut(), at)) || {
                let kept = std::mem::replace(array, DeArray::new()).into_iter();
                *array = kept.filter(|element| !element.span().contains(&at)).collect();
                array.len() < before
            }
        }
        _ => false,
    }
}

/// Returns the valid words for the value at the offset `at`. To learn them, reads the table with an empty string in place of the value: the
/// error of that attempt lists the words.
fn words_at<T: DeserializeOwned>(table: &Spanned<DeValue<'_>>, at: usize) -> Option<String> {
    let mut tried = table.clone();
    put_at(tried.get_mut(), at);
    fields::words_of(T::deserialize(ValueDeserializer::from(tried)).err()?.message())
}

/// Replaces the innermost value that begins at the offset `at` by an empty string.
fn put_at(value: &mut DeValue<'_>, at: usize) {
    let put = |value: &mut Spanned<DeValue<'_>>| match value.get_ref() {
        DeValue::Table(_) => put_at(value.get_mut(), at),
        DeValue::Array(_) if value.span().start != at => put_at(value.get_mut(), at),
        _ if value.span().start == at => *value.get_mut() = DeValue::String("".into()),
        _ => {}
    };
    match value {
        DeValue::Table(table) => table.iter_mut().for_each(|(_, value)| put(value)),
        DeValue::Array(array) => array.iter_mut().for_each(put),
        _ => {}
    }
}

struct Reader<'a> {
    source: Source<'a>,
    positions: Positions,
    problems: Vec<Problem>,
    /// The names of all channels, including channels that could not be read.
    channels: Vec<String>,
}

impl Reader<'_> {
    fn read(&mut self, root: DeTable<'_>) -> Config {
        self.source.note_table("", &root);
        self.positions = self.source.positions();
        let mut config = Config { positions: self.positions.clone(), ..Config::default() };
        let mut bridges = None;
        for (key, value) in root {
            match key.get_ref().as_ref() {
                "daemon" => self.section(&mut config.daemon, "daemon", value, rules::daemon),
                "limits" => self.section(&mut config.limits, "limits", value, rules::limits),
                "waker" => self.section(&mut config.waker, "waker", value, rules::waker),
                "channel" => config.channels = self.channels(value),
                "bridge" => bridges = Some(value),
                other => {
                    let what =
                        format!("unknown section or field `{other}`{}", fields::hint(other, &SECTIONS));
                    self.report(Some(key.span()), "", what);
                }
            }
        }
        // Bridges come last: they refer to channels, which may stand after them in the file.
        if let Some(value) = bridges {
            config.bridges = self.bridges(value, &config.channels);
        }
        config
    }

    fn section<T: DeserializeOwned>(
        &mut self,
        section: &mut T,
        name: &str,
        value: Spanned<DeValue<'_>>,
        rules: impl Fn(&T) -> Vec<(&'static str, String)>,
    ) {
        if let Some(read) = self.table(name, &format!("[{name}]"), &SECTION, value, rules) {
            *section = read;
        }
    }

    fn channels(&mut self, value: Spanned<DeValue<'_>>) -> Vec<ChannelConfig> {
        let span = value.span();
        let DeValue::Array(elements) = value.into_inner() else {
            self.report(Some(span), "", "channels are lists: write [[channel]], not [channel]".to_owned());
            return Vec::new();
        };
        let mut channels: Vec<ChannelConfig> = Vec::new();
        let mut lines = HashMap::new();
        for (index, element) in elements.into_iter().enumerate() {
            let name = element.get_ref().get("name").and_then(|name| name.get_ref().as_str());
            let title = name.map_or_else(|| "[[channel]]".to_owned(), |name| format!("channel {name:?}"));
            let place = element.get_ref().get("name").map_or(element.span(), Spanned::span);
            let line = self.source.position(place.start).line;
            if let Some(first) = name.and_then(|name| lines.insert(name.to_owned(), line)) {
                let what = format!("there is one of this name at line {first}: rename one of them");
                self.report(Some(place), &title, what);
            }
            self.channels.extend(name.map(str::to_owned));
            let path = format!("channel.{index}");
            let rules = |channel: &ChannelConfig| {
                rules::channel(channel).into_iter().chain(rules::together(channel, &channels)).collect()
            };
            let read = self.table(&path, &title, &CHANNEL, element, rules);
            channels.extend(read);
        }
        channels
    }

    fn bridges(&mut self, value: Spanned<DeValue<'_>>, channels: &[ChannelConfig]) -> Vec<BridgeSpec> {
        let span = value.span();
        let DeValue::Array(elements) = value.into_inner() else {
            self.report(Some(span), "", "bridges are lists: write [[bridge]], not [bridge]".to_owned());
            return Vec::new();
        };
        let channel = |element: &Spanned<DeValue<'_>>| {
            let name = element.get_ref().get("receive").and(element.get_ref().get("channel"))?;
            name.get_ref().as_str().map(str::to_owned)
        };
        let received: Vec<String> = elements.iter().filter_map(channel).collect();
        let names = self.channels.clone();
        let mut bridges: Vec<BridgeSpec> = Vec::new();
        for (index, element) in elements.into_iter().enumerate() {
            let text = |field| element.get_ref().get(field).and_then(|name| name.get_ref().as_str());
            let title = text("name").or_else(|| text("channel"));
            let title = title.map_or_else(|| "[[bridge]]".to_owned(), |title| format!("bridge {title:?}"));
            let rules = |bridge: &BridgeSpec| -> Broken {
                let among = bridges::together(bridge, &names, channels, &bridges, &received);
                bridges::own(bridge).into_iter().chain(among).collect()
            };
            let read = self.table(&format!("bridge.{index}"), &title, &BRIDGE, element, rules);
            bridges.extend(read);
        }
        bridges
    }

    /// Reads one table and applies its rules. Fields that cannot be read are reported and left out, so that they do not hide other
    /// mistakes. If there were such fields, the result is `None`.
    fn table<T: DeserializeOwned>(
        &mut self,
        path: &str,
        title: &str,
        kind: &Kind,
        mut value: Spanned<DeValue<'_>>,
        rules: impl Fn(&T) -> Vec<(&'static str, String)>,
    ) -> Option<T> {
        let span = value.span();
        if !value.get_ref().is_table() {
            let what = format!(
                "must be a table, not {}: write {title} on a line of its own",
                value.get_ref().type_str()
            );
            self.report(Some(span), title, what);
            return None;
        }
        let mut left_out = LeftOut::default();
        let mut tries = 0;
        let read = loop {
            tries += 1;
            match T::deserialize(ValueDeserializer::from(value.clone())) {
                Ok(read) => break read,
                Err(e) => {
                    let at = e.span().unwrap_or(span.clone());
                    let field = self.source.field_at(path, at.start).map(str::to_owned);
                    let missing = missing_field(e.message());
                    let place = self.source.path_at(path, at.start).map(str::to_owned);
                    let is_of_ours = left_out.causes(e.message(), &at, place.as_deref());
                    let is_known = |missing| left_out.fields.iter().any(|field| field == missing);
                    if !is_of_ours && !missing.is_some_and(is_known) {
                        // The values of these fields can contain an account.
                        let is_secret = matches!(field.as_deref(), Some("nats" | "receive"));
                        let what = match is_secret {
                            true => fields::explain(&fields::without_string(e.message())),
                            false => {
                                let text = self.source.short_text(at.clone());
                                let words = || words_at::<T>(&value, at.start);
                                fields::explain(&fields::with_value(e.message(), text, words))
                            }
                        };
                        let keys = self.source.keys_at(path, at.start);
                        let field = keys.map_or(String::new(), |keys| format!("{keys}: "));
                        self.report(Some(at.clone()), title, format!("{field}{what}"));
                    }
                    let removed = place.map(|place| (at.start, place));
                    let goes_on = match missing {
                        Some(missing) if !is_of_ours => left_out.put_in(missing, kind, &mut value),
                        _ => left_out.take_out(e.message(), field, at.start, &mut value),
                    };
                    left_out.removed.extend(removed);
                    if !goes_on || tries == TRIES {
                        return None;
                    }
                }
            }
        };
        for (field, what) in rules(&read) {
            let first = field.split('.').next().unwrap_or(field);
            let is_certain = left_out.fields.is_empty() || !kind.depend_on_others.contains(&first);
            if is_certain && !left_out.fields.iter().any(|field| field == first) {
                let position = self.positions.find(&format!("{path}.{field}"));
                let position = position.unwrap_or_else(|| self.source.position(span.start));
                self.problems.push(Problem::new(position, title, &what));
            }
        }
        left_out.fields.is_empty().then_some(read)
    }

    /// Reports a mistake. Without a `span`, the mistake is reported at the end of the file.
    fn report(&mut self, span: Option<Range<usize>>, section: &str, what: String) {
        let position = self.source.position(span.map_or(usize::MAX, |span| span.start));
        self.problems.push(Problem::new(position, section, &what));
    }
}
