//! Programs come back after a crash of the daemon.

use nix::sys::signal::Signal;
use shmcast::{Event, Start, Subscriber};
use shmcast_testkit::daemon::{Daemon, FOR_ALL, channel, publishing};
use shmcast_testkit::wait_for;
use socket2::{Domain, SockAddr, Socket, Type};

fn config(limits: &str) -> String {
    format!("[limits]\nconnections_per_uid = 600\n{limits}\n{}", channel("ticks", FOR_ALL))
        .replace("16MiB", "64KiB")
}

#[test]
fn many_readers_of_one_user_are_all_back_soon_after_a_crash() {
    let mut daemon = Daemon::start(&config("requests_per_second = 100000\nrequest_burst = 100000"));
    let client = daemon.client();
    let mut publisher = publishing(&client, "ticks").open().unwrap();
    publisher.publish(b"before").unwrap();
    let readers: Vec<Subscriber> = (0..300)
        .map(|_| Subscriber::builder("ticks").client(&client).start(Start::Latest).open().unwrap())
        .collect();
    // With these limits, all programs would need ten minutes to come back if each return counted as a request.
    daemon.configure(&config("requests_per_second = 1\nrequest_burst = 20"));
    daemon.crash();
    wait_for("all readers to be back", || {
        // The readers themselves know whether they are registered. A question to the daemon would cost requests.
        readers.iter().all(|reader| reader.is_registered() == Some(true)).then_some(())
    });
    assert!(publisher.is_registered() == Some(true));
    // The limits still hold: a client that sends requests without end is cut off.
    let refused = wait_for("a refusal", || client.channel("ticks").err());
    assert!(refused.to_string().contains("limits.requests_per_second"), "{refused}");
    drop(readers);
}

/// A program that waits for the answer of one daemon can still come back to another daemon in time.
#[test]
fn a_daemon_that_hangs_keeps_nobody_from_another() {
    let mut hanging = Daemon::start(&channel("a", FOR_ALL).replace("16MiB", "64KiB"));
    let mut other = Daemon::start(&channel("b", FOR_ALL).replace("16MiB", "64KiB"));
    let _first = publishing(&hanging.client(), "a").open().unwrap();
    let mut second = publishing(&other.client(), "b").open().unwrap();
    hanging.end(Signal::SIGTERM);
    // In place of the daemon, a program accepts connections and never answers.
    std::fs::remove_file(hanging.socket()).unwrap();
    let silent = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
    silent.bind(&SockAddr::unix(hanging.socket()).unwrap()).unwrap();
    silent.listen(8).unwrap();
    let _waiting = silent.accept().unwrap();
    other.crash();
    // A newcomer is let in after the programs that were attached have had their time.
    let mut reader = Subscriber::builder("b").client(&other.client()).open().unwrap();
    second.publish(b"after the crash").unwrap();
    assert!(
        matches!(reader.recv().unwrap(), Event::Message(message) if message.payload == b"after the crash")
    );
}
