//! `shmcast board`: shows the last message of each key, or of one key. With `--watch`, shows these messages again every second. The verb
//! reads a channel's board, or makes a board from a journal.

use super::figures::{Ns, counted, grouped, table};
use super::journal::open_and_say;
use super::say::{Out, note, print};
use super::set::{Draft, Setting};
use super::stop::Stop;
use super::waiting::View;
use super::{Host, HostArg};
use crate::config::board_key;
use anyhow::{Context, Error, Result, bail};
use serde::Deserialize;
use serde_json::{Value, json};
use shmcast::journal::{Cause, Entry, Loss};
use shmcast::{Board, BoardCounters, BoardEntry, BoardSpec, ChannelError, Clock, RecvError};
use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

/// The table cuts a longer key or value after this many characters.
const SHOWN: usize = 48;
/// The prefix of a key whose bytes are given as hexadecimal digits.
const HEX: &str = "0x";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  shmcast board ticks
  shmcast board ticks EURUSD --json
  shmcast board ticks --watch
  shmcast board --journal /var/lib/shmcast/ticks --set key=0..8

A key is text, or bytes as 0x and hexadecimal digits; a shorter text is filled up with zeros. Values are shown as
text if they are, else as hexadecimal digits. A key that itself begins with 0x is shown and given in hexadecimal digits.

Exit codes: 0 shown, 1 error, or KEY is not on the board, 2 wrong usage. Ctrl-C and SIGTERM end --watch with exit code 0.
With --journal: 130 (Ctrl-C), 143 (SIGTERM) or 129 (SIGHUP) if it came before the end of the journal.
While the channel cannot be read, --watch shows the reason and goes on.")]
pub(super) struct Args {
    /// Name of the channel; none with --journal
    #[arg(required_unless_present = "journal")]
    channel: Option<String>,
    /// Show this key alone
    #[arg(id = "one", value_name = "KEY")]
    one: Option<String>,
    #[command(flatten)]
    host: HostArg,
    /// Show the board again every second, until interrupted
    #[arg(long, conflicts_with = "journal")]
    watch: bool,
    /// Print as JSON, one line a key
    #[arg(long)]
    json: bool,
    /// Read all messages of the journal in this directory, and show the board that they give
    #[arg(long, value_name = "DIR", requires = "set")]
    journal: Option<PathBuf>,
    /// Settings of the board that --journal computes: key=FIRST..END, the bytes of a payload that are its key, such as 0..8;
    /// remove_tag=TAG, messages with this tag remove their key
    #[arg(long, value_name = "KEY=VALUE", requires = "journal")]
    set: Vec<Setting>,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let stop = Stop::listen()?;
    if let Some(journal) = &args.journal {
        if args.one.is_some() {
            bail!("a journal has no channel to name: give KEY alone");
        }
        let board: JournalBoard = Draft::of(&args.set).read()?;
        return show_journal(args, journal, board.spec()?, &stop);
    }
    let channel = args.channel.as_deref().unwrap_or_default();
    let (host, name) = match args.host.host_of(channel) {
        Err(_) if args.watch && stop.is_set() => return Ok(ExitCode::SUCCESS),
        found => found?,
    };
    let mut view = View::new(&name, args.json, &stop);
    let mut board = None;
    loop {
        let now = Instant::now();
        match look(args, &host, &name, &mut board, if args.watch { view.clear() } else { "" }) {
            Ok(false) if !args.watch => bail!("{name}: the board does not have this key"),
            Ok(_) => view.shown(),
            Err(e) if args.watch && is_of_channel(&e) => view.fail(e)?,
            Err(e) => return Err(e),
        }
        if !args.watch || !view.wait(now) {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// Shows the board, or one key. `board` holds the open board between two calls. If the channel was removed or made again since the last
/// call, opens the board again.
fn look(args: &Args, host: &Host, name: &str, board: &mut Option<Board>, clear: &str) -> Result<bool> {
    let is_kept = board.is_some();
    let mut open = match board.take() {
        Some(kept) => kept,
        None => host.subscriber(name).open_board()?,
    };
    let shown = match &args.one {
        Some(key) => show_key(args, &mut open, key),
        None => show_all(args, name, &mut open, clear),
    };
    match shown {
        Err(e) if is_kept && is_of_channel(&e) => look(args, host, name, board, clear),
        shown => {
            *board = shown.is_ok().then_some(open);
            shown
        }
    }
}

/// Whether the error says that the channel cannot be read now. Any other error is about the output or about a wrong key.
fn is_of_channel(error: &Error) -> bool {
    error.is::<ChannelError>() || error.is::<RecvError>()
}

/// Returns the bytes of a key that the user gave as text. The bytes are padded with zeros to the length of the board's keys.
fn key_bytes(text: &str, length: usize) -> Result<Vec<u8>> {
    let mut bytes = match text.strip_prefix(HEX) {
        Some(digits) => from_hex(digits).with_context(|| {
            let bytes = hex(text.as_bytes());
            format!("{text:?}: after 0x come pairs of hexadecimal digits; the key of these characters is {HEX}{bytes}")
        })?,
        None => text.as_bytes().to_vec(),
    };
    if bytes.len() > length {
        bail!("{text:?} has {} bytes, and the keys of this board have {length}", bytes.len());
    }
    bytes.resize(length, 0);
    Ok(bytes)
}

fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    if rest.is_empty() { pairs.iter().map(byte).collect() } else { None }
}

fn show_key(args: &Args, board: &mut Board, key: &str) -> Result<bool> {
    let key = key_bytes(key, board.spec().key().len())?;
    let (clock, range) = (board.clock(), board.spec().key());
    let Some(entry) = board.get(&key)? else { return Ok(false) };
    let mut out = Out::stdout()?;
    if args.json {
        writeln!(out, "{}", json_of(&entry, &range, Some(&clock)))?;
    } else {
        let mut facts = table(["KEY", &key_text(entry.key)], 2);
        let row = Row::of(&entry, Some(&clock), usize::MAX);
        for (name, fact) in [
            ("value", row.value),
            ("bytes", row.bytes),
            ("sequence", row.sequence),
            ("messages", row.count),
            ("tag", row.tag),
            ("age", row.age),
        ] {
            facts.add_row([name.to_owned(), fact]);
        }
        writeln!(out, "{}", facts.trim_fmt())?;
    }
    out.flush()?;
    Ok(true)
}

fn show_all(args: &Args, name: &str, board: &mut Board, clear: &str) -> Result<bool> {
    let (clock, range, spec) = (board.clock(), board.spec().key(), board.spec());
    let counters = board.counters();
    let entries = sorted(board)?;
    if args.json {
        let mut out = Out::stdout()?;
        for entry in &entries {
            writeln!(out, "{}", json_of(entry, &range, Some(&clock)))?;
        }
        out.flush()?;
        return Ok(true);
    }
    let rows = entries.iter().map(|entry| Row::of(entry, Some(&clock), SHOWN));
    print(format_args!("{clear}{}\n\n{}", rows_table(rows), summary(name, entries.len(), spec, &counters)))?;
    Ok(true)
}

/// Returns a line about the board: the number of its keys, the most keys that it can have, and the messages that it left out.
fn summary(name: &str, keys: usize, spec: BoardSpec, counters: &BoardCounters) -> String {
    let mut text = format!(
        "{name}: {} of {}, up to sequence {}",
        counted(keys, "key"),
        grouped(spec.room().0),
        grouped(counters.through)
    );
    if counters.since > 1 {
        text += &format!(", from sequence {} on", grouped(counters.since));
    }
    let left_out = [
        (counters.refused, "of keys that found no room"),
        (counters.too_large, "too large for the board"),
        (counters.no_key, "without a key"),
    ];
    for (count, why) in left_out.into_iter().filter(|(count, _)| *count > 0) {
        text += &format!("; {} {why}", counted(count as usize, "message"));
    }
    text
}

/// A row of the table: one key with its last message.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) key: String,
    pub(super) value: String,
    pub(super) bytes: String,
    pub(super) sequence: String,
    pub(super) count: String,
    pub(super) tag: String,
    pub(super) age: String,
}

/// Returns the rows of all keys, in the order of the keys.
///
/// # Errors
/// If the board cannot be read now.
#[cfg(feature = "top")]
pub(super) fn rows_of(board: &mut Board) -> Result<Vec<Row>> {
    let clock = board.clock();
    Ok(sorted(board)?.iter().map(|entry| Row::of(entry, Some(&clock), SHOWN)).collect())
}

/// All keys with their newest messages, in the order of the keys.
fn sorted(board: &mut Board) -> Result<Vec<BoardEntry<'_>>> {
    let mut entries: Vec<BoardEntry<'_>> = board.entries()?.collect();
    entries.sort_unstable_by_key(|entry| entry.key);
    Ok(entries)
}

impl Row {
    fn of(entry: &BoardEntry<'_>, clock: Option<&Clock>, most: usize) -> Self {
        let BoardEntry { key, message, sequence, count } = *entry;
        let value =
            message.map_or_else(|| "(not on the board)".to_owned(), |m| shortened(&text_of(m.payload), most));
        let age = message.and_then(|m| m.latency_ns(clock?));
        Self {
            key: shortened(&key_text(key), most),
            value,
            bytes: message.map_or_else(|| "-".to_owned(), |m| grouped(m.payload.len() as u64)),
            sequence: grouped(sequence),
            count: grouped(count),
            tag: message.map_or_else(|| "-".to_owned(), |m| m.tag.to_string()),
            age: age.map_or_else(|| "-".to_owned(), |ns| Ns(ns).to_string()),
        }
    }
}

fn rows_table(rows: impl Iterator<Item = Row>) -> String {
    let mut table = table(["KEY", "VALUE", "BYTES", "SEQUENCE", "MESSAGES", "TAG", "AGE"], 2);
    for Row { key, value, bytes, sequence, count, tag, age } in rows {
        table.add_row([key, value, bytes, sequence, count, tag, age]);
    }
    table.trim_fmt()
}

/// Returns bytes in a readable form. If the bytes before the final zeros are printable, returns them as text. Otherwise returns all bytes
/// as hexadecimal digits.
fn text_of(bytes: &[u8]) -> String {
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    match std::str::from_utf8(&bytes[..end]) {
        Ok(text) if !text.is_empty() && !text.chars().any(char::is_control) => text.to_owned(),
        _ => HEX.to_owned() + &hex(bytes),
    }
}

/// Formats a key so that [`key_bytes`] reads the same key back. A text that begins with `0x` becomes hexadecimal digits.
fn key_text(key: &[u8]) -> String {
    match text_of(key) {
        text if text.starts_with(HEX) => HEX.to_owned() + &hex(key),
        text => text,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn json_of(entry: &BoardEntry<'_>, range: &Range<usize>, clock: Option<&Clock>) -> Value {
    let BoardEntry { key, message, sequence, count } = *entry;
    let mut line = json!({
        "key": key_text(key), "key_hex": hex(key), "sequence": sequence, "messages": count,
        "is_there": message.is_some(),
    });
    if let Some(m) = message {
        line["payload"] = json!(String::from_utf8_lossy(m.payload));
        line["value_hex"] = json!(hex(m.payload.get(range.end..).unwrap_or_default()));
        line["bytes"] = json!(m.payload.len());
        line["tag"] = json!(m.tag);
        line["age_ns"] = json!(clock.and_then(|clock| m.latency_ns(clock)));
    }
    line
}

/// The settings of a board that is computed from a journal. The board has room for all keys, and for messages of any size.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JournalBoard {
    #[serde(deserialize_with = "board_key")]
    key: Range<usize>,
    #[serde(default)]
    remove_tag: Option<u16>,
}

impl JournalBoard {
    /// # Errors
    /// If a board cannot have keys of this range.
    fn spec(self) -> Result<BoardSpec> {
        let board = BoardSpec::new(self.key);
        let board = self.remove_tag.map_or(board, |tag| board.remove_tag(tag));
        board.bytes()?;
        Ok(board)
    }
}

/// The newest message of a key in a journal. If the key was removed, its count of messages stays, as on a channel's board.
struct Kept {
    sequence: u64,
    tag: u16,
    count: u64,
    is_removed: bool,
    payload: Vec<u8>,
}

/// A board that is computed from a journal: the last message of each key. The number of keys has no limit.
struct KeptBoard {
    spec: BoardSpec,
    keys: BTreeMap<Vec<u8>, Kept>,
}

impl KeptBoard {
    fn post(&mut self, sequence: u64, tag: u16, payload: &[u8]) {
        let Some(key) = self.spec.key_of(payload) else { return };
        let is_removed = self.spec.is_removal(payload, tag);
        let count = match self.keys.get(key) {
            Some(kept) => kept.count + 1,
            None if is_removed => return, // there is nothing to remove
            None => 1,
        };
        let payload = payload.to_vec();
        self.keys.insert(key.to_vec(), Kept { sequence, tag, count, is_removed, payload });
    }

    /// The keys that were not removed.
    fn living(&self) -> impl Iterator<Item = (&Vec<u8>, &Kept)> {
        self.keys.iter().filter(|(_, kept)| !kept.is_removed)
    }
}

/// Reads a whole journal into a board. Returns the board, the first and the last sequence, the number of lost messages, and the number of
/// sequences that the channel skipped because a journal had reserved them.
fn read_journal(dir: &Path, spec: BoardSpec, stop: &Stop) -> Result<(KeptBoard, [u64; 2], [u64; 2])> {
    let journal = open_and_say(dir)?;
    let mut reader = journal.read_from(1)?;
    let first = reader.due();
    let mut board = KeptBoard { spec, keys: BTreeMap::new() };
    let (mut lost, mut skipped, mut last) = (0, 0, 0);
    while let Some(entry) = reader.next()? {
        if let Entry::Message(m) = &entry {
            last = m.sequence;
            board.post(m.sequence, m.tag, m.payload);
        }
        match entry.missing() {
            Some(Loss { from, to, cause: Cause::Reserve }) => skipped += to - from + 1,
            Some(loss) => lost += loss.to - loss.from + 1,
            None => {}
        }
        if stop.is_set() {
            return Err(stop
                .interrupted(format!("{}: INTERRUPTED at sequence {last}", dir.display()))
                .into());
        }
    }
    Ok((board, [first, last], [lost, skipped]))
}

/// Shows the board of a journal.
fn show_journal(args: &Args, dir: &Path, spec: BoardSpec, stop: &Stop) -> Result<ExitCode> {
    let range = spec.key();
    let (board, [first, last], [lost, skipped]) = read_journal(dir, spec, stop)?;
    // With --journal, the command line has no channel, so the first argument is the key.
    let one = args.channel.as_ref().map(|key| key_bytes(key, range.len())).transpose()?;
    let entry_of = |(key, kept): (&Vec<u8>, &Kept)| -> (Vec<u8>, Value, Row) {
        let Kept { sequence, tag, count, ref payload, .. } = *kept;
        let message = shmcast::Message { payload, sequence, tag, key: false, time: 0, conflated: None };
        let entry = BoardEntry { key, message: Some(message), sequence, count };
        (key.clone(), json_of(&entry, &range, None), Row::of(&entry, None, SHOWN))
    };
    let shown: Vec<_> =
        board.living().filter(|(key, _)| one.as_ref().is_none_or(|one| one == *key)).map(entry_of).collect();
    if one.is_some() && shown.is_empty() {
        bail!("{}: the journal does not have this key", dir.display());
    }
    if args.json {
        let mut out = Out::stdout()?;
        for (_, line, _) in &shown {
            writeln!(out, "{line}")?;
        }
        out.flush()?;
    } else {
        print(format_args!("{}", rows_table(shown.into_iter().map(|(_, _, row)| row))))?;
    }
    if !args.json || first > 1 || lost + skipped > 0 {
        // If the journal's oldest files were removed, the board lacks each key whose messages were all in removed files.
        let from = if first > 1 { format!("from sequence {} on, ", grouped(first)) } else { String::new() };
        let mut left_out = String::new();
        if lost > 0 {
            left_out += &format!("; {} are missing", counted(lost as usize, "message"));
        }
        if skipped > 0 {
            left_out += &format!("; reserves of {} sequences are skipped", grouped(skipped));
        }
        note!(
            "{}: {}, {from}up to sequence {}{left_out}",
            dir.display(),
            counted(board.living().count(), "key"),
            grouped(last)
        );
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_given_as_they_are_shown() {
        for bytes in
            [&b"EURUSD\0\0"[..], b"\0\0\0\0\0\0\0\x07", b"\xff\xfe\0\0\0\0\0\0", b"12345678", &[0; 8]]
        {
            assert_eq!(key_bytes(&key_text(bytes), 8).unwrap(), bytes, "{}", key_text(bytes));
        }
        for text in ["0x", "0xab", "0xAB12", "0xzz", "0x1"] {
            let mut bytes = text.as_bytes().to_vec();
            bytes.resize(8, 0);
            assert_eq!(key_bytes(&key_text(&bytes), 8).unwrap(), bytes, "{text}");
        }
        assert_eq!(text_of(b"EURUSD\0\0"), "EURUSD");
        assert_eq!(text_of(b"a\nb"), "0x610a62");
        assert!(
            key_bytes("123456789", 8).is_err()
                && key_bytes("0x1", 8).is_err()
                && key_bytes("0xzz", 8).is_err()
        );
        assert_eq!(shortened("abcdef", 3), "abc…");
    }
}
