//! From the text of a file to a [`Config`], section by section, so that one mistake does not hide the others.

use super::rules::Broken;
use super::source::{Positions, Problem, Source};
use super::{ChannelConfig, Config, bridges, fields, rules};
use crate::bridge::spec::BridgeSpec;
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

const SECTIONS: [&str; 5] = ["daemon", "limits", "waker", "channel", "bridge"];

/// Reads a text; what is wrong with it comes in the order of the file. With problems the configuration is of no use.
pub(super) fn read(text: &str) -> (Config, Vec<Problem>) {
    let mut reader =
        Reader { source: Source::new(text), positions: Positions::default(), problems: Vec::new() };
    let config = match DeTable::parse(text) {
        Ok(root) => reader.read(root.into_inner()),
        Err(e) => {
            let octal =
                if e.message().contains("leading zero") { ": write octal digits in quotes" } else { "" };
            reader.report(e.span(), "", format!("{}{octal}", fields::explain(e.message())));
            Config::default()
        }
    };
    reader.problems.sort_by_key(|problem| problem.position);
    (config, reader.problems)
}

struct Reader<'a> {
    source: Source<'a>,
    positions: Positions,
    problems: Vec<Problem>,
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
        // Last: they are about channels, wherever those stand.
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
        if let Some(read) = self.table(name, &format!("[{name}]"), value, rules) {
            *section = read;
        }
    }

    fn channels(&mut self, value: Spanned<DeValue<'_>>) -> Vec<ChannelConfig> {
        let span = value.span();
        let DeValue::Array(elements) = value.into_inner() else {
            self.report(Some(span), "", "channels are lists: write [[channel]], not [channel]".to_owned());
            return Vec::new();
        };
        let mut channels = Vec::new();
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
            channels.extend(self.table(&format!("channel.{index}"), &title, element, rules::channel));
        }
        channels
    }

    fn bridges(&mut self, value: Spanned<DeValue<'_>>, channels: &[ChannelConfig]) -> Vec<BridgeSpec> {
        let span = value.span();
        let DeValue::Array(elements) = value.into_inner() else {
            self.report(Some(span), "", "bridges are lists: write [[bridge]], not [bridge]".to_owned());
            return Vec::new();
        };
        let mut bridges: Vec<BridgeSpec> = Vec::new();
        for (index, element) in elements.into_iter().enumerate() {
            let text = |field| element.get_ref().get(field).and_then(|name| name.get_ref().as_str());
            let title = text("name").or_else(|| text("channel"));
            let title = title.map_or_else(|| "[[bridge]]".to_owned(), |title| format!("bridge {title:?}"));
            let rules = |bridge: &BridgeSpec| -> Broken {
                let among = bridges::together(bridge, channels, &bridges);
                bridges::own(bridge).into_iter().chain(among).collect()
            };
            let read = self.table(&format!("bridge.{index}"), &title, element, rules);
            bridges.extend(read);
        }
        bridges
    }

    /// Reads one table and applies its rules.
    fn table<T: DeserializeOwned>(
        &mut self,
        path: &str,
        title: &str,
        value: Spanned<DeValue<'_>>,
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
        match T::deserialize(ValueDeserializer::from(value)) {
            Ok(read) => {
                for (field, what) in rules(&read) {
                    let position = self.positions.find(&format!("{path}.{field}"));
                    let position = position.unwrap_or_else(|| self.source.position(span.start));
                    self.problems.push(Problem { position, section: title.to_owned(), what });
                }
                Some(read)
            }
            Err(e) => {
                let at = e.span().unwrap_or(span);
                let mut what = fields::explain(e.message());
                if let Some(field) = self.source.field_at(path, at.start) {
                    what = format!("{field}: {what}");
                }
                self.report(Some(at), title, what);
                None
            }
        }
    }

    /// Notes a mistake; one without a place is the end's.
    fn report(&mut self, span: Option<Range<usize>>, section: &str, what: String) {
        let position = self.source.position(span.map_or(usize::MAX, |span| span.start));
        self.problems.push(Problem { position, section: section.to_owned(), what });
    }
}
