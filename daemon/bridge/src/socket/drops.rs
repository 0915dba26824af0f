//! What sockets have dropped.

use shmcast::sys::datagrams;
use std::net::UdpSocket;

/// What a socket has dropped because its buffer was full. The kernel would tell it with each datagram, which takes a tenth of
/// a microsecond each. So it is asked for: when a message is missing, and each time that the counters are shown.
#[derive(Debug, Default)]
pub struct Drops {
    /// How many there were at the last look.
    last: u32,
    /// Whether some are new, and no loss is explained by them yet.
    are_new: bool,
}

impl Drops {
    /// Adds the drops since the last look to `counter`.
    pub fn look(&mut self, socket: &UdpSocket, counter: &mut u64) {
        // A kernel that does not tell has said so at the start.
        let Ok(drops) = datagrams::drops(socket) else { return };
        let more = drops.wrapping_sub(std::mem::replace(&mut self.last, drops));
        *counter += u64::from(more);
        self.are_new |= more > 0;
    }

    /// Whether the socket has dropped datagrams since the last loss that it explained.
    #[cold]
    pub fn explain_a_loss(&mut self, socket: &UdpSocket, counter: &mut u64) -> bool {
        self.look(socket, counter);
        std::mem::take(&mut self.are_new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_explain_one_loss_and_are_counted_once() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let least = socket2::SockRef::from(&socket).set_recv_buffer_size(1);
        least.unwrap();
        let from = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (mut drops, mut count) = (Drops::default(), 0);
        assert!(!drops.explain_a_loss(&socket, &mut count));
        for _ in 0..50 {
            from.send_to(&[0; 1_000], socket.local_addr().unwrap()).unwrap();
        }
        drops.look(&socket, &mut count);
        let counted = count;
        assert!((1..=50).contains(&counted), "{counted}");
        assert!(drops.explain_a_loss(&socket, &mut count) && !drops.explain_a_loss(&socket, &mut count));
        assert_eq!(count, counted);
    }
}
