//! The packets that `shmcast bridge check` hears on the lines of a receiver, and how many of them the receiver can use.

use crate::cli::figures::grouped;
use shmcast_bridge::proto::native::is_native;
use shmcast_bridge::proto::native::seal::{Opener, Unopened};
use shmcast_bridge::proto::wire::{Downstream, MAX_DATAGRAM_BYTES};
use shmcast_bridge::read_keys;
use shmcast_bridge::spec::{BridgeSpec, Profile};
use shmcast_engine::check::Verdict;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

/// The largest number of senders whose packets are opened at the same time.
const MOST_SENDERS: usize = 64;

/// The counts of packets on each line. A packet is judged in the same way as by the receiver that has this configuration.
#[derive(Debug)]
pub(super) struct Heard {
    profile: Profile,
    opener: Opener,
    scratch: Vec<u8>,
    lines: BTreeMap<SocketAddr, Tally>,
}

/// The packets of one line.
#[derive(Debug, Default, Clone, Copy)]
struct Tally {
    packets: u64,
    /// Packets that the receiver can use.
    of_use: u64,
    /// Native packets that the receiver's keys cannot open.
    unopened: u64,
    /// Packets of the profile that the receiver does not use: native for a plain receiver, plain for a native one.
    of_other: u64,
}

impl Heard {
    pub(super) fn new(spec: &BridgeSpec) -> Heard {
        let mut opener = Opener::new(false, MOST_SENDERS);
        // If the keys file cannot be read, another check reports the error.
        let keys = spec.keys.as_deref().and_then(|path| read_keys(path).ok());
        opener.set_keys(keys, spec.takes_open());
        let scratch = vec![0; MAX_DATAGRAM_BYTES];
        Heard { profile: spec.receive_profile(), opener, scratch, lines: BTreeMap::new() }
    }

    /// Counts a packet of the line with this group.
    pub(super) fn note(&mut self, now_ns: u64, group: SocketAddr, packet: &[u8]) {
        let tally = self.lines.entry(group).or_default();
        tally.packets += 1;
        let is_plain = Downstream::parse(packet).is_ok();
        match self.profile {
            Profile::Plain if is_native(packet) => tally.of_other += 1,
            Profile::Plain => tally.of_use += u64::from(is_plain),
            Profile::Native => match self.opener.open(now_ns, packet, &mut self.scratch) {
                Ok(_) | Err(Unopened::Replayed) => tally.of_use += 1,
                Err(Unopened::Forged | Unopened::Unknown) => tally.unopened += 1,
                Err(Unopened::Malformed(_)) => tally.of_other += u64::from(is_plain),
            },
        }
    }

    /// Returns the verdict about the packets that came on a line within the time `listen`.
    pub(super) fn judge(&self, group: &SocketAddr, listen: Duration) -> (Verdict, String) {
        let Tally { packets, of_use, unopened, of_other } =
            self.lines.get(group).copied().unwrap_or_default();
        let came = format!("{} packets in {listen:?}", grouped(packets));
        let (of, name) = match self.profile {
            Profile::Plain => ("a native", "native"),
            Profile::Native => ("a plain", "plain"),
        };
        match () {
            () if packets == 0 => {
                let says = format!(
                    "open, and nothing came in {listen:?}: is the sender up, and does the network carry the group here?"
                );
                (Verdict::Doubtful, says)
            }
            () if of_use > 0 => (Verdict::Ok, came),
            () if unopened > 0 => {
                let says = format!(
                    "{came}, and none of them opens: compare the keys file with the sender's (shmcast bridge key show)"
                );
                (Verdict::Fails, says)
            }
            () if of_other > 0 => (Verdict::Fails, format!("{came}, of {of} line: set profile = \"{name}\"")),
            () => (
                Verdict::Doubtful,
                format!("{came}, and none is of a feed: does another program send there?"),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Profile::{Native, Plain};
    use super::*;
    use shmcast_bridge::proto::native::container::{HEAD_BYTES, Kind, SEAL_BYTES};
    use shmcast_bridge::proto::native::keys::Keyring;
    use shmcast_bridge::proto::native::pulse::{PULSE_BYTES, Pulse};
    use shmcast_bridge::proto::native::seal::Sealer;
    use shmcast_bridge::proto::session::Session;
    use shmcast_bridge::proto::wire::heartbeat;
    use std::os::unix::fs::PermissionsExt;

    const OURS: &str = "7 000102030405060708090a0b0c0d0e0f\n";
    const THEIRS: &str = "7 ff0102030405060708090a0b0c0d0e0f\n";

    fn session() -> Session {
        Session::of_channel("TEST", 7).unwrap()
    }

    fn pulse(keys: Option<&str>) -> Vec<u8> {
        let ring = keys.map(|keys| Keyring::parse(keys).unwrap());
        let mut sealer = Sealer::new(0x9E37_79B9_7F4A_7C15, false);
        sealer.set_key(ring.as_ref().and_then(|ring| ring.sealing(0)));
        let mut packet = vec![0; HEAD_BYTES + PULSE_BYTES + SEAL_BYTES];
        let body = Pulse { next: 5, ..Pulse::default() }.write();
        packet[HEAD_BYTES..HEAD_BYTES + PULSE_BYTES].copy_from_slice(&body);
        let size = sealer.finish(&mut packet, (Kind::Pulse, false), (session(), 5, 0), PULSE_BYTES).unwrap();
        packet.truncate(size);
        packet
    }

    /// An earlier mistake: every packet counted as good, even a packet that the bridge could not open.
    #[test]
    fn packets_are_judged_as_a_bridge_would_judge_them() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("keys");
        std::fs::write(&file, OURS).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let group = "239.1.2.3:30001".parse().unwrap();
        let judge = |profile, has_keys: bool, packets: &[&[u8]]| {
            let keys = has_keys.then(|| file.clone());
            let mut heard = Heard::new(&BridgeSpec { profile, keys, ..BridgeSpec::new("t") });
            packets.iter().for_each(|packet| heard.note(0, group, packet));
            heard.judge(&group, Duration::from_secs(1))
        };
        let is = |(verdict, says): (Verdict, String), expected, words| {
            assert!(verdict == expected && says.contains(words), "{verdict:?}: {says}");
        };
        let (plain, open) = (heartbeat(session(), 5), pulse(None));
        let (ours, theirs) = (pulse(Some(OURS)), pulse(Some(THEIRS)));
        is(judge(Plain, false, &[]), Verdict::Doubtful, "nothing came in 1s");
        is(judge(Plain, false, &[&plain, b"?"]), Verdict::Ok, "2 packets in 1s");
        for native in [&open, &ours] {
            is(judge(Plain, false, &[native]), Verdict::Fails, "of a native line: set profile = \"native\"");
        }
        is(judge(Plain, false, &[b"?"]), Verdict::Doubtful, "none is of a feed");
        is(judge(Native, false, &[&open]), Verdict::Ok, "1 packets");
        is(judge(Native, true, &[&ours, &ours]), Verdict::Ok, "2 packets");
        is(judge(Native, true, &[&theirs, &ours]), Verdict::Ok, "2 packets");
        for (has_keys, packet) in [(true, &theirs), (true, &open), (false, &ours)] {
            is(
                judge(Native, has_keys, &[packet]),
                Verdict::Fails,
                "none of them opens: compare the keys file",
            );
        }
        is(judge(Native, true, &[&plain]), Verdict::Fails, "of a plain line: set profile = \"plain\"");
    }
}
