//! `[[bridge]]` tables as their administrator sees them: mistakes with their place, bridges that cannot work together,
//! and warnings.

use super::host;
use shmcast_bridge::proto::session::tag_of;
use shmcast_bridge::spec::WaitMode;
use shmcast_daemon::config::{Config, ConfigError, Host, Warning};
use shmcast_testkit::place::program;
use std::process::Command;

const CHANNELS: &str = "\
[[channel]]
name = \"ticks\"
capacity = \"1MiB\"
max_message = 1378
[[channel]]
name = \"rates\"
capacity = \"1MiB\"
max_message = 1378
";
/// The line of the first bridge below `CHANNELS`.
const FIRST: usize = 9;

fn send(more: &str) -> String {
    format!(
        "[[bridge]]\nchannel = \"ticks\"\nline = [{{ group = \"239.1.2.3:30001\" }}]\n{more}\n[bridge.send.repair]\n\
         bind = \"10.0.0.1:30002\"\nallow = [\"10.0.0.0/8\"]\n"
    )
}

fn receive(more: &str) -> String {
    format!(
        "[[bridge]]\nchannel = \"rates\"\nline = [{{ group = \"239.1.3.3:30001\" }}]\n{more}\n[bridge.receive]\n\
         servers = [\"10.0.0.9:30002\"]\n"
    )
}

fn problems(bridges: &str) -> Vec<String> {
    match Config::parse(&format!("{CHANNELS}{bridges}"), "test.toml") {
        Err(ConfigError::Invalid { problems, .. }) => problems.iter().map(ToString::to_string).collect(),
        other => panic!("{bridges}\n{other:?}"),
    }
}

fn refuses(bridges: &str, line: usize, column: usize, shown: &str) {
    assert_eq!(problems(bridges), [format!("{}:{column}: {shown}", FIRST + line)], "{bridges}");
}

/// The warnings about bridges. Those about the channels themselves are left out.
fn warnings(bridges: &str) -> Vec<Warning> {
    let config =
        Config::parse(&format!("{CHANNELS}{bridges}"), "test.toml").unwrap_or_else(|e| panic!("{e}"));
    config.warnings_on(&host()).into_iter().filter(|warning| warning.field.starts_with("bridge.")).collect()
}

#[test]
fn the_guides_examples_are_sound() {
    let guide =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/guide/src/bridges.md")).unwrap();
    let examples: Vec<&str> =
        guide.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    for example in &examples {
        let config = Config::parse(example, "bridges.md").unwrap_or_else(|e| panic!("{example}\n{e}"));
        assert!(!config.bridges.is_empty(), "{example}");
        let warned = config.warnings_on(&host());
        assert!(!warned.iter().any(|warning| warning.field.starts_with("bridge.")), "{warned:?}");
    }
    assert!(examples.len() > 2, "a sender, a receiver, and one of several senders");
}

fn warns(bridges: &str, field: &str, line: usize, part: &str) {
    let [Warning { line: at, field: of, what, .. }] = &warnings(bridges)[..] else {
        panic!("{bridges}\n{:#?}", warnings(bridges));
    };
    assert_eq!((*of, *at), (field, Some(FIRST + line)), "{what}");
    assert!(what.contains(part), "{what}");
}

#[test]
fn two_channels_whose_sessions_begin_alike_are_not_told_apart() {
    let with = |first: &str, second: &str, port: u16, more: &str| {
        let channel =
            |name| format!("[[channel]]\nname = \"{name}\"\ncapacity = \"1MiB\"\nmax_message = 1378\n");
        let bridge = |name, port, more| {
            let line = format!("line = [{{ group = \"239.1.2.3:{port}\" }}]");
            format!("[[bridge]]\nchannel = \"{name}\"\n{line}\n{more}\n[bridge.send]\n")
        };
        let channels = channel("ticks-eu") + &channel("ticks-us");
        let bridges = bridge("ticks-eu", 30001, first) + &bridge("ticks-us", port, second);
        match Config::parse(&(channels + &bridges + more), "test.toml") {
            Err(ConfigError::Invalid { problems, .. }) => problems.iter().map(ToString::to_string).collect(),
            Ok(_) => Vec::<String>::new(),
            other => panic!("{other:?}"),
        }
    };
    let two = |first, second, port| with(first, second, port, "");
    let said = "bridges \"ticks-eu\" and \"ticks-us\" would both send sessions that begin with \"TICK\"";
    let refused = |problems: Vec<String>| {
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].contains(said) && problems[0].contains("another session"), "{problems:?}");
    };
    // One bridge gets the default tag of the other channel, on separate lines. Then both bridges get the same explicit tag, on one group.
    let own = format!("session = \"{}\"", tag_of("ticks-us"));
    let of_us = two(&own, "", 30002);
    assert!(of_us.len() == 1 && of_us[0].contains("another session"), "{of_us:?}");
    refused(two("session = \"TICK\"", "session = \"TICK\"", 30001));
    let none: [String; 0] = [];
    assert_eq!(two("session = \"TICK\"", "session = \"TICK\"", 30002), none);
    assert_eq!(two("session = \"TICK\"", "", 30001), none);
    assert_eq!(two("", "", 30001), none, "names that begin alike have other tags");
    // A relayed channel keeps the session under which it was received.
    let receive = "[[bridge]]\nname = \"from\"\nchannel = \"ticks-us\"\nline = [{ group = \"239.9.9.9:9\" }]\n[bridge.receive]\n";
    assert_eq!(with("", "", 30002, receive), none);
}

#[test]
fn two_bridges_share_no_state_file() {
    let sends = |name: &str, port: u16, state: &str| {
        format!(
            "[[bridge]]\nname = \"{name}\"\nchannel = \"{name}\"\nline = [{{ group = \"239.1.2.3:{port}\" }}]\n[bridge.send]\nstate = \"{state}\"\n"
        )
    };
    let one = sends("ticks", 30001, "/var/lib/state");
    let said = "bridge \"rates\": state: /var/lib/state is bridge \"ticks\"'s already: choose another file";
    let [problem] = &problems(&(one.clone() + &sends("rates", 30003, "/var/lib/state")))[..] else {
        panic!("one problem")
    };
    assert!(problem.ends_with(said), "{problem}");
    let other = format!("{CHANNELS}{one}{}", sends("rates", 30003, "/var/lib/other"));
    Config::parse(&other, "test.toml").unwrap();
}

#[test]
fn a_misspelt_field_is_told_with_its_place_and_the_nearest_one_at_every_depth() {
    let text = send("wait = \"spin\"\ncpu = 1\npayload_byte = 1400\n[bridge.send]");
    refuses(&text, 5, 1, "bridge \"ticks\": unknown field `payload_byte`: did you mean `payload_bytes`?");
    let text = send("[bridge.send]\nttll = 3");
    refuses(&text, 4, 1, "bridge \"ticks\": unknown field `ttll`: did you mean `ttl`?");
    let text = format!("{}alow = []\n", send(""));
    refuses(&text, 7, 1, "bridge \"ticks\": unknown field `alow`: did you mean `allow`?");
    let text = receive("").replace("servers", "server");
    refuses(&text, 5, 1, "bridge \"rates\": unknown field `server`: did you mean `servers`?");
    let text = send("").replace("group =", "interfase = \"eth0\", group =");
    refuses(&text, 2, 11, "bridge \"ticks\": unknown field `interfase`: did you mean `interface`?");
    let text = send("wait = \"spinn\"");
    refuses(&text, 3, 8, "bridge \"ticks\": wait: unknown value `spinn`: did you mean `spin`?");
    assert_eq!(
        problems("[bridge]\nchannel = \"ticks\"\n")[0],
        "9:1: bridges are lists: write [[bridge]], not [bridge]"
    );
}

#[test]
fn a_bridge_without_its_channel_is_refused() {
    let text = send("").replace("ticks", "tick");
    refuses(
        &text,
        1,
        11,
        "bridge \"tick\": channel: there is no [[channel]] \"tick\": did you mean `ticks`?",
    );
}

/// The check of the file finds this mistake, and not only the first long message.
#[test]
fn a_message_that_fits_no_packet_is_told_with_both_numbers() {
    let text = format!("{CHANNELS}{}", send("")).replacen("max_message = 1378\n", "", 1);
    let Err(ConfigError::Invalid { problems, .. }) = Config::parse(&text, "test.toml") else {
        panic!("{text}")
    };
    let [problem] = &problems[..] else { panic!("{problems:?}") };
    for part in ["131072 B", "payload_bytes = 1400", "1378 B", "max_message = 1378"] {
        assert!(problem.what.contains(part), "{}", problem.what);
    }
    let text = send("payload_bytes = 1399");
    assert!(problems_of(&text).contains("1378 B") && problems_of(&text).contains("1377 B"));
}

fn problems_of(bridges: &str) -> String {
    problems(bridges).join("\n")
}

#[test]
fn two_bridges_do_not_get_in_each_others_way() {
    let twice = send("") + &send("").replace("30002", "30003");
    refuses(
        &twice,
        7,
        1,
        "bridge \"ticks\": name: there is a bridge \"ticks\" already: give each a name of its own",
    );
    let bind = send("") + &send("name = \"again\"").replace("239.1.2.3", "239.1.2.4");
    refuses(
        &bind,
        12,
        8,
        "bridge \"again\": bind: 10.0.0.1:30002 is bridge \"ticks\"'s already: choose another port",
    );
    let both = receive("") + &receive("name = \"again\"").replace("239.1.3.3", "239.1.3.4");
    refuses(
        &both,
        7,
        11,
        "bridge \"again\": channel: bridge \"rates\" publishes into \"rates\" already, and only one can",
    );
}

/// A received channel can be sent on to others, but never back to its source.
#[test]
fn a_channel_that_is_sent_back_where_it_comes_from_is_refused() {
    let from = receive("");
    let to = |group: &str, bind: &str| {
        let to = send("name = \"on\"").replace("\"ticks\"", "\"rates\"");
        to.replace("239.1.2.3:30001", group).replace("10.0.0.1:30002", bind)
    };
    let shown = "bridge \"on\": line: a loop: \"rates\" would go back to 239.1.3.3:30001, where it comes from \
                 (bridge \"rates\"): send it elsewhere";
    refuses(&(from.clone() + &to("239.1.3.3:30001", "10.0.0.1:30002")), 8, 8, shown);
    let shown = "bridge \"on\": line: a loop: \"rates\" would go back to 10.0.0.9:30002, where it comes from \
                 (bridge \"rates\"): send it elsewhere";
    refuses(&(from.clone() + &to("239.1.4.4:30001", "10.0.0.9:30002")), 8, 8, shown);
    assert_eq!(
        warnings(&(from + &to("239.1.4.4:30001", "10.0.0.1:30002"))),
        [],
        "on to somebody else is fine"
    );
}

#[test]
fn threads_that_will_be_late_are_warned_of() {
    assert_eq!(warnings(&(send("wait = \"spin\"\ncpu = 1") + &receive("wait = \"spin\"\ncpu = 2"))), []);
    warns(&send("wait = \"spin\""), "bridge.wait", 3, "spin without cpu");
    warns(&send("cpu = 4"), "bridge.cpu", 3, "CPU 4 is not online");
    let one = send("wait = \"spin\"\ncpu = 1") + &receive("cpu = 1");
    warns(&one, "bridge.cpu", 11, "CPU 1 is bridge \"ticks\"'s too");
}

#[test]
fn an_interface_of_another_host_is_warned_of() {
    let host = Host {
        interfaces: Some(vec![("eth0".into(), [10, 0, 0, 1].into()), ("lo".into(), [127, 0, 0, 1].into())]),
        ..host()
    };
    let bridge = |interface: &str| {
        let line = format!("line = [{{ group = \"239.1.2.3:30001\", interface = \"{interface}\" }}]");
        send("").replace("line = [{ group = \"239.1.2.3:30001\" }]", &line)
    };
    let warnings = |interface: &str| {
        let text = format!("{CHANNELS}{}", bridge(interface));
        let config = Config::parse(&text, "test.toml").unwrap_or_else(|e| panic!("{e}"));
        let of_lines = |warning: &Warning| warning.field == "bridge.line";
        config.warnings_on(&host).into_iter().filter(of_lines).collect::<Vec<_>>()
    };
    for known in ["eth0", "10.0.0.1", "lo"] {
        assert_eq!(warnings(known), [], "{known}");
    }
    for unknown in ["eth9", "10.0.0.2"] {
        let [warning] = &warnings(unknown)[..] else { panic!("{:?}", warnings(unknown)) };
        assert_eq!((warning.field, warning.line), ("bridge.line", Some(FIRST + 2)));
        assert!(warning.what.contains(unknown) && warning.what.contains("this host"), "{}", warning.what);
        assert!(warning.instead.contains("eth0 (10.0.0.1)"), "{}", warning.instead);
    }
}

#[test]
fn what_loses_messages_is_warned_of() {
    let deaf =
        "[[bridge]]\nchannel = \"rates\"\nline = [{ group = \"239.1.3.3:30001\" }]\n[bridge.receive]\n";
    warns(deaf, "bridge.receive.servers", 3, "what the network loses is lost");
    let mute = "[[bridge]]\nchannel = \"ticks\"\nline = [{ group = \"239.1.2.3:30001\" }]\n[bridge.send]\n";
    warns(mute, "bridge.send.repair", 3, "cannot ask");
    let shared = receive("") + &receive("name = \"t\"").replace("\"rates\"", "\"ticks\"");
    warns(&shared, "bridge.line", 8, "both may follow one");
    warns(&send("payload_bytes = 1473"), "bridge.payload_bytes", 3, "jumbo");
    // The header of IPv6 has 20 bytes more.
    let of_v6 = |bytes: u32| send(&format!("payload_bytes = {bytes}")).replace("239.1.2.3:", "[ff15::1:3]:");
    warns(&of_v6(1453), "bridge.payload_bytes", 3, "1452 of an Ethernet frame");
    let fits = Config::parse(&format!("{CHANNELS}{}", of_v6(1452)), "test.toml").unwrap();
    assert!(!fits.warnings_on(&host()).iter().any(|warning| warning.what.contains("jumbo")));
    warns(&receive("payload_bytes = 1401"), "bridge.channel", 1, "packets may bring 1379 B");
}

#[test]
fn doors_that_are_too_wide_are_warned_of() {
    let all = send("").replace("10.0.0.0/8", "0.0.0.0/0");
    warns(&all, "bridge.send.repair.allow", 6, "nearly everybody");
    warns(&format!("{}trust_allowed = true\n", send("")), "bridge.send.repair.trust_allowed", 7, "forges");
    let text = format!("{CHANNELS}publishers = [\"uid:7\"]\n{}", receive(""));
    let found = Config::parse(&text, "test.toml").unwrap().warnings_on(&host());
    assert!(
        found.iter().any(|w| w.field == "bridge.channel" && w.what.contains("has publishers")),
        "{found:?}"
    );
}

#[test]
fn check_tells_of_bridges() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("shmcast.toml");
    let check = |text: String| {
        std::fs::write(&path, text).unwrap();
        let output = Command::new(program("shmcast")).args(["check", "--json"]).arg(&path).output();
        let output = output.unwrap();
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), json)
    };
    let (code, json) = check(format!("{CHANNELS}{}", send("wait = \"spin\"")));
    assert_eq!((code, &json["bridges"]), (Some(0), &serde_json::json!(["ticks"])));
    assert!(json["warnings"].as_array().unwrap().iter().any(|w| w["field"] == "bridge.wait"), "{json}");
    let (code, json) = check(format!("{CHANNELS}{}", send("wiat = 1")));
    assert_eq!((code, &json["errors"][0]["line"]), (Some(1), &(FIRST + 3).into()));
}

#[test]
fn a_bridge_is_what_its_table_says() {
    let text = format!(
        "{CHANNELS}{}",
        send("wait = \"yield\"\ncpu = 2\nbusy_poll_us = 50\ndscp = 46\npriority = 6")
    );
    let config = Config::parse(&text, "test.toml").unwrap();
    let [bridge] = &config.bridges[..] else { panic!("{:?}", config.bridges) };
    assert_eq!((bridge.wait, bridge.cpu, bridge.busy_poll_us), (WaitMode::Yield, Some(2), 50));
    assert_eq!((bridge.dscp, bridge.priority), (Some(46), Some(6)));
}
