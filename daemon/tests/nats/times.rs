//! The times of messages that a bridge sends from the journal.

use shmcast::{Event, Start, Subscriber};
use shmcast_testkit::daemon::{Daemon, FOR_ALL, channel, publishing};
use shmcast_testkit::nats::alone;
use shmcast_testkit::{REST, wait_for, wait_until};
use std::fs;

/// An earlier mistake: the bridge converted the times of the journal's messages with the clock of the present ring. A reboot begins another
/// clock, so after it these messages arrived with times of another day. Here the configuration changes the clock.
#[test]
fn messages_of_the_journal_keep_their_times_after_a_change_of_the_clock() {
    let test = "messages_of_the_journal_keep_their_times_after_a_change_of_the_clock";
    let Some((_turn, dir, mut server)) = alone(test) else { return };
    let journal = dir.path().join("journal");
    let config = |clock: &str| {
        format!(
            "[limits]\nrequests_per_second = 10000\n{}\n[[bridge]]\nchannel = \"ticks\"\nengine = \"nats\"\n\
             nats = {{ servers = [\"{}\"], create = true }}\nsend = {{}}\n",
            channel("ticks", &format!("{FOR_ALL}\n{clock}\njournal = {{ dir = \"{}\" }}", journal.display())),
            server.url()
        )
    };
    let (before, after) = (config("clock = \"monotonic\""), config("clock = \"counter\""));
    let receives = format!(
        "{}[[bridge]]\nchannel = \"ticks\"\nengine = \"nats\"\nnats = {{ servers = [\"{}\"] }}\n\
         receive = {{ clock_limit_us = 0 }}\n",
        channel("ticks", FOR_ALL),
        server.url()
    );
    let mut near = Daemon::start(&before);
    let far = Daemon::start(&receives);
    let mut publisher = publishing(&near.client(), "ticks").open().unwrap();
    publisher.publish(b"x").unwrap();
    let client = far.client();
    let mut reader = wait_for("the channel", || {
        Subscriber::builder("ticks").client(&client).start(Start::Oldest).wait(REST).open().ok()
    });
    wait_until("the first message", || matches!(reader.try_recv().unwrap(), Some(Event::Message(_))));
    server.kill();
    publisher.publish_batch(vec![b"x"; 500]).unwrap();
    let client = near.client();
    let durable = || client.channel("ticks").unwrap().journal.map(|journal| journal.durable);
    wait_until("the journal", || durable() >= Some(501));
    near.kill();
    drop(publisher);
    fs::remove_dir_all(near.dir().join("run")).unwrap();
    near.configure(&after);
    near.restart();
    server.start();
    let mut publisher = publishing(&near.client(), "ticks").open().unwrap();
    let last = publisher.publish(b"x").unwrap();
    let mut times = 0;
    wait_until("the last message", || {
        let clock = reader.clock();
        while let Some(event) = reader.try_recv().unwrap() {
            if let Event::Message(message) = event {
                let age_ns = clock.ns_since(message.time);
                assert!(
                    message.time != 0 && age_ns < 600_000_000_000,
                    "{}: {age_ns} ns old",
                    message.sequence
                );
                times += 1;
            }
        }
        reader.next_sequence() > last
    });
    assert_eq!(times, 501);
}
