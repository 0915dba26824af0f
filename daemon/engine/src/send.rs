//! The sending end: its start, its three threads, and its counters.
//!
//! | thread | task |
//! |---|---|
//! | `send-NAME` | reads the ring and decides what to append ([`outlet`](crate::outlet)) |
//! | `nats-NAME` | has the connection; executes the orders of the other threads and returns the answers |
//! | `mend-NAME` | answers requests for missing messages ([`mending`](crate::outlet::mending)) |
//!
//! Messages pass from the ring to the servers without a lock. The publisher waits for none of these threads, unless the sender takes a
//! gate.

use async_nats::{Subject, Subscriber as Subscription};
use bytes::Bytes;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use shmcast::SubscriberBuilder;
use shmcast_bridge::proto::counters::Histogram;
use shmcast_bridge::spec::{BridgeSpec, Direction, NatsSpec};
use shmcast_bridge::status::Life;
use shmcast_bridge::thread::Clock;
use shmcast_bridge::{BridgeError, RunningEnd};
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::oneshot;

use crate::EngineError;
use crate::client::Log;
use crate::messages::{Order, Reply};
use crate::options::SenderOptions;
use crate::outlet::mending::Mending;
use crate::outlet::{Outlet, SILENCE_NS, choice_of, random};
use crate::proto::requests::MOST_WAITING;
use crate::proto::want::Want;
use crate::proto::writer::{Append, LOOK_NS, Trouble};
use crate::state::SendState;
use crate::status::SendCounters;

/// A running end that sends. Dropping it stops it.
#[derive(Debug)]
pub struct Sender {
    end: RunningEnd,
    shared: Arc<SendState>,
}

impl Deref for Sender {
    type Target = RunningEnd;

    fn deref(&self) -> &RunningEnd {
        &self.end
    }
}

impl DerefMut for Sender {
    fn deref_mut(&mut self) -> &mut RunningEnd {
        &mut self.end
    }
}

impl Sender {
    /// Connects, finds the stream, attaches to the channel and starts the threads. Blocks for some seconds if no server answers.
    ///
    /// `channel` says where the channel is. Its [`history`](SubscriberBuilder::history) says where the channel's journal is.
    ///
    /// # Errors
    /// [`EngineError`]. After an error no thread runs.
    pub fn start(
        spec: &BridgeSpec,
        channel: SubscriberBuilder,
        options: SenderOptions,
    ) -> Result<Sender, EngineError> {
        let nats = checked(spec, true)?;
        let (runtime, log) = open_log(spec, nats, &options.stop)?;
        let life = Arc::new(Life::new(Vec::new(), choice_of(spec.wait).shown));
        let shared = Arc::new(SendState::new(life, log.link.clone(), log.keys.clone()));
        let clock = Clock::start();
        let (order, orders) = unbounded_channel();
        let (reply, replies) = mpsc::channel();
        let (want, wants) = mpsc::sync_channel(MOST_WAITING);
        let mending = Mending {
            channel: channel.clone(),
            block_bytes: nats.block_bytes,
            writer: random()?,
            wants,
            orders: order.clone(),
            shared: shared.clone(),
        };
        let outlet = Outlet::open(spec, channel, options, (order, replies), clock, shared.clone())?;
        let (title, own) = (spec.title(), outlet.id());
        let end = RunningEnd::new(shared.life.clone(), shared.keys.clone());
        let mut sender = Sender { end, shared: shared.clone() };
        let (running, over) = oneshot::channel::<()>();
        let serve = move || {
            runtime.block_on(async {
                // When the ring's thread ends, this thread stops serving at once, even in the middle of a wait.
                tokio::select! {
                    _ = serve(log, orders, reply, want, clock, shared, own) => {}
                    _ = over => {}
                }
            });
            // A lookup of a server's name might still be waiting.
            runtime.shutdown_background();
        };
        sender.end.spawn(&format!("nats-{title}"), None, serve)?;
        sender.end.spawn(&format!("mend-{title}"), None, move || mending.run())?;
        let send = move || {
            let _running = running;
            outlet.run();
        };
        sender.end.spawn(&format!("send-{title}"), spec.cpu, send)?;
        Ok(sender)
    }

    /// Tells the sender to send the remaining messages of the ring, and then to stop. The sender stops after five seconds in any case. The
    /// session does not end.
    pub fn leave(&self) {
        self.shared.leave.store(true, Ordering::Relaxed);
    }

    /// Orders a waiting bridge to write. A bridge waits because another bridge writes, or because the last block cannot be opened.
    pub fn take_over(&self) {
        self.shared.takes_over.store(true, Ordering::Relaxed);
    }

    /// The counters, at most some milliseconds old.
    pub fn counters(&self) -> SendCounters {
        self.shared.counters.read()
    }

    /// The durations from an append to its answer.
    pub fn acks(&self) -> Histogram {
        self.shared.acks.read()
    }

    /// Returns the error of a broken connection. If there is none, returns the reason why the feed stands still or is at risk, or why the
    /// sender does not write.
    pub fn trouble(&self) -> Option<String> {
        self.shared.link.why().or_else(|| self.shared.shut_out())
    }
}

/// Checks that the spec is valid and has this direction. Returns its engine's settings.
pub(crate) fn checked(spec: &BridgeSpec, sends: bool) -> Result<&NatsSpec, EngineError> {
    let mut problems = spec.problems();
    let is_right = match spec.direction() {
        Some(Direction::Send(_)) => sends,
        Some(Direction::Receive(_)) => !sends,
        None => true,
    };
    if !is_right {
        problems.push((if sends { "send" } else { "receive" }, "this bridge goes the other way".to_owned()));
    }
    match spec.nats() {
        Some(nats) if problems.is_empty() => Ok(nats),
        _ => {
            let problems = problems.into_iter().map(|(field, what)| format!("{field}: {what}")).collect();
            Err(BridgeError::Spec { bridge: spec.title().to_owned(), problems }.into())
        }
    }
}

/// Makes a single-threaded runtime for one connection.
pub(crate) fn runtime() -> Result<Runtime, EngineError> {
    Builder::new_current_thread().enable_all().build().map_err(|e| BridgeError::Start(e).into())
}

/// Makes a runtime, connects, and finds the stream. Fails with [`EngineError::Stopped`] once `stop` is not 0.
pub(crate) fn open_log(
    spec: &BridgeSpec,
    nats: &NatsSpec,
    stop: &AtomicUsize,
) -> Result<(Runtime, Log), EngineError> {
    let runtime = runtime()?;
    let is_stopped = async {
        while stop.load(Ordering::Relaxed) == 0 {
            tokio::time::sleep(STOP_EVERY).await;
        }
    };
    let opened = runtime.block_on(async {
        tokio::select! {
            opened = Log::open(spec, nats) => opened,
            () = is_stopped => Err(EngineError::Stopped),
        }
    });
    match opened {
        Ok(log) => Ok((runtime, log)),
        Err(e) => {
            // A lookup of a server's name might still be waiting.
            runtime.shutdown_background();
            Err(e)
        }
    }
}

/// The interval at which a start checks whether it must stop.
const STOP_EVERY: Duration = Duration::from_millis(20);

/// The required prefix of the subject to which a request wants its answer. Without this limit, a request could name the stream's own
/// subject, and the answer would be appended to the stream.
const INBOX: &str = "_INBOX.";
/// The thread drops an append that is older than this time. Such an age means that the process was paused, so another writer might have
/// taken over.
const STALE_NS: u64 = SILENCE_NS / 2;

/// The answer to an append: the append's round, and a result. The result is the number of the block's entry, or an error.
type Answer = (u64, Result<u64, Trouble>);
type Flights = FuturesUnordered<Pin<Box<dyn Future<Output = Answer> + Send>>>;

/// Carries out orders until no thread is left that can give orders.
async fn serve(
    log: Log,
    mut orders: UnboundedReceiver<Order>,
    replies: mpsc::Sender<Reply>,
    asked: mpsc::SyncSender<(Want, Subject)>,
    clock: Clock,
    shared: Arc<SendState>,
    own: u64,
) -> Option<()> {
    let subscribe = |what| log.client.subscribe(format!("{}.{what}", log.subject));
    let (mut pulses, mut wants): (Subscription, Subscription) =
        (subscribe("pulse").await.ok()?, subscribe("want").await.ok()?);
    let (mut flights, mut heed_ns) = (Flights::new(), 0);
    loop {
        tokio::select! {
            order = orders.recv() => carry_out(&log, order?, &replies, &mut flights, &clock).await,
            Some(first) = flights.next() => {
                for (round, answer) in all_there(&mut flights, first) {
                    replies.send(Reply::Ack(round, clock.now_ns(), answer)).ok()?;
                }
            }
            Some(pulse) = pulses.next() => {
                let writer = parse_pulse(&pulse.payload).filter(|writer| *writer != own);
                if let Some(writer) = writer.filter(|_| heeds(clock.now_ns(), &mut heed_ns)) {
                    replies.send(Reply::Pulse(writer)).ok()?;
                }
            }
            Some(message) = wants.next() => {
                let to = message.reply.filter(|to| to.starts_with(INBOX));
                if let (Some(want), Some(to)) = (Want::parse(&message.payload), to) {
                    shared.wanted.fetch_add(1, Ordering::Relaxed);
                    // If there is no room for the request, its reader asks again.
                    let _ = asked.try_send((want, to));
                }
            }
        }
    }
}

/// Whether a pulse of another writer is passed on. Anybody can send pulses at any rate, so at most one is passed on in a quarter of
/// [`LOOK_NS`].
fn heeds(now_ns: u64, heed_ns: &mut u64) -> bool {
    let is_due = now_ns >= *heed_ns;
    if is_due {
        *heed_ns = now_ns + LOOK_NS / 4;
    }
    is_due
}

/// Returns all answers that are available. Successful answers of one round are merged into one answer with the highest number, so that the
/// thread that reads the ring wakes once for many blocks.
fn all_there(flights: &mut Flights, first: Answer) -> Vec<Answer> {
    let mut answers = vec![first];
    while let Some(Some(next)) = flights.next().now_or_never() {
        match (answers.last_mut(), next) {
            (Some((round, Ok(last))), (of, Ok(number))) if *round == of => *last = number.max(*last),
            (_, next) => answers.push(next),
        }
    }
    answers
}

async fn carry_out(
    log: &Log,
    order: Order,
    replies: &mpsc::Sender<Reply>,
    flights: &mut Flights,
    clock: &Clock,
) {
    match order {
        Order::Append(Append { round, at_ns, .. }) if clock.now_ns().saturating_sub(at_ns) > STALE_NS => {
            flights.push(Box::pin(std::future::ready((round, Err(Trouble::Silent)))));
        }
        Order::Append(Append { round, after, behind, id, block, .. }) => {
            match log.append_if(after, (behind, Some(id)), block).await {
                Ok(answer) => {
                    let log = log.clone();
                    flights.push(Box::pin(async move {
                        let answer = answer.await.map(|ack| ack.sequence).map_err(|e| log.met(&e));
                        if answer.is_ok() {
                            log.link.taken();
                        }
                        (round, answer)
                    }));
                }
                Err(trouble) => flights.push(Box::pin(std::future::ready((round, Err(trouble))))),
            }
        }
        Order::Last(round, stream) => {
            let (log, replies) = (log.clone(), replies.clone());
            tokio::spawn(async move {
                // If the other thread has ended, nobody takes the reply any more.
                let _ = replies.send(Reply::Last(round, log.last_for(stream).await));
            });
        }
        Order::Pulse(writer, looks) => {
            if looks {
                let log = log.clone();
                tokio::spawn(async move { log.look_at_copies().await });
            }
            let subject = format!("{}.pulse", log.subject);
            log.say(subject, pulse(writer)).await;
        }
        Order::Answer(to, block) => log.say(to, Bytes::from(block)).await,
    }
}

const PULSE_HEAD: &[u8; 8] = b"SHMP\x01\0\0\0";

/// Makes the pulse of a writer: `magic "SHMP" | version u8 | 0 x 3 | writer u64`.
fn pulse(writer: u64) -> Bytes {
    Bytes::from([&PULSE_HEAD[..], &writer.to_be_bytes()].concat())
}

fn parse_pulse(bytes: &[u8]) -> Option<u64> {
    let writer = bytes.strip_prefix(&PULSE_HEAD[..])?;
    Some(u64::from_be_bytes(writer.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::tests::silent_server;
    use crate::proto::block::BlockId;
    use shmcast_bridge::spec::{Engine, SendSpec};
    use std::time::Duration;

    /// A test for an earlier mistake: the thread with the connection waited for room among the unanswered appends, and took no answers
    /// during this wait. So the wait never ended.
    #[test]
    fn appends_that_nobody_answers_hold_up_neither_the_next_ones_nor_the_end() {
        let servers = vec![silent_server().parse().unwrap()];
        let nats = NatsSpec { servers, ..NatsSpec::default() };
        let (engine, send) = (Engine::Nats, Some(SendSpec::default()));
        let spec = BridgeSpec { engine, nats: Some(nats.clone()), send, ..BridgeSpec::new("t") };
        let (clock, runtime) = (Clock::start(), runtime().unwrap());
        let (order, orders) = unbounded_channel();
        let (reply, replies) = mpsc::channel();
        let (want, _wants) = mpsc::sync_channel(1);
        let appends = 100 * nats.in_flight as u64;
        for number in 1..=appends {
            let (id, block) = (BlockId { writer: 1, number }, Bytes::from_static(b"block"));
            let append = Append { round: 1, at_ns: clock.now_ns(), after: 0, behind: None, id, block };
            assert!(order.send(Order::Append(append)).is_ok());
        }
        drop(order);
        let is_over = runtime.block_on(async {
            let log = Log::reach(&spec, &nats).await.unwrap();
            let shared = SendState::new(
                Arc::new(Life::new(Vec::new(), choice_of(spec.wait).shown)),
                log.link.clone(),
                log.keys.clone(),
            );
            let serving = serve(log, orders, reply, want, clock, Arc::new(shared), 1);
            tokio::time::timeout(Duration::from_secs(60), serving).await
        });
        assert!(is_over.is_ok(), "it waits for ever");
        let troubles = replies.try_iter().filter(|reply| matches!(reply, Reply::Ack(_, _, Err(_)))).count();
        assert!(troubles > 0, "the ring's thread is told of appends that found no room");
    }

    #[test]
    fn of_a_flood_of_pulses_few_are_passed_on() {
        let mut heed_ns = 0;
        let passed = (0..1_000_000).filter(|us| heeds(us * 1_000, &mut heed_ns)).count();
        assert_eq!(passed, 16, "in a second");
    }

    #[test]
    fn bytes_of_a_pulse_are_fixed() {
        let bytes = pulse(0x0102);
        assert_eq!(&bytes[..], b"SHMP\x01\0\0\0\0\0\0\0\0\0\x01\x02");
        assert_eq!(parse_pulse(&bytes), Some(0x0102));
        assert_eq!((parse_pulse(&bytes[1..]), parse_pulse(&bytes[..15])), (None, None));
    }
}
