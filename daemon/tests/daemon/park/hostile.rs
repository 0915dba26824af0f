//! Parked readers that write invalid words to their pages. They must not affect other readers.

use super::{daemon, join, parked, publisher, receive, waking_time};
use shmcast::control::{Request, Response, VERSION, decode, encode};
use shmcast::sys::handoff;
use shmcast_testkit::{PATIENCE, wait_until};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// A reader that uses the protocol without the library, so that it can write invalid words.
struct Hostile {
    _control: OwnedFd,
    page: File,
    bell: UnixStream,
    far: UnixStream,
}

/// The offset in the page of the word that says that the reader sleeps.
const ASLEEP: u64 = 17 * 8;

impl Hostile {
    fn attach(socket: &Path) -> Self {
        let (bell, far) = UnixStream::pair().unwrap();
        let (control, reply, mut granted) = ask_to_park(socket, &[far.as_fd()]);
        assert!(matches!(reply, Response::Subscribed(_)), "{reply:?}");
        Self { _control: control, page: granted.swap_remove(2), bell, far }
    }

    fn say(&self, word: u64) {
        self.page.write_all_at(&word.to_le_bytes(), ASLEEP).unwrap();
    }
}

fn ask_to_park(socket: &Path, descriptors: &[BorrowedFd<'_>]) -> (OwnedFd, Response, Vec<File>) {
    let control = handoff::connect(socket).unwrap();
    let mut buffer = vec![0; handoff::MAX_PACKET];
    let mut ask = |request: &Request, descriptors: &[BorrowedFd<'_>]| {
        handoff::send(&control, &encode(request), descriptors).unwrap();
        let packet = handoff::receive(&control, &mut buffer).unwrap();
        (decode::<Response>(&buffer[..packet.length]).unwrap(), packet.descriptors)
    };
    ask(&Request::Hello { version: VERSION }, &[]);
    let (reply, granted) = ask(
        &Request::Subscribe { channel: "t".into(), resume: false, park: true, hidden: false, watch: false },
        descriptors,
    );
    (control, reply, granted)
}

/// Each trick is played while an honest reader sleeps. Afterwards the honest reader still gets each message.
#[test]
fn hostile_sleepers_keep_the_waker_from_the_honest_ones() {
    let daemon = daemon();
    let client = daemon.client();
    let mut publisher = publisher(&client);
    let mut honest = parked(&client).open().unwrap();
    let (send, got) = mpsc::channel();
    let honest = thread::spawn(move || {
        while let Some(sequence) = receive(&mut honest) {
            send.send(sequence).unwrap();
        }
    });
    let mut still_fine = |trick: &str| {
        thread::sleep(Duration::from_millis(20));
        publisher.publish(b"x").unwrap();
        assert_eq!(got.recv_timeout(PATIENCE), Ok(publisher.next_sequence() - 1), "after: {trick}");
    };
    still_fine("nothing");

    let crowd: Vec<Hostile> = (0..20).map(|_| Hostile::attach(&daemon.socket())).collect();
    for (word, trick) in [
        (u64::MAX, "asleep at the end of the world"),
        (1, "asleep where everything is overwritten"),
        ((1 << 63) | 1, "asleep at a position that no ring has"),
        (64 * 12_345 + 63, "asleep in the middle of nowhere"),
        (2, "asleep without saying so"),
    ] {
        crowd.iter().for_each(|hostile| hostile.say(word));
        still_fine(trick);
    }
    let mut rng = fastrand::Rng::with_seed(7);
    let toggling = Instant::now();
    while toggling.elapsed() < Duration::from_millis(500) {
        crowd.iter().for_each(|hostile| hostile.say(rng.u64(..)));
    }
    still_fine("toggling, which fills the bells");
    for hostile in &crowd {
        // The flags are shared with the end that the daemon has. After this call, a plain write to that end would block.
        hostile.far.set_nonblocking(false).unwrap();
    }
    for nap in 0..2000 {
        crowd.iter().for_each(|hostile| hostile.say(u64::MAX - 63 + nap % 2 * 2));
        thread::sleep(Duration::from_micros(100));
    }
    still_fine("full bells that would block");
    let ringing = Instant::now();
    while ringing.elapsed() < Duration::from_millis(500) {
        for hostile in &crowd {
            let _ = std::io::Write::write(&mut &hostile.bell, &[0; 64]);
            hostile.bell.set_nonblocking(true).unwrap();
        }
    }
    still_fine("ringing without end");
    for hostile in &crowd[..10] {
        hostile.bell.shutdown(std::net::Shutdown::Both).unwrap();
    }
    for hostile in &crowd[10..] {
        hostile.far.shutdown(std::net::Shutdown::Both).unwrap();
    }
    still_fine("shut bells");
    crowd.iter().for_each(|hostile| hostile.say(0));
    still_fine("awake, with shut bells");
    drop(crowd);
    still_fine("all gone");

    let pipe = std::io::pipe().unwrap();
    let (one, other) = UnixStream::pair().unwrap();
    let nothing = File::open("/dev/null").unwrap();
    let wrong: [(&str, &[BorrowedFd<'_>]); 5] = [
        ("no bell", &[]),
        ("two bells", &[one.as_fd(), other.as_fd()]),
        ("a file for a bell", &[nothing.as_fd()]),
        ("a pipe for a bell", &[pipe.1.as_fd()]),
        ("four bells", &[one.as_fd(), one.as_fd(), one.as_fd(), one.as_fd()]),
    ];
    for (trick, descriptors) in wrong {
        let (_control, reply, granted) = ask_to_park(&daemon.socket(), descriptors);
        assert!(matches!(reply, Response::Refused { .. }) && granted.is_empty(), "{trick}: {reply:?}");
        still_fine(trick);
    }
    publisher.close();
    join(vec![honest]);
}

/// A waker that blocks costs nothing: while all readers are awake, its thread does not run at all.
#[test]
fn the_waker_polls_for_nobody() {
    let daemon = daemon();
    let client = daemon.client();
    let mut publisher = publisher(&client);
    let mut subscriber = parked(&client).open().unwrap();
    publisher.publish(b"x").unwrap();
    assert_eq!(receive(&mut subscriber), Some(1));
    // A shut bell is readable for ever. If the waker waited for this bell, it would never block again.
    let shut = Hostile::attach(&daemon.socket());
    shut.bell.shutdown(std::net::Shutdown::Both).unwrap();
    // Nobody ended this nap. The reader must itself write that it is awake.
    assert_eq!(subscriber.recv_deadline(Instant::now() + Duration::from_millis(10)), Ok(None));
    // No reader sleeps from here on, because this one does not receive again.
    wait_until("rest", || {
        let before = waking_time(&daemon);
        thread::sleep(Duration::from_millis(200));
        waking_time(&daemon) == before
    });
    let sleeper = thread::spawn(move || receive(&mut subscriber));
    thread::sleep(Duration::from_millis(50));
    publisher.publish(b"y").unwrap();
    assert_eq!(join(vec![sleeper]), [Some(2)], "it is there again when somebody sleeps");
}
