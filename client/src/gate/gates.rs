//! The publisher's side of its gates: the publisher reads their pages, waits for their readers, and counts the waits.
//!
//! The ring's writer refuses a record that would take the ring's frontier (the end of the space that it can use) beyond a bound. The
//! publisher calls this module only after such a refusal. The module checks each gate: it reads the gate's lock and page. Then the
//! publisher raises the bound as far as all gates allow:
//!
//! - for a gate in force, to the position that its reader has passed, plus the lag;
//! - for any other gate, to a quarter of the lag beyond the tail, so that the publisher soon notices a reader that has just attached.
//!
//! A check costs two system calls for each gate. The publisher maps no page that a reader can write or shorten.

use super::config::{Settled, Then};
use super::name::GateName;
use super::state::{Fate, GateState, Patience, Ring, Seen, Standing, bound_until_next_look};
use crate::directory::OpenGates;
use crate::error::PublishError;
use crate::lock;
use shmcast_layout::gate::{FiguresPage, GateClaim, GateFigures};
use shmcast_layout::layout::gate::{BUCKETS, NO_SEQUENCE, Said, bucket, bucket_limit_ns};
use shmcast_layout::layout::geometry::Geometry;
use shmcast_layout::ring::writer::Writer;
use shmcast_layout::segment::Segment;
use std::fmt;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// As long as a message has waited for less than this time, the publisher spins between two checks of the gates. Later it yields.
const SPINS_FOR: Duration = Duration::from_micros(20);
/// If less than this time is left of the allowed wait, the publisher spins. If it yielded, another thread might run for some milliseconds,
/// and the wait would be too long.
const SPINS_LAST: Duration = Duration::from_micros(100);
/// As long as a message has waited for less than this time, the publisher yields to other threads between two checks. Later it sleeps.
const YIELDS_FOR: Duration = Duration::from_millis(2);
/// Length of a sleep between two checks.
const SLEEP: Duration = Duration::from_micros(50);

/// A gate of a channel, as its publisher knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct GateStatus {
    /// The name.
    pub name: GateName,
    /// The gate's state now.
    pub state: GateState,
    /// The reader's largest lag in bytes of the ring. At a larger lag, the publisher waits.
    pub lag_bytes: u64,
    /// The longest time that one message may wait for this gate.
    pub wait: Duration,
    /// The publisher's action when a message has waited for `wait`.
    pub then: Then,
    /// The reader's lag now, in bytes of the ring; `None` if no reader holds the gate, or its reader has no place in the ring.
    pub behind_bytes: Option<u64>,
    /// The reader's lag now, in messages, as the reader claims.
    pub behind_messages: Option<u64>,
    /// The process id that the reader claims; `None` if no reader holds the gate.
    pub pid: Option<u64>,
    /// Messages that waited for this gate.
    pub held: u64,
    /// The longest time that one message has waited for this gate.
    pub longest: Duration,
    /// The sum of the times that messages have waited for this gate.
    pub total: Duration,
    /// Number of times that the gate was dropped.
    pub dropped: u64,
    /// Messages that were refused after a wait.
    pub refused: u64,
    /// The number of messages that were refused by calls that never wait.
    pub turned_away: u64,
    /// Number of positions that the reader claimed although the ring had not reached them. An honest reader never does this.
    pub impossible: u64,
    /// Numbers of waits by length: element `n` counts the waits of at least 2^n ns and less than 2^(n+1) ns.
    pub waits: [u64; BUCKETS],
}

impl GateStatus {
    /// Returns a time that the fraction `quantile` of all waits did not exceed. The result is at most twice the shortest such time. `None`
    /// if there was no wait.
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

/// A gate, and what the publisher knows about it.
#[derive(Debug)]
struct One {
    config: Settled,
    file: File,
    standing: Standing,
    figures: GateFigures,
    /// True until this publisher knows the position of the gate's reader, or knows that no reader has a position. Until then, the publisher
    /// assumes that the previous publisher waited for the reader.
    is_unheard: bool,
    /// The time for which this gate has held the present message up, as of the last check; `None` if it has not held the message up.
    held_for: Option<Duration>,
    /// The time at which a call that never waits was first refused; `None` again after `make_way` has made room for a message.
    refusing_since: Option<Instant>,
}

impl One {
    fn claim(&self, segment: [u64; 2]) -> GateClaim {
        GateClaim::read(&self.file, segment).unwrap_or(GateClaim {
            said: Said::Nothing,
            sequence: NO_SEQUENCE,
            pid: 0,
        })
    }

    /// Reads the gate's lock and page. Returns the observations, and the gate's state that follows from them.
    fn see(&self, segment: [u64; 2], ring: Ring) -> (Seen, GateClaim, Standing) {
        // If the lock's state is unknown, no message waits for the gate.
        let is_held = lock::is_locked(&self.file).unwrap_or(false);
        let claim = self.claim(segment);
        let seen = Seen { is_held, said: claim.said, is_placeless: claim.sequence == NO_SEQUENCE };
        (seen, claim, self.standing.after(seen, ring, self.config.lag, self.is_unheard))
    }

    fn look(&mut self, segment: [u64; 2], ring: Ring) {
        let (seen, claim, standing) = self.see(segment, ring);
        let is_held = seen.is_held;
        self.standing = standing;
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

    /// Counts the wait of a message that is now published or refused. A wait for other gates does not count. If the gate's longest wait is
    /// zero, no message waits for the gate, so only the message is counted.
    fn note_wait(&mut self) {
        let Some(waited) = self.held_for.take() else { return };
        if self.config.wait.is_zero() {
            self.figures.held += 1;
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

/// The decision of all gates about a record.
enum Verdict {
    /// No gate holds the record up, so the record is published.
    Open,
    /// The record waits. `left` is the time until the longest wait of one of its gates is over.
    Waits { left: Duration },
    /// A gate refuses the record.
    Refused(PublishError),
}

/// All gates of a channel.
#[derive(Debug)]
pub(crate) struct Gates {
    gates: Vec<One>,
    segment: [u64; 2],
    capacity: u64,
    chunk: u64,
    /// The number of bytes by which the tail moves before the publisher checks again those gates that are not in force.
    step: u64,
    page: Option<FiguresPage>,
    /// Set to another number than 0 when the publisher must not wait any more.
    hurry: Arc<AtomicUsize>,
    meanwhile: Meanwhile,
}

/// A function that is called again and again while a message waits.
#[derive(Clone, Default)]
pub(crate) struct Meanwhile(Option<Arc<dyn Fn() + Send + Sync>>);

impl Meanwhile {
    pub(crate) fn call(call: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(call)))
    }
}

impl fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Meanwhile").field(&self.0.is_some()).finish()
    }
}

impl Gates {
    /// Opens the gates with these files. Returns `None` if there are no gates. If the page of figures cannot be mapped, tools see no gates.
    pub(crate) fn of(files: OpenGates, segment: &Segment, writer: &mut Writer) -> Option<Box<Self>> {
        if files.gates.is_empty() {
            return None;
        }
        let header = segment.header();
        let page =
            files.figures.and_then(|file| FiguresPage::begin(&file, std::process::id(), header.uuid).ok());
        Some(Box::new(Self::begin(files.gates, page, header.uuid, &header.geometry, writer)))
    }

    /// Reads each gate for the first time. A gate whose reader was not lapped is in force from the start, because the previous publisher
    /// might have waited for this reader.
    ///
    /// At this moment the reader can be further behind than the gate's lag, because the publisher can use the ring up to the frontier that
    /// the previous publisher left.
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
            One { config, file, standing, figures, is_unheard: true, held_for: None, refusing_since: None }
        };
        let gates: Vec<One> = gates.into_iter().map(one).collect();
        let step = gates.iter().map(|gate| gate.config.lag / 4).min().unwrap_or(u64::MAX);
        let (capacity, chunk, hurry) = (geometry.capacity, geometry.chunk, Arc::default());
        let meanwhile = Meanwhile::default();
        let mut all = Self { gates, segment, capacity, chunk, step, page, hurry, meanwhile };
        all.look(writer);
        writer.set_bound(all.bound(writer, writer.frontier()));
        if let Some(page) = &all.page {
            page.show(all.gates.len());
        }
        all
    }

    /// Sets the flag that ends all waits: while `flag` is not 0, no message waits for a gate.
    pub(crate) fn hurry_after(&mut self, flag: Arc<AtomicUsize>) {
        self.hurry = flag;
    }

    /// Sets the function that is called again and again while a message waits for a gate.
    pub(crate) fn call_meanwhile(&mut self, meanwhile: Meanwhile) {
        self.meanwhile = meanwhile;
    }

    fn ring(&self, writer: &Writer) -> Ring {
        Ring { tail: writer.position(), frontier: writer.frontier(), capacity: self.capacity }
    }

    fn look(&mut self, writer: &Writer) {
        let ring = self.ring(writer);
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

    /// Returns the position beyond which the writer must check the gates again. Call this function only if no gate in force holds up a
    /// record that needs `frontier`.
    fn bound(&self, writer: &Writer, frontier: u64) -> u64 {
        let standings = self.gates.iter().map(|gate| (gate.standing, gate.config.lag));
        bound_until_next_look(standings, writer.position(), self.step, frontier)
    }

    /// Makes room for a record that needs the frontier `frontier`: raises the bound up to which the writer can move its frontier. Waits for
    /// the gates as `patience` says, in total no longer than the longest wait of a gate.
    ///
    /// After `Ok`, the bound can still be too low for a control record that passes a gate. The writer then raises the bound itself.
    ///
    /// A gate also has room if its reader has followed the channel to the next publisher. But then this publisher is cut off, so
    /// `is_cut_off` is called after each check of the gates.
    ///
    /// # Errors
    /// [`PublishError::Full`] if a gate refuses the record; [`PublishError::CutOff`] if `is_cut_off` returns true.
    #[cold]
    #[inline(never)]
    pub(crate) fn make_way(
        &mut self,
        writer: &mut Writer,
        frontier: u64,
        patience: Patience,
        is_cut_off: &dyn Fn() -> bool,
    ) -> Result<(), PublishError> {
        let start = Instant::now();
        loop {
            self.look(writer);
            let elapsed = start.elapsed();
            let verdict = match is_cut_off() {
                true => Verdict::Refused(PublishError::CutOff),
                false => self.decide(writer.position(), frontier, patience, elapsed),
            };
            let refused = match verdict {
                Verdict::Waits { left } => {
                    pause(elapsed, left);
                    if let Some(call) = &self.meanwhile.0 {
                        call();
                    }
                    continue;
                }
                Verdict::Refused(refused) => Some(refused),
                Verdict::Open => None,
            };
            self.gates.iter_mut().for_each(One::note_wait);
            self.write_figures();
            if let Some(refused) = refused {
                return Err(refused);
            }
            self.gates.iter_mut().for_each(|gate| gate.refusing_since = None);
            writer.set_bound(self.bound(writer, frontier));
            return Ok(());
        }
    }

    /// The gates in force that do not let the frontier (the end of the space that the writer can use) move to `frontier`.
    fn holding(&mut self, frontier: u64) -> impl Iterator<Item = &mut One> {
        self.gates.iter_mut().filter(move |gate| gate.standing.bound(gate.config.lag) < frontier)
    }

    /// Decides about a record that needs `frontier`. Drops the gates that have held the record up for long enough.
    fn decide(&mut self, tail: u64, frontier: u64, patience: Patience, elapsed: Duration) -> Verdict {
        let (capacity, spare) = (self.capacity, patience.spare(self.chunk));
        let (mut refused, mut waits) = (None, None);
        let is_in_a_hurry = self.hurry.load(Ordering::Relaxed) != 0;
        for gate in self.holding(frontier) {
            let Settled { name, wait, then, .. } = gate.config;
            let held_for = match patience {
                // The time counts from the first refused call. If it counted from this call, a reader that hangs would cause all messages
                // to be refused for ever.
                Patience::Never => gate.refusing_since.get_or_insert_with(Instant::now).elapsed(),
                Patience::Waits | Patience::Insists | Patience::Ends => {
                    gate.held_for = Some(elapsed);
                    elapsed
                }
            };
            let has_room = gate.standing.has_room(frontier, spare, capacity);
            let fate = if is_in_a_hurry { Patience::fate_in_a_hurry } else { Patience::fate };
            match fate(patience, then, held_for >= wait, has_room) {
                Fate::Passes => {}
                Fate::Waits => {
                    let left = wait.saturating_sub(elapsed);
                    waits = Some(waits.map_or(left, |other: Duration| other.min(left)));
                }
                Fate::Drops => gate.drop_reader(),
                Fate::Refuses => {
                    let figures = &mut gate.figures;
                    match patience {
                        Patience::Never => figures.turned_away += 1,
                        Patience::Waits | Patience::Insists | Patience::Ends => figures.refused += 1,
                    }
                    refused = Some(PublishError::Full { gate: name, behind: gate.behind(tail) });
                }
            }
        }
        match (refused, waits) {
            (Some(refused), _) => Verdict::Refused(refused),
            (None, Some(left)) => Verdict::Waits { left },
            (None, None) => Verdict::Open,
        }
    }

    /// The present state of the gates. A gate that a reader has taken since the last check can be in force in the result, although the
    /// writer's bound does not wait for this reader yet. The writer reaches its bound, and checks the gates again, before this reader is
    /// too far behind.
    pub(crate) fn status(&self, writer: &Writer) -> Vec<GateStatus> {
        let (tail, ring) = (writer.position(), self.ring(writer));
        let status = |gate: &One| {
            let (Seen { is_held, .. }, claim, standing) = gate.see(self.segment, ring);
            let position = claim.said.place().map(|position| position.min(tail)).filter(|_| is_held);
            let next = writer.next_sequence();
            let GateFigures { held, longest_ns, total_ns, dropped, refused, turned_away, impossible, .. } =
                gate.figures;
            GateStatus {
                name: gate.config.name,
                state: standing.state,
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

/// Pauses between two checks, for at most about `left`.
fn pause(elapsed: Duration, left: Duration) {
    if elapsed < SPINS_FOR || left < SPINS_LAST {
        (0..32).for_each(|_| std::hint::spin_loop());
    } else if elapsed < YIELDS_FOR {
        std::thread::yield_now();
    } else {
        std::thread::sleep(SLEEP);
    }
}
