//! One story of the simulation: the actors, the network between them, the faults, and the judge.

mod faults;
mod judge;
mod sender;

use fastrand::Rng;
use shmcast_bridge::proto::native::keys::Keyring;
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::proto::{MILLISECOND_NS, SECOND_NS};
use std::collections::HashSet;

use super::Report;
use super::ends::{Channel, Ring};
use super::fake::Log;
use super::scenario::{BLOCK_BYTES, TROUBLED_NS};
use crate::proto::block::{Packing, Stream};
use crate::proto::reader::{Ask, Delivery, Reader, ReaderConfig};
use crate::proto::writer::{Append, Last, Resume, State, Trouble, Writer, WriterConfig};
use sender::Answers;

/// By this time, all messages must have arrived.
const END_NS: u64 = 60 * SECOND_NS;
const STREAM: Stream = Stream([5; 16]);

enum Event {
    Append(Append),
    Acked(u64, Result<u64, Trouble>),
    AskLast(u64),
    Last(u64, Last),
    Asked(u64, Ask),
    Bounds(u64, (u64, u64)),
    Got(u64, Option<(u64, Vec<u8>)>),
    Entry(u64, (u64, Vec<u8>)),
    Answer(u64, Option<Vec<u8>>),
}

struct WriterActor {
    writer: Writer,
    packing: Packing,
    next: u64,
    offset: usize,
    /// The time at which the last append arrives at the log. A connection keeps the order of appends.
    line_ns: u64,
    /// The time until which the writer's process is stopped.
    awake_ns: u64,
    /// The time since which the writer cannot open the log's last block.
    shut_ns: Option<u64>,
}

impl WriterActor {
    /// Returns the time at which an append arrives: at `at_ns`, but after the previous append.
    fn line_up(&mut self, at_ns: u64) -> u64 {
        self.line_ns = at_ns.max(self.line_ns + 1);
        self.line_ns
    }
}

/// The number and the CRC of a last block.
type End = (u64, Option<u32>);

/// The state of a story.
pub(super) struct World {
    rng: Rng,
    now_ns: u64,
    channel: Channel,
    log: Log,
    /// Deliveries on their way. Each has the time of its arrival, the life of the actor that sent or receives it, and its content.
    events: Vec<(u64, u64, Event)>,
    writers: [Option<WriterActor>; 2],
    /// The answers of writers to the reader's requests.
    answers: Answers,
    reader: Option<Reader>,
    /// The time at which a reader that was killed is started again.
    reader_back_ns: u64,
    ring: Ring,
    /// The numbers of the lives of the actors: 0 and 1 are writers, 2 is the reader. Each start of an actor gets a new number.
    lives: [u64; 3],
    births: u64,
    /// The entries that the log sends to the reader: the reader's life, the round of its request, and the number of the next entry.
    follows: Option<(u64, u64, u64)>,
    /// Entries that are sent to the reader before this time are lost on the way.
    deaf_until_ns: u64,
    /// The time until which the log answers nobody.
    away_until_ns: u64,
    /// The time until which the readers' copy lacks entries; `None` if it never lacked any. The log's leader always has these entries.
    hidden_until_ns: Option<u64>,
    is_calm: bool,
    /// Whether the log keeps all stored blocks. Then only answers, connections and processes fail.
    is_log_sound: bool,
    /// The share of answers that are lost, in 256ths.
    loss: u8,
    /// The writer that must notice a loss before the story ends, and the log's end before that loss.
    must_notice: Option<(u64, End)>,
    /// Whether writer 1 has other keys.
    has_stranger: bool,
    /// The lives of all writers that an operator has ordered to take over. Some of these writers can be dead by now.
    ordered: HashSet<u64>,
    /// The time until which a stranger sends pulses with numbers that no writer has.
    flood_until_ns: u64,
    /// The time until which the next writer that appends is stopped, and whether the log is removed meanwhile.
    stops: Option<(u64, bool)>,
    /// The writer that an operator orders to take over at the end of the story, and the time by which it must have done so.
    must_own: Option<(u64, u64)>,
    report: Report,
}

impl World {
    pub(super) fn new(seed: u64) -> World {
        let mut rng = Rng::with_seed(seed);
        let messages = rng.u64(20..120);
        let keeps = if rng.u8(..4) == 0 { rng.u64(5..40) } else { u64::MAX };
        let loss = if rng.bool() { 0 } else { rng.u8(..60) };
        let mut world = World {
            channel: Channel { seed, messages, keeps },
            is_calm: rng.u8(..10) == 0,
            is_log_sound: rng.u8(..3) == 0,
            rng,
            now_ns: 0,
            log: Log::default(),
            events: Vec::new(),
            writers: [None, None],
            answers: Answers::new(&Channel { seed, messages, keeps }),
            reader: None,
            reader_back_ns: 0,
            ring: Ring { next: 1, ..Ring::default() },
            lives: [0; 3],
            births: 0,
            follows: None,
            deaf_until_ns: 0,
            away_until_ns: 0,
            hidden_until_ns: None,
            loss,
            must_notice: None,
            has_stranger: false,
            ordered: HashSet::new(),
            flood_until_ns: 0,
            stops: None,
            must_own: None,
            report: Report::default(),
        };
        world.has_stranger = world.channel.keys().is_some() && world.rng.u8(..4) == 0;
        world.start_writer(0);
        if world.rng.bool() {
            world.start_writer(1);
        }
        world
    }

    fn born(&mut self, actor: usize) -> u64 {
        self.births += 1;
        self.lives[actor] = self.births;
        self.births
    }

    fn start_writer(&mut self, at: usize) {
        let writer = self.born(at);
        let config = WriterConfig {
            stream: STREAM,
            session: Session::from_bytes(*b"TICK000100"),
            writer,
            in_flight: self.rng.usize(1..6),
            ack_ns: SECOND_NS / 2,
            silence_ns: SECOND_NS,
        };
        let (mut writer, packing) = (Writer::new(config), Packing::new(BLOCK_BYTES));
        writer.set_key(self.keys_of(at).as_ref().and_then(|keys| keys.sealing(0)));
        self.writers[at] =
            Some(WriterActor { writer, packing, next: 0, offset: 0, line_ns: 0, awake_ns: 0, shut_ns: None });
    }

    fn is_stranger(&self, at: usize) -> bool {
        self.has_stranger && at == 1
    }

    fn keys_of(&self, at: usize) -> Option<Keyring> {
        if self.is_stranger(at) { Some(Channel::other_keys()) } else { self.channel.keys() }
    }

    fn end(&self) -> End {
        let last = self.log.last(self.channel.keys());
        (last.sequence, last.crc)
    }

    fn start_reader(&mut self) {
        self.born(2);
        let give_up_ns = Some(8 * SECOND_NS);
        let ring = self.ring.session.map(|session| (session, self.ring.next));
        self.count_reader();
        self.ring.began = self.ring.next;
        let mut reader = Reader::new(ReaderConfig { from: Some(1), give_up_ns }, ring);
        reader.set_keys(self.channel.keys(), false);
        self.reader = Some(reader);
    }

    fn count_reader(&mut self) {
        if let Some(reader) = self.reader.take() {
            let counters = reader.counters();
            self.report.holes += counters.holes;
            self.report.mended += counters.mended;
            self.report.searches += counters.searches;
        }
    }

    fn count_writer(&mut self, at: usize) {
        if let Some(actor) = self.writers[at].take() {
            self.report.fenced += actor.writer.counters().fenced;
            self.report.losses += actor.writer.counters().losses;
            self.report.shut_out += actor.writer.counters().shut_out;
        }
    }

    fn send(&mut self, after_ns: u64, life: u64, event: Event) {
        self.events.push((self.now_ns + after_ns, life, event));
    }

    fn delay(&mut self) -> u64 {
        self.rng.u64(1..20) * MILLISECOND_NS / 4
    }

    pub(super) fn play(mut self) -> Result<Report, String> {
        let mut fault_ns = self.rng.u64(..SECOND_NS);
        loop {
            self.turn()?;
            let event_ns = self.events.iter().map(|(at_ns, ..)| *at_ns).min().unwrap_or(u64::MAX);
            let due_ns = self.next_deadline().min(event_ns).min(self.now_ns + 20 * MILLISECOND_NS);
            self.now_ns = due_ns.max(self.now_ns + 1);
            if self.now_ns >= fault_ns && self.now_ns < TROUBLED_NS && !self.is_calm {
                self.fail();
                fault_ns = self.now_ns + self.rng.u64(..SECOND_NS / 2);
            }
            if self.reader.is_none() && self.now_ns >= self.reader_back_ns {
                self.start_reader();
            }
            if self.hidden_until_ns.is_some_and(|until_ns| self.now_ns >= until_ns) {
                self.log.show();
            }
            self.deliver()?;
            self.judge_gaps()?;
            if let Some(wrong) = self.ring.wrong.take() {
                return Err(format!("{wrong}, at {} ms", self.now_ns / MILLISECOND_NS));
            }
            if self.now_ns > TROUBLED_NS + SECOND_NS && self.is_over() && self.is_taken_over()? {
                break;
            }
            if self.now_ns > END_NS {
                let due = self.ring.next;
                return Err(format!("stuck: {due} is due of {}", self.channel.messages));
            }
        }
        self.judge()
    }

    fn next_deadline(&self) -> u64 {
        let due = |actor: &WriterActor| actor.writer.next_deadline().max(actor.awake_ns);
        let writers = self.writers.iter().flatten().map(due);
        writers.chain(self.reader.iter().map(Reader::next_deadline)).min().unwrap_or(u64::MAX)
    }

    /// Delivers the events that are due.
    fn deliver(&mut self) -> Result<(), String> {
        while let Some(at) = (0..self.events.len())
            .filter(|&at| self.events[at].0 <= self.now_ns)
            .min_by_key(|&at| self.events[at].0)
        {
            let (_, life, event) = self.events.remove(at);
            self.handle(life, event)?;
        }
        Ok(())
    }

    fn handle(&mut self, life: u64, event: Event) -> Result<(), String> {
        let delay = self.delay();
        let awake_ns = self.writer_of(life).map_or(0, |actor| actor.awake_ns);
        match event {
            Event::Append(_) | Event::AskLast(_) | Event::Asked(..) if self.now_ns < self.away_until_ns => {}
            Event::Acked(..) | Event::Last(..) if awake_ns > self.now_ns => {
                self.events.push((awake_ns, life, event));
            }
            Event::Append(append) => {
                let answer = self.log.append_if(&append);
                if answer.is_ok() {
                    self.judge_append(life)?;
                }
                self.feed();
                if self.rng.u8(..) >= self.loss {
                    self.send(delay, life, Event::Acked(append.round, answer));
                }
            }
            Event::AskLast(round) => {
                let Some(at) = (0..2).find(|&at| self.lives[at] == life) else { return Ok(()) };
                let last = self.log.last(self.keys_of(at));
                self.send(delay, life, Event::Last(round, last));
            }
            Event::Asked(round, ask) => self.answer(delay, life, round, ask),
            Event::Acked(round, answer) => {
                let now_ns = self.now_ns;
                if let Some(actor) = self.writer_of(life) {
                    actor.writer.handle_ack(now_ns, round, answer);
                }
            }
            Event::Last(round, last) => {
                let (now_ns, next) = (self.now_ns, self.channel.next(self.now_ns));
                let Some(actor) = self.writer_of(life) else { return Ok(()) };
                actor.writer.handle_last(now_ns, round, last, next).map_err(|e| e.to_string())?;
                for append in actor.writer.take_again() {
                    self.put_on_the_line(life, append);
                }
            }
            Event::Bounds(..) | Event::Got(..) | Event::Entry(..) | Event::Answer(..) => {
                if life == self.lives[2] {
                    self.read(event);
                }
            }
        }
        Ok(())
    }

    fn put_on_the_line(&mut self, life: u64, append: Append) {
        let at_ns = self.now_ns + self.delay();
        if let Some(actor) = self.writer_of(life) {
            let at_ns = actor.line_up(at_ns);
            self.events.push((at_ns, life, Event::Append(append)));
        }
    }

    fn writer_of(&mut self, life: u64) -> Option<&mut WriterActor> {
        let at = (0..2).find(|&at| self.lives[at] == life)?;
        self.writers[at].as_mut()
    }

    /// The log, or a writer, answers a reader.
    fn answer(&mut self, delay: u64, life: u64, round: u64, ask: Ask) {
        match ask {
            Ask::Bounds => self.send(delay, life, Event::Bounds(round, self.log.bounds())),
            Ask::Get(from) => self.send(delay, life, Event::Got(round, self.log.read(from))),
            Ask::Follow(from) => {
                self.follows = Some((life, round, from));
                self.feed();
            }
            Ask::Want(want) => self.take_want(delay, life, round, want),
        }
    }

    /// Sends the reader all entries that it has not received.
    fn feed(&mut self) {
        let Some((life, round, mut from)) = self.follows.filter(|(life, ..)| *life == self.lives[2]) else {
            return;
        };
        while let Some((number, block)) = self.log.read(from) {
            if self.now_ns >= self.deaf_until_ns {
                self.events.push((self.now_ns + MILLISECOND_NS, life, Event::Entry(round, (number, block))));
            }
            from = number + 1;
        }
        self.follows = Some((life, round, from));
    }

    fn read(&mut self, event: Event) {
        let World { reader: Some(reader), ring, now_ns, channel, .. } = self else { return };
        let now_ns = *now_ns;
        let mut sink = |delivery: Delivery<'_>| ring.take(now_ns, channel, delivery);
        let follow = match event {
            Event::Bounds(round, bounds) => reader.handle_bounds(now_ns, round, bounds),
            Event::Got(round, entry) => {
                let entry = entry.as_ref().map(|(number, block)| (*number, &block[..]));
                reader.handle_get(now_ns, round, entry)
            }
            Event::Entry(round, (number, block)) => {
                reader.handle_entry(now_ns, round, (number, &block), &mut sink);
                None
            }
            Event::Answer(round, block) => {
                reader.handle_want(now_ns, round, block.as_deref(), &mut sink);
                None
            }
            _ => None,
        };
        if let Some((round, ask)) = follow {
            self.send(MILLISECOND_NS, self.lives[2], Event::Asked(round, ask));
        }
    }

    /// Each actor does the work that is due.
    fn turn(&mut self) -> Result<(), String> {
        self.answer_wants();
        for at in 0..2 {
            self.oversee(at);
            if let Some(mut actor) = self.writers[at].take_if(|actor| actor.awake_ns <= self.now_ns) {
                self.write(at, &mut actor);
                self.writers[at] = Some(actor);
            }
        }
        let World { reader: Some(reader), ring, now_ns, channel, .. } = self else { return Ok(()) };
        let asked = reader.poll(*now_ns, &mut |delivery| ring.take(*now_ns, channel, delivery));
        // Only the first request must follow a search of the log. Later requests can follow an answer that repaired only a part of the
        // hole.
        let has_looked =
            reader.counters().searches > 0 || reader.counters().wanted > 1 || ring.next == ring.began;
        if !has_looked && matches!(asked, Some((_, Ask::Want(_)))) {
            return Err("the reader asks a writer, and has not looked into the log again".to_owned());
        }
        if let Some((round, ask)) = asked {
            let delay = self.delay();
            self.send(delay, self.lives[2], Event::Asked(round, ask));
        }
        Ok(())
    }

    fn write(&mut self, at: usize, actor: &mut WriterActor) {
        let (now_ns, life) = (self.now_ns, self.lives[at]);
        if let Some(round) = actor.writer.poll(now_ns) {
            let delay = self.delay();
            self.send(delay, life, Event::AskLast(round));
        }
        match actor.writer.take_resume() {
            Some(Resume::At(next)) => (actor.next, actor.offset) = (next, 0),
            Some(Resume::Beginning) => {
                (actor.next, actor.offset) = (1, 0);
                actor.writer.note_beginning(1);
            }
            None => {}
        }
        if let Some(append) = actor.writer.take_takeover(now_ns, 0) {
            let delay = self.delay();
            self.events.push((actor.line_up(now_ns + delay), life, Event::Append(append)));
        }
        while actor.writer.has_room() && actor.next < self.channel.next(now_ns) {
            let cut = self.channel.cut(now_ns, actor.next, actor.offset, &mut actor.packing);
            actor.offset += cut.part_bytes();
            if cut.count > 0 {
                (actor.next, actor.offset) = (cut.first + u64::from(cut.count), 0);
            }
            let append = actor.writer.append(now_ns, cut, 0);
            let delay = self.delay();
            self.events.push((actor.line_up(now_ns + delay), life, Event::Append(append)));
        }
        if actor.writer.in_flight() > 0 {
            self.stop(life, actor);
        }
        let is_running = actor.writer.state() == State::Run;
        if is_running && let Some(other) = &mut self.writers[1 - at] {
            other.writer.handle_pulse(now_ns, life);
        }
    }
}
