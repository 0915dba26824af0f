//! The repair server while its channel changes: a client asks it directly, as a receiver does.

use shmcast::{History, Publisher, Subscriber};
use shmcast_bridge::egress::{Egress, EgressOptions};
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::proto::wire::{Body, Downstream, Request};
use shmcast_bridge::spec::{BridgeSpec, LineSpec, RepairSpec, SendSpec, StartAt};
use shmcast_testkit::place::own_address;
use shmcast_testkit::turn::turn;
use shmcast_testkit::{number, wait_for};
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn publisher(dir: &Path) -> Publisher {
    Publisher::builder("t").dir(dir).capacity(1 << 20).max_message(1_000).anew().open().unwrap()
}

/// An egress whose server gives full answers to this host.
fn sending(dir: &Path, change: impl FnOnce(&mut SendSpec)) -> Egress {
    let mut repair = RepairSpec::new("127.0.0.1:0".parse().unwrap());
    repair.allow = vec!["127.0.0.1".parse().unwrap()];
    repair.trust_allowed = true;
    let mut send = SendSpec { from: StartAt::Oldest, repair: Some(repair), ..SendSpec::default() };
    change(&mut send);
    let spec =
        BridgeSpec { send: Some(send), lines: vec![LineSpec::to(own_address())], ..BridgeSpec::new("t") };
    let channel = Subscriber::builder("t").dir(dir).history(History::Never);
    Egress::start(&spec, channel, EgressOptions::default()).unwrap()
}

/// A socket that sends requests to a repair server.
struct Asker {
    socket: UdpSocket,
    server: SocketAddr,
}

impl Asker {
    fn of(egress: &Egress) -> Asker {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        Asker { socket, server: egress.repair_address().unwrap() }
    }

    /// Requests one message of a session. Returns the session and the message of the answer, if the answer has a message.
    fn ask(&self, session: Session, sequence: u64) -> Option<(Session, Vec<u8>)> {
        let request = Request { session, first: sequence, count: 1 };
        self.socket.send_to(&request.encode(), self.server).unwrap();
        let mut bytes = [0; 2_048];
        let size = self.socket.recv(&mut bytes).ok()?;
        let packet = Downstream::parse(&bytes[..size]).ok()?;
        let Body::Messages(messages) = packet.body else { return None };
        let message = messages.messages().find(|message| message.sequence == sequence)?;
        Some((packet.session, message.data.to_vec()))
    }
}

/// Sets the flag when this value is dropped, even by a panic.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The channel is made anew again and again, with the same sequences in each life. An earlier mistake: the server changed to the new ring
/// some milliseconds before the sender began the new session. So it answered requests of the old session with new messages.
#[test]
fn no_session_is_answered_with_messages_of_another() {
    let (_turn, a) = (turn(), tempfile::tempdir().unwrap());
    let of_life = |life: u64| format!("life {life}").into_bytes();
    let mut publishing = Some(publisher(a.path()));
    publishing.as_mut().unwrap().publish(&of_life(0)).unwrap();
    // The egress has a state file, because a session begins only after this file is on the disk.
    let egress = sending(a.path(), |send| send.state = Some(a.path().join("state")));
    let mut session = wait_for("the session", || egress.life().session());
    let (asker, done) = (Asker::of(&egress), AtomicBool::new(false));
    let mut lives = vec![(session, of_life(0))];
    let answers = std::sync::Mutex::new(Vec::new());
    let asked = std::sync::Mutex::new(session);
    std::thread::scope(|scope| {
        let _done = Done(&done);
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let session = *asked.lock().unwrap();
                answers.lock().unwrap().extend(asker.ask(session, 1));
            }
        });
        for life in 1..=number("SHMCAST_LIVES", 40u64) {
            wait_for("an answer", || {
                let session = (session, of_life(life - 1));
                answers.lock().unwrap().contains(&session).then_some(())
            });
            drop(publishing.take());
            let publishing = publishing.insert(publisher(a.path()));
            publishing.publish(&of_life(life)).unwrap();
            session = wait_for("another session", || egress.life().session().filter(|now| *now != session));
            lives.push((session, of_life(life)));
            *asked.lock().unwrap() = session;
        }
    });
    let answers = answers.into_inner().unwrap();
    for answer in &answers {
        let said = String::from_utf8_lossy(&answer.1);
        assert!(lives.contains(answer), "{said:?} was given to the session {}", answer.0);
    }
    assert_eq!(egress.life().error(), None);
}
