//! Settings that are valid but unwise. Each setting causes a warning on a machine where it is unwise, and no other warning.

use super::{host, parse};
use shmcast_daemon::config::{Host, Principal, Warning};

const GOOD: &str =
    "[[channel]]\nname = \"ticks\"\ncapacity = \"64MiB\"\npublishers = [\"uid:7\"]\nsubscribers = [\"*\"]\n";

/// Checks that the text is valid, and has exactly one warning on `host`, with this line, field, and part of its text.
fn warns(text: &str, host: &Host, expected: (usize, &str, &str)) {
    let warnings = parse(text).warnings_on(host);
    let [Warning { line, field, what, instead, .. }] = warnings.as_slice() else {
        panic!("{text}\n{warnings:#?}");
    };
    assert_eq!((*line, *field), (Some(expected.0), expected.1), "{text}\n{what}");
    assert!(what.contains(expected.2), "{what}");
    assert!(!instead.is_empty());
}

#[test]
fn a_good_configuration_is_not_warned_of() {
    assert_eq!(parse(GOOD).warnings_on(&host()), []);
}

#[test]
fn open_doors_are_warned_of() {
    let anyone = GOOD.replace("\"uid:7\"", "\"*\"") + "mode = \"strict\"\n";
    warns(
        &anyone,
        &host(),
        (4, "publishers", "every program on this host may publish what every other one reads"),
    );
    let some = anyone.replace("subscribers = [\"*\"]", "subscribers = [\"uid:8\"]");
    warns(&some, &host(), (4, "publishers", "keep the real publisher out"));
    let remote = format!("[daemon]\nhttp = \"0.0.0.0:9464\"\nhttp_allow_remote = true\n{GOOD}");
    warns(&remote, &host(), (2, "daemon.http", "tells every host that reaches it"));
    let unused = format!("[daemon]\nhttp_allow_remote = true\n{GOOD}");
    warns(&unused, &host(), (2, "daemon.http_allow_remote", "hides a later slip"));
    let shared = format!("[daemon]\nsocket = \"/tmp/shmcast.sock\"\n{GOOD}");
    warns(&shared, &host(), (2, "daemon.socket", "pass for the daemon"));
    let several = GOOD.replace("\"uid:7\"", "\"uid:7\", \"uid:8\"");
    warns(&several, &host(), (1, "mode", "several users"));
    warns(&GOOD.replace("uid:7", "group:feeds"), &host(), (1, "mode", "several users"));
    assert_eq!(parse(&format!("{several}mode = \"strict\"\n")).warnings_on(&host()), []);
}

/// An earlier mistake: nobody said that no message can have the board's key.
#[test]
fn a_board_that_no_message_reaches_is_warned_of() {
    let board = |max: &str| format!("{GOOD}max_message = \"{max}\"\nboard = {{ key = \"60..68\" }}\n");
    warns(&board("64B"), &host(), (7, "board.key", "so the board stays empty"));
    assert_eq!(parse(&board("68B")).warnings_on(&host()), []);
}

#[test]
fn journals_that_end_badly_are_warned_of() {
    let journal = |fields: &str| format!("{GOOD}journal = {{ {fields} }}\n");
    warns(&journal("dir = \"/var/lib/shmcast/t\""), &host(), (6, "journal", "grows until the disk is full"));
    let text = journal("dir = \"/var/tmp/t\", keep_age = \"30d\"");
    warns(&text, &host(), (6, "journal.dir", "old ones are removed"));
    assert_eq!(parse(&text.replace("/var/tmp", "/srv")).warnings_on(&host()), []);
}

#[test]
fn closed_doors_are_warned_of() {
    warns(&GOOD.replace("\"*\"", ""), &host(), (5, "subscribers", "nobody but publishers"));
    let mode = format!("[daemon]\nsocket_mode = \"0600\"\n{GOOD}");
    warns(&mode, &host(), (2, "daemon.socket_mode", "0600 lets only the socket's owner connect"));
    let group = format!("[daemon]\nsocket_mode = \"0660\"\n{GOOD}");
    warns(&group, &host(), (2, "daemon.socket_mode", "owner and group connect"));
    assert_eq!(parse(&group.replace('*', "group:x")).warnings_on(&host()), [], "that group was chosen");
}

#[test]
fn names_without_effect_are_warned_of() {
    let unknown = Host { exists: |principal| *principal != Principal::User("nobody.yet".into()), ..host() };
    let text = GOOD.replace("uid:7", "user:nobody.yet");
    warns(
        &text,
        &unknown,
        (4, "publishers", "user:nobody.yet does not exist here, and matches nobody until it does"),
    );
    let real = parse(&text).warnings();
    assert!(real.iter().any(|w| w.what.contains("does not exist here")), "{real:?}");
    warns(&GOOD.replace("\"*\"", "\"user:root\""), &host(), (5, "subscribers", "root always may"));
    warns(&GOOD.replace("\"*\"", "\"*\", \"uid:9\""), &host(), (5, "subscribers", "changes nothing beside"));
    warns(&GOOD.replace("\"*\"", "\"uid:9\", \"uid:9\""), &host(), (5, "subscribers", "there twice"));
    let twins = format!("{GOOD}{}", GOOD.replace("ticks", "Ticks"));
    warns(&twins, &host(), (7, "name", "differs from \"ticks\" by nothing but capitals"));
}

#[test]
fn memory_that_is_not_there_is_warned_of() {
    let small = Host { memory_bytes: Some(140 << 20), ..host() };
    warns(GOOD, &small, (3, "capacity", "more than half of this machine's 140.0 MiB"));
    let two = format!("{GOOD}{}", GOOD.replace("ticks", "trades"));
    let between = Host { memory_bytes: Some(200 << 20), ..host() };
    warns(&two, &between, (8, "capacity", "channels up to here take 148.0 MiB"));
    let limited = Host { memlock_bytes: Some(8 << 20), ..host() };
    warns(GOOD, &limited, (1, "mlock", "grants this process 8.0 MiB"));
    let unlocked = format!("{GOOD}mlock = false\n");
    assert_eq!(parse(&unlocked).warnings_on(&limited), []);
    warns(&unlocked, &Host { has_swap: true, ..host() }, (6, "mlock", "this machine swaps"));
    warns(
        &format!("{GOOD}max_message = \"1MiB\"\n"),
        &host(),
        (3, "capacity", "holds 64 messages of 1.0 MiB"),
    );
    assert_eq!(
        parse(&format!("{GOOD}max_message = \"256KiB\"\n")).warnings_on(&host()),
        [],
        "256 of the largest"
    );
    warns(&GOOD.replace("64MiB", "1MiB"), &host(), (1, "hugepages", "smaller than a huge page"));
    warns(&format!("{GOOD}numa_node = 2\n"), &host(), (6, "numa_node", "no NUMA node 2 here"));
}

#[test]
fn limits_and_pauses_out_of_proportion_are_warned_of() {
    for (section, field, value, what) in [
        ("limits", "connections_per_uid", "100", "cannot run a publisher and 100 readers"),
        ("limits", "requests_per_second", "9", "is cut off"),
        ("limits", "request_burst", "201", "100 readers that one user starts at once are cut off"),
        ("limits", "events_queue", "15", "misses some"),
        ("waker", "shortest_us", "4", "takes a core"),
        ("waker", "longest_us", "10001", "sleep this long"),
        ("waker", "longest_us", "199", "costs percents of a core"),
        ("waker", "cpu", "4", "CPU 4 is not online here"),
        ("daemon", "http", "\"127.0.0.1:0\"", "another one at each start"),
    ] {
        let text = format!("[{section}]\n{field} = {value}\n{GOOD}");
        warns(&text, &host(), (2, &format!("{section}.{field}"), what));
    }
}
