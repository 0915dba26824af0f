use super::*;
use shmcast_bridge::spec::{Engine, SendSpec};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::time::Instant;

/// A server that greets and answers pings, and answers nothing else.
pub(crate) fn silent_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("nats://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let info = r#"{"server_id":"S","version":"2.10.0","headers":true,"max_payload":1048576,"proto":1}"#;
        write!(stream, "INFO {info}\r\n").unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap()).split(b'\n');
        for line in lines.map_while(Result::ok) {
            if line.starts_with(b"PING") && stream.write_all(b"PONG\r\n").is_err() {
                break;
            }
        }
    });
    url
}

/// The client library has one time limit for requests and for answers to appends. An earlier mistake: the limit for requests also ended the
/// wait for an append's answer.
#[test]
fn an_answer_to_an_append_may_take_as_long_as_the_spec_says() {
    let nats =
        NatsSpec { servers: vec![silent_server().parse().unwrap()], ack_ms: 3_000, ..NatsSpec::default() };
    let (engine, send) = (Engine::Nats, Some(SendSpec::default()));
    let spec = BridgeSpec { engine, nats: Some(nats.clone()), send, ..BridgeSpec::new("t") };
    let runtime = crate::send::runtime().unwrap();
    let (error, took) = runtime.block_on(async {
        let log = Log::reach(&spec, &nats).await.unwrap();
        let answer = log.append_if(0, (None, None), Bytes::from_static(b"block")).await.unwrap();
        let asked = Instant::now();
        (answer.await.unwrap_err(), asked.elapsed())
    });
    assert_eq!(trouble_of(&error), Trouble::Silent);
    assert!(took >= Duration::from_millis(2_900), "{took:?}");
}

/// A writer that stood still sends its append late. Meanwhile the stream was created again, and another writer has appended a block under
/// the same number.
#[test]
fn a_late_append_is_stored_behind_no_other_block_than_its_own() {
    let test = "a_late_append_is_stored_behind_no_other_block_than_its_own";
    let Some((_turn, _dir, mut server)) = shmcast_testkit::nats::alone(test) else { return };
    let nats = NatsSpec {
        servers: vec![server.url().parse().unwrap()],
        create: true,
        ack_ms: 30_000,
        ..NatsSpec::default()
    };
    let (engine, send) = (Engine::Nats, Some(SendSpec::default()));
    let spec = BridgeSpec { engine, nats: Some(nats.clone()), send, ..BridgeSpec::new("t") };
    let runtime = crate::send::runtime().unwrap();
    let log = runtime.block_on(Log::open(&spec, &nats)).unwrap();
    let of = |writer, number| BlockId { writer, number };
    runtime.block_on(log.last());
    let append = |after, behind, id: BlockId| {
        let block = Bytes::from(id.to_string());
        runtime.block_on(async {
            let answer = log.append_if(after, (behind, Some(id)), block).await?;
            answer.await.map(|ack| ack.sequence).map_err(|e| trouble_of(&e))
        })
    };
    assert_eq!(append(0, None, of(1, 1)), Ok(1));
    assert_eq!(append(0, None, of(1, 1)), Err(Trouble::Refused), "a block is stored once");
    assert_eq!(append(1, Some(of(1, 1)), of(1, 2)), Ok(2));
    let last = runtime.block_on(log.last()).unwrap();
    assert_eq!((last.sequence, last.id, last.head), (2, Some(of(1, 2)), None));
    assert!(runtime.block_on(log.remove()).unwrap());
    runtime.block_on(log.create(&nats, None)).unwrap();
    assert_eq!(append(0, None, of(9, 1)), Ok(1));
    assert_eq!(append(1, Some(of(9, 1)), of(9, 2)), Ok(2));
    assert_eq!(append(2, Some(of(1, 2)), of(1, 3)), Err(Trouble::Refused));
    assert_eq!(append(1, Some(of(9, 2)), of(9, 3)), Err(Trouble::Refused));
    // A server that was restarted knows the name of the last entry.
    server.kill();
    server.start();
    shmcast_testkit::wait_until("an append", || append(2, Some(of(9, 2)), of(9, 3)) == Ok(3));
    assert_eq!(append(3, Some(of(1, 3)), of(1, 4)), Err(Trouble::Refused));
}
