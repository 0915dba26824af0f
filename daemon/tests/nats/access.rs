//! The permissions that the guide gives, and the findings of `shmcast bridge check` about a server, an account and a stream.

use crate::feed::{Feed, Pace};
use serde_json::Value;
use shmcast_testkit::command::{Host, text};
use shmcast_testkit::nats::{Server, alone, program};
use shmcast_testkit::turn::turn;
use std::time::Duration;

const PACE: Pace =
    Pace { messages: 20_000, ahead: 20_000, pause: Duration::from_micros(500), capacity: 16 << 20 };

/// The block of permissions of the guide that begins with `name: {`.
fn permissions(name: &str) -> String {
    let guide = include_str!("../../docs/guide/src/sites.md");
    let begin = guide.find(&format!("\n{name}: {{")).expect("the guide has these permissions") + 1;
    let block = &guide[begin..];
    let block = &block[..block.find("\n}").expect("the block ends") + 2];
    block.split_once(": ").unwrap().1.to_owned()
}

/// The subjects to which these permissions allow to publish, and those to which they allow to subscribe.
pub(crate) fn allowed(name: &str) -> [Vec<String>; 2] {
    let all = permissions(name);
    ["publish: [", "subscribe: ["].map(|word| {
        let list = &all[all.find(word).unwrap() + word.len()..];
        let list = &list[..list.find(']').unwrap()];
        list.split(',').map(|subject| subject.trim().trim_matches('"').to_owned()).collect()
    })
}

/// A server with the accounts of the guide, an account without restrictions, and a receiver's account of an earlier version. Such an account
/// is not allowed to ask the leader for messages.
fn server(program: &std::path::Path, dir: &std::path::Path) -> Server {
    let user = |name: &str| format!("{{ user: {name}, password: p, permissions: {} }}", permissions(name));
    let all = "{ user: admin, password: p }";
    let right = "\"$JS.API.STREAM.MSG.GET.SHMCAST_ticks\", ";
    let receiver = user("receiver");
    assert!(receiver.contains(right), "{receiver}");
    let earlier = receiver.replace(right, "").replace("user: receiver", "user: earlier");
    let more = format!("authorization {{ users: [ {}, {receiver}, {earlier}, {all} ] }}", user("sender"));
    Server::with(program, dir, &more)
}

/// Runs a check. Returns each finding's name and status, and the exit code, which shows the worst finding.
fn check(host: &Host, config: &str) -> (Vec<(String, String, String)>, Option<i32>) {
    let file = host.file("shmcast.toml", config.as_bytes());
    let output = host.run(&format!("bridge check {} --json", file.display()));
    let found: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(&output.stderr)));
    let word = |finding: &Value, name: &str| finding[name].as_str().unwrap().to_owned();
    let found = found.as_array().unwrap().iter();
    (
        found.map(|it| (word(it, "about"), word(it, "status"), word(it, "says"))).collect(),
        output.status.code(),
    )
}

fn config(server: &str, direction: &str, more: &str) -> String {
    format!(
        "[[channel]]\nname = \"ticks\"\ncapacity = \"16MiB\"\n[[bridge]]\nchannel = \"ticks\"\nengine = \"nats\"\n\
         nats = {{ servers = [\"{server}\"]{more} }}\n{direction} = {{}}\n"
    )
}

#[test]
fn the_permissions_of_the_guide_are_enough_and_no_more() {
    let test = "the_permissions_of_the_guide_are_enough_and_no_more";
    let (_turn, Some(program)) = (turn(), program(test)) else { return };
    let dir = tempfile::tempdir().unwrap();
    let server = server(program, dir.path());
    let mut feed = Feed::publish(PACE);
    feed.compare(|_| false);
    let create = feed.near.run(&format!("bridge stream create ticks {}", server.address_of("admin:p")));
    assert!(create.status.success(), "{}", text(&create.stderr));
    let mut send = feed.send(&format!("--nats {}", server.address_of("sender:p")));
    let mut receive = feed.receive(&format!("--nats {}", server.address_of("receiver:p")));
    feed.wait_for(PACE.messages + 1, &mut [&mut send, &mut receive]);
    for bridge in [send, receive] {
        let (_, said) = bridge.end();
        assert!(!said.contains("ermissions"), "an account is refused something: {said}");
    }
    // The check finds no fault in either account, and names what a receiver's account is not allowed to do as a sender.
    for (user, direction) in [("sender", "send"), ("receiver", "receive")] {
        let (found, _) = check(&feed.near, &config(&server.url_of(&format!("{user}:p")), direction, ""));
        let bad: Vec<_> =
            found.iter().filter(|(about, status, _)| status != "ok" && about != "clock").collect();
        assert!(bad.is_empty() && found.len() > 4, "{found:?}");
    }
    let (found, code) = check(&feed.near, &config(&server.url_of("earlier:p"), "receive", ""));
    let said = found.iter().find(|(about, ..)| about == "mend").unwrap();
    assert!(said.1 == "doubtful" && said.2.contains("$JS.API.STREAM.MSG.GET.SHMCAST_ticks"), "{found:?}");
    assert_eq!(code, Some(3), "one copy is kept, so the right is not needed yet: {found:?}");
    let (found, code) = check(&feed.near, &config(&server.url_of("receiver:p"), "send", ""));
    let failed =
        |about: &str| found.iter().find(|(name, ..)| name == about).map(|(_, status, _)| status.clone());
    assert_eq!((failed("append").as_deref(), code), (Some("fails"), Some(1)), "{found:?}");
    // The append that the check tries is not stored.
    let found =
        feed.near.json(&format!("bridge stream verify ticks {} --json", server.address_of("admin:p")));
    assert_eq!(
        (&found["messages"], &found["damaged"]),
        (&PACE.messages.into(), &Value::Array(vec![])),
        "{found}"
    );
    feed.finish();
}

#[test]
fn a_check_names_what_cannot_work() {
    let test = "a_check_names_what_cannot_work";
    let Some((_turn, _dir, server)) = alone(test) else { return };
    let host = Host::new();
    let url = server.url();
    let says = |config: String, about: &str| {
        let (found, code) = check(&host, &config);
        let said = found.iter().find(|(name, status, _)| name == about && status == "fails");
        assert_eq!(code, Some(1), "{found:?}");
        said.unwrap_or_else(|| panic!("nothing fails about {about}: {found:?}")).2.clone()
    };
    let said = says(config(&url, "send", ""), "stream");
    assert!(said.contains("shmcast bridge stream create ticks"), "{said}");
    let (found, _) = check(&host, &config(&url, "send", ", create = true"));
    assert!(found.iter().all(|(_, status, _)| status != "fails"), "the bridge makes its stream: {found:?}");
    assert!(says(config("nats://127.0.0.1:1", "send", ""), "server 127.0.0.1:1").contains("127.0.0.1:1"));
    let said = says(config(&url, "send", ", ca = \"/none.pem\", creds = \"/none.creds\""), "ca");
    assert!(said.contains("/none.pem"), "{said}");
    let said =
        says(config(&url, "send", ", block_bytes = 2000000"), &format!("server 127.0.0.1:{}", server.port));
    assert!(said.contains("max_payload"), "{said}");
    // This stream was made for another purpose.
    let made = host.run(&format!("bridge stream create ticks {url} --set nats.subject=other"));
    assert!(made.status.success(), "{}", text(&made.stderr));
    let said = says(config(&url, "send", ""), "stream");
    assert!(said.contains("other") && said.contains("shmcast.ticks"), "{said}");
}

#[test]
fn a_check_names_the_losses_that_settings_make_possible() {
    let test = "a_check_names_the_losses_that_settings_make_possible";
    let Some((_turn, _dir, server)) = alone(test) else { return };
    let host = Host::new();
    let url = server.url();
    let made = host.run(&format!("bridge stream create ticks {url} --set nats.keep_s=5"));
    assert!(made.status.success(), "{}", text(&made.stderr));
    let found = |about: &str| {
        let (found, _) = check(&host, &config(&url, "send", ""));
        let it = found.iter().find(|(name, ..)| name == about);
        it.map(|(_, status, says)| (status.clone(), says.clone())).unwrap_or_else(|| panic!("{found:?}"))
    };
    let (status, says) = found("loss by limits");
    assert!(status == "doubtful" && says.contains("max_age = 5s"), "{status} {says}");
    let (status, says) = found("loss of a copy");
    assert!(status == "ok" && says.contains("one copy"), "{status} {says}");
    let (status, says) = found("loss of power");
    assert!(status == "ok" && says.contains("sync_interval: always"), "{status} {says}");
}
