//! The receiving end of an engine. One thread has the connection, the reader and the local channel.
//!
//! If the local channel cannot accept a message yet, the message waits at the servers. So a slow receiver delays no other receiver.

use async_nats::jetstream::Message;
use async_nats::jetstream::consumer::pull;
use bytes::Bytes;
use futures_util::StreamExt;
use shmcast::PublisherBuilder;
use shmcast_bridge::local::Local;
use shmcast_bridge::proto::MILLISECOND_NS;
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::spec::{BridgeSpec, GapMode, ReceiveSpec};
use shmcast_bridge::status::{Board, Life, Phase};
use shmcast_bridge::thread::{Clock, SHOW_EVERY_NS, try_cpu};
use shmcast_bridge::times::OriginTimes;
use shmcast_bridge::{KeysSeen, RunningEnd};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::EngineError;
use crate::client::{Inbox, Log};
use crate::inlet::Inlet;
use crate::options::ReceiverOptions;
use crate::outlet::choice_of;
use crate::proto::block::clock_error_of;
use crate::proto::lookup::{Found, LeaderAsks};
use crate::proto::reader::{Ask, Reader, ReaderConfig};
use crate::proto::want::Want;
use crate::send::{checked, open_log};
use crate::state::ReceiveState;
use crate::status::ReceiveCounters;

/// The thread checks the stop flag at least this often.
const LOOK_UP: Duration = Duration::from_millis(20);
/// The interval at which the clocks are read.
const CLOCK_EVERY_NS: u64 = 100 * MILLISECOND_NS;

/// A receiver that stops waits at most this time for a gate that holds messages up.
const LEAVE: Duration = Duration::from_millis(500);

/// The resolution of the runtime's timers.
const TIMER: Duration = Duration::from_millis(1);

/// A running end that receives. Dropping it stops it.
#[derive(Debug)]
pub struct Receiver {
    end: RunningEnd,
    shared: Arc<ReceiveState>,
}

impl Deref for Receiver {
    type Target = RunningEnd;

    fn deref(&self) -> &RunningEnd {
        &self.end
    }
}

impl DerefMut for Receiver {
    fn deref_mut(&mut self) -> &mut RunningEnd {
        &mut self.end
    }
}

impl Receiver {
    /// Connects, finds the stream, opens the channel as its publisher, and starts the thread. If an earlier bridge received the channel,
    /// continues where that bridge stopped. Blocks for some seconds if no server answers.
    ///
    /// # Errors
    /// [`EngineError`]. After an error no thread runs.
    pub fn start(
        spec: &BridgeSpec,
        channel: PublisherBuilder,
        options: ReceiverOptions,
    ) -> Result<Receiver, EngineError> {
        let nats = checked(spec, false)?;
        let receive = spec.receive.clone().unwrap_or_default();
        let (runtime, log) = open_log(spec, nats, &options.stop)?;
        let inbox = runtime.block_on(log.inbox())?;
        let shared = Arc::new(ReceiveState {
            life: Arc::new(Life::new(Vec::new(), choice_of(spec.wait).shown)),
            counters: Board::default(),
            link: log.link.clone(),
            keys: log.keys.clone(),
        });
        // The CPU setting is tried before the channel is opened. If the setting failed later, the channel's readers would notice a
        // publisher that comes and leaves.
        try_cpu(spec.cpu)?;
        let publisher = channel.clone().open()?;
        let ring = publisher.remote_session().map(|session| {
            let session = Session::from_bytes(session);
            shared.life.note_session(session);
            (session, publisher.next_sequence())
        });
        let local = Local::new(publisher, OriginTimes::of(&receive));
        let inlet = Inlet::new(local, channel, options.origins, shared.clone());
        let reader = Reader::new(config_of(&receive), ring);
        let (answer, answers) = unbounded_channel();
        let mut receiving = Receiving {
            log,
            reader,
            inlet,
            follows: None,
            inbox,
            leader: LeaderAsks::default(),
            answer,
            clock: Clock::start(),
            shared: shared.clone(),
            bytes: 0,
            keys: KeysSeen::default(),
            unopened: 0,
            shown_ns: 0,
            looked_ns: 0,
        };
        // No block is accepted before the keys are known.
        receiving.look_at_keys();
        let run = move || {
            runtime.block_on(receiving.run(answers));
            // A lookup of a server's name might still be waiting.
            runtime.shutdown_background();
        };
        let mut end = RunningEnd::new(shared.life.clone(), shared.keys.clone());
        end.spawn(&format!("recv-{}", spec.title()), spec.cpu, run)?;
        Ok(Receiver { end, shared })
    }

    /// The counters, at most some milliseconds old.
    pub fn counters(&self) -> ReceiveCounters {
        self.shared.counters.read()
    }

    /// Returns the reason why the feed stands still or is at risk. The reason is the result of
    /// [`trouble_of_servers`](Self::trouble_of_servers), or a gate of the channel that holds the messages up.
    pub fn trouble(&self) -> Option<String> {
        self.trouble_of_servers().or_else(|| self.shared.life.held_up())
    }

    /// Returns the error of a broken connection. If there is none, returns the reason why the servers put the feed at risk.
    pub fn trouble_of_servers(&self) -> Option<String> {
        self.shared.link.why()
    }
}

fn config_of(receive: &ReceiveSpec) -> ReaderConfig {
    let give_up_ns = match receive.gap {
        GapMode::Skip => Some(receive.give_up_ms.saturating_mul(MILLISECOND_NS)),
        GapMode::Block => None,
    };
    ReaderConfig { from: receive.from, give_up_ns }
}

/// The answer to a request of the reader, with its round.
enum Answer {
    Bounds(u64, (u64, u64)),
    Got(u64, Option<(u64, Bytes)>),
    Follow(u64, Box<pull::Stream>),
    Want(u64, Option<Bytes>),
    /// The leader's block for a request to the writers.
    Leader(u64, Found<Bytes>),
    Failed(u64),
}

/// The state of the thread.
struct Receiving {
    log: Log,
    reader: Reader,
    inlet: Inlet,
    /// The entries that the client delivers, and the round of the reader's request for them.
    follows: Option<(u64, Box<pull::Stream>)>,
    /// The answers of the writers.
    inbox: Inbox,
    leader: LeaderAsks,
    answer: UnboundedSender<Answer>,
    clock: Clock,
    shared: Arc<ReceiveState>,
    bytes: u64,
    keys: KeysSeen,
    /// The number of blocks that could not be opened, at the time of the last report.
    unopened: u64,
    shown_ns: u64,
    looked_ns: u64,
}

impl Receiving {
    async fn run(mut self, mut answers: UnboundedReceiver<Answer>) {
        while !self.shared.life.is_stopping() && self.inlet.local.error.is_none() {
            let now_ns = self.clock.now_ns();
            if now_ns.saturating_sub(self.shown_ns) >= SHOW_EVERY_NS {
                self.shown_ns = now_ns;
                self.inlet.look_for_files();
                self.show();
                self.look_at_keys();
            }
            if self.inlet.is_waiting() {
                self.wait_for_gates().await;
                continue;
            }
            let Receiving { reader, inlet, leader, .. } = &mut self;
            if leader.is_awaited(now_ns) {
                // The reader must not give up messages before the leader has answered, because the leader might have them.
                reader.handle_undelivered(now_ns);
            }
            if let Some((round, ask)) = reader.poll(now_ns, &mut |delivery| inlet.take(delivery)) {
                self.ask(round, ask);
            }
            let due = Duration::from_nanos(self.reader.next_deadline().saturating_sub(now_ns)).min(LOOK_UP);
            tokio::select! {
                biased;
                Some(answer) = answers.recv() => self.take_answer(answer),
                Some((round, block)) = self.inbox.next() => self.take_answer(Answer::Want(round, block)),
                entry = next_entry(&mut self.follows) => self.take_entry(entry),
                () = tokio::time::sleep(due) => {}
            }
        }
        let until = Instant::now() + LEAVE;
        while self.inlet.is_waiting() && self.inlet.local.error.is_none() && Instant::now() < until {
            self.wait_for_gates().await;
        }
        self.show();
        match self.inlet.local.error.take().or_else(|| self.inlet.unpublished()) {
            Some(why) => self.shared.life.fail(why),
            None => self.shared.life.enter(Phase::Ended),
        }
    }

    /// Publishes the messages that a gate of the channel held up. If a gate still holds messages up, waits for a moment. Meanwhile no entry
    /// is taken, so further messages stay at the servers.
    #[cold]
    async fn wait_for_gates(&mut self) {
        self.inlet.catch_up();
        if !self.inlet.is_waiting() {
            return;
        }
        let again = self.inlet.local.try_again_after();
        match again < TIMER {
            true => {
                std::thread::sleep(again);
                tokio::task::yield_now().await;
            }
            false => tokio::time::sleep(again).await,
        }
    }

    /// Reads the keys again if they have changed. Reports blocks that cannot be opened with the keys.
    fn look_at_keys(&mut self) {
        if let Some(ring) = self.keys.changed(&self.shared.keys) {
            self.reader.set_keys(ring, self.log.takes_open);
        }
        let unopened = self.reader.counters().unopened;
        if unopened > std::mem::replace(&mut self.unopened, unopened) {
            self.shared.link.note(format!(
                "{unopened} blocks were not taken: they are sealed with a key that is not in the keys file here, forged, or not sealed"
            ));
        }
    }

    /// Starts a request of the reader. The log's answer arrives through the queue of answers, and a writer's answer arrives at the inbox.
    fn ask(&mut self, round: u64, ask: Ask) {
        if let Ask::Want(want) = ask {
            return self.want(round, want);
        }
        let (log, answer) = (self.log.clone(), self.answer.clone());
        if matches!(ask, Ask::Follow(_)) {
            self.follows = None;
        }
        tokio::spawn(async move {
            let answered = match ask {
                Ask::Bounds => log.bounds().await.map(|bounds| Answer::Bounds(round, bounds)),
                Ask::Get(from) => log.get(from).await.map(|entry| Answer::Got(round, entry)),
                Ask::Follow(from) => {
                    let entries = log.follow(from).await;
                    log.link.followed(&entries);
                    entries.ok().map(|entries| Answer::Follow(round, Box::new(entries)))
                }
                Ask::Want(_) => None,
            };
            // If the thread has ended, nobody takes the answer any more.
            let _ = answer.send(answered.unwrap_or(Answer::Failed(round)));
        });
    }

    /// Asks the writers for missing messages. Also asks the stream's leader, if [`LeaderAsks`] says so.
    fn want(&mut self, round: u64, want: Want) {
        let now_ns = self.clock.now_ns();
        // The reader follows the log no longer. After the hole is closed, it searches the log and follows it again.
        self.follows = None;
        if !self.log.link.is_connected() {
            // Without a connection, nothing is requested: the client would keep all requests, and send them at once after it has connected
            // again.
            return self.reader.handle_undelivered(now_ns);
        }
        let (log, to) = (self.log.clone(), self.inbox.of(round));
        tokio::spawn(async move { log.want(want, to).await });
        if self.leader.begin(now_ns, &want) {
            let (log, answer, offset) = (self.log.clone(), self.answer.clone(), self.reader.bytes_due());
            tokio::spawn(async move {
                let _ = answer.send(Answer::Leader(round, log.leaders_block(want, offset).await));
            });
        }
    }

    fn take_answer(&mut self, answer: Answer) {
        let now_ns = self.clock.now_ns();
        let Receiving { reader, inlet, .. } = self;
        let next = match answer {
            Answer::Bounds(round, bounds) => reader.handle_bounds(now_ns, round, bounds),
            Answer::Got(round, entry) => {
                let entry = entry.as_ref().map(|(sequence, block)| (*sequence, &block[..]));
                reader.handle_get(now_ns, round, entry)
            }
            Answer::Want(round, block) => {
                reader.handle_want(now_ns, round, block.as_deref(), &mut |delivery| inlet.take(delivery));
                None
            }
            Answer::Leader(round, found) => {
                self.leader.end(now_ns, &found);
                // If the leader has no such block, the reader goes on waiting for the writers.
                if let Found::Block(block) = found {
                    reader.handle_want(now_ns, round, Some(&block), &mut |delivery| inlet.take(delivery));
                }
                None
            }
            Answer::Follow(round, entries) => {
                self.follows = Some((round, entries));
                None
            }
            Answer::Failed(round) => {
                reader.handle_failure(now_ns, round);
                None
            }
        };
        if let Some((round, ask)) = next {
            self.ask(round, ask);
        }
    }

    fn take_entry(&mut self, (round, entry): (u64, Option<Message>)) {
        let now_ns = self.clock.now_ns();
        let info = entry.as_ref().and_then(|entry| entry.info().ok());
        let place = info.map(|info| (info.stream_sequence, info.pending));
        let Receiving { reader, inlet, .. } = self;
        match entry.zip(place) {
            Some((entry, (sequence, pending))) => {
                inlet.note_more(pending > 0);
                self.bytes += entry.payload.len() as u64;
                if now_ns.saturating_sub(self.looked_ns) >= CLOCK_EVERY_NS || self.looked_ns == 0 {
                    self.looked_ns = now_ns;
                    inlet.look_at_clocks(clock_error_of(&entry.payload));
                }
                let entry = (sequence, &entry.payload[..]);
                reader.handle_entry(now_ns, round, entry, &mut |delivery| inlet.take(delivery));
            }
            None => {
                self.follows = None;
                reader.handle_failure(now_ns, round);
            }
        }
    }

    fn show(&self) {
        let (reader, inlet, link) = (self.reader.counters(), &self.inlet, &self.shared.link);
        self.shared.life.note_held(inlet.local.held());
        self.shared.counters.show(&ReceiveCounters {
            next_sequence: inlet.next_sequence(),
            messages_published: inlet.local.counts.published,
            messages_missing: inlet.local.counts.missing,
            messages_too_large: inlet.local.counts.too_large,
            messages_held: inlet.messages_held(),
            blocks: reader.blocks,
            bytes: self.bytes,
            damaged: reader.damaged,
            unopened: reader.unopened,
            repeated: reader.repeated,
            chain_breaks: reader.chain_breaks,
            searches: reader.searches,
            ends_moved: reader.ends_moved,
            holes: reader.holes,
            is_mending: u64::from(self.reader.is_waiting_for_mends()),
            mended: reader.mended,
            wanted: reader.wanted,
            given_up: reader.given_up,
            disconnects: link.disconnects(),
            is_connected: u64::from(link.is_connected()),
        });
    }
}

/// Returns the round of the delivery and its next entry; `None` in place of an entry means that the delivery has ended. If nothing is being
/// delivered, waits for ever.
async fn next_entry(follows: &mut Option<(u64, Box<pull::Stream>)>) -> (u64, Option<Message>) {
    match follows {
        Some((round, entries)) => (*round, entries.next().await.and_then(Result::ok)),
        None => std::future::pending().await,
    }
}
