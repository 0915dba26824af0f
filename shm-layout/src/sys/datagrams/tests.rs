use super::*;
use nix::sys::socket::{setsockopt, sockopt};
use std::net::UdpSocket;

fn pair() -> (UdpSocket, UdpSocket, SocketAddr) {
    let (near, far) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let to = far.local_addr().unwrap();
    (near, far, to)
}

/// Waits until the datagrams have arrived, even on a busy machine.
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
        // The last two datagrams are longer than the slot.
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
fn drops_are_counted_whether_or_not_a_datagram_follows() {
    let (near, far, to) = pair();
    setsockopt(&far, sockopt::RcvBuf, &4096).unwrap();
    let mut inbox = Inbox::new(2048);
    send(&near, to, [&[1u8; 1000][..]]);
    receive_one(&mut inbox, &far);
    assert_eq!(drops(&far).unwrap(), 0);
    let flood = [[2u8; 1000]; 20];
    assert_eq!(send(&near, to, flood.iter().map(|d| &d[..])).sent, 20);
    settle();
    let dropped = drops(&far).unwrap();
    assert!(dropped > 0, "the buffer must overflow for this test to mean anything");
    assert_eq!(drain(&mut inbox, &far).len() as u32, 20 - dropped);
    assert_eq!(drops(&far).unwrap(), dropped, "taking what came changes nothing");
}

#[test]
fn what_the_kernel_refuses_is_skipped_and_counted() {
    let (near, far, to) = pair();
    let huge = vec![0; 70_000];
    let sent = send(&near, to, [&[1u8][..], &huge, &[2]]);
    assert_eq!(sent, Sent { sent: 2, refused: 1, error: Some(Errno::EMSGSIZE), ..Sent::default() });
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

/// Four rows of equal datagrams. The second row ends with a shorter datagram. A longer datagram and an empty one follow the third row.
fn rows() -> Vec<Vec<u8>> {
    let sizes = [[1_400; 20].as_slice(), &[300; 5], &[7], &[900; 40], &[1_100], &[0], &[64; 3]].concat();
    sizes.into_iter().enumerate().map(|(n, size)| vec![n as u8; size]).collect()
}

#[test]
fn segments_arrive_as_the_datagrams_that_they_were() {
    let (near, far, to) = pair();
    setsockopt(&far, sockopt::RcvBufForce, &(4 << 20))
        .or_else(|_| setsockopt(&far, sockopt::RcvBuf, &(4 << 20)))
        .unwrap();
    let (datagrams, mut segments) = (rows(), Segments::On);
    let sent = send_segmented(&near, to, datagrams.iter().map(Vec::as_slice), &mut segments);
    // The first batch is sent as packets of 20, 6 and 6 datagrams, and the second batch as one packet of 32. In the third batch, two
    // datagrams are sent alone: the longer one and the empty one.
    let alone = 2;
    assert_eq!(segments, Segments::On);
    assert_eq!((sent.sent, sent.refused), (datagrams.len() as u64, 0));
    assert!(sent.segmented >= sent.sent - alone - 4, "{sent:?}");
    settle();
    assert_eq!(drain(&mut Inbox::new(2_048), &far), datagrams);
}

#[test]
fn datagrams_that_the_kernel_put_together_are_taken_apart() {
    let (near, far, to) = pair();
    merge(&far, true).unwrap();
    setsockopt(&far, sockopt::ReceiveTimestampns, &true).unwrap();
    let whole: SegmentOf = <[u8]>::len;
    let datagrams = rows();
    for segments in [Segments::On, Segments::Off] {
        let mut inbox = Inbox::merging(whole);
        send_segmented(&near, to, datagrams.iter().map(Vec::as_slice), &mut segments.clone());
        settle();
        let (mut got, mut merged, mut calls) = (Vec::new(), 0, 0);
        while inbox.receive(&far).unwrap() > 0 {
            calls += 1;
            merged += inbox.datagrams().filter(|datagram| datagram.is_merged).count();
            assert!(inbox.datagrams().all(|datagram| !datagram.is_truncated && datagram.time_ns.is_some()));
            got.extend(inbox.datagrams().map(|datagram| datagram.bytes.to_vec()));
        }
        assert_eq!(got, datagrams, "{segments:?} {calls}");
        assert_eq!(merged > 60, segments == Segments::On, "{segments:?} {merged}");
    }
}

/// After some datagrams that arrived alone, the inbox receives the next delivery without control messages. So the kernel cannot report that
/// this delivery has merged datagrams.
#[test]
fn what_seemed_to_come_alone_is_taken_apart_by_its_bytes() {
    let (near, far, to) = pair();
    merge(&far, true).unwrap();
    let mut inbox = Inbox::merging(|bytes| bytes.len().min(100));
    for _ in 0..4 {
        send(&near, to, [&[1u8; 80][..]]);
        receive_one(&mut inbox, &far);
        assert_eq!(inbox.receive(&far).unwrap(), 0);
    }
    let mut segments = Segments::On;
    send_segmented(&near, to, [&[2u8; 100][..], &[3; 100], &[4; 30]], &mut segments);
    settle();
    assert_eq!(drain(&mut inbox, &far), [vec![2; 100], vec![3; 100], vec![4; 30]]);
}

/// The kernel does not report the lengths of merged datagrams that still wait when merging is turned off.
#[test]
fn what_was_put_together_before_it_was_told_to_stop_is_taken_apart() {
    let (near, far, to) = pair();
    let wait = || {
        let mut segments = Segments::On;
        // Three datagrams for a call that requests one datagram, and three for a call that requests two.
        for first in [2u8, 5] {
            let all = [&[first; 100][..], &[first + 1; 100], &[first + 2; 30]];
            assert_eq!(send_segmented(&near, to, all, &mut segments).segmented, 3);
        }
        settle();
    };
    let expected =
        [(2, 100), (3, 100), (4, 30), (5, 100), (6, 100), (7, 30)].map(|(of, bytes)| vec![of; bytes]);
    for (is_told_to_stop, waiting) in [(true, 2), (false, 2)] {
        merge(&far, true).unwrap();
        wait();
        if is_told_to_stop {
            merge(&far, false).unwrap();
        }
        let mut inbox = Inbox::merging(|bytes| bytes.len().min(100));
        let (mut got, mut deliveries, mut together) = (Vec::new(), 0, 0);
        while inbox.receive(&far).unwrap() > 0 {
            deliveries += inbox.received;
            together += inbox.together();
            got.extend(inbox.datagrams().map(|datagram| datagram.bytes.to_vec()));
        }
        assert_eq!(
            (&got[..], deliveries, together),
            (&expected[..], waiting, 6),
            "told to stop: {is_told_to_stop}"
        );
    }
    // From now on the kernel separates merged datagrams itself.
    merge(&far, false).unwrap();
    wait();
    let mut inbox = Inbox::merging(<[u8]>::len);
    assert_eq!(drain(&mut inbox, &far), expected);
}

#[test]
fn segments_that_the_kernel_refuses_leave_one_by_one_and_say_why() {
    let (near, far, to) = pair();
    // Without a checksum the kernel makes no segments.
    set_option(&near, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
    let (datagrams, mut segments) = ([[5u8; 200]; 10], Segments::On);
    for _ in 0..2 {
        let sent = send_segmented(&near, to, datagrams.iter().map(|d| &d[..]), &mut segments);
        assert_eq!((sent.sent, sent.segmented, sent.refused), (10, 0, 0));
        assert!(matches!(segments, Segments::Refused(Errno::EINVAL | Errno::EIO)), "{segments:?}");
    }
    settle();
    assert_eq!(drain(&mut Inbox::new(256), &far), vec![vec![5; 200]; 20]);
}
