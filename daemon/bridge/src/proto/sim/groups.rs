//! Tests in which many receivers lose the same packet. The tests measure requests, answers and waits.

use super::super::MICROSECOND_NS;
use super::super::gap::GapConfig;
use super::super::limit::Rate;
use super::super::replay::{MergeConfig, ReplayConfig};
use super::many::{Fate, Loss, Many, RTT_NS};
use super::number;

const PEERS: usize = 1_000;
/// The time between two packets, so that each loss is over before the next packet.
const APART_NS: u64 = 20 * RTT_NS;

/// The configuration of a server that can send repairs to all receivers.
fn merging() -> ReplayConfig {
    let rate = Rate { per_second: 1 << 40, burst: 1 << 34 };
    let merge = Some(MergeConfig::default());
    ReplayConfig { source_rate: rate, global_rate: rate, merge, ..ReplayConfig::default() }
}

/// The configuration of a server that sends each repair only to its asker.
fn single() -> ReplayConfig {
    ReplayConfig { merge: None, ..merging() }
}

fn round_trips(ns: u64) -> f64 {
    ns as f64 / RTT_NS as f64
}

/// In each round, a packet is lost by the receivers that `losers` returns. Returns the worst figures of all rounds.
fn worst(many: &mut Many, rounds: usize, mut losers: impl FnMut(usize) -> Vec<usize>) -> Fate {
    let first = many.fates.len();
    for round in 0..rounds {
        many.publish(&losers(round), APART_NS);
        (0..2).for_each(|_| many.publish(&[], APART_NS));
    }
    many.finish();
    let mut worst = Fate::default();
    for fate in many.fates[first..].iter().filter(|fate| fate.losers > 0) {
        worst.losers = fate.losers;
        worst.requests = worst.requests.max(fate.requests);
        worst.answers = worst.answers.max(fate.answers);
        worst.mended_ns = worst.mended_ns.max(fate.mended_ns);
    }
    worst
}

fn show(name: &str, fate: &Fate) {
    println!(
        "{name}, {} of {PEERS} lose a packet: at most {} requests and {} answers, all have it after {:.2} round trips",
        fate.losers,
        fate.requests,
        fate.answers,
        round_trips(fate.mended_ns)
    );
}

/// The positions of leases are spread over the tree: the first sixteen receivers are not on one branch.
#[test]
fn a_loss_of_many_draws_few_requests_and_two_answers() {
    let hold = round_trips(GapConfig::default().hold_ns);
    for losers in [1, 2, 10, 50, 300, PEERS] {
        let of = |round: usize| (0..losers).map(|at| (at * PEERS / losers + round * 7) % PEERS).collect();
        let mut before = Many::new(1, PEERS, Loss::default(), single(), false);
        show("alone", &worst(&mut before, 3, of));
        let mut many = Many::new(1, PEERS, Loss::default(), merging(), true);
        let fate = worst(&mut many, 10, of);
        show("merged", &fate);
        assert!(
            fate.requests <= if losers == PEERS { 24 } else { losers as u64 } && fate.answers <= 2,
            "{fate:?}"
        );
        let most = if losers == PEERS { 2.5 + hold } else { 4.5 };
        assert!(round_trips(fate.mended_ns) <= most, "{fate:?}");
    }
}

#[test]
fn a_packet_that_the_own_socket_dropped_is_asked_for_at_once() {
    let mut many = Many::new(2, PEERS, Loss::default(), merging(), true);
    let last = many.by_place()[PEERS - 1];
    let fates = [false, true].map(|is_own| {
        if is_own {
            many.drop_next(last);
        }
        let fate = worst(&mut many, 1, |_| if is_own { vec![] } else { vec![last] });
        show(if is_own { "own drop" } else { "on the way" }, &fate);
        fate
    });
    let hold = round_trips(GapConfig::default().hold_ns);
    assert!(round_trips(fates[0].mended_ns) <= 4.5);
    assert!(round_trips(fates[1].mended_ns) <= 1.5 + hold && fates[1].requests == 1);
}

/// All receivers with early positions are gone, and their leases have expired.
#[test]
fn places_close_up_when_receivers_leave() {
    let mut many = Many::new(3, PEERS, Loss::default(), merging(), true);
    many.by_place()[..900].iter().for_each(|&peer| many.kill(peer));
    (0..5).for_each(|_| many.renew());
    let fate = worst(&mut many, 10, |_| (0..PEERS).collect());
    show("after 900 left", &fate);
    assert!(fate.requests <= 24 && fate.answers <= 2, "{fate:?}");
    let hold = round_trips(GapConfig::default().hold_ns);
    assert!(round_trips(fate.mended_ns) <= 2.0 + hold, "{fate:?}");
}

/// A thousand receivers each lose one packet in a thousand, each on its own link. Half of the lost packets are lost by one or two
/// receivers. `SHMCAST_SIM_PACKETS` sets the number of packets.
#[test]
fn repairs_of_independent_losses_are_little_more_than_one_for_each_packet_that_anybody_lost() {
    let (packets, learning) = (number("SHMCAST_SIM_PACKETS", 400), 100);
    let [before, merged] = [(single(), false), (merging(), true)].map(|(server, leases)| {
        let mut many = Many::new(4, PEERS, Loss { leaf: 0.001, ..Loss::default() }, server, leases);
        (0..learning + packets).for_each(|_| many.publish(&[], RTT_NS));
        many.finish();
        let fates = &many.fates[learning as usize..(learning + packets) as usize];
        let lost = fates.iter().filter(|fate| fate.losers > 0).count() as f64;
        let (requests, answers) =
            fates.iter().fold((0, 0), |(asked, told), fate| (asked + fate.requests, told + fate.answers));
        let share = many.repair_bytes as f64 / many.feed_bytes as f64;
        println!(
            "0.1 % independent loss: {packets} packets, {lost} lost by anybody, {requests} requests, {answers} answers \
             ({:.3} for each), repairs are {:.1} % of the feed",
            answers as f64 / lost,
            100.0 * share
        );
        (share, answers as f64 / lost)
    });
    assert!(before.1 > 1.4, "each loser has an answer of its own");
    // With few packets, chance matters: of 1000 packets, 632 are lost by some receiver, plus or minus 15.
    let most = if packets < 3_000 { 1.06 } else { 1.03 };
    assert!(merged.1 <= most, "{} answers for a lost packet", merged.1);
    assert!(packets < 3_000 || merged.0 <= 0.65, "repairs are {} of the feed", merged.0);
}

/// Packets of the feed, requests and repairs are lost on every level of the tree at the same time.
#[test]
fn everything_is_mended_on_a_tree_that_loses_on_every_level() {
    let packets = number("SHMCAST_SIM_PACKETS", 60);
    let loss = Loss { uplink: 0.02, branch: 0.01, leaf: 0.005 };
    let [before, merged] = [(single(), false), (merging(), true)].map(|(server, leases)| {
        let mut many = Many::new(5, PEERS, loss, server, leases);
        (0..packets).for_each(|_| many.publish(&[], 2 * RTT_NS));
        many.finish();
        let worst_ns = many.fates.iter().map(|fate| fate.mended_ns).max().unwrap_or(0);
        let requests: u64 = many.fates.iter().map(|fate| fate.requests).sum();
        let share = many.repair_bytes as f64 / many.feed_bytes as f64;
        println!(
            "loss {loss:?}: {requests} requests, repairs are {:.1} times the feed, the last is mended after {:.1} round trips",
            share,
            round_trips(worst_ns)
        );
        (share, requests)
    });
    assert!(merged.0 * 4.0 < before.0 && merged.1 * 2 < before.1);
}

/// Some packets are lost by all receivers, and the server is allowed to send only one packet every 3 ms.
#[test]
fn all_are_told_at_once_to_wait() {
    const PACKETS: u64 = 20;
    let slow = Rate { per_second: 500_000, burst: 20_000 };
    for server in [single(), merging()] {
        let config = ReplayConfig { global_rate: slow, global_grows: false, ..server };
        let merges = config.merge.is_some();
        let mut many = Many::new(6, PEERS / 10, Loss::default(), config, merges);
        let all: Vec<usize> = (0..PEERS).collect();
        (0..PACKETS).for_each(|_| many.publish(&all, 50 * MICROSECOND_NS));
        let began_ns = many.now_ns;
        many.finish();
        let requests: u64 = many.fates.iter().map(|fate| fate.requests).sum();
        let counters = many.server.counters();
        println!(
            "{} pauses, {} replies, {requests} requests, {} ms",
            counters.totals.pauses,
            counters.totals.replies,
            (many.now_ns - began_ns) / 1_000_000
        );
        assert_eq!(counters.totals.pauses > 0, merges);
        if merges {
            assert!(counters.totals.replies <= PACKETS * 4);
        }
    }
}
