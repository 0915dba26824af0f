//! Notices that nothing of the feed arrives, or that the feed stands still, and says what to check.

use crate::proto::SECOND_NS;
use crate::spec::{BridgeSpec, LineSpec, ReceiveSpec};

/// A silence is reported after this time. A sender sends heartbeats more often.
const SILENT_NS: u64 = 5 * SECOND_NS;
/// Native packets on plain lines are reported until this time after the last such packet. Their sender sends at least one packet each
/// second.
const NATIVE_NS: u64 = 10 * SECOND_NS;
const DAY_S: u64 = 86_400;

/// The silence of a feed.
#[derive(Debug, Default)]
pub(super) struct Silence {
    /// The time of the last packet of the feed, in seconds since 1970; `None` if the feed is not silent.
    since_s: Option<u64>,
    /// Datagrams of any kind that had arrived on the lines when the silence began.
    datagrams: u64,
    /// Packets that could not be opened, counted until the silence began.
    unopened: u64,
    /// The message for which the receiver waits, and the time since which it waits, by the receiver's clock.
    waits: Option<(u64, u64)>,
}

/// The state of a feed, as its receiver knows it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heard {
    /// The time of the receiver's clock. Nobody can set this clock, unlike the wall clock.
    pub(super) now_ns: u64,
    /// The time since the last packet of the feed, or since the start.
    pub(super) silence_ns: u64,
    /// Datagrams of any kind that arrived on the lines so far.
    pub(super) datagrams: u64,
    /// Packets so far whose seal was false or missing, or whose key is not known here.
    pub(super) unopened: u64,
    /// The time at which the last native packet arrived on plain lines.
    pub(super) native_ns: Option<u64>,
    pub(super) answer: Answer,
    /// The next message, if later messages are known and the spec forbids to give it up.
    pub(super) waits_for: Option<u64>,
}

/// The answer of the repair servers so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Nothing,
    Something,
    /// No server has given a lease for the feed, and a server had no room for this lease.
    Full,
}

impl Silence {
    /// Returns a sentence about the silence; `None` if the feed is not silent. `wall_ns` is the time in nanoseconds since 1970. While
    /// nothing changes, the sentence stays the same, except for the number of days in it.
    pub(super) fn look(&mut self, heard: Heard, wall_ns: u64, places: &Places) -> Option<String> {
        if heard.silence_ns < SILENT_NS {
            (self.since_s, self.datagrams, self.unopened) = (None, heard.datagrams, heard.unopened);
            return self.standstill(heard.waits_for, heard.now_ns);
        }
        let now_s = wall_ns / SECOND_NS;
        let since_s = *self.since_s.get_or_insert(wall_ns.saturating_sub(heard.silence_ns) / SECOND_NS);
        let is_fresh = |since_ns: u64| heard.now_ns.saturating_sub(since_ns) < NATIVE_NS;
        if heard.native_ns.is_some_and(is_fresh) {
            return Some(format!(
                "packets of a native line arrive on {}, and are not taken: set profile = \"native\"",
                places.feed
            ));
        }
        if heard.unopened > self.unopened {
            return Some(format!(
                "packets arrive on {} that do not open: compare the keys file with the sender's (shmcast bridge key show). All hosts of a \
                 feed need the same keys",
                places.feed
            ));
        }
        let what = match heard.datagrams > self.datagrams {
            true => "no packet of the feed has arrived, although others do,",
            false => "nothing has arrived",
        };
        let days = match now_s.saturating_sub(since_s) / DAY_S {
            0 => String::new(),
            days => format!(" ({days} days ago)"),
        };
        let Places { feed, servers } = places;
        let answers = match heard.answer {
            Answer::Nothing if !servers.is_empty() => {
                format!(
                    ". No server has answered: {servers}; a server answers only hosts that its `allow` lists"
                )
            }
            Answer::Full => {
                format!(". No server has a place for a lease: raise send.repair.max_leases at {servers}")
            }
            Answer::Nothing | Answer::Something => String::new(),
        };
        Some(format!(
            "{what} on {feed} since {} UTC{days}: check that the sender runs and sends there, that the interface here is in its network, \
             and that no firewall or switch is in the way{answers}",
            time_of_day(since_s)
        ))
    }

    /// Returns a sentence if the receiver has waited for one message for some time, although later messages have arrived.
    fn standstill(&mut self, waits_for: Option<u64>, now_ns: u64) -> Option<String> {
        self.waits = match (waits_for, self.waits) {
            (Some(next), Some((before, since_ns))) if next == before => Some((next, since_ns)),
            (Some(next), _) => Some((next, now_ns)),
            (None, _) => None,
        };
        let (next, _) = self.waits.filter(|(_, since_ns)| now_ns.saturating_sub(*since_ns) >= SILENT_NS)?;
        Some(format!(
            "the feed stands still at message {next}: no server has sent it, and gap = \"block\" waits for it for ever. Give a server that \
             has it in its ring or journal, or set gap = \"skip\""
        ))
    }
}

fn time_of_day(since_s: u64) -> String {
    let second = since_s % DAY_S;
    format!("{:02}:{:02}:{:02}", second / 3_600, second / 60 % 60, second % 60)
}

/// The addresses from which a receiver gets its feed and its repairs, as texts for people.
#[derive(Debug, Default)]
pub(super) struct Places {
    feed: String,
    servers: String,
}

impl Places {
    pub(super) fn of(spec: &BridgeSpec, receive: &ReceiveSpec) -> Places {
        let servers: Vec<_> = receive.servers.iter().map(ToString::to_string).collect();
        let servers = servers.join(", ");
        let lines = spec.lines.iter().map(name_of);
        let unicast = receive.unicast.then(|| format!("the lease of {servers}"));
        Places { feed: lines.chain(unicast).collect::<Vec<_>>().join(" and "), servers }
    }
}

fn name_of(line: &LineSpec) -> String {
    match (&line.interface, line.group.ip().is_multicast()) {
        (Some(interface), _) => format!("{} (interface {interface})", line.group),
        (None, true) => format!("{} (interface of the kernel's choice)", line.group),
        (None, false) => line.group.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing_heard() -> Heard {
        Heard {
            now_ns: 0,
            silence_ns: 0,
            datagrams: 0,
            unopened: 0,
            native_ns: None,
            answer: Answer::Nothing,
            waits_for: None,
        }
    }

    #[test]
    fn packets_that_do_not_open_are_told_after_a_silence() {
        let (mut silence, places) = (Silence::default(), Places::default());
        let mut look = |silent_s: u64, unopened| {
            let heard = Heard { silence_ns: silent_s * SECOND_NS, datagrams: 9, unopened, ..nothing_heard() };
            silence.look(heard, 1_000 * SECOND_NS, &places)
        };
        // If the packets of the feed can be opened, forged packets are no reason to report a problem of the keys.
        assert_eq!((look(0, 0), look(1, 7)), (None, None));
        assert!(look(5, 7).unwrap().starts_with("nothing has arrived on "));
        let said = look(6, 8).unwrap();
        assert!(said.contains(" that do not open: compare the keys file with the sender's"), "{said}");
        assert_eq!(look(1, 8), None);
    }

    #[test]
    fn native_packets_on_silent_plain_lines_are_told_for_some_time() {
        let (mut silence, places) = (Silence::default(), Places::default());
        let mut look = |now_s: u64, native_s: Option<u64>| {
            let native_ns = native_s.map(|native_s| native_s * SECOND_NS);
            let silence_ns = if native_s == Some(19) { 0 } else { SILENT_NS };
            let heard = Heard { now_ns: now_s * SECOND_NS, silence_ns, native_ns, ..nothing_heard() };
            silence.look(heard, SILENT_NS, &places)
        };
        assert_eq!(look(19, Some(19)), None, "the feed itself is heard");
        assert!(look(20, Some(20)).unwrap().ends_with("set profile = \"native\""));
        assert!(look(29, Some(20)).is_some());
        assert!(look(30, Some(20)).unwrap().starts_with("nothing has arrived"));
    }

    #[test]
    fn a_silence_is_told_with_its_beginning_and_its_place() {
        let line = LineSpec {
            interface: Some("eth0".to_owned()),
            ..LineSpec::to("239.1.2.3:30001".parse().unwrap())
        };
        let spec = BridgeSpec { lines: vec![line], ..BridgeSpec::new("ticks") };
        let receive =
            ReceiveSpec { servers: vec!["10.0.0.1:30002".parse().unwrap()], ..ReceiveSpec::default() };
        let places = Places::of(&spec, &receive);
        let mut silence = Silence::default();
        let mut look = |silent_s: u64, wall_s: u64, datagrams, has_answer| {
            let answer = if has_answer { Answer::Something } else { Answer::Nothing };
            let heard = Heard { silence_ns: silent_s * SECOND_NS, datagrams, answer, ..nothing_heard() };
            silence.look(heard, wall_s * SECOND_NS, &places)
        };
        assert_eq!(look(4, 1_004, 7, false), None);
        let said = look(5, 1_005, 7, false).unwrap();
        assert!(said.starts_with(
            "nothing has arrived on 239.1.2.3:30001 (interface eth0) since 00:16:40 UTC: check"
        ));
        assert!(said.contains("No server has answered: 10.0.0.1:30002; "), "{said}");
        assert_eq!(look(900, 1_901, 7, false), Some(said.clone()), "the same words, whatever the clocks say");
        let said = look(901, 1_902, 8, true).unwrap();
        assert!(said.starts_with("no packet of the feed has arrived, although others do, on 239"), "{said}");
        assert!(!said.contains("No server"), "{said}");
        let said = look(90_000, 91_000, 8, true).unwrap();
        assert!(said.contains("00:16:40 UTC (1 days ago)"), "{said}");
        assert_eq!(look(0, 91_000, 9, true), None);
        assert!(look(6, 91_010, 9, true).unwrap().contains("since 01:16:44 UTC"));
        let full = Heard { silence_ns: 6 * SECOND_NS, datagrams: 9, answer: Answer::Full, ..nothing_heard() };
        let said = silence.look(full, 0, &places).unwrap();
        assert!(said.ends_with("raise send.repair.max_leases at 10.0.0.1:30002"), "{said}");
    }

    /// An earlier mistake: the wait was measured by the wall clock, which can be set.
    #[test]
    fn a_feed_that_stands_still_is_told_until_it_goes_on() {
        let (mut silence, places) = (Silence::default(), Places::default());
        let (mut walls_s, answer) = ([1_000_000, 5, 900_000].into_iter().cycle(), Answer::Something);
        let mut look = |now_s: u64, waits_for| {
            let now_ns = now_s * SECOND_NS;
            let heard = Heard { now_ns, datagrams: 1, answer, waits_for, ..nothing_heard() };
            silence.look(heard, walls_s.next().unwrap() * SECOND_NS, &places)
        };
        assert_eq!(
            (look(10, Some(7)), look(14, Some(7)), look(15, Some(8)), look(19, None)),
            (None, None, None, None)
        );
        assert_eq!(look(20, Some(8)), None);
        let said = look(25, Some(8)).unwrap();
        assert!(said.starts_with("the feed stands still at message 8: "), "{said}");
        assert_eq!(look(26, Some(9)), None);
    }
}
