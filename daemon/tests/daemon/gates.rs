//! Gates of a daemon's channels: the rules for access, the pages that programs get, and what remains when the daemon or a publisher ends.

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc::{F_WRLCK, flock};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use shmcast::{
    ChannelError, Client, Event, Gate, GateError, GateState, PublishError, Publisher, Start, Subscriber,
};
use shmcast_testkit::daemon::{Daemon, FOR_ALL, channel, publishing};
use shmcast_testkit::process::{at_socket, my_role, my_socket};
use shmcast_testkit::raw::{Raw, fds, publish, subscribe};
use shmcast_testkit::{Process, role, role_as, wait_for, wait_until};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const NOBODY: u32 = 65534;

fn config(gates: &str) -> String {
    channel("ticks", &format!("{FOR_ALL}\n{gates}")).replace("16MiB", "64KiB")
}

fn gate(more: &str) -> String {
    format!("[[channel.gate]]\nname = \"risk\"\nusers = [\"*\"]\n{more}\n")
}

fn open(client: &Client) -> Publisher {
    // The kernel releases a dead publisher's lock some time after its death.
    wait_for("the channel to be free", || publishing(client, "ticks").open().ok())
}

fn risk(client: &Client) -> shmcast::SubscriberBuilder {
    Subscriber::builder("ticks").client(client).gate("risk")
}

/// Publishes until the gate refuses. Returns the number of published messages.
fn fill(publisher: &mut Publisher) -> u64 {
    for published in 0..1_000_000 {
        match publisher.try_publish(&[1; 100]) {
            Ok(_) => {}
            Err(PublishError::Full { gate, .. }) => {
                assert_eq!(gate.as_str(), "risk");
                return published;
            }
            Err(other) => panic!("{other}"),
        }
    }
    panic!("nothing holds this publisher up");
}

/// Receives all available messages, without a loss. Returns their number.
fn drain(reader: &mut Subscriber) -> u64 {
    let mut received = 0;
    while let Some(event) = reader.try_recv().unwrap() {
        match event {
            Event::Message(_) => received += 1,
            Event::NewEpoch { .. } | Event::End => {}
            other => panic!("{other:?}"),
        }
    }
    received
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
        "borrower" => drop(risk(&client).open().unwrap()),
        "stranger" => {
            let refused = risk(&client).open().unwrap_err();
            assert!(refused.to_string().contains("may not have gate \"risk\""), "{refused}");
            Subscriber::builder("ticks").client(&client).open().unwrap();
        }
        other => panic!("no role {other}"),
    }
}

#[test]
fn a_gate_of_the_configuration_holds_its_publisher_up() {
    let daemon = Daemon::start(&config(&gate("lag = \"50%\"\nthen = \"refuse\"")));
    let client = daemon.client();
    let mut publisher = open(&client);
    let [status] = publisher.gates()[..] else { panic!("{:?}", publisher.gates()) };
    assert_eq!((status.name.as_str(), status.state, status.lag_bytes), ("risk", GateState::Absent, 32 << 10));
    let mut reader = risk(&client).open().unwrap();
    // The publisher has not looked yet, and once the gate counted as absent.
    assert_eq!(client.channel("ticks").unwrap().gates[0].state, "joining");
    for _ in 0..50 {
        let published = fill(&mut publisher);
        assert!(published > 0);
        assert_eq!(drain(&mut reader), published);
    }
    let taken = risk(&client).open().unwrap_err();
    let pid = u64::from(std::process::id());
    assert!(
        matches!(&taken, ChannelError::Gate { why: GateError::Taken { pid: by }, .. } if *by == pid),
        "{taken}"
    );
    let unknown = Subscriber::builder("ticks").client(&client).gate("ledger").open().unwrap_err();
    assert!(unknown.to_string().contains("has no gate \"ledger\""), "{unknown}");
    let own = publishing(&client, "ticks").gate(Gate::new("own")).open().unwrap_err();
    assert!(matches!(own, ChannelError::Gate { why: GateError::Hosted, .. }), "{own}");

    let shown = client.channel("ticks").unwrap().gates;
    let [shown] = &shown[..] else { panic!("{shown:?}") };
    assert_eq!((&shown.state[..], shown.terms.refuse, shown.behind_bytes), ("in-force", true, Some(0)));
    assert_eq!(shown.reader.as_ref().unwrap().pid, Some(std::process::id()));
    assert!(shown.turned_away >= 50, "{shown:?}");
}

/// Attached programs notice neither the daemon's death nor the next daemon. A new reader gets the page that the publisher reads.
#[test]
fn gates_outlive_the_daemon() {
    let mut daemon = Daemon::start(&config(&gate("then = \"refuse\"")));
    let client = daemon.client();
    let mut publisher = open(&client);
    let mut reader = risk(&client).open().unwrap();
    let mut published = fill(&mut publisher);
    daemon.crash();
    assert_eq!(drain(&mut reader), published, "while there is no daemon");
    published = fill(&mut publisher);
    wait_until("both to come back", || {
        publisher.is_registered() == Some(true) && reader.is_registered() == Some(true)
    });
    let client = daemon.client();
    assert!(risk(&client).open().is_err(), "the first reader still has it");
    assert_eq!(drain(&mut reader), published);
    drop(reader);
    let mut second = risk(&client).open().unwrap();
    assert_eq!(fill(&mut publisher), drain(&mut second));
    drop(publisher);
    let mut publisher = open(&client);
    assert_eq!(publisher.gates()[0].state, GateState::InForce);
    assert_eq!(fill(&mut publisher), drain(&mut second));
}

/// An earlier mistake: the notice of the death was taken for the answer to the request for the gate.
#[test]
fn a_reader_that_watches_gets_its_gate_after_the_publishers_death() {
    let daemon = Daemon::start(&config(&gate("")));
    let client = daemon.client();
    let mut publisher = open(&client);
    publisher.publish(&[1; 100]).unwrap();
    let died = std::thread::spawn(move || {
        let _publisher = publisher;
        std::panic::resume_unwind(Box::new("dies and closes nothing"));
    });
    assert!(died.join().is_err());
    let is_known =
        || client.channels().unwrap().iter().any(|channel| channel.publisher.is_none()).then_some(());
    wait_for("the daemon to know of the death", is_known);
    for _ in 0..20 {
        let mut reader = risk(&client).start(Start::Oldest).watch_publisher(true).open().unwrap();
        assert!(matches!(risk(&client).open(), Err(ChannelError::Gate { why: GateError::Taken { .. }, .. })));
        assert_eq!(drain_to_the_death(&mut reader), 1);
    }
}

/// Receives all messages up to the notice that the publisher has died. Returns their number.
fn drain_to_the_death(reader: &mut Subscriber) -> u64 {
    let mut received = 0;
    loop {
        match reader.recv().unwrap() {
            Event::Message(_) => received += 1,
            Event::NewEpoch { .. } => {}
            Event::PublisherGone { .. } => return received,
            other => panic!("{other:?}"),
        }
    }
}

/// The kernel's lock frees the publisher, whatever the daemon knows about the reader.
#[test]
fn a_reader_that_is_killed_frees_its_publisher() {
    let daemon = Daemon::start(&config(&gate("wait = \"10s\"")));
    let client = daemon.client();
    let mut publisher = open(&client);
    for is_killed in [true, false] {
        let reader = Process::start(at_socket(&mut role!("reader"), &daemon.socket()));
        wait_until("a gate in force", || {
            publisher.publish(&[1; 100]).unwrap();
            publisher.gates()[0].state == GateState::InForce
        });
        reader.pause();
        let full = wait_for("a refusal", || publisher.try_publish(&[1; 100]).err());
        assert!(matches!(full, PublishError::Full { .. }));
        if is_killed {
            reader.signal(Signal::SIGKILL);
        } else {
            reader.resume();
        }
        let before = Instant::now();
        publisher.publish(&[1; 100]).unwrap();
        assert!(before.elapsed() < Duration::from_secs(9) && publisher.gates()[0].dropped == 0);
        drop(reader);
    }
}

#[test]
fn only_users_of_the_gate_may_have_it() {
    let named = gate("").replace("\"*\"", "\"user:root\"");
    let daemon = Daemon::start(&config(&named));
    let Some(mut stranger) = role_as!("only_users_of_the_gate_may_have_it", NOBODY, "stranger") else {
        return;
    };
    shmcast_testkit::process::run(at_socket(&mut stranger, &daemon.socket())).unwrap();
    risk(&daemon.client()).open().unwrap();
}

/// A reader's descriptor leads only to the page of its gate. A publisher's descriptors can only be read.
#[test]
fn what_programs_are_lent() {
    let daemon = Daemon::start(&config(&gate("")));
    let publisher = Raw::greeted(&daemon.socket());
    let (reply, _files) = publisher.ask_for_files(&publish("ticks", false), &[]);
    assert_eq!(reply, json!({"reply": "publishing", "generation": 1, "gates": 1}));
    let (lent, page) = publisher.ask_for_files(&json!({"request": "gates"}), &[]);
    let terms =
        json!({"reply": "gate", "gate": "risk", "lag_bytes": 32768, "wait_ns": 200_000, "refuse": false});
    assert_eq!((&lent, page.len()), (&terms, 1));
    assert!(page[0].set_len(1).is_err(), "the publisher's descriptor of the page is for reading");
    let (done, figures) = publisher.receive().unwrap();
    assert_eq!((done, figures.len()), (json!({"reply": "done"}), 1));

    let reader = Raw::greeted(&daemon.socket());
    reader.assert_refused(&json!({"request": "gate", "gate": "risk"}), &[], "bad-request");
    let reader = Raw::greeted(&daemon.socket());
    let files = reader.subscribe("ticks");
    let (reply, pages) = reader.ask_for_files(&json!({"request": "gate", "gate": "risk"}), &[]);
    assert_eq!((&reply, pages.len()), (&terms, 2));
    let inodes: Vec<u64> = pages.iter().chain(&page).map(|file| file.metadata().unwrap().ino()).collect();
    assert_eq!(inodes, [inodes[0]; 3], "all are the same page");
    reader.assert_refused(&json!({"request": "gate", "gate": "other"}), &[], "unknown-gate");
    reader.assert_refused(&json!({"request": "gate", "gate": "../x"}), &[], "unknown-gate");
    let resumed = Raw::greeted(&daemon.socket());
    let reply: Value = resumed.ask(&subscribe("ticks", true), &fds(&files[..3]));
    assert_eq!(reply["reply"], "subscribed", "a gate is not shown: {reply}");
    let stray = Raw::greeted(&daemon.socket());
    stray.assert_refused(&json!({"request": "gates"}), &[], "bad-request");
}

#[test]
fn a_reload_changes_gates_for_the_next_publisher_and_says_so() {
    let daemon = Daemon::start(&config(&gate("then = \"refuse\"")));
    let client = daemon.client();
    let mut publisher = open(&client);
    let mut reader = risk(&client).open().unwrap();
    let both = format!("{}{}", gate("lag = \"48KiB\""), gate("").replace("risk", "ledger"));
    daemon.configure(&config(&both));
    daemon.signal(Signal::SIGHUP);
    daemon.wait_for_log(&["reloaded", "kept as made until the next publisher [", "ticks"]);
    assert_eq!(publisher.gates().len(), 1);
    assert_eq!(fill(&mut publisher), drain(&mut reader), "as it was");
    let _ledger = Subscriber::builder("ticks").client(&client).gate("ledger").open().unwrap();
    drop(publisher);
    let publisher = open(&client);
    let lags: Vec<(String, u64)> =
        publisher.gates().iter().map(|gate| (gate.name.to_string(), gate.lag_bytes)).collect();
    assert_eq!(lags, [("risk".into(), 48 << 10), ("ledger".into(), 32 << 10)]);
    assert!(publisher.gates().iter().all(|gate| gate.state == GateState::InForce));
    daemon.reload(&config(""));
    assert_eq!(client.channel("ticks").unwrap().gates.len(), 2, "the living publisher still waits for them");
    drop(publisher);
    let mut publisher = open(&client);
    assert!(publisher.gates().is_empty() && client.channel("ticks").unwrap().gates.is_empty());
    for _ in 0..10_000 {
        publisher.publish(&[1; 100]).unwrap();
    }
    assert!(matches!(
        wait_for("a lap", || reader
            .try_recv()
            .unwrap()
            .filter(|e| matches!(e, Event::Lapped(_)))
            .map(|_| ())),
        ()
    ));
}

/// An earlier mistake: after a publisher with a gate, its figures were shown for the next publisher, which had no gate. A reload also
/// compared the configuration with these figures.
#[test]
fn gates_are_shown_as_the_living_publisher_has_them() {
    const KEPT: &str = "kept as made until the next publisher [";
    let with = config(&gate("then = \"refuse\""));
    let daemon = Daemon::start(&with);
    let client = daemon.client();
    let first = open(&client);
    let mut reader = risk(&client).open().unwrap();
    let shown = || client.channel("ticks").unwrap().gates;
    // Returns whether the last reload reported that the channel differs from the configuration.
    let kept = || {
        let log = daemon.log();
        let (_, after) = log.rsplit_once(KEPT).expect("a reload");
        after.split(']').next().is_some_and(|names| names.contains("ticks"))
    };
    daemon.reload(&config(""));
    assert!(shown().len() == 1 && kept(), "the first publisher still waits");
    drop(first);
    let second = open(&client);
    assert!(second.gates().is_empty() && shown().is_empty());
    daemon.reload(&config(""));
    assert!(!kept(), "the second publisher is as configured");
    daemon.reload(&with);
    assert!(kept(), "the second publisher has no gate");
    assert!(shown().is_empty(), "and waits for nobody: {:?}", shown());
    drop(second);
    // The reader has had its gate all the time.
    let mut third = open(&client);
    assert_eq!(third.gates()[0].state, GateState::InForce);
    assert_eq!(fill(&mut third), drain(&mut reader));
    assert!(risk(&client).open().is_err());
}

/// The directories with the pages of gates.
fn pages(daemon: &Daemon) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(daemon.socket().with_extension("gates")).into_iter().flatten();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn a_channel_that_is_removed_leaves_no_pages() {
    let with = config(&gate(""));
    let mut daemon = Daemon::start(&with);
    let client = daemon.client();
    let publisher = open(&client);
    let reader = risk(&client).open().unwrap();
    assert_eq!(pages(&daemon).len(), 1);
    let other = channel("other", FOR_ALL);
    daemon.reload(&other);
    assert_eq!(pages(&daemon).len(), 1, "its programs go on among themselves");
    drop((publisher, reader));
    wait_until("the pages to be removed", || pages(&daemon).is_empty());
    daemon.reload(&format!("{with}{other}"));
    drop(open(&client));
    assert_eq!(pages(&daemon).len(), 1);
    daemon.end(Signal::SIGTERM);
    daemon.configure(&other);
    daemon.restart();
    assert!(pages(&daemon).is_empty(), "while there was no daemon, too");
}

/// An earlier mistake: all publishers got the same page of figures. A replaced publisher could shorten this page, and then the next
/// publisher died of SIGBUS.
#[test]
fn each_publisher_has_figures_of_its_own() {
    let daemon = Daemon::start(&config(&gate("")));
    let replaced = Raw::greeted(&daemon.socket());
    let _files = replaced.ask_for_files(&publish("ticks", false), &[]);
    let (_, _page) = replaced.ask_for_files(&json!({"request": "gates"}), &[]);
    let (_, figures) = replaced.receive().unwrap();
    let client = daemon.client();
    let mut publisher = open(&client);
    let _reader = risk(&client).open().unwrap();
    figures[0].set_len(0).unwrap();
    for _ in 0..10_000 {
        publisher.publish(&[1; 100]).unwrap();
    }
    assert_eq!(client.channel("ticks").unwrap().gates[0].dropped, publisher.gates()[0].dropped);
    assert!(figures[0].metadata().unwrap().nlink() == 0);
}

/// A strict channel moves to other memory with each publisher. Its gates move, too, and the next publisher waits for a reader that still
/// reads the previous ring.
#[test]
fn gates_follow_a_channel_to_its_next_generation() {
    let strict = format!("mode = \"strict\"\n{}", gate("then = \"refuse\""));
    let daemon = Daemon::start(&config(&strict));
    let client = daemon.client();
    let mut first = open(&client);
    let mut reader = risk(&client).start(Start::Oldest).open().unwrap();
    let mut published = fill(&mut first);
    drop(first);
    let mut second = open(&client);
    assert_eq!(second.gates()[0].state, GateState::InForce, "its reader is still in the ring before");
    // An earlier mistake: these messages overwrote each other in the ring before the reader had come.
    published += (0..10_000).filter(|_| second.try_publish(&[1; 100]).is_ok()).count() as u64;
    let mut received = 0;
    wait_until("the reader to come along", || {
        received += drain(&mut reader);
        received == published
    });
    for _ in 0..50 {
        let published = fill(&mut second);
        assert!(published > 0);
        assert_eq!(drain(&mut reader), published);
    }
    assert_eq!((second.gates()[0].state, second.gates()[0].dropped), (GateState::InForce, 0));
}

#[test]
fn events_say_which_gate_held_up_and_was_dropped() {
    let daemon = Daemon::start(&config(&gate("wait = \"1ms\"")));
    let client = daemon.client();
    let mut events = client.events().unwrap();
    // The daemon looks once a second. Each publisher drops its gate once, and the daemon might not look while it lives.
    for _ in 0..3 {
        let mut publisher = open(&client);
        let _reader = risk(&client).open().unwrap();
        while publisher.gates()[0].dropped == 0 {
            publisher.publish(&[1; 100]).unwrap();
        }
    }
    drop(open(&client));
    let mut told = Vec::new();
    wait_until("the events of each publisher", || {
        if let Some(event) = events.next_event().unwrap()
            && event.event.starts_with("gate-")
        {
            assert!(event.detail.as_ref().unwrap().contains("gate risk"), "{event:?}");
            told.push(event.event);
        }
        let count = |name: &str| told.iter().filter(|told| *told == name).count();
        count("gate-dropped") == 3 && count("gate-held") == 3
    });
}

/// The ring of the publisher that was taken away has room when the gate's reader has followed the channel.
#[test]
fn a_publisher_that_waits_and_is_cut_off_says_so() {
    let config = config(&gate("wait = \"10s\"\nthen = \"refuse\""))
        .replace("[[channel]]", "[[channel]]\nmode = \"strict\"");
    let daemon = Daemon::start(&config);
    let client = daemon.client();
    let mut publisher = open(&client);
    let mut reader = risk(&client).open().unwrap();
    let published = fill(&mut publisher);
    let waits = std::thread::spawn(move || publisher.publish(&[1; 100]));
    // If the thread is slower than this, it finds the takeover before it waits, and the result is the same.
    std::thread::sleep(Duration::from_millis(150));
    client.take_over("ticks").unwrap();
    assert_eq!(drain(&mut reader), published);
    assert!(matches!(waits.join().unwrap(), Err(PublishError::CutOff)));
}

/// The daemon lets in two programs while the lock is free. The one that takes the lock is the publisher, whatever becomes of the other.
#[test]
fn of_two_publishers_the_one_with_the_lock_is_shown_and_gets_the_gates() {
    let daemon = Daemon::start(&config(&gate("")));
    let client = daemon.client();
    let [first, second] = [0, 1].map(|_| Raw::greeted(&daemon.socket()));
    let (_, files) = first.ask_for_files(&publish("ticks", false), &[]);
    let (reply, _) = second.ask_for_files(&publish("ticks", false), &[]);
    assert_eq!(reply["reply"], "publishing", "{reply}");
    let whole = flock { l_type: F_WRLCK as i16, l_whence: 0, l_start: 0, l_len: 0, l_pid: 0 };
    fcntl(&files[1], FcntlArg::F_OFD_SETLK(&whole)).unwrap();
    first.ask(&json!({"request": "mapped"}), &[]);
    let (reply, lent) = first.ask_for_files(&json!({"request": "gates"}), &[]);
    assert!(!lent.is_empty(), "{reply}");
    drop(second);
    daemon.wait_for_log(&["event=\"detached\"", "role=\"publisher\""]);
    assert!(client.channel("ticks").unwrap().publisher.is_some());
}

/// A journal's recorder takes a gate. The publisher is far faster than the disk, and no message is missing.
#[test]
fn the_journal_of_a_channel_may_take_a_gate() {
    const COUNT: u64 = 50_000;
    let journal = tempfile::tempdir().unwrap();
    let gates = gate("lag = \"75%\"\nwait = \"10s\"").replace("users = [\"*\"]", "");
    let dir = journal.path().join("ticks").display().to_string();
    let journal = format!("journal = {{ dir = \"{dir}\", gate = \"risk\", file = \"1MiB\" }}\n{gates}");
    let daemon = Daemon::start(&config(&journal));
    let client = daemon.client();
    let status = || client.channel("ticks").unwrap();
    wait_until("the recorder", || status().journal.is_some_and(|journal| journal.state == "recording"));
    let mut publisher = open(&client);
    assert_eq!(publisher.gates()[0].state, GateState::InForce);
    for _ in 0..COUNT {
        publisher.publish(&[1; 100]).unwrap();
    }
    assert_eq!(publisher.gates()[0].dropped, 0);
    wait_until("all to be drained", || status().journal.is_some_and(|journal| journal.drained == COUNT));
    let recorded = status().journal.unwrap();
    assert_eq!((recorded.overrun, recorded.missing, recorded.messages), (0, 0, COUNT));
}

/// A user who once had the gate still has descriptors of the gate's page. The daemon's own recorder gets another page.
#[test]
fn the_daemons_own_recorder_has_a_page_that_no_other_user_had() {
    let daemon = Daemon::start(&config(&gate("")));
    let dir = tempfile::tempdir().unwrap();
    let Some(mut stranger) =
        role_as!("the_daemons_own_recorder_has_a_page_that_no_other_user_had", NOBODY, "borrower")
    else {
        return;
    };
    shmcast_testkit::process::run(at_socket(&mut stranger, &daemon.socket())).unwrap();
    let page = pages(&daemon)[0].join("risk");
    let before = std::fs::metadata(&page).unwrap().ino();
    drop(risk(&daemon.client()).open().unwrap());
    assert_eq!(std::fs::metadata(&page).unwrap().ino(), before, "root gets the same page");
    let journal =
        format!("journal = {{ dir = \"{}\", gate = \"risk\" }}\n", dir.path().join("ticks").display());
    let gates = gate("").replace("users = [\"*\"]", "");
    daemon.reload(&config(&format!("{journal}{gates}")));
    let client = daemon.client();
    let state = || client.channel("ticks").unwrap().journal.map(|journal| journal.state);
    wait_until("the recorder", || state().is_some_and(|state| state == "recording"));
    assert_ne!(std::fs::metadata(&page).unwrap().ino(), before);
    let mut publisher = open(&client);
    assert_eq!(publisher.gates()[0].state, GateState::InForce);
    publisher.publish(b"x").unwrap();
}
