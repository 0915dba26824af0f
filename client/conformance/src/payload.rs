//! Payloads that check themselves: a message's sequence determines its length and its bytes.

/// The largest payload in bytes.
pub const LONGEST: usize = 64 << 10;
/// The number of positions in the table at which a payload can begin. It is a prime number, so that adjacent payloads in a ring differ.
const PLACES: usize = 4093;

/// The table of bytes from which payloads are cut.
#[derive(Debug, Clone)]
pub struct Payloads {
    table: Vec<u8>,
    longest: usize,
}

impl Payloads {
    /// Makes payloads of at most this many bytes.
    pub fn new(longest: usize) -> Self {
        let mut x = 1_u32;
        let table = (0..LONGEST + PLACES).map(|_| {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (x >> 24) as u8
        });
        Self { table: table.collect(), longest }
    }

    /// Returns the payload of a message. Most payloads are short. One in 64 has the longest size.
    pub fn of(&self, sequence: u64) -> &[u8] {
        let hash = (sequence as u32).wrapping_mul(2_654_435_761);
        let (rest, kind) = ((hash >> 14) as usize, hash >> 8 & 63);
        let length = match kind {
            0..48 => rest & 255,
            48..60 => rest & 4095,
            60..63 => rest & 65_535,
            _ => LONGEST,
        };
        let from = (sequence % PLACES as u64) as usize;
        &self.table[from..from + length.min(self.longest)]
    }
}
