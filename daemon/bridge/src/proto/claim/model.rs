//! A model of two egresses of one stream on two lines. At any step, an egress can be killed, stopped or restarted, even between the two
//! lines of a batch. Claims and packets can be lost or arrive late.
//!
//! The model runs the code of real elections. A packet has one message, and a batch has two packets. A batch is sent to the first line, and
//! then to the second one.

use super::*;
use shmcast_testkit::model::{Model, check};
use std::hash::{Hash, Hasher};

const TAKEOVER_NS: u64 = 15 * MILLISECOND_NS;
const TICK_NS: u64 = TAKEOVER_NS / 3;
const IP: [IpAddr; 3] = [ip(1), ip(2), ip(3)];
const BATCH: u64 = 2;
/// The number of ticks before the first fault can happen. After these ticks, one egress sends, and the other one stands by.
const PROLOGUE: u64 = 14;
const TICKS: u64 = 5;
/// The number of faults that can happen in one run of the model. In addition, a single packet can be lost.
const FAULTS: u64 = 2;
/// After this number of ticks without a fault, exactly one egress sends, and each line has all messages.
const CALM: u64 = 24;

const NO_GAP: &str = "no packet goes to a line that lacks an earlier message";
const ONE_SENDS: &str = "when nothing fails any more, one egress sends and each line has everything";
const NOT_FORGED: &str = "a forged claim stops nobody who sends";

/// A fault of the elections. Most of these faults are planted, to show that the model finds them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// A planted fault: the egress that takes over begins with the next message that is published.
    FromTheLiveEnd,
    /// A planted fault: the egress that takes over ignores the claim, and begins with the first packet that it received.
    OnlyWhatItHeard,
    /// A planted fault: a claim counts even if no packets of its egress were heard.
    BelievesClaims,
    /// The egress does not receive packets of the other egress.
    Deaf,
    /// A planted fault: an operator's order does not wait for the claim of the egress that sends.
    ObeysAtOnce,
}

const fn ip(last: u8) -> IpAddr {
    IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, last))
}

fn session() -> Session {
    Session::of_channel("TEST", 5).expect("a name of a channel")
}

/// An egress.
#[derive(Debug, Clone)]
struct Egress {
    /// `None` if the egress is dead.
    election: Option<Election>,
    lives: u64,
    /// The next sequence to send.
    next: u64,
    start_at: u64,
    /// The tick of the last turn of this egress, and whether the egress did not run in the last tick.
    turned: u64,
    is_stopped: bool,
    claims: Vec<(usize, Claim)>,
    /// The packets in the sockets of this egress. Each entry has the sender, the first sequence and the end.
    packets: Vec<(usize, u64, u64)>,
}

#[derive(Debug, Clone)]
struct World {
    tick: u64,
    published: u64,
    egresses: [Egress; 2],
    /// For each line, the sequence up to which the line has received all messages.
    lines: [u64; 2],
    kills: u64,
    stops: u64,
    losses: u64,
    lost: u64,
    orders: u64,
    forged: u64,
    /// The highest claim that each egress has made.
    claimed: [u64; 2],
    broken: Option<&'static str>,
    reached: u64,
}

/// One step of the model.
#[derive(Debug, Clone, Copy)]
enum Action {
    /// The egress runs `Live::elect`, and sends a batch if it is active.
    Turn(usize),
    /// The egress runs a turn, and its process is killed in the middle: the batch was sent to the first line, but not to the second.
    DieInBatch(usize),
    Kill(usize),
    Start(usize),
    /// All claims in the sockets of this egress are lost. `LosePackets` does the same for the packets.
    LoseClaims(usize),
    LosePackets(usize),
    /// The first packet that waits in the sockets of this egress is lost. This step also stands for a packet that was sent before this
    /// egress listened.
    LosePacket(usize),
    /// An operator's order to take over, given to an egress that is not active: `Election::order`.
    Order(usize),
    /// Another host sends a forged claim.
    Forge(usize),
    /// The next tick begins. An egress that had no turn in this tick stood still.
    Tick,
}

struct Senders {
    fault: Option<Fault>,
}

impl Egress {
    /// Whether the egress does not run in this tick, but ran in the tick before.
    fn begins_to_stop(&self, tick: u64) -> bool {
        self.election.is_some() && self.turned != tick && !self.is_stopped
    }
}

impl World {
    fn now_ns(&self) -> u64 {
        self.tick * TICK_NS
    }

    fn start(&mut self, at: usize) {
        let (now_ns, next) = (self.now_ns(), self.published + 1);
        let egress = &mut self.egresses[at];
        egress.lives += 1;
        let sender = at as u64 + 2 * egress.lives;
        let config = ElectionConfig { takeover_ns: TAKEOVER_NS, rank: at as u8, sender };
        egress.election = Some(Election::new(config, now_ns, session(), 7, false));
        (egress.start_at, egress.next) = (next, next);
        egress.claims.clear();
        egress.packets.clear();
    }

    fn kill(&mut self, at: usize) {
        self.egresses[at].election = None;
        self.egresses[at].claims.clear();
        self.egresses[at].packets.clear();
    }

    /// Does what `Outlet::send_batch` does.
    fn send(&mut self, at: usize, until: u64, lines: usize) {
        let first = self.egresses[at].next;
        let end = until.min(self.published + 1);
        for line in &mut self.lines[..lines] {
            for sequence in first..end {
                if sequence > *line + 1 {
                    self.broken = Some(NO_GAP);
                }
                *line = sequence.max(*line);
                if self.egresses[1 - at].election.is_some() {
                    self.egresses[1 - at].packets.push((at, sequence, sequence + 1));
                }
            }
        }
        self.egresses[at].next = end.max(first);
    }
}

impl Senders {
    /// Does what `Failover::hear` and `Live::elect` do.
    fn turn(&self, world: &mut World, at: usize, lines: usize) {
        let (now_ns, published) = (world.now_ns(), world.published);
        let rival = world.claimed[1 - at];
        let egress = &mut world.egresses[at];
        egress.turned = world.tick;
        let Some(election) = &mut egress.election else { return };
        election.note_turn(now_ns);
        let claim_before = election.claim;
        let hears = self.fault != Some(Fault::BelievesClaims);
        for (from, claim) in std::mem::take(&mut egress.claims) {
            let times = if hears { 1 } else { CLAIMS };
            (0..times).for_each(|_| election.handle_claim(now_ns, IP[from], &claim, hears));
        }
        for (from, first, end) in std::mem::take(&mut egress.packets) {
            if self.fault != Some(Fault::Deaf) {
                election.handle_packet(now_ns, IP[from], session(), (first, end));
            }
        }
        let mut until = None;
        match election.poll(now_ns) {
            Some(Step::Take(_, from)) => {
                let from = from.unwrap_or(egress.start_at).min(published + 1);
                egress.next = match self.fault {
                    Some(Fault::FromTheLiveEnd) => published + 1,
                    Some(Fault::OnlyWhatItHeard) if (1..APART).contains(&election.packets) => {
                        election.firsts[0]
                    }
                    _ => from,
                };
                world.reached |= 1;
            }
            Some(Step::Yield(_, before)) => {
                until = Some(before);
                world.reached |= 2;
                if world.forged > 0 && rival < claim_before {
                    world.broken = Some(NOT_FORGED);
                }
            }
            None => {}
        }
        if let Some(before) = until {
            world.send(at, before, lines);
        }
        let Egress { election: Some(election), next, .. } = &mut world.egresses[at] else { return };
        world.claimed[at] = world.claimed[at].max(election.claim);
        let (claim, role, next) = (election.poll_claim(now_ns, *next), election.role(), *next);
        if let Some(claim) = claim
            && world.egresses[1 - at].election.is_some()
        {
            world.egresses[1 - at].claims.push((at, claim));
        }
        if role == Role::Active {
            world.send(at, next + BATCH, lines);
        }
    }

    /// Runs a tick without a fault. In the model, the active egress sends a heartbeat in each tick, so that a run needs few ticks.
    fn calm(&self, world: &mut World) {
        for at in 0..2 {
            self.turn(world, at, 2);
            let [of, other] = if at == 0 { [0, 1] } else { [1, 0] };
            let next = world.egresses[of].next;
            let role = world.egresses[of].election.as_ref().map(Election::role);
            if role == Some(Role::Active) && world.egresses[other].election.is_some() {
                world.egresses[other].packets.push((of, next, next));
            }
        }
        world.tick += 1;
    }

    /// Returns the mistake that is found after some ticks without a fault, if there is one. In the first half of these ticks, messages are
    /// published.
    fn rest(&self, world: &World) -> Option<&'static str> {
        let mut world = world.clone();
        for at in 0..2 {
            if world.egresses[at].election.is_none() {
                world.start(at);
            }
        }
        for tick in 0..CALM {
            world.published += if tick < CALM / 2 { 1 } else { 0 };
            self.calm(&mut world);
        }
        let is_sending =
            |egress: &&Egress| egress.election.as_ref().is_some_and(|it| it.role() == Role::Active);
        let is_at_rest = world.egresses.iter().filter(is_sending).count() == 1;
        let has_all = world.lines == [world.published; 2];
        world.broken.or_else(|| (!is_at_rest || !has_all).then_some(ONE_SENDS))
    }
}

impl Model for Senders {
    type State = World;
    type Action = Action;
    const LANDMARKS: &'static [&'static str] =
        &["an egress takes over", "an egress yields", "one listens", "one stands by", "two send"];

    fn begin(&self) -> World {
        let egress = || Egress {
            election: None,
            lives: 0,
            next: 1,
            start_at: 1,
            turned: u64::MAX,
            is_stopped: false,
            claims: Vec::new(),
            packets: Vec::new(),
        };
        let mut world = World {
            tick: 0,
            published: 0,
            egresses: [egress(), egress()],
            lines: [0; 2],
            kills: 0,
            stops: 0,
            losses: 0,
            lost: 0,
            orders: 0,
            forged: 0,
            claimed: [0; 2],
            broken: None,
            reached: 0,
        };
        (0..2).for_each(|at| world.start(at));
        for tick in 0..PROLOGUE {
            world.published += if tick < PROLOGUE - 4 { 0 } else { BATCH };
            Senders { fault: None }.calm(&mut world);
        }
        world.reached = 0;
        world
    }

    fn actions(&self, world: &World) -> Vec<Action> {
        let mut all = Vec::new();
        let failed = world.kills + world.stops + world.losses + world.orders + world.forged;
        let may_fail = failed < FAULTS;
        let stop = world.egresses.iter().filter(|egress| egress.begins_to_stop(world.tick)).count() as u64;
        if world.tick < PROLOGUE + TICKS && failed + stop <= FAULTS {
            all.push(Action::Tick);
        }
        for at in 0..2 {
            let egress = &world.egresses[at];
            let Some(election) = &egress.election else {
                all.push(Action::Start(at));
                continue;
            };
            let is_active = election.role() == Role::Active;
            // An egress can be killed only if the other egress knows, or learns from this batch, which messages were sent. A standby knows
            // this, and a listening egress learns it.
            let other = world.egresses[1 - at].election.as_ref().map(Election::role);
            let may_die = may_fail && world.kills < 2 && other.is_some();
            let is_known = other != Some(Role::Listen);
            // The order of the two turns in a tick makes no difference: a packet reaches the other egress's socket in any case.
            if egress.turned != world.tick && (at == 1 || world.egresses[1].turned != world.tick) {
                all.push(Action::Turn(at));
                if may_die && is_active && (is_known || egress.lives == 1) {
                    all.push(Action::DieInBatch(at));
                }
            }
            if may_die && is_known {
                all.push(Action::Kill(at));
            }
            if may_fail && world.orders == 0 && !is_active {
                all.push(Action::Order(at));
            }
            if may_fail && world.forged == 0 && is_active {
                all.push(Action::Forge(at));
            }
            if world.lost == 0 && !egress.packets.is_empty() {
                all.push(Action::LosePacket(at));
            }
            if may_fail && world.losses == 0 {
                all.extend((!egress.claims.is_empty()).then_some(Action::LoseClaims(at)));
                all.extend((!egress.packets.is_empty()).then_some(Action::LosePackets(at)));
            }
        }
        all
    }

    fn step(&self, world: &World, action: &Action) -> World {
        let mut next = world.clone();
        let now_ns = world.now_ns();
        match *action {
            Action::Turn(at) => self.turn(&mut next, at, 2),
            Action::DieInBatch(at) => {
                next.kills += 1;
                self.turn(&mut next, at, 1);
                next.kill(at);
            }
            Action::Kill(at) => {
                next.kills += 1;
                next.kill(at);
            }
            Action::Start(at) => next.start(at),
            Action::LoseClaims(at) => {
                next.losses += 1;
                next.egresses[at].claims.clear();
            }
            Action::LosePackets(at) => {
                next.losses += 1;
                next.egresses[at].packets.clear();
            }
            Action::LosePacket(at) => {
                next.lost += 1;
                next.egresses[at].packets.remove(0);
            }
            Action::Order(at) => {
                next.orders += 1;
                let is_at_once = self.fault == Some(Fault::ObeysAtOnce);
                next.egresses[at].election.iter_mut().for_each(|election| match is_at_once {
                    true => election.take(now_ns),
                    false => election.order(now_ns),
                });
            }
            Action::Forge(at) => {
                next.forged += 1;
                let claim = Claim {
                    session: session(),
                    claim: 9,
                    next: 1,
                    rank: 0,
                    role: Role::Active,
                    is_mirror: false,
                    stream: 7,
                    sender: 99,
                };
                next.egresses[at].claims.push((2, claim));
            }
            Action::Tick => {
                for egress in &mut next.egresses {
                    next.stops += u64::from(egress.begins_to_stop(world.tick));
                    egress.is_stopped = egress.election.is_some() && egress.turned != world.tick;
                }
                next.tick += 1;
                next.published += BATCH;
            }
        }
        next
    }

    fn identify(&self, world: &World, hasher: &mut impl Hasher) {
        let World { tick, published, egresses, lines, claimed, broken, .. } = world;
        (tick, published, lines, claimed, broken).hash(hasher);
        (world.kills, world.stops, world.losses, world.lost, world.orders, world.forged).hash(hasher);
        for egress in egresses {
            let Egress { election, lives, next, start_at, turned, is_stopped, claims, packets } = egress;
            (lives, next, start_at, *turned == *tick, is_stopped, election.is_some()).hash(hasher);
            for (from, claim) in claims {
                (from, claim.claim, claim.next, claim.sender, claim.role as u8).hash(hasher);
            }
            packets.hash(hasher);
            election.iter().for_each(|election| hash_election(election, hasher));
        }
    }

    fn broken(&self, world: &World) -> Option<&'static str> {
        world.broken.or_else(|| self.rest(world))
    }

    fn landmarks(&self, world: &World) -> u64 {
        let mut reached = world.reached;
        let mut active = 0;
        for election in world.egresses.iter().filter_map(|egress| egress.election.as_ref()) {
            match election.role() {
                Role::Listen => reached |= 4,
                Role::Standby => reached |= 8,
                Role::Active => active += 1,
            }
        }
        reached | if active == 2 { 16 } else { 0 }
    }
}

/// Passes all fields of an election to the hasher. The function does not compile if a field is missing here.
fn hash_election(election: &Election, hasher: &mut impl Hasher) {
    let Election {
        config: _,
        role,
        session: _,
        stream: _,
        is_mirror,
        claim,
        highest,
        other,
        better,
        line_ns,
        firsts,
        packets,
        seen,
        started_ns,
        turned_ns: _,
        claim_due_ns,
        ordered_until_ns,
        step,
        takeovers: _,
        yields: _,
    } = election;
    (*role as u8, is_mirror, claim, highest, better, line_ns, seen, started_ns).hash(hasher);
    (&firsts[..APART.min(*packets)], packets, claim_due_ns, ordered_until_ns).hash(hasher);
    match step {
        None => 0.hash(hasher),
        Some(Step::Take(_, from)) => (1, from).hash(hasher),
        Some(Step::Yield(_, until)) => (2, until).hash(hasher),
    }
    if let Some(Sending { claim, sender, next, claims, heard_ns, claimed_ns, .. }) = other {
        (claim, sender, next, claims, heard_ns, claimed_ns).hash(hasher);
    }
}

#[test]
fn two_egresses_leave_no_gap_and_one_sends_in_the_end() {
    let mutants = [
        (Fault::FromTheLiveEnd, NO_GAP),
        (Fault::OnlyWhatItHeard, NO_GAP),
        (Fault::BelievesClaims, NOT_FORGED),
        (Fault::Deaf, ONE_SENDS),
        (Fault::ObeysAtOnce, NO_GAP),
    ];
    check("senders of a stream", &[NO_GAP, ONE_SENDS, NOT_FORGED], &mutants, |fault| Senders { fault });
}
