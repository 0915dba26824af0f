//! SIGHUP: the file is read again, channels are added and removed, and attached programs do not notice.

use nix::sys::signal::Signal;
use shmcast::journal::Ending;
use shmcast::{BoardSpec, ChannelError, ClockKind, Event, PublisherBuilder, Start, Subscriber, Wait};
use shmcast_testkit::bystanders::Bystanders;
use shmcast_testkit::daemon::{Daemon, FOR_ALL, channel, publishing};
use shmcast_testkit::place::program;
use shmcast_testkit::process::as_user;
use shmcast_testkit::{PATIENCE, skip, wait_for};
use std::fs;
use std::process::{Command, Stdio};
use std::time::Instant;

fn names(daemon: &Daemon) -> Vec<String> {
    daemon.client().channels().unwrap().into_iter().map(|channel| channel.channel).collect()
}

#[test]
fn a_reload_adds_and_removes_channels_and_leaves_the_others_alone() {
    let [a, b, c] = ["a", "b", "c"].map(|name| channel(name, FOR_ALL));
    let daemon = Daemon::start(&[a.as_str(), &b].concat());
    let client = daemon.client();
    let bystanders = Bystanders::start(&client, "a");
    let uuid = client.channel("a").unwrap().uuid;
    let mut publisher = publishing(&client, "b").open().unwrap();
    let mut reader = Subscriber::builder("b").client(&client).start(Start::Oldest).open().unwrap();
    bystanders.assert_flowing();
    assert_eq!(names(&daemon), ["a", "b"]);

    daemon.reload(&[a.as_str(), &c].concat());
    assert_eq!(names(&daemon), ["a", "c"]);
    daemon.wait_for_log(&["event=\"removed\"", "2 programs are still attached"]);
    assert_eq!(client.channel("a").unwrap().uuid, uuid, "the live channel is the one it was");
    bystanders.assert_flowing();
    // New programs cannot find a removed channel. Attached programs continue among themselves.
    let error = Subscriber::builder("b").client(&client).open().unwrap_err();
    assert!(error.is_unknown_channel() && error.to_string().contains("reload"), "{error}");
    publisher.publish(b"among ourselves").unwrap();
    assert!(matches!(reader.recv().unwrap(), Event::Message(m) if m.payload == b"among ourselves"));
    drop(publishing(&client, "c").open().unwrap());

    // A channel that is added again under its old name is a new channel.
    daemon.reload(&[a.as_str(), &b, &c].concat());
    assert_eq!(names(&daemon), ["a", "b", "c"]);
    assert_eq!(client.channel("b").unwrap().next_sequence, Some(1));
    drop(publishing(&client, "b").open().unwrap());
    bystanders.assert_flowing();
    let descriptors = daemon.open_descriptors();
    for _ in 0..5 {
        daemon.reload(&a);
        daemon.reload(&[a.as_str(), &b, &c].concat());
    }
    wait_for("the daemon to close what it gave up", || {
        (daemon.open_descriptors() <= descriptors).then_some(())
    });
    assert!(bystanders.end() > 0);
}

/// An earlier mistake: the journal named memory that was never used, and the channel's sequences skipped a reserve.
#[test]
fn a_refused_reload_leaves_the_journal_of_a_channel_that_it_adds() {
    let (b, zz) = (channel("b", FOR_ALL), channel("zz", FOR_ALL));
    let mut daemon = Daemon::start(&b);
    let journal = daemon.dir().join("journal");
    let a = channel("a", &format!("{FOR_ALL}\njournal = {{ dir = {journal:?}, file = \"1MiB\" }}"));
    daemon.reload(&[a.as_str(), &b].concat());
    let mut publisher = publishing(&daemon.client(), "a").open().unwrap();
    publisher.publish_batch([b"1", b"2", b"3"]).unwrap();
    publisher.close();
    daemon.end(Signal::SIGTERM);
    daemon.configure(&b);
    daemon.restart();
    let is_clean = || Ending::of(&journal, "a", None).is_ok_and(|ending| ending.is_clean());
    wait_for("a clean end of the journal", || is_clean().then_some(()));
    // The charter of the channel `zz` cannot be made.
    let charters = daemon.socket().with_extension("charters");
    fs::create_dir(charters.join(".zz")).unwrap();
    let new = channel("new", &format!("{FOR_ALL}\njournal = {{ dir = {:?} }}", daemon.dir().join("new")));
    for _ in 0..2 {
        daemon.reload_until(&[a.as_str(), &b, &new, &zz].concat(), "reload-refused");
        assert!(is_clean());
    }
    assert_eq!(fs::read_dir(daemon.dir().join("new")).unwrap().count(), 0, "no stream has begun");
    fs::remove_dir(charters.join(".zz")).unwrap();
    daemon.reload(&[a.as_str(), &b, &zz].concat());
    assert_eq!(daemon.client().channel("a").unwrap().next_sequence, Some(4));
}

#[test]
fn a_reload_keeps_the_memory_of_a_channel_whose_size_changed_and_says_so() {
    let small = channel("a", FOR_ALL);
    let daemon = Daemon::start(&small);
    let bystanders = Bystanders::start(&daemon.client(), "a");
    daemon.reload(&small.replace("16MiB", "32MiB"));
    daemon.wait_for_log(&["reloaded", "kept as made", "\\\"a (capacity)\\\""]);
    assert_eq!(daemon.client().channel("a").unwrap().capacity_bytes, 16 << 20);
    bystanders.assert_flowing();
    bystanders.end();
}

#[test]
fn a_bad_configuration_is_refused_loudly_and_the_old_one_stays() {
    let good = channel("a", FOR_ALL);
    let mut daemon = Daemon::start(&good);
    let bystanders = Bystanders::start(&daemon.client(), "a");
    let bad = [
        ("[[channel", "1:"),
        (&channel("b", "publisher = [\"*\"]"), "publishers"),
        (&good.replace("16MiB", "17MiB"), "capacity"),
        (&[good.as_str(), &good].concat(), "a"),
        ("\u{0}", "1:"),
    ];
    for (count, (config, word)) in bad.into_iter().enumerate() {
        daemon.configure(config);
        daemon.signal(Signal::SIGHUP);
        wait_for("the refusal", || (daemon.log().matches("reload-refused").count() > count).then_some(()));
        daemon.wait_for_log(&["WARN", "reload-refused", "the old configuration stays", "shmcast.toml", word]);
        assert_eq!(names(&daemon), ["a"], "after {config:?}");
        bystanders.assert_flowing();
    }
    fs::remove_file(daemon.dir().join("shmcast.toml")).unwrap();
    daemon.signal(Signal::SIGHUP);
    daemon.wait_for_log(&["reload-refused", "cannot read"]);
    assert!(daemon.is_alive());
    // The system's reason once stood there twice.
    let refused = daemon.log().lines().rfind(|line| line.contains("cannot read")).unwrap().to_owned();
    assert_eq!(refused.matches("No such file").count(), 1, "{refused}");
    // A valid configuration is accepted after that.
    daemon.reload(&[good.as_str(), &channel("b", FOR_ALL)].concat());
    assert_eq!(names(&daemon), ["a", "b"]);
    bystanders.end();
}

/// An earlier mistake: a pipe without a writer stopped the whole daemon, and an empty pipe removed all channels.
#[test]
fn a_pipe_in_place_of_the_file_is_refused_and_stops_nothing() {
    if shmcast_testkit::unit::asked().is_some() {
        // The service's user may not open a pipe of root.
        return skip("a_pipe_in_place_of_the_file_is_refused_and_stops_nothing", "under the unit");
    }
    let mut daemon = Daemon::start(&channel("a", FOR_ALL));
    let file = daemon.dir().join("shmcast.toml");
    fs::remove_file(&file).unwrap();
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
    daemon.signal(Signal::SIGHUP);
    daemon.wait_for_log(&["reload-refused", "shmcast.toml: it is not a regular file"]);
    assert_eq!(names(&daemon), ["a"]);
    // A pipe with a writer is empty at a reload, because the start has read its text.
    let writer = fs::File::options().read(true).write(true).open(&file).unwrap();
    daemon.signal(Signal::SIGHUP);
    wait_for("the second refusal", || (daemon.told("reload-refused") == 2).then_some(()));
    drop(writer);
    assert_eq!(names(&daemon), ["a"]);
    daemon.end(Signal::SIGTERM);
}

#[test]
fn a_changed_list_holds_for_newcomers() {
    let test = "a_changed_list_holds_for_newcomers";
    let shmcast = program("shmcast");
    let stat = |daemon: &Daemon| -> Option<bool> {
        let mut command: Command = as_user(test, 65534, &shmcast)?;
        command.args(["stat", "a"]).env("SHMCAST_SOCKET", daemon.socket()).env_remove("SHMCAST_DIR");
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Some(command.output().unwrap().status.success())
    };
    let [open, closed] = ["[\"*\"]", "[]"].map(|who| channel("a", &format!("subscribers = {who}")));
    let daemon = Daemon::start(&open);
    let bystanders = Bystanders::start(&daemon.client(), "a");
    let Some(is_let_in) = stat(&daemon) else { return };
    assert!(is_let_in);
    daemon.reload(&closed);
    assert_eq!(stat(&daemon), Some(false));
    daemon.wait_for_log(&["refused", "may not read", "uid=65534"]);
    bystanders.assert_flowing();
    daemon.reload(&open);
    assert_eq!(stat(&daemon), Some(true));
    bystanders.end();
}

#[test]
fn what_will_be_regretted_is_logged_at_start_and_at_a_reload() {
    let open = channel("a", FOR_ALL);
    let daemon = Daemon::start(&open);
    daemon.wait_for_log(&["WARN", "configuration", "\"a\"", "every program on this host may publish"]);
    let closed = channel("b", "publishers = [\"user:nosuchuser\"]\nsubscribers = [\"uid:1\"]");
    daemon.reload(&closed);
    daemon.wait_for_log(&["WARN", "configuration", "\"b\"", "user:nosuchuser does not exist here"]);
}

#[test]
fn a_node_of_memory_that_there_is_not_is_said_to_be_none_and_stops_nothing() {
    let daemon = Daemon::start(&channel("a", &format!("numa_node = 1023\n{FOR_ALL}")));
    daemon.wait_for_log(&["WARN", "memory", "NUMA node: refused", "the kernel chooses"]);
    Bystanders::start(&daemon.client(), "a").end();
}

/// The CPUs on which the waker's thread may run, as the kernel lists them.
fn waker_cpus(daemon: &Daemon) -> Option<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
    let mut tasks = tasks.map(|task| task.unwrap().path());
    let waker =
        tasks.find(|task| fs::read_to_string(task.join("comm")).is_ok_and(|c| c == "shmcast-waker\n"))?;
    let status = fs::read_to_string(waker.join("status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:\t")).map(str::to_owned)
}

#[test]
fn the_waker_moves_to_the_cpu_that_a_reload_names() {
    let test = "the_waker_moves_to_the_cpu_that_a_reload_names";
    let config = |waker: &str| format!("[waker]\n{waker}\n{}", channel("a", FOR_ALL));
    let daemon = Daemon::start(&config(""));
    let client = daemon.client();
    let _reader = Subscriber::builder("a").client(&client).wait(Wait::Park).open().unwrap();
    let anywhere = wait_for("the waker", || waker_cpus(&daemon));
    if anywhere == "0" {
        return skip(test, "one CPU");
    }
    for (waker, cpus) in [("cpu = 0", "0"), ("", &anywhere), ("cpu = 0", "0")] {
        daemon.reload(&config(waker));
        wait_for("the waker to move", || (waker_cpus(&daemon)? == cpus).then_some(()));
    }
    // If the thread cannot run on the CPU, it stays where it is, and the log reports this.
    daemon.reload(&config("cpu = 1023"));
    daemon.wait_for_log(&["WARN", "cpu=1023", "the waker runs where it ran before"]);
    assert_eq!(waker_cpus(&daemon).as_deref(), Some("0"));
}

/// Limits apply to requests. Attached programs notice neither lower limits nor higher ones.
#[test]
fn changed_limits_hold_for_requests_and_cost_no_message() {
    let config = |requests: u32| {
        format!(
            "[limits]\nrequests_per_second = {requests}\nrequest_burst = {requests}\n{}",
            channel("a", FOR_ALL)
        )
    };
    let daemon = Daemon::start(&config(100_000));
    let client = daemon.client();
    let bystanders = Bystanders::start(&client, "a");
    bystanders.assert_flowing();
    daemon.reload(&config(2));
    let refused = wait_for("a refusal", || client.channel("a").err());
    assert!(refused.to_string().contains("limits.requests_per_second"), "{refused}");
    bystanders.assert_flowing();
    daemon.reload(&config(100_000));
    // The new rate fills a bucket.
    wait_for("an answer", || client.channel("a").ok());
    for _ in 0..200 {
        client.channel("a").unwrap();
    }
    bystanders.assert_flowing();
}

/// An earlier mistake: a reload accepted these settings and never applied them.
#[test]
fn settings_of_the_memory_hold_from_the_next_publisher_on() {
    let config = |more: &str| channel("a", &format!("{FOR_ALL}\n{more}"));
    let daemon = Daemon::start(&config(""));
    let client = daemon.client();
    let mut publisher = publishing(&client, "a").open().unwrap();
    publisher.publish(b"1").unwrap();
    let mut reader = Subscriber::builder("a").client(&client).start(Start::Oldest).open().unwrap();
    let uuid = || client.channel("a").unwrap().uuid;
    let before = uuid();
    // Labels belong to the daemon alone, so they apply immediately.
    daemon.reload(&config("labels = { venue = \"X\" }"));
    assert_eq!((client.channel("a").unwrap().labels.as_str(), uuid()), ("venue=X\n", before));
    daemon.wait_for_log(&["reloaded", "kept as made until the next publisher []"]);
    for (more, setting) in [
        ("clock = \"monotonic\"", "clock"),
        ("clock = \"monotonic\"\nnuma_node = 0", "numa_node"),
        ("clock = \"monotonic\"\nnuma_node = 0\ncapacity = \"32MiB\"", "capacity"),
    ] {
        let before = uuid();
        let config = config(more);
        let config =
            if more.contains("32MiB") { config.replacen("capacity = \"16MiB\"\n", "", 1) } else { config };
        daemon.reload(&config);
        daemon.wait_for_log(&[
            "reloaded",
            &format!("kept as made until the next publisher [\\\"a ({setting})\\\"]"),
        ]);
        assert_eq!(uuid(), before, "the publisher goes on");
        publisher.publish(b"on").unwrap();
        drop(publisher);
        publisher = publishing(&client, "a").open().unwrap();
        let last = publisher.publish(b"on").unwrap();
        assert_ne!(uuid(), before, "{setting}");
        wait_for("the message", || {
            while let Some(event) = reader.try_recv().unwrap() {
                assert!(
                    !matches!(event, Event::Restarted | Event::Lapped(_) | Event::Gap { .. }),
                    "{event:?}"
                );
            }
            (reader.next_sequence() > last).then_some(())
        });
        daemon.reload(&config);
        let last = daemon.log().lines().rfind(|line| line.contains("reloaded")).unwrap().to_owned();
        assert!(last.contains("kept as made until the next publisher []"), "{last}");
    }
    assert_eq!(publisher.header().clock, ClockKind::Monotonic);
}

/// An earlier mistake: the messages of another stream came as if they continued the reader's stream.
#[test]
fn a_channel_that_goes_on_with_the_journal_of_another_stream_restarts_for_its_readers() {
    if shmcast_testkit::unit::asked().is_some() {
        let test = "a_channel_that_goes_on_with_the_journal_of_another_stream_restarts_for_its_readers";
        return skip(test, "the unit lets journals lie in /var/lib/shmcast alone");
    }
    let disk = tempfile::tempdir().unwrap();
    let journal = disk.path().join("journal");
    let plain = channel("a", FOR_ALL);
    let recorded = channel("a", &format!("{FOR_ALL}\njournal = {{ dir = \"{}\" }}", journal.display()));
    {
        let daemon = Daemon::start(&recorded);
        let client = daemon.client();
        let mut publisher = publishing(&client, "a").open().unwrap();
        publisher.publish_batch(vec![b"of Y"; 1_000]).unwrap();
        let durable = || client.channel("a").unwrap().journal.map(|journal| journal.durable);
        wait_for("the journal", || (durable() >= Some(1_000)).then_some(()));
        publisher.close();
    }
    let daemon = Daemon::start(&plain);
    let client = daemon.client();
    let mut publisher = publishing(&client, "a").open().unwrap();
    publisher.publish_batch(vec![b"of X"; 500]).unwrap();
    let mut reader = Subscriber::builder("a").client(&client).start(Start::Oldest).open().unwrap();
    while reader.next_sequence() <= 500 {
        assert!(matches!(reader.recv().unwrap(), Event::Message(message) if message.payload == b"of X"));
    }
    daemon.reload(&channel("other", FOR_ALL));
    daemon.reload(&recorded);
    drop(publisher);
    let mut publisher = publishing(&client, "a").open().unwrap();
    let first = publisher.publish(b"of Y").unwrap();
    assert!(first > 1_000, "the sequences of the journal's stream go on");
    let (mut is_restarted, deadline) = (false, Instant::now() + PATIENCE);
    loop {
        match reader.recv_deadline(deadline).unwrap().expect("the message") {
            Event::Restarted => is_restarted = true,
            Event::Message(message) => {
                assert!(is_restarted, "{} came as a message of X", message.sequence);
                if message.sequence == first {
                    break;
                }
            }
            event => assert!(is_restarted || matches!(event, Event::End), "{event:?} before Restarted"),
        }
    }
}

/// An earlier mistake: the reload was reported as complete, and nobody learnt that the new socket mode was not in force.
#[test]
fn settings_that_are_read_at_the_start_are_named_by_a_reload_that_changes_them() {
    let ticks = channel("a", FOR_ALL);
    let daemon = Daemon::start(&ticks);
    let changed = format!("[daemon]\nsocket_mode = \"0600\"\n[limits]\nevents_queue = 5\n{ticks}");
    for _ in 0..2 {
        daemon.reload(&changed);
        let last = daemon.log().lines().rfind(|line| line.contains("event=\"reloaded\"")).unwrap().to_owned();
        let waiting = "not in force until the daemon restarts [\\\"socket_mode\\\", \\\"events_queue\\\"]";
        assert!(last.contains(waiting), "{last}");
    }
    daemon.wait_for_log(&["WARN", "not in force until the daemon restarts: socket_mode, events_queue"]);
    daemon.reload(&ticks);
    let last = daemon.log().lines().rfind(|line| line.contains("event=\"reloaded\"")).unwrap().to_owned();
    assert!(!last.contains("not in force"), "{last}");
}

/// An earlier mistake: after a restart with another capacity, nobody learnt that the channel still had the old one.
#[test]
fn a_restart_names_the_settings_that_memory_from_before_does_not_have() {
    let mut daemon = Daemon::start(&channel("a", FOR_ALL));
    let publisher = publishing(&daemon.client(), "a").open().unwrap();
    daemon.kill();
    daemon.configure(&channel("a", FOR_ALL).replace("16MiB", "32MiB"));
    daemon.restart();
    daemon.wait_for_log(&["event=\"kept-as-made\"", "until the next publisher: capacity"]);
    assert_eq!(daemon.client().channel("a").unwrap().capacity_bytes, 16 << 20);
    drop(publisher);
}

/// An earlier mistake: the channel moved to new memory before the publisher was refused, so its messages were gone.
#[test]
fn a_publisher_that_is_refused_leaves_the_channel_as_it_was() {
    for mode in ["takeover", "strict"] {
        let config = |more: &str| channel("a", &format!("{FOR_ALL}\nmode = \"{mode}\"\n{more}"));
        let daemon = Daemon::start(&config(""));
        let client = daemon.client();
        let mut publisher = publishing(&client, "a").open().unwrap();
        for _ in 0..50 {
            publisher.publish(b"kept").unwrap();
        }
        publisher.close();
        let before = client.channel("a").unwrap();
        assert_eq!((before.oldest_sequence, before.next_sequence), (Some(1), Some(51)));
        daemon.reload(&config("schema_id = 5\nschema = \"q\"\nclock = \"monotonic\""));
        let open = || publishing(&client, "a");
        let board = BoardSpec::new(0..1);
        let refused = |builder: PublisherBuilder| builder.open().map(drop).unwrap_err();
        assert!(
            matches!(refused(open().capacity(1 << 20)), ChannelError::Mismatch { found, .. } if found == 16 << 20)
        );
        assert!(matches!(refused(open().max_message(7)), ChannelError::Mismatch { what: "max_message", .. }));
        assert!(matches!(refused(open().board(board)), ChannelError::NoBoard { .. }));
        assert!(matches!(refused(open().schema(6, "")), ChannelError::Schema { found, .. } if found.id == 5));
        assert!(matches!(refused(open().untyped()), ChannelError::Schema { found, .. } if found.name == "q"));
        let mut untyped = daemon.shmcast("pub a").spawn().unwrap();
        assert_eq!(untyped.wait().unwrap().code(), Some(1), "the channel gets a schema");
        let after = client.channel("a").unwrap();
        assert_eq!((&after.uuid, after.epoch, after.oldest_sequence), (&before.uuid, before.epoch, Some(1)));
        // A publisher that accepts the channel gets it as configured.
        let accepted = open().capacity(16 << 20).schema(5, "q").open().unwrap();
        assert_eq!((accepted.header().schema_id, accepted.next_sequence()), (5, 51));
    }
}
