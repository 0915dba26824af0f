//! Short forms of what most tests here do: a channel `t`, checks of a stream, a process of another user.

use shmcast::{ChannelError, Event, Publisher, PublisherBuilder, Subscriber, SubscriberBuilder};
use shmcast_testkit::process::{as_user, in_dir, role_under, run};
use shmcast_testkit::{PATIENCE, wait_for};
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes of the smallest possible ring.
pub(crate) const SMALL: u64 = 64 << 10;
const NOBODY: u32 = 65534;

pub(crate) fn publisher(dir: &Path) -> PublisherBuilder {
    Publisher::builder("t").dir(dir)
}

pub(crate) fn subscriber(dir: &Path) -> SubscriberBuilder {
    Subscriber::builder("t").dir(dir)
}

/// Takes over from a publisher that has died. A process that another test starts at this moment has the dead one's lock until it
/// executes its program.
pub(crate) fn successor(dir: &Path) -> Publisher {
    wait_for("the lock of the dead", || match publisher(dir).open() {
        Ok(publisher) => Some(publisher),
        Err(ChannelError::InUse { .. }) => None,
        Err(e) => panic!("{e}"),
    })
}

/// Receives all that is there. It must be messages only. Returns their sequences and payloads.
pub(crate) fn drain(subscriber: &mut Subscriber) -> Vec<(u64, Vec<u8>)> {
    let mut messages = Vec::new();
    while let Some(event) = subscriber.try_recv().unwrap() {
        let Event::Message(m) = event else { panic!("{event:?} instead of a message") };
        messages.push((m.sequence, m.payload.to_vec()));
    }
    messages
}

/// Receives the next event, which must come and must not be a message.
pub(crate) fn rare(subscriber: &mut Subscriber) -> Event<'static> {
    let event = subscriber.recv_deadline(Instant::now() + PATIENCE).unwrap();
    match event.expect("an event") {
        Event::Lapped(lapped) => Event::Lapped(lapped),
        Event::Gap { from, to } => Event::Gap { from, to },
        Event::NewEpoch { epoch } => Event::NewEpoch { epoch },
        Event::NewSession { session } => Event::NewSession { session },
        Event::Restarted => Event::Restarted,
        Event::End => Event::End,
        other => panic!("{other:?} where something rare was due"),
    }
}

/// Whether no event comes within some milliseconds.
pub(crate) fn is_silent(subscriber: &mut Subscriber) -> bool {
    subscriber.recv_deadline(Instant::now() + Duration::from_millis(5)).unwrap().is_none()
}

/// Plays a role of `module` as another user, if that is possible here. `under` is a command that becomes the other user.
pub(crate) fn as_nobody(test: &str, under: &[&str], module: &str, role: &str, dir: &Path) {
    let program = std::env::current_exe().expect("this program's own path");
    if as_user(test, NOBODY, &program).is_none() {
        return;
    }
    let setpriv = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let mut command = role_under(&[under, &setpriv].concat(), module, role);
    run(in_dir(&mut command, dir).env_remove(shmcast::DIR_VARIABLE))
        .unwrap_or_else(|e| panic!("{role}: {e}"));
}
