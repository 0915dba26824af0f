//! Pages of gates that somebody removes or moves while readers hold them, and the figures about gates.

use crate::support::{SMALL, publisher, subscriber};
use shmcast::{Event, Gate, PublishError, Publisher, RecvError, Subscriber};
use shmcast_layout::gate::Figures;
use shmcast_testkit::{scratch, wait_for};
use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

fn gated(dir: &Path) -> Publisher {
    publisher(dir).capacity(SMALL).gate(Gate::new("risk").refuse()).open().unwrap()
}

/// Receives until there is an error.
fn error_of(reader: &mut Subscriber) -> RecvError {
    wait_for("an error", || {
        loop {
            match reader.try_recv() {
                Ok(Some(Event::Message(_))) => {}
                Ok(Some(other)) => panic!("{other:?}"),
                Ok(None) => return None,
                Err(error) => return Some(error),
            }
        }
    })
}

/// An earlier mistake: nobody told the reader, and the next publisher did not wait for it.
#[test]
fn a_reader_is_told_that_its_gate_has_lost_its_page() {
    type Change = fn(&Path);
    let changes: [(&str, Change); 3] = [
        ("removed", |gates| fs::remove_file(gates.join("risk")).unwrap()),
        ("replaced", |gates| {
            fs::rename(gates.join("risk"), gates.join("other")).unwrap();
            fs::copy(gates.join("other"), gates.join("risk")).unwrap();
        }),
        ("moved", |gates| fs::rename(gates, gates.with_file_name("gates-away")).unwrap()),
    ];
    for (what, change) in changes {
        let dir = scratch();
        let mut first = gated(dir.path());
        let mut reader = subscriber(dir.path()).gate("risk").open().unwrap();
        first.publish(b"x").unwrap();
        assert!(matches!(reader.try_recv(), Ok(Some(Event::Message(_)))), "{what}");
        change(&dir.path().join("t/gates"));
        first.publish(b"y").unwrap();
        let lost = error_of(&mut reader);
        let RecvError::GateLost { gate } = lost else { panic!("{what}: {lost}") };
        assert_eq!(gate.as_str(), "risk", "{what}");
        // The next publisher makes another page, and the reader can have it.
        drop((reader, first));
        let _next = gated(dir.path());
        drop(subscriber(dir.path()).gate("risk").open().unwrap());
    }
}

/// A reader whose page keeps its name gets no error, however often it polls.
#[test]
fn a_page_that_keeps_its_name_is_not_lost() {
    let dir = scratch();
    let mut first = gated(dir.path());
    let mut reader = subscriber(dir.path()).gate("risk").open().unwrap();
    drop(first);
    first = gated(dir.path());
    first.publish(b"x").unwrap();
    let until = std::time::Instant::now() + Duration::from_millis(1200);
    while std::time::Instant::now() < until {
        reader.try_recv().unwrap();
    }
}

/// An earlier mistake: a publisher that could not open its gates had already removed the figures of the publisher before it.
#[test]
fn a_publisher_that_cannot_open_its_gates_leaves_the_figures() {
    let dir = scratch();
    drop(gated(dir.path()));
    let gates = dir.path().join("t/gates");
    let shown = || Figures::read(&File::open(gates.join(".figures")).unwrap()).unwrap().expect("figures");
    let before = shown();
    assert_eq!(before.gates[0].name, "risk");
    // No page can get this name.
    fs::create_dir(gates.join("other")).unwrap();
    fs::write(gates.join("other/file"), "").unwrap();
    let both = publisher(dir.path()).gate(Gate::new("risk").refuse()).gate(Gate::new("other"));
    let refused = both.open().unwrap_err();
    assert!(refused.to_string().contains("make the pages of gates"), "{refused}");
    assert_eq!(shown(), before);
    let left = fs::read_dir(&gates).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(left.into_iter().all(|name| !name.starts_with(".new-")));
    fs::remove_dir_all(gates.join("other")).unwrap();
    let _next = gated(dir.path());
    assert_ne!(shown().segment, [0; 2]);
}

/// An earlier mistake: each gate that held a message up was charged with the whole wait of the message.
#[test]
fn a_gate_is_not_charged_with_the_wait_for_another() {
    let dir = scratch();
    let slow = Gate::new("slow").wait(Duration::from_millis(200)).refuse();
    let measure = Gate::new("measure").wait(Duration::ZERO);
    let mut publisher = publisher(dir.path()).capacity(SMALL).gate(slow).gate(measure).open().unwrap();
    let _readers = ["slow", "measure"].map(|gate| subscriber(dir.path()).gate(gate).open().unwrap());
    let full = (0..100_000).find_map(|_| publisher.publish(&[1; 100]).err());
    assert!(matches!(full, Some(PublishError::Full { gate, .. }) if gate.as_str() == "slow"), "{full:?}");
    let [slow, measure] = &publisher.gates()[..] else { panic!() };
    assert!(slow.held == 1 && slow.longest >= Duration::from_millis(200), "{slow:?}");
    assert_eq!((measure.held, measure.dropped, measure.total), (1, 1, Duration::ZERO), "{measure:?}");
    assert_eq!(measure.wait_quantile(0.99), None, "it never waits");
}
