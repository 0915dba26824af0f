use super::*;
use crate::proto::session::tag_of;

fn parse(text: &str) -> BridgeSpec {
    toml::from_str(text).expect(text)
}

#[test]
fn a_table_with_everything_in_it() {
    let spec = parse(
        r#"
        name = "ticks to B"
        channel = "ticks"
        payload_bytes = 8972
        wait = "spin"
        cpu = 3
        line = [{ group = "239.1.2.3:30001", interface = "eth0" }, { group = "239.1.2.4:30001" }]
        [send]
        ttl = 4
        from = "oldest"
        [send.repair]
        bind = "10.0.0.1:30002"
        allow = ["10.0.0.0/24", "10.1.0.7"]
        "#,
    );
    assert_eq!(spec.problems(), []);
    let Some(Direction::Send(send)) = spec.direction() else { panic!("{spec:?}") };
    assert_eq!((send.ttl, send.from, send.linger_ms), (4, StartAt::Oldest, 10_000));
    let repair = send.repair.as_ref().expect("a repair table");
    assert!(repair.allow[1].contains([10, 1, 0, 7].into()) && repair.lease_s == 60);
    assert_eq!(spec.lines[0].interface.as_deref(), Some("eth0"));
    assert_eq!(spec.tag(), tag_of("ticks"));
    assert_eq!(BridgeSpec { session: Some("TICK".to_owned()), ..spec }.tag(), "TICK");
}

#[test]
fn the_link_has_a_speed_or_none_and_only_a_sender_names_it() {
    let link = |text: &str| parse(&format!("channel = 'c'\n{text}")).link;
    assert_eq!([link(""), link("link = 'none'")], [LinkSpeed::Auto, LinkSpeed::None]);
    assert_eq!(link("link = '10Gbit'"), LinkSpeed::Of(Link::of_bits(10_000_000_000)));
    let error = toml::from_str::<BridgeSpec>("channel = 'c'\nlink = '10GB'").unwrap_err();
    assert!(error.to_string().contains("such as 10Gbit"), "{error}");
    let fields: Vec<&str> =
        parse("channel = 'c'\nlink = '1Gbit'\nline = [{ group = '239.0.0.1:1' }]\n[receive]")
            .problems()
            .iter()
            .map(|(field, _)| *field)
            .collect();
    assert_eq!(fields, ["link"]);
}

#[test]
fn addresses_of_ipv6_are_taken_everywhere() {
    let spec = parse(
        r#"
        channel = "ticks"
        line = [{ group = "[ff35::8000:1]:30001", interface = "eth0", source = "fd00::1" }]
        [receive]
        servers = ["[fd00::1]:30002", "[fe80::2%3]:30002"]
        sources = ["fd00::/64", "10.0.0.0/8"]
        "#,
    );
    assert_eq!(spec.problems(), []);
    let receive = spec.receive.expect("a receive table");
    assert!(receive.sources[0].contains("fd00::7".parse().unwrap()));
    assert_eq!(receive.servers[1].to_string(), "[fe80::2%3]:30002");
}

#[test]
fn a_misspelt_field_is_an_error_at_every_depth() {
    for text in [
        "channel = 'c'\nchanel = 1",
        "channel = 'c'\nline = [{ group = '239.0.0.1:1', interfase = 'x' }]",
        "channel = 'c'\n[send]\nttll = 1",
        "channel = 'c'\n[send.repair]\nbind = '1.1.1.1:1'\nalow = []",
        "channel = 'c'\n[receive]\nserver = []",
    ] {
        assert!(toml::from_str::<BridgeSpec>(text).is_err(), "{text}");
    }
}

#[test]
fn what_makes_no_sense_is_named_by_its_field() {
    let fields = |text: &str| -> Vec<&str> { parse(text).problems().iter().map(|(f, _)| *f).collect() };
    assert_eq!(fields("channel = 'c'"), ["send"]);
    assert_eq!(fields("channel = 'c'\n[send]\n[receive]\n"), ["send"]);
    assert_eq!(fields("channel = 'c'\npayload_bytes = 10\n[send]"), ["payload_bytes", "line"]);
    assert_eq!(fields("channel = 'c'\n[receive]\nunicast = true"), ["unicast"]);
    assert_eq!(fields("channel = 'c'\n[send.repair]\nbind = '0.0.0.0:9'"), ["allow"]);
    let line = "line = [{ group = '239.0.0.1:0', source = '10.0.0.1' }]";
    assert_eq!(fields(&format!("channel = 'c'\n{line}\n[receive]")), ["line"]);
    assert_eq!(fields(&format!("channel = 'c'\n{line}\n[send]")), ["line", "line"]);
    assert_eq!(fields("channel = 'c'\nsession = 'EQTY1'\n[send]"), ["session", "line"]);
    let twice = "line = [{ group = '239.0.0.1:1' }, { group = '239.0.0.1:1' }]";
    assert_eq!(fields(&format!("channel = 'c'\n{twice}\n[receive]")), ["line"]);
    let nobody = "line = [{ group = '0.0.0.0:1' }]";
    assert_eq!(fields(&format!("channel = 'c'\n{nobody}\n[send]")), ["line"]);
    assert_eq!(fields(&format!("channel = 'c'\n{nobody}\n[receive]")), [""; 0]);
    let auto = |text: &str| format!("channel = 'c'\nline = [{{ group = '239.0.0.1:1' }}]\n[send]\n{text}");
    assert_eq!(fields(&auto("role = 'auto'")), ["role"]);
    assert_eq!(fields(&auto("peers = ['10.0.0.2:3']")), ["role"]);
    assert_eq!(fields(&auto("rank = 1\ntakeover_ms = 20")), ["rank", "takeover_ms"]);
    assert_eq!(fields(&auto("rank = 0\ntakeover_ms = 15")), [""; 0]);
    let whole = "role = 'auto'\nclaim_bind = '10.0.0.1:3'\npeers = ['10.0.0.2:3']\n";
    assert_eq!(fields(&auto(whole)), [""; 0]);
    assert_eq!(fields(&format!("profile = 'native'\n{}", auto(whole))), [""; 0]);
    assert_eq!(fields(&auto(&format!("{whole}rank = 16\ntakeover_ms = 2"))), ["rank", "takeover_ms"]);
    assert_eq!(fields(&auto("listen_ms = 10001")), ["listen_ms"]);
    let v6_source = "line = [{ group = '[ff15::7]:1', source = '10.0.0.1' }]\n[receive]";
    assert_eq!(fields(&format!("channel = 'c'\n{v6_source}")), ["line"]);
    let servers = "servers = ['10.0.0.1:2', '[fd00::1]:2']";
    assert_eq!(fields(&format!("channel = 'c'\n{nobody}\n[receive]\n{servers}")), ["servers"]);
    let peers = "role = 'auto'\nclaim_bind = '10.0.0.1:3'\npeers = ['[fd00::2]:3']\n";
    assert_eq!(fields(&auto(peers)), ["peers"]);
    let buffer = |bytes: u64| format!("channel = 'c'\n{nobody}\n[receive]\nbuffer_bytes = {bytes}");
    assert_eq!(fields(&buffer(1 << 40)), ["buffer_bytes"]);
    assert_eq!(fields(&buffer(1 << 29)), [""; 0]);
}

#[test]
fn a_group_for_repairs_is_a_multicast_group_that_no_line_has() {
    let sends = |repair: &str| {
        let lines = "channel = 'c'\nline = [{ group = '239.1.2.3:30001' }]\n[send.repair]\n";
        let text = format!("{lines}bind = '10.0.0.1:30002'\nallow = ['10.0.0.0/8']\n{repair}");
        parse(&text).problems().into_iter().map(|(field, _)| field).collect::<Vec<_>>()
    };
    assert_eq!(sends("group = '239.1.2.9:30009'\nmerge_us = 0\nlinger_us = 1000000"), [""; 0]);
    for wrong in ["239.1.2.3:30001", "10.0.0.9:30009", "239.1.2.9:0", "[ff35::9]:30009"] {
        assert_eq!(sends(&format!("group = '{wrong}'")), ["repair.group"], "{wrong}");
    }
    assert_eq!(sends("merge_us = 1000001"), ["repair.merge_us"]);
    let receives = |receive: &str| {
        let text = format!("channel = 'c'\nline = [{{ group = '239.1.2.3:30001' }}]\n[receive]\n{receive}");
        parse(&text).problems().into_iter().map(|(field, _)| field).collect::<Vec<_>>()
    };
    assert_eq!(receives("servers = ['10.0.0.1:30002']\nrepair_group = '239.1.2.9:30009'"), [""; 0]);
    assert_eq!(receives("repair_group = '239.1.2.9:30009'"), ["repair_group"], "nobody to ask");
}

#[test]
fn an_account_stands_in_one_place() {
    let problems = |nats: &str| {
        let text = format!("channel = 'c'\nengine = 'nats'\nsend = {{}}\nnats = {{ {nats} }}");
        parse(&text).problems().into_iter().map(|(field, _)| field).collect::<Vec<_>>()
    };
    assert_eq!(problems("servers = 'nats://u:p@a:1'"), [""; 0]);
    assert_eq!(problems("servers = ['nats://u:p@a:1', 'nats://u:p@b:1']"), [""; 0]);
    assert_eq!(problems("servers = ['nats://a:1'], account = '/a'"), [""; 0]);
    assert_eq!(problems("servers = ['nats://u:p@a:1', 'nats://v:p@b:1']"), ["nats.servers"]);
    assert_eq!(problems("servers = ['nats://u:p@a:1'], account = '/a'"), ["nats.account"]);
}

#[test]
fn the_file_of_an_account_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("account");
    let nats = NatsSpec { account: Some(file.clone()), ..NatsSpec::default() };
    let read = |text: &str, mode: u32| {
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        nats.read_account()
    };
    let expected = "u:secret".parse().unwrap();
    assert_eq!(read("u:secret\n", 0o600), Ok(Some(expected)));
    for (text, mode, says) in
        [("u:secret", 0o644, "chmod 600"), ("u:secret\nv:secret\n", 0o600, "in one line")]
    {
        let error = read(text, mode).unwrap_err();
        assert!(error.contains(says) && error.contains("account") && !error.contains("secret"), "{error}");
    }
    let inline = NatsSpec { account: Some("u:secret".into()), ..NatsSpec::default() };
    let error = inline.read_account().unwrap_err();
    assert!(error.contains("give the path of a file") && !error.contains("secret"), "{error}");
}
