//! The end of a channel's sequences. No call of a publisher can make the channel unusable.

use crate::support::{SMALL, drain, publisher, rare, subscriber};
use shmcast::{
    ChannelError, Directory, Event, LocateError, MAX_SEQUENCE, OutOfSequences, PublishError, Start,
};
use shmcast_testkit::scratch;
use std::fs::File;
use std::os::unix::fs::FileExt;

#[test]
fn a_gap_to_the_end_of_all_sequences_is_refused_and_bricks_nothing() {
    let dir = scratch();
    let mut first = publisher(dir.path()).capacity(SMALL).open().unwrap();
    first.publish(b"one").unwrap();
    for to in [MAX_SEQUENCE, MAX_SEQUENCE + 1, (1 << 62) - 2, (1 << 62) - 1, 1 << 62, u64::MAX] {
        assert_eq!(first.gap(to), Err(PublishError::OutOfSequences(OutOfSequences { sequence: to })));
    }
    assert_eq!(first.next_sequence(), 2, "nothing was said");
    first.close();
    let mut reader = subscriber(dir.path()).start(Start::Oldest).open().unwrap();
    assert_eq!(publisher(dir.path()).open().unwrap().publish(b"two"), Ok(2));
    assert!(matches!(reader.recv().unwrap(), Event::Message(m) if m.sequence == 1));
    assert_eq!(rare(&mut reader), Event::End);
    assert_eq!(rare(&mut reader), Event::NewEpoch { epoch: 2 });
    let mut later = subscriber(dir.path()).start(Start::Sequence(2)).open().unwrap();
    assert!(matches!(later.recv().unwrap(), Event::Message(m) if m.sequence == 2));
}

#[test]
fn the_last_sequences_are_published_and_then_refused_with_advice() {
    let dir = scratch();
    let mut writer = publisher(dir.path()).capacity(SMALL).open().unwrap();
    let mut reader = subscriber(dir.path()).open().unwrap();
    let first = MAX_SEQUENCE - 200;
    writer.gap(first - 1).unwrap();
    assert_eq!(rare(&mut reader), Event::Gap { from: 1, to: first - 1 });
    let mut next = first;
    let refused = loop {
        match writer.publish(b"") {
            Ok(sequence) => assert_eq!(sequence, next),
            Err(refused) => break refused,
        }
        next += 1;
    };
    assert!((MAX_SEQUENCE - 64..MAX_SEQUENCE).contains(&next), "{next}");
    assert_eq!(refused, PublishError::OutOfSequences(OutOfSequences { sequence: next }));
    assert!(refused.to_string().contains("anew"), "{refused}");
    assert_eq!(writer.claim(0).unwrap().commit(0), Err(refused));
    assert_eq!(writer.publish_batch([b"x"]), Err(refused));
    let received = drain(&mut reader);
    assert_eq!(received.len() as u64, next - first);
    assert_eq!(received.last().unwrap().0, next - 1);
    writer.close();
    // Both ends can still be opened, and the channel can be removed and made again.
    let mut again = publisher(dir.path()).open().unwrap();
    assert_eq!((again.next_sequence(), again.publish(b"")), (next, Err(refused)));
    assert_eq!(subscriber(dir.path()).open().unwrap().next_sequence(), next);
    again.gap(MAX_SEQUENCE - 1).unwrap();
    assert_eq!(again.next_sequence(), MAX_SEQUENCE);
    again.close();
    let again = publisher(dir.path()).open().unwrap();
    assert_eq!(again.next_sequence(), MAX_SEQUENCE);
    assert_eq!(subscriber(dir.path()).open().unwrap().next_sequence(), MAX_SEQUENCE);
    drop((again, reader));
    Directory::at(dir.path()).remove("t").unwrap();
    assert_eq!(publisher(dir.path()).capacity(SMALL).open().unwrap().publish(b""), Ok(1));
}

/// A gap record that no sequence can follow. An older build may have left one.
#[test]
fn a_gap_beyond_all_sequences_is_damage_that_both_ends_name() {
    let dir = scratch();
    let mut writer = publisher(dir.path()).capacity(SMALL).open().unwrap();
    let mut reader = subscriber(dir.path()).open().unwrap();
    writer.publish(b"one").unwrap();
    writer.gap(9).unwrap();
    // The gap is the second record of 64 bytes. Its fifth word is its last sequence.
    let file = File::options().write(true).open(dir.path().join("t/segment")).unwrap();
    file.write_all_at(&MAX_SEQUENCE.to_le_bytes(), 4096 + SMALL / 64 * 8 + 64 + 4 * 8).unwrap();
    assert!(matches!(reader.recv().unwrap(), Event::Message(_)));
    assert!(matches!(reader.recv(), Err(shmcast::RecvError::Corrupt(_))));
    drop(writer);
    let count = MAX_SEQUENCE.to_le_bytes();
    file.write_all_at(&count, 48 * 8).unwrap();
    let writer = publisher(dir.path()).open().map(drop).unwrap_err();
    let reader = subscriber(dir.path()).open().map(drop).unwrap_err();
    for error in [writer, reader] {
        assert!(matches!(error, ChannelError::Locate { source: LocateError::Corrupt(_), .. }), "{error}");
    }
}
