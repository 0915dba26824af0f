//! Another channel, whose name begins alike, is sent to the address of the one that is received.

use shmcast::{Event, Publisher, Start, Subscriber};
use shmcast_bridge::egress::{Egress, EgressOptions};
use shmcast_bridge::ingress::{Ingress, IngressOptions};
use shmcast_bridge::spec::{BridgeSpec, LineSpec, Profile, ReceiveSpec, SendSpec, StartAt};
use shmcast_testkit::place::own_address;
use shmcast_testkit::{scratch, wait_for};
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

const WANTED: &str = "ticks_eu";
const OTHER: &str = "ticks_us";
/// After this silence of its feed a receiver of a plain line takes another one.
const SILENCE: Duration = Duration::from_secs(3);

fn channel(dir: &Path, name: &str) -> Publisher {
    Publisher::builder(name).dir(dir).capacity(1 << 20).max_message(1_000).open().unwrap()
}

fn spec(name: &str, profile: Profile, line: SocketAddr) -> BridgeSpec {
    BridgeSpec { lines: vec![LineSpec::to(line)], profile, ..BridgeSpec::new(name) }
}

fn send(dir: &Path, spec: BridgeSpec) -> Egress {
    let send = SendSpec { from: StartAt::Oldest, linger_ms: 0, listen_ms: 0, ..SendSpec::default() };
    let channel = Subscriber::builder(&spec.channel).dir(dir);
    let spec = BridgeSpec { send: Some(send), ..spec };
    Egress::start(&spec, channel, EgressOptions::default()).unwrap()
}

/// Publishes in both channels until `is_enough`.
fn publish(publishers: &mut [Publisher; 2], what: &str, mut is_enough: impl FnMut() -> bool) {
    wait_for(what, || {
        for (publisher, text) in publishers.iter_mut().zip([WANTED, OTHER]) {
            publisher.publish(text.as_bytes()).unwrap();
        }
        std::thread::sleep(Duration::from_millis(2));
        is_enough().then_some(())
    });
}

fn keeps_to_its_feed(profile: Profile) {
    let dirs = [scratch(), scratch(), scratch()];
    let line = own_address();
    let mut publishers = [channel(dirs[0].path(), WANTED), channel(dirs[1].path(), OTHER)];
    let receive = BridgeSpec { receive: Some(ReceiveSpec::default()), ..spec(WANTED, profile, line) };
    let mirror = Publisher::builder(WANTED).dir(dirs[2].path()).capacity(1 << 20).max_message(1_000);
    let ingress = Ingress::start(&receive, mirror, IngressOptions::default()).unwrap();
    let wanted = send(dirs[0].path(), spec(WANTED, profile, line));
    publish(&mut publishers, "the wanted feed", || ingress.counters().host.messages_published > 10);
    assert_eq!(ingress.trouble(), None);

    // The first letters of both names are the same.
    let other = send(dirs[1].path(), spec(OTHER, profile, line));
    let stranger = other.life().session().unwrap();
    publish(&mut publishers, "a word about the other one", || {
        ingress.trouble().is_some_and(|said| said.contains(&stranger.to_string()))
    });
    let before = ingress.counters();
    publish(&mut publishers, "both feeds", || {
        let now = ingress.counters();
        now.feed.packets_foreign > before.feed.packets_foreign + 50
            && now.host.messages_published > before.host.messages_published + 50
    });
    assert_eq!(ingress.life().session(), wanted.life().session());

    // The wanted one is silent now.
    let session = wanted.life().session();
    drop(wanted);
    let began = Instant::now();
    match profile {
        Profile::Native => {
            publish(&mut publishers, "a word after a long silence", || {
                began.elapsed() > SILENCE + SILENCE / 2 && ingress.trouble().is_some()
            });
            assert_eq!((ingress.life().session(), ingress.counters().feed.sessions), (session, 1));
        }
        Profile::Plain => {
            publish(&mut publishers, "the other session", || ingress.life().session() == Some(stranger));
            return;
        }
    }
    let mut reader = Subscriber::builder(WANTED).dir(dirs[2].path()).start(Start::Oldest).open().unwrap();
    while let Some(event) = reader.try_recv().unwrap() {
        if let Event::Message(message) = event {
            assert_eq!(message.payload, WANTED.as_bytes());
        }
    }
}

#[test]
fn a_native_receiver_keeps_to_its_channel_and_names_another_one() {
    keeps_to_its_feed(Profile::Native);
}

#[test]
fn a_plain_receiver_keeps_to_its_channel_while_it_is_heard_and_names_another_one() {
    keeps_to_its_feed(Profile::Plain);
}
