//! Chapters of the guide, and the code blocks in them.
//!
//! In a block of `console`, a line with `$ ` is a command, and `> ` continues it. The lines after it are its output, in which `[..]` stands
//! for any part of a line, and a line `...` for any lines. In `console,fails`, at least one command ends with another exit code than 0. A
//! block whose first line is [`NOT_RUN`] and a reason is for people alone.

use std::fs;
use std::path::{Path, PathBuf};

/// First words of a block that no test can run.
pub(crate) const NOT_RUN: &str = "# Not run by the test of this guide: ";

pub(crate) struct Chapter {
    pub(crate) name: String,
    pub(crate) blocks: Vec<Block>,
}

pub(crate) struct Block {
    /// The text after the opening fence.
    pub(crate) info: String,
    /// The line of the fence.
    pub(crate) line: usize,
    lines: Vec<String>,
}

pub(crate) struct Step {
    /// The place, as `chapter.md:line`.
    pub(crate) place: String,
    pub(crate) command: String,
    pub(crate) expected: String,
    pub(crate) may_fail: bool,
}

pub(crate) fn dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guide/src")
}

pub(crate) fn text(name: &str) -> String {
    fs::read_to_string(dir().join(format!("{name}.md"))).unwrap_or_else(|e| panic!("{name}.md: {e}"))
}

/// The names of all chapters.
pub(crate) fn names() -> Vec<String> {
    let files = fs::read_dir(dir()).unwrap().map(|entry| entry.unwrap().path());
    let chapters = files.filter(|path| path.extension().is_some_and(|ext| ext == "md"));
    let names = chapters.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned());
    names.filter(|name| name != "SUMMARY").collect()
}

impl Chapter {
    pub(crate) fn read(name: &str) -> Self {
        let text = text(name);
        let mut blocks = Vec::new();
        let mut lines = text.lines().zip(1..);
        while let Some((line, number)) = lines.next() {
            let Some(info) = line.strip_prefix("```") else { continue };
            let inside = lines.by_ref().map(|(line, _)| line).take_while(|line| *line != "```");
            blocks.push(Block {
                info: info.to_owned(),
                line: number,
                lines: inside.map(str::to_owned).collect(),
            });
        }
        Self { name: name.to_owned(), blocks }
    }

    /// All commands that are to be run, in their order.
    pub(crate) fn steps(&self) -> Vec<Step> {
        self.blocks
            .iter()
            .filter(|block| block.is_console())
            .flat_map(|block| block.steps(&self.name))
            .collect()
    }

    /// The blocks in which some command must fail, each as the places of its steps.
    pub(crate) fn failing(&self) -> Vec<Vec<String>> {
        let failing = self.blocks.iter().filter(|block| block.info == "console,fails");
        failing.map(|block| block.steps(&self.name).into_iter().map(|step| step.place).collect()).collect()
    }
}

impl Block {
    pub(crate) fn language(&self) -> &str {
        self.info.split(',').next().unwrap_or_default()
    }

    fn is_console(&self) -> bool {
        self.language() == "console"
    }

    fn steps(&self, chapter: &str) -> Vec<Step> {
        let mut steps: Vec<Step> = Vec::new();
        if self.lines.first().is_some_and(|line| line.starts_with(NOT_RUN)) {
            return steps;
        }
        for (line, number) in self.lines.iter().zip(self.line + 1..) {
            let place = format!("{chapter}.md:{number}");
            if let Some(command) = line.strip_prefix("$ ") {
                let may_fail = self.info == "console,fails";
                steps.push(Step {
                    place,
                    command: format!("{command}\n"),
                    expected: String::new(),
                    may_fail,
                });
                continue;
            }
            let step = steps.last_mut().unwrap_or_else(|| panic!("{place}: no command comes before this"));
            match line.strip_prefix('>') {
                Some(more) if step.expected.is_empty() => {
                    step.command += more.strip_prefix(' ').unwrap_or(more);
                    step.command.push('\n');
                }
                _ => step.expected += &format!("{line}\n"),
            }
        }
        steps
    }
}
