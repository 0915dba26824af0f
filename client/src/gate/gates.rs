//! The publisher's end of its gates: when it looks at them, how it waits, and what it counts.
//!
//! The ring's writer refuses a record that would take its frontier beyond a bound. Only then does the publisher come here. It looks at all
//! gates, and raises the bound as far as they allow:
//!
//! - for a gate in force, to the position that its reader has passed, plus the lag;
//! - for any other gate, a quarter of the lag beyond the tail, so that a reader that has just attached is noticed in time.
//!
//! A look costs two system calls a gate. The publisher maps nothing that a reader can write or shorten.

use super::config::{Settled, Then};
use super::name::GateName;
use super::state::{Fate, GateState, Patience, Ring, Seen, Standing, bound_until_next_look, near};
use crate::directory::OpenGates;
use crate::error::PublishError;
use crate::lock;
use shmcast_layout::gate::{FiguresPage, GateClaim, GateFigures};
use shmcast_layout::layout::gate::{BUCKETS, Said, bucket, bucket_limit_ns};
use shmcast_layout::layout::geometry::Geometry;
use shmcast_layout::ring::writer::Writer;
use shmcast_layout::segment::Segment;
use std::fs::File;
use std::time::{Duration, Instant};

/// How long the publisher spins between two looks before it lets other threads run.
const SPINS_FOR: Duration = Duration::from_micros(20);
/// If less than this is left of a wait, it spins: another thread may run for some milliseconds.
const SPINS_LAST: Duration = Duration::from_micros(100);
/// How long it lets others run between two looks before it sleeps.
const YIELDS_FOR: Duration = Duration::from_millis(2);
/// How long it sleeps between two looks.
const SLEEP: Duration = Duration::from_micros(50);

/// A gate of a channel, as its publisher knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct GateStatus {
    /// Its name.
    pub name: GateName,
    /// Its state at the last look.
    pub state: GateState,
    /// How far the reader may be behind before the publisher waits, in bytes of the ring.
    pub lag_bytes: u64,
    /// How long one message waits at most.
    pub wait: Duration,
    /// What comes after the wait.
    pub then: Then,
    /// How far the reader is behind now, in bytes of the ring; `None` if nobody holds the gate, or its reader has no place in the ring.
    pub behind_bytes: Option<u64>,
    /// How many messages the reader is behind, by its own word.
    pub behind_messages: Option<u64>,
    /// The process id that the reader claims; `None` if nobody holds the gate.
    pub pid: Option<u64>,
    /// Messages that waited for this gate.
    pub held: u64,
    /// The longest wait of one message.
    pub longest: Duration,
    /// The sum of all waits.
    pub total: Duration,
    /// Times that the gate was dropped.
    pub dropped: u64,
    /// Messages that were refused after a wait.
    pub refused: u64,
    /// Messages that calls which never wait refused.
    pub turned_away: u64,
    /// Positions that the reader claimed and the ring had not reached. An honest reader claims none.
    pub impossible: u64,
    /// Waits by their length: number `n` counts the waits below 2^(n+1) ns, and not below 2^n.
    pub waits: [u64; BUCKETS],
}

impl GateStatus {
    /// The wait below which the fraction `quantile` of all waits lie, up to twice the true one; `None` if there was no wait.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # use shmcast::{Gate, Publisher};
    /// # let publisher = Publisher::builder("t").dir(dir.path()).capacity(1 << 20).gate(Gate::new("risk")).open()?;
    /// assert_eq!(publisher.gates()[0].wait_quantile(0.99), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait_quantile(&self, quantile: f64) -> Option<Duration> {
        let total: u64 = self.waits.iter().sum();
        let rank = ((total as f64 * quantile).ceil() as u64).clamp(1, total.max(1));
        let mut seen = 0;
        let bucket = self.waits.iter().position(|count| {
            seen += count;
            total > 0 && seen >= rank
        })?;
        Some(Duration::from_nanos(bucket_limit_ns(bucket)).min(self.longest))
    }
}

/// One gate.
#[derive(Debug)]
struct One {
    config: Settled,
    file: File,
    standing: Standing,
    figures: GateFigures,
    /// Whether no look of this publisher has found the place of the reader that holds the gate since the first look.
    is_unheard: bool,
    /// Whether the message at hand has waited for it.
    has_held: bool,
    /// Since when a call that never waits has been refused again and again.
    refusing_since: Option<Instant>,
}

impl One {
    fn claim(&self, segment: [u64; 2]) -> GateClaim {
        GateClaim::read(&self.file, segment).unwrap_or(GateClaim { said: Said::Nothing, sequence: 0, pid: 0 })
    }

    /// Looks at the lock and the page.
    fn look(&mut self, segment: [u64; 2], ring: Ring) {
        // A lock that cannot be looked at holds nobody up.
        let is_held = lock::is_locked(&self.file).unwrap_or(false);
        let claim = self.claim(segment);
        let seen = Seen { is_held, said: claim.said };
        let Settled { lag, .. } = self.config;
        self.standing = self.standing.after(seen, ring, lag, near(lag, self.is_unheard));
        self.is_unheard &= seen.is_unheard();
        let figures = &mut self.figures;
        figures.looks += 1;
        figures.impossible +=
            u64::from(is_held && claim.said.place().is_some_and(|position| position > ring.tail));
        figures.pid = if is_held { claim.pid } else { 0 };
        figures.tail = ring.tail;
        figures.position = self.standing.passed.unwrap_or(0);
    }

    fn behind(&self, tail: u64) -> u64 {
        tail - self.standing.passed.unwrap_or(0).min(tail)
    }

    fn drop_reader(&mut self) {
        self.standing.state = GateState::Dropped;
        self.figures.dropped += 1;
    }

    /// Counts the wait of a message that is now decided.
    fn note_wait(&mut self, waited: Duration) {
        if !std::mem::take(&mut self.has_held) {
            return;
        }
        let waited_ns = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        let figures = &mut self.figures;
        figures.held += 1;
        figures.longest_ns = figures.longest_ns.max(waited_ns);
        figures.total_ns = figures.total_ns.saturating_add(waited_ns);
        figures.histogram[bucket(waited_ns)] += 1;
    }
}

/// All gates of a channel.
#[derive(Debug)]
pub(crate) struct Gates {
    gates: Vec<One>,
    segment: [u64; 2],
    capacity: u64,
    /// How far the tail may go between two looks while a gate is not in force.
    step: u64,
    page: Option<FiguresPage>,
}

impl Gates {
    /// Begins to look at the gates whose files these are; `None` without gates. If the page of figures cannot be mapped, tools see none.
    pub(crate) fn of(files: OpenGates, segment: &Segment, writer: &mut Writer) -> Option<Box<Self>> {
        if files.gates.is_empty() {
            return None;
        }
        let header = segment.header();
        let page =
            files.figures.and_then(|file| FiguresPage::begin(&file, std::process::id(), header.uuid).ok());
        Some(Box::new(Self::begin(files.gates, page, header.uuid, &header.geometry, writer)))
    }

    /// Looks at each gate for the first time. A gate whose reader was not lapped is in force at once, since the publisher before this one may
    /// have waited for it. It may be behind by more than the lag: each publisher publishes up to the frontier that it finds.
    fn begin(
        gates: Vec<(Settled, File)>,
        page: Option<FiguresPage>,
        segment: [u64; 2],
        geometry: &Geometry,
        writer: &mut Writer,
    ) -> Self {
        let one = |(config, file): (Settled, File)| {
            let figures = GateFigures {
                name: config.name.as_str().to_owned(),
                lag_bytes: config.lag,
                wait_ns: u64::try_from(config.wait.as_nanos()).unwrap_or(u64::MAX),
                then: config.then as u64,
                ..GateFigures::default()
            };
            let standing = Standing::default();
            One { config, file, standing, figures, is_unheard: true, has_held: false, refusing_since: None }
        };
        let gates: Vec<One> = gates.into_iter().map(one).collect();
        let step = gates.iter().map(|gate| gate.config.lag / 4).min().unwrap_or(u64::MAX);
        let mut all = Self { gates, segment, capacity: geometry.capacity, step, page };
        all.look(writer);
        writer.set_bound(all.bound(writer, writer.frontier()));
        if let Some(page) = &all.page {
            page.show(all.gates.len());
        }
        all
    }

    fn look(&mut self, writer: &Writer) {
        let ring = Ring { tail: writer.position(), frontier: writer.frontier(), capacity: self.capacity };
        for gate in &mut self.gates {
            gate.look(self.segment, ring);
        }
        self.write_figures();
    }

    fn write_figures(&mut self) {
        let Some(page) = &self.page else { return };
        for (number, gate) in self.gates.iter_mut().enumerate() {
            gate.figures.state = gate.standing.state as u64;
            page.write(number, &gate.figures);
        }
    }

    /// The bound until the next look, if no gate in force holds up a record that needs `frontier`.
    fn bound(&self, writer: &Writer, frontier: u64) -> u64 {
        let standings = self.gates.iter().map(|gate| (gate.standing, gate.config.lag));
        bound_until_next_look(standings, writer.position(), self.step, frontier)
    }

    /// Raises the writer's bound so that a record fits that needs this frontier, and waits for that as `patience` says. All waits of one call
    /// together take no longer than the longest wait of a gate.
    ///
    /// # Errors
    /// [`PublishError::Full`]; then the bound stays too low for the record.
    #[cold]
    #[inline(never)]
    pub(crate) fn make_way(
        &mut self,
        writer: &mut Writer,
        frontier: u64,
        patience: Patience,
    ) -> Result<(), PublishError> {
        let start = Instant::now();
        loop {
            self.look(writer);
            let elapsed = start.elapsed();
            let refused = self.decide(writer.position(), frontier, patience, elapsed);
            let is_open = self.holding(frontier).next().is_none();
            if refused.is_none() && !is_open {
                let left = self.holding(frontier).map(|gate| gate.config.wait.saturating_sub(elapsed)).min();
                pause(elapsed, left.unwrap_or_default());
                continue;
            }
            self.gates.iter_mut().for_each(|gate| gate.note_wait(elapsed));
            self.write_figures();
            if let Some(refused) = refused {
                return Err(refused);
            }
            self.gates.iter_mut().for_each(|gate| gate.refusing_since = None);
            writer.set_bound(self.bound(writer, frontier));
            return Ok(());
        }
    }

    /// The gates in force that keep the frontier from going so far.
    fn holding(&mut self, frontier: u64) -> impl Iterator<Item = &mut One> {
        self.gates.iter_mut().filter(move |gate| gate.standing.bound(gate.config.lag) < frontier)
    }

    /// Drops the gates that have held the message up for long enough, or returns the refusal.
    fn decide(
        &mut self,
        tail: u64,
        frontier: u64,
        patience: Patience,
        elapsed: Duration,
    ) -> Option<PublishError> {
        let mut refused = None;
        for gate in self.holding(frontier) {
            let Settled { name, wait, then, .. } = gate.config;
            let held_for = match patience {
                // A reader that hangs must not turn all messages away for ever.
                Patience::Never => gate.refusing_since.get_or_insert_with(Instant::now).elapsed(),
                Patience::Waits | Patience::Insists => {
                    gate.has_held = true;
                    elapsed
                }
            };
            match patience.fate(then, held_for >= wait) {
                Fate::Waits => {}
                Fate::Drops => gate.drop_reader(),
                Fate::Refuses => {
                    let figures = &mut gate.figures;
                    match patience {
                        Patience::Never => figures.turned_away += 1,
                        Patience::Waits | Patience::Insists => figures.refused += 1,
                    }
                    refused = Some(PublishError::Full { gate: name, behind: gate.behind(tail) });
                }
            }
        }
        refused
    }

    /// The gates as they are now.
    pub(crate) fn status(&self, writer: &Writer) -> Vec<GateStatus> {
        let tail = writer.position();
        let status = |gate: &One| {
            let claim = gate.claim(self.segment);
            let is_held = gate.standing.state != GateState::Absent;
            let position = claim.said.place().map(|position| position.min(tail)).filter(|_| is_held);
            let next = writer.next_sequence();
            let GateFigures { held, longest_ns, total_ns, dropped, refused, turned_away, impossible, .. } =
                gate.figures;
            GateStatus {
                name: gate.config.name,
                state: gate.standing.state,
                lag_bytes: gate.config.lag,
                wait: gate.config.wait,
                then: gate.config.then,
                behind_bytes: position.map(|position| tail - position),
                behind_messages: position.map(|_| next - claim.sequence.min(next)),
                pid: is_held.then_some(claim.pid),
                held,
                longest: Duration::from_nanos(longest_ns),
                total: Duration::from_nanos(total_ns),
                dropped,
                refused,
                turned_away,
                impossible,
                waits: gate.figures.histogram,
            }
        };
        self.gates.iter().map(status).collect()
    }
}

/// Rests between two looks, not longer than `left`.
fn pause(elapsed: Duration, left: Duration) {
    if elapsed < SPINS_FOR || left < SPINS_LAST {
        (0..32).for_each(|_| std::hint::spin_loop());
    } else if elapsed < YIELDS_FOR {
        std::thread::yield_now();
    } else {
        std::thread::sleep(SLEEP);
    }
}
