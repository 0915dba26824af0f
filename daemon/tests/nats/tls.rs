//! The rules for connections: certificates, accounts, and an account that is removed.

use crate::feed::{Feed, Pace};
use shmcast_testkit::command::{Host, text};
use shmcast_testkit::nats::{Server, program};
use shmcast_testkit::skip;
use shmcast_testkit::turn::turn;
use shmcast_testkit::wait_until;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Makes a certificate and its key. `by` signs a certificate for 127.0.0.1; without `by`, the certificate can sign others. The error says
/// why this is not possible.
fn certificate(dir: &Path, name: &str, by: Option<&str>) -> Result<(), String> {
    let file = |name: &str, kind: &str| dir.join(format!("{name}.{kind}"));
    let mut command = Command::new("openssl");
    command.args("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -days 2 -nodes".split(' '));
    command.args(["-subj", &format!("/CN={name}")]);
    if let Some(by) = by {
        command.args(["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=CA:FALSE"]);
        command.arg("-CA").arg(file(by, "pem")).arg("-CAkey").arg(file(by, "key"));
    }
    command.arg("-keyout").arg(file(name, "key")).arg("-out").arg(file(name, "pem"));
    let output = command.output().map_err(|e| format!("openssl: {e}"))?;
    if output.status.success() { Ok(()) } else { Err(text(&output.stderr)) }
}

#[test]
fn strangers_on_either_side_are_refused_by_a_sentence() {
    let test = "strangers_on_either_side_are_refused_by_a_sentence";
    let (_turn, Some(program)) = (turn(), program(test)) else { return };
    let dir = tempfile::tempdir().unwrap();
    for (name, by) in [("right", None), ("wrong", None), ("server", Some("right"))] {
        if let Err(why) = certificate(dir.path(), name, by) {
            return skip(test, why);
        }
    }
    let pem = |name: &str| dir.path().join(name).display().to_string();
    let more = format!(
        "tls {{ cert_file: \"{}\", key_file: \"{}\" }}\nauthorization {{ user: u, password: secret }}",
        pem("server.pem"),
        pem("server.key")
    );
    let server = Server::with(program, &dir.path().join("n"), &more);
    let url = |account: &str| format!("tls://127.0.0.1:{} {}", server.port, server.account(account));
    let pace = Pace { messages: 20_000, ahead: 20_000, pause: Duration::ZERO, capacity: 16 << 20 };
    let mut feed = Feed::publish(pace);
    feed.compare(|_| false);
    let refused = |host: &Host, arguments: String| {
        let output = host.run(&format!("bridge send ticks --set nats.create=true {arguments}"));
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(!said.contains("secret"), "a password is shown: {said}");
        said
    };
    let said = refused(&feed.near, format!("--nats {} --set nats.ca={}", url("u:secret"), pem("wrong.pem")));
    assert!(said.contains("certificate"), "{said}");
    let said = refused(&feed.near, format!("--nats {} --set nats.ca={}", url("u:guess"), pem("right.pem")));
    assert!(said.contains("authorization"), "{said}");
    let said = refused(&feed.near, format!("--nats {} --set nats.ca={}", url("u:secret"), pem("none.pem")));
    assert!(said.contains("none.pem"), "{said}");
    let nats = format!("{} --set nats.ca={}", url("u:secret"), pem("right.pem"));
    let mut send = feed.send(&format!("--nats {nats} --set nats.create=true"));
    let mut receive = feed.receive(&format!("--nats {nats}"));
    feed.wait_for(pace.messages + 1, &mut [&mut send, &mut receive]);
    // The account is removed. The bridge lives, reports this, and continues when it has the account again.
    server.rewrite(|text| text.replace("password: secret", "password: other"));
    let said = send.wait_for_words("connection");
    server.rewrite(|text| text.replace("password: other", "password: secret"));
    let info = format!("bridge stream info ticks {nats}");
    wait_until("the account", || feed.near.run(&info).status.success());
    send.wait_for_words("connected again");
    let (sent, _) = send.end();
    assert!(sent["send"]["disconnects"].as_u64().unwrap() > 0, "{sent}");
    assert!(!said.contains("secret"), "a password is shown: {said}");
    feed.finish();
}
