//! Channels of a daemon with a board and with a gate: through refusals, deaths of publishers and restarts of the daemon.

use shmcast::{Board, Client, Event, GateState, PublishError, Publisher, Start, Subscriber};
use shmcast_testkit::daemon::{Daemon, FOR_ALL, channel, publishing};
use shmcast_testkit::process::{at_socket, my_role, my_socket};
use shmcast_testkit::{PATIENCE, Process, role, wait_for, wait_until};
use std::time::{Duration, Instant};

const KEYS: u64 = 4;

fn config(mode: &str, gate: &str) -> String {
    let board = format!("board = {{ key = \"0..8\", keys = {KEYS}, value = 64 }}");
    let gate = format!("[[channel.gate]]\nname = \"risk\"\nusers = [\"*\"]\n{gate}\n");
    channel("ticks", &format!("mode = \"{mode}\"\n{FOR_ALL}\n{board}\n{gate}")).replace("16MiB", "64KiB")
}

fn open(client: &Client) -> Publisher {
    // The kernel releases a dead publisher's lock some time after its death.
    wait_for("the channel to be free", || publishing(client, "ticks").open().ok())
}

fn risk(client: &Client) -> shmcast::SubscriberBuilder {
    Subscriber::builder("ticks").client(client).gate("risk")
}

/// The message with this number, whose key follows from it.
fn message(number: u64) -> Vec<u8> {
    [(number % KEYS).to_le_bytes(), number.to_le_bytes()].concat()
}

/// Publishes messages with the numbers of their sequences until the gate refuses one.
fn fill(publisher: &mut Publisher) {
    loop {
        match publisher.try_publish(&message(publisher.next_sequence())) {
            Ok(sequence) => assert!(sequence < 1_000_000, "nothing holds this publisher up"),
            Err(PublishError::Full { gate, .. }) => return assert_eq!(gate.as_str(), "risk"),
            Err(other) => panic!("{other}"),
        }
    }
}

/// The board has the newest messages before `next`, and nothing else.
fn check_board(board: &mut Board, next: u64) {
    // The board of the next generation comes with the next publisher.
    wait_until("the board to follow", || {
        board.get(&message(next)[..8]).is_ok() && board.counters().through >= next - 1
    });
    assert_eq!(board.counters().through, next - 1);
    for number in next - KEYS..next {
        let entry = board.get(&message(number)[..8]).unwrap().expect("the key is there");
        assert_eq!(entry.message.map(|m| (m.sequence, m.payload.to_vec())), Some((number, message(number))));
    }
}

/// Receives all messages before `next`, without a loss.
fn drain(reader: &mut Subscriber, due: &mut u64, next: u64) {
    while *due < next {
        match reader.recv_deadline(Instant::now() + PATIENCE).unwrap().expect("more was published") {
            Event::Message(m) => {
                assert_eq!((m.sequence, m.payload), (*due, &message(*due)[..]));
                *due += 1;
            }
            Event::NewEpoch { .. } | Event::End => {}
            other => panic!("{other:?} where message {due} was due"),
        }
    }
}

#[test]
#[ignore = "a role that the tests here start processes for"]
fn play() {
    let Some(role) = my_role() else { return };
    assert_eq!(role, "publisher");
    let mut publisher = open(&Client::at(my_socket()).unwrap());
    // The reader comes from the previous generation. The publisher waits for the reader as soon as the reader is here.
    while publisher.gates()[0].state != GateState::InForce {
        publisher.publish(&message(publisher.next_sequence())).unwrap();
        std::thread::sleep(Duration::from_micros(50));
    }
    loop {
        // The publisher is refused again and again, until it is killed.
        let _ = publisher.try_publish(&message(publisher.next_sequence()));
    }
}

#[test]
fn what_a_gate_refuses_is_not_on_the_board_in_both_modes() {
    for mode in ["takeover", "strict"] {
        let mut daemon = Daemon::start(&config(mode, "then = \"refuse\""));
        let client = daemon.client();
        let mut publisher = open(&client);
        let mut reader = risk(&client).start(Start::Oldest).open().unwrap();
        let mut board = Subscriber::builder("ticks").client(&client).open_board().unwrap();
        let mut due = 1;
        for round in 0..5 {
            fill(&mut publisher);
            let next = publisher.next_sequence();
            publisher.publish(&message(next)).unwrap_err();
            publisher.publish_vectored(&[&message(next)], shmcast::Mark::default()).unwrap_err();
            assert_eq!(publisher.next_sequence(), next, "{mode} {round}");
            check_board(&mut board, next);
            if round == 3 {
                daemon.crash(); // which changes nothing
            }
            drain(&mut reader, &mut due, next);
            assert_eq!(publisher.publish(&message(next)), Ok(next), "{mode} {round}");
            check_board(&mut board, next + 1);
            drain(&mut reader, &mut due, next + 1);
        }
        wait_until("both to come back", || {
            publisher.is_registered() == Some(true) && reader.is_registered() == Some(true)
        });
        let shown = daemon.client().channel("ticks").unwrap();
        let through = shown.board.expect("it has a board").through;
        assert_eq!((through, &shown.gates[0].state[..]), (due - 1, "in-force"), "{mode}");
    }
}

#[test]
fn the_successor_of_a_killed_publisher_has_both() {
    for mode in ["takeover", "strict"] {
        let daemon = Daemon::start(&config(mode, "then = \"refuse\""));
        let client = daemon.client();
        drop(open(&client));
        let mut reader = risk(&client).start(Start::Oldest).open().unwrap();
        let mut board = Subscriber::builder("ticks").client(&client).open_board().unwrap();
        let mut due = 1;
        for kill in 0..3 {
            let process = Process::start(at_socket(&mut role!("publisher"), &daemon.socket()));
            drain(&mut reader, &mut due, kill * 1000 + 500);
            process.kill();
            let mut successor = open(&client);
            let next = successor.next_sequence();
            check_board(&mut board, next);
            drain(&mut reader, &mut due, next);
            wait_until("the gate to be in force", || {
                successor.publish(&message(successor.next_sequence())).unwrap();
                drain(&mut reader, &mut due, successor.next_sequence());
                successor.gates()[0].state == GateState::InForce
            });
            fill(&mut successor);
            check_board(&mut board, successor.next_sequence());
            drain(&mut reader, &mut due, successor.next_sequence());
        }
    }
}

#[test]
fn a_dropped_reader_is_not_waited_for_and_the_board_has_the_newest() {
    let daemon = Daemon::start(&config("takeover", "wait = \"1ms\""));
    let client = daemon.client();
    let mut publisher = open(&client);
    let mut reader = risk(&client).conflate().open().unwrap();
    for number in 1..=20_000 {
        publisher.publish(&message(number)).unwrap();
    }
    assert_eq!((publisher.gates()[0].state, publisher.gates()[0].dropped), (GateState::Dropped, 1));
    let mut board = Subscriber::builder("ticks").client(&client).open_board().unwrap();
    check_board(&mut board, 20_001);
    // The gate's reader conflates, so it has caught up immediately.
    let (mut received, mut left_out) = (0, 0);
    loop {
        match reader.recv_deadline(Instant::now() + PATIENCE).unwrap().expect("the board") {
            Event::Message(m) => (received, left_out) = (received + 1, left_out + m.conflated.unwrap_or(0)),
            Event::Live { sequence } => break assert_eq!(sequence, 20_001),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(received + left_out, 20_000);
    wait_until("the gate to be in force", || {
        publisher.publish(&message(publisher.next_sequence())).unwrap();
        while reader.try_recv().unwrap().is_some() {}
        publisher.gates()[0].state == GateState::InForce
    });
}
