//! Gates whose readers lose them.

use shmcast::{Client, Publisher, Subscriber};
use shmcast_testkit::daemon::{Daemon, channel, publishing};
use shmcast_testkit::process::{at_socket, my_role, my_socket};
use shmcast_testkit::{Process, role, role_as, wait_for, wait_until};

const NOBODY: u32 = 65534;

fn open(client: &Client) -> Publisher {
    // The kernel releases a dead publisher's lock some time after its death.
    wait_for("the channel to be free", || publishing(client, "ticks").open().ok())
}

fn risk(client: &Client) -> shmcast::SubscriberBuilder {
    Subscriber::builder("ticks").client(client).gate("risk")
}

#[test]
#[ignore = "a role that the tests here start processes for"]
fn play() {
    let Some(role) = my_role() else { return };
    let client = Client::at(my_socket()).unwrap();
    match role.as_str() {
        "reader" => {
            let mut reader = risk(&client).open().unwrap();
            while reader.recv().is_ok() {}
        }
        other => panic!("no role {other}"),
    }
}

/// An earlier mistake: a reader that may no longer read kept its gate, and each later publisher waited for it for ever.
#[test]
fn a_reader_that_may_no_longer_read_holds_no_publisher_up() {
    let config = |users: &str, mode: &str, capacity: &str| {
        let gate = format!("[[channel.gate]]\nname = \"risk\"\nusers = [{users}]\nthen = \"refuse\"");
        let lists = format!("subscribers = [{users}]\nmode = \"{mode}\"\n{gate}");
        channel("ticks", &lists).replace("16MiB", capacity)
    };
    for mode in ["strict", "takeover"] {
        let daemon = Daemon::start(&config("\"uid:65534\"", mode, "64KiB"));
        let test = "a_reader_that_may_no_longer_read_holds_no_publisher_up";
        let Some(mut reader) = role_as!(test, NOBODY, "reader") else { return };
        let client = daemon.client();
        let first = open(&client);
        let mut reader = Process::start(at_socket(&mut reader, &daemon.socket()));
        wait_until("its gate to be held", || client.channel("ticks").unwrap().gates[0].reader.is_some());
        daemon.reload(&config("", mode, "128KiB"));
        drop(first);
        // The daemon cuts the reader off when it would send the new memory.
        let mut second = open(&client);
        for n in 0..4_000 {
            let sent = second.publish(&[1; 100]);
            assert!(sent.is_ok(), "{mode}: message {n}: {sent:?}");
        }
        daemon.wait_for_log(&["refused", "may no longer read"]);
        drop(second);
        let mut third = open(&client);
        (0..4_000).for_each(|_| drop(third.publish(&[1; 100]).unwrap()));
        // Its gate is gone, so it ends with an error.
        assert!(reader.wait().success());
    }
}
