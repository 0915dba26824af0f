//! Messages that prove themselves: numbered, stamped with the time of sending, and with every byte following from the
//! number, so that one torn between two messages cannot pass.
//!
//! ```text
//! word 0 sequence | word 1 ticks at the send | word 2 both of them mixed | word 3.. a pattern that starts at the sequence
//! ```

/// The smallest payload that carries all of it.
pub const MIN_SIZE: usize = 24;
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(sequence: u64, sent: u64) -> u64 {
    (sequence ^ sent.rotate_left(32)).wrapping_mul(STEP)
}

/// The word of the pattern at index `i` of message `sequence`. Neighbouring messages differ in every byte of rank 0.
#[inline]
fn pattern(sequence: u64, i: usize) -> u64 {
    sequence.wrapping_mul(STEP).wrapping_add(i as u64)
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

/// Writes all but the stamp of message `sequence`; do this ahead of its time.
#[inline]
pub fn fill(payload: &mut [u8], sequence: u64) {
    payload[..8].copy_from_slice(&sequence.to_le_bytes());
    let mut words = payload[24..].chunks_exact_mut(8);
    for (i, bytes) in words.by_ref().enumerate() {
        bytes.copy_from_slice(&pattern(sequence, i).to_le_bytes());
    }
    words.into_remainder().fill(sequence as u8);
}

/// Stamps a filled message with the time of its send.
#[inline]
pub fn stamp(payload: &mut [u8], sequence: u64, sent: u64) {
    payload[8..16].copy_from_slice(&sent.to_le_bytes());
    payload[16..24].copy_from_slice(&mix(sequence, sent).to_le_bytes());
}

/// Sequence and send time of a message of which every byte is right.
#[inline]
pub fn check(payload: &[u8], size: usize) -> Option<(u64, u64)> {
    if payload.len() != size || size < MIN_SIZE {
        return None;
    }
    let (sequence, sent) = (word(&payload[..8]), word(&payload[8..16]));
    let mut wrong = word(&payload[16..24]) ^ mix(sequence, sent);
    let words = payload[24..].chunks_exact(8);
    wrong |= words.remainder().iter().fold(0, |wrong, byte| wrong | u64::from(byte ^ sequence as u8));
    for (i, bytes) in words.enumerate() {
        wrong |= word(bytes) ^ pattern(sequence, i);
    }
    (wrong == 0).then_some((sequence, sent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flipped_byte_anywhere_is_seen() {
        for size in [24, 25, 32, 100, 256] {
            let mut payload = vec![0; size];
            fill(&mut payload, 41);
            stamp(&mut payload, 41, 12345);
            assert_eq!(check(&payload, size), Some((41, 12345)));
            assert_eq!(check(&payload[1..], size), None);
            for i in 0..size {
                payload[i] ^= 0x10;
                assert_eq!(check(&payload, size), None, "byte {i} of {size}");
                payload[i] ^= 0x10;
            }
        }
    }

    #[test]
    fn two_messages_torn_at_any_word_are_seen() {
        let (mut a, mut b) = (vec![0; 256], vec![0; 256]);
        fill(&mut a, 7);
        stamp(&mut a, 7, 100);
        fill(&mut b, 8);
        stamp(&mut b, 8, 200);
        for cut in (8..256).step_by(8) {
            let torn = [&a[..cut], &b[cut..]].concat();
            assert_eq!(check(&torn, 256), None, "cut at {cut}");
        }
    }
}
