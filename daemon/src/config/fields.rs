//! Fields with a syntax of their own, and suggestions for misspelt names.

use bytesize::ByteSize;
use serde::de::{self, Deserialize, Deserializer, Visitor};
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

/// An entry of a channel's access list.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Principal {
    /// `user:NAME`: the user with this name in the user database. When a program connects, the daemon looks up the names of the program's
    /// user, and keeps the answer for a minute. A name that does not exist matches nobody.
    User(String),
    /// `group:NAME`: the members of the group with this name. The daemon looks up a user's groups together with the user's name.
    Group(String),
    /// `uid:N`: a user by number, whether or not it has a name.
    Uid(u32),
    /// `*`: every program that can reach the socket.
    Anyone,
}

impl FromStr for Principal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "*" {
            return Ok(Self::Anyone);
        }
        let Some((kind, name)) = text.split_once(':') else {
            return Err(format!(
                "{text:?} names nobody: write \"user:NAME\", \"group:NAME\", \"uid:N\" or \"*\""
            ));
        };
        if name.is_empty() || name.contains(|c: char| c == ':' || c.is_whitespace() || c.is_control()) {
            return Err(format!("{text:?}: a name must follow the colon, without spaces or colons"));
        }
        match kind {
            "user" => Ok(Self::User(name.to_owned())),
            "group" => Ok(Self::Group(name.to_owned())),
            "uid" => match name.parse() {
                Ok(uid) if uid != u32::MAX => Ok(Self::Uid(uid)),
                _ => Err(format!("{text:?}: a user's number must follow, as in \"uid:1000\"")),
            },
            _ => Err(format!("{text:?}: unknown kind `{kind}`{}", hint(kind, &["user", "group", "uid"]))),
        }
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(name) => write!(f, "user:{name}"),
            Self::Group(name) => write!(f, "group:{name}"),
            Self::Uid(uid) => write!(f, "uid:{uid}"),
            Self::Anyone => f.write_str("*"),
        }
    }
}

impl<'de> Deserialize<'de> for Principal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The text is parsed in the visitor, so that an error has the position of its entry, and not of the whole list.
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Principal;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"user:NAME\", \"group:NAME\", \"uid:N\" or \"*\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Principal, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

/// Refuses sizes such as `64M`, which some programs read as 64 MiB and others as 64 MB.
///
/// # Errors
/// The error text names both sizes that `64M` could mean.
pub(crate) fn refuse_half_unit(text: &str) -> Result<(), String> {
    let text = text.trim();
    let Some(number) = text.strip_suffix(|last: char| "kKmMgGtT".contains(last)).map(str::trim) else {
        return Ok(());
    };
    let unit = text[text.len() - 1..].to_ascii_uppercase();
    let [binary, decimal] = ["iB", "B"].map(|rest| format!("{number}{unit}{rest}"));
    match (binary.parse::<ByteSize>(), decimal.parse::<ByteSize>()) {
        (Ok(ByteSize(larger)), Ok(ByteSize(smaller))) => {
            Err(format!("{text:?} has two meanings: write {binary} ({larger} B) or {decimal} ({smaller} B)"))
        }
        // The text is no size at all. The caller reports this mistake when it reads the size.
        _ => Ok(()),
    }
}

/// Reads `500ms`, `10s`, `1.5m`, `8h` or `30d`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let seconds = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => {
            return Err(format!("{text:?} needs a unit: write it like 500ms, 10s, 5m, 8h or 30d"));
        }
    };
    let number: f64 =
        number.parse().map_err(|_| format!("{text:?} does not begin with a number: write it like 10s"))?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| format!("{text:?} is too long"))
}

/// Reads a size such as `64MiB`.
pub(super) fn parse_size(text: &str) -> Result<u64, String> {
    refuse_half_unit(text)?;
    let size: ByteSize = text.trim().parse().map_err(|_| {
        format!("{text:?} is no size: write a number and a unit, as in \"64KiB\", \"64MiB\" or \"1GiB\"")
    })?;
    Ok(size.as_u64())
}

/// A size: `"64MiB"`, or a number of bytes.
struct Size;

impl Visitor<'_> for Size {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a size such as \"64MiB\", or a number of bytes")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<u64, E> {
        parse_size(text).map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<u64, E> {
        u64::try_from(bytes).map_err(|_| E::custom(format!("{bytes} is no size: it is negative")))
    }

    fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<u64, E> {
        Ok(bytes)
    }
}

pub(super) fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    deserializer.deserialize_any(Size)
}

pub(crate) fn optional_size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    size(deserializer).map(Some)
}

/// Reads permissions from a string of octal digits. Without quotes, TOML refuses 0666 and reads 666 as a decimal number.
pub(super) fn mode<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    struct Mode;
    impl Visitor<'_> for Mode {
        type Value = u32;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("octal digits in quotes, as in \"0660\"")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<u32, E> {
            let digits = text.strip_prefix("0o").unwrap_or(text);
            let is_octal = !digits.is_empty() && digits.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
            match u32::from_str_radix(digits, 8) {
                Ok(mode) if is_octal && mode <= 0o777 => Ok(mode),
                _ => Err(E::custom(format!("{text:?} are no permissions: write \"0000\" to \"0777\""))),
            }
        }
    }
    deserializer.deserialize_any(Mode)
}

pub(super) fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let wrong =
        || format!("{text:?} is no address: write IP:PORT, as in \"127.0.0.1:9464\" or \"[::1]:9464\"");
    text.parse().map(Some).map_err(|_| de::Error::custom(wrong()))
}

/// Returns serde's error text without the string value that it quotes.
pub(crate) fn without_string(message: &str) -> String {
    match (message.find("string \""), message.rfind('"')) {
        (Some(from), Some(to)) => format!("{}a string{}", &message[..from], &message[to + 1..]),
        _ => message.to_owned(),
    }
}

/// The TOML parser's error if a value must be one of certain words and is not a string.
pub(super) const NO_WORD: &str = "wanted string or table";

/// Returns the words that are valid for a value. `message` is the error for an empty string in place of the value, and lists the words.
pub(crate) fn words_of(message: &str) -> Option<String> {
    let names = message.strip_prefix("unknown variant ``, expected ")?.split('`').skip(1).step_by(2);
    Some(names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "))
}

/// Adds the value to an error of serde or of the TOML parser, if the error does not quote the value. `words` returns the valid words for
/// the value, if they are known.
pub(crate) fn with_value(
    message: &str,
    value: Option<&str>,
    words: impl FnOnce() -> Option<String>,
) -> String {
    let Some(value) = value else { return message.to_owned() };
    match message {
        NO_WORD => {
            let words = words().map_or(String::new(), |words| format!(": {words}"));
            format!("cannot be {value}: write one of its words in quotes{words}")
        }
        _ => message
            .replace("invalid type: sequence", &format!("invalid type: the list {value}"))
            .replace("invalid type: map", &format!("invalid type: the table {value}")),
    }
}

/// Translates an error of serde or of the TOML parser into the terms of the file. If the error lists valid names, adds the nearest one as a
/// suggestion.
pub(crate) fn explain(message: &str) -> String {
    // The names stand between backquotes: "unknown field `capasity`, expected one of `name`, `capacity`".
    let mut quoted = message.split('`').skip(1).step_by(2);
    match (message.split(' ').next(), quoted.next()) {
        (Some("unknown"), Some(name)) => {
            let kind = if message.starts_with("unknown variant") { "value" } else { "field" };
            format!("unknown {kind} `{name}`{}", hint(name, &quoted.collect::<Vec<_>>()))
        }
        _ => {
            let message =
                message.trim_end_matches(", expected nothing").replace("invalid type:", "cannot be");
            let message = message.replace("invalid value:", "cannot be").replace(", expected ", ": write ");
            let plain = [
                ("u8", "a whole number from 0 to 255"),
                ("u16", "a whole number from 0 to 65535"),
                ("u32", "a whole number from 0 to 4294967295"),
                // TOML has no larger numbers.
                ("u64", "a whole number from 0 to 9223372036854775807"),
                ("usize", "a whole number from 0 to 9223372036854775807"),
                ("a sequence", "a list"),
                ("a boolean", "true or false"),
                ("a map", "a table"),
                ("path string", "a path in quotes"),
            ];
            let message = plain.iter().fold(message, |text, (term, plain)| {
                text.replace(&format!("write {term}"), &format!("write {plain}"))
            });
            let message = match message.split_once("write struct ") {
                Some((before, _)) => format!("{before}write a table"),
                None => message,
            };
            match message.as_str() {
                "invalid socket address syntax" => {
                    format!("{message}: write IP:PORT, as in \"239.1.2.3:30001\" or \"[::1]:9464\"")
                }
                "invalid IP address syntax" => format!("{message}: write it as in \"10.0.0.1\" or \"::1\""),
                _ => message,
            }
        }
    }
}

/// Returns a suggestion for a name that is not in `names`. The suggestion is the nearest name in `names`, or all names if no name is near.
pub(super) fn hint(name: &str, names: &[&str]) -> String {
    let likeness = |other: &str| strsim::normalized_damerau_levenshtein(&name.to_lowercase(), other);
    let nearest = names.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    match nearest.filter(|nearest| likeness(nearest) >= 0.5) {
        Some(nearest) => format!(": did you mean `{nearest}`?"),
        None => format!(
            ": there are {}",
            names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
        ),
    }
}

/// Formats a size in the largest unit that needs no fraction.
pub(super) fn size_text(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let step = if bytes == 0 { 0 } else { bytes.trailing_zeros() as usize / 10 };
    format!("{}{}", bytes >> (10 * step), units[step])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_shown_as_they_are_written() {
        for (bytes, text) in
            [(0, "0B"), (1000, "1000B"), (1 << 16, "64KiB"), (3 << 20, "3MiB"), (1 << 63, "8EiB")]
        {
            assert_eq!(size_text(bytes), text);
            assert_eq!(text.parse::<ByteSize>().unwrap().as_u64(), bytes);
        }
    }

    #[test]
    fn the_nearest_name_is_offered_only_where_one_is_near() {
        assert_eq!(hint("Strict", &["takeover", "strict"]), ": did you mean `strict`?");
        assert_eq!(hint("xyz", &["takeover", "strict"]), ": there are `takeover`, `strict`");
    }
}
