use super::*;
use crate::proto::block::{Cut, Head, Packing, Stream, parse};
use crate::proto::lookup::Found;
use crate::proto::seal::Sealer;
use crate::proto::want::{Want, Wanted};
use futures_util::StreamExt;
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::proto::wire::Meta;
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

/// A writer that was paused sends its append late. Meanwhile the stream was created again, and another writer has appended a block under
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

/// An earlier mistake: the client dropped each answer that came later than 2 s after its request, although the reader takes late answers.
#[test]
fn an_answer_of_a_writer_may_take_as_long_as_it_takes() {
    let test = "an_answer_of_a_writer_may_take_as_long_as_it_takes";
    let Some((_turn, _dir, server)) = shmcast_testkit::nats::alone(test) else { return };
    let nats = NatsSpec { servers: vec![server.url().parse().unwrap()], ..NatsSpec::default() };
    let spec = BridgeSpec { engine: Engine::Nats, nats: Some(nats.clone()), ..BridgeSpec::new("t") };
    let session = Session::of_channel("T", 1).unwrap();
    let want = |first| Want { session, first, wanted: Wanted::Exact(0) };
    let runtime = crate::send::runtime().unwrap();
    let (no_writer, answers) = runtime.block_on(async {
        // The reader and the writer have one connection, so the writer's subscription comes before the reader's requests.
        let log = Log::reach(&spec, &nats).await.unwrap();
        let mut inbox = log.inbox().await.unwrap();
        log.want(want(1), inbox.of(6)).await;
        let no_writer = inbox.next().await.unwrap();
        let mut wants = log.client.subscribe(format!("{}.want", log.subject)).await.unwrap();
        log.want(want(2), inbox.of(7)).await;
        log.want(want(2), inbox.of(8)).await;
        let asked = [wants.next().await.unwrap(), wants.next().await.unwrap()];
        tokio::time::sleep(REQUEST + Duration::from_millis(500)).await;
        for request in &asked {
            assert_eq!(Want::parse(&request.payload), Some(want(2)));
            log.say(request.reply.clone().unwrap(), Bytes::from_static(b"block")).await;
        }
        (no_writer, [inbox.next().await.unwrap(), inbox.next().await.unwrap()])
    });
    let block = Some(Bytes::from_static(b"block"));
    assert_eq!(no_writer, (6, None));
    assert_eq!(answers, [(7, block.clone()), (8, block)]);
}

/// An earlier mistake: if a server had lost the last 256 entries, but still reported the number of the last one, the writer took the log
/// for empty. The writer then continued after its own last block, so the messages of the lost entries were never sent again.
#[test]
fn the_last_block_is_found_before_any_number_of_lost_entries() {
    let test = "the_last_block_is_found_before_any_number_of_lost_entries";
    let Some((_turn, _dir, server)) = shmcast_testkit::nats::alone(test) else { return };
    let servers = vec![server.url().parse().unwrap()];
    let nats = NatsSpec { servers, create: true, ..NatsSpec::default() };
    let (engine, send) = (Engine::Nats, Some(SendSpec::default()));
    let spec = BridgeSpec { engine, nats: Some(nats.clone()), send, ..BridgeSpec::new("t") };
    let session = Session::of_channel("T", 1).unwrap();
    let runtime = crate::send::runtime().unwrap();
    let last = runtime.block_on(async {
        let log = Log::open(&spec, &nats).await.unwrap();
        for number in 0..MOST_DAMAGED + 4 {
            let id = BlockId { writer: 1, number: number + 1 };
            let head = Head::new(Stream::of_session(session), session, id);
            let (block, _) = Cut::takeover(number + 1).finish(head, &Sealer::default());
            let answer = log.append_if(number, (None, Some(id)), Bytes::from(block)).await.unwrap();
            assert_eq!(answer.await.unwrap().sequence, number + 1);
        }
        for number in 3..=MOST_DAMAGED + 4 {
            assert!(log.stream.delete_message(number).await.unwrap());
        }
        log.last().await.unwrap()
    });
    assert_eq!((last.sequence, last.head.map(|head| head.first)), (MOST_DAMAGED + 4, Some(2)));
}

/// An earlier mistake: if a request of the search got no answer, the search concluded that the leader has no such block.
#[test]
fn a_leader_that_does_not_answer_is_not_one_that_has_nothing() {
    let nats = NatsSpec { servers: vec![silent_server().parse().unwrap()], ..NatsSpec::default() };
    let spec = BridgeSpec { engine: Engine::Nats, nats: Some(nats.clone()), ..BridgeSpec::new("t") };
    let want = Want { session: Session::of_channel("T", 1).unwrap(), first: 1, wanted: Wanted::Exact(0) };
    let found = crate::send::runtime().unwrap().block_on(async {
        let log = Log::reach(&spec, &nats).await.unwrap();
        log.leaders_block(want, 0).await
    });
    assert_eq!(found, Found::Unknown);
}

#[test]
fn the_leader_gives_the_block_that_answers_a_request() {
    let test = "the_leader_gives_the_block_that_answers_a_request";
    let Some((_turn, _dir, server)) = shmcast_testkit::nats::alone(test) else { return };
    let servers = vec![server.url().parse().unwrap()];
    let nats = NatsSpec { servers, create: true, ..NatsSpec::default() };
    let (engine, send) = (Engine::Nats, Some(SendSpec::default()));
    let spec = BridgeSpec { engine, nats: Some(nats.clone()), send, ..BridgeSpec::new("t") };
    let session = Session::of_channel("T", 1).unwrap();
    let runtime = crate::send::runtime().unwrap();
    let found = |first| {
        runtime.block_on(async {
            // This client has not learned yet that a single server keeps the stream.
            let log = Log::reach(&spec, &nats).await.unwrap();
            match log.leaders_block(Want { session, first, wanted: Wanted::Exact(0) }, 0).await {
                Found::Block(block) => parse(&block).ok().map(|(head, _)| head.first..head.end()),
                Found::Nothing => None,
                Found::Unknown => panic!("the server did not answer"),
            }
        })
    };
    runtime.block_on(async {
        let log = Log::open(&spec, &nats).await.unwrap();
        for number in 0..20 {
            let (id, mut packing) = (BlockId { writer: 1, number: number + 1 }, Packing::new(1 << 10));
            let head = Head::new(Stream::of_session(session), session, id);
            for sequence in 10 * number + 1..=10 * number + 10 {
                assert!(packing.push(sequence, b"m", Meta::default()));
            }
            let (block, _) = packing.cut().unwrap().finish(head, &Sealer::default());
            log.append_if(number, (None, Some(id)), Bytes::from(block)).await.unwrap().await.unwrap();
        }
        assert!(log.stream.delete_message(8).await.unwrap());
    });
    assert_eq!((found(1), found(70), found(200)), (Some(1..11), Some(61..71), Some(191..201)));
    assert_eq!((found(71), found(80), found(201)), (None, None, None));
}
