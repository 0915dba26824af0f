//! Pages of gates that somebody removes or moves while readers hold them.

use crate::support::{SMALL, publisher, subscriber};
use shmcast::{Event, Gate, Publisher, RecvError, Subscriber};
use shmcast_testkit::{scratch, wait_for};
use std::fs;
use std::path::Path;

fn gated(dir: &Path) -> Publisher {
    publisher(dir).capacity(SMALL).gate(Gate::new("risk").refuse()).open().unwrap()
}

/// Receives until there is an error.
fn error_of(reader: &mut Subscriber) -> RecvError {
    wait_for("an error", || loop {
        match reader.try_recv() {
            Ok(Some(Event::Message(_))) => {}
            Ok(Some(other)) => panic!("{other:?}"),
            Ok(None) => return None,
            Err(error) => return Some(error),
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
    let until = std::time::Instant::now() + std::time::Duration::from_millis(1200);
    while std::time::Instant::now() < until {
        reader.try_recv().unwrap();
    }
}
