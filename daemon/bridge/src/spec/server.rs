//! The address of a server of NATS, and the account on it. `Debug`, `Display` and errors never show the account.
//!
//! The functions have no examples, because only shmcast itself calls them: the configuration and the command line parse the addresses, and
//! the engine uses the addresses.

use serde::de::value::SeqAccessDeserializer;
use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

/// The quotation marks that can enclose a value in a text.
const QUOTES: [char; 3] = ['"', '\'', '`'];
/// The form of an address.
const FORM: &str = "nats://HOST:PORT, or tls://HOST:PORT";

/// An account on a server. It is sent only to the server.
#[derive(Clone, PartialEq, Eq)]
pub enum Account {
    /// A token.
    Token(String),
    /// A user with a password.
    User {
        /// The user.
        name: String,
        /// The password.
        password: String,
    },
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Account(..)")
    }
}

/// The error for a text that is no account. The error does not contain the text, because the text could be a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no account: write USER:PASSWORD, or a token, in one line")]
pub struct NoAccount;

impl FromStr for Account {
    type Err = NoAccount;

    /// Parses `USER:PASSWORD`, or a token. A line break at the end is ignored.
    fn from_str(text: &str) -> Result<Account, NoAccount> {
        let text = text.trim_end_matches(['\r', '\n']);
        if text.is_empty() || text.contains(char::is_control) {
            return Err(NoAccount);
        }
        Ok(match text.split_once(':') {
            Some((name, password)) => Account::User { name: name.to_owned(), password: password.to_owned() },
            None => Account::Token(text.to_owned()),
        })
    }
}

/// The address of a server, such as `tls://n1:4222`. `Display` does not show the account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerAddress {
    is_tls: bool,
    /// The name or IP address, and the port if one is given.
    host: String,
    account: Option<Account>,
}

impl ServerAddress {
    /// Whether nothing is sent before the server has shown its certificate.
    pub fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// Returns the name or IP address, and the port if one is given.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the account that is part of the address.
    pub(crate) fn account(&self) -> Option<&Account> {
        self.account.as_ref()
    }

    /// Returns the address with `account` in place of its own account.
    #[must_use]
    pub fn with_account(self, account: Account) -> ServerAddress {
        ServerAddress { account: Some(account), ..self }
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.is_tls { "tls" } else { "nats" }, self.host)
    }
}

/// The error for a text that is no address of a server. The error does not contain the text, because an account could be part of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no address of a server (not shown, as an account may stand in it): write {FORM}")]
pub struct NoAddress;

impl FromStr for ServerAddress {
    type Err = NoAddress;

    /// Parses `nats://HOST:PORT` or `tls://HOST:PORT`. The account can precede the host, as `USER:PASSWORD@` or `TOKEN@`. In the account, a
    /// `%` and two hexadecimal digits stand for the character with this number.
    fn from_str(text: &str) -> Result<ServerAddress, NoAddress> {
        let (scheme, rest) = text.split_once("://").ok_or(NoAddress)?;
        let is_tls = match scheme.to_ascii_lowercase().as_str() {
            "tls" => true,
            "nats" => false,
            _ => return Err(NoAddress),
        };
        let (account, host) = match rest.rsplit_once('@') {
            Some((account, host)) => (Some(account_of(account)?), host),
            None => (None, rest),
        };
        let host = host.strip_suffix('/').unwrap_or(host);
        if !is_host(host) {
            return Err(NoAddress);
        }
        Ok(ServerAddress { is_tls, host: host.to_owned(), account })
    }
}

/// Parses the account of an address. The name and the password are decoded separately, so that `%3A` does not separate them.
fn account_of(text: &str) -> Result<Account, NoAddress> {
    let part = |text: &str| {
        let text = decoded(text).filter(|text| !text.contains(char::is_control));
        text.ok_or(NoAddress)
    };
    match text.split_once(':') {
        _ if text.is_empty() => Err(NoAddress),
        Some((name, password)) => Ok(Account::User { name: part(name)?, password: part(password)? }),
        None => part(text).map(Account::Token),
    }
}

/// Replaces each `%` and the two hexadecimal digits after it by the byte with this number. Any other `%` stays as it is.
fn decoded(text: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let [first, after @ ..] = rest {
        let digits = after.get(..2).filter(|_| *first == b'%').and_then(|digits| str::from_utf8(digits).ok());
        let byte = digits
            .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes).ok()
}

/// Whether the text is a name or an IP address, with or without a port.
fn is_host(text: &str) -> bool {
    let is_name = |name: &str| {
        !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '.' | '-' | '_'))
    };
    let is_port = |port: &str| {
        port.bytes().all(|c| c.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0)
    };
    match text.strip_prefix('[').map(|text| text.split_once(']')) {
        Some(Some((ip, after))) => {
            ip.parse::<Ipv6Addr>().is_ok()
                && (after.is_empty() || after.strip_prefix(':').is_some_and(is_port))
        }
        Some(None) => false,
        None => match text.split_once(':') {
            Some((name, port)) => is_name(name) && is_port(port),
            None => is_name(text),
        },
    }
}

impl<'de> Deserialize<'de> for ServerAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ServerAddress, D::Error> {
        deserializer.deserialize_str(Address)
    }
}

struct Address;

impl Visitor<'_> for Address {
    type Value = ServerAddress;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{FORM}")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<ServerAddress, E> {
        text.parse().map_err(E::custom)
    }
}

/// Reads a value that is one address, or a list of addresses.
struct Addresses;

impl<'de> Visitor<'de> for Addresses {
    type Value = Vec<ServerAddress>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{FORM}, or a list of such")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Vec<ServerAddress>, E> {
        Ok(vec![Address.visit_str(text)?])
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Vec<ServerAddress>, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(list))
    }
}

/// Reads one address, or a list of them.
pub(super) fn addresses<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<ServerAddress>, D::Error> {
    deserializer.deserialize_any(Addresses)
}

/// Removes accounts from a text of another program, such as an error message that quotes an address with an account. In each line, removes
/// the text between the first quotation mark and the last `@`. An `@` at the beginning of a word does not count as the end of an account.
pub fn without_accounts(text: &str) -> String {
    let hidden = |line: &str| {
        let is_end = |at: usize| {
            let before = &line[..at];
            let is_in_word =
                before.chars().next_back().is_some_and(|c| !c.is_whitespace() && !QUOTES.contains(&c));
            is_in_word || before.contains("://")
        };
        let Some((at, _)) = line.rmatch_indices('@').find(|(at, _)| is_end(*at)) else {
            return line.to_owned();
        };
        let from = line[..at].find(QUOTES).map_or(0, |quote| quote + 1);
        format!("{}(hidden){}", &line[..from], &line[at..])
    };
    text.split('\n').map(hidden).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_read_from_an_address_and_never_shown() {
        let user = |name: &str, password: &str| {
            Some(Account::User { name: name.to_owned(), password: password.to_owned() })
        };
        let token = |token: &str| Some(Account::Token(token.to_owned()));
        for (text, shown, account) in [
            ("nats://h:4222", "nats://h:4222", None),
            ("nats://u:p:w@h:4222", "nats://h:4222", user("u", "p:w")),
            ("TLS://secret@h/", "tls://h", token("secret")),
            ("tls://u%3A1:se%40c%zz#r/e@t@[::1]:1", "tls://[::1]:1", user("u:1", "se@c%zz#r/e@t")),
        ] {
            let address: ServerAddress = text.parse().unwrap();
            assert_eq!(
                (address.to_string().as_str(), address.account()),
                (shown, account.as_ref()),
                "{text}"
            );
            let debug = format!("{address:?}");
            assert!(
                !debug.contains("se@c") && !debug.contains("secret") && !debug.contains("p:w"),
                "{debug}"
            );
        }
    }

    #[test]
    fn what_is_no_address_is_not_quoted() {
        for text in [
            "u:secret@h:1",
            "nat://u:secret@h:1",
            "nats://u:secret@",
            "nats://u:secret",
            "nats://u:secret@h:port",
            "nats://u:sec\nret@h:1",
            "nats://@h:1",
            "nats://h:1/secret",
            "nats://h:70000",
            "nats://[secret]:1",
            "nats://",
            "",
        ] {
            let error = text.parse::<ServerAddress>().unwrap_err().to_string();
            assert!(!error.contains("secret") && error.contains("nats://HOST:PORT"), "{error}");
        }
    }

    #[test]
    fn an_account_is_one_line() {
        for text in ["", "\n", "a\nb", "a:b\nc\n"] {
            assert!(text.parse::<Account>().is_err(), "{text:?}");
        }
        assert_eq!("token\r\n".parse(), Ok(Account::Token("token".to_owned())));
        let user = Account::User { name: "u".to_owned(), password: "p@:%41 ".to_owned() };
        assert_eq!("u:p@:%41 \n".parse(), Ok(user));
    }

    #[test]
    fn a_text_about_an_account_is_shown_without_it() {
        for (text, shown) in [
            ("nothing is hidden", "nothing is hidden"),
            ("a\nvalue 'nats://u:s ecret@h' for '--from'\nb", "a\nvalue '(hidden)@h' for '--from'\nb"),
            ("string \"u:\\\"@secret@h\", expected", "string \"(hidden)@h\", expected"),
            ("u:secret@h", "(hidden)@h"),
            ("value '1' for '--span': write @SECONDS", "value '1' for '--span': write @SECONDS"),
            ("'nats://u:secret @h' and @", "'(hidden)@"),
        ] {
            assert_eq!(without_accounts(text), shown);
        }
    }
}
