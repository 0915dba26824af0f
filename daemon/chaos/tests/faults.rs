//! The list of faults is that of the tree, and says of each what finds it.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap that fails is a finding")]

use shmcast_chaos::faults::{Fault, in_tree, list, to_text};
use std::collections::BTreeSet;

#[test]
fn every_fault_of_the_tree_is_listed_with_what_finds_it() {
    let faults = list().unwrap();
    let listed: BTreeSet<String> = faults.iter().map(|fault| fault.name.clone()).collect();
    assert_eq!(listed, in_tree().unwrap(), "faults.toml and the tree name other faults");
    assert_eq!(listed.len(), faults.len(), "a fault is listed twice");
    for Fault { name, profile, seed, story, test } in &faults {
        let ways = [profile.is_some() && seed.is_some(), story.is_some(), test.is_some()];
        assert_eq!(
            ways.iter().filter(|way| **way).count(),
            1,
            "{name} is found by exactly one of story and test"
        );
    }
}

#[test]
fn the_list_can_be_written_and_read() {
    let path = shmcast_chaos::faults::package().join("faults.toml");
    assert_eq!(std::fs::read_to_string(path).unwrap(), to_text(&list().unwrap()));
}

/// Each `file: test` of the list and of SECURITY.md.
fn named_tests() -> Vec<String> {
    let security =
        std::fs::read_to_string(shmcast_chaos::faults::package().join("../../SECURITY.md")).unwrap();
    let of_security = security.split('`').skip(1).step_by(2).filter(|code| code.contains(".rs: "));
    let of_list = list().unwrap().into_iter().filter_map(|fault| fault.test);
    of_security.map(str::to_owned).chain(of_list).collect()
}

#[test]
fn every_test_that_is_named_is_there() {
    let root = shmcast_chaos::faults::package().join("../..");
    let named = named_tests();
    assert!(named.len() > 50, "{} tests are named", named.len());
    for named in named {
        let (path, test) = named.split_once(": ").unwrap_or((&named, ""));
        let text = std::fs::read_to_string(root.join(path)).unwrap_or_else(|e| panic!("{named}: {e}"));
        let is_there = text.contains(&format!("fn {test}(")) || text.contains(&format!("\"{test}\""));
        assert!(test.is_empty() || is_there, "{named}: no such test");
    }
}
