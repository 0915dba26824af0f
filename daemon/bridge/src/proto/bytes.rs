//! Reading and writing the fields of a packet, in network byte order.

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

/// Puts bytes into a buffer, one after the other, as long as they fit.
pub(super) struct Writer<'a> {
    pub(super) out: &'a mut [u8],
    pub(super) at: usize,
}

impl Writer<'_> {
    /// Puts the bytes; false, and no change, when they do not fit.
    pub(super) fn put(&mut self, bytes: &[u8]) -> bool {
        let Some(room) = self.out.get_mut(self.at..self.at + bytes.len()) else { return false };
        room.copy_from_slice(bytes);
        self.at += bytes.len();
        true
    }
}
