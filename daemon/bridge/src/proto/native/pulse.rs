//! A pulse is a packet in which a native sender announces its state. Native lines have pulses in place of a plain line's heartbeats and
//! end-of-session packets.

use super::{Reader, Writer};

/// The size of a pulse's body, in bytes.
pub const PULSE_BYTES: usize = 96;
/// The value of `clock_error_ns` of a host whose clock is not synchronised.
pub const UNSYNCHRONISED: u32 = u32::MAX;

const ENDED: u32 = 1;

/// The state of a sender. Fields that this build does not fill are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pulse {
    /// The sequence after the last message sent.
    pub next: u64,
    /// The oldest sequence that the sender's host still holds; 0 if it is not known.
    pub oldest: u64,
    /// The number of the sender's claim to the stream.
    pub claim: u64,
    /// The sender's role among several senders; 0 if it is the only one.
    pub role: u8,
    /// The sender's rank among several senders.
    pub rank: u8,
    /// The number of receivers that have a lease.
    pub group: u16,
    /// The longest round trip to a receiver, in microseconds.
    pub longest_rtt_us: u32,
    /// The sender's time, in nanoseconds since 1970.
    pub wall_ns: u64,
    /// The greatest possible error of the sender's clock, in nanoseconds; [`UNSYNCHRONISED`] if it is not known.
    pub clock_error_ns: u32,
    /// Whether the session is over.
    pub has_ended: bool,
    /// The identity of the stream. It is the same in all sessions of the stream.
    pub stream: [u8; 16],
    /// The first sequence of the session.
    pub term_first: u64,
    /// The number of the last packet that the hash `seals` covers; 0 if there is no hash.
    pub covered: u64,
    /// A hash of the seals of all packets up to `covered`.
    pub seals: [u8; 16],
}

impl Pulse {
    /// Parses the body of a pulse. Returns `None` if the body is not valid, or is too long.
    pub(crate) fn parse(body: &[u8]) -> Option<Pulse> {
        let mut body = Reader(body);
        let mut pulse = Pulse {
            next: body.u64()?,
            oldest: body.u64()?,
            claim: body.u64()?,
            role: body.u8()?,
            rank: body.u8()?,
            group: body.u16()?,
            longest_rtt_us: body.u32()?,
            wall_ns: body.u64()?,
            clock_error_ns: body.u32()?,
            ..Pulse::default()
        };
        let flags = body.u32()?;
        pulse.has_ended = flags & ENDED != 0;
        pulse.stream = body.take()?;
        (pulse.term_first, pulse.covered, pulse.seals) = (body.u64()?, body.u64()?, body.take()?);
        (body.0.is_empty() && flags & !ENDED == 0).then_some(pulse)
    }

    /// Writes the body.
    pub fn write(&self) -> [u8; PULSE_BYTES] {
        let mut bytes = [0; PULSE_BYTES];
        let mut body = Writer { out: &mut bytes, at: 0 };
        body.put(&self.next.to_be_bytes());
        body.put(&self.oldest.to_be_bytes());
        body.put(&self.claim.to_be_bytes());
        body.put(&[self.role, self.rank]);
        body.put(&self.group.to_be_bytes());
        body.put(&self.longest_rtt_us.to_be_bytes());
        body.put(&self.wall_ns.to_be_bytes());
        body.put(&self.clock_error_ns.to_be_bytes());
        body.put(&u32::from(self.has_ended).to_be_bytes());
        body.put(&self.stream);
        body.put(&self.term_first.to_be_bytes());
        body.put(&self.covered.to_be_bytes());
        body.put(&self.seals);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_pulse_are_fixed() {
        let pulse = Pulse {
            next: 0x0102,
            oldest: 3,
            claim: 4,
            role: 5,
            rank: 6,
            group: 0x0708,
            longest_rtt_us: 9,
            wall_ns: 10,
            clock_error_ns: 11,
            has_ended: true,
            stream: [12; 16],
            term_first: 13,
            covered: 14,
            seals: [15; 16],
        };
        let expected = [
            &[0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4, 5, 6, 7, 8, 0, 0, 0, 9]
                [..],
            &[0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 11, 0, 0, 0, 1],
            &[12; 16],
            &[0, 0, 0, 0, 0, 0, 0, 13, 0, 0, 0, 0, 0, 0, 0, 14],
            &[15; 16],
        ]
        .concat();
        assert_eq!(&pulse.write()[..], expected);
        assert_eq!(Pulse::parse(&expected), Some(pulse));
        assert!((0..expected.len()).all(|cut| Pulse::parse(&expected[..cut]).is_none()));
        assert_eq!(Pulse::parse(&[&expected[..], &[0]].concat()), None);
    }
}
