//! Tests of the faults' table itself. A power cut must remove what was not synced, and nothing else. Mistakes that are planted in an end of
//! the bridge must make the table red. Programs that are built for release cannot plant mistakes.

use super::cells::Cell;
use super::stage::{Plan, Planted};
use super::table::Row;
use super::{Campaign, needs};
use shmcast_testkit::disk::Disk;
use shmcast_testkit::turn::turn;
use shmcast_testkit::{is_root, skip};
use std::fs::{self, File};
use std::io::Write;

/// Plays two runs of a cell. In the first run, the receiver is away during the fault.
fn play(test: &str, cell: Cell, planted: Option<Planted>) -> Option<Row> {
    let (_turn, server) = (turn(), needs(test)?);
    let campaign = Campaign { server, seed: 1, runs: 2, until: None, show: &|row| eprintln!("{row}") };
    Some(campaign.play(cell, Plan { planted, ..cell.plan() }))
}

/// The planted mistake: the sender believes that acknowledged messages are safe. It neither sends them again nor answers requests for them.
#[test]
#[ignore = "a step of CI: engine-faults"]
fn a_sender_that_believes_acknowledgements_turns_the_table_red() {
    let test = "a_sender_that_believes_acknowledgements_turns_the_table_red";
    let planted = Some(Planted::InSender("LossUnseen"));
    let Some(row) = play(test, Cell::Power { always: false }, planted) else { return };
    assert!(row.is_red(), "{row}");
    assert!(
        row.figures.needless + row.figures.silent > 0,
        "the power cut takes acknowledged messages: {row}"
    );
}

/// The planted mistake: the far end takes each block for the expected one.
#[test]
#[ignore = "a step of CI: engine-faults"]
fn a_far_end_that_checks_no_place_turns_the_table_red() {
    let test = "a_far_end_that_checks_no_place_turns_the_table_red";
    let planted = Some(Planted::InReceiver("TakesHoles"));
    let Some(row) = play(test, Cell::Hole, planted) else { return };
    assert!(row.is_red() && row.figures.needless + row.figures.silent > 0, "{row}");
}

#[test]
fn a_power_cut_takes_what_was_not_synced_and_nothing_else() {
    let test = "a_power_cut_takes_what_was_not_synced_and_nothing_else";
    if !is_root() {
        return skip(test, "only root can mount a disk");
    }
    let Some(mut disk) = Disk::of_mib(32) else { return skip(test, "no ext4 can be made and mounted") };
    let write = |name: &str, is_synced: bool| {
        let mut file = File::create(disk.path().join(name)).unwrap();
        file.write_all(name.as_bytes()).unwrap();
        if is_synced {
            file.sync_all().unwrap();
        }
    };
    // A sync of the second file might also sync the first one, so the file without a sync comes last.
    write("synced", true);
    write("not synced", false);
    assert!(disk.cut() && disk.mount_again());
    assert_eq!(fs::read_to_string(disk.path().join("synced")).unwrap(), "synced");
    let lost = fs::read_to_string(disk.path().join("not synced")).unwrap_or_default();
    assert_eq!(lost, "", "the disk has what was in memory only");
}
