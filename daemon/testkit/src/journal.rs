//! Reads a journal by the rules of JOURNAL.md, without the code of the product's journal readers.

use shmcast::journal::format::{
    FILE_HEADER_BYTES, FRAME_HEADER_BYTES, FileHeader, FrameHeader, FrameKind, JournalControl, Loss,
    RecordBody, Records, TRAILER_BYTES, Trailer, parse_file_name,
};
use std::path::{Path, PathBuf};

/// An entry of a journal: a message with its sequence and payload, or a loss.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    Message(u64, Vec<u8>),
    Lost(Loss),
}

/// The contents of a journal, as [`read`] returns them.
pub struct Journal {
    pub items: Vec<Item>,
    pub files: usize,
    pub sealed: usize,
    pub controls: Vec<JournalControl>,
}

impl Journal {
    pub fn messages(&self) -> Vec<(u64, &[u8])> {
        let message = |item| match item {
            &Item::Message(sequence, ref payload) => Some((sequence, &payload[..])),
            Item::Lost(_) => None,
        };
        self.items.iter().filter_map(message).collect()
    }

    pub fn losses(&self) -> Vec<Loss> {
        let lost = |item: &Item| if let Item::Lost(loss) = item { Some(*loss) } else { None };
        self.items.iter().filter_map(lost).collect()
    }
}

/// Returns the folder of the newest stream in a journal's directory. If there is no stream, returns the directory itself.
pub fn folder(dir: &Path) -> PathBuf {
    shmcast::journal::Journal::open(dir).map_or_else(|_| dir.to_owned(), |journal| journal.path().to_owned())
}

/// Reads all files of a journal, and checks that the sequences of messages and losses are complete and in order.
pub fn read(dir: &Path) -> Journal {
    let mut files: Vec<(FileHeader, Vec<u8>)> = std::fs::read_dir(folder(dir))
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| parse_file_name(&entry.file_name().to_string_lossy()).is_some())
        .map(|entry| std::fs::read(entry.path()).unwrap())
        // A file that has just been created might not have a header yet. It is left out.
        .filter_map(|bytes| Some((FileHeader::decode(&bytes).ok()?, bytes)))
        .collect();
    files.sort_by_key(|(header, _)| header.file);
    let mut journal = Journal { items: Vec::new(), files: files.len(), sealed: 0, controls: Vec::new() };
    let mut due = files.first().map_or(1, |(header, _)| header.sequence);
    for (at, (header, bytes)) in files.iter().enumerate() {
        let end = files[at + 1..].iter().map(|(header, _)| header.sequence).min().unwrap_or(u64::MAX);
        if header.sequence >= end && header.sequence > due {
            continue; // the file was abandoned, and a later file has all its messages
        }
        assert!(header.sequence <= due, "nothing between {due} and file {}", header.file);
        let is_sealed = Trailer::decode(&bytes[bytes.len() - TRAILER_BYTES..], header.salt).is_ok();
        journal.sealed += usize::from(is_sealed);
        one_file(header, bytes, end, is_sealed, &mut due, &mut journal);
    }
    journal
}

fn one_file(
    header: &FileHeader,
    bytes: &[u8],
    end: u64,
    is_sealed: bool,
    due: &mut u64,
    journal: &mut Journal,
) {
    let mut place = FILE_HEADER_BYTES;
    let mut chain = FileHeader::crc_of(bytes);
    while let Ok(frame) = FrameHeader::decode(bytes.get(place..).unwrap_or_default(), header.salt) {
        assert_eq!(frame.chain, chain, "file {}, frame {}", header.file, frame.number);
        let body = &bytes[place + FRAME_HEADER_BYTES..][..frame.length as usize];
        if frame.check_body(body).is_err() {
            assert!(!is_sealed, "file {}, frame {}", header.file, frame.number);
            return; // the frame is being written
        }
        assert!(frame.frame_bytes() <= header.largest_frame as usize || frame.kind != FrameKind::Data);
        if frame.kind == FrameKind::Data {
            for record in Records::new(&frame, body) {
                let record = record.unwrap();
                let (from, to, item) = match record.body {
                    RecordBody::Message { payload, .. } => {
                        (record.sequence, record.sequence, Item::Message(record.sequence, payload.to_vec()))
                    }
                    RecordBody::Control(JournalControl::Loss(loss)) => (loss.from, loss.to, Item::Lost(loss)),
                    RecordBody::Control(control) => {
                        journal.controls.push(control);
                        continue;
                    }
                };
                if from >= end || to < *due {
                    continue;
                }
                assert_eq!(from, *due, "{item:?}");
                *due = to + 1;
                journal.items.push(item);
            }
        }
        (place, chain) = (place + frame.frame_bytes(), frame.crc());
    }
}
