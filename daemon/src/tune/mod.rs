//! Applies corrections that the doctor suggests, and undoes them: the work of `shmcast tune`.
//!
//! The doctor checks the host, and says which value to write to which file. `tune` only handles the checks in [`MEASURED`], whose effect on
//! shmcast was measured. A change has these steps:
//!
//! 1. The existing values are saved in a file that belongs to root (`before.rs`). This file is on the disk before anything is changed.
//! 2. Each value is written and read back. If the kernel refuses a value, this is reported, and the other values are written.
//! 3. If requested, the changed values are written to files that the next boot applies (`kept.rs`).
//!
//! An undo restores the original values. A value that somebody has changed after `tune` is not restored.

mod before;
mod files;
mod kept;

use crate::doctor::{self, Assignment, Finding, Host, Root, Status};
pub use before::STATE;
use before::{Entry, State};
pub use files::TuneError;
use serde::Serialize;
use std::path::PathBuf;

/// A check whose mend was measured.
#[derive(Debug)]
pub struct Measured {
    /// The doctor's name for the check.
    pub check: &'static str,
    /// The figures that were measured with the change and without.
    pub gain: &'static str,
    /// The cost of the change.
    pub price: &'static str,
}

/// The settings that `tune` changes. `benches/METHOD.md` says how they were measured, and which measured settings are left out.
pub const MEASURED: &[Measured] = &[
    Measured {
        check: "rmem-max",
        gain: "Of 100,000 packets at 50,000/s, a bridge without CAP_NET_ADMIN on a busy host lost 70,000 and more with 208 KiB, \
               and had most sent again. With 4 MiB it lost none.",
        price: "Any program may have this much of the kernel's memory for each of its sockets.",
    },
    Measured {
        check: "thp-shmem",
        gain: "A reader attaches to a ring of 64 MiB in 0.8 ms where the ring is on huge pages, and in 6 to 9 ms where it is not.",
        price: "Other programs may put their shared memory on pages of 2 MiB too, which they may fill in part only.",
    },
];

/// The result for one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The value differs from the wanted value, and was not touched.
    WouldChange,
    /// The setting has the wanted value already.
    AsWanted,
    /// The setting could not be read, or no single value corrects it. `problem` says which of the two.
    Unknown,
    /// The value was written, and reads back as wanted.
    Changed,
    /// The value was written back, and reads as it did before.
    Restored,
    /// The value was not restored, because somebody has changed it after `tune` did.
    Left,
    /// The value could not be written; `problem` says why.
    Failed,
}

/// One value, its result, and the reasons.
#[derive(Debug, Clone, Serialize)]
pub struct Item {
    /// The doctor's name for the check.
    pub check: String,
    /// The result for the value.
    pub outcome: Outcome,
    /// The doctor's finding, in a few words; empty when undoing.
    pub says: String,
    /// The file, if one value in one file mends it.
    pub file: Option<String>,
    /// The file's value before the change.
    pub before: Option<String>,
    /// The wanted value of the file.
    pub after: Option<String>,
    /// The reason why the value is unknown, was left, or could not be written.
    pub problem: Option<String>,
    /// The reason why the check matters.
    pub why: &'static str,
    /// The figures that were measured with the change and without.
    pub gain: &'static str,
    /// The cost of the change.
    pub price: &'static str,
}

/// All settings, and the files that were written or removed.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Tuned {
    /// The result for each value.
    pub items: Vec<Item>,
    /// Files that the system applies at the next boot. They were written, or an undo has removed them.
    pub kept: Vec<PathBuf>,
}

impl Tuned {
    /// The number of values with this outcome.
    #[must_use]
    pub fn count(&self, outcome: Outcome) -> usize {
        self.items.iter().filter(|item| item.outcome == outcome).count()
    }
}

/// Shows what [`apply`] would do. Changes nothing, and needs no privileges.
#[must_use]
pub fn plan(host: &Host) -> Tuned {
    let ids: Vec<String> = MEASURED.iter().map(|measured| measured.check.to_owned()).collect();
    let report = doctor::examine(host, &ids);
    let item = |measured: &Measured| {
        let finding = report.checks.iter().find(|finding| finding.id == measured.check);
        Item::found(measured, finding.expect("the doctor has each measured check"), host.root())
    };
    Tuned { items: MEASURED.iter().map(item).collect(), kept: Vec::new() }
}

/// Makes the changes that [`plan`] shows. With `keep`, they survive reboots.
///
/// # Errors
/// [`TuneError`]. An error before the original values are saved leaves all values as they were. After the changes, writing the list of
/// original values or the files for the next boot can still fail. A value that cannot be written is not an error, but is reported by its
/// item.
pub fn apply(host: &Host, keep: bool) -> Result<Tuned, TuneError> {
    let root = host.root();
    if keep {
        kept::check(root)?;
    }
    let mut state = State::open(root)?;
    let mut tuned = plan(host);
    for item in tuned.items.iter().filter(|item| item.outcome == Outcome::WouldChange) {
        state.note(item.entry().expect("what would change has a file and values"));
    }
    state.save()?;
    for item in tuned.items.iter_mut().filter(|item| item.outcome == Outcome::WouldChange) {
        let Some(entry) = item.entry() else { continue };
        match files::assign(root, &entry.file, &entry.after) {
            Ok(()) => item.outcome = Outcome::Changed,
            Err(problem) => {
                (item.outcome, item.problem) = (Outcome::Failed, Some(problem));
                // The kernel might have set another value than the one that was written.
                let is_as_before = files::value(root, &entry.file).is_ok_and(|now| now == entry.before);
                if is_as_before || files::assign(root, &entry.file, &entry.before).is_ok() {
                    state.forget(&entry.file);
                }
            }
        }
    }
    state.save()?;
    if keep {
        let holds = |entry: &&Entry| files::value(root, &entry.file).is_ok_and(|now| now == entry.after);
        let held: Vec<Entry> = state.entries().iter().filter(holds).cloned().collect();
        tuned.kept = kept::write(root, &held)?;
    }
    Ok(tuned)
}

/// Restores the values that [`apply`] changed, and removes the files for the next boot.
///
/// # Errors
/// [`TuneError`]. A value that cannot be written is not an error, but is reported by its item, and stays in the list for another attempt.
pub fn undo(root: &Root) -> Result<Tuned, TuneError> {
    let mut state = State::open(root)?;
    let kept = kept::remove(root)?;
    let mut items = Vec::new();
    for entry in state.entries().to_vec() {
        let item = Item::undone(root, &entry);
        if item.outcome != Outcome::Failed {
            state.forget(&entry.file);
        }
        items.push(item);
    }
    state.save()?;
    Ok(Tuned { items, kept })
}

impl Item {
    fn found(measured: &Measured, finding: &Finding, root: &Root) -> Self {
        let mut item = Self {
            check: finding.id.to_owned(),
            outcome: Outcome::AsWanted,
            says: finding.says.clone(),
            file: None,
            before: None,
            after: None,
            problem: None,
            why: finding.why,
            gain: measured.gain,
            price: measured.price,
        };
        if finding.status == Status::Pass {
            return item;
        }
        item.outcome = Outcome::Unknown;
        match finding.mend.as_ref().and_then(|mend| mend.assignment.clone()) {
            None if finding.status == Status::Unknown => item.problem = Some(finding.says.clone()),
            None => item.problem = Some(format!("`shmcast doctor {}` says what to do", finding.id)),
            Some(Assignment { file, value }) => {
                match files::value(root, &file) {
                    Ok(before) => (item.outcome, item.before) = (Outcome::WouldChange, Some(before)),
                    Err(unread) => item.problem = Some(unread.to_string()),
                }
                (item.file, item.after) = (Some(file), Some(value));
            }
        }
        item
    }

    fn entry(&self) -> Option<Entry> {
        let (file, before, after) = (self.file.clone()?, self.before.clone()?, self.after.clone()?);
        Some(Entry { check: self.check.clone(), file, before, after })
    }

    fn undone(root: &Root, entry: &Entry) -> Self {
        let measured = MEASURED.iter().find(|measured| measured.check == entry.check);
        let (gain, price) = measured.map_or(("", ""), |measured| (measured.gain, measured.price));
        let Entry { check, file, before, after } = entry.clone();
        let (outcome, problem) = match files::value(root, &file) {
            Err(unread) => (Outcome::Failed, Some(unread.to_string())),
            Ok(now) if now == before => (Outcome::Restored, None),
            Ok(now) if now != after => (Outcome::Left, Some(format!("it has been changed since, to {now}"))),
            Ok(_) => match files::assign(root, &file, &before) {
                Ok(()) => (Outcome::Restored, None),
                Err(problem) => (Outcome::Failed, Some(problem)),
            },
        };
        let says = String::new();
        let (file, before, after) = (Some(file), Some(before), Some(after));
        Self { check, outcome, says, file, before, after, problem, why: "", gain, price }
    }
}
