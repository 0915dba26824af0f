//! The daemon's configuration as its administrator sees it: mistakes with their place and the nearest valid name, the
//! default file, and `shmcast check`.

use serde_json::Value;
use shmcast::hosting::HostedSegment;
use shmcast_bridge::spec::{BridgeSpec, NatsSpec, ReceiveSpec, RepairSpec, SendRole, SendSpec};
use shmcast_daemon::config::{
    BoardConfig, ChannelConfig, ClockChoice, Config, ConfigError, DEFAULT_CONFIG, DaemonConfig, GateConfig,
    Host, JournalConfig, Lag, LimitsConfig, Mode, Principal, Problem, Then, WakerConfig,
};
use shmcast_journal::core::{Io, SyncPolicy};
use shmcast_testkit::place::program;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

mod any_text;
mod bridges;
mod warnings;

fn parse(text: &str) -> Config {
    Config::parse(text, "test.toml").unwrap_or_else(|e| panic!("{text}\n{e}"))
}

fn problems(text: &str) -> Vec<Problem> {
    match Config::parse(text, "test.toml") {
        Err(ConfigError::Invalid { problems, .. }) => problems,
        other => panic!("{text}\n{other:?}"),
    }
}

/// Checks that the text has exactly one mistake, which is shown as `shown`.
fn refuses(text: &str, shown: &str) {
    let found = problems(text);
    assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), [shown], "{text}");
    let error = Config::parse(text, "test.toml").unwrap_err().to_string();
    assert_eq!(error, format!("test.toml:{shown}"));
}

const TICKS: &str = "[[channel]]\nname = \"ticks\"\ncapacity = \"1MiB\"\n";

#[test]
fn a_misspelt_name_is_told_with_its_place_and_the_nearest_one() {
    refuses("\n[deamon]\n", "2:2: unknown section or field `deamon`: did you mean `daemon`?");
    refuses(
        "[limits]\nrequest_brust = 1\n",
        "2:1: [limits]: unknown field `request_brust`: did you mean `request_burst`?",
    );
    refuses(
        "[waker]\n  longest_ms = 1\n",
        "2:3: [waker]: unknown field `longest_ms`: did you mean `longest_us`?",
    );
    let text = format!("{TICKS}subscriber = [\"*\"]\n");
    refuses(&text, "4:1: channel \"ticks\": unknown field `subscriber`: did you mean `subscribers`?");
    refuses(
        "[waker]\nzzz = 1\n",
        "2:1: [waker]: unknown field `zzz`: there are `shortest_us`, `longest_us`, `cpu`",
    );
}

#[test]
fn a_misspelt_value_is_told_with_its_place_and_the_nearest_one() {
    let text = format!("{TICKS}mode = \"strikt\"\n");
    refuses(&text, "4:8: channel \"ticks\": mode: unknown value `strikt`: did you mean `strict`?");
    let text = format!("{TICKS}publishers = [\n  \"uid:0\",\n  \"usr:bob\",\n]\n");
    refuses(
        &text,
        "6:3: channel \"ticks\": publishers: \"usr:bob\": unknown kind `usr`: did you mean `user`?",
    );
    let text = TICKS.replace("1MiB", "63MB");
    let shown = "3:12: channel \"ticks\": capacity 63000000 B: must be a power of two from 65536 B (64 KiB) to \
                 17179869184 B (16 GiB): did you mean \"64MiB\"?";
    refuses(&text, shown);
}

/// The most costly mistake is a list of users that silently names nobody, or everybody.
#[test]
fn access_lists_name_somebody_or_are_refused() {
    for (written, why) in [
        ("bob", "\"bob\" names nobody: write \"user:NAME\", \"group:NAME\", \"uid:N\" or \"*\""),
        ("**", "\"**\" names nobody: write \"user:NAME\", \"group:NAME\", \"uid:N\" or \"*\""),
        ("user:", "\"user:\": a name must follow the colon, without spaces or colons"),
        ("user: bob", "\"user: bob\": a name must follow the colon, without spaces or colons"),
        ("uid:bob", "\"uid:bob\": a user's number must follow, as in \"uid:1000\""),
        ("uid:4294967295", "\"uid:4294967295\": a user's number must follow, as in \"uid:1000\""),
    ] {
        let text = format!("{TICKS}subscribers = [\"{written}\"]\n");
        refuses(&text, &format!("4:16: channel \"ticks\": subscribers: {why}"));
    }
    let shown = "4:15: channel \"ticks\": subscribers: cannot be string \"*\": write a list";
    refuses(&format!("{TICKS}subscribers = \"*\"\n"), shown);
}

#[test]
fn values_out_of_range_are_told_with_the_range() {
    refuses("[limits]\nevents_queue = 0\n", "2:16: [limits]: events_queue = 0: must be from 1 to 65536");
    refuses(
        "[limits]\nrequest_burst = 1000001\n",
        "2:17: [limits]: request_burst = 1000001: must be from 1 to 1000000",
    );
    refuses("[waker]\ncpu = 1024\n", "2:7: [waker]: cpu = 1024: must be from 0 to 1023");
    refuses(
        "[waker]\nshortest_us = 9\nlongest_us = 8\n",
        "2:15: [waker]: shortest_us = 9 exceeds longest_us = 8",
    );
    refuses("[waker]\nshortest_us = 4001\n", "2:15: [waker]: shortest_us = 4001 exceeds longest_us = 4000");
    let shown =
        "2:15: [waker]: shortest_us: cannot be integer `-5`: write a whole number from 0 to 4294967295";
    refuses("[waker]\nshortest_us = -5\n", shown);
    let text = format!("{TICKS}numa_node = 1024\n");
    refuses(&text, "4:13: channel \"ticks\": numa_node = 1024: must be from 0 to 1023");
    let text = format!("{TICKS}max_message = 0\n");
    refuses(
        &text,
        "4:15: channel \"ticks\": max_message: 0 B: nothing could be published; leave it out for the ring's limit",
    );
    let text = format!("{TICKS}max_message = \"1MiB\"\n");
    let shown = "4:15: channel \"ticks\": messages of 1048576 B do not fit a ring of 1048576 B (at most 131072 B): raise the capacity";
    refuses(&text, shown);
    for capacity in
        ["\"0B\"", "-1", "\"32KiB\"", "\"32GiB\"", "\"big\"", "\"99999999EiB\"", "1.5", "\"\"", "\"1e400MB\""]
    {
        let text = TICKS.replace("\"1MiB\"", capacity);
        let found = problems(&text);
        assert_eq!(
            (found.len(), found[0].position.line, found[0].position.column),
            (1, 3, 12),
            "{text}{found:?}"
        );
    }
}

#[test]
fn a_metrics_port_is_open_to_other_hosts_only_on_request() {
    let shown = "2:8: [daemon]: http: 0.0.0.0:9464 can be reached from other hosts: use 127.0.0.1, or set http_allow_remote = true";
    refuses("[daemon]\nhttp = \"0.0.0.0:9464\"\n", shown);
    assert!(!problems("[daemon]\nhttp = \"[::]:9464\"\n").is_empty());
    let allowed = parse("[daemon]\nhttp = \"0.0.0.0:9464\"\nhttp_allow_remote = true\n");
    assert_eq!(allowed.daemon.http.unwrap().port(), 9464);
    for loopback in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1"] {
        assert!(parse(&format!("[daemon]\nhttp = \"{loopback}\"\n")).daemon.http.is_some());
    }
    let shown = "2:8: [daemon]: http: \"localhost\" is no address: write IP:PORT, as in \"127.0.0.1:9464\" or \"[::1]:9464\"";
    refuses("[daemon]\nhttp = \"localhost\"\n", shown);
}

/// Earlier mistakes: the gate was looked for at the first gate's line, and a value that cannot be read was also told as missing.
#[test]
fn a_mistake_is_told_once_and_at_its_own_line() {
    let gates =
        "[[channel.gate]]\nname = \"a\"\n[[channel.gate]]\nname = \"b\"\n[[channel.gate]]\nname = \"c\"\n";
    let found = problems(&format!("{TICKS}{gates}wait = \"11s\"\n"));
    assert_eq!((found.len(), found[0].position.line), (1, 8), "{found:?}");
    assert!(found[0].what.starts_with("gate \"c\": wait"), "{found:?}");
    let found = problems(&format!("{TICKS}{}", gates.replace("\"b\"", "\"a\"")));
    assert_eq!((found.len(), found[0].position.line), (1, 6), "{found:?}");

    let bridge = |line: &str| {
        format!(
            "{TICKS}max_message = \"1KiB\"\n[[bridge]]\nchannel = \"ticks\"\nline = [{line}]\n[bridge.send]\n"
        )
    };
    let shown = "7:19: bridge \"ticks\": line.group: invalid socket address syntax: write IP:PORT, as in \"239.1.2.3:30001\" or \"[::1]:9464\"";
    refuses(&bridge("{ group = \"239.1.2.3\" }"), shown);
    let found = problems(&bridge("{ group = \"239.1.2.3\" }, { interface = \"lo\" }"));
    assert!(found.len() == 2 && found[1].what.contains("missing field `group`"), "{found:?}");
    refuses("[limits]\nevents_queue = 1\nevents_queue = 2\n", "3:1: duplicate key `events_queue`");
    for board in ["board = { key = \"5..5\" }", "[channel.board]\nkey = \"5..5\"", "board = [1]"] {
        let found = problems(&format!("{TICKS}{board}\n"));
        assert_eq!(found.len(), 1, "{found:?}");
    }
    let board = format!("{TICKS}board = {{ key = \"0..8\", remove_tag = 65536 }}\n");
    let found = problems(&board);
    assert!(found.len() == 1 && found[0].what.ends_with("write a whole number from 0 to 65535"), "{found:?}");
}

/// Earlier mistakes: a mistake in a table within a channel named only the table, and some mistakes named no value.
#[test]
fn a_mistake_names_its_key_and_the_value() {
    let cases = [
        ("[channel.board]\nkey = \"5..5\"", "board.key: \"5..5\" names no bytes"),
        (
            "[channel.board]\nkey = \"0..8\"\nkeys = [1]",
            "board.keys: cannot be the list [1]: write a whole number from 0",
        ),
        (
            "[[channel.gate]]\nname = \"g\"\nwait = 1.5",
            "gate.wait: cannot be floating point `1.5`: write a string",
        ),
        (
            "[[channel.gate]]\nname = \"g\"\nthen = 1.5",
            "gate.then: cannot be 1.5: write one of its words in quotes: `",
        ),
        ("mode = true", "mode: cannot be true: write one of its words in quotes: `takeover`, `strict`"),
        ("journal = 1", "journal: cannot be integer `1`: write a table"),
        ("labels = 1", "labels: cannot be integer `1`: write a table"),
        ("[channel.journal]\ndir = 1", "journal.dir: cannot be integer `1`: write a path in quotes"),
        ("[channel.journal]\ndir = \"/j\"\nsync = \"x\"", "journal.sync: \"x\": give each, none"),
        ("[channel.journal]\ndir = \"/j\"\nio = \"x\"", "journal.io: \"x\": give direct"),
    ];
    for (text, what) in cases {
        let found = problems(&format!("{TICKS}{text}\n"));
        assert!(found.len() == 1 && found[0].what.starts_with(what), "{text}: {found:?}");
    }
}

/// The number 666 is not octal 0666, and TOML does not accept 0666.
#[test]
fn permissions_are_octal_and_in_quotes() {
    assert_eq!(parse("[daemon]\nsocket_mode = \"0660\"\n").daemon.socket_mode, 0o660);
    assert_eq!(parse("[daemon]\nsocket_mode = \"0o600\"\n").daemon.socket_mode, 0o600);
    let shown =
        "2:15: [daemon]: socket_mode: cannot be integer `666`: write octal digits in quotes, as in \"0660\"";
    refuses("[daemon]\nsocket_mode = 666\n", shown);
    refuses("[daemon]\nsocket_mode = 0666\n", "2:15: unexpected leading zero: write octal digits in quotes");
    for wrong in ["0888", "1777", "", "+66", "0x66", "77777777777777"] {
        let found = problems(&format!("[daemon]\nsocket_mode = \"{wrong}\"\n"));
        assert!(
            found[0].to_string().ends_with("are no permissions: write \"0000\" to \"0777\""),
            "{found:?}"
        );
    }
}

#[test]
fn a_socket_where_nobody_could_connect_is_refused() {
    refuses(
        "[daemon]\nsocket = \"run/x\"\n",
        "2:10: [daemon]: socket \"run/x\" is not absolute: begin it with /",
    );
    let long = format!("/{}", "x".repeat(107));
    let shown = "2:10: [daemon]: socket: a path of 108 B; the kernel allows 107: choose a shorter one";
    refuses(&format!("[daemon]\nsocket = \"{long}\"\n"), shown);
    assert!(parse(&format!("[daemon]\nsocket = \"{}\"\n", &long[..107])).daemon.socket.is_some());
}

#[test]
fn channels_have_distinct_good_names_and_labels_that_fit() {
    let again = format!("{TICKS}\n{TICKS}");
    refuses(&again, "6:8: channel \"ticks\": there is one of this name at line 2: rename one of them");
    let shown = "2:8: channel \"a/b\": channel name \"a/b\": may hold letters, digits and . _ - : @ + only";
    refuses(&TICKS.replace("ticks", "a/b"), shown);
    refuses("[[channel]]\ncapacity = \"1MiB\"\n", "1:1: [[channel]]: missing field `name`");
    refuses("[[channel]]\nname = \"a\"\n", "1:1: channel \"a\": missing field `capacity`");
    refuses("[channel]\nname = \"a\"\n", "1:1: channels are lists: write [[channel]], not [channel]");
    refuses(
        "daemon = 1\n",
        "1:10: [daemon]: must be a table, not integer: write [daemon] on a line of its own",
    );
    for (label, why) in [
        ("\"a b\" = \"x\"", "label \"a b\": a key is a letter, then letters, digits and _ only"),
        ("__a = \"x\"", "label \"__a\": a key is a letter, then letters, digits and _ only"),
        ("reader = \"x\"", "label \"reader\": metrics use this name for themselves: choose another"),
        ("a = \"x\\ny\"", "label \"a\": a value is one line without control characters"),
    ] {
        refuses(&format!("{TICKS}labels = {{ {label} }}\n"), &format!("4:10: channel \"ticks\": {why}"));
    }
    let schema = format!("{TICKS}schema = \"quote\"\n");
    refuses(
        &schema,
        "4:10: channel \"ticks\": schema = \"quote\": give its number as well, schema_id = 1 or more",
    );
    let long = format!("{TICKS}schema_id = 1\nschema = {:?}\n", "x".repeat(4000));
    let shown = "5:10: channel \"ticks\": schema: with the name it exceeds the 3.5 KiB that a segment has for them: shorten it";
    refuses(&long, shown);
    let long = format!("{TICKS}labels = {{ a = \"{}\" }}\n", "x".repeat(4000));
    let shown = "4:10: channel \"ticks\": labels: with the name they exceed the 3.5 KiB that a segment has for them: shorten them";
    refuses(&long, shown);
}

#[test]
fn a_journal_that_could_not_be_kept_is_refused() {
    let journal = |fields: &str| format!("{TICKS}journal = {{ {fields} }}\n");
    let why = |shown: &str| format!("channel \"ticks\": {shown}");
    refuses(
        &journal("dir = \"ticks\""),
        &format!("4:19: {}", why("journal.dir \"ticks\" is not absolute: begin it with /")),
    );
    for (fields, shown) in [
        ("file = \"1KiB\"", "journal.file = 1024: must be from 1MiB to 64GiB"),
        ("buffer = 5", "journal.buffer = 5: must be 1MiB or more"),
        (
            "keep_bytes = \"1GiB\"",
            "journal.keep_bytes = 1073741824: must be at least twice file, which is 1GiB",
        ),
        ("sync = \"10\"", "give each, none, or an interval of 1ms or more, as in 10ms"),
        ("keep_age = \"30\"", "\"30\" needs a unit: write it like 500ms, 10s, 5m, 8h or 30d"),
        ("keepbytes = 1", "unknown field `keepbytes`: did you mean `keep_bytes`?"),
    ] {
        let found = problems(&journal(&format!("dir = \"/x\", {fields}")));
        assert!(found.len() == 1 && found[0].what.contains(shown), "{fields}: {found:?}");
    }
    let missing = problems(&journal("file = \"1GiB\""));
    assert!(missing[0].what.contains("missing field `dir`"), "{missing:?}");
    let twice = journal("dir = \"/x\"") + &journal("dir = \"/x\"").replace("ticks", "rates");
    let found = problems(&twice);
    assert!(found.len() == 1 && found[0].what.contains("is that of channel \"ticks\""), "{found:?}");
}

#[test]
fn one_mistake_does_not_hide_those_of_other_sections() {
    let text = "[limits]\nx = 1\n[waker]\ny = 1\n[[channel]]\nname = \"a\"\n[[channel]]\nname = \"b\"\ncapacity = 1\n";
    let lines: Vec<usize> = problems(text).iter().map(|problem| problem.position.line).collect();
    assert_eq!(lines, [2, 4, 5, 9]);
}

#[test]
fn one_mistake_does_not_hide_those_of_its_own_section() {
    let text = r#"[limits]
requests_per_second = "many"
x = 1
request_burst = 0
[[channel]]
name = "a"
capacity = "64M"
max_message = "4KiB"
mode = "odd"
subscribers = ["*", "nobody", "user:x", "grp:x"]
labels = { 9 = "x" }
[[channel]]
mlok = true
numa_node = 5000
[[bridge]]
channel = "a"
wiat = "spin"
payload_bytes = 1
[bridge.send]
ttl = 1000
frm = "latest"
[[bridge]]
channel = "nope"
payload_bytes = 2
x = 1
[bridge.receive]
"#;
    let found = problems(text);
    let lines: Vec<usize> = found.iter().map(|problem| problem.position.line).collect();
    // In line 12, name and capacity are missing. In line 22, the broken rules need only fields that could be read.
    assert_eq!(
        lines,
        [2, 3, 4, 7, 9, 10, 10, 11, 12, 12, 13, 14, 17, 18, 20, 21, 22, 23, 24, 25],
        "{found:#?}"
    );
    let shown = |at: usize, part: &str| assert!(found[at].to_string().contains(part), "{}", found[at]);
    shown(3, "64MiB (67108864 B)");
    shown(11, "numa_node = 5000");
    shown(16, "nothing to listen to");
    shown(17, "there is no [[channel]] \"nope\"");
}

#[test]
fn broken_toml_and_broken_text_have_a_place_too() {
    let found = problems("[daemon]\nhttp = \n");
    assert_eq!(found[0].position.line, 2, "{found:?}");
    let error = Config::read(&b"# \xc3\xa4\n# \xff\n"[..], "x.toml").unwrap_err();
    assert_eq!(error.to_string(), "x.toml:2:3: not UTF-8 text: save the file as UTF-8");
    let endless = Config::read(std::io::repeat(b'\n'), "zero").unwrap_err();
    assert!(
        matches!(endless, ConfigError::Read { .. }) && endless.to_string().contains("larger than"),
        "{endless}"
    );
    let missing = Config::load(Path::new("/nonexistent/x.toml")).unwrap_err().to_string();
    assert!(missing.starts_with("cannot read /nonexistent/x.toml: No such file"), "{missing}");
}

#[test]
fn nesting_without_end_is_refused_and_not_followed() {
    for text in [format!("a{} = 1", ".a".repeat(200_000)), format!("x = {}", "[".repeat(200_000))] {
        assert!(problems(&text)[0].what.contains("recurs"), "{:?}", problems(&text));
    }
}

#[test]
fn a_thousand_mistakes_do_not_flood_the_log() {
    let text: String = (0..1000).map(|i| format!("[[channel]]\nname = \"c{i}\"\n")).collect();
    let error = Config::parse(&text, "x.toml").unwrap_err().to_string();
    assert_eq!(error.lines().count(), 21);
    assert!(error.ends_with("and 980 more: run `shmcast check x.toml`"), "{error}");
}

#[test]
fn the_default_file_says_what_the_daemon_does_without_one() {
    let config = parse(DEFAULT_CONFIG);
    assert_eq!(config.daemon, DaemonConfig::default());
    assert_eq!(config.limits, LimitsConfig::default());
    assert_eq!(config.waker, WakerConfig::default());
    assert!(config.channels.is_empty());
    assert_eq!(config.warnings(), []);
}

/// The default file with all optional fields. In the file, they come after a bare `#`.
fn default_with_everything() -> String {
    let is_field = |rest: &str| rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '[');
    let uncommented =
        |line: &'static str| line.strip_prefix('#').filter(|rest| is_field(rest)).unwrap_or(line);
    DEFAULT_CONFIG.lines().map(|line| format!("{}\n", uncommented(line))).collect()
}

#[test]
fn optional_fields_of_the_default_file_hold_what_it_says_of_them() {
    let config = parse(&default_with_everything());
    let risk = GateConfig {
        name: "risk".into(),
        users: vec![Principal::User("risk".into())],
        lag: Lag::Percent(50),
        wait: Duration::from_micros(200),
        then: Then::Drop,
    };
    let channel = ChannelConfig {
        max_message: Some(1 << 10),
        publishers: vec![Principal::User("feed".into())],
        subscribers: vec![Principal::Group("traders".into()), Principal::Uid(1000)],
        numa_node: Some(0),
        clock: Some(ClockChoice::Monotonic),
        schema_id: 7,
        schema: "quote/1".into(),
        labels: [("feed".into(), "level 1".into()), ("venue".into(), "XETR".into())].into(),
        journal: Some(JournalConfig {
            dir: "/var/lib/shmcast/ticks".into(),
            sync: SyncPolicy::Interval(Duration::from_millis(10)),
            io: Io::Direct,
            buffer: 64 << 20,
            file: 1 << 30,
            roll_after: None,
            keep_bytes: Some(500 << 30),
            keep_age: Some(Duration::from_hours(30 * 24)),
            keep_free: Some(10 << 30),
            gate: None,
        }),
        board: Some(BoardConfig { key: 0..8, keys: 10_000, value: Some(256), remove_tag: Some(9) }),
        gates: vec![risk.clone(), GateConfig { name: "wan".into(), users: Vec::new(), ..risk }],
        ..ChannelConfig::new("ticks", 64 << 20)
    };
    assert_eq!(config.channels[0], channel, "mode, mlock and hugepages stand there with their defaults");
    let least = parse(&format!("{TICKS}journal = {{ dir = \"/x\" }}\n"));
    let least = least.channels[0].journal.clone().unwrap();
    let explained = channel.journal.map(|journal| JournalConfig {
        dir: "/x".into(),
        keep_bytes: None,
        keep_age: None,
        keep_free: None,
        ..journal
    });
    assert_eq!(Some(least), explained);
    let [send, receive, far] = &config.bridges[..] else { panic!("{:?}", config.bridges) };
    let repair = RepairSpec {
        allow: vec!["10.0.0.0/24".parse().unwrap(), "10.1.0.7".parse().unwrap()],
        rate_bytes: Some(100_000_000),
        source_rate_bytes: Some(25_000_000),
        dscp: Some(10),
        group: Some("239.1.2.9:30009".parse().unwrap()),
        merge_us: Some(1_000),
        linger_us: Some(600),
        ..RepairSpec::new("10.0.0.1:30002".parse().unwrap())
    };
    let state = Some("/var/lib/shmcast/ticks.state".into());
    let expected = SendSpec {
        repair: Some(repair),
        state,
        role: SendRole::Auto,
        claim_bind: Some("10.0.0.1:30003".parse().unwrap()),
        peers: vec!["10.0.0.2:30003".parse().unwrap()],
        gate: Some("wan".into()),
        ..SendSpec::default()
    };
    assert_eq!(
        send.send,
        Some(expected),
        "fields stand there with their defaults, rates as what they are at least"
    );
    assert_eq!((send.lines.len(), send.cpu, receive.channel.as_str()), (2, Some(3), "rates"));
    assert_eq!((send.dscp, send.priority), (Some(46), Some(6)));
    let plain = BridgeSpec::new("ticks");
    let numbers = |bridge: &BridgeSpec| (bridge.payload_bytes, bridge.wait, bridge.busy_poll_us);
    assert_eq!(numbers(send), numbers(&plain));
    let servers = vec!["10.0.0.9:30002".parse().unwrap()];
    let repair_group = Some("239.1.2.9:30009".parse().unwrap());
    let expected = ReceiveSpec { servers, repair_group, from: Some(1), ..ReceiveSpec::default() };
    assert_eq!(receive.receive, Some(expected), "fields stand there with their defaults");
    let nats = NatsSpec {
        servers: ["tls://n1:4222", "tls://n2:4222", "tls://n3:4222"]
            .map(|server| server.parse().unwrap())
            .into(),
        account: Some("/etc/shmcast/n.account".into()),
        creds: Some("/etc/shmcast/n.creds".into()),
        ca: Some("/etc/shmcast/ca.pem".into()),
        cert: Some("/etc/shmcast/host.pem".into()),
        key: Some("/etc/shmcast/host.key".into()),
        domain: Some("hub".to_owned()),
        replicas: Some(3),
        keep_bytes: Some(1 << 30),
        keep_s: Some(86_400),
        ..NatsSpec::default()
    };
    let names = (Some(nats.stream_of("ticks")), Some(nats.subject_of("ticks")));
    let explained = far.nats.clone().unwrap();
    assert_eq!(
        (explained.stream.clone(), explained.subject.clone()),
        names,
        "the names stand there with their defaults"
    );
    assert_eq!(NatsSpec { stream: None, subject: None, ..explained }, nats);
    assert_eq!(config.daemon.socket.as_deref(), Some(Path::new("/run/shmcast/control.sock")));
    assert_eq!(parse(TICKS).channels, [ChannelConfig::new("ticks", 1 << 20)]);
}

/// A field that is added to a struct must also be explained in the default file.
#[test]
fn no_field_is_missing_from_the_default_file() {
    let mut seen = 0;
    let repair = "[[bridge]]\nchannel = \"c\"\n[bridge.send.repair]";
    let sections = ["[daemon]", "[limits]", "[waker]", "[[channel]]", "[[bridge]]", repair];
    let tables =
        ["[[bridge]]\nchannel = \"c\"\n[bridge.send]", "[[bridge]]\nchannel = \"c\"\n[bridge.receive]"];
    let nats = "[[bridge]]\nchannel = \"c\"\n[bridge.nats]";
    let gate = "[[channel]]\nname = \"c\"\ncapacity = \"1MiB\"\n[[channel.gate]]\nname = \"g\"";
    for section in sections.into_iter().chain(tables).chain([nats, gate]) {
        let problems = problems(&format!("{section}\nqqqqqqqqqqqqqqqq = 1\n"));
        let what =
            problems.into_iter().map(|problem| problem.what).find(|what| what.contains("qqqq")).unwrap();
        let fields: Vec<&str> = what.split('`').skip(3).step_by(2).collect();
        assert!(fields.len() >= 3, "{what}");
        for field in fields {
            // The tables of a bridge and of a channel stand in the file as sections.
            let is_table = |line: &str| {
                let is_section = line.starts_with("[bridge.") || line.starts_with("[[channel.");
                is_section && line.trim_end_matches(']').ends_with(&format!(".{field}"))
            };
            let is_field = |line: &str| line.starts_with(&format!("{field} = ")) || is_table(line);
            let stands = |line: &str| is_field(line.strip_prefix('#').unwrap_or(line));
            assert!(DEFAULT_CONFIG.lines().any(stands), "{section} {field}");
            seen += 1;
        }
    }
    assert!(seen >= 51, "{seen}");
}

#[test]
fn what_a_file_says_is_what_the_segment_is_made_with() {
    let text = format!(
        "{TICKS}max_message = 1000\nmode = \"strict\"\nmlock = false\nhugepages = false\nschema_id = 7\nschema = \"quote/1\"\nlabels = {{ b = \"2\", a = \"x=y\" }}\n"
    );
    let config = parse(&text);
    assert_eq!(config.channels[0].mode, Mode::Strict);
    let spec = config.channels[0].spec();
    assert!(spec.is_strict && !spec.preparation.lock && !spec.preparation.huge_pages);
    let hosted = HostedSegment::create(&spec, None, None).unwrap();
    let header = hosted.header();
    assert_eq!((header.channel.as_str(), header.labels.as_str()), ("ticks", "a=x=y\nb=2\n"));
    assert_eq!((header.schema_id, header.schema.as_str()), (7, "quote/1"));
    assert_eq!((header.geometry.capacity, header.geometry.max_message), (1 << 20, 1000));
    assert_eq!(header.geometry.segment_bytes(), spec.segment_bytes().unwrap());
}

/// A machine without surprises: 1 TiB, two nodes, four CPUs, no swap, all users.
fn host() -> Host {
    Host {
        memory_bytes: Some(1 << 40),
        memlock_bytes: None,
        has_swap: false,
        cpus: "0-3".parse().ok(),
        numa_nodes: "0-1".parse().ok(),
        interfaces: None,
        may_run_bridges: false,
        exists: |_| true,
        refuses_files: |_| None,
        refuses_reading: |_| None,
    }
}

fn check(arguments: &[&str], stdin: &[u8]) -> Output {
    let mut command = Command::new(program("shmcast"));
    command.arg("check").args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(stdin).unwrap();
    child.wait_with_output().unwrap()
}

/// An earlier mistake: a configuration was valid without a warning, and the daemon could not record the channel or start the bridge.
#[test]
fn check_warns_of_places_that_are_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let plain = dir.path().join("plain");
    fs::write(&plain, "").unwrap();
    let below = plain.join("j").display().to_string();
    let channel = |name: &str, journal: &str| {
        format!(
            "[[channel]]\nname = {name:?}\ncapacity = \"1MiB\"\njournal = {{ dir = {journal:?}, keep_age = \"1d\" }}\n"
        )
    };
    let bridge = "[[bridge]]\nchannel = \"a\"\nprofile = \"native\"\nkeys = \"/nonexistent/keys\"\nline = [{ group = \"239.1.2.3:1\" }]\n[bridge.send]\n";
    let config = [
        channel("a", &below),
        channel("b", "/proc/x"),
        channel("c", "/var/lib/shmcast/c"),
        bridge.to_owned(),
    ];
    let config = parse(&config.concat());
    let warnings = config.warnings_on(&Host { exists: |_| true, ..Host::this() });
    let told = |field: &str| -> Vec<_> {
        warnings.iter().filter(|warning| warning.field == field).map(|warning| warning.what.clone()).collect()
    };
    let dirs = told("journal.dir");
    assert!(dirs.iter().any(|what| what.contains("plain is no directory")), "{dirs:?}");
    assert!(dirs.iter().any(|what| what.contains("/proc is of the kernel")), "{dirs:?}");
    assert!(!dirs.iter().any(|what| what.contains("/var")), "{dirs:?}");
    let keys = told("bridge.keys");
    assert!(keys.len() == 1 && keys[0].contains("/nonexistent/keys"), "{keys:?}");
    assert!(keys[0].ends_with("the bridge does not start"), "{keys:?}");
    // An earlier mistake: a reload said of a bridge that went on with its keys that it does not start.
    let reloaded = config.warnings_on(&Host { may_run_bridges: true, exists: |_| true, ..Host::this() });
    let keys = reloaded.iter().find(|warning| warning.field == "bridge.keys").unwrap();
    assert!(keys.what.contains("a bridge that runs keeps its keys"), "{keys:?}");
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn check_fails_scripts_on_errors_and_not_on_warnings() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str| {
        let path = dir.path().join(name);
        fs::write(&path, content).unwrap();
        path.display().to_string()
    };
    let bad = file("bad.toml", &format!("{TICKS}pubishers = []\n"));
    let output = check(&[&bad], b"");
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{err}");
    let row: Vec<&str> = out.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[..4], ["4", "1", "channel", "\"ticks\""], "{out}");
    assert!(
        out.contains("did you mean `publishers`?") && err.contains("1 error; the daemon refuses"),
        "{out}{err}"
    );
    let output = check(&[&bad, "--json"], b"");
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &json["valid"]), (Some(1), &Value::Bool(false)));
    assert_eq!((&json["errors"][0]["line"], &json["errors"][0]["column"]), (&4.into(), &1.into()));

    let unwise = file("unwise.toml", &format!("{TICKS}subscribers = [\"group:no-such-group\"]\n"));
    let output = check(&[&unwise], b"");
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{err}");
    assert!(out.contains("4     ticks    subscribers  group:no-such-group does not exist here"), "{out}");
    assert!(err.contains("valid, 1 channel, "), "{err}");
    let json: Value = serde_json::from_slice(&check(&[&unwise, "--json"], b"").stdout).unwrap();
    assert_eq!((&json["valid"], &json["channels"][0]), (&Value::Bool(true), &"ticks".into()));
    assert!(
        json["warnings"].as_array().unwrap().iter().any(|w| w["line"] == 4 && w["field"] == "subscribers")
    );

    let output = check(&["-"], DEFAULT_CONFIG.as_bytes());
    assert_eq!(
        (output.status.code(), text(&output.stdout).as_str()),
        (Some(0), ""),
        "{}",
        text(&output.stderr)
    );
    let output = check(&["/nonexistent.toml"], b"");
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(1), ""));
    assert!(text(&output.stderr).contains("cannot read /nonexistent.toml"), "{}", text(&output.stderr));
}
