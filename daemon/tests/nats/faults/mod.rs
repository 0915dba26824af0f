//! The engine under the faults that break logs: power cuts, damaged files, stopped and killed leaders, partitions, stopped senders.
//!
//! A row of the table is a *cell*. Each run of a cell puts one fault into servers that carry a channel, and a reader at the far end judges
//! every message. A row is red if a message was wrong, came twice, was lost without a report or was given up without need, or if the stream
//! did not continue. `.ci/run engine-faults` plays the short form, and `.ci/run nightly engine-faults` the long one.
//!
//! | variable | meaning |
//! |---|---|
//! | `SHMCAST_ENGINE_FAULTS` | runs of each cell; cells of writers have three times as many |
//! | `SHMCAST_ENGINE_FAULTS_ONLY` | words that the names of cells have, with commas between them |
//! | `SHMCAST_ENGINE_FAULTS_SECONDS` | after this time no run begins |
//! | `SHMCAST_ENGINE_FAULTS_TABLE` | the file for the table |
//! | `SHMCAST_SEED` | the seed of the first run; the next ones follow |

mod cells;
mod judge;
mod line;
mod planted;
mod scar;
mod stage;
mod table;

use cells::{CELLS, Cell};
use shmcast_testkit::nats::program;
use shmcast_testkit::{is_root, number, skip};
use stage::{Plan, Stage};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use table::{Row, Table};

/// The number of cells that are played at the same time. Cells mostly wait for elections.
const LANES: usize = 4;

/// One row while its runs are played.
struct Campaign<'a> {
    server: &'a Path,
    seed: u64,
    runs: u64,
    until: Option<Instant>,
    /// The function that is called after each run.
    show: &'a (dyn Fn(&Row) + Sync),
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without words").to_owned()
}

/// Calls a function. Returns an error if an assertion in it fails.
fn attempt<T>(what: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(what)).unwrap_or_else(|panic| Err(said(&*panic)))
}

impl Campaign<'_> {
    /// Plays all runs of a cell.
    fn play(&self, cell: Cell, plan: Plan) -> Row {
        let mut row = Row::new(cell.name(), self.seed, cell.share(self.runs));
        let mut stage: Option<Stage> = None;
        for run in 0..cell.share(self.runs) {
            if self.until.is_some_and(|until| Instant::now() >= until) {
                break;
            }
            if stage.is_none() || run.is_multiple_of(cell.lasts()) {
                end(stage.take(), &mut row);
                match attempt(|| Stage::start("engine_faults", self.server, plan)) {
                    Ok(made) => stage = Some(made),
                    Err(why) => {
                        row.fail(run, format!("the servers did not begin: {why}"));
                        continue;
                    }
                }
            }
            let Some(playing) = &mut stage else { continue };
            let seed = self.seed + run;
            let mut rng = fastrand::Rng::with_seed(seed);
            let took = attempt(|| cell.play(playing, seed, &mut rng));
            let figures = playing.line.take();
            row.add(run, figures, &took, playing.take_stills());
            if took.is_err() {
                // If a stage is broken, the counts of its bridges are lost.
                stage = None;
            } else if !figures.are_clean() {
                end(stage.take(), &mut row);
            } else if cell.needs_whole() && playing.leader().is_none() {
                row.lag();
                end(stage.take(), &mut row);
            }
            (self.show)(&row);
        }
        end(stage, &mut row);
        (self.show)(&row);
        row
    }
}

fn end(stage: Option<Stage>, row: &mut Row) {
    let Some(stage) = stage else { return };
    let figures = stage.line.take();
    match attempt(|| Ok(stage.end())) {
        Ok((mended, counted)) => row.close(figures, mended, &counted),
        Err(why) => row.fail(row.runs.saturating_sub(1), format!("the bridges did not end well: {why}")),
    }
}

fn chosen() -> Vec<Cell> {
    let only = std::env::var("SHMCAST_ENGINE_FAULTS_ONLY").unwrap_or_default();
    let is_it = |cell: &Cell| only.is_empty() || only.split(',').any(|words| cell.name().contains(words));
    CELLS.into_iter().filter(is_it).collect()
}

/// Returns the server's program if this machine has everything that the cells need. Otherwise prints the reason.
fn needs(test: &str) -> Option<&'static Path> {
    if !is_root() {
        skip(test, "only root can mount disks and make network namespaces");
        return None;
    }
    program(test)
}

#[test]
#[ignore = "a step of CI: engine-faults"]
fn faults_of_the_servers_cost_no_message() {
    let Some(server) = needs("faults_of_the_servers_cost_no_message") else { return };
    let begun = Instant::now();
    let seconds = number("SHMCAST_ENGINE_FAULTS_SECONDS", 0);
    let (seed, runs) = (number("SHMCAST_SEED", 1), number("SHMCAST_ENGINE_FAULTS", 1));
    let cells = chosen();
    assert!(!cells.is_empty(), "no cell has such a name");
    let table = Mutex::new(Table::new(server, cells.iter().map(|cell| cell.name()).collect()));
    let show = |row: &Row| {
        eprintln!("{:6.1} s  {row}", begun.elapsed().as_secs_f64());
        table.lock().unwrap().put(row.clone());
    };
    let until = (seconds > 0).then(|| begun + Duration::from_secs(seconds));
    let campaign = Campaign { server, seed, runs, until, show: &show };
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..LANES.min(cells.len()) {
            scope.spawn(|| {
                while let Some(cell) = cells.get(next.fetch_add(1, Ordering::Relaxed)) {
                    campaign.play(*cell, cell.plan());
                }
            });
        }
    });
    let table = table.into_inner().unwrap();
    println!("{table}");
    assert!(!table.is_red(), "a row of the table is red");
}
