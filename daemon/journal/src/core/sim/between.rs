//! Tests of a power cut between the footer of one file and the header of the next file. After the cut, the disk can have both, neither, or
//! only one of the two.

use super::super::{Io, Recovered, Volume, recover};
use super::disk::Disk;
use super::oracle::Item;
use super::{header, oracle, readers};
use shmcast::journal::format::{
    Cause, Composer, FILE_HEADER_BYTES, FRAME_HEADER_BYTES, FrameBuilder, FrameHeader, JournalControl, Loss,
    TRAILER_BYTES, file_name,
};

/// The number of messages in each file. Each message has its own frame.
const MESSAGES: u64 = 3;

/// A file as a recorder leaves it: its bytes, and the offset of its footer.
struct Made {
    name: String,
    bytes: Vec<u8>,
    footer: usize,
}

fn payload(sequence: u64) -> Vec<u8> {
    vec![sequence as u8; 3]
}

/// Returns `count` consecutive files of a recorder. Each frame and each footer states as durable all messages up to the message `lag`
/// before it. `lag` is at least 1. The last record of file `clean` says that the channel was closed.
fn files(count: u64, lag: u64, clean: u64) -> Vec<Made> {
    let mut made = Vec::new();
    let mut previous = (0, 0);
    let mut due: u64 = 1;
    for number in 1..=count {
        let recovered = Recovered { next_number: number, previous, ..Recovered::default() };
        let mut head = header(&recovered, due, 1, 1);
        (head.salt, head.reserve) = (number * 0x0101_0101, due + 100);
        let (mut composer, page) = Composer::begin(&head).unwrap();
        let mut bytes = page.into_vec();
        for at in 0..MESSAGES {
            let mut frame = FrameBuilder::new(Vec::new(), due, 1);
            if at == 0 {
                frame.control(JournalControl::Reserve { sequence: due + 100 }, 0);
            }
            frame.message(&payload(due), 0, false, 1);
            due += 1;
            if at + 1 == MESSAGES && number == clean {
                frame.control(JournalControl::Clean { next: due }, 0);
            }
            let (draft, mut frame) = frame.close();
            let placed = composer.place(&draft, (due - 1).saturating_sub(lag));
            frame[..FRAME_HEADER_BYTES].copy_from_slice(&placed.encode());
            bytes.extend_from_slice(&frame);
        }
        let footer = bytes.len();
        bytes.extend_from_slice(&composer.seal((due - 1).saturating_sub(lag)));
        previous = (composer.salt(), composer.chain());
        made.push(Made { name: file_name(number, head.sequence), bytes, footer });
    }
    made
}

fn disk(files: &[Made]) -> Disk {
    let mut disk = Disk::new(1, Io::Buffered);
    for file in files {
        disk.write(&file.name, 0, &file.bytes).unwrap();
        disk.truncate(&file.name, file.bytes.len() as u64).unwrap();
        disk.sync(&file.name).unwrap();
    }
    disk.sync_directory().unwrap();
    disk
}

/// Asserts three things. Before recovery, readers find damage if and only if `is_damaged`. After recovery, the journal has `items`. Readers
/// then find the same items and no damage.
fn assert_holds(files: &[Made], items: &[Item], is_damaged: bool) -> Recovered {
    let mut disk = disk(files);
    let before = readers::read(&disk).unwrap();
    let damage = before.and_then(|read| read.damage());
    assert_eq!(damage.is_some(), is_damaged, "before recovery: {damage:?}");
    let recovered = recover(&mut disk).unwrap();
    assert_eq!(oracle::read(&mut disk).unwrap(), items);
    if let Some(read) = readers::read(&disk).unwrap() {
        assert_eq!(read.stream, readers::stream(items));
        assert_eq!(read.damage(), None, "after recovery");
    }
    let again = recover(&mut disk).unwrap();
    assert_eq!(again, Recovered { mended: Vec::new(), ..recovered.clone() });
    recovered
}

fn messages(of: std::ops::RangeInclusive<u64>) -> Vec<Item> {
    of.map(|sequence| Item::Message(sequence, payload(sequence))).collect()
}

const ALLOCATED: usize = 16 << 10;

/// Leaves only the first `written` bytes of a file, and zeros after them, as if the file had not been cut to its final size yet.
fn unsealed(file: &mut Made, written: usize) {
    file.bytes.truncate(written);
    file.bytes.resize(ALLOCATED - 64, 0);
}

/// The next file refers to a footer that is gone. Recovery cannot rebuild the same footer, because it does not know which sequence the
/// footer stated as durable. This is no damage.
#[test]
fn a_footer_that_is_lost_is_no_damage() {
    for lag in [1, 2, 3] {
        let mut files = files(2, lag, 0);
        let footer = files[0].footer;
        unsealed(&mut files[0], footer);
        let recovered = assert_holds(&files, &messages(1..=6), false);
        assert_eq!((recovered.due, recovered.mended.len()), (7, 1));
        // The file ends where the footer would begin.
        files[0].bytes.truncate(footer);
        assert_holds(&files, &messages(1..=6), false);
        // Garbage is in the place of the footer.
        files[0].bytes.extend_from_slice(&[0x5a; 300]);
        assert_holds(&files, &messages(1..=6), false);
    }
}

/// Even if the trailer is lost, recovery keeps a whole footer unchanged. So the next file still refers to this footer.
#[test]
fn a_trailer_that_is_lost_is_no_damage() {
    let whole = files(2, 2, 0);
    for lost in [TRAILER_BYTES, 1000] {
        let mut files = files(2, 2, 0);
        let end = files[0].bytes.len();
        unsealed(&mut files[0], end - lost);
        assert_holds(&files, &messages(1..=6), false);
        let mut disk = disk(&files);
        recover(&mut disk).unwrap();
        let found = disk.files().find(|(name, _)| *name == whole[0].name).unwrap().1.to_vec();
        assert!(found == whole[0].bytes, "it is not the recorder's footer");
    }
    // The trailer is on the disk, but the file's size was not durable.
    let mut files = files(2, 2, 0);
    let end = files[0].bytes.len();
    unsealed(&mut files[0], end);
    assert_holds(&files, &messages(1..=6), false);
    // A file gets its final size only after its trailer is durable. So a file of this size without a trailer is damaged.
    files[0].bytes.truncate(end - TRAILER_BYTES);
    files[0].bytes.resize(end, 0);
    assert_holds(&files, &messages(1..=6), true);
}

/// After a power cut, a file's name can be on the disk without the file's bytes. Such a file does not count.
#[test]
fn a_file_without_a_byte_is_none() {
    for size in [0, 64, FILE_HEADER_BYTES, ALLOCATED - 64] {
        let mut files = files(2, 1, 0);
        files[1].bytes.clear();
        files[1].bytes.resize(size, 0);
        let recovered = assert_holds(&files, &messages(1..=3), false);
        assert_eq!((recovered.due, recovered.next_number), (4, 2));
        let mut disk = disk(&files);
        recover(&mut disk).unwrap();
        assert_eq!(disk.files().count(), 1, "{size} zeros are kept for nobody");
    }
}

/// If a file's header is lost, its frames are lost too. Recovery keeps the file for inspection. No other file gets the file's number.
#[test]
fn a_header_that_is_lost_takes_what_was_not_durable() {
    let mut files = files(2, 3, 0);
    files[1].bytes[..FILE_HEADER_BYTES].fill(0);
    let recovered = assert_holds(&files, &messages(1..=3), false);
    assert_eq!((recovered.due, recovered.next_number), (4, 3));
    let mut disk = disk(&files);
    recover(&mut disk).unwrap();
    let torn = format!("{}.torn", files[1].name);
    assert!(disk.files().any(|(name, _)| name == torn));
    // If later frames state that this file's messages were durable, the loss of the file is damage.
    files[1].bytes = self::files(2, 1, 0)[1].bytes.clone();
    files[1].bytes[0] ^= 1;
    let mut disk = self::disk(&files);
    let damage = readers::read(&disk).unwrap().unwrap().damage();
    assert!(damage.is_some());
    assert_eq!(recover(&mut disk).unwrap().next_number, 3);
}

/// A file between two other files is gone, and the earlier of the two is sealed. If a later file states that the missing sequences were
/// durable, they count as damaged, and otherwise as torn by the crash.
#[test]
fn a_file_that_is_gone_between_two_others_is_named_as_lost() {
    for (lag, cause) in [(6, Cause::Torn), (1, Cause::Damaged)] {
        let lost = Item::Lost(Loss { from: 4, to: 6, cause });
        let items = [messages(1..=3), vec![lost], messages(7..=9)].concat();
        let is_damaged = cause == Cause::Damaged;
        let mut files = files(3, lag, 0);
        let footer = files[2].footer;
        unsealed(&mut files[2], footer);
        // The file loses its frames.
        unsealed(&mut files[1], FILE_HEADER_BYTES);
        assert_holds(&files, &items, is_damaged);
        // The file also loses its header.
        files[1].bytes.fill(0);
        assert_holds(&files, &items, is_damaged);
        // The whole file is gone.
        files.remove(1);
        assert_holds(&files, &items, is_damaged);
    }
}

/// The power fails at any point while recovery creates a file in place of a missing file.
#[test]
fn a_file_that_stands_in_is_made_once() {
    let lost = Item::Lost(Loss { from: 4, to: 6, cause: Cause::Torn });
    let items = [messages(1..=3), vec![lost], messages(7..=9)].concat();
    let mut files = files(3, 6, 0);
    let footer = files[2].footer;
    unsealed(&mut files[2], footer);
    files.remove(1);
    for calls in 0..60 {
        let mut disk = disk(&files);
        for more in 0..3 {
            disk.calls_left = Some(calls + more);
            if recover(&mut disk).is_err() {
                disk.cut();
            }
        }
        disk.calls_left = None;
        let recovered = recover(&mut disk).unwrap();
        assert_eq!(oracle::read(&mut disk).unwrap(), items, "cut after {calls} calls");
        assert_eq!((recovered.due, recovered.next_number), (10, 4));
    }
}

/// The last file has no frame left. So the clean record in the file before it still ends the journal, and no reserve of the last file can
/// have been given to a publisher.
#[test]
fn a_file_without_a_frame_says_nothing() {
    let mut files = files(2, 1, 1);
    unsealed(&mut files[1], FILE_HEADER_BYTES);
    let recovered = assert_holds(&files, &messages(1..=3), false);
    assert!(recovered.is_clean);
    assert_eq!((recovered.after_power_cut(), recovered.reserve), (Some((4, None)), 101));
    assert_eq!(recovered.next_number, 3, "a reader may know the number");
}

/// After a file was set aside, no new file gets the number in its name.
#[test]
fn a_number_that_was_set_aside_is_not_given_again() {
    let files = files(2, 1, 0);
    let mut disk = disk(&files[..1]);
    disk.write(&format!("{}.torn", files[1].name), 0, b"for people").unwrap();
    assert_eq!(recover(&mut disk).unwrap().next_number, 3);
}

/// If a later file repeats frames of an abandoned file, the copies in the abandoned file do not count, and neither does a reserve in them.
#[test]
fn a_reserve_behind_the_place_where_the_next_file_begins_does_not_count() {
    let mut files = files(2, 1, 0);
    // The first file was abandoned at sequence 2. The second file has the messages from sequence 2 on.
    let recovered = Recovered { next_number: 2, ..Recovered::default() };
    let mut head = header(&recovered, 2, 1, 1);
    head.reserve = 50;
    let (mut composer, page) = Composer::begin(&head).unwrap();
    let mut frame = FrameBuilder::new(Vec::new(), 2, 1);
    frame.message(&payload(2), 0, false, 1);
    let (draft, mut frame) = frame.close();
    let placed: FrameHeader = composer.place(&draft, 1);
    frame[..FRAME_HEADER_BYTES].copy_from_slice(&placed.encode());
    files[1] = Made { name: file_name(2, 2), bytes: page.into_vec(), footer: 0 };
    files[1].bytes.extend_from_slice(&frame);
    let footer = files[0].footer;
    unsealed(&mut files[0], footer);
    let recovered = assert_holds(&files, &messages(1..=2), false);
    assert_eq!((recovered.due, recovered.reserve), (3, 50));
}

/// Each bit of each file is flipped. In headers and zeros, only one bit of every eighth byte is flipped. Recovery must lose only the frame
/// with the flipped bit, or only the file if the bit is in its header. No message may have a wrong payload.
#[test]
fn a_flipped_bit_costs_its_frame_at_most_behind_recovery() {
    let mut files = files(3, 1, 0);
    let footer = files[2].footer;
    unsealed(&mut files[2], footer);
    let whole = disk(&files);
    for (index, file) in files.iter().enumerate() {
        let own = index as u64 * MESSAGES + 1..=(index as u64 + 1) * MESSAGES;
        for at in 0..file.bytes.len() {
            let is_plain = at < FILE_HEADER_BYTES || file.bytes[at & !63..][..64] == [0; 64];
            if is_plain && !at.is_multiple_of(8) {
                continue;
            }
            for bit in 0..if is_plain { 1 } else { 8 } {
                let mut disk = whole.clone();
                disk.write(&file.name, at as u64, &[file.bytes[at] ^ 1 << bit]).unwrap();
                let recovered = recover(&mut disk).unwrap();
                let what = format!("bit {bit} of byte {at} of file {}", index + 1);
                let items = oracle::read(&mut disk).unwrap_or_else(|error| panic!("{what}: {error}"));
                let mut kept = 0;
                for item in &items {
                    if let Item::Message(sequence, found) = item {
                        assert_eq!(*found, payload(*sequence), "{what}");
                        kept += 1;
                    }
                }
                let costs = if at < FILE_HEADER_BYTES { MESSAGES } else { 1 };
                assert!(kept >= 3 * MESSAGES - costs, "{what}: {items:?}");
                let others = messages(1..=3 * MESSAGES);
                let is_here =
                    |item: &Item| matches!(item, Item::Message(sequence, _) if own.contains(sequence));
                assert!(others.iter().all(|item| is_here(item) || items.contains(item)), "{what}: {items:?}");
                let again = recover(&mut disk).unwrap();
                assert_eq!(again, Recovered { mended: Vec::new(), ..recovered }, "{what}");
            }
        }
    }
}
