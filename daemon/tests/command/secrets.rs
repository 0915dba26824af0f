//! Accounts of servers: no output shows an account, and the command accepts none as an argument.

use shmcast_testkit::command::{Host, text};

/// A part of the password, as output could show it.
const SECRET: &str = "s3cr";

/// Runs the command. Its output shows no secret.
fn said(host: &Host, arguments: &[&str], account: Option<&str>) -> (Option<i32>, String) {
    let mut command = host.shmcast("");
    command.args(arguments).env_remove("SHMCAST_NATS_ACCOUNT");
    command.envs(account.map(|account| ("SHMCAST_NATS_ACCOUNT", account)));
    let output = shmcast_testkit::Process::start(&mut command).output();
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(!said.contains(SECRET), "{arguments:?} shows a secret: {said}");
    (output.status.code(), said)
}

#[test]
fn an_account_in_an_argument_is_refused_with_the_way_to_give_it() {
    let host = Host::new();
    let input = host.file("input", b"1\n").display().to_string();
    assert!(host.run(&format!("pub t --capacity 64KiB --input {input}")).status.success());
    for url in [
        "nats://alice:s3cret@127.0.0.1:1",
        "alice:s3cret@127.0.0.1:1",
        "NATS://alice:s3cret,s3cr@127.0.0.1:1",
        "nats://127.0.0.1:1,nats://s3cret@127.0.0.1:1",
        "nats://alice:s3cr et#@127.0.0.1:port",
    ] {
        for arguments in [
            &["bridge", "send", "t", "--until-end", "--nats", url][..],
            &["bridge", "recv", "t", "--nats", url],
            &["bridge", "stream", "info", "t", url],
            &["bridge", "recv", "t", "--nats", "nats://127.0.0.1:1", "--set", &format!("nats.servers={url}")],
        ] {
            let (code, said) = said(&host, arguments, None);
            assert!(code == Some(1) && said.contains("--set nats.account=FILE"), "{code:?} {said}");
        }
        // clap quotes the arguments that it refuses.
        for arguments in [
            &["bridge", "send", "t", url][..],
            &["bridge", "recv", "t", "--from", url],
            &["bridge", "recv", "t", "--server", url, "--set", "receive.unicast=true"],
            &["sub", "t", "--count", url],
        ] {
            assert_eq!(said(&host, arguments, None).0, Some(2));
        }
    }
    let info = ["bridge", "stream", "info", "t"];
    let (code, text) = said(&host, &[&info[..], &["nats://127.0.0.1:s3cret"]].concat(), None);
    assert!(code == Some(1) && text.contains("nats://HOST:PORT"), "{code:?} {text}");
    // Errors about the file or the environment show neither of the two.
    let file = host.file("account", b"alice:s3cret\n").display().to_string();
    let account = format!("nats.account={file}");
    let with_file = [&info[..], &["nats://127.0.0.1:1", "--set", &account]].concat();
    let (code, text) = said(&host, &with_file, None);
    assert!(code == Some(1) && text.contains("chmod 600"), "{code:?} {text}");
    let at = [&info[..], &["nats://127.0.0.1:1"]].concat();
    let (code, text) = said(&host, &at, Some("alice:s3cret\nbob"));
    assert!(code == Some(1) && text.contains("SHMCAST_NATS_ACCOUNT"), "{code:?} {text}");
    let (code, text) = said(&host, &at, Some("alice:s3cret"));
    assert!(code == Some(1) && text.contains("127.0.0.1:1"), "{code:?} {text}");
}

#[test]
fn a_configuration_that_is_refused_shows_no_account() {
    let host = Host::new();
    let check = |bridge: &str| {
        let text = format!(
            "[[channel]]\nname = \"t\"\ncapacity = \"1MiB\"\nmlock = false\n[[bridge]]\nchannel = \"t\"\n{bridge}\n[bridge.send]\n"
        );
        let file = host.file("c.toml", text.as_bytes()).display().to_string();
        for verb in [&["check", &file][..], &["check", "--json", &file], &["bridge", "check", &file]] {
            let (code, said) = said(&host, verb, None);
            assert!(code.is_some_and(|code| code < 4), "{said}");
        }
        said(&host, &["check", &file], None)
    };
    let nats = |servers: &str| format!("engine = \"nats\"\n[bridge.nats]\nservers = {servers}");
    for bad in [
        nats("[\"alice:s3cret@127.0.0.1:1\"]"),
        nats("[\"nats://alice:s3cret@127.0.0.1:port\"]"),
        nats("[\"nats://alice:s3cret\"]"),
        nats("[[\"nats://alice:s3cret@h\"]]"),
        nats("{ url = \"nats://alice:s3cret@h\" }"),
        nats("[nats://alice:s3cret@h]"),
        nats("[\"nats://alice:s3cret@h\", \"nats://bob:s3cret@h\"]"),
        nats("\"nats://alice:s3cret@h\"\nblock_bytes = \"nats://alice:s3cret@h\""),
        nats("\"nats://alice:s3cret@h\"\nstream = \"nats://alice:s3cret@h\""),
        nats("\"nats://alice:s3cret@h\"\n\"nats://alice:s3cret@h\" = 1"),
        "engine = \"nats\"\nnats = \"s3cret\"".to_owned(),
        nats("\"nats://h\"\nblock_bytes = \"s3cret\""),
        "engine = \"nats://alice:s3 cr\\\"et@h\"".to_owned(),
    ] {
        let (code, said) = check(&bad);
        assert!(code == Some(1) && said.contains("refuses this file"), "{bad}: {said}");
    }
    let (code, said) = check(&nats("\"nats://alice:s3cret@127.0.0.1:1\""));
    assert!(code == Some(0) && said.contains("every user may read this"), "{said}");
}
