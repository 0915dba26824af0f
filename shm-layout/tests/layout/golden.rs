//! The bytes of a whole segment after a fixed sequence of operations, checked in as a listing that another language's
//! implementation can be tested with: `golden/segment.txt` names every word that is not zero.
//!
//! A change here is a change of the layout. To write the listing anew: `UPDATE_GOLDEN=1 cargo test -p shmcast-layout --test layout golden::`.

use crate::common::{nameless, segment};
use shmcast_layout::layout::geometry::HEADER_BYTES;
use shmcast_layout::layout::record::{Commit, ControlRecord, Flags};
use shmcast_layout::ring::locate::Place;
use shmcast_layout::ring::reader::{Copied, Poll};
use shmcast_layout::segment::{Access, Segment};
use std::fmt::Write;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const CAPACITY: u64 = 64 << 10;
const INDEX: usize = HEADER_BYTES as usize / 8;
const DATA: usize = INDEX + CAPACITY as usize / 64;

/// Bytes 1, 2, 3..., so that a wrong order shows.
fn counting(length: u8) -> Vec<u8> {
    (1..=length).collect()
}

/// Zeros with a mark at the end: large messages that make few lines.
fn marked(length: usize, mark: u8) -> Vec<u8> {
    let mut payload = vec![0; length];
    payload[length - 1] = mark;
    payload
}

fn messages() -> Vec<(Vec<u8>, u16, bool, u64)> {
    let mut messages = vec![
        (vec![], 0, false, 1001),
        (b"hello".to_vec(), 0xbeef, false, 1002),
        (counting(48), 1, false, 1003),
        (counting(49), 2, true, 1004),
        (marked(8192, 0xee), 3, false, 0x0001_2345_6789_abcd),
    ];
    for mark in 1..=7 {
        messages.push((marked(8100, mark), 4, false, 1100 + u64::from(mark)));
    }
    messages
}

fn write() -> File {
    let (file, segment) = segment();
    let mut writer = segment.writer(1234, 1000).unwrap();
    for (i, (payload, tag, key, time)) in messages().into_iter().enumerate() {
        if i == 3 {
            writer.gap(writer.next_sequence() + 2, 1500).unwrap();
            writer.session(*b"SESSION-42", 1501);
        }
        writer.publish(&payload, tag, key, time).unwrap();
    }
    writer.close(2000);
    let mut writer = segment.writer(5678, 3000).unwrap();
    writer.publish(b"after", 5, false, 3001).unwrap();
    file
}

fn words(file: &File) -> Vec<u64> {
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

fn crc(words: &[u64]) -> u32 {
    words.iter().fold(0, |crc, word| crc32c::crc32c_append(crc, &word.to_le_bytes()))
}

fn header_note(at: usize) -> String {
    const NAMES: [&str; 16] = [
        "magic, \"SHMCAST1\"",
        "clock kind; version: major 2, minor 0",
        "capacity",
        "granule",
        "chunk",
        "index entries",
        "max message",
        "data offset",
        "uuid, first half",
        "uuid, second half",
        "stream id, first half",
        "stream id, second half",
        "created, ns since 1970",
        "clock ticks per second",
        "schema id",
        "crc32c of words 1..15 and 64..512",
    ];
    let living = match at {
        0..16 => NAMES[at],
        16 => "FRONTIER",
        32 => "STATE: epoch 2, active",
        33 => "writer pid",
        48 => "LAZY: messages published",
        49 => "LAZY: time",
        50 => "LAZY: last key sequence",
        51 => "LAZY: payload bytes published",
        58 => "remote session, first 8 bytes",
        59 => "remote session: there is one, last 2 bytes",
        64 => "length of the channel's name",
        66 => "length of the schema's name",
        68 => "length of the labels",
        65 | 67 | 69 => "its bytes",
        _ => panic!("word {at} has no name"),
    };
    living.to_owned()
}

fn commit_note(word: u64) -> String {
    let commit = Commit::from_word(word);
    let kind = [(Flags::PAD, "pad"), (Flags::KEY, "key message"), (Flags::CONTROL, "control record")]
        .into_iter()
        .find(|(flag, _)| commit.flags().has(*flag))
        .map_or("message", |(_, kind)| kind);
    format!("{kind}, sequence {}, {} B", commit.sequence_low(), commit.length())
}

/// One line a word: offset in the segment, value, meaning.
fn listing(words: &[u64]) -> String {
    let mut text = format!(
        "# A segment of 64 KiB, little-endian: byte offset, 8-byte word, meaning. All other words are zero.\n\
         # {} bytes, crc32c of all of them {:#010x}\n",
        words.len() * 8,
        crc(words)
    );
    // The places where records begin. Granules of payload have words there too.
    let mut record_end = DATA;
    for (at, word) in words.iter().copied().enumerate().filter(|(_, word)| *word != 0) {
        let note = match at {
            _ if at < INDEX => header_note(at),
            _ if at < DATA => format!("index[{}]", at - INDEX),
            _ if at >= record_end && (at - DATA).is_multiple_of(8) => {
                record_end = at + Commit::from_word(word).record_bytes() as usize / 8;
                format!("offset {:#x}: {}", (at - DATA) * 8, commit_note(word))
            }
            _ if at >= record_end => "left over from a lap ago".to_owned(),
            _ => "  its words".to_owned(),
        };
        writeln!(text, "{:#08x} {word:#018x}  {note}", at * 8).unwrap();
    }
    text
}

/// The words that a listing stands for.
fn parse(listing: &str) -> Vec<u64> {
    let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
    let mut words = vec![0; DATA + CAPACITY as usize / 8];
    for line in listing.lines().filter(|line| !line.starts_with('#')) {
        let mut columns = line.split_whitespace();
        let at = hex(columns.next().unwrap()) as usize / 8;
        words[at] = hex(columns.next().unwrap());
    }
    words
}

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/segment.txt")
}

fn golden() -> String {
    std::fs::read_to_string(path()).unwrap()
}

#[test]
fn a_whole_segment_to_the_byte() {
    let listing = listing(&words(&write()));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(path(), &listing).unwrap();
    }
    let golden = golden();
    for (i, (found, golden)) in listing.lines().zip(golden.lines()).enumerate() {
        assert_eq!(found, golden, "line {}", i + 1);
    }
    assert_eq!(listing.lines().count(), golden.lines().count());
}

/// The listing is enough: a file made from it alone is read as what was published.
#[test]
fn the_listing_is_a_segment() {
    let golden = golden();
    let words = parse(&golden);
    let said = golden.lines().nth(1).unwrap();
    assert!(said.ends_with(&format!("{:#010x}", crc(&words))), "{said}");
    let file = nameless();
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    file.write_all_at(&bytes, 0).unwrap();
    let segment = Segment::open(&file, Access::Read).unwrap();
    assert_eq!(segment.header().channel, "ticks");
    let place = segment.locator().seek(10).unwrap();
    let mut reader = segment.reader(place);
    let mut out = [0; 8192];
    // The first records are overwritten by now. All others must be there.
    let mut expected: Vec<Poll> = Vec::new();
    for (i, (payload, tag, key, time)) in messages().into_iter().enumerate().skip(6) {
        let time = time & ((1 << 48) - 1);
        expected.push(Poll::Message(Copied {
            length: payload.len(),
            sequence: i as u64 + 4,
            tag,
            key,
            time,
        }));
    }
    expected.push(Poll::Control(ControlRecord::End));
    expected.push(Poll::Control(ControlRecord::Epoch { epoch: 2 }));
    expected.push(Poll::Message(Copied { length: 5, sequence: 16, tag: 5, key: false, time: 3001 }));
    for expected in expected {
        assert_eq!(reader.poll(&mut out), expected);
        if let Poll::Message(Copied { length, sequence: sequence @ 10..16, .. }) = expected {
            assert_eq!(out[..length], messages()[sequence as usize - 4].0);
        }
    }
    assert_eq!(&out[..5], b"after");
    assert_eq!(reader.poll(&mut out), Poll::Empty);
    assert_eq!(reader.place(), segment.locator().tail().unwrap());
    assert_eq!(segment.reader(Place::START).poll(&mut out), Poll::Lapped);
}
