//! `shmcast bridge key`: makes and shows the keys that seal native lines.

use crate::cli::framing::hex;
use crate::cli::say::{note, print, print_json};
use crate::cli::units::now_ns;
use anyhow::{Context, Result, bail};
use serde_json::json;
use shmcast_bridge::read_keys;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLE: &str = "\
Examples:
  shmcast bridge key new /etc/shmcast/ticks.keys
  shmcast bridge key new /etc/shmcast/ticks.keys --from 2026-11-24T07:00:00Z    # one more, which seals from then on
  shmcast bridge key show /etc/shmcast/ticks.keys

Copy the file to all hosts of the group, then reload their daemons. A user who has it can send.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Add a new random key to a keys file, which is created if it does not exist
    #[command(after_help = EXAMPLE)]
    New {
        /// The keys file
        file: PathBuf,
        /// Seal with the key from this time on: a time in UTC, such as 2026-11-24T07:00:00Z [default: at once]
        #[arg(long, value_name = "TIME")]
        from: Option<String>,
        /// Print what was done as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show which keys a file has, but not the keys themselves
    #[command(after_help = EXAMPLE)]
    Show {
        /// The keys file
        file: PathBuf,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    match &args.verb {
        Verb::New { file, from, json } => add(file, from.as_deref(), *json),
        Verb::Show { file, json } => show(file, *json),
    }
}

fn add(file: &Path, from: Option<&str>, json: bool) -> Result<ExitCode> {
    let (before, mut text) = match read_keys(file) {
        Ok(keys) => (keys.keys().last().map_or(0, |key| key.id), std::fs::read_to_string(file)?),
        Err(_) if !file.exists() => (0, String::new()),
        Err(e) => return Err(e.into()),
    };
    let Some(id) = before.checked_add(1) else {
        bail!("{}: ID 255 is taken: remove old keys first", file.display())
    };
    let mut key = [0; 16];
    getrandom::fill(&mut key).context("ask the kernel for a random key")?;
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    write!(text, "{id} {}", hex(&key))?;
    if let Some(from) = from {
        write!(text, " from {from}")?;
    }
    text.push('\n');
    let said = |what: &str| format!("{what} {}", file.display());
    replace(file, text.as_bytes()).with_context(|| said("write"))?;
    if json {
        print_json(&json!({ "file": file, "id": id, "from": from }))?;
    } else {
        note!(
            "{}: added key {id}: copy the file to all hosts of the group, then reload their daemons",
            file.display()
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Replaces a keys file in one step, if `text` is a valid keys file.
fn replace(file: &Path, text: &[u8]) -> Result<()> {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let fresh = file.with_file_name(name);
    let mut out = match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {
            bail!("{}: another key is being added; remove this file if none is", fresh.display())
        }
        opened => opened.with_context(|| format!("make {}", fresh.display()))?,
    };
    let replaced = (|| -> Result<()> {
        out.write_all(text)
            .and_then(|()| out.sync_all())
            .with_context(|| format!("write {}", fresh.display()))?;
        read_keys(&fresh)?;
        std::fs::rename(&fresh, file).with_context(|| format!("put it in the place of {}", file.display()))
    })();
    if replaced.is_err() {
        // An error of the removal is dropped, because the first error is the important one.
        let _ = std::fs::remove_file(&fresh);
    }
    replaced?;
    let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.with_context(|| {
        format!("the key is there, but a power cut may undo it: sync {}", directory.display())
    })
}

fn show(file: &Path, json: bool) -> Result<ExitCode> {
    let keys = read_keys(file)?;
    let now_ns = now_ns();
    let sealing = keys.sealing(now_ns).map(|key| key.id);
    if json {
        let keys: Vec<_> = keys
            .keys()
            .iter()
            .map(|key| json!({ "id": key.id, "from_ns": key.from_ns, "seals": Some(key.id) == sealing }))
            .collect();
        print_json(&json!({ "file": file, "keys": keys }))?;
        return Ok(ExitCode::SUCCESS);
    }
    for key in keys.keys() {
        let state = match key.from_ns {
            _ if Some(key.id) == sealing => "seals and opens".to_owned(),
            from_ns if from_ns > now_ns => {
                format!("opens, and seals in {} s", (from_ns - now_ns) / 1_000_000_000)
            }
            _ => "opens".to_owned(),
        };
        print(format!("{}: {state}", key.id))?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keys_file_is_replaced_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let [file, fresh] = ["keys", "keys.new"].map(|name| dir.path().join(name));
        let [one, two] = ["1 000102030405060708090a0b0c0d0e0f\n", "2 ffeeddccbbaa99887766554433221100\n"];
        replace(&file, one.as_bytes()).unwrap();
        replace(&file, two.as_bytes()).unwrap();
        assert_eq!(read_keys(&file).unwrap().keys()[0].id, 2);

        let error = replace(&file, b"3 ffee\n").unwrap_err().to_string();
        assert!(error.contains("32 hexadecimal digits"), "{error}");
        assert!(!fresh.exists(), "our file of no use is removed");

        std::fs::write(&fresh, "of another program").unwrap();
        let error = replace(&file, one.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("keys.new: another key is being added; remove this file"), "{error}");
        assert_eq!(std::fs::read_to_string(&fresh).unwrap(), "of another program");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), two);
    }
}
