//! Records that give no event, before records that do.

use crate::support::{SMALL, drain, publisher, rare, subscriber};
use shmcast::{Event, Publisher, Start, Subscriber};
use shmcast_testkit::scratch;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Byte offset of the ring in the smallest segment: it follows the header page, and an index entry of 8 bytes for each
/// 64 bytes of the ring.
const RING: u64 = 4096 + SMALL / 64 * 8;

/// A channel of three messages, with a control record before the second. No version knows the kind of that record.
fn with_an_unknown_record(dir: &Path) -> Publisher {
    let mut publisher = publisher(dir).capacity(SMALL).open().unwrap();
    publisher.publish(b"one").unwrap();
    publisher.session(*b"SESSION-01").unwrap();
    publisher.publish_batch(["two", "three"]).unwrap();
    let file = File::options().write(true).open(dir.join("t/segment")).unwrap();
    // One record of 64 bytes stands before it, and its kind is its third word.
    file.write_all_at(&99_u64.to_le_bytes(), RING + 64 + 16).unwrap();
    publisher
}

const ALL: [(u64, &[u8]); 3] = [(1, b"one"), (2, b"two"), (3, b"three")];

#[test]
fn try_recv_goes_on_behind_an_unknown_record() {
    let dir = scratch();
    let _publisher = with_an_unknown_record(dir.path());
    let mut reader = subscriber(dir.path()).start(Start::Oldest).open().unwrap();
    assert_eq!(drain(&mut reader), ALL.map(|(sequence, payload)| (sequence, payload.to_vec())));
}

#[test]
fn try_recv_into_goes_on_behind_an_unknown_record() {
    let dir = scratch();
    let _publisher = with_an_unknown_record(dir.path());
    let mut reader = subscriber(dir.path()).start(Start::Oldest).open().unwrap();
    let mut buffer = [0; 16];
    for (sequence, payload) in ALL {
        match reader.try_recv_into(&mut buffer).unwrap() {
            Some(Event::Message(m)) => assert_eq!((m.sequence, m.payload), (sequence, payload)),
            other => panic!("{other:?} where {sequence} was due"),
        }
    }
}

#[test]
fn recv_batch_goes_on_behind_an_unknown_record() {
    let dir = scratch();
    let _publisher = with_an_unknown_record(dir.path());
    let mut reader = subscriber(dir.path()).start(Start::Oldest).open().unwrap();
    assert_eq!(reader.recv_batch(10, |_| ()).unwrap(), 3);
}

/// The segment's state has told of the takeover before its record is read. So the record gives no event, but the
/// message after it must.
#[test]
fn try_recv_goes_on_behind_an_epoch_that_was_told() {
    let dir = scratch();
    let mut first = publisher(dir.path()).capacity(SMALL).open().unwrap();
    first.publish(b"one").unwrap();
    let mut reader: Subscriber = subscriber(dir.path()).start(Start::Oldest).open().unwrap();
    assert_eq!(drain(&mut reader).len(), 1);
    first.close();
    assert_eq!(rare(&mut reader), Event::End);
    let mut second = publisher(dir.path()).open().unwrap();
    assert_eq!(rare(&mut reader), Event::NewEpoch { epoch: 2 });
    // This makes a second record of the same epoch, as if the record had come after the state.
    second.session(*b"SESSION-01").unwrap();
    let file = File::options().write(true).open(dir.path().join("t/segment")).unwrap();
    for (word, value) in [(2, 1_u64), (3, 2), (4, 0)] {
        file.write_all_at(&value.to_le_bytes(), RING + 3 * 64 + word * 8).unwrap();
    }
    second.publish(b"two").unwrap();
    assert_eq!(drain(&mut reader), [(2, b"two".to_vec())]);
}
