//! The numbers and names of SPEC.md and CONTROL.md, compared with the code.

use serde::Serialize;
use shmcast_layout::control::{
    GateTerms, Generation, History, Promotion, RefusalCode, Request, Required, Response, VERSION, decode,
    encode,
};
use shmcast_layout::journal;
use shmcast_layout::layout::charter;
use shmcast_layout::layout::header;
use shmcast_layout::layout::reader_page::bucket;
use std::path::Path;

fn document(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

/// The value of `"request"` or `"reply"` in a message.
fn name_of(message: &impl Serialize, field: &str) -> String {
    serde_json::to_value(message).unwrap()[field].as_str().unwrap().to_owned()
}

#[test]
fn every_message_and_refusal_stands_in_the_document() {
    let control = document("CONTROL.md");
    let channel = || "t".to_owned();
    let requests = [
        Request::Hello { version: VERSION },
        Request::Publish { channel: channel(), resume: false, anew: false, required: Required::default() },
        Request::Mapped {},
        Request::Gates {},
        Request::Gate { gate: "g".to_owned() },
        Request::Subscribe { channel: channel(), resume: false, park: false, hidden: false, watch: false },
        Request::List {},
        Request::Stat { channel: channel() },
        Request::Bridges {},
        Request::BridgeTakeOver { bridge: "b".to_owned() },
        Request::BridgePromote { channel: channel(), force: true },
        Request::Events { last: 0 },
        Request::TakeOver { channel: channel() },
        Request::History { channel: channel(), stream: None, sequence: None, time_ns: None, read: None },
    ];
    for request in requests {
        let name = name_of(&request, "request");
        assert!(control.contains(&format!("`{name}`")), "{name}");
    }
    let generation = Generation { generation: 1, first: 1, restarted: 1, strict: false, journal: true };
    let replies = [
        Response::Welcome { version: VERSION, instance: 1 },
        Response::Starting {},
        Response::Publishing { generation: 1, gates: 2 },
        Response::Gate(GateTerms { gate: String::new(), lag_bytes: 1, wait_ns: 1, refuse: true }),
        Response::Subscribed(generation),
        Response::Done {},
        Response::Refused { code: RefusalCode::Busy, why: String::new() },
        Response::Promoted(Promotion { session: String::new(), from: 1, to: 1 }),
        Response::Moved(generation),
        Response::PublisherGone { generation: 1, epoch: 1 },
        Response::CutOff {},
        Response::History(History { file: 1, first: 1, offset: 4096, recording: true }),
    ];
    for reply in replies {
        let name = name_of(&reply, "reply");
        assert!(control.contains(&format!("`{name}`")), "{name}");
        for field in serde_json::to_value(&reply).unwrap().as_object().unwrap().keys() {
            assert!(control.contains(&format!("`{field}`")), "{field} of {name}");
        }
    }
    use RefusalCode::{
        BadRequest, Busy, Denied, Failed, Limit, NoJournal, UnknownChannel, UnknownGate, Version,
    };
    for refusal in [Version, UnknownChannel, Denied, Busy, Limit, BadRequest, Failed, NoJournal, UnknownGate]
    {
        assert!(control.contains(&format!("| `{}` |", refusal.name())), "{}", refusal.name());
    }
}

#[test]
fn the_conversation_of_the_document_is_one() {
    let control = document("CONTROL.md");
    let said = |mark: &'static str| {
        control.lines().filter_map(move |line| line.strip_prefix(mark)?.strip_prefix(' ').map(str::to_owned))
    };
    let requests: Vec<Request> =
        said(">").map(|line| decode(line.as_bytes()).unwrap_or_else(|e| panic!("{line}: {e}"))).collect();
    assert_eq!(requests[0], Request::Hello { version: VERSION });
    assert!(matches!(requests[1], Request::Subscribe { .. }));
    let replies: Vec<Response> = said("<")
        .map(|line| {
            let json = line.split_once("  ").map_or(&*line, |(json, _)| json);
            decode(json.as_bytes()).unwrap_or_else(|e| panic!("{line}: {e}"))
        })
        .collect();
    assert!(matches!(requests[2], Request::History { sequence: Some(_), time_ns: None, .. }));
    let [Response::Welcome { version: VERSION, .. }, Response::Subscribed(_), Response::History(_)] =
        replies[..]
    else {
        panic!("{replies:?}")
    };
    // Without the fields that have a default, a request is the same.
    let short = br#"{"request":"subscribe","channel":"t","resume":false,"park":false}"#;
    assert!(decode::<Request>(short).is_ok());
    assert!(encode(&requests[1]).len() < 65_536);
}

/// SPEC.md once spoke of layout 1.0 when the code had 2.0.
#[test]
fn a_version_that_a_document_has_wrong() {
    let (major, minor) = (header::VERSION.0, header::MINOR_WITH_BOARD);
    let spec = document("SPEC.md");
    assert!(spec.contains(&format!("a shmcast segment: layout {major}.{minor}.")));
    assert!(spec.contains(&format!("| the major version is {major};")));
    let (major, minor) = journal::VERSION;
    assert!(document("JOURNAL.md").starts_with(&format!("# Format of a journal, version {major}.{minor}\n")));
}

#[test]
fn buckets_and_slots_are_where_the_documents_put_them() {
    let formula = |v: u64| match v {
        0..32 => v as usize,
        _ => {
            let o = v.ilog2() - 4;
            (16 * (u64::from(o) + 1) + ((v >> o) & 15)).min(479) as usize
        }
    };
    for shift in 0..64 {
        for v in [(1u64 << shift) - 1, 1 << shift, (1 << shift) + (1 << shift) / 3] {
            assert_eq!(bucket(v), formula(v), "{v}");
        }
    }
    for generation in [1, 31, 32, 33, 1000] {
        assert_eq!(charter::slot(generation), 512 + 16 * (generation as usize % 32));
    }
    assert_eq!(charter::BYTES, 8192);
    assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
}
