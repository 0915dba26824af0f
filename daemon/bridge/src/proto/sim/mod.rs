//! A seeded network of the bridge's state machines on a virtual clock.
//!
//! Each seed chooses a scenario and runs it to its end. A scenario can have:
//!
//! - loss up to 30 %, bursts, duplication, reordering, delay, corruption and blackouts,
//! - restarts of either end,
//! - one line or two, and one server or two,
//! - rings that are too small to repair everything.
//!
//! `world` checks every guarantee at every step. `SHMCAST_SIM_SEEDS` sets the number of seeds, and `SHMCAST_SIM_FIRST` the first seed.
//! Tests with a scenario of their own run one or two seeds by default, and 10 at night.

mod actors;
pub(super) mod check;
mod event;
mod forger;
mod groups;
mod many;
mod native;
mod net;
mod past;
mod scenario;
mod world;

use super::counters::Histogram;
use super::gap::{GapConfig, GapPolicy};
use super::receiver::{Join, Origin, Receiver, ReceiverConfig};
use super::sender::{Sender, SenderConfig};
use super::session::Session;
use super::{MICROSECOND_NS, MILLISECOND_NS};
use net::Profile;
use scenario::{FOLLOW, PAYLOAD_BYTES, Scenario, Totals, Wire};
use shmcast_testkit::number;
use world::World;

/// Reports the seed if its run fails.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with seed {0}: repeat with SHMCAST_SIM_FIRST={0} SHMCAST_SIM_SEEDS=1", self.0);
        }
    }
}

fn seeds(default: u64) -> std::ops::Range<u64> {
    let first = number("SHMCAST_SIM_FIRST", 0);
    first..first + number("SHMCAST_SIM_SEEDS", default)
}

fn run_all(seeds: std::ops::Range<u64>, scenario: impl Fn(u64) -> Scenario) -> Totals {
    let mut totals = Totals::default();
    for seed in seeds {
        let named = Seed(seed);
        let scenario = scenario(seed);
        let reorders = scenario.servers.iter().any(|(to, from)| to.reorder + from.reorder > 0.0);
        let run = World::new(seed, scenario).run();
        // The bytes that were served again must be little more than the bytes of lost answers. An answer that takes longer than several
        // round trips looks lost at first. So if the links of repairs reorder packets, some more bytes are allowed. A wrong first guess
        // also costs some datagrams.
        let lost = run.lost_repair_bytes + run.unusable_repair_bytes;
        let late = if reorders { run.first_round_bytes / 10 } else { 0 };
        let free = 12 * PAYLOAD_BYTES as u64 + late;
        let again = run.repeated_bytes;
        assert!(again <= lost * 12 / 10 + free, "served {again} bytes again, lost {lost}");
        totals.add(&run);
        drop(named);
    }
    totals
}

fn drawn_profile(rng: &mut fastrand::Rng, delay_ns: u64, harsh: bool) -> Profile {
    let pick = |rng: &mut fastrand::Rng, values: &[f64]| values[rng.usize(..values.len())];
    let mut profile = Profile { delay_ns, jitter_ns: rng.u64(0..=delay_ns / 4), ..Profile::default() };
    profile.loss = pick(rng, &[0.0, 0.001, 0.01, 0.05, 0.1, 0.2, 0.3]);
    if harsh {
        profile.burst_begins = pick(rng, &[0.0, 0.0, 0.005, 0.02]);
        profile.burst_ends = 0.3;
        profile.duplicate = pick(rng, &[0.0, 0.0, 0.02, 0.1]);
        profile.reorder = pick(rng, &[0.0, 0.0, 0.02, 0.2]);
        profile.late_ns = rng.u64(0..=500 * MICROSECOND_NS);
        profile.corrupt = pick(rng, &[0.0, 0.0, 0.01, 0.05]);
        if rng.u8(..) < 40 {
            let from = rng.u64(0..20 * MILLISECOND_NS);
            profile.blackouts.push(from..from + rng.u64(0..200 * MILLISECOND_NS));
        }
    }
    profile
}

fn drawn_gaps(rng: &mut fastrand::Rng, servers: usize, policy: GapPolicy, small: bool) -> GapConfig {
    let max_requests = if rng.bool() { 256 } else { rng.usize(1..16) };
    let max_holes: usize = if small { rng.usize(4..64) } else { 1_024 };
    GapConfig {
        servers,
        policy,
        payload_bytes: PAYLOAD_BYTES,
        max_requests,
        max_holes: max_holes.max(2 * max_requests),
        ..GapConfig::default()
    }
}

fn drawn_scenario(seed: u64) -> Scenario {
    let rng = &mut fastrand::Rng::with_seed(seed ^ 0x5EED);
    let delay_ns = (10 * MICROSECOND_NS) << rng.u32(0..8);
    let messages = rng.u64(20..1_500);
    let large_ring = rng.u8(..) < 150;
    let policy = match rng.u8(0..4) {
        0 if large_ring => GapPolicy::Block,
        1 => GapPolicy::Skip { give_up_ns: rng.u64(5..200) * MILLISECOND_NS },
        _ => GapPolicy::Skip { give_up_ns: u64::MAX },
    };
    let servers = (0..rng.usize(1..=2))
        .map(|_| (drawn_profile(rng, delay_ns, true), drawn_profile(rng, delay_ns, true)))
        .collect::<Vec<_>>();
    let ring_capacities =
        servers.iter().map(|_| if large_ring { 1 << 20 } else { rng.u64(16..messages.max(17)) }).collect();
    let lines = (0..rng.usize(1..=2)).map(|_| drawn_profile(rng, delay_ns, true)).collect::<Vec<_>>();
    let peers = rng.usize(1..=2);
    let small = rng.u8(..) < 60;
    let max_early_packets = if small { rng.usize(4..64) } else { 4_096 };
    let times = |rng: &mut fastrand::Rng| if rng.bool() { 0 } else { rng.usize(0..3) };
    let sender_restarts: Vec<(u64, bool)> =
        (0..times(rng)).map(|_| (rng.u64(1..=messages), rng.bool())).collect();
    // A start in the middle can be beyond the end of a later session. Then nothing of that session can be delivered.
    let middle = if sender_restarts.iter().any(|&(_, fresh)| fresh) { 1 } else { 11 };
    let join = [Join::FirstSeen, Join::FirstSeen, Join::From(1), Join::From(middle)][rng.usize(0..4)];
    let max_early_bytes = if small { max_early_packets * PAYLOAD_BYTES / rng.usize(1..4) } else { 8 << 20 };
    let gaps = drawn_gaps(rng, servers.len(), policy, small);
    let config = ReceiverConfig {
        join,
        lines: lines.len(),
        max_early_packets,
        max_early_bytes,
        gaps,
        ..ReceiverConfig::following(FOLLOW)
    };
    let peer_restarts = (0..times(rng)).map(|_| (rng.u64(1..=messages), rng.usize(0..peers))).collect();
    Scenario {
        lines,
        servers,
        peers,
        messages,
        max_message: [16, 64, 300, 1_378][rng.usize(0..4)],
        burst: rng.u64(1..40),
        pace_ns: rng.u64(1..200) * MICROSECOND_NS,
        ring_capacities,
        config,
        sender_restarts,
        peer_restarts,
        ends: rng.bool(),
        knows_rtt: rng.bool(),
        server_rate: (rng.u8(..) < 60).then(|| rng.u64(100_000..5_000_000)),
        journal: None,
        forger: false,
        wire: Wire::Plain,
    }
}

/// Every link loses the same share of datagrams in both directions, and there is no other fault. The figures are measured with this
/// scenario.
fn plain_scenario(loss: f64, one_way_ns: u64, lines: usize, messages: u64) -> Scenario {
    let profile = Profile { loss, delay_ns: one_way_ns, jitter_ns: one_way_ns / 20, ..Profile::default() };
    let gaps = GapConfig { policy: GapPolicy::Block, payload_bytes: PAYLOAD_BYTES, ..GapConfig::default() };
    Scenario {
        lines: vec![profile.clone(); lines],
        servers: vec![(profile.clone(), profile)],
        peers: 1,
        messages,
        max_message: 200,
        burst: 20,
        pace_ns: 20 * MICROSECOND_NS,
        ring_capacities: vec![1 << 20],
        config: ReceiverConfig { join: Join::From(1), lines, gaps, ..ReceiverConfig::following(FOLLOW) },
        sender_restarts: Vec::new(),
        peer_restarts: Vec::new(),
        ends: true,
        knows_rtt: true,
        server_rate: None,
        journal: None,
        forger: false,
        wire: Wire::Plain,
    }
}

const OUTAGE_MESSAGES: u64 = 30_000;

/// A sender and its server are gone for a second and come back, with a ring that has everything. With a low `server_rate`, catching up
/// takes longer than receivers would wait for a silent server.
fn outage_scenario(loss: f64, server_rate: Option<u64>) -> Scenario {
    let mut scenario = plain_scenario(loss, 50 * MICROSECOND_NS, 1, OUTAGE_MESSAGES);
    let outage = 300 * MILLISECOND_NS..1_300 * MILLISECOND_NS;
    let (to, from) = &mut scenario.servers[0];
    for profile in [&mut scenario.lines[0], to, from] {
        profile.blackouts.push(outage.clone());
    }
    scenario.config.gaps.policy = GapConfig::default().policy;
    Scenario { pace_ns: 500 * MICROSECOND_NS, server_rate, ..scenario }
}

#[test]
fn whatever_the_network_does_the_published_prefix_arrives() {
    let default = if cfg!(debug_assertions) { 100 } else { 2_000 };
    let totals = run_all(seeds(default), drawn_scenario);
    println!(
        "{} runs, {} messages delivered, {} given as gaps, {} sessions, {} malformed datagrams, longest run {} ms",
        totals.runs,
        totals.delivered,
        totals.gap_messages,
        totals.sessions,
        totals.malformed,
        totals.longest_ns / MILLISECOND_NS
    );
    println!(
        "lost {} B on lines; served {} B a first time ({} B of it had come on a line, late or into a full store) and {} B again; {} B of answers lost, {} B refused; repeat ratio {:.3}",
        totals.lost_bytes,
        totals.first_round_bytes,
        totals.needless_bytes,
        totals.repeated_bytes,
        totals.lost_repair_bytes,
        totals.unusable_repair_bytes,
        totals.repeat_ratio()
    );
    assert!(totals.delivered > 0 && totals.malformed > 0);
}

#[test]
fn recovery_takes_few_round_trips_and_few_bytes() {
    for (loss, lines) in [(0.01, 1), (0.05, 2), (0.05, 1), (0.2, 1), (0.3, 1)] {
        for one_way_ns in [50 * MICROSECOND_NS, MILLISECOND_NS] {
            let totals = run_all(seeds(2), |_| plain_scenario(loss, one_way_ns, lines, 20_000));
            let rtts = |share| totals.recovery.quantile_ns(share) as f64 / (2 * one_way_ns) as f64;
            let (p50, p99, p999) = (rtts(0.5), rtts(0.99), rtts(0.999));
            let max = totals.recovery.max_ns() as f64 / (2 * one_way_ns) as f64;
            let served = totals.first_round_bytes + totals.repeated_bytes;
            let ratio = served as f64 / (totals.lost_bytes + totals.lost_repair_bytes).max(1) as f64;
            println!(
                "loss {loss} on {lines} line(s), RTT {} us: recovery p50 {p50:.2} p99 {p99:.2} p99.9 {p999:.2} max {max:.1} round trips \
                 of {} messages; bytes served/lost {ratio:.3}, again/lost {:.3}",
                2 * one_way_ns / MICROSECOND_NS,
                totals.recovery.count(),
                totals.repeat_ratio()
            );
            assert!(totals.gap_messages == 0 && totals.recovery.count() > 0);
            assert!(ratio <= 1.2, "served {ratio:.3} bytes for each byte lost");
            if loss <= 0.01 {
                assert!(p50 <= 3.0 && p99 <= 10.0);
            }
        }
    }
}

#[test]
fn nothing_is_given_up_that_a_server_holds_and_sends_in_turn() {
    let GapPolicy::Skip { give_up_ns } = GapConfig::default().policy else { panic!("the default gives up") };
    for (loss, server_rate) in [(0.0, None), (0.2, None), (0.0, Some(250_000)), (0.2, Some(250_000))] {
        let totals = run_all(0..1, |_| outage_scenario(loss, server_rate));
        println!(
            "outage of 1 s, loss {loss}, repairs at {server_rate:?} B/s: {} messages, {} recovered, all there after {} ms",
            totals.delivered,
            totals.recovery.count(),
            totals.longest_ns / MILLISECOND_NS,
        );
        assert_eq!((totals.gap_messages, totals.delivered), (0, OUTAGE_MESSAGES));
        // The run must have a hole that lasts long enough to be given up.
        assert!(server_rate.is_none() || totals.recovery.max_ns() > give_up_ns);
    }
}

/// A forger sends one packet of every kind, one after the other. The networks differ in their losses, servers and lines.
#[test]
fn no_single_forged_packet_costs_a_message() {
    for (loss, servers, lines) in [(0.0, 0, 1), (0.0, 0, 2), (0.0, 1, 1), (0.05, 1, 1), (0.05, 2, 2)] {
        let totals = run_all(seeds(2), |_| {
            let mut scenario = plain_scenario(loss, 50 * MICROSECOND_NS, lines, 20_000);
            scenario.servers.resize(servers, scenario.servers[0].clone());
            scenario.ring_capacities.resize(servers, 1 << 20);
            scenario.config.gaps.servers = servers;
            scenario.config.gaps.policy = GapPolicy::Skip { give_up_ns: 30 * MILLISECOND_NS };
            Scenario { pace_ns: 500 * MICROSECOND_NS, forger: true, ..scenario }
        });
        println!(
            "{} forgeries, loss {loss}, {servers} servers: {} messages, recovery p99 {} us",
            totals.forged,
            totals.delivered,
            totals.recovery.quantile_ns(0.99) / MICROSECOND_NS
        );
        assert!(totals.forged >= 5 * totals.runs, "{} forgeries", totals.forged);
        assert_eq!((totals.gap_messages, totals.delivered), (0, totals.runs * 20_000));
        assert_eq!(totals.sessions, totals.runs);
    }
}

/// The second server is dead from the start.
#[test]
fn a_dead_second_server_costs_no_round_trip() {
    for loss in [0.01, 0.05, 0.2] {
        let one_way_ns = 50 * MICROSECOND_NS;
        let [alone, with_dead] = [false, true].map(|is_there| {
            let totals = run_all(seeds(3), |_| {
                let mut scenario = plain_scenario(loss, one_way_ns, 1, 100_000);
                scenario.pace_ns = 200 * MICROSECOND_NS;
                scenario.config.gaps.policy = GapConfig::default().policy;
                scenario.config.gaps.servers = 1 + usize::from(is_there);
                if is_there {
                    let dead = Profile { loss: 1.0, ..Profile::default() };
                    scenario.servers.push((dead.clone(), dead));
                    scenario.ring_capacities.push(1 << 20);
                }
                scenario.knows_rtt = false;
                scenario
            });
            assert_eq!(totals.gap_messages, 0);
            totals.recovery
        });
        let p99 = |recovery: &Histogram| recovery.quantile_ns(0.99) as f64 / (2 * one_way_ns) as f64;
        println!(
            "loss {loss}: p99 {:.2} round trips, {:.2} with a dead server",
            p99(&alone),
            p99(&with_dead)
        );
        // At 1 % loss, the quantile lies between a first answer and a second one, which are two round trips apart.
        assert!(p99(&with_dead) <= p99(&alone) + if loss < 0.05 { 2.0 } else { 1.0 });
    }
}

/// The last packet of a sender is lost, and then the sender is idle. Heartbeats can be lost, too.
#[test]
fn lost_tail_is_noticed_within_a_millisecond() {
    let mut noticed = Histogram::default();
    for seed in 0..2_000 {
        let _named = Seed(seed);
        let rng = &mut fastrand::Rng::with_seed(seed);
        let session = Session::of_channel("SIM", 1).unwrap();
        let delay_ns = rng.u64(1..1_000) * MICROSECOND_NS;
        let mut sender = Sender::new(SenderConfig::default(), session, 1, 0);
        let mut receiver = Receiver::new(ReceiverConfig::following(FOLLOW));
        sender.push(1, b"arrives").unwrap();
        sender.close();
        sender
            .datagrams()
            .for_each(|first| receiver.handle_datagram(delay_ns, Origin::Line(0), first, &mut |_| {}));
        sender.clear(0);
        sender.push(2, b"is lost").unwrap();
        sender.close();
        let sent_ns = rng.u64(0..200 * MICROSECOND_NS);
        sender.clear(sent_ns);
        while receiver.horizon() < 3 {
            let now_ns = sender.next_deadline(sent_ns).expect("a sender that has not ended");
            let beat = sender.poll_idle(now_ns).expect("the deadline has come");
            if rng.f64() >= 0.01 {
                receiver.handle_datagram(now_ns + delay_ns, Origin::Line(0), &beat, &mut |_| {});
                noticed.record(now_ns - sent_ns, u64::from(receiver.horizon() == 3));
            }
        }
    }
    let (p99, p9999) = (noticed.quantile_ns(0.99), noticed.quantile_ns(0.9999));
    println!("lost tail noticed after p99 {p99} ns, p99.99 {p9999} ns, max {} ns", noticed.max_ns());
    assert!(p99 <= MILLISECOND_NS && noticed.count() == 2_000);
}
