//! The rate of a channel through servers of NATS beside the rate of their bare client, in turns.
//!
//! Each lap plays both. The bare client appends blocks of zeros of the same size, each only behind the one before it, with
//! as many without an answer. The sender of a channel sends a ring that is full. Both are timed by the servers' own clock,
//! from the first block in the stream to the last one, so neither connecting nor mapping the ring counts. The figures are
//! bytes of blocks: a block of the channel holds some 900 messages of 64 B.

use async_nats::jetstream::stream::{Config, StorageType, Stream};
use async_nats::jetstream::{self, Context};
use async_nats::{HeaderMap, ServerAddr};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use shmcast::{Preparation, Publisher, Subscriber};
use shmcast_bridge::spec::{BridgeSpec, Engine, NatsSpec, SendSpec, StartAt};
use shmcast_engine::{Sender, SenderOptions};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::servers::Servers;
use crate::{Words, median};

const CHANNEL: &str = "rate";
/// All of the ring is mapped when it is opened, as that of a bridge that has run for a while is.
const MAPPED: Preparation = Preparation { prefault: true, ..Preparation::NONE };

/// The settings of a measurement.
struct Plan {
    server: PathBuf,
    servers: usize,
    message_bytes: usize,
    payload: u64,
    block_bytes: usize,
    in_flight: usize,
    laps: usize,
    /// Whether the servers have CPU 1, and both clients CPU 0.
    apart: bool,
}

impl Plan {
    fn of(words: &Words) -> Plan {
        Plan {
            server: words.server(),
            servers: words.number("--servers", 1),
            message_bytes: words.number("--size", 64),
            payload: words.number("--payload", 256 << 20),
            block_bytes: words.number("--block", 64 << 10),
            in_flight: words.number("--in-flight", 32),
            laps: words.number("--laps", 5),
            apart: words.has("--apart"),
        }
    }

    fn messages(&self) -> u64 {
        self.payload / self.message_bytes as u64
    }
}

async fn connect(urls: &[String]) -> Context {
    let servers: Vec<ServerAddr> = urls.iter().map(|url| url.parse().unwrap()).collect();
    loop {
        match async_nats::connect(servers.clone()).await {
            Ok(client) => return jetstream::new(client),
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Makes a stream, once the servers have elected one that decides.
async fn make(context: &Context, name: &str, subject: &str, copies: usize) -> Stream {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let config = Config {
            name: name.to_owned(),
            subjects: vec![subject.to_owned()],
            storage: StorageType::File,
            num_replicas: copies,
            ..Config::default()
        };
        match context.create_stream(config).await {
            Ok(stream) => return stream,
            Err(e) if Instant::now() > deadline => panic!("{e}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}

/// Bytes of blocks a second by the servers' clock, and how many blocks.
async fn rate(stream: &mut Stream) -> (f64, u64) {
    let state = stream.info().await.unwrap().state.clone();
    let first = stream.get_raw_message(state.first_sequence).await.unwrap();
    let last = stream.get_raw_message(state.last_sequence).await.unwrap();
    let seconds = (last.time - first.time).as_seconds_f64();
    let bytes = (state.messages - 1) as f64 * first.payload.len() as f64;
    (bytes / seconds, state.messages)
}

/// The loop of the bare client.
async fn bare(context: &Context, plan: &Plan, blocks: u64) -> (f64, u64) {
    let mut stream = make(context, "BARE", "bare", plan.servers).await;
    let block = Bytes::from(vec![0; plan.block_bytes]);
    let mut flights = FuturesOrdered::new();
    for after in 0..blocks {
        if flights.len() == plan.in_flight {
            let answer: Result<jetstream::publish::PublishAck, _> = flights.next().await.unwrap();
            answer.unwrap();
        }
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Expected-Last-Sequence", after.to_string().as_str());
        let answer = context.publish_with_headers("bare", headers, block.clone()).await.unwrap();
        flights.push_back(answer.into_future());
    }
    while let Some(answer) = flights.next().await {
        answer.unwrap();
    }
    let found = rate(&mut stream).await;
    context.delete_stream("BARE").await.unwrap();
    found
}

/// A channel whose ring is full.
async fn channel(context: &Context, plan: &Plan, urls: &[String], dir: &Path) -> (f64, u64) {
    let nats = NatsSpec {
        servers: crate::servers::addresses(urls),
        block_bytes: plan.block_bytes,
        in_flight: plan.in_flight,
        ..NatsSpec::default()
    };
    let mut stream = make(context, "SHMCAST_rate", "shmcast.rate", plan.servers).await;
    let send = SendSpec { from: StartAt::Oldest, ..SendSpec::default() };
    let spec =
        BridgeSpec { engine: Engine::Nats, nats: Some(nats), send: Some(send), ..BridgeSpec::new(CHANNEL) };
    let builder = Subscriber::builder(CHANNEL).dir(dir);
    let mut sender =
        tokio::task::spawn_blocking(move || Sender::start(&spec, builder, SenderOptions::default()))
            .await
            .unwrap()
            .unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    while sender.counters().stored != plan.messages() + 1 {
        assert!(Instant::now() < deadline, "{:?} {:?}", sender.counters(), sender.life().error());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let counters = sender.counters();
    // Blocks that were cut again after a standstill count again.
    assert!(counters.messages >= plan.messages(), "a message was left out: {counters:?}");
    assert_eq!(counters.messages_missed, 0, "each message");
    sender.stop();
    sender.join();
    drop(sender);
    let found = rate(&mut stream).await;
    context.delete_stream("SHMCAST_rate").await.unwrap();
    found
}

pub(crate) fn run(words: &Words) {
    let plan = Plan::of(words);
    if plan.apart {
        // Threads that are started later have the same CPU.
        shmcast::pin_current_thread(0).unwrap();
    }
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(play(plan));
}

async fn play(plan: Plan) {
    let dir = tempfile::tempdir().unwrap();
    let servers = Servers::start(&plan.server, plan.servers, dir.path(), plan.apart.then_some(1));
    let urls = servers.urls();
    let rings = tempfile::tempdir_in("/dev/shm").unwrap();
    let record = (plan.message_bytes + 24).next_multiple_of(32) as u64 + 64;
    let capacity = (plan.messages() * record).next_power_of_two();
    let builder = Publisher::builder(CHANNEL).dir(rings.path()).capacity(capacity);
    let mut publisher = builder.prepare(MAPPED).open().unwrap();
    let body = vec![7; plan.message_bytes];
    for _ in 0..plan.messages() {
        publisher.publish(&body).unwrap();
    }
    let context = connect(&urls).await;
    let per_block = (plan.block_bytes as u64 - 96) / (plan.message_bytes as u64 + 3);
    let blocks = plan.messages().div_ceil(per_block);
    println!(
        "{} servers{}, {} messages of {} B, blocks of {} B, {} in flight, {} laps",
        plan.servers,
        if plan.apart { " on a CPU of their own" } else { "" },
        plan.messages(),
        plan.message_bytes,
        plan.block_bytes,
        plan.in_flight,
        plan.laps
    );
    let (mut ratios, mut ours) = (Vec::new(), Vec::new());
    for lap in 0..plan.laps {
        let mut found = [(0.0, 0); 2];
        for turn in 0..2 {
            // Each lap begins with the other one.
            let which = (lap + turn) % 2;
            found[which] = match which {
                0 => bare(&context, &plan, blocks).await,
                _ => channel(&context, &plan, &urls, rings.path()).await,
            };
        }
        let [(bare, _), (channel, blocks)] = found;
        let per_second = plan.messages() as f64 / blocks as f64 * channel / plan.block_bytes as f64;
        println!(
            "bare {:6.1} MB/s, channel {:6.1} MB/s, {:5.2} M msg/s, ratio {:.3}",
            bare / 1e6,
            channel / 1e6,
            per_second / 1e6,
            channel / bare
        );
        ratios.push(channel / bare);
        ours.push(per_second / 1e6);
    }
    println!("median {:5.2} M msg/s, ratio {:.3}", median(ours), median(ratios));
}
