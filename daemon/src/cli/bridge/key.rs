//! `shmcast bridge key`: makes and shows the keys that native lines are sealed with.

use crate::cli::say::{note, print, print_json};
use anyhow::{Context, Result, bail};
use serde_json::json;
use shmcast_bridge::read_keys;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
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
    /// Add a new random key to a keys file, which is made if it is not there
    #[command(after_help = EXAMPLE)]
    New {
        /// The keys file
        file: PathBuf,
        /// Seal with the key from this moment on: a time in UTC, as in 2026-11-24T07:00:00Z [default: at once]
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
    std::fs::File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut key))
        .context("read /dev/urandom")?;
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    write!(text, "{id} ")?;
    key.iter().try_for_each(|byte| write!(text, "{byte:02x}"))?;
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

// Puts a file in the place of another at once, if its text is that of keys.
fn replace(file: &Path, text: &[u8]) -> Result<()> {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let fresh = file.with_file_name(name);
    let written = (|| {
        let mut out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
        out.write_all(text)?;
        out.sync_all()
    })();
    let checked = written.map_err(anyhow::Error::from).and_then(|()| {
        read_keys(&fresh)?;
        std::fs::rename(&fresh, file)?;
        Ok(())
    });
    if checked.is_err() && !written_by_others(&checked) {
        let _ = std::fs::remove_file(&fresh);
    }
    checked
}

// Whether another program is writing the file at this moment.
fn written_by_others(result: &Result<()>) -> bool {
    let kind = result.as_ref().err().and_then(|e| e.downcast_ref::<io::Error>()).map(io::Error::kind);
    kind == Some(io::ErrorKind::AlreadyExists)
}

fn show(file: &Path, json: bool) -> Result<ExitCode> {
    let keys = read_keys(file)?;
    let now_ns = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_nanos() as u64;
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
