//! The options of a bridge, from a configuration file, from flags, and from `--set`. They become the fields of a `[[bridge]]` table. The
//! daemon's own code reads the table, so an option has the same name, range and default everywhere.

use super::for_each_line;
use crate::cli::set::{Draft, Setting};
use crate::config::Config;
use anyhow::{Context, Result, bail};
use shmcast_bridge::spec::BridgeSpec;
use shmcast_bridge::spec::server::{Account, ServerAddress};
use std::env::VarError;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// The environment variable with the account at the servers.
pub(crate) const ACCOUNT_VARIABLE: &str = "SHMCAST_NATS_ACCOUNT";

/// Options of every verb that needs a bridge or its servers.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// Take the settings of the channel's bridge from this configuration file of a daemon
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set a field of the bridge's table, such as profile=native, keys=FILE, payload_bytes=8900 or send.linger_ms=2000; `man shmcast.toml`
    /// lists all fields, with their ranges and defaults
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<Setting>,
}

/// The use that a bridge makes of the channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Send,
    Receive,
    /// The verb runs no bridge, and only needs the servers of the bridge's configuration.
    Neither,
}

impl Side {
    /// Returns the name of the table for this direction, which is inside the bridge's table; `None` for [`Side::Neither`].
    fn table(self) -> Option<&'static str> {
        match self {
            Side::Send => Some("send"),
            Side::Receive => Some("receive"),
            Side::Neither => None,
        }
    }
}

impl Options {
    /// Makes the table of the bridge of `channel`. If the user gave a configuration file, the table begins as a copy of the file's table.
    pub(super) fn draft(&self, channel: &str, side: Side) -> Result<Draft> {
        let mut draft = Draft(match &self.config {
            Some(file) => self.table_of(file, channel, side)?,
            None => Table::new(),
        });
        draft.put("channel", channel);
        if let Some(name) = side.table() {
            draft.0.entry(name).or_insert_with(|| Value::Table(Table::new()));
        }
        Ok(draft)
    }

    /// Returns the spec of the bridge. `nats` replaces the servers of the draft. The options of `--set` override the draft and `nats`.
    pub(super) fn finish(&self, mut draft: Draft, side: Side, nats: &[String]) -> Result<BridgeSpec> {
        self.refuse_accounts(nats)?;
        if !nats.is_empty() {
            draft.put("engine", "nats");
            draft.put("nats.servers", nats.to_vec());
        }
        if self.set.iter().any(|setting| setting.table() == "channel") {
            bail!("--set channel: the channel is the first argument");
        }
        let of_a_bridge = |setting: &&Setting| ["send", "receive"].contains(&setting.table());
        if let Some(Setting { key, .. }) = self.set.iter().find(of_a_bridge).filter(|_| side == Side::Neither)
        {
            bail!("--set {key}: it is for a bridge, and this command runs none: leave it out");
        }
        draft.set(self.set.iter().filter(|setting| side != Side::Receive || !is_of_channel(setting)));
        let mut spec: BridgeSpec = draft.read()?;
        if let Some(nats) = &mut spec.nats
            && nats.account.is_none()
            && nats.accounts().next().is_none()
            && let Some(account) = account_of_environment()?
        {
            let servers = std::mem::take(&mut nats.servers).into_iter();
            nats.servers =
                servers.map(|server: ServerAddress| server.with_account(account.clone())).collect();
        }
        Ok(spec)
    }

    /// The options of `--set` that are settings of the channel. A receiver makes its channel with them.
    pub(super) fn of_channel(&self) -> impl Iterator<Item = &Setting> {
        self.set.iter().filter(|setting| is_of_channel(setting))
    }

    /// Refuses addresses with an account, because every user of a host can read the arguments of a process.
    fn refuse_accounts(&self, nats: &[String]) -> Result<()> {
        let servers = |setting: &Setting| match setting.key.as_str() {
            "nats.servers" => has_account(&setting.value),
            "nats" => setting.value.get("servers").is_some_and(has_account),
            _ => false,
        };
        if nats.iter().any(|text| text.contains('@')) || self.set.iter().any(servers) {
            bail!(
                "an account stands in the address of a server, where every user of this host can read it: write it as USER:PASSWORD \
                 into a file of mode 600 and give --set nats.account=FILE, or set {ACCOUNT_VARIABLE}"
            );
        }
        Ok(())
    }

    /// Returns the table of the bridge of `channel` in `file`. `side` says whether the bridge must send or receive, or may do either.
    fn table_of(&self, file: &Path, channel: &str, side: Side) -> Result<Table> {
        let text = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
        // The daemon's own parser reports mistakes with their positions.
        Config::parse(&text, &file.display().to_string())?;
        let mut root: Table = text.parse().with_context(|| format!("read {}", file.display()))?;
        let Some(Value::Array(bridges)) = root.remove("bridge") else {
            bail!("{}: it has no [[bridge]]", file.display());
        };
        let name = self.set.iter().rfind(|setting| setting.key == "name").map(|setting| &setting.value);
        let fits = |table: &Table| {
            table.get("channel").and_then(Value::as_str) == Some(channel)
                && side.table().is_none_or(|side| table.contains_key(side))
                && name.is_none_or(|name| table.get("name") == Some(name))
        };
        let tables = bridges.into_iter().filter_map(|bridge| match bridge {
            Value::Table(table) if fits(&table) => Some(table),
            _ => None,
        });
        let found: Vec<Table> = tables.collect();
        match (<[Table; 1]>::try_from(found), side) {
            (Ok([table]), _) => Ok(table),
            (Err(found), Side::Neither) if !found.is_empty() => {
                Ok(found.into_iter().next().expect("it has one"))
            }
            (Err(found), _) if found.is_empty() => {
                let what = side.table().map_or_else(String::new, |side| format!(" with [bridge.{side}]"));
                bail!("{}: it has no [[bridge]] of channel {channel:?}{what}", file.display())
            }
            (Err(found), _) => bail!(
                "{}: {} bridges carry channel {channel:?}: choose one by --set name=NAME",
                file.display(),
                found.len()
            ),
        }
    }
}

impl Draft {
    /// Gives a key a list of values, unless the list is empty.
    pub(super) fn put_all<T: ToString>(&mut self, field: &str, values: &[T]) {
        if !values.is_empty() {
            self.put(field, values.iter().map(T::to_string).collect::<Vec<String>>());
        }
    }

    /// Gives the bridge these lines, if there are any. Each line has its group and source. The user can give no interface, one for all
    /// lines, or one for each line.
    pub(super) fn put_lines(
        &mut self,
        groups: &[(SocketAddr, Option<IpAddr>)],
        interfaces: &[String],
    ) -> Result<()> {
        let interfaces = for_each_line("--interface", groups.len(), interfaces)?;
        let lines = groups.iter().zip(interfaces).map(|((group, source), interface)| {
            let mut line = Table::from_iter([("group".to_owned(), Value::from(group.to_string()))]);
            line.extend(interface.map(|interface| ("interface".to_owned(), Value::from(interface))));
            line.extend(source.map(|source| ("source".to_owned(), Value::from(source.to_string()))));
            line
        });
        let lines: Vec<Table> = lines.collect();
        if !lines.is_empty() {
            self.put("line", lines);
        }
        Ok(())
    }
}

/// Whether a setting belongs to the channel, and not to the bridge. No setting of a channel has the same name as a setting of a bridge.
fn is_of_channel(setting: &Setting) -> bool {
    ["capacity", "max_message", "permissions", "board", "gate"].contains(&setting.table())
}

/// Whether one of these addresses contains an account.
fn has_account(servers: &Value) -> bool {
    match servers {
        Value::String(text) => text.contains('@'),
        Value::Array(servers) => servers.iter().any(has_account),
        _ => false,
    }
}

fn account_of_environment() -> Result<Option<Account>> {
    match std::env::var(ACCOUNT_VARIABLE) {
        Ok(text) if text.is_empty() => Ok(None),
        Err(VarError::NotPresent) => Ok(None),
        Ok(text) => Ok(Some(text.parse().with_context(|| format!("${ACCOUNT_VARIABLE}"))?)),
        // The library's own error is not used, because it quotes the value, which is secret.
        Err(VarError::NotUnicode(_)) => bail!("${ACCOUNT_VARIABLE}: not UTF-8"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(set: &[&str]) -> Options {
        let set = set.iter().map(|text| text.parse().expect("it is a setting")).collect();
        Options { config: None, set }
    }

    fn spec(set: &[&str]) -> Result<BridgeSpec> {
        let options = options(set);
        options.finish(options.draft("ticks", Side::Send)?, Side::Send, &[])
    }

    #[test]
    fn fields_are_set_by_their_names_in_a_configuration() {
        let set =
            ["payload_bytes=8900", "send.linger_ms=2_000", "wait=spin", "send.repair.bind=10.0.0.1:30002"];
        let spec = spec(&[&set[..], &[r#"send.repair.allow=["10.0.0.0/24"]"#]].concat()).unwrap();
        let send = spec.send.unwrap();
        assert_eq!((spec.payload_bytes, send.linger_ms), (8900, 2000));
        let repair = send.repair.unwrap();
        assert_eq!((repair.bind.to_string(), repair.allow.len()), ("10.0.0.1:30002".to_owned(), 1));
    }

    #[test]
    fn a_mistake_is_told_with_its_field() {
        for (set, said) in [
            ("send.linger_ms=x", "send.linger_ms: cannot be string \"x\""),
            ("send=1", "send: cannot be integer `1`: write a table, or its entries as send.KEY=VALUE"),
            ("send.from=5", "send.from: cannot be 5: write one of its words: `resume`, `latest`, `oldest`"),
            ("wait=true", "wait: cannot be true: write one of its words: `"),
            ("busy_poll_us=1000000000000", "write a whole number from 0 to 4294967295"),
            ("send.linger_ms=18446744073709551615", "write a whole number from 0 to 9223372036854775807"),
            ("send.lingr_ms=5", "unknown field `lingr_ms`: did you mean `linger_ms`?"),
            ("wait=sometimes", "wait: unknown value `sometimes`"),
            ("receive.gap=block", "receive"),
        ] {
            let error = spec(&[set]).and_then(|spec| match &spec.problems()[..] {
                [] => Ok(()),
                problems => bail!("{problems:?} receive"),
            });
            let error = error.unwrap_err().to_string();
            assert!(error.contains(said), "{set}: {error}");
        }
        let neither = options(&["send.from=oldest"]);
        let draft = neither.draft("ticks", Side::Neither).unwrap();
        let error = neither.finish(draft, Side::Neither, &[]).unwrap_err().to_string();
        assert!(error.contains("--set send.from: it is for a bridge"), "{error}");
        assert!(spec(&["channel=other"]).unwrap_err().to_string().contains("first argument"));
    }

    #[test]
    fn an_account_is_neither_taken_from_the_arguments_nor_shown() {
        for set in
            ["nats.servers=nats://u:secret@host:4222", r#"nats={servers=["nats://u:secret@host:4222"]}"#]
        {
            let error = spec(&["engine=nats", set]).unwrap_err().to_string();
            assert!(error.contains("nats.account=FILE") && !error.contains("secret"), "{error}");
        }
        // An `@` in the path of a file is no account.
        let spec =
            spec(&["engine=nats", "nats.servers=nats://host:4222", "nats.creds=/home/a@b/x.creds"]).unwrap();
        assert_eq!(spec.nats.unwrap().creds, Some("/home/a@b/x.creds".into()));
    }

    #[test]
    fn a_bridge_of_a_configuration_is_chosen_by_channel_side_and_name() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("shmcast.toml");
        let channel = "[[channel]]\nname = \"ticks\"\ncapacity = \"1MiB\"\n";
        let bridge = |name, port| {
            format!(
                "[[bridge]]\nname = \"{name}\"\nchannel = \"ticks\"\npayload_bytes = 1300\nline = [{{ group = \"239.1.2.3:{port}\" }}]\n\
                 [bridge.send]\nttl = 7\n"
            )
        };
        let take = |set: &[&str], side| {
            let options = Options { config: Some(file.clone()), ..options(set) };
            options.draft("ticks", side).and_then(|draft| options.finish(draft, side, &[]))
        };
        fs::write(&file, format!("{channel}max_message = \"1KiB\"\n{}", bridge("one", 1))).unwrap();
        let spec = take(&["send.ttl=9"], Side::Send).unwrap();
        assert_eq!((spec.payload_bytes, spec.send.unwrap().ttl, spec.lines.len()), (1300, 9, 1));
        let said = take(&[], Side::Receive).unwrap_err().to_string();
        assert!(said.contains("no [[bridge]] of channel \"ticks\" with [bridge.receive]"), "{said}");
        let two = format!("{channel}max_message = \"1KiB\"\n{}{}", bridge("one", 1), bridge("two", 2));
        fs::write(&file, two).unwrap();
        let said = take(&[], Side::Send).unwrap_err().to_string();
        assert!(said.contains("2 bridges") && said.contains("--set name=NAME"), "{said}");
        assert_eq!(take(&["name=two"], Side::Send).unwrap().lines[0].group.port(), 2);
    }
}
