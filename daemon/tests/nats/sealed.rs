//! Sealed blocks: the operators of the servers can neither read nor write them.

use crate::feed::{Feed, Pace};
use shmcast_testkit::command::{Host, text};
use shmcast_testkit::nats::alone;
use std::fs;
use std::path::Path;

const PACE: Pace = Pace {
    messages: 20_000,
    ahead: 20_000,
    pause: std::time::Duration::from_micros(500),
    capacity: 16 << 20,
};

/// Whether any file below a directory has these bytes.
fn is_stored(dir: &Path, what: &[u8]) -> bool {
    fs::read_dir(dir).unwrap().flatten().any(|entry| match entry.file_type().unwrap().is_dir() {
        true => is_stored(&entry.path(), what),
        false => fs::read(entry.path()).unwrap_or_default().windows(what.len()).any(|part| part == what),
    })
}

#[test]
fn sealed_blocks_are_read_with_their_keys_alone() {
    let test = "sealed_blocks_are_read_with_their_keys_alone";
    let Some((_turn, dir, server)) = alone(test) else { return };
    let mut feed = Feed::publish(PACE);
    feed.compare(|_| false);
    let file = |name: &str| dir.path().join(name).display().to_string();
    for name in ["right.keys", "wrong.keys"] {
        assert!(feed.near.run(&format!("bridge key new {}", file(name))).status.success());
    }
    let nats = server.url();
    let mut send =
        feed.send(&format!("--nats {nats} --set nats.create=true --set keys={}", file("right.keys")));
    let mut receive = feed.receive(&format!("--nats {nats} --set keys={}", file("right.keys")));
    feed.wait_for(PACE.messages / 2, &mut [&mut send, &mut receive]);
    // Without a key, nobody gets a message, and nobody writes one.
    let strangers = [
        (Host::new(), format!("--nats {nats}")),
        (Host::new(), format!("--nats {nats} --set keys={}", file("wrong.keys"))),
    ];
    for (stranger, with) in &strangers {
        let mut bridge = feed.receive_on(stranger, with);
        bridge.wait_for_words("blocks were not taken");
        let (received, _) = bridge.end();
        assert_eq!(received["receive"]["messages_published"], 0, "{received}");
    }
    let output = strangers[0]
        .0
        .run(&format!("bridge stream verify ticks {nats} --set keys={} --json", file("wrong.keys")));
    assert_eq!(output.status.code(), Some(4), "{}", text(&output.stderr));
    feed.wait_for(PACE.messages + 1, &mut [&mut send, &mut receive]);
    let (received, _) = receive.end();
    assert_eq!(received["receive"]["unopened"], 0, "{received}");
    send.end();
    let open = feed.near.run(&format!("bridge send ticks --nats {nats} --until-end"));
    let said = text(&open.stderr);
    assert!(open.status.code() == Some(1) && said.contains("sealed"), "{said}");
    for keys in [String::new(), format!("--set keys={}", file("right.keys"))] {
        let found = feed.near.json(&format!("bridge stream verify ticks {nats} {keys} --json"));
        assert_eq!(
            (&found["messages"], found["sealed"] == found["blocks"]),
            (&PACE.messages.into(), true),
            "{found}"
        );
    }
    // No file of the server has the published bytes.
    let content = crate::feed::Content::new(crate::feed::Sizes::Short);
    let sample = (1..).map(|sequence| content.of(sequence).0).find(|bytes| bytes.len() > 40).unwrap();
    assert!(!is_stored(&dir.path().join("store"), &sample[..32]));
    feed.finish();
}
