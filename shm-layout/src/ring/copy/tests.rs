use super::*;
use crate::ring::cells::Cells;

/// A copier without AVX, and the copier of this processor.
fn copiers() -> [Copier; 2] {
    [Copier { has_avx: false }, Copier::of_this_processor()]
}

/// The byte at index `i`. It differs from 0xee and 0xff, with which the tests fill the memory before a copy.
fn byte(i: usize) -> u8 {
    (i * 7 + 1) as u8 & 0x7f
}

#[test]
fn every_length_is_loaded_at_every_alignment_and_nothing_else_is_touched() {
    let cells = Cells::zeroed(64);
    for (i, word) in cells.iter().enumerate() {
        word.store(u64::from_ne_bytes(std::array::from_fn(|j| byte(8 * i + j))), Ordering::Relaxed);
    }
    for (copier, length) in copiers().into_iter().flat_map(|copier| (0..=260).map(move |n| (copier, n))) {
        for align in 0..8 {
            let mut out = vec![0xee; length + 16];
            copier.load(&cells[1..1 + length.div_ceil(8)], &mut out[align..align + length]);
            let (before, rest) = out.split_at(align);
            let (copied, behind) = rest.split_at(length);
            assert!(copied.iter().copied().eq((8..8 + length).map(byte)), "{length}");
            assert!(before.iter().chain(behind).all(|&byte| byte == 0xee), "{length}");
        }
    }
}

#[test]
fn every_length_is_stored_at_every_alignment_and_nothing_else_is_touched() {
    for copier in copiers() {
        stores::<32>(copier);
        stores::<40>(copier);
        stores::<48>(copier);
        stores::<56>(copier);
    }
}

fn stores<const INLINE: usize>(copier: Copier) {
    let source: Vec<u8> = (0..300).map(byte).collect();
    for (length, align) in (0..=260).flat_map(|length| (0..8).map(move |align| (length, align))) {
        let cells = Cells::zeroed(64);
        cells.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
        let bytes = &source[align..align + length];
        let first = copier.store_rest::<INLINE>(&cells[1..1 + length.div_ceil(8)], bytes);
        assert_eq!(first, &bytes[..length.min(INLINE)]);
        let stored: Vec<u8> =
            cells.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
        let (inline, rest) = stored[8..].split_at(first.len());
        assert_eq!(rest[..length - first.len()], bytes[first.len()..], "{length} from {INLINE}");
        assert!(inline.iter().zip(bytes).all(|(a, b)| a == b || *a == 0xff), "{length} from {INLINE}");
        let behind = &stored[8 + length.next_multiple_of(8)..];
        assert!(stored[..8].iter().chain(behind).all(|&byte| byte == 0xff), "{length} from {INLINE}");
    }
}

#[test]
fn whole_lines_survive_at_every_alignment_and_nothing_else_is_touched() {
    for (copier, lines) in copiers().into_iter().flat_map(|copier| (0..5).map(move |n| (copier, n))) {
        let payloads = (2, INLINE_WORDS + lines * 8);
        let records = (lines > 0).then_some((0, lines * 8));
        for (from, count) in [payloads].into_iter().chain(records) {
            let cells = Cells::zeroed(64);
            let word = |i: usize| i as u64 * 0x0101_0101;
            cells.iter().enumerate().for_each(|(i, cell)| cell.store(word(i), Ordering::Relaxed));
            for align in 0..8 {
                let mut out = vec![0xee; align + count * 8 + 16];
                let (words, bytes) = (&cells[from..from + count], &mut out[align..align + count * 8]);
                match from {
                    0 => copier.load_records(words, bytes),
                    _ => copier.load_lines(words, bytes),
                }
                let (before, rest) = out.split_at(align);
                let (copied, behind) = rest.split_at(count * 8);
                let expected = (from..from + count).flat_map(|i| word(i).to_ne_bytes());
                assert!(copied.iter().copied().eq(expected), "{lines} lines from {from}");
                assert!(before.iter().chain(behind).all(|&byte| byte == 0xee), "{lines} lines from {from}");
            }
        }
    }
}

#[test]
fn short_payloads_are_stored_in_place() {
    let source: Vec<u8> = (1..=48).collect();
    for length in 0..=48 {
        let cells = Cells::zeroed(8);
        let (line, _) = cells.split_first_chunk::<INLINE_WORDS>().unwrap();
        store_inline(line, &source[..length]);
        let mut out = vec![0; length];
        load_words(&line[..length.div_ceil(8)], &mut out);
        assert_eq!(out, source[..length]);
        let words = line[length.div_ceil(8)..].iter().map(|word| word.load(Ordering::Relaxed));
        assert!(words.into_iter().all(|word| word == 0), "{length}");
    }
}
