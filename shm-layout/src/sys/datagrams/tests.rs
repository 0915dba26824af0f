use super::*;
use nix::sys::socket::{setsockopt, sockopt};
use std::net::UdpSocket;

fn pair() -> (UdpSocket, UdpSocket, SocketAddr) {
    let (near, far) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let to = far.local_addr().unwrap();
    (near, far, to)
}

/// Until what was sent has arrived, on a machine however busy.
fn settle() {
    std::thread::sleep(std::time::Duration::from_millis(50));
}

/// Waits for a datagram.
fn receive_one(inbox: &mut Inbox, socket: &UdpSocket) {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while inbox.receive(socket).unwrap() == 0 {
        assert!(std::time::Instant::now() < until, "the datagram never arrived");
    }
    assert_eq!(inbox.datagrams().count(), 1);
}

fn drain(inbox: &mut Inbox, socket: &UdpSocket) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while inbox.receive(socket).unwrap() > 0 {
        all.extend(inbox.datagrams().map(|datagram| datagram.bytes.to_vec()));
    }
    all
}

#[test]
fn more_than_a_batch_arrives_whole_in_order_and_with_its_sender() {
    let (near, far, to) = pair();
    let datagrams: Vec<Vec<u8>> = (0..3 * BATCH as u8 + 5).map(|n| vec![n; usize::from(n)]).collect();
    let sent = send(&near, to, datagrams.iter().map(Vec::as_slice));
    assert_eq!(sent, Sent { sent: datagrams.len() as u64, ..Sent::default() });
    let mut inbox = Inbox::new(200);
    let (mut all, mut sizes): (Vec<Vec<u8>>, Vec<usize>) = Default::default();
    let from = near.local_addr().unwrap();
    settle();
    while inbox.receive(&far).unwrap() > 0 {
        assert!(inbox.datagrams().all(|datagram| datagram.from == from));
        all.extend(inbox.datagrams().map(|datagram| datagram.bytes.to_vec()));
        sizes.push(inbox.datagrams().count());
        assert_eq!(inbox.expects_more(), (2..8).contains(&sizes.len()));
    }
    assert_eq!(all, datagrams);
    assert_eq!(sizes, [1, 2, 4, 8, 16, BATCH, BATCH, 6], "the more come, the more are asked for");
    assert_eq!(inbox.receive(&far).unwrap(), 0);
    assert_eq!(inbox.datagrams().count(), 0, "an empty receive leaves nothing of the one before");
}

#[test]
fn a_datagram_after_one_that_a_host_refused_is_sent() {
    let (near, far, to) = pair();
    near.connect(to).unwrap();
    drop(far);
    assert_eq!(send(&near, None, [&b"refused"[..]]).sent, 1);
    let far = UdpSocket::bind(to).unwrap();
    settle();
    assert_eq!(send(&near, None, [&b"one"[..], b"two"]), Sent { sent: 2, ..Sent::default() });
    settle();
    assert_eq!(drain(&mut Inbox::new(16), &far), [b"one", b"two"]);
}

#[test]
fn a_datagram_longer_than_its_slot_says_so() {
    let (near, far, to) = pair();
    send(&near, to, [&[7u8; 64][..], &[8; 10]]);
    let mut inbox = Inbox::new(16);
    let mut seen = Vec::new();
    while inbox.receive(&far).unwrap() > 0 {
        seen.extend(inbox.datagrams().map(|d| (d.bytes.len(), d.is_truncated)));
    }
    assert_eq!(seen, [(16, true), (10, false)]);
}

#[test]
fn one_in_sixteen_that_come_alone_is_stamped_and_all_that_come_together() {
    let (near, far, to) = pair();
    setsockopt(&far, sockopt::ReceiveTimestampns, &true).unwrap();
    let mut inbox = Inbox::new(16);
    let from = near.local_addr().unwrap();
    let mut stamped = Vec::new();
    for n in 0..40u8 {
        // The last two are longer than the slot.
        let datagram = [n; 20];
        send(&near, to, [&datagram[..if n < 38 { 7 } else { 20 }]]);
        receive_one(&mut inbox, &far);
        let got = inbox.datagrams().next().unwrap();
        assert_eq!(got.from, from);
        assert_eq!((got.bytes, got.is_truncated), (&datagram[..if n < 38 { 7 } else { 16 }], n >= 38));
        stamped.extend(got.time_ns.map(|_| n));
        assert_eq!(inbox.receive(&far).unwrap(), 0);
    }
    assert_eq!(stamped, [0, 1, 16, 32]);
    send(&near, to, [[1u8; 3]; 9].iter().map(|d| &d[..]));
    settle();
    let mut stamps = Vec::new();
    while inbox.receive(&far).unwrap() > 0 {
        stamps.extend(inbox.datagrams().map(|d| d.time_ns.is_some()));
    }
    assert_eq!(stamps, [vec![false], vec![true; 8]].concat());
}

#[test]
fn drops_are_told_after_datagrams_that_had_none() {
    let (near, far, to) = pair();
    setsockopt(&far, sockopt::RxqOvfl, &1).unwrap();
    setsockopt(&far, sockopt::ReceiveTimestampns, &true).unwrap();
    setsockopt(&far, sockopt::RcvBuf, &4096).unwrap();
    let mut inbox = Inbox::new(2048);
    // The first comes without a drop count, which must not shorten the room for the next one's.
    send(&near, to, [&[1u8; 1000][..]]);
    assert_eq!(inbox.receive(&far).unwrap(), 1);
    assert!(inbox.datagrams().all(|d| d.dropped.is_none() && d.time_ns.is_some()));
    let flood = [[2u8; 1000]; 20];
    assert_eq!(send(&near, to, flood.iter().map(|d| &d[..])).sent, 20);
    let got = drain(&mut inbox, &far).len() as u32;
    assert!(got < 20, "the buffer must overflow for this test to mean anything");
    send(&near, to, [&[3u8; 10][..]]);
    assert_eq!(inbox.receive(&far).unwrap(), 1);
    let after = inbox.datagrams().next().unwrap();
    assert_eq!(after.dropped, Some(20 - got));
    let now_ns = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
    let age_ns = now_ns - u128::from(after.time_ns.unwrap());
    assert!(age_ns < 10_000_000_000, "{age_ns} ns old");
}

#[test]
fn what_the_kernel_refuses_is_skipped_and_counted() {
    let (near, far, to) = pair();
    let huge = vec![0; 70_000];
    let sent = send(&near, to, [&[1u8][..], &huge, &[2]]);
    assert_eq!(sent, Sent { sent: 2, refused: 1, error: Some(Errno::EMSGSIZE) });
    assert_eq!(drain(&mut Inbox::new(16), &far), [[1], [2]]);
}

#[test]
fn the_preference_for_busy_polling_is_set_or_refused_with_a_reason() {
    let (near, ..) = pair();
    match prefer_busy_poll(&near, 64) {
        Ok(()) => {}
        Err(e) => assert!(matches!(e.raw_os_error(), Some(libc::EPERM | libc::ENOPROTOOPT)), "{e}"),
    }
}
