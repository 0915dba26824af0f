//! The table of the faults, as text and as Markdown.

use super::judge::Figures;
use shmcast_testkit::nats::version;
use std::fmt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The meaning of the columns.
const WORDS: &str = "\
The columns count messages at the far end. *Wrong*: never published with this sequence, or named lost though it came. *Twice*: came before.
*Silent*: did not come, and no gap names it. *Needless*: a gap names it, and the sender's ring has it. *Mended*: the servers had acknowledged it
and lost it, or the stream lacked it, and it came all the same. *Named*: a gap names it, and nobody has it.

The longest time counts from the moment from which the servers could serve again, and ends when the far end has what was published by
then. *Stood still*: runs after which the servers had no leader or no majority for 45 s, by their own word, so that the stream was removed
by `shmcast bridge stream rm` and the sender made it again. Such runs are judged like the others, and their time is not in the longest one.
*Copies behind*: runs after which the stream went on, and a server had no whole copy 30 s later. A row is red if any of the first four is not
0, if the stream did not go on within two minutes, or if no run was played. It is short if time was over before the last run.";

/// The results of the runs of one cell.
#[derive(Debug, Clone)]
pub(super) struct Row {
    name: String,
    seed: u64,
    pub(super) runs: u64,
    /// The number of requested runs.
    wanted: u64,
    pub(super) figures: Figures,
    mended: u64,
    longest: Duration,
    /// The number of runs after which the servers reported that they could not continue the stream, until it was removed.
    stills: u64,
    /// The number of runs after which a server had no whole copy for half a minute, although the stream continued.
    lagging: u64,
    /// The errors of runs after which the stream did not continue, or a program failed.
    pub(super) failures: Vec<String>,
    /// The counters of the bridges after a run that turned the row red.
    counted: Vec<String>,
}

impl Row {
    pub(super) fn new(name: String, seed: u64, wanted: u64) -> Row {
        Row {
            name,
            seed,
            runs: 0,
            wanted,
            figures: Figures::default(),
            mended: 0,
            longest: Duration::ZERO,
            stills: 0,
            lagging: 0,
            failures: Vec::new(),
            counted: Vec::new(),
        }
    }

    /// Adds a run: the reader's counts, and the time until the stream continued, or the reason why it did not.
    pub(super) fn add(&mut self, run: u64, figures: Figures, took: &Result<Duration, String>, stills: u64) {
        self.runs += 1;
        self.figures.add(figures);
        if !figures.are_clean() {
            self.failures.push(format!("seed {}: {figures:?}", self.seed + run));
        }
        match took {
            Ok(_) if stills > 0 => self.stills += 1,
            Ok(took) => self.longest = self.longest.max(*took),
            Err(why) => self.fail(run, why.clone()),
        }
    }

    /// Adds the counts that came after the last run of some servers.
    pub(super) fn close(&mut self, figures: Figures, mended: u64, counted: &str) {
        self.figures.add(figures);
        self.mended += mended;
        if !self.figures.are_clean() {
            eprintln!("{}: the bridges counted {counted}", self.name);
            self.counted.push(format!("the bridges counted {counted}"));
        }
    }

    /// Notes that a server had no whole copy for half a minute after the last run.
    pub(super) fn lag(&mut self) {
        self.lagging += 1;
    }

    pub(super) fn fail(&mut self, run: u64, why: String) {
        eprintln!("{}, seed {}: {why}", self.name, self.seed + run);
        self.failures.push(format!("seed {}: {why}", self.seed + run));
    }

    pub(super) fn is_red(&self) -> bool {
        !self.figures.are_clean() || !self.failures.is_empty() || self.runs == 0
    }

    fn verdict(&self) -> String {
        match self {
            _ if self.is_red() => format!("RED, {}", self.failures.len()),
            _ if self.runs < self.wanted => format!("short of {}", self.wanted),
            _ => "green".to_owned(),
        }
    }

    fn seeds(&self) -> String {
        format!("{} to {}", self.seed, self.seed + self.runs.max(1) - 1)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Figures { wrong, twice, silent, needless, named } = self.figures;
        write!(
            f,
            "| {} | {} | {} | {wrong} | {twice} | {silent} | {needless} | {} | {named} | {:.1} s | {} | {} | {} |",
            self.name,
            self.runs,
            self.seeds(),
            self.mended,
            self.longest.as_secs_f64(),
            self.stills,
            self.lagging,
            self.verdict()
        )
    }
}

pub(super) struct Table {
    server: String,
    date: String,
    commit: String,
    names: Vec<String>,
    rows: Vec<Row>,
}

impl Table {
    /// Makes a table whose rows are in the order of these names.
    pub(super) fn new(server: &Path, names: Vec<String>) -> Table {
        let date = said_by("date", &["+%Y-%m-%d"]);
        let commit = said_by("git", &["rev-parse", "--short", "HEAD"]);
        Table { server: version(server), date, commit, names, rows: Vec::new() }
    }

    /// Replaces the earlier row of the same name. Then writes the table to the file that `SHMCAST_ENGINE_FAULTS_TABLE` names.
    pub(super) fn put(&mut self, row: Row) {
        self.rows.retain(|known| known.name != row.name);
        self.rows.push(row);
        self.rows.sort_by_key(|row| self.names.iter().position(|name| *name == row.name));
        if let Some(file) = std::env::var_os("SHMCAST_ENGINE_FAULTS_TABLE") {
            let next = Path::new(&file).with_extension("next");
            std::fs::write(&next, self.to_string()).unwrap();
            std::fs::rename(next, file).unwrap();
        }
    }

    pub(super) fn is_red(&self) -> bool {
        self.rows.iter().any(Row::is_red)
    }
}

/// The output of a program; empty if the program does not run.
fn said_by(program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).output();
    output.map_or_else(|_| String::new(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Table { date, server, commit, .. } = self;
        writeln!(
            f,
            "# Engine faults\n\n{date}. nats-server {server}, commit {commit}. `.ci/run nightly engine-faults` makes this file.\n"
        )?;
        writeln!(f, "{WORDS}\n")?;
        writeln!(
            f,
            "| fault | runs | seeds | wrong | twice | silent | needless | mended | named | longest time until the stream went on | stood still | copies behind | |"
        )?;
        writeln!(f, "|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|")?;
        self.rows.iter().try_for_each(|row| writeln!(f, "{row}"))?;
        let has_words = |row: &&Row| !row.failures.is_empty() || !row.counted.is_empty();
        let failures: Vec<_> = self.rows.iter().filter(has_words).collect();
        if !failures.is_empty() {
            writeln!(f, "\n## What failed\n")?;
        }
        for row in failures {
            for failure in row.failures.iter().chain(&row.counted) {
                writeln!(f, "- {}, {failure}", row.name)?;
            }
        }
        Ok(())
    }
}

#[test]
fn a_row_is_red_if_anything_is_wrong_and_green_otherwise() {
    let row = || Row::new("a fault".to_owned(), 4, 1);
    let took = Ok(Duration::from_secs(3));
    let mut green = row();
    green.add(0, Figures { named: 5, ..Figures::default() }, &took, 0);
    green.close(Figures::default(), 7, "");
    assert!(!green.is_red());
    assert_eq!(green.to_string(), "| a fault | 1 | 4 to 4 | 0 | 0 | 0 | 0 | 7 | 5 | 3.0 s | 0 | 0 | green |");
    let mut red = row();
    red.add(0, Figures::default(), &took, 0);
    red.add(1, Figures { silent: 1, ..Figures::default() }, &took, 0);
    assert!(red.is_red());
    assert_eq!(red.to_string(), "| a fault | 2 | 4 to 5 | 0 | 0 | 1 | 0 | 0 | 0 | 3.0 s | 0 | 0 | RED, 1 |");
    let mut short = Row::new("a fault".to_owned(), 4, 2);
    assert!(short.is_red(), "no run was played");
    short.add(0, Figures::default(), &took, 0);
    assert_eq!((short.is_red(), short.verdict().as_str()), (false, "short of 2"));
    let mut late = row();
    late.close(Figures { twice: 1, ..Figures::default() }, 0, "7 blocks");
    let mut still = row();
    still.add(0, Figures::default(), &Err("it stands".to_owned()), 0);
    assert!(late.is_red() && still.is_red());
    let mut table = Table {
        server: String::new(),
        date: String::new(),
        commit: String::new(),
        names: vec![],
        rows: vec![],
    };
    table.rows.extend([green, late]);
    let shown = table.to_string();
    assert_eq!(shown.matches("the bridges counted").count(), 1, "{shown}");
    assert!(shown.ends_with("- a fault, the bridges counted 7 blocks\n"), "{shown}");
}
