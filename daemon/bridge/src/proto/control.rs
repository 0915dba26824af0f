//! shmcast's own control datagrams. They carry leases, cookies and claims of egresses. A server also uses them to answer that requested
//! messages are gone, must wait, or are not published yet.
//!
//! Control datagrams share sockets with MoldUDP64. A MoldUDP64 receiver must never mistake a control datagram for a packet with messages,
//! even if the receiver checks nothing:
//! ```text
//! 0xFF 'S' 'H' 'M' 'C' version kind 0xFF 0 0 | sequence 0 (8 bytes) | count 0 (2 bytes) | body
//! ```
//! - Bytes 0 to 9 are no session name, because 0xFF is not ASCII.
//! - Sequence 0 does not exist, and count 0 is a heartbeat. A MoldUDP64 receiver that skips every check still sees "nothing new".
//! - A request is exactly 20 bytes long, and every control datagram is longer.
//! - Every kind has one fixed length.
//! - An answer to a source that has not returned a cookie is never longer than its question.

use super::bytes::{Reader, Writer};
pub use super::claim::{Claim, Role};
use super::session::Session;
use super::wire::message::Malformed;
use super::wire::mold::HEADER_BYTES;

/// The version of control datagrams that this build sends and accepts.
pub const CONTROL_VERSION: u8 = 1;
/// The size of a buffer that holds any control datagram, in bytes.
pub const CONTROL_MAX_BYTES: usize = 64;
/// The size of a cookie, in bytes.
pub const COOKIE_BYTES: usize = 24;

const MAGIC: [u8; 5] = [0xFF, b'S', b'H', b'M', b'C'];
const BODY: usize = HEADER_BYTES;
/// A bit in the role of a claim. It says that a bridge received the messages of the egress's ring from another host.
const MIRROR: u8 = 0x80;

/// A proof that a datagram was sent from its source address. The server makes the proof and checks it. A client only sends it back.
pub type Cookie = [u8; COOKIE_BYTES];

/// One control datagram. An answer has the nonce of its question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlDatagram {
    /// A client asks for a cookie. The datagram is padded to the size of the answer.
    Hello {
        /// A number that the client has chosen.
        nonce: u64,
    },
    /// The server's answer to `Hello`, and to a cookie that is no longer valid. The server stores nothing about the client.
    Cookie {
        /// The nonce of the question.
        nonce: u64,
        /// The cookie that the client must send back.
        cookie: Cookie,
    },
    /// A client that has a cookie asks for a lease, or renews one.
    Subscribe {
        /// A number that the client has chosen.
        nonce: u64,
        /// The newest cookie that the client was given.
        cookie: Cookie,
        /// Whether the client wants live packets. If not, it wants repairs only.
        live: bool,
        /// The duration of the lease that the client would like, in milliseconds. With 0 the server chooses.
        lease_ms: u32,
    },
    /// The server grants the lease, which is valid from now on.
    Granted {
        /// The nonce of the question.
        nonce: u64,
        /// A fresh cookie for the renewal.
        cookie: Cookie,
        /// The time for which the lease is valid, in milliseconds.
        lease_ms: u32,
    },
    /// A client returns its lease.
    Unsubscribe {
        /// A number that the client has chosen.
        nonce: u64,
        /// The newest cookie that the client was given.
        cookie: Cookie,
    },
    /// The server has ended the lease.
    Released {
        /// The nonce of the question.
        nonce: u64,
    },
    /// The server grants no lease, because it already has the largest permitted number of leases.
    Full {
        /// The nonce of the question.
        nonce: u64,
    },
    /// A retransmission server no longer holds the messages asked for.
    Gone {
        /// The session asked for.
        session: Session,
        /// The first sequence asked for.
        first: u64,
        /// The first sequence after `first` that the server might still have.
        oldest: u64,
    },
    /// A retransmission server holds the messages asked for, but has used up its rate. The receiver should ask again later.
    Later {
        /// The session asked for.
        session: Session,
        /// The first sequence asked for.
        first: u64,
    },
    /// A retransmission server says that it does not have the requested messages yet. Only shmcast's servers send this datagram, and only
    /// to a source that has proved its address.
    ///
    /// A server must not send this datagram to a receiver of another make. The receiver might take the datagram's session for the feed's
    /// session, request that session immediately, and then pause for one second.
    Held {
        /// The session asked for.
        session: Session,
        /// The first sequence asked for. It is `next` or later.
        first: u64,
        /// The oldest sequence that the server holds.
        oldest: u64,
        /// The sequence after the newest one that the server holds.
        next: u64,
    },
    /// Like `Subscribe`, but also identifies the receiver. A receiver has one lease of each kind, even if its address changes. Servers that
    /// do not know this kind of datagram drop it, and the client then sends `Subscribe`.
    Join {
        /// A number that the client has chosen.
        nonce: u64,
        /// The newest cookie that the client was given.
        cookie: Cookie,
        /// The duration of the lease that the client would like, in milliseconds. With 0 the server chooses.
        lease_ms: u32,
        /// Whether the client wants live packets. If not, it wants repairs only.
        live: bool,
        /// The receiver's identity, 48 bits.
        receiver: u64,
    },
    /// The answer to `Join`: the lease is valid from now on.
    Joined {
        /// The nonce of the question.
        nonce: u64,
        /// A fresh cookie for the renewal.
        cookie: Cookie,
        /// The time for which the lease is valid, in milliseconds.
        lease_ms: u32,
        /// The number of the server's leases of the same kind, or 65535 if there are more.
        group: u16,
        /// The position of this lease among the server's leases of the same kind, from 0.
        place: u16,
    },
    /// An egress (sending end) announces its role to the other egresses of its stream. Only egresses send and receive this kind of
    /// datagram.
    Claim(Claim),
    /// A receiver informs a server that the server sends an older session of the channel. The server uses this report when it begins its
    /// next session. Servers that do not know this kind of datagram drop it.
    Stale {
        /// The session that the receiver follows.
        session: Session,
        /// The receiver's next sequence in this session.
        next: u64,
    },
    /// A retransmission server informs all receivers that it has used up its rate. The receivers should ask again after `wait_us`.
    /// Receivers that do not know this kind of datagram drop it.
    Pause {
        /// The session that the server serves.
        session: Session,
        /// The time to wait, in microseconds.
        wait_us: u32,
    },
}

/// Whether a datagram is a control datagram. If not, it is a packet of the protocol MoldUDP64.
pub fn is_control(datagram: &[u8]) -> bool {
    datagram.starts_with(&MAGIC)
}

impl ControlDatagram {
    fn kind(&self) -> u8 {
        match self {
            ControlDatagram::Hello { .. } => 1,
            ControlDatagram::Cookie { .. } => 2,
            ControlDatagram::Subscribe { .. } => 3,
            ControlDatagram::Granted { .. } => 4,
            ControlDatagram::Unsubscribe { .. } => 5,
            ControlDatagram::Released { .. } => 6,
            ControlDatagram::Full { .. } => 7,
            ControlDatagram::Gone { .. } => 8,
            ControlDatagram::Later { .. } => 9,
            ControlDatagram::Held { .. } => 10,
            ControlDatagram::Join { .. } => 11,
            ControlDatagram::Joined { .. } => 12,
            ControlDatagram::Claim(_) => 13,
            ControlDatagram::Stale { .. } => 14,
            ControlDatagram::Pause { .. } => 15,
        }
    }

    /// Writes the datagram. Returns its size in bytes.
    pub fn encode(&self, out: &mut [u8; CONTROL_MAX_BYTES]) -> usize {
        out.fill(0);
        out[..5].copy_from_slice(&MAGIC);
        out[5..8].copy_from_slice(&[CONTROL_VERSION, self.kind(), 0xFF]);
        // The longest body is Claim's: 10 + 8 + 8 + 2 + 8 + 8 bytes after a header of 20. It fits CONTROL_MAX_BYTES.
        let mut body = Writer { out, at: BODY };
        let mut put = |fields: &[&[u8]]| {
            for field in fields {
                body.put(field);
            }
        };
        match *self {
            ControlDatagram::Hello { nonce } => put(&[&nonce.to_be_bytes(), &[0; COOKIE_BYTES]]),
            ControlDatagram::Cookie { nonce, cookie } | ControlDatagram::Unsubscribe { nonce, cookie } => {
                put(&[&nonce.to_be_bytes(), &cookie]);
            }
            ControlDatagram::Subscribe { nonce, cookie, live, lease_ms } => {
                put(&[&nonce.to_be_bytes(), &cookie, &lease_ms.to_be_bytes(), &[u8::from(live)]]);
            }
            ControlDatagram::Granted { nonce, cookie, lease_ms } => {
                put(&[&nonce.to_be_bytes(), &cookie, &lease_ms.to_be_bytes()]);
            }
            ControlDatagram::Released { nonce } | ControlDatagram::Full { nonce } => {
                put(&[&nonce.to_be_bytes()]);
            }
            ControlDatagram::Gone { session, first, oldest } => {
                put(&[session.as_bytes(), &first.to_be_bytes(), &oldest.to_be_bytes()]);
            }
            ControlDatagram::Later { session, first } => put(&[session.as_bytes(), &first.to_be_bytes()]),
            ControlDatagram::Held { session, first, oldest, next } => {
                let [first, oldest, next] = [first, oldest, next].map(u64::to_be_bytes);
                put(&[session.as_bytes(), &first, &oldest, &next]);
            }
            ControlDatagram::Join { nonce, cookie, lease_ms, live, receiver } => {
                put(&[&nonce.to_be_bytes(), &cookie, &lease_ms.to_be_bytes(), &[u8::from(live)]]);
                put(&[&receiver.to_be_bytes()[2..]]);
            }
            ControlDatagram::Joined { nonce, cookie, lease_ms, group, place } => {
                put(&[&nonce.to_be_bytes(), &cookie, &lease_ms.to_be_bytes()]);
                put(&[&group.to_be_bytes(), &place.to_be_bytes()]);
            }
            ControlDatagram::Claim(claim) => {
                put(&[claim.session.as_bytes(), &claim.claim.to_be_bytes(), &claim.next.to_be_bytes()]);
                let role = claim.role as u8 | if claim.is_mirror { MIRROR } else { 0 };
                put(&[&[claim.rank, role], &claim.stream.to_be_bytes(), &claim.sender.to_be_bytes()]);
            }
            ControlDatagram::Stale { session, next } => put(&[session.as_bytes(), &next.to_be_bytes()]),
            ControlDatagram::Pause { session, wait_us } => {
                put(&[session.as_bytes(), &wait_us.to_be_bytes()]);
            }
        }
        body.at
    }

    /// Returns the kind and the body of a control datagram. A native packet contains only these two parts of the datagram.
    pub fn body_of(datagram: &[u8]) -> Option<(u8, &[u8])> {
        Some((*datagram.get(6).filter(|_| is_control(datagram))?, datagram.get(BODY..)?))
    }

    /// Writes the control datagram of this kind and body to `out`, and returns its size. Kind and body come from a native packet.
    pub(crate) fn from_body(kind: u8, body: &[u8], out: &mut [u8; CONTROL_MAX_BYTES]) -> Option<usize> {
        let size = BODY + body.len();
        out.fill(0);
        out.get_mut(BODY..size)?.copy_from_slice(body);
        out[..5].copy_from_slice(&MAGIC);
        out[5..8].copy_from_slice(&[CONTROL_VERSION, kind, 0xFF]);
        Some(size)
    }

    /// Parses a control datagram, and checks all of its bytes.
    ///
    /// # Errors
    /// [`Malformed::TooShort`] if the header is incomplete, [`Malformed::ControlVersion`] for another version, and [`Malformed::Control`]
    /// for any other mistake.
    pub fn parse(datagram: &[u8]) -> Result<ControlDatagram, Malformed> {
        let (header, body) = datagram.split_first_chunk::<HEADER_BYTES>().ok_or(Malformed::TooShort)?;
        if !header.starts_with(&MAGIC) {
            return Err(Malformed::Control);
        }
        if header[5] != CONTROL_VERSION {
            return Err(Malformed::ControlVersion);
        }
        if header[7] != 0xFF || header[8..].iter().any(|&b| b != 0) {
            return Err(Malformed::Control);
        }
        let mut body = Reader(body);
        let control = body.control(header[6]).ok_or(Malformed::Control)?;
        if body.0.is_empty() { Ok(control) } else { Err(Malformed::Control) }
    }
}

impl Reader<'_> {
    fn flag(&mut self) -> Option<bool> {
        match self.take()? {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        }
    }

    fn claim(&mut self) -> Option<Claim> {
        let (session, claim, next) = (Session::from_bytes(self.take()?), self.u64()?, self.u64()?);
        let [rank, role] = self.take()?;
        let (stream, sender) = (self.u64()?, self.u64()?);
        let is_mirror = role & MIRROR != 0;
        let role = match role & !MIRROR {
            0 => Role::Listen,
            1 => Role::Standby,
            2 => Role::Active,
            _ => return None,
        };
        Some(Claim { session, claim, next, rank, role, is_mirror, stream, sender })
    }

    fn control(&mut self, kind: u8) -> Option<ControlDatagram> {
        Some(match kind {
            1 => {
                let nonce = self.u64()?;
                if self.take::<COOKIE_BYTES>()? != [0; COOKIE_BYTES] {
                    return None;
                }
                ControlDatagram::Hello { nonce }
            }
            2 => ControlDatagram::Cookie { nonce: self.u64()?, cookie: self.take()? },
            3 => {
                let (nonce, cookie, lease_ms) = (self.u64()?, self.take()?, self.u32()?);
                let live = self.flag()?;
                ControlDatagram::Subscribe { nonce, cookie, live, lease_ms }
            }
            4 => ControlDatagram::Granted { nonce: self.u64()?, cookie: self.take()?, lease_ms: self.u32()? },
            5 => ControlDatagram::Unsubscribe { nonce: self.u64()?, cookie: self.take()? },
            6 => ControlDatagram::Released { nonce: self.u64()? },
            7 => ControlDatagram::Full { nonce: self.u64()? },
            8 => ControlDatagram::Gone {
                session: Session::from_bytes(self.take()?),
                first: self.u64()?,
                oldest: self.u64()?,
            },
            9 => ControlDatagram::Later { session: Session::from_bytes(self.take()?), first: self.u64()? },
            10 => ControlDatagram::Held {
                session: Session::from_bytes(self.take()?),
                first: self.u64()?,
                oldest: self.u64()?,
                next: self.u64()?,
            },
            11 => {
                let (nonce, cookie, lease_ms) = (self.u64()?, self.take()?, self.u32()?);
                let (live, [a, b, c, d, e, f]) = (self.flag()?, self.take()?);
                let receiver = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
                ControlDatagram::Join { nonce, cookie, lease_ms, live, receiver }
            }
            12 => ControlDatagram::Joined {
                nonce: self.u64()?,
                cookie: self.take()?,
                lease_ms: self.u32()?,
                group: self.u16()?,
                place: self.u16()?,
            },
            13 => ControlDatagram::Claim(self.claim()?),
            14 => ControlDatagram::Stale { session: Session::from_bytes(self.take()?), next: self.u64()? },
            15 => ControlDatagram::Pause { session: Session::from_bytes(self.take()?), wait_us: self.u32()? },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::{Downstream, Request};
    use super::*;

    fn all_kinds() -> [ControlDatagram; 15] {
        let (nonce, cookie) = (0x0102_0304_0506_0708, [0xC0; COOKIE_BYTES]);
        [
            ControlDatagram::Hello { nonce },
            ControlDatagram::Cookie { nonce, cookie },
            ControlDatagram::Subscribe { nonce, cookie, live: true, lease_ms: 60_000 },
            ControlDatagram::Granted { nonce, cookie, lease_ms: 60_000 },
            ControlDatagram::Unsubscribe { nonce, cookie },
            ControlDatagram::Released { nonce },
            ControlDatagram::Full { nonce },
            ControlDatagram::Gone { session: Session::from_bytes(*b"EQTY00000Z"), first: 1, oldest: 9 },
            ControlDatagram::Later { session: Session::from_bytes(*b"EQTY00000Z"), first: 1 },
            ControlDatagram::Held {
                session: Session::from_bytes(*b"EQTY00000Z"),
                first: 9,
                oldest: 1,
                next: 8,
            },
            ControlDatagram::Join { nonce, cookie, lease_ms: 60_000, live: true, receiver: 0xA1B2_C3D4_E5F6 },
            ControlDatagram::Joined { nonce, cookie, lease_ms: 60_000, group: 300, place: 299 },
            ControlDatagram::Stale { session: Session::from_bytes(*b"EQTY00000Z"), next: 77 },
            ControlDatagram::Pause { session: Session::from_bytes(*b"EQTY00000Z"), wait_us: 7_000 },
            ControlDatagram::Claim(Claim {
                session: Session::from_bytes(*b"EQTY00000Z"),
                claim: 3,
                next: 77,
                rank: 1,
                role: Role::Active,
                is_mirror: true,
                stream: 5,
                sender: 6,
            }),
        ]
    }

    #[test]
    fn every_kind_comes_back_as_it_went() {
        for control in all_kinds() {
            let mut out = [0; CONTROL_MAX_BYTES];
            let size = control.encode(&mut out);
            assert_eq!(ControlDatagram::parse(&out[..size]), Ok(control));
            for cut in 0..size {
                assert!(ControlDatagram::parse(&out[..cut]).is_err(), "{control:?} cut to {cut}");
            }
            assert!(ControlDatagram::parse(&[&out[..size], &[0]].concat()).is_err());
        }
    }

    #[test]
    fn control_is_never_taken_for_moldudp64() {
        for control in all_kinds() {
            let mut out = [0; CONTROL_MAX_BYTES];
            let size = control.encode(&mut out);
            assert!(is_control(&out));
            assert_eq!(Downstream::parse(&out[..size]).err(), Some(Malformed::SequenceZero));
            assert_eq!(Request::parse(&out[..size]).err(), Some(Malformed::RequestLength));
            assert_eq!(&out[10..20], &[0; 10], "a careless receiver must see an empty heartbeat");
        }
        assert!(!is_control(b"EQTY00000Z\0\0\0\0\0\0\0\x01\0\0"));
    }

    #[test]
    fn hello_bytes_are_fixed() {
        let mut out = [0; CONTROL_MAX_BYTES];
        let size = ControlDatagram::Hello { nonce: 0x0A0B }.encode(&mut out);
        let expected =
            [&b"\xffSHMC\x01\x01\xff"[..], &[0; 12], &[0, 0, 0, 0, 0, 0, 0x0A, 0x0B], &[0; 24]].concat();
        assert_eq!(&out[..size], &expected[..]);
        out[5] = 2;
        assert_eq!(ControlDatagram::parse(&out[..size]), Err(Malformed::ControlVersion));
    }
}
