//! Journals that are written by `Cut`, as the verbs `cut` and `join` write them.

use shmcast::journal::format::{Cause, FileHeader};
use shmcast::journal::{Journal, Loss, Verdict, Verify, header_of};
use shmcast::{Message, Publisher};
use shmcast_journal::Cut;
use tempfile::TempDir;

/// A check lists only some of many losses, and counts all of them. The others once counted as damage, and not in the sums.
#[test]
fn losses_that_are_too_many_to_list_are_counted_and_no_damage() {
    const LOSSES: u64 = 10_001;
    let (channels, dir) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let publisher = Publisher::builder("t").dir(channels.path()).capacity(64 << 10).open().unwrap();
    let header = FileHeader { sequence: 1, ..header_of(publisher.header()).unwrap() };
    let mut cut = Cut::begin(dir.path(), &header, 64 << 20, (header.wall_ns, 0)).unwrap();
    for turn in 0..LOSSES {
        let sequence = 2 * turn + 1;
        let message = Message { payload: b"one", sequence, tag: 0, key: false, time: 0, conflated: None };
        cut.message(&message, None).unwrap();
        cut.loss(Loss { from: sequence + 1, to: sequence + 1, cause: Cause::Overrun }).unwrap();
    }
    cut.finish().unwrap();
    let found = Verify::new(&Journal::open(dir.path()).unwrap()).run(|_| ()).unwrap();
    assert_eq!((found.damages.len(), found.damages_not_listed), (0, 0), "{:?}", found.damages);
    assert_eq!(found.verdict(), Verdict::Losses);
    assert_eq!((found.lost(Cause::Overrun), found.lost(Cause::Damaged)), (LOSSES, 0));
    assert_eq!((found.losses.len() as u64 + found.losses_not_listed, found.messages), (LOSSES, LOSSES));
}
