//! Reads and writes the fields of a packet, in network byte order.

/// Takes bytes off the front of a slice.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Reader<'_> {
    pub(super) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*bytes)
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.take().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }
}

/// Appends bytes to a buffer as long as they fit.
pub(super) struct Writer<'a> {
    pub(super) out: &'a mut [u8],
    pub(super) at: usize,
}

impl Writer<'_> {
    /// Appends the bytes. If they do not fit, returns false and changes nothing.
    pub(super) fn put(&mut self, bytes: &[u8]) -> bool {
        let Some(room) = self.out.get_mut(self.at..self.at + bytes.len()) else { return false };
        room.copy_from_slice(bytes);
        self.at += bytes.len();
        true
    }
}

/// Copies bytes to a slice of the same length. Lengths from 16 to 255 are copied in pieces of fixed sizes, because a copy of variable
/// length costs a function call.
///
/// # Panics
/// If the lengths differ.
#[inline(always)]
pub(super) fn copy(to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len());
    let (Some(end), Some(last)) = (from.last_chunk::<16>(), from.len().checked_sub(16)) else {
        return to.copy_from_slice(from);
    };
    if from.len() >= 256 {
        return to.copy_from_slice(from);
    }
    let mut at = 0;
    at += piece::<128>(to, from, at);
    at += piece::<64>(to, from, at);
    at += piece::<32>(to, from, at);
    piece::<16>(to, from, at);
    to[last..].copy_from_slice(end);
}

/// Copies `SIZE` bytes, beginning at the offset `at`, if the length of `from` has the bit `SIZE` set. `SIZE` must be a power of two.
/// Returns the number of copied bytes.
#[inline(always)]
fn piece<const SIZE: usize>(to: &mut [u8], from: &[u8], at: usize) -> usize {
    if from.len() & SIZE == 0 {
        return 0;
    }
    to[at..at + SIZE].copy_from_slice(&from[at..at + SIZE]);
    SIZE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_every_length_are_whole() {
        let bytes: Vec<u8> = (0..600u32).map(|n| (n % 251) as u8).collect();
        for length in 0..600 {
            let mut to = [0xAA; 602];
            copy(&mut to[1..1 + length], &bytes[..length]);
            assert_eq!(
                (&to[1..1 + length], to[0], to[1 + length]),
                (&bytes[..length], 0xAA, 0xAA),
                "{length}"
            );
        }
    }
}
