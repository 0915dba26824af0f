//! Every sequence and every time is found from anywhere.

use crate::journal::book::{Book, STEP, payload, read, read_dir, wall};
use shmcast::journal::{Cause, Entry, Journal, JournalControl, Loss, Verdict, Verify};
use shmcast_testkit::{PATIENCE, scratch};

/// Three files: two sealed, one that is not. Losses, an empty frame, a frame without a clock.
fn three_files(dir: &std::path::Path) -> Book {
    let mut book = Book::new(dir);
    let source = JournalControl::Source { ring: book.ring, generation: 0, epoch: 1, first: 1 };
    book.begin();
    book.frame(&[source], 10);
    book.frame(&[], 0);
    book.index();
    book.frame_as(&[], 25, false);
    book.seal();
    book.begin();
    let loss = JournalControl::Loss(Loss { from: book.due(), to: book.due() + 99, cause: Cause::Overrun });
    book.frame(&[loss], 3);
    for _ in 0..40 {
        book.frame(&[], 7);
    }
    book.index();
    book.seal();
    book.begin();
    book.frame(&[], 12);
    book.frame_as(&[], 5, false);
    book.leave(8192);
    book
}

#[test]
fn all_is_read_once_and_in_order_from_each_sequence_on() {
    let dir = scratch();
    let book = three_files(dir.path());
    let found = read_dir(dir.path());
    assert_eq!((found.first, found.due), (1, book.due()));
    assert_eq!(found.losses, [Loss { from: 36, to: 135, cause: Cause::Overrun }]);
    for sequence in 1..book.due() {
        let reader = Journal::open(dir.path()).unwrap().read_from(sequence).unwrap();
        let found = read(reader);
        assert_eq!((found.first, found.due), (sequence, book.due()));
        let lost: u64 = found.losses.iter().map(|loss| loss.to - loss.from + 1).sum();
        assert_eq!(found.messages + lost, book.due() - sequence);
        assert_eq!(lost, 136u64.saturating_sub(sequence).min(100));
    }
    // A reader waits for a sequence that is not there yet.
    let mut reader = Journal::open(dir.path()).unwrap().read_from(book.due() + 1000).unwrap();
    assert_eq!(reader.next().unwrap(), None);
}

/// One reader goes to and fro, in sealed files and in the one that grows.
#[test]
fn a_reader_that_seeks_finds_what_one_that_begins_there_finds() {
    let dir = scratch();
    let mut book = three_files(dir.path());
    let mut reader = Journal::open(dir.path()).unwrap().read_from(1).unwrap();
    for round in 0..2_000 {
        if round == 1_000 {
            book.begin();
            book.frame(&[], 30);
            book.leave(4096);
        }
        let sequence = 1 + round * 7_919 % (book.due() - 1);
        reader.seek(sequence).unwrap();
        let mut due = sequence;
        while due < (sequence + round % 20).min(book.due()) {
            match reader.next().unwrap() {
                Some(Entry::Message(m)) => {
                    assert_eq!((m.sequence, m.payload), (due, &payload(due)[..]), "round {round}");
                    let time = m.time;
                    assert_eq!(reader.wall_ns(time), Some(wall(due)));
                }
                Some(Entry::Lost(loss)) => assert_eq!((loss.from, loss.to), (due, 135), "round {round}"),
                Some(_) => {}
                None => panic!("round {round}: nothing at {due}"),
            }
            due = reader.due();
        }
        assert!(due >= sequence);
    }
}

#[test]
fn a_time_leads_to_the_first_message_of_it_or_later() {
    let dir = scratch();
    let book = three_files(dir.path());
    for sequence in (1..book.due()).filter(|sequence| !(36..=135).contains(sequence)) {
        for (time, first) in [(wall(sequence), sequence), (wall(sequence) - STEP / 2, sequence)] {
            let mut reader = Journal::open(dir.path()).unwrap().read_since(time).unwrap();
            let found = loop {
                match reader.next().unwrap() {
                    Some(Entry::Message(m)) => break (m.sequence, m.payload.to_vec()),
                    Some(_) => {}
                    None => panic!("nothing at {time}"),
                }
            };
            assert_eq!(found, (first, payload(first)), "at the time of {sequence}");
        }
    }
    let mut before = Journal::open(dir.path()).unwrap().read_since(0).unwrap();
    assert_eq!(before.due(), 1);
    assert!(before.next().unwrap().is_some());
    let mut after = Journal::open(dir.path()).unwrap().read_since(u64::MAX).unwrap();
    assert!(after.next().unwrap().is_none());
    assert_eq!(after.due(), book.due());
}

#[test]
fn a_check_of_a_sound_journal_finds_its_losses_and_nothing_else() {
    let dir = scratch();
    let book = three_files(dir.path());
    let journal = Journal::open(dir.path()).unwrap();
    let verified = Verify::new(&journal).run(|_| ()).unwrap();
    assert_eq!(verified.damages, []);
    assert_eq!(verified.verdict(), Verdict::Losses);
    assert_eq!((verified.lost(Cause::Overrun), verified.lost(Cause::Damaged)), (100, 0));
    assert_eq!(verified.messages, book.due() - 1 - 100);
    assert_eq!(verified.sequences, Some((1, book.due())));
}

/// Frames that come after the end was read are read later, also in files that come later.
#[test]
fn a_journal_that_grows_is_followed() {
    let dir = scratch();
    let mut book = Book::new(dir.path());
    book.begin();
    book.frame(&[], 5);
    book.show();
    let mut reader = Journal::open(dir.path()).unwrap().read_from(1).unwrap();
    let mut due = 1;
    let mut follow = |until: u64| {
        let start = std::time::Instant::now();
        while due < until {
            assert!(start.elapsed() < PATIENCE, "{due} of {until}");
            match reader.next().unwrap() {
                Some(Entry::Message(m)) => {
                    assert_eq!((m.sequence, m.payload), (due, &payload(due)[..]));
                    due += 1;
                }
                Some(Entry::Lost(loss)) => panic!("{loss:?}"),
                _ => {}
            }
        }
        while let Some(entry) = reader.next().unwrap() {
            assert!(matches!(entry, Entry::Control { .. }), "{entry:?}");
        }
    };
    follow(book.due());
    for round in 0..30 {
        book.frame(&[], round % 5);
        match round % 7 {
            3 => {
                book.seal();
                book.begin();
                book.show();
            }
            5 => {
                book.leave(4096);
                book.begin();
                book.show();
            }
            _ => book.show(),
        }
        follow(book.due());
    }
}
