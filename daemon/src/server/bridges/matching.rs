//! Decides what happens to each bridge when the configuration is read again. A bridge counts as unchanged if nothing but its name has
//! changed.

use shmcast_bridge::spec::{BridgeSpec, Direction};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;

/// The fate of a bridge when the configuration is read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// The bridge continues without interruption. The value is the index of the matching bridge in the new configuration. The matching
    /// bridge might have another name.
    Stays(usize),
    /// The bridge stops before the bridges of the new configuration start, because one of them needs the same channel, sockets or files.
    Yields,
    /// The bridge is not in the new configuration, and no new bridge needs the channel, sockets or files of this bridge.
    Leaves,
}

/// Returns the fate of each of the `old` bridges, in their order. `wanted` are the bridges of the new configuration.
pub(super) fn fates(old: &[BridgeSpec], wanted: &[BridgeSpec]) -> Vec<Fate> {
    let mut fates = vec![Fate::Leaves; old.len()];
    let mut is_taken = vec![false; wanted.len()];
    let renamed =
        |old: &BridgeSpec, new: &BridgeSpec| BridgeSpec { name: new.name.clone(), ..old.clone() } == *new;
    // A bridge that has kept its name is matched before one that has a new name.
    for is_same in [&(|old: &BridgeSpec, new: &BridgeSpec| old == new) as &dyn Fn(_, _) -> _, &renamed] {
        for (fate, old) in fates.iter_mut().zip(old).filter(|(fate, _)| **fate == Fate::Leaves) {
            let mut candidates = wanted.iter().enumerate().filter(|(at, _)| !is_taken[*at]);
            if let Some(at) = candidates.find(|(_, new)| is_same(old, new)).map(|(at, _)| at) {
                (*fate, is_taken[at]) = (Fate::Stays(at), true);
            }
        }
    }
    for (fate, old) in fates.iter_mut().zip(old).filter(|(fate, _)| **fate == Fate::Leaves) {
        if wanted.iter().zip(&is_taken).any(|(new, is_taken)| !is_taken && is_in_the_way(old, new)) {
            *fate = Fate::Yields;
        }
    }
    fates
}

/// Returns true if the old bridge must stop before the new bridge starts. Otherwise the new bridge could not start, or both bridges would
/// send the same messages.
pub(super) fn is_in_the_way(old: &BridgeSpec, new: &BridgeSpec) -> bool {
    let theirs = sockets(new);
    if sockets(old).iter().any(|socket| theirs.iter().any(|other| meet(socket, other))) {
        return true;
    }
    if file(old).is_some_and(|state| file(new) == Some(state)) {
        return true;
    }
    if old.channel != new.channel {
        return false;
    }
    match (old.direction(), new.direction()) {
        (Some(Direction::Receive(_)), Some(Direction::Receive(_))) => true,
        (Some(Direction::Send(_)), Some(Direction::Send(_))) => {
            let one_line =
                old.lines.iter().any(|line| new.lines.iter().any(|other| line.group == other.group));
            let one_log = old.nats().is_some() && new.nats().is_some();
            let one_gate = old.gate().is_some() && old.gate() == new.gate();
            one_line || one_log || one_gate
        }
        (Some(Direction::Send(_) | Direction::Receive(_)) | None, _) => false,
    }
}

/// Returns the title for a leaving bridge. The bridge keeps its own title, unless this title is `taken`. Otherwise it gets a free title,
/// which says that the bridge leaves.
pub(super) fn free_title(own: &str, taken: &BTreeSet<String>) -> String {
    let bare = own.split_once(" (leaving").map_or(own, |(bare, _)| bare);
    let numbered = (2..).map(|number| format!("{bare} (leaving {number})"));
    let mut titles = [own.to_owned(), format!("{bare} (leaving)")].into_iter().chain(numbered);
    titles.find(|title| !taken.contains(title)).expect("there is always another number")
}

/// Returns the addresses of a bridge that no other socket of this host can use at the same time.
fn sockets(bridge: &BridgeSpec) -> Vec<SocketAddr> {
    let received = bridge.lines.iter().filter(|_| bridge.receive.is_some()).map(|line| line.group);
    let received = received.filter(|group| !group.ip().is_multicast());
    let send = bridge.send.iter();
    let served = send.flat_map(|send| send.repair.iter().map(|repair| repair.bind).chain(send.claim_bind));
    received.chain(served).filter(|address| address.port() != 0).collect()
}

fn meet(one: &SocketAddr, other: &SocketAddr) -> bool {
    let is_any = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port() && (is_any || one.ip() == other.ip())
}

fn file(bridge: &BridgeSpec) -> Option<&Path> {
    bridge.send.as_ref().and_then(|send| send.state.as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use Fate::{Leaves, Stays, Yields};

    fn bridge(text: &str) -> BridgeSpec {
        toml::from_str(text).unwrap()
    }

    fn sends(name: &str, channel: &str, group: &str, more: &str) -> BridgeSpec {
        bridge(&format!(
            "name = '{name}'\nchannel = '{channel}'\nline = [{{ group = '{group}' }}]\n[send]\n{more}"
        ))
    }

    #[test]
    fn a_bridge_goes_on_whatever_it_is_called() {
        let [a, b] = [("a", "239.1.1.1:1"), ("b", "239.1.1.2:1")].map(|(name, to)| sends(name, "t", to, ""));
        let named = |of: &BridgeSpec, name: &str| BridgeSpec { name: name.to_owned(), ..of.clone() };
        assert_eq!(fates(&[a.clone(), b.clone()], &[b.clone(), a.clone()]), [Stays(1), Stays(0)]);
        assert_eq!(fates(&[a.clone(), b.clone()], &[named(&a, "b"), named(&b, "a")]), [Stays(0), Stays(1)]);
        assert_eq!(
            fates(std::slice::from_ref(&a), &[named(&a, "c"), a.clone()]),
            [Stays(1)],
            "its own name comes first"
        );
        assert_eq!(fates(&[a.clone(), b.clone()], &[b]), [Leaves, Stays(0)]);
        assert_eq!(fates(&[a], &[]), [Leaves]);
    }

    #[test]
    fn a_leaving_bridge_has_a_title_of_its_own() {
        let taken = ["a", "b", "b (leaving)", "b (leaving 2)"].map(str::to_owned).into();
        for (own, title) in [
            ("c", "c"),
            ("a", "a (leaving)"),
            ("b", "b (leaving 3)"),
            ("b (leaving)", "b (leaving 3)"),
            ("a (leaving)", "a (leaving)"),
        ] {
            assert_eq!(free_title(own, &taken), title);
        }
    }

    #[test]
    fn a_bridge_stops_first_if_another_one_needs_what_it_has() {
        let served = "repair = { bind = '10.0.0.1:2', allow = ['10.0.0.0/8'] }";
        let old = sends("a", "t", "239.1.1.1:1", served);
        for (new, fate) in [
            (sends("b", "t", "239.1.1.1:1", "linger_ms = 5"), Yields),
            (sends("a", "t", "239.1.1.2:1", ""), Leaves),
            (sends("a", "u", "239.1.1.1:1", ""), Leaves),
            (sends("b", "u", "239.1.1.9:1", served), Yields),
            (sends("b", "u", "239.1.1.9:1", &served.replace("10.0.0.1", "0.0.0.0")), Yields),
            (bridge("channel = 'u'\nline = [{ group = '10.0.0.1:2' }]\n[receive]"), Yields),
            (bridge("channel = 't'\nline = [{ group = '239.1.1.1:1' }]\n[receive]"), Leaves),
        ] {
            assert_eq!(fates(std::slice::from_ref(&old), std::slice::from_ref(&new)), [fate], "{new:?}");
        }
        let one_file = sends("b", "u", "239.1.1.9:1", "state = '/s'");
        assert_eq!(fates(&[sends("a", "t", "239.1.1.1:1", "state = '/s'")], &[one_file]), [Yields]);
        let receives =
            |group: &str| bridge(&format!("channel = 't'\nline = [{{ group = '{group}' }}]\n[receive]"));
        assert_eq!(fates(&[receives("239.1.1.1:1")], &[receives("239.1.1.2:1")]), [Yields]);
        let nats = |stream: &str| {
            bridge(&format!(
                "channel = 't'\nengine = 'nats'\nnats = {{ servers = 'nats://h', stream = '{stream}' }}\n[send]"
            ))
        };
        assert_eq!(fates(&[nats("A")], &[nats("B")]), [Yields]);
        assert_eq!(fates(&[nats("A")], &[sends("a", "t", "239.1.1.1:1", "")]), [Leaves]);
        let gated =
            |channel: &str, group: &str, gate: &str| sends("a", channel, group, &format!("gate = '{gate}'"));
        for (new, fate) in [
            (gated("t", "239.1.1.2:1", "wan"), Yields),
            (gated("t", "239.1.1.2:1", "lan"), Leaves),
            (gated("u", "239.1.1.2:1", "wan"), Leaves),
            (sends("a", "t", "239.1.1.2:1", ""), Leaves),
        ] {
            assert_eq!(fates(&[gated("t", "239.1.1.1:1", "wan")], &[new]), [fate]);
        }
    }
}
