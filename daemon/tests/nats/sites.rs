//! Two sites: a stream in one domain, and its copy in another, over a leaf node.

use crate::feed::{Feed, Pace};
use shmcast_testkit::nats::{Server, program};
use shmcast_testkit::place::free_port;
use shmcast_testkit::turn::turn;
use shmcast_testkit::wait_until;
use std::time::Duration;

#[test]
fn a_copy_in_a_second_domain_has_the_same_messages() {
    let test = "a_copy_in_a_second_domain_has_the_same_messages";
    let (_turn, Some(program)) = (turn(), program(test)) else { return };
    let dir = tempfile::tempdir().unwrap();
    let leaf = free_port();
    let named = |name: &str, more: &str| {
        let more = format!("server_name: {name}\n{more}");
        let server = Server::with(program, &dir.path().join(name), &more);
        server.rewrite(|text| text.replace("jetstream {", &format!("jetstream {{ domain: {name},")));
        server
    };
    let restarted = |mut server: Server| {
        server.kill();
        server.start();
        server
    };
    let hub = restarted(named("hub", &format!("leafnodes {{ listen: \"127.0.0.1:{leaf}\" }}")));
    let remotes = format!("leafnodes {{ remotes: [ {{ url: \"nats://127.0.0.1:{leaf}\" }} ] }}");
    let site = restarted(named("site", &remotes));
    let pace = Pace { messages: 20_000, ahead: 20_000, pause: Duration::from_millis(1), capacity: 16 << 20 };
    let mut feed = Feed::publish(pace);
    feed.compare(|_| false);
    let mut send = feed.send(&format!("--nats {} --set nats.create=true", hub.url()));
    let copy = format!("bridge stream create ticks {} --mirror-of hub", site.url());
    wait_until("a copy", || feed.far.run(&copy).status.success());
    let mut receive = feed.receive(&format!("--nats {} --set nats.domain=site", site.url()));
    feed.wait_for(pace.messages + 1, &mut [&mut send, &mut receive]);
    feed.finish();
}
