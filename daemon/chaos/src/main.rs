//! `shmcast-chaos` plays random stories with the real processes. It reports every case in which shmcast does not do what it promises.

use anyhow::{Context, Result};
use clap::Parser;
use shmcast_chaos::campaign::{Plan, Played, play_all, play_one};
use shmcast_chaos::faults;
use shmcast_chaos::matrix;
use shmcast_chaos::report::Report;
use shmcast_chaos::run::Programs;
use shmcast_chaos::shrink::shrink;
use shmcast_chaos::story::{PROFILES, Profile, Story};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const EXAMPLES: &str = "\
Examples:
  cargo build -p shmcast-daemon -p shmcast-chaos
  shmcast-chaos --seeds 200                      200 stories of all profiles, with new seeds
  shmcast-chaos --seed 42 --only strict          the one story of this seed, and what is wrong with it
  shmcast-chaos --story kept.story --shrink      a kept story, made shorter while it fails in the same way
  shmcast-chaos --minutes 60 --only files,daemon
  shmcast-chaos --seeds 100 --only journal       recorders that die, and readers that go on in the past
  shmcast-chaos --seeds 100 --only hosts         senders that take over from each other, between network namespaces
  shmcast-chaos --testee ./testee-c --testee 'java -cp shmcast.jar:. Testee'
  shmcast-chaos --seeds 2000 --pairs             few stories: one for each feature that meets an event
  shmcast-chaos faults                           mended faults are put back, and must be found

The programs shmcastd and shmcast are those beside this one. As root more can be done to them.
Exit codes: 0 all well, 1 something must not have happened, 2 wrong usage or it could not be played.";

/// Plays random stories with the real processes of shmcast, and reports what must not have happened.
#[derive(Debug, Parser)]
#[command(name = "shmcast-chaos", version, after_help = EXAMPLES, max_term_width = 110)]
#[command(args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// The seed of the first story [default: a new one for each run]
    #[arg(long)]
    seed: Option<u64>,
    /// How many stories [default: 1 with --seed, else 100]
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
    /// Begin no story after this many minutes
    #[arg(long, value_name = "M", conflicts_with = "seeds")]
    minutes: Option<f64>,
    /// Only stories of these profiles
    #[arg(long, value_name = "PROFILES", value_delimiter = ',')]
    only: Vec<Profile>,
    /// Play this saved story
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seed", "seeds", "minutes", "only"])]
    story: Option<PathBuf>,
    /// Print the story of the seed, and do not play it
    #[arg(long, requires = "seed")]
    print: bool,
    /// How many stories are played at a time
    #[arg(long, value_name = "N", default_value_t = 4)]
    at_a_time: usize,
    /// Make the first failing story shorter, and print it
    #[arg(long)]
    shrink: bool,
    /// Spend at most this many seconds on making the story shorter
    #[arg(long, value_name = "S", default_value_t = 180)]
    shrink_time: u64,
    /// Stop after this many stories that failed
    #[arg(long, value_name = "N", default_value_t = 5)]
    failures: usize,
    /// Leave out stories that play no new pair of a feature and an event
    #[arg(long, conflicts_with = "story")]
    pairs: bool,
    /// Say how often each pair of steps met in one story
    #[arg(long)]
    coverage: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// Keep stories that fail in this directory
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Keep the logs of the story even if it does not fail, and print where they are
    #[arg(long, requires = "story")]
    keep_logs: bool,
    /// Where stories are played
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    under: PathBuf,
    /// Where the programs are [default: beside this program]
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
    /// The command that starts a testee of client/conformance. Quote the command as one argument; repeat the option for several languages.
    /// Some readers are then in these languages
    #[arg(long = "testee", value_name = "COMMAND")]
    testees: Vec<String>,
    /// Plant this fault again, in programs built with RUSTFLAGS="--cfg shmcast_faults"
    #[arg(long, value_name = "NAME")]
    fault: Option<String>,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Plants corrected mistakes again, one at a time, and plays the stories that must find them
    Faults(Faults),
    /// Writes MATRIX.md, and reports what is wrong with the matrix of features and events
    Matrix {
        /// Play nothing; print the profiles whose stories play this event together with this feature, each with its first seed
        #[arg(long, num_args = 2, value_names = ["FEATURE", "EVENT"])]
        pair: Option<Vec<String>>,
    },
}

#[derive(Debug, clap::Args)]
struct Faults {
    /// Only these faults
    names: Vec<String>,
    /// For each fault without a story in the list, search for a story that finds it, and write the story to the list
    #[arg(long)]
    find: bool,
    /// How many stories of each profile are tried
    #[arg(long, value_name = "N", default_value_t = 200)]
    stories: u64,
    /// Only stories of these profiles
    #[arg(long, value_name = "PROFILES", value_delimiter = ',')]
    only: Vec<Profile>,
    /// Where programs with the faults in them are built
    #[arg(long, value_name = "DIR", default_value = "target/faults")]
    target_dir: PathBuf,
    /// Where stories are played
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    under: PathBuf,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    // The runner starts this program as an actor with this argument. The argument is not for people.
    if arguments.next().is_some_and(|first| first == "actor") {
        let log = arguments.next().map(PathBuf::from).unwrap_or_default();
        return exit_code(shmcast_chaos::actor::play(&log).map(|()| true));
    }
    exit_code(run(&Cli::parse()))
}

fn exit_code(result: Result<bool>) -> ExitCode {
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("shmcast-chaos: {e:#}");
            ExitCode::from(2)
        }
    }
}

/// Does what the command line asks for. Returns false if something must be reported as a failure.
fn run(cli: &Cli) -> Result<bool> {
    match &cli.verb {
        Some(Verb::Faults(faults)) if faults.find => return find_faults(faults),
        Some(Verb::Faults(faults)) => return verify_faults(faults),
        Some(Verb::Matrix { pair: Some(pair) }) => return Ok(tell_of_pair(&pair[0], &pair[1])),
        Some(Verb::Matrix { pair: None }) => return matrix::write().map(|()| true),
        None => {}
    }
    let profiles = if cli.only.is_empty() { possible_profiles() } else { cli.only.clone() };
    if let (true, Some(seed)) = (cli.print, cli.seed) {
        print!("{}", shmcast_chaos::generate::story(seed, profiles[0]).to_text());
        return Ok(true);
    }
    let mut programs = match &cli.programs {
        Some(dir) => Programs::in_dir(dir)?,
        None => Programs::beside_this()?,
    };
    programs.fault.clone_from(&cli.fault);
    programs.testees.clone_from(&cli.testees);
    let mut report = Report::default();
    let mut failed: Vec<Played> = Vec::new();
    let mut played_all = Ok(());
    if let Some(path) = &cli.story {
        let keeps = |found: &[_]| cli.keep_logs || !found.is_empty();
        let played = play_one(Story::load(path)?, &programs, &cli.under, keeps)?;
        if let (true, Some(kept)) = (cli.keep_logs, &played.kept) {
            eprintln!("logs: {}", kept.join("logs").display());
        }
        report.add(&played);
        tell(cli, &played);
        failed.extend(Some(played).filter(|played| !played.violations.is_empty()));
    } else {
        played_all = play_all(&plan(cli, profiles), &programs, |played| {
            report.add(&played);
            tell(cli, &played);
            progress(cli, &report);
            if !played.violations.is_empty() {
                failed.push(played);
            }
            failed.len() < cli.failures
        });
    }
    if cli.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print!("{}", report.text());
    }
    if cli.coverage {
        print!("{}", report.coverage());
    }
    for played in &failed {
        keep(cli, &played.story)?;
    }
    if let (true, Some(first)) = (cli.shrink, failed.first()) {
        make_shorter(cli, first, &programs)?;
    }
    // The report of the stories that were played is printed before an error.
    played_all?;
    Ok(failed.is_empty())
}

/// For each profile, prints the first seed whose story plays the event together with the feature. Returns whether such a seed exists.
fn tell_of_pair(feature: &str, event: &str) -> bool {
    let found = matrix::first_stories(feature, event);
    for (profile, seed) in &found {
        println!("--only {} --seed {seed}", format!("{profile:?}").to_lowercase());
    }
    !found.is_empty()
}

/// Returns all profiles that can be played on this machine.
fn possible_profiles() -> Vec<Profile> {
    let mut profiles = PROFILES.to_vec();
    if !shmcast_chaos::run::is_possible() {
        eprintln!(
            "shmcast-chaos: SKIPPED stories of hosts: no network namespaces, which need root and the command ip"
        );
        profiles.retain(|profile| *profile != Profile::Hosts);
    }
    profiles
}

/// Plays the stories of the listed faults. Returns whether each story finds its fault.
fn verify_faults(cli: &Faults) -> Result<bool> {
    let programs = faults::build(&std::path::absolute(&cli.target_dir)?)?;
    let mut all = true;
    for fault in faults::list()? {
        if !cli.names.is_empty() && !cli.names.contains(&fault.name) {
            continue;
        }
        match faults::verify(&fault, &programs, &cli.under)? {
            None => println!("{}: found by {}", fault.name, fault.test.unwrap_or_default()),
            Some(Some(violation)) => println!("{}: found: {violation}", fault.name),
            Some(None) => {
                println!("{}: NOT FOUND by its story", fault.name);
                all = false;
            }
        }
    }
    Ok(all)
}

/// Searches for missing stories, and writes the list of faults. Returns whether each fault has a story or a test.
fn find_faults(cli: &Faults) -> Result<bool> {
    let programs = faults::build(&std::path::absolute(&cli.target_dir)?)?;
    let mut known = faults::list()?;
    let mut all = true;
    for name in faults::in_tree()? {
        let is_wanted =
            cli.names.contains(&name) || cli.names.is_empty() && !known.iter().any(|f| f.name == name);
        if !is_wanted {
            continue;
        }
        match faults::find(&name, &programs, &cli.under, cli.stories, &cli.only)? {
            Some(found) => {
                println!("{name}: found by --only {:?} --seed {}", found.profile, found.seed.unwrap_or(0));
                known.retain(|fault| fault.name != name);
                known.push(found);
                let path = faults::package().join("faults.toml");
                std::fs::write(path, faults::to_text(&known)).context("write faults.toml")?;
            }
            None => {
                println!("{name}: NOT FOUND by {} stories of each profile", cli.stories);
                all = false;
            }
        }
    }
    Ok(all)
}

fn plan(cli: &Cli, profiles: Vec<Profile>) -> Plan {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seed = cli.seed.unwrap_or(now.as_millis() as u64 % 1_000_000_000);
    let time = cli.minutes.map(|minutes| Duration::from_secs_f64(minutes * 60.0));
    let seeds = match (cli.seeds, time) {
        (None, None) => Some(if cli.seed.is_some() { 1 } else { 100 }),
        (seeds, _) => seeds,
    };
    let names: Vec<String> = profiles.iter().map(|profile| format!("{profile:?}").to_lowercase()).collect();
    eprintln!("shmcast-chaos: seeds from {seed} on, profiles {}", names.join(","));
    let (at_a_time, under) = (cli.at_a_time.max(1), cli.under.clone());
    Plan { seed, seeds, time, profiles, pairs: cli.pairs, at_a_time, under }
}

fn tell(cli: &Cli, played: &Played) {
    let Some(first) = played.violations.first() else { return };
    let Story { seed, profile, .. } = &played.story;
    let profile = format!("{profile:?}").to_lowercase();
    eprintln!("\rFAILED --seed {seed} --only {profile}, {:.1} s: {first}", played.took.as_secs_f32());
    for violation in played.violations.iter().skip(1).take(7) {
        eprintln!("    {violation}");
    }
    if let Some(kept) = &played.kept {
        eprintln!("    logs: {}", kept.join("logs").display());
    }
    let _ = cli;
}

fn progress(cli: &Cli, report: &Report) {
    if !cli.json && std::io::stderr().is_terminal() {
        eprint!("\r{} stories, {} failed ", report.count(), report.failed.len());
        let _ = std::io::stderr().flush();
    }
}

fn keep(cli: &Cli, story: &Story) -> Result<()> {
    let Some(dir) = &cli.keep else { return Ok(()) };
    std::fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    story.save(&path_of(dir, story))
}

fn path_of(dir: &Path, story: &Story) -> PathBuf {
    let profile = format!("{:?}", story.profile).to_lowercase();
    dir.join(format!("{profile}-{}.story", story.seed))
}

fn make_shorter(cli: &Cli, played: &Played, programs: &Programs) -> Result<()> {
    let Some(violation) = played.violations.first() else { return Ok(()) };
    let time = Duration::from_secs(cli.shrink_time);
    eprintln!(
        "shmcast-chaos: leaving out steps of {} while {} happens",
        played.story.steps.len(),
        violation.name
    );
    let shortest = shrink(&played.story, &violation.name, programs, &cli.under, time)?;
    println!("# {violation}");
    print!("{}", shortest.to_text());
    keep(cli, &shortest)
}
