//! The contents of the matrix's cells.

use super::Played;
use super::table::Table;
use crate::story::Profile;
use std::collections::{BTreeMap, BTreeSet};

/// A cell: the tests and stories that show a feature at an event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cell {
    /// The tests that show the pair, by their index in the table.
    pub tests: Vec<usize>,
    /// The profiles whose stories play the pair.
    pub stories: BTreeSet<Profile>,
    /// Whether no test or story shows the pair yet.
    pub is_open: bool,
    /// The index of the reason in the table, if the feature and the event cannot meet.
    pub never: Option<usize>,
}

impl Cell {
    /// Whether a test or a story shows the pair.
    pub fn is_shown(&self) -> bool {
        !self.tests.is_empty() || !self.stories.is_empty()
    }
}

/// All cells, by feature and event.
#[derive(Debug, Default)]
pub struct Cells {
    cells: BTreeMap<(String, String), Cell>,
}

impl Cells {
    /// Fills the cells from the table and from the pairs that stories play. Also returns everything that is
    /// wrong with the table.
    pub fn fill(table: &Table, played: &Played) -> (Self, Vec<String>) {
        let mut all = Self::default();
        for (feature, event) in table.feature.iter().flat_map(|f| table.event.iter().map(move |e| (f, e))) {
            all.cells.insert((feature.name.clone(), event.name.clone()), Cell::default());
        }
        for ((feature, event), profiles) in played {
            if let Some(cell) = all.cells.get_mut(&((*feature).to_owned(), (*event).to_owned())) {
                cell.stories.extend(profiles);
            }
        }
        let mut wrong = all.take_rules(table);
        for ((feature, event), cell) in &mut all.cells {
            match (cell.is_shown(), cell.is_open) {
                (true, true) => {
                    wrong.push(format!("{feature}, {event} is open, and it is shown: take it out of [open]"))
                }
                (true, false) | (false, true) => cell.never = None,
                (false, false) if cell.never.is_none() => {
                    wrong.push(format!("{feature}, {event}: an empty cell"))
                }
                (false, false) => {}
            }
        }
        let used: BTreeSet<usize> = all.cells.values().filter_map(|cell| cell.never).collect();
        for (at, never) in table.never.iter().enumerate().filter(|(at, _)| !used.contains(at)) {
            wrong.push(format!("reason {at}, {:?}, fills no cell", never.why));
        }
        let open = all.count(|cell| cell.is_open);
        if open != table.open_at_most {
            wrong.push(format!("{open} cells are open, and open_at_most says {}", table.open_at_most));
        }
        (all, wrong)
    }

    fn take_rules(&mut self, table: &Table) -> Vec<String> {
        let mut wrong = Vec::new();
        for (at, shown) in table.shown.iter().enumerate() {
            let cells = table.cells(&shown.of, &shown.at).unwrap_or_default();
            if cells.is_empty() {
                wrong.push(format!("{} shows no cell", shown.test));
            }
            cells.into_iter().for_each(|cell| self.change(cell, |cell| cell.tests.push(at)));
        }
        for (at, never) in table.never.iter().enumerate() {
            let cells = table.cells(&never.of, &never.at).unwrap_or_default();
            // If several reasons fit a cell, the first one counts.
            cells.into_iter().for_each(|cell| self.change(cell, |cell| cell.never = cell.never.or(Some(at))));
        }
        for (feature, events) in &table.open {
            let cells = table.cells(std::slice::from_ref(feature), events).unwrap_or_default();
            cells.into_iter().for_each(|cell| self.change(cell, |cell| cell.is_open = true));
        }
        wrong
    }

    fn change(&mut self, (feature, event): (&str, &str), change: impl FnOnce(&mut Cell)) {
        if let Some(cell) = self.cells.get_mut(&(feature.to_owned(), event.to_owned())) {
            change(cell);
        }
    }

    /// The cell of a feature at an event.
    pub fn at(&self, feature: &str, event: &str) -> Option<&Cell> {
        self.cells.get(&(feature.to_owned(), event.to_owned()))
    }

    /// Returns the number of cells for which `is_so` returns true.
    pub fn count(&self, is_so: impl Fn(&Cell) -> bool) -> usize {
        self.cells.values().filter(|cell| is_so(cell)).count()
    }
}
