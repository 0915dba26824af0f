//! Counts the datagrams that sockets have dropped.

use shmcast::sys::datagrams;
use std::net::UdpSocket;

/// The datagrams that a socket dropped because its buffer was full. The bridge asks the kernel for their number when a message is missing,
/// and each time that the counters are shown.
///
/// It is not known where among the waiting datagrams the drops happened. So the drops might explain any loss until two things have
/// happened: the socket was empty, and then a datagram arrived with nothing missing before it.
#[derive(Debug, Default)]
pub struct Drops {
    /// The number of drops at the last call of [`look`](Self::look).
    last: u32,
    /// Whether the last drops might still explain a loss.
    are_new: bool,
    /// Whether the socket has been empty since the last drops.
    was_empty: bool,
}

impl Drops {
    /// Adds the drops since the last call to `counter`.
    pub(crate) fn look(&mut self, socket: &UdpSocket, counter: &mut u64) {
        // If the kernel does not count drops, the bridge has noted this as a refusal at its start.
        let Ok(drops) = datagrams::drops(socket) else { return };
        let more = drops.wrapping_sub(std::mem::replace(&mut self.last, drops));
        if more > 0 {
            *counter += u64::from(more);
            (self.are_new, self.was_empty) = (true, false);
        }
    }

    /// Whether the socket's own drops might have caused a loss that was just noticed.
    #[cold]
    pub(crate) fn explain_a_loss(&mut self, socket: &UdpSocket, counter: &mut u64) -> bool {
        self.look(socket, counter);
        self.are_new
    }

    /// Notes that the socket is empty.
    #[inline]
    pub(crate) fn note_empty(&mut self) {
        self.was_empty = true;
    }

    /// Notes that a datagram arrived and no message was missing before it.
    #[inline]
    pub(crate) fn note_whole(&mut self) {
        self.are_new &= !self.was_empty;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_counted_once_and_explain_losses_until_all_that_waited_is_there() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let least = socket2::SockRef::from(&socket).set_recv_buffer_size(1);
        least.unwrap();
        let from = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (mut drops, mut count) = (Drops::default(), 0);
        assert!(!drops.explain_a_loss(&socket, &mut count));
        drops.note_empty();
        for _ in 0..50 {
            from.send_to(&[0; 1_000], socket.local_addr().unwrap()).unwrap();
        }
        drops.look(&socket, &mut count);
        let counted = count;
        assert!((1..=50).contains(&counted), "{counted}");
        for _ in 0..2 {
            assert!(drops.explain_a_loss(&socket, &mut count), "there may be several holes");
            drops.note_whole();
        }
        drops.note_empty();
        assert!(drops.explain_a_loss(&socket, &mut count), "it may be the last one that was dropped");
        drops.note_whole();
        assert!(!drops.explain_a_loss(&socket, &mut count), "a loss behind that is another's");
        assert_eq!(count, counted);
    }
}
