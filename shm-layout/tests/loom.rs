//! Runs the model of the ring (`src/ring/loom_model/`) under loom. The protocol as it is must pass. If one of its orderings is
//! taken away, the model must notice.
//!
//! The model needs a build of its own, with `--cfg loom`, in a target directory beside the caller's. That build has all mutants,
//! and an environment variable chooses one.

use shmcast_layout::fault::VARIABLE;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;
use std::time::Instant;

/// The model's message when an invariant does not hold. Any other failure is a failure of the test.
const VERDICT: &str = "the ring is broken: ";

/// Each mutant, and the model that notices it.
const MUTANTS: &[(&str, &str)] = &[
    ("frontier_after_data", "lapped_and_resumed"),
    ("no_frontier_fence", "lapped_while_copying"),
    ("no_clean_ahead", "old_payload_at_the_tail"),
    ("relaxed_commit", "publish_and_read"),
    ("relaxed_index", "joined_behind_a_control_record"),
    ("relaxed_lazy", "joined_at_the_tail"),
    ("relaxed_close", "the_end_comes_last"),
    ("no_commit_fence", "publish_and_read"),
    ("no_run_fence", "taken_together"),
    ("no_window_fence", "lapped_while_copying"),
    ("no_window_check", "lapped_while_copying"),
    ("no_close_fence", "the_end_comes_last"),
    ("no_lazy_fence", "joined_at_the_tail"),
    ("no_index_fence", "joined_behind_a_control_record"),
    ("no_lazy_recheck", "joined_while_the_index_is_reused"),
    ("lazy_after_gap_entry", "joined_around_a_gap"),
    ("window_before_close", "lapped_at_the_end"),
    ("no_walk_commit_fence", "joined_around_a_gap"),
    ("no_walk_window_fence", "lapped_while_seeking"),
    ("no_walk_window_check", "lapped_while_walking"),
    ("cut_without_closing", "charter::a_message_is_valid_for_all_readers_or_for_none"),
    ("no_closing_fence", "charter::a_message_is_valid_for_all_readers_or_for_none"),
    ("no_verdict_fence", "charter::a_message_is_valid_for_all_readers_or_for_none"),
    ("tail_before_closing", "charter::a_message_is_valid_for_all_readers_or_for_none"),
    ("board_through_first", "board::joined_while_a_key_comes"),
    ("board_before_ring", "board::joined_while_a_key_comes"),
    ("board_never_odd", "board::joined_while_a_value_changes"),
    ("board_relaxed_odd", "board::joined_while_a_value_changes"),
    ("board_no_store_fence", "board::joined_while_a_value_changes"),
    ("board_no_recheck", "board::joined_while_a_value_changes"),
    ("board_no_recheck_fence", "board::joined_while_a_value_changes"),
    ("board_relaxed_stored", "board::joined_while_a_value_changes"),
    ("board_no_stored_fence", "board::joined_while_a_value_changes"),
    ("board_relaxed_name", "board::joined_while_another_key_gets_the_slot"),
    ("board_no_name_fence", "board::joined_while_another_key_gets_the_slot"),
    ("board_relaxed_through", "board::joined_while_a_key_comes"),
    ("board_no_through_fence", "board::joined_while_a_key_comes"),
    ("bound_is_ignored", "gate::gated_reader_is_never_lapped"),
    ("records_pass_the_bound", "gate::gated_at_the_end_of_the_ring"),
    ("gate_claims_are_stretched", "gate::gated_reader_is_never_lapped"),
    ("takeover_without_clean", "takeover_from_a_publisher"),
    ("takeover_without_frontier", "takeover_while_copying"),
    ("takeover_without_fence", "takeover_while_copying"),
];

/// Builds the model.
fn build(target: &Path) -> Result<PathBuf, String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["test", "--package", "shmcast-layout", "--lib", "--no-run", "--quiet"]);
    cargo.args(["--message-format", "json", "--target-dir"]).arg(target);
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    for inherited in ["CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET", "CARGO_TARGET_DIR"] {
        cargo.env_remove(inherited);
    }
    // The profile of tests builds this package less fast than the models need it.
    cargo.args(["--config", "profile.dev.package.shmcast-layout.opt-level=2"]);
    cargo.env("RUSTFLAGS", "--cfg loom").env("CARGO_PROFILE_TEST_OPT_LEVEL", "2");
    cargo.env("CARGO_PROFILE_TEST_DEBUG", "0").env("CARGO_INCREMENTAL", "0");
    let output = cargo.output().map_err(|e| format!("cannot run cargo: {e}"))?;
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        return Err(format!("{stderr}{stdout}"));
    }
    stdout
        .lines()
        .filter(|line| line.contains("shmcast_layout"))
        .filter_map(|line| line.split_once("\"executable\":\"")?.1.split_once('"'))
        .map(|(path, _)| PathBuf::from(path))
        .next_back()
        .ok_or_else(|| format!("cargo named no executable:\n{stdout}"))
}

/// Runs those models whose names the filter chooses, with one mutant or with none.
fn run(model: &Path, filter: &[&str], mutant: Option<&str>) -> Output {
    Command::new(model)
        .args(filter)
        .env("RUST_BACKTRACE", "0")
        .envs(mutant.map(|mutant| (VARIABLE, mutant)))
        .output()
        .expect("it was just built")
}

fn text(output: &Output) -> String {
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{stdout}{stderr}")
}

/// The result for one mutant.
fn judge(model: &Path, mutant: &str, by: &str) -> Result<String, String> {
    let output =
        run(model, &["--exact", "--include-ignored", &format!("ring::loom_model::{by}")], Some(mutant));
    let said = text(&output);
    if !said.contains("running 1 test") {
        return Err(format!("{mutant}: no model is called {by}"));
    }
    if output.status.success() {
        return Err(format!("{mutant}: {by} did not notice it"));
    }
    let Some((_, verdict)) = said.split_once(VERDICT) else {
        return Err(format!("{mutant}: {by} failed, but for another reason:\n{said}"));
    };
    Ok(verdict.split([':', '\n']).next().unwrap_or_default().to_owned())
}

#[test]
#[ignore = "takes minutes: `.ci/run proof` plays it"]
fn loom_catches_every_mutant() {
    let start = Instant::now();
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("a target directory").join("loom");
    let model = match build(&target) {
        Ok(model) => model,
        Err(why) if is_offline(&why) => {
            println!("SKIPPED loom_catches_every_mutant: loom cannot be had: {why}");
            return;
        }
        Err(why) => panic!("the model does not build:\n{why}"),
    };
    println!("built in {:.0?}", start.elapsed());
    let mutants = Mutex::new(MUTANTS.iter());
    let failures = Mutex::new(Vec::new());
    let fail = |why| failures.lock().expect("no thread panics with it").push(why);
    let judge_those_left = || {
        loop {
            let Some((mutant, by)) = mutants.lock().expect("no thread panics with it").next() else { break };
            match judge(&model, mutant, by) {
                Ok(verdict) => println!("{mutant}: caught by {by}: {verdict}"),
                Err(why) => fail(why),
            }
        }
    };
    let judge_all_models = || {
        let all = run(&model, &["ring::loom_model::", "--include-ignored"], None);
        let verdict = if all.status.success() { "holds" } else { "BROKEN" };
        println!("protocol: {verdict} after {:.0?}", start.elapsed());
        if !all.status.success() {
            fail(text(&all));
        }
    };
    // The longest model is most of the time of the whole protocol, so the mutants are judged beside it.
    std::thread::scope(|scope| {
        scope.spawn(judge_all_models);
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(judge_those_left);
        }
    });
    println!("{} mutants in {:.0?}", MUTANTS.len(), start.elapsed());
    let failures = failures.into_inner().expect("no thread panics with it");
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

/// Whether a build failed because a dependency is missing, and not because of an error in the code.
fn is_offline(why: &str) -> bool {
    ["failed to download", "failed to get", "no matching package", "cannot run cargo", "failed to query"]
        .iter()
        .any(|sign| why.contains(sign))
}

/// The mutants in the list are those in the sources.
#[test]
fn every_mutant_is_listed() {
    let mut found = BTreeSet::new();
    collect_mutants(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    let listed: BTreeSet<String> = MUTANTS.iter().map(|(mutant, _)| (*mutant).to_owned()).collect();
    assert_eq!(listed.len(), MUTANTS.len(), "one is listed twice");
    assert_eq!(found, listed);
}

/// Adds the names of all mutants in the files below `directory`.
fn collect_mutants(directory: &Path, found: &mut BTreeSet<String>) {
    for entry in directory.read_dir().expect("the sources are there") {
        let path = entry.expect("a readable directory").path();
        if path.is_dir() {
            collect_mutants(&path, found);
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a source file");
        let names = text.split("mutant!(\"").skip(1).filter_map(|rest| rest.split('"').next());
        found.extend(names.map(str::to_owned));
    }
}
