//! Colours by family. Transports of the same kind share a hue, and each contestant of a family has its own shade and
//! dash.

use crate::rig::names::{
    IDEAL, MULTICAST, UDP, UNIX_DATAGRAM, UNIX_SEQPACKET, WIRE_MULTICAST, WIRE_UDP, is_shmcast,
};
use crate::rig::plan::Answer;
use crate::rig::spec::Contestant;

/// A kind of transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// shmcast's ring and its bridge.
    Ours,
    /// The ideal ring, which is the bound.
    Bound,
    /// The transports of other projects, all through shared memory.
    Peers,
    /// The kernel's sockets.
    Kernel,
}

impl Family {
    /// Every family, in the order of the legend.
    pub const ALL: [Self; 4] = [Self::Ours, Self::Peers, Self::Kernel, Self::Bound];

    /// Returns the family of a contestant.
    pub fn of(who: &Contestant) -> Self {
        match who.transport_name() {
            name if is_shmcast(name) || name.starts_with("bridge") => Self::Ours,
            IDEAL => Self::Bound,
            MULTICAST | UDP | UNIX_DATAGRAM | UNIX_SEQPACKET | WIRE_UDP | WIRE_MULTICAST => Self::Kernel,
            _ => Self::Peers,
        }
    }

    /// Returns the family's name in the legend.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ours => "shmcast",
            Self::Bound => "bound",
            Self::Peers => "other shared memory",
            Self::Kernel => "kernel sockets",
        }
    }

    const fn class(self) -> &'static str {
        match self {
            Self::Ours => "f-ours",
            Self::Bound => "f-bound",
            Self::Peers => "f-peers",
            Self::Kernel => "f-kernel",
        }
    }
}

/// The number of shades that the style sheet has for each family.
const SHADES: usize = 10;

/// The contestants of an answer, and the shade of each contestant.
#[derive(Debug, Clone)]
pub struct Palette(Vec<Contestant>);

impl Palette {
    /// Makes the palette of an answer. All charts of the answer use the same palette.
    pub fn of(answer: &Answer) -> Self {
        let mut all: Vec<Contestant> = Vec::new();
        for who in answer.cases().iter().flat_map(|case| answer.contestants(case)) {
            if !all.contains(&who) {
                all.push(who);
            }
        }
        Self(all)
    }

    /// Returns the contestants of a family, in the order of their shades.
    pub fn members(&self, family: Family) -> impl Iterator<Item = &Contestant> {
        self.0.iter().filter(move |who| Family::of(who) == family)
    }

    /// Returns the style classes of a contestant: the hue of its family, and its own shade.
    pub fn class(&self, who: &Contestant) -> String {
        let family = Family::of(who);
        let place = self.members(family).position(|member| member == who).unwrap_or(0);
        format!("{} s{}", family.class(), place % SHADES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::names::SHMCAST;
    use crate::rig::spec::Wait;

    #[test]
    fn ways_to_wait_of_one_transport_differ_in_shade_alone() {
        let who = [Wait::Spin, Wait::Yield].map(|wait| Contestant::new(SHMCAST, wait));
        let peer = Contestant::new("bcast", Wait::Spin);
        let palette = Palette([who.as_slice(), std::slice::from_ref(&peer)].concat());
        assert_eq!(who.each_ref().map(|who| palette.class(who)), ["f-ours s0", "f-ours s1"]);
        assert_eq!(palette.class(&peer), "f-peers s0");
        assert_eq!(Family::of(&Contestant::new("shmcast@/old/program", Wait::Spin)), Family::Ours);
    }
}
