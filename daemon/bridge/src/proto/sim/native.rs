//! The ends of native lines in the simulation: they seal and open packets as the threads do.

use super::super::control::{CONTROL_MAX_BYTES, ControlDatagram};
use super::super::counters::Histogram;
use super::super::gap::GapPolicy;
use super::super::native::ask::{self, Entry, MAX_ENTRIES};
use super::super::native::container::{Container, HEAD_BYTES, Kind};
use super::super::native::keys::Keyring;
use super::super::native::seal::{Opener, Sealer, Unopened};
use super::super::receiver::{Delivery, Origin, Receiver, ReceiverConfig};
use super::super::session::Session;
use super::super::{MICROSECOND_NS, MILLISECOND_NS};
use super::check::mix;
use super::scenario::{PAYLOAD_BYTES, Scenario, Wire};
use super::{drawn_scenario, plain_scenario, run_all, seeds};

pub(crate) fn keyring() -> Keyring {
    Keyring::parse("3 00112233445566778899aabbccddeeff").unwrap()
}

/// Seals the packets that a sender, server or receiver sends, and opens those that it receives.
#[derive(Debug)]
pub struct Codec {
    pub sealer: Sealer,
    opener: Opener,
}

impl Codec {
    pub(crate) fn new(sender: u64, is_receiver: bool, wire: Wire) -> Codec {
        let (mut sealer, mut opener) = (sealer(sender, is_receiver, wire), Opener::new(!is_receiver, 4));
        sealer.set_key(keyring().sealing(0).filter(|_| wire == Wire::Sealed));
        opener.set_keys((wire == Wire::Sealed).then(keyring), wire == Wire::Native);
        Codec { sealer, opener }
    }

    pub(crate) fn open(&mut self, now_ns: u64, datagram: &[u8]) -> Result<Vec<u8>, Unopened> {
        let mut out = vec![0; datagram.len()];
        let size = self.opener.open(now_ns, datagram, &mut out)?;
        out.truncate(size);
        Ok(out)
    }

    fn ask(&mut self, session: Session, entries: &[Entry]) -> Vec<u8> {
        let mut out = vec![0; PAYLOAD_BYTES];
        let body = ask::write(entries.iter().copied(), &mut out[HEAD_BYTES..]);
        let about = (session, entries[0].first, 0);
        let size = self.sealer.finish(&mut out, (Kind::Ask, false), about, body).unwrap();
        out.truncate(size);
        out
    }
}

pub(crate) fn sealer(sender: u64, is_receiver: bool, wire: Wire) -> Sealer {
    let mut sealer = Sealer::new(mix(sender, 0x5EA1), is_receiver);
    sealer.set_key(keyring().sealing(0).filter(|_| wire == Wire::Sealed));
    sealer
}

/// Gives a native packet to a receiver, as the receiving thread does.
pub(crate) fn take(
    now_ns: u64,
    origin: Origin,
    bytes: &[u8],
    (codec, receiver): (&mut Codec, &mut Receiver),
    sink: &mut impl FnMut(Delivery<'_>),
) {
    let head = Container::parse(bytes).ok().map(|(container, _)| (container.session, container.head()));
    if let Some((session, head)) = head
        && matches!(origin, Origin::Line(_))
        && receiver.is_old(session, &head)
    {
        return receiver.note_copy(now_ns, origin, &head);
    }
    let opened = match (codec.open(now_ns, bytes), head) {
        (Ok(opened), _) => opened,
        (Err(Unopened::Malformed(reason)), _) => return receiver.count_malformed(reason),
        (Err(Unopened::Replayed), Some((_, head))) => return receiver.note_copy(now_ns, origin, &head),
        (Err(_), _) => return,
    };
    let (container, body) = Container::parse(&opened).unwrap();
    let (Origin::Server(server), Kind::Control(kind)) = (origin, container.kind) else {
        return receiver.handle_datagram(now_ns, origin, &opened, sink);
    };
    let mut control = [0; CONTROL_MAX_BYTES];
    let Some(size) = ControlDatagram::from_body(kind, body, &mut control) else { return };
    match ControlDatagram::parse(&control[..size]) {
        Ok(ControlDatagram::Gone { session, first, oldest }) => {
            receiver.handle_gone(now_ns, server, (session, first, oldest), sink);
        }
        Ok(ControlDatagram::Later { session, first }) => {
            receiver.handle_later(now_ns, server, (session, first))
        }
        Ok(ControlDatagram::Held { session, first, next, .. }) => {
            receiver.handle_held(now_ns, server, (session, first, next), sink);
        }
        _ => {}
    }
}

/// Returns the next request of a receiver, sealed, and the server to which it goes.
pub(crate) fn poll_ask(now_ns: u64, codec: &mut Codec, receiver: &mut Receiver) -> Option<(usize, Vec<u8>)> {
    let mut entries = [Entry { first: 0, count: 0, offset: 0, bytes: 0 }; MAX_ENTRIES];
    let (server, session, count) = receiver.poll_ask(now_ns, &mut entries)?;
    Some((server, codec.ask(session, &entries[..count])))
}

fn native(scenario: Scenario, wire: Wire, max_message: usize) -> Scenario {
    let config = ReceiverConfig { is_native: true, ..scenario.config };
    Scenario { wire, max_message, config, ..scenario }
}

/// Native lines pass the same simulations as plain lines. Their messages have marks and can be many packets long.
#[test]
fn native_lines_carry_marks_and_large_messages_through_any_network() {
    let default = if cfg!(debug_assertions) { 12 } else { 1_000 };
    for wire in [Wire::Native, Wire::Sealed] {
        let totals = run_all(seeds(default), |seed| {
            let scenario = drawn_scenario(seed);
            let max_message = [64, 1_378, 5_000, 60_000][seed as usize % 4];
            let reassembly_bytes = [1 << 10, 1 << 17, 32 << 20][seed as usize % 3];
            let mut scenario = native(scenario, wire, max_message);
            scenario.config.reassembly_bytes = reassembly_bytes;
            // A slow server needs a long time for long messages, so the rate is raised.
            scenario.server_rate = scenario.server_rate.map(|rate| rate.max(2_000_000));
            scenario.messages = scenario.messages.min(4_000_000 / max_message as u64).max(20);
            for ring in &mut scenario.ring_capacities {
                *ring = (*ring).max(16);
            }
            scenario
        });
        println!(
            "{wire:?}: {} runs, {} messages, {} as gaps, {} malformed, {} fragments, {} refused, longest run {} ms",
            totals.runs,
            totals.delivered,
            totals.gap_messages,
            totals.malformed,
            totals.fragments,
            totals.fragments_refused,
            totals.longest_ns / MILLISECOND_NS
        );
        assert!(totals.delivered > 0 && totals.malformed > 0 && totals.fragments > 0);
    }
}

/// If a server has everything, no message is lost, at every rate of loss, and recovery takes few round trips.
#[test]
fn native_recovery_is_as_fast_as_plain() {
    let one_way_ns = 50 * MICROSECOND_NS;
    for (loss, lines) in [(0.01, 1), (0.05, 2), (0.2, 1)] {
        let recovery = [Wire::Plain, Wire::Native, Wire::Sealed].map(|wire| {
            let totals = run_all(seeds(1), |_| {
                let scenario = plain_scenario(loss, one_way_ns, lines, 20_000);
                if wire == Wire::Plain { scenario } else { native(scenario, wire, 200) }
            });
            assert_eq!((totals.gap_messages, totals.delivered), (0, totals.runs * 20_000));
            totals.recovery
        });
        let rtts = |recovery: &Histogram, share| recovery.quantile_ns(share) as f64 / (2 * one_way_ns) as f64;
        let shown = recovery.each_ref().map(|r| format!("p50 {:.2} p99 {:.2}", rtts(r, 0.5), rtts(r, 0.99)));
        println!(
            "loss {loss} on {lines} line(s): plain {}, native {}, sealed {}",
            shown[0], shown[1], shown[2]
        );
        if loss <= 0.01 {
            assert!(recovery.iter().all(|r| rtts(r, 0.5) <= 3.0 && rtts(r, 0.99) <= 10.0));
        }
    }
}

/// A forger without the key sends thousands of packets of each kind, on lines and in a server's name.
#[test]
fn a_forger_without_the_key_costs_a_sealed_line_nothing() {
    let totals = run_all(seeds(1), |_| {
        let mut scenario = native(plain_scenario(0.0, 50 * MICROSECOND_NS, 1, 20_000), Wire::Sealed, 3_000);
        scenario.config.gaps.policy = GapPolicy::Skip { give_up_ns: 30 * MILLISECOND_NS };
        Scenario { forger: true, ..scenario }
    });
    println!("{} forgeries: {} messages", totals.forged, totals.delivered);
    assert!(totals.forged >= 1_000 * totals.runs, "{} forgeries", totals.forged);
    assert_eq!((totals.gap_messages, totals.delivered), (0, totals.runs * 20_000));
    assert_eq!(totals.sessions, totals.runs);
}

/// A message of 16 MiB arrives completely, although one in a hundred packets is lost in each direction.
#[test]
fn the_largest_message_is_mended_by_its_parts() {
    const MESSAGES: u64 = 2;
    for wire in [Wire::Native, Wire::Sealed] {
        let totals = run_all(seeds(1), |_| {
            let mut scenario = native(plain_scenario(0.01, 50 * MICROSECOND_NS, 1, MESSAGES), wire, 16 << 20);
            scenario.config.gaps.policy = GapPolicy::Skip { give_up_ns: 2_000 * MILLISECOND_NS };
            scenario.burst = 1;
            scenario.pace_ns = 20 * MILLISECOND_NS;
            scenario
        });
        assert_eq!((totals.gap_messages, totals.delivered), (0, totals.runs * MESSAGES));
        println!("{wire:?}: {} fragments, {} refused", totals.fragments, totals.fragments_refused);
    }
}

/// A forger makes recovery no slower. Large messages after a hole wait until the hole is repaired, even if the feed is fast, and even if
/// live and repair threads report different times for a message. Otherwise the server would have to send these messages again and again.
#[test]
fn a_forger_and_losses_together_slow_no_recovery() {
    let one_way_ns = 50 * MICROSECOND_NS;
    for (max_message, pace_ns) in [(200, 20), (3_000, 100), (3_000, 20)] {
        for forger in [false, true] {
            let totals = run_all(seeds(1), |_| {
                let scenario = plain_scenario(0.05, one_way_ns, 1, 5_000);
                let scenario = native(scenario, Wire::Sealed, max_message);
                Scenario { forger, pace_ns: pace_ns * MICROSECOND_NS, ..scenario }
            });
            let rtts = |share| totals.recovery.quantile_ns(share) as f64 / (2 * one_way_ns) as f64;
            println!(
                "messages to {max_message} B, 20 each {pace_ns} us, {} forgeries: recovery p50 {:.2} p99 {:.2} round trips, \
                 longest run {} ms, {} fragments, {} refused",
                totals.forged,
                rtts(0.5),
                rtts(0.99),
                totals.longest_ns / MILLISECOND_NS,
                totals.fragments,
                totals.fragments_refused
            );
            assert_eq!((totals.gap_messages, totals.delivered), (0, totals.runs * 5_000));
            assert_eq!(totals.fragments_refused, 0);
            assert!(rtts(0.5) <= 3.0 && rtts(0.99) <= 10.0);
            assert!(totals.longest_ns < 500 * MILLISECOND_NS, "it falls behind the feed");
        }
    }
}
