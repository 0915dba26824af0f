//! The documents that name tests name tests that are there.

use super::book;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The tests that a text names, as `FILE: TEST` between backticks.
fn tests(text: &str) -> Vec<(&str, &str)> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter_map(|quoted| quoted.split_once(": ").filter(|(file, _)| file.ends_with(".rs"))).collect()
}

fn check(document: &str, text: &str) -> usize {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    for (file, test) in tests(text) {
        let source = fs::read_to_string(root.join(file))
            .unwrap_or_else(|e| panic!("{document} names a test in {file}: {e}"));
        // A program without the usual harness has the names of its tests in a table.
        let is_there =
            [format!("fn {test}("), format!("(\"{test}\", ")].iter().any(|way| source.contains(way));
        assert!(is_there, "{document} names {test}, which is not in {file}");
    }
    tests(text).len()
}

#[test]
fn each_test_that_a_document_names_is_there() {
    let security = Path::new(env!("CARGO_MANIFEST_DIR")).join("../SECURITY.md");
    assert!(check("SECURITY.md", &fs::read_to_string(security).unwrap()) > 50);
    for name in book::names() {
        check(&name, &book::text(&name));
    }
}

/// Each limit is tested with each verb, or the document says why not.
#[test]
fn no_cell_of_the_limits_is_left_out() {
    let text = book::text("limits");
    let mut rows = text.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let columns = rows.next().unwrap().split(" | ").count();
    let (mut used, mut untested) = (BTreeSet::<usize>::new(), 0);
    for row in rows {
        let cells: Vec<&str> = row.split(" | ").collect();
        assert_eq!(cells.len(), columns, "{row}");
        for cell in &cells[1..] {
            let numbers =
                cell.split('[').skip(1).filter_map(|rest| rest.split_once(']')?.0.parse::<usize>().ok());
            let shown: Vec<usize> = numbers.collect();
            used.extend(&shown);
            let is_said = cell.starts_with("none: ") || cell.starts_with("untested");
            assert!(is_said == shown.is_empty(), "{}: {cell}", cells[0]);
            untested += usize::from(cell.starts_with("untested"));
        }
    }
    let listed =
        text.lines().filter(|line| line.split_once(". `").is_some_and(|(n, _)| n.parse::<usize>().is_ok()));
    assert!(used.iter().copied().eq(1..=listed.count()), "{used:?}");
    // The number of cells without a test must not grow.
    assert!(untested <= 36, "{untested} cells without a test");
}
