//! Tests of files that were damaged on purpose. Recovery keeps every whole frame, and accepts nothing else as a frame.

use super::super::mutant::{CHOSEN, Mutant};
use super::super::{Io, Recovered, Scan, Volume, recover};
use super::disk::Disk;
use super::{header, oracle};
use shmcast::journal::format::{
    Cause, Composer, FILE_HEADER_BYTES, FRAME_HEADER_BYTES, FileHeader, FrameBuilder, FrameHeader, Loss,
    TRAILER_BYTES,
};

const NAME: &str = "0000000001-00000000000000000001.smj";

/// Makes a file with one frame for each payload. Also returns the offset and the header of each frame.
fn file(payloads: &[Vec<u8>], durable: u64) -> (Disk, Vec<(u64, FrameHeader)>) {
    let recovered = Recovered { next_number: 1, ..Recovered::default() };
    let (composer, page) = Composer::begin(&header(&recovered, 1, 1, 1)).unwrap();
    file_behind(&page, composer, payloads, durable)
}

/// Makes a file with the first page `page` and one frame for each payload. Also returns the offset and the header of each frame.
fn file_behind(
    page: &[u8],
    mut composer: Composer,
    payloads: &[Vec<u8>],
    durable: u64,
) -> (Disk, Vec<(u64, FrameHeader)>) {
    let mut bytes = page.to_vec();
    let mut places = Vec::new();
    for (at, payload) in payloads.iter().enumerate() {
        let mut frame = FrameBuilder::new(Vec::new(), at as u64 + 1, 1);
        frame.message(payload, 0, false, 1);
        let (draft, mut frame) = frame.close();
        let place = composer.offset();
        let head = composer.place(&draft, durable);
        frame[..FRAME_HEADER_BYTES].copy_from_slice(&head.encode());
        bytes.extend_from_slice(&frame);
        places.push((place, head));
    }
    bytes.resize(bytes.len().next_multiple_of(4096) + 4096, 0);
    let mut disk = Disk::new(1, Io::Buffered);
    disk.write(NAME, 0, &bytes).unwrap();
    (disk, places)
}

fn scan(disk: &mut Disk) -> Scan {
    let recovered = Recovered { next_number: 1, ..Recovered::default() };
    let size = disk.size(NAME).unwrap();
    Scan::run(disk, NAME, &header(&recovered, 1, 1, 1), size).unwrap()
}

fn holes(mut scan: Scan) -> Vec<Loss> {
    let bytes = scan.composer.seal(0);
    let head = FrameHeader::decode(&bytes, scan.composer.salt()).unwrap();
    let body = &bytes[FRAME_HEADER_BYTES..][..head.length as usize];
    shmcast::journal::format::Footer::decode(body).unwrap().holes
}

fn with<T>(mutant: Mutant, look: impl FnOnce() -> T) -> T {
    CHOSEN.set(Some(mutant));
    let seen = look();
    CHOSEN.set(None);
    seen
}

/// Zeroes one sector at a time, from the first frame up to the last two frames. Only the frames that touch this sector may be missing, with
/// the right cause.
#[test]
fn a_lost_sector_costs_the_frames_that_it_touches() {
    let payloads: Vec<Vec<u8>> = (0..12).map(|at| vec![at; 400]).collect();
    let (_, places) = file(&payloads, 0);
    let end = places[10].0;
    for durable in [0, 12] {
        for sector in (4096..end).step_by(512) {
            let (mut disk, places) = file(&payloads, durable);
            disk.write(NAME, sector, &[0; 512]).unwrap();
            let touched = |place: &(u64, FrameHeader)| {
                place.0 < sector + 512 && place.0 + place.1.frame_bytes() as u64 > sector
            };
            let lost = places.iter().filter(|place| touched(place)).count() as u64;
            let found = scan(&mut disk);
            assert_eq!(found.frames, 12 - lost, "sector {sector}");
            assert_eq!(found.composer.due(), 13);
            let holes = holes(found);
            assert_eq!(holes.iter().map(|hole| hole.to - hole.from + 1).sum::<u64>(), lost);
            let cause = if durable == 0 { Cause::Torn } else { Cause::Damaged };
            assert!(holes.iter().all(|hole| hole.cause == cause), "{holes:?}");
            disk.forget(NAME);
            let cut_short = with(Mutant::TruncateAtFirstBad, || scan(&mut disk));
            assert!(cut_short.composer.due() < 13, "the mistake does not show");
        }
    }
}

/// If a file's trailer is damaged, recovery reads the frames and the footer. Only the footer says that the last frames were durable.
#[test]
fn a_footer_tells_damage_from_what_never_was_durable() {
    for lost in 0..3 {
        let (mut disk, places) = file(&[vec![1; 400], vec![2; 400], vec![3; 400]], 0);
        let mut whole = scan(&mut disk);
        let end = whole.composer.offset();
        let footer = whole.composer.seal(3);
        disk.write(NAME, end, &footer[..footer.len() - TRAILER_BYTES]).unwrap();
        disk.write(NAME, places[lost].0, &[0; FRAME_HEADER_BYTES]).unwrap();
        let found = scan(&mut disk);
        assert_eq!((found.frames, found.durable, found.composer.due()), (2, 3, 4));
        let from = lost as u64 + 1;
        assert_eq!(holes(found), [Loss { from, to: from, cause: Cause::Damaged }]);
    }
    // A footer can be the only whole frame that is left.
    let (mut disk, places) = file(&[vec![1; 400]], 0);
    let mut whole = scan(&mut disk);
    let end = whole.composer.offset();
    let footer = whole.composer.seal(1);
    disk.write(NAME, end, &footer[..footer.len() - TRAILER_BYTES]).unwrap();
    disk.write(NAME, places[0].0, &[0; FRAME_HEADER_BYTES]).unwrap();
    let recovered = recover(&mut disk).unwrap();
    assert_eq!((recovered.due, recovered.mended[0].frames), (2, 0));
    let loss = Loss { from: 1, to: 1, cause: Cause::Damaged };
    assert_eq!(oracle::read(&mut disk).unwrap(), [oracle::Item::Lost(loss)]);
}

/// A file's name has another number than its header. The next file must get neither number.
#[test]
fn a_name_that_is_another_files_is_not_given_again() {
    let (mut disk, _) = file(&[vec![1; 400]], 0);
    disk.rename(NAME, "0000000007-00000000000000000001.smj").unwrap();
    assert_eq!(recover(&mut disk).unwrap().next_number, 8);
}

/// A file of a later minor version has header fields that this version does not know. The first frame's chain value covers the whole page
/// with these fields.
#[test]
fn a_file_of_a_later_minor_version_keeps_its_frames() {
    let recovered = Recovered { next_number: 1, ..Recovered::default() };
    let known = header(&recovered, 1, 1, 1);
    let mut page = known.encode().unwrap();
    (page[10], page[168]) = (1, 7);
    let crc = crc32c::crc32c(&page[..FILE_HEADER_BYTES - 4]);
    page[FILE_HEADER_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(FileHeader::decode(&page).unwrap(), known);
    let (mut disk, _) = file_behind(&page, Composer::resume(&known, crc), &[vec![1; 400], vec![2; 400]], 0);
    let found = scan(&mut disk);
    assert_eq!((found.frames, found.composer.due(), found.behind), (2, 3, 0));
    let recovered = recover(&mut disk).unwrap();
    assert_eq!((recovered.due, recovered.mended[0].frames), (3, 2));
}

/// Returns a payload that ends with an imitated frame with `salt`. The payload fills its own frame to the end, so the next real frame
/// follows the imitation directly.
fn payload_with_a_frame(salt: u64) -> Vec<u8> {
    let mut frame = FrameBuilder::new(Vec::new(), 5, 1);
    frame.message(&[0xfa; 700], 0, false, 1);
    let (draft, mut bytes) = frame.close();
    let recovered = Recovered { next_number: 1, ..Recovered::default() };
    let mut head = header(&recovered, 5, 1, 1);
    head.salt = salt;
    let (mut composer, _) = Composer::begin(&head).unwrap();
    let mut fake = composer.place(&draft, 0);
    fake.number = 5;
    bytes[..FRAME_HEADER_BYTES].copy_from_slice(&fake.encode());
    let mut payload = vec![0xee; 48 + 448];
    payload.extend_from_slice(&bytes);
    payload
}

/// Destroys the header of the frame whose payload has the imitated frame, so that the search finds the imitation.
fn imitated(salt: u64) -> Scan {
    let payloads = [vec![1; 400], payload_with_a_frame(salt), vec![3; 400], vec![4; 400]];
    let (mut disk, places) = file(&payloads, 0);
    disk.write(NAME, places[1].0, &[0; 64]).unwrap();
    scan(&mut disk)
}

#[test]
fn a_payload_does_not_pass_for_a_frame() {
    let whole = |found: Scan| (found.frames, found.composer.due());
    let own = 1; // the salt of `header`
    assert_eq!(whole(imitated(own)), (3, 5));
    assert_eq!(whole(imitated(own + 1)), (3, 5));
    assert_ne!(whole(with(Mutant::NoChain, || imitated(own))), (3, 5), "the mistake does not show");
    let both = with(Mutant::NoSalt, || imitated(own + 1));
    assert_eq!(whole(both), (3, 5), "the chain finds it even so");
}

/// If an imitated frame is the last in a file, no chain value of a next frame exposes it. Only the salt tells the imitation from a real
/// frame.
#[test]
fn a_payload_at_the_end_does_not_pass_for_a_frame() {
    let end = |salt| {
        let (mut disk, places) = file(&[vec![1; 400], payload_with_a_frame(salt)], 0);
        disk.write(NAME, places[1].0, &[0; 64]).unwrap();
        scan(&mut disk).frames
    };
    assert_eq!(end(2), 1);
    assert_eq!(with(Mutant::NoSalt, || end(2)), 2, "the mistake does not show");
}
