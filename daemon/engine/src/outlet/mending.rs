//! The thread that answers requests for missing messages. It reads the messages from the ring or from the channel's journal.
//!
//! The thread has a short queue and uses at most half of a CPU, so a flood of requests does not delay the feed. If the queue is full, a
//! request is dropped, and the reader sends this request again. Of the requests of one reader, the thread answers only the newest, because a
//! reader repeats each request until it has an answer.

use async_nats::Subject;
use shmcast::journal::Cause;
use shmcast::{Event, Lapped, Preparation, Start, StreamId, SubscriberBuilder};
use shmcast_bridge::KeysSeen;
use shmcast_bridge::proto::wire::Meta;
use shmcast_bridge::thread::wall_ns;
use shmcast_bridge::times::Moment;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedSender;

use super::clock_error;
use crate::messages::Order;
use crate::proto::block::{Cut, Packing, max_whole_bytes};
use crate::proto::mutant::{Mutant, is};
use crate::proto::requests::Requests;
use crate::proto::want::{Answerer, Want, Wanted};
use crate::state::SendState;

/// The longest time for which the thread searches for the messages of one answer, and the longest pause after an answer.
const PATIENCE: Duration = Duration::from_millis(200);
/// The thread checks at least this often whether the sender has ended.
const LOOK_UP: Duration = Duration::from_millis(20);

/// The state of the thread that answers requests for missing messages.
pub(crate) struct Mending {
    pub(crate) channel: SubscriberBuilder,
    pub(crate) block_bytes: usize,
    /// The writer number in this thread's blocks. No other writer has this number.
    pub(crate) writer: u64,
    pub(crate) wants: Receiver<(Want, Subject)>,
    pub(crate) orders: UnboundedSender<Order>,
    pub(crate) shared: Arc<SendState>,
}

impl Mending {
    pub(crate) fn run(self) {
        let (mut answers, mut keys) = (Answerer::new(self.writer), KeysSeen::default());
        let mut requests = Requests::default();
        while !self.shared.is_over.load(Ordering::Relaxed) {
            if requests.is_empty() {
                match self.wants.recv_timeout(LOOK_UP) {
                    Ok((want, to)) => requests.add(want, to),
                    Err(RecvTimeoutError::Timeout) => continue,
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
            // While the thread made the last answer, readers can have repeated their requests or sent new ones.
            self.wants.try_iter().for_each(|(want, to)| requests.add(want, to));
            let Some((want, to)) = requests.take() else { continue };
            let began = Instant::now();
            if let Some(ring) = keys.changed(&self.shared.keys) {
                answers.set_key(ring.as_ref().and_then(|ring| ring.sealing(wall_ns())));
            }
            let carried = self.shared.carried().filter(|(carried, _)| carried.session == want.session);
            if let Some((carried, of_ring)) = carried
                && !is(Mutant::LossUnseen)
                && let Some(cut) = cut_for(&self.channel, of_ring, &want, self.block_bytes)
            {
                let block = answers.answer(carried, cut, clock_error());
                // This cannot fail: the thread that takes the orders lives as long as the sender.
                let _ = self.orders.send(Order::Answer(to, block));
            }
            std::thread::sleep(began.elapsed().min(PATIENCE));
        }
    }
}

/// Makes a block that begins with the first requested sequence that this host has. Returns `None` if this host has none of the requested
/// sequences, if these are not published yet, or if the search takes too long. Another sender might have the messages.
///
/// Also returns `None` if the channel no longer has the stream `of_ring`. In the channel's new stream, the same sequences belong to other
/// messages.
fn cut_for(channel: &SubscriberBuilder, of_ring: StreamId, want: &Want, block_bytes: usize) -> Option<Cut> {
    // The ring's memory is not prepared here, because that would take several milliseconds for each 64 MiB at each answer.
    let channel = channel.clone().page(false).prepare(Preparation::NONE);
    let mut past = channel.start(Start::Sequence(want.first)).open().ok()?;
    if !past.header().stream.is(of_ring) {
        return None;
    }
    let mut moment = Moment::now(past.clock());
    let deadline = Instant::now() + PATIENCE;
    let mut packing = Packing::new(block_bytes);
    let mut first = want.first;
    loop {
        moment = moment.on(past.clock());
        let is_in_ring = past.is_in_ring();
        let (event, past_ns) = match past.try_recv_dated() {
            Ok(Some(dated)) => dated,
            // The journal can need some time to return an event, so try again. In the ring, no event means that the message is not
            // published yet.
            Ok(None) if packing.is_empty() && !is_in_ring && Instant::now() < deadline => {
                std::thread::yield_now();
                continue;
            }
            _ => break,
        };
        match event {
            Event::Message(message) => {
                let time_ns = past_ns.unwrap_or_else(|| moment.wall_of(message.time));
                let meta = Meta { tag: message.tag, key: message.key, time_ns };
                let due = packing.next().unwrap_or(first);
                if message.sequence != due {
                    break;
                }
                if packing.is_empty() && message.payload.len() > max_whole_bytes(block_bytes) {
                    let offset = match want.wanted {
                        Wanted::Exact(offset) => (offset as usize).min(message.payload.len() - 1),
                        Wanted::Any(_) => 0,
                    };
                    return Some(Cut::part(message.sequence, message.payload, meta, offset, block_bytes));
                }
                if !packing.push(message.sequence, message.payload, meta) {
                    break;
                }
            }
            Event::Gap { from, to } | Event::Lost { from, to, cause: Cause::Reserve }
                if packing.is_empty() =>
            {
                return (from..=to).contains(&first).then(|| Cut::gap(first, to));
            }
            event if is_end(&event) || !packing.is_empty() => break,
            // This ring has lost the message, but another sender might have it. If the request allows later messages, the answer begins
            // with the next message of this ring.
            Event::Lapped(Lapped { resumed_at: next, .. }) if next <= want.last() => first = next,
            Event::Lost { to, .. } if to < want.last() => first = to + 1,
            Event::Lapped(_) | Event::Lost { .. } => break,
            _ => {}
        }
    }
    packing.cut()
}

/// Whether an event means that later sequences belong to another stream. [`Event::End`] does not, because the next publisher continues the
/// same stream.
fn is_end(event: &Event<'_>) -> bool {
    matches!(event, Event::Restarted | Event::NewSession { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::block::{Carried, Stream, parse};
    use crate::proto::requests::MOST_WAITING;
    use crate::status::Link;
    use shmcast::{Directory, Publisher, Subscriber};
    use shmcast_bridge::Keys;
    use shmcast_bridge::proto::session::Session;
    use shmcast_bridge::spec::BridgeSpec;
    use shmcast_bridge::status::Life;
    use std::path::Path;
    use std::sync::mpsc::sync_channel;
    use tokio::sync::mpsc::unbounded_channel;

    fn publisher(dir: &Path, messages: usize) -> Publisher {
        let mut publisher = Publisher::builder("t").dir(dir).capacity(64 << 10).open().unwrap();
        publisher.publish_batch(vec![b"x"; messages]).unwrap();
        publisher
    }

    /// The present stream of a publisher.
    fn carried(publisher: &Publisher) -> (Carried, StreamId) {
        let of_ring = publisher.header().stream;
        let session = Session::of_channel("T", 1).unwrap();
        (Carried { stream: Stream(of_ring.to_bytes()), session }, of_ring)
    }

    /// Runs the thread with requests for single messages of `carried`. Each request has the wanted sequence and the subject for the answer.
    /// Returns the subject and the block of each answer.
    fn answer(
        dir: &Path,
        (carried, of_ring): (Carried, StreamId),
        asked: &[(u64, &str)],
    ) -> Vec<(String, Vec<u8>)> {
        let (want, wants) = sync_channel(MOST_WAITING);
        let (orders, mut given) = unbounded_channel();
        let spec = BridgeSpec::new("t");
        let keys = Arc::new(Keys::open(&spec).unwrap());
        let life = Arc::new(Life::new(Vec::new(), super::super::choice_of(spec.wait).shown));
        let shared = Arc::new(SendState::new(life, Arc::new(Link::default()), keys));
        shared.note_carried(carried, of_ring);
        let channel = Subscriber::builder("t").dir(dir);
        for (first, to) in asked {
            let wanted = Want { session: carried.session, first: *first, wanted: Wanted::Exact(0) };
            want.send((wanted, (*to).into())).unwrap();
        }
        drop(want);
        Mending { channel, block_bytes: 1 << 10, writer: 1, wants, orders, shared }.run();
        let answers = std::iter::from_fn(|| given.try_recv().ok());
        answers
            .map(|order| match order {
                Order::Answer(to, block) => (to.to_string(), block),
                _ => panic!("the thread gives another order"),
            })
            .collect()
    }

    /// An earlier mistake: each repetition of a request got its own answer, in order. If an answer took longer than a reader's pause
    /// between two repetitions, the reader had given up each request before its answer arrived.
    #[test]
    fn a_request_that_was_repeated_often_has_one_answer_and_it_is_to_the_last_one() {
        let dir = tempfile::tempdir().unwrap();
        let publisher = publisher(dir.path(), 400);
        let subjects: Vec<_> = (0..MOST_WAITING).map(|round| format!("_INBOX.a.{round}")).collect();
        let asked: Vec<_> = subjects.iter().map(|to| (1, &to[..])).collect();
        let answers = answer(dir.path(), carried(&publisher), &asked);
        assert_eq!(answers.iter().map(|(to, _)| to).collect::<Vec<_>>(), vec![subjects.last().unwrap()]);
    }

    /// An earlier mistake: a subscriber's count of unread messages can be up to 64 too low, and the thread answered no request for a
    /// message above this count.
    #[test]
    fn the_last_messages_of_a_quiet_channel_are_sent_too() {
        let dir = tempfile::tempdir().unwrap();
        let publisher = publisher(dir.path(), 10);
        let asked = [(5, "_INBOX.a.1"), (10, "_INBOX.b.1"), (11, "_INBOX.c.1"), (12, "_INBOX.d.1")];
        let answers = answer(dir.path(), carried(&publisher), &asked);
        let firsts = answers.iter().map(|(_, block)| parse(block).unwrap().0.first);
        assert_eq!(firsts.collect::<Vec<_>>(), [5, 10]);
    }

    /// An earlier mistake: a channel was created again, and a reader of the old channel sent a request. The answer had messages of the new
    /// channel, because the thread that reads the ring had not noticed the new channel yet.
    #[test]
    fn a_channel_that_was_made_anew_answers_no_request_for_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let asked = [(1, "_INBOX.1")];
        let first = publisher(dir.path(), 400);
        let before = carried(&first);
        assert_eq!(answer(dir.path(), before, &asked).len(), 1);
        first.close();
        Directory::at(dir.path()).remove("t").unwrap();
        let second = publisher(dir.path(), 400);
        assert!(answer(dir.path(), before, &asked).is_empty());
        assert_eq!(answer(dir.path(), carried(&second), &asked).len(), 1);
    }
}
