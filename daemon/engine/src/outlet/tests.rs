//! Tests of senders of one channel, with one log in memory. A test itself runs the turns of each sender's thread.

use super::*;
use crate::proto::block::{Body, Kind, Stream, parse};
use crate::proto::seal::Opener;
use crate::proto::writer::{Append, Last, Trouble};
use crate::status::Link;
use shmcast::Publisher;
use shmcast_bridge::Keys;
use shmcast_bridge::spec::{NatsSpec, SendSpec};
use shmcast_bridge::status::Life;
use shmcast_testkit::wait_until;
use std::sync::mpsc::{Sender, channel};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Messages: the sequence and the payload of each.
type Messages = Vec<(u64, Vec<u8>)>;

/// A log in memory, and the faults of its servers.
#[derive(Default)]
struct Log {
    blocks: Vec<Append>,
    /// Whether the servers are away.
    is_away: bool,
    /// The number of further appends that are stored. The append after them is refused because the servers are busy.
    busy_after: Option<usize>,
}

impl Log {
    fn append(&mut self, append: Append) -> Result<u64, Trouble> {
        if self.is_away {
            return Err(Trouble::Disconnected);
        }
        if let Some(left) = &mut self.busy_after {
            if *left == 0 {
                self.busy_after = None;
                return Err(Trouble::Busy);
            }
            *left -= 1;
        }
        if append.after != self.blocks.len() as u64 {
            return Err(Trouble::Refused);
        }
        self.blocks.push(append);
        Ok(self.blocks.len() as u64)
    }

    fn last(&self, stream: Stream) -> Option<Last> {
        let mut last = Last::new(self.blocks.len() as u64);
        let mut opener = Opener::default();
        for (at, append) in self.blocks.iter().enumerate().rev() {
            if last.look((at as u64 + 1, Some(append.id)), &append.block, &mut opener) {
                break;
            }
        }
        let had = |append: &Append| parse(&append.block).unwrap().0.stream == stream;
        last.had_ours = self.blocks.iter().any(had);
        (!self.is_away).then_some(last)
    }

    /// The sessions of the log in their order, each with the sequence and the payload of its messages.
    fn sessions(&self) -> Vec<(Session, Messages)> {
        let mut sessions: Vec<(Session, Messages)> = Vec::new();
        for append in &self.blocks {
            let (head, body) = parse(&append.block).unwrap();
            if sessions.last().is_none_or(|(session, _)| *session != head.session) {
                sessions.push((head.session, Vec::new()));
            }
            assert_ne!(head.kind, Kind::Gap, "nothing was lost");
            if let Body::Messages(messages) = body {
                let (_, found) = sessions.last_mut().unwrap();
                found.extend(messages.messages().map(|message| (message.sequence, message.data.to_vec())));
            }
        }
        sessions
    }

    /// Whether the log has exactly these sessions. Each has the messages from its first sequence on, with the payload of [`payload`].
    fn has(&self, expected: &[(u8, std::ops::RangeInclusive<u64>)]) -> bool {
        let found: Vec<_> = self.sessions().into_iter().map(|(_, messages)| messages).collect();
        let expected = expected.iter().map(|(life, range)| {
            range.clone().map(|sequence| (sequence, payload(*life, sequence))).collect::<Vec<_>>()
        });
        found == expected.collect::<Vec<_>>()
    }
}

/// A sender: its thread, and the ends of its queues.
struct End {
    outlet: Outlet,
    orders: UnboundedReceiver<Order>,
    replies: Sender<Reply>,
}

impl End {
    fn new(dir: &std::path::Path) -> End {
        let nats = NatsSpec { block_bytes: 1 << 10, in_flight: 1, ..NatsSpec::default() };
        let send = SendSpec { from: shmcast_bridge::spec::StartAt::Oldest, ..SendSpec::default() };
        let spec = BridgeSpec { nats: Some(nats), send: Some(send), ..BridgeSpec::new("t") };
        let life = Arc::new(Life::new(Vec::new(), choice_of(spec.wait).shown));
        let keys = Arc::new(Keys::open(&spec).unwrap());
        let shared = Arc::new(SendState::new(life, Arc::new(Link::default()), keys));
        let ((order, orders), (replies, reply)) = (unbounded_channel(), channel());
        let builder = Subscriber::builder("t").dir(dir);
        let options = SenderOptions::default();
        let outlet = Outlet::open(&spec, builder, options, (order, reply), Clock::start(), shared).unwrap();
        End { outlet, orders, replies }
    }

    /// Runs one turn of the thread, and answers its orders.
    fn turn(&mut self, log: &mut Log) {
        self.outlet.turn().unwrap();
        while let Ok(order) = self.orders.try_recv() {
            let answer = match order {
                Order::Append(append) => {
                    let (round, at_ns) = (append.round, append.at_ns);
                    Reply::Ack(round, at_ns, log.append(append))
                }
                Order::Last(round, stream) => Reply::Last(round, log.last(stream)),
                Order::Pulse(..) | Order::Answer(..) => continue,
            };
            self.replies.send(answer).unwrap();
        }
    }

    fn run_until(&mut self, log: &mut Log, what: &str, is_so: impl Fn(&End, &Log) -> bool) {
        wait_until(what, || {
            self.turn(log);
            is_so(self, log)
        });
    }
}

fn payload(life: u8, sequence: u64) -> Vec<u8> {
    let mut payload = vec![life; 200];
    payload[..8].copy_from_slice(&sequence.to_be_bytes());
    payload
}

/// Publishes messages, with the payload of [`payload`].
fn publish(publisher: &mut Publisher, life: u8, count: u64) {
    for _ in 0..count {
        let next = publisher.next_sequence();
        publisher.publish(&payload(life, next)).unwrap();
    }
}

fn publisher(dir: &std::path::Path) -> shmcast::PublisherBuilder {
    Publisher::builder("t").dir(dir).capacity(1 << 20)
}

/// An earlier mistake: after the outage, the sender attached to the new ring by name, and wrote its messages into the session of the
/// earlier ring.
#[test]
fn a_channel_made_anew_while_the_servers_are_away_keeps_its_sessions_apart() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = publisher(dir.path()).open().unwrap();
    publish(&mut first, 1, 3);
    let (mut log, mut end) = (Log::default(), End::new(dir.path()));
    end.run_until(&mut log, "the first messages", |_, log| log.has(&[(1, 1..=3)]));
    log.is_away = true;
    publish(&mut first, 1, 50);
    end.run_until(&mut log, "trouble", |end, _| end.outlet.writer.state() == State::Resync);
    first.leave_open();
    let mut second = publisher(dir.path()).anew().open().unwrap();
    publish(&mut second, 2, 500);
    log.is_away = false;
    end.run_until(&mut log, "both sessions", |_, log| log.has(&[(1, 1..=53), (2, 1..=500)]));
    assert_eq!(end.outlet.cutter.messages_missed, 0);
}

/// An earlier mistake: when the channel was created again, messages that had been read but were not in a block yet were dropped.
#[test]
fn the_last_messages_of_a_ring_are_sent_before_the_next_ring() {
    for has_trouble in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let mut first = publisher(dir.path()).open().unwrap();
        publish(&mut first, 1, 3);
        let (mut log, mut end) = (Log::default(), End::new(dir.path()));
        end.run_until(&mut log, "the first messages", |_, log| log.has(&[(1, 1..=3)]));
        publish(&mut first, 1, 8);
        first.leave_open();
        let mut second = publisher(dir.path()).anew().open().unwrap();
        publish(&mut second, 2, 5);
        log.busy_after = has_trouble.then_some(1);
        end.run_until(&mut log, "both sessions", |_, log| log.has(&[(1, 1..=11), (2, 1..=5)]));
    }
}

/// An earlier mistake: the next session of a ring waits until the previous session's last block is stored. If the append of this block
/// failed, the block was dropped.
#[test]
fn a_block_that_fails_before_the_next_session_is_appended_again() {
    let dir = tempfile::tempdir().unwrap();
    let session = |epoch| Session::of_channel("T", epoch).unwrap();
    for busy_after in 0..4 {
        let mut publisher = publisher(dir.path()).anew().open().unwrap();
        publisher.session(*session(1).as_bytes()).unwrap();
        publish(&mut publisher, 1, 3);
        let (mut log, mut end) = (Log::default(), End::new(dir.path()));
        end.run_until(&mut log, "the first messages", |_, log| log.has(&[(1, 1..=3)]));
        publish(&mut publisher, 1, 8);
        publisher.session(*session(2).as_bytes()).unwrap();
        publish(&mut publisher, 2, 5);
        log.busy_after = Some(busy_after);
        end.run_until(&mut log, "both sessions", |_, log| log.has(&[(1, 1..=11), (2, 12..=16)]));
        assert_eq!(log.sessions().iter().map(|(of, _)| *of).collect::<Vec<_>>(), [session(1), session(2)]);
    }
}

/// An earlier mistake: when the writing sender began the next session, the waiting sender ended with the wrong error that two publishers
/// write one channel.
#[test]
fn a_sender_that_waits_follows_its_channel_to_the_next_ring() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = publisher(dir.path()).open().unwrap();
    publish(&mut first, 1, 3);
    let (mut log, mut writes) = (Log::default(), End::new(dir.path()));
    writes.run_until(&mut log, "the first messages", |_, log| log.has(&[(1, 1..=3)]));
    let mut waits = End::new(dir.path());
    let is_fenced = |end: &End, _: &Log| matches!(end.outlet.writer.state(), State::Fenced(_));
    waits.run_until(&mut log, "a sender that waits", is_fenced);
    first.leave_open();
    let mut second = publisher(dir.path()).anew().open().unwrap();
    publish(&mut second, 2, 5);
    writes.run_until(&mut log, "both sessions", |_, log| log.has(&[(1, 1..=3), (2, 1..=5)]));
    let carried = writes.outlet.writer.stream();
    waits.run_until(&mut log, "the next session", |end, log| {
        end.outlet.writer.stream() == carried && is_fenced(end, log)
    });
    // From here on, the sender that wrote so far runs no more.
    publish(&mut second, 2, 4);
    waits.run_until(&mut log, "a takeover", |_, log| log.has(&[(1, 1..=3), (2, 1..=9)]));
}

/// The writing sender ends before its first block of the next session. The other sender then writes the rest of the previous session.
#[test]
fn a_sender_that_takes_over_writes_the_rest_of_the_ring_before() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = publisher(dir.path()).open().unwrap();
    publish(&mut first, 1, 3);
    let (mut log, mut writes) = (Log::default(), End::new(dir.path()));
    writes.run_until(&mut log, "the first messages", |_, log| log.has(&[(1, 1..=3)]));
    let mut waits = End::new(dir.path());
    let is_fenced = |end: &End, _: &Log| matches!(end.outlet.writer.state(), State::Fenced(_));
    waits.run_until(&mut log, "a sender that waits", is_fenced);
    publish(&mut first, 1, 20);
    first.leave_open();
    let mut second = publisher(dir.path()).anew().open().unwrap();
    publish(&mut second, 2, 40);
    waits.run_until(&mut log, "a takeover", |_, log| log.has(&[(1, 1..=23), (2, 1..=40)]));
}
