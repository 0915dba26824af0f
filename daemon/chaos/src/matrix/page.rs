//! Makes `MATRIX.md`: one table for each group of events, then an explanation of the signs in the cells.

use super::cells::{Cell, Cells};
use super::table::Table;
use crate::story::Profile;
use std::fmt::Write;

/// The greatest number of tests that one cell shows. `matrix.toml` has all of them.
const MOST: usize = 3;

/// Returns the whole page.
pub(super) fn text(table: &Table, cells: &Cells) -> String {
    let mut text = String::from("# Features by events\n\n");
    let open = table.open_at_most;
    let _ = writeln!(
        text,
        "**{open} cells are open**: the two can meet, and no test shows yet what happens then. Of {} cells, tests or stories show {}, and in {}\n\
         the two cannot meet.\n",
        cells.count(|_| true),
        cells.count(Cell::is_shown),
        cells.count(|cell| cell.never.is_some()),
    );
    text.push_str(
        "`shmcast-chaos matrix` makes this page of `matrix.toml` and of the stories that the generator draws; `cargo test -p shmcast-chaos\n\
         --lib matrix` sees that no cell is empty, that each test is there, and that the page is the present one.\n\n\
         | sign | meaning |\n|---|---|\n\
         | 7 | test 7 of the list below shows it; a cell shows three tests at most, and `matrix.toml` has all |\n\
         | *files* | stories of this profile play it: `shmcast-chaos --only files`; with `--seeds 2000 --pairs` few stories play all pairs |\n\
         | – b | the two cannot meet, for reason b of the list below |\n\
         | **open** | nothing shows it yet |\n",
    );
    let mut groups: Vec<&str> = Vec::new();
    for event in &table.event {
        if groups.last() != Some(&event.group()) {
            groups.push(event.group());
        }
    }
    groups.into_iter().for_each(|group| add_table(&mut text, table, cells, group));
    text.push_str("\n## Open cells by feature\n\n| feature | open |\n|---|---|\n");
    for feature in &table.feature {
        let count = table
            .event
            .iter()
            .filter(|event| cells.at(&feature.name, &event.name).is_some_and(|it| it.is_open));
        let _ = writeln!(text, "| {} | {} |", feature.what, count.count());
    }
    text.push_str("\n## Why two cannot meet\n\n");
    for (at, never) in table.never.iter().enumerate() {
        let _ = writeln!(text, "- {}: {}", letters(at), never.why);
    }
    text.push_str("\n## Tests\n\n");
    for (at, shown) in table.shown.iter().enumerate() {
        let _ = writeln!(text, "{}. `{}`", at + 1, shown.test);
    }
    text
}

fn add_table(text: &mut String, table: &Table, cells: &Cells, group: &str) {
    let events: Vec<_> = table.event.iter().filter(|event| event.group() == group).collect();
    let titles: Vec<&str> = events.iter().map(|event| event.what.as_str()).collect();
    let _ = writeln!(text, "\n## {}\n\n| feature | {} |", title(group), titles.join(" | "));
    let _ = writeln!(text, "|---|{}", "---|".repeat(events.len()));
    for feature in &table.feature {
        let signs: Vec<String> =
            events.iter().filter_map(|event| cells.at(&feature.name, &event.name)).map(sign).collect();
        let _ = writeln!(text, "| {} | {} |", feature.what, signs.join(" | "));
    }
}

fn title(group: &str) -> String {
    let mut letters = group.chars();
    letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect()
}

fn sign(cell: &Cell) -> String {
    if cell.is_open {
        return "**open**".to_owned();
    }
    if let Some(never) = cell.never {
        return format!("– {}", letters(never));
    }
    let tests = cell.tests.iter().take(MOST).map(|at| (at + 1).to_string());
    tests
        .chain(cell.stories.iter().map(|profile| format!("*{}*", name(*profile))))
        .collect::<Vec<_>>()
        .join(" ")
}

fn name(profile: Profile) -> String {
    format!("{profile:?}").to_lowercase()
}

/// Returns the letters for a number: a to z, then aa to az, and so on.
fn letters(at: usize) -> String {
    let letter = |at: usize| char::from(b'a' + (at % 26) as u8);
    match at / 26 {
        0 => letter(at).to_string(),
        tens => format!("{}{}", letter(tens - 1), letter(at)),
    }
}
