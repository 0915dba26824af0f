//! Finds the datagrams in Ethernet frames, computes their checksums, and makes frames with other content.

use anyhow::{Context, Result};

const ETHERNET: usize = 14;
const UDP: usize = 8;
const UDP_NUMBER: u8 = 17;

/// The place of a datagram in a frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    is_v6: bool,
    /// The offset of the UDP header.
    udp: usize,
    /// The offset at which the datagram ends.
    end: usize,
}

impl Place {
    /// Finds the datagram in a frame. Returns `None` if the frame has no datagram, or an incomplete one.
    pub(super) fn of(frame: &[u8]) -> Option<Self> {
        let word =
            |at: usize| frame.get(at..at + 2).map(|word| usize::from(u16::from_be_bytes([word[0], word[1]])));
        let (is_v6, number, udp) = match word(12)? {
            0x0800 => {
                (false, *frame.get(ETHERNET + 9)?, ETHERNET + usize::from(frame.get(ETHERNET)? & 15) * 4)
            }
            0x86dd => (true, *frame.get(ETHERNET + 6)?, ETHERNET + 40),
            _ => return None,
        };
        let is_piece = !is_v6 && word(ETHERNET + 6)? & 0x3fff != 0;
        if number != UDP_NUMBER || is_piece {
            return None;
        }
        let end = udp + word(udp + 4)?;
        (end >= udp + UDP && end <= frame.len()).then_some(Self { is_v6, udp, end })
    }

    /// The content of the datagram.
    pub(super) fn payload<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        &frame[self.udp + UDP..self.end]
    }

    /// Whether the datagram is sent to a group.
    pub(super) fn is_for_a_group(&self, frame: &[u8]) -> bool {
        if self.is_v6 { frame[ETHERNET + 24] == 0xff } else { frame[ETHERNET + 16] >> 4 == 14 }
    }

    /// Writes a valid checksum into the datagram. The kernel leaves checksums to the network card, and this network has no card.
    pub(super) fn make_sound(&self, frame: &mut [u8]) {
        let at = self.udp + 6;
        frame[at..at + 2].fill(0);
        // With IPv4, a checksum of 0 means that there is no checksum.
        if self.is_v6 {
            let mut sum = add(0, &frame[ETHERNET + 8..ETHERNET + 40]);
            sum += (self.end - self.udp) as u64 + u64::from(UDP_NUMBER);
            let sum = fold(add(sum, &frame[self.udp..self.end]));
            frame[at..at + 2].copy_from_slice(&(if sum == 0 { 0xffff } else { sum }).to_be_bytes());
        }
    }
}

/// Makes a frame with the content `payload`, and with the addresses of the frame `like`.
pub(super) fn with_payload(like: &[u8], payload: &[u8]) -> Result<Vec<u8>> {
    let place = Place::of(like).context("a frame with a datagram")?;
    let mut frame = [&like[..place.udp + UDP], payload].concat();
    let length = (UDP + payload.len()) as u16;
    frame[place.udp + 4..place.udp + 6].copy_from_slice(&length.to_be_bytes());
    if place.is_v6 {
        frame[ETHERNET + 4..ETHERNET + 6].copy_from_slice(&length.to_be_bytes());
    } else {
        let all = (place.udp - ETHERNET) as u16 + length;
        frame[ETHERNET + 2..ETHERNET + 4].copy_from_slice(&all.to_be_bytes());
        frame[ETHERNET + 10..ETHERNET + 12].fill(0);
        let sum = fold(add(0, &frame[ETHERNET..place.udp]));
        frame[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&sum.to_be_bytes());
    }
    Place { end: frame.len(), ..place }.make_sound(&mut frame);
    Ok(frame)
}

fn add(sum: u64, bytes: &[u8]) -> u64 {
    let word = |pair: &[u8]| u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u64::from(*low));
    bytes.chunks(2).fold(sum, |sum, pair| sum + word(pair))
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame with the datagram "abc" from 10.77.0.1:30001 to 239.77.0.1:30001.
    fn v4() -> Vec<u8> {
        let head = [&[1, 0, 0x5e, 0x4d, 0, 1][..], &[2; 6], &[8, 0]].concat();
        let ip = [0x45, 0, 0, 31, 0, 1, 0x40, 0, 1, 17, 0, 0, 10, 77, 0, 1, 239, 77, 0, 1];
        let udp = [0x75, 0x31, 0x75, 0x31, 0, 11, 9, 9];
        [&head[..], &ip, &udp, b"abc"].concat()
    }

    #[test]
    fn a_frame_with_another_content_is_sound() {
        let frame = with_payload(&v4(), b"longer than before").unwrap();
        let place = Place::of(&frame).expect("a datagram");
        assert_eq!(place.payload(&frame), b"longer than before");
        assert!(place.is_for_a_group(&frame));
        assert_eq!(fold(add(0, &frame[ETHERNET..ETHERNET + 20])), 0, "the sum over a sound header is 0");
        assert_eq!(frame[ETHERNET + 26..ETHERNET + 28], [0, 0], "no checksum");
    }

    #[test]
    fn what_is_no_whole_datagram_has_no_place() {
        let frame = v4();
        assert!((0..frame.len()).all(|length| Place::of(&frame[..length]).is_none()));
        let mut piece = frame.clone();
        piece[ETHERNET + 6] = 0x20;
        assert!(Place::of(&piece).is_none());
    }

    #[test]
    fn a_checksum_of_ipv6_is_that_of_the_standard() {
        let head = [&[0x33; 6][..], &[2; 6], &[0x86, 0xdd]].concat();
        let mut address = [0; 16];
        address[15] = 1;
        let ip = [&[0x60, 0, 0, 0, 0, 12, 17, 64][..], &address, &address].concat();
        let udp = [0, 7, 0, 9, 0, 12, 0xaa, 0xaa, 1, 2, 3, 4];
        let mut frame = [&head[..], &ip, &udp].concat();
        let place = Place::of(&frame).expect("a datagram");
        place.make_sound(&mut frame);
        // The sum of the 16-bit words: 1 + 1 for the addresses, 12 + 17 for length and number, 7 + 9 + 12, 0x102 + 0x304.
        assert_eq!(frame[ETHERNET + 46..ETHERNET + 48], (!(0x406_u16 + 59)).to_be_bytes());
        assert!(!place.is_for_a_group(&frame));
    }
}
