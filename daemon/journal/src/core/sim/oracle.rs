//! Reads a recovered journal as the format's document says, and returns its items. The oracle shares only the decoding with recovery.

use super::disk::Disk;
use crate::core::Volume;
use shmcast::journal::format::{
    Cause, FILE_HEADER_BYTES, FRAME_HEADER_BYTES, FileHeader, Footer, FrameHeader, FrameKind, JournalControl,
    Loss, RecordBody, Records, TRAILER_BYTES, Trailer, parse_file_name,
};

/// An item of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Item {
    Message(u64, Vec<u8>),
    Lost(Loss),
}

struct File {
    header: FileHeader,
    bytes: Vec<u8>,
}

/// Returns all items of the journal in order. Checks that their sequences follow each other without a hole.
pub(super) fn read(disk: &mut Disk) -> Result<Vec<Item>, String> {
    let mut files = Vec::new();
    let names = disk.list().map_err(|error| error.to_string())?;
    for name in names.into_iter().filter(|name| parse_file_name(name).is_some()) {
        let mut bytes = vec![0; disk.size(&name).map_err(|error| error.to_string())? as usize];
        disk.read(&name, 0, &mut bytes).map_err(|error| error.to_string())?;
        let header = FileHeader::decode(&bytes).map_err(|error| format!("{name}: {error}"))?;
        files.push(File { header, bytes });
    }
    files.sort_by_key(|file| file.header.file);
    if let Some(pair) = files.windows(2).find(|pair| pair[0].header.file == pair[1].header.file) {
        return Err(format!("two files have number {}", pair[0].header.file));
    }
    let mut items = Vec::new();
    let mut due = files.first().map_or(1, |file| file.header.sequence);
    let mut before = None;
    for at in 0..files.len() {
        let end = files[at + 1..].iter().map(|file| file.header.sequence).min().unwrap_or(u64::MAX);
        if files[at].header.sequence.min(end) > due {
            return Err(format!("nothing between {due} and file {}", files[at].header.file));
        }
        if let Some((number, salt, chain)) = std::mem::take(&mut before)
            && files[at].header.file == number + 1
            && files[at].header.previous_salt != 0
            && (files[at].header.previous_salt, files[at].header.previous_chain) != (salt, chain)
        {
            return Err(format!("file {} does not chain to the one before", files[at].header.file));
        }
        let mut own = Vec::new();
        before = one_file(&files[at], &mut own)?;
        for item in own {
            let (from, to) = match &item {
                Item::Message(sequence, _) => (*sequence, *sequence),
                Item::Lost(loss) => (loss.from, loss.to),
            };
            if from >= end || to < due {
                continue;
            }
            if from != due {
                return Err(format!("{due} was due, but there is {item:?}"));
            }
            due = to + 1;
            items.push(item);
        }
    }
    Ok(items)
}

/// Adds the items of one file. Returns the file's number, its salt and its last chain value, to which the next file must refer; `None` if
/// recovery wrote the footer.
fn one_file(file: &File, items: &mut Vec<Item>) -> Result<Option<(u64, u64, u32)>, String> {
    let File { header, bytes } = file;
    let name = header.file;
    let trailer = Trailer::decode(&bytes[bytes.len() - TRAILER_BYTES..], header.salt)
        .map_err(|error| format!("file {name} is not sealed: {error}"))?;
    let footer = frame(bytes, trailer.footer as usize, header.salt)
        .and_then(|(head, body)| (head.kind == FrameKind::Footer).then(|| Footer::decode(body).ok())?);
    let is_recorders = footer.as_ref().is_some_and(|footer| !footer.is_mended);
    let holes = footer.map_or(Vec::new(), |footer| footer.holes);
    let mut at = FILE_HEADER_BYTES;
    let (mut due, mut number) = (header.sequence, 0);
    let mut chain = FileHeader::crc_of(bytes);
    while at < trailer.footer as usize {
        let found = frame(bytes, at, header.salt);
        let (head, body) = match found {
            Some((head, body)) if head.number == number && head.chain == chain => (head, body),
            _ => {
                let Some(next) = beyond(bytes, at, trailer.footer as usize, header.salt, number) else {
                    break;
                };
                at = next;
                frame(bytes, at, header.salt).ok_or("a frame that was whole is not")?
            }
        };
        if head.sequence < due {
            return Err(format!("file {name}: frame {} goes back from {due}", head.number));
        }
        if head.sequence > due {
            items.push(Item::Lost(hole(&holes, due, head.sequence - 1)));
            due = head.sequence;
        }
        if head.kind == FrameKind::Data {
            let mut records = Records::new(&head, body);
            for record in records.by_ref() {
                let record = record.map_err(|error| format!("file {name}: {error}"))?;
                match record.body {
                    RecordBody::Message { payload, .. } => {
                        items.push(Item::Message(record.sequence, payload.to_vec()));
                    }
                    RecordBody::Control(JournalControl::Loss(loss)) => items.push(Item::Lost(loss)),
                    RecordBody::Control(JournalControl::Source { ring, .. }) if ring != header.ring.uuid => {
                        return Err(format!("file {name} has records of another ring than its header names"));
                    }
                    RecordBody::Control(_) => {}
                }
            }
            due = records.due();
        }
        (at, number, chain) = (at + head.frame_bytes(), head.number + 1, head.crc());
    }
    if due < trailer.next {
        items.push(Item::Lost(hole(&holes, due, trailer.next - 1)));
    }
    Ok(is_recorders.then_some((header.file, header.salt, trailer.chain)))
}

fn hole(holes: &[Loss], from: u64, to: u64) -> Loss {
    let known = holes.iter().find(|hole| hole.from == from && hole.to == to);
    Loss { from, to, cause: known.map_or(Cause::Damaged, |hole| hole.cause) }
}

fn frame(bytes: &[u8], at: usize, salt: u64) -> Option<(FrameHeader, &[u8])> {
    let head = FrameHeader::decode(bytes.get(at..)?, salt).ok()?;
    let body = bytes.get(at + FRAME_HEADER_BYTES..)?.get(..head.length as usize)?;
    head.check_body(body).ok()?;
    Some((head, body))
}

fn beyond(bytes: &[u8], at: usize, end: usize, salt: u64, number: u32) -> Option<usize> {
    let start = match FrameHeader::decode(&bytes[at..], salt) {
        Ok(head) => at + head.frame_bytes(),
        Err(_) => at + 64,
    };
    (start..end).step_by(64).find(|&place| {
        frame(bytes, place, salt).is_some_and(|(head, _)| {
            let behind = FrameHeader::decode(&bytes[place + head.frame_bytes()..], salt).ok();
            head.number > number && behind.is_none_or(|behind| behind.chain == head.crc())
        })
    })
}
