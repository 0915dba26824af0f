//! The rule that decides whether a comparison is printed.
//!
//! Each turn of shared memory and the next turn of kernel multicast are a pair. A pair is disturbed if other programs and the hypervisor
//! used more than [`TOLERATED`] of the CPUs' time in one of the two turns. The comparison is printed if at most [`MOST_DISTURBED`] of the
//! pairs are disturbed.
//!
//! The comparison uses medians, because these depend little on disturbed messages.

use crate::figures::Percentiles;
use crate::load::Load;
use crate::side::{Figures, Stalls};
use serde::Serialize;

/// The largest share of the CPUs' time that other programs and the hypervisor can use in an undisturbed turn.
pub(crate) const TOLERATED: f64 = 0.2;
/// The largest share of disturbed pairs with which a comparison is still printed.
const MOST_DISTURBED: f64 = 0.25;

/// The load of the machine by others, over all turns.
#[derive(Debug, Serialize)]
pub(crate) struct Meanwhile {
    /// CPUs that the demo may use.
    pub(crate) cpus: usize,
    /// CPUs that other programs used, on average.
    pub(crate) others_cpus: f64,
    /// CPUs that the hypervisor took, on average.
    pub(crate) stolen_cpus: f64,
    /// The average number of tasks of other programs that were ready to run. The number is read between the turns.
    pub(crate) ready_tasks: f64,
    pub(crate) stalls: Stalls,
    /// The number of pairs of turns. A pair has one turn of each transport. If there is only one transport, this is the number of its
    /// turns.
    pub(crate) pairs: usize,
    /// The number of pairs in which other programs and the hypervisor used more than `tolerated` of the CPUs' time.
    pub(crate) disturbed_pairs: usize,
    pub(crate) tolerated: f64,
}

impl Meanwhile {
    /// Computes the load over all turns from the loads of all pairs.
    pub(crate) fn of(pairs: &[Vec<Load>], cpus: usize, stalls: Stalls) -> Self {
        let all = || pairs.iter().flatten();
        let time: u64 = all().map(|load| load.cpus_ns).sum();
        let of_cpus = |ns: u64| ns as f64 / time.max(1) as f64 * cpus as f64;
        let is_disturbed = |pair: &&Vec<Load>| pair.iter().any(|load| load.foreign_share() > TOLERATED);
        Self {
            cpus,
            others_cpus: of_cpus(all().map(|load| load.others_ns).sum()),
            stolen_cpus: of_cpus(all().map(|load| load.stolen_ns).sum()),
            ready_tasks: all().map(|load| load.ready).sum::<u64>() as f64 / all().count().max(1) as f64,
            stalls,
            pairs: pairs.len(),
            disturbed_pairs: pairs.iter().filter(is_disturbed).count(),
            tolerated: TOLERATED,
        }
    }

    fn is_too_much(&self) -> bool {
        self.disturbed_pairs as f64 > self.pairs as f64 * MOST_DISTURBED
    }
}

/// The ratios by which shared memory is faster than kernel multicast.
#[derive(Debug, Serialize, PartialEq)]
pub(crate) struct Ratio {
    /// The ratio of the times to publish a message: the median with multicast, divided by the median with shared memory.
    pub(crate) publish_p50: f64,
    /// The ratio of the times until the last reader has a message: the median with multicast, divided by the median with shared memory.
    pub(crate) last_reader_p50: f64,
}

/// Returns the comparison of shared memory with kernel multicast, or the reason why there is none.
pub(crate) fn ratio(
    shm: &Figures,
    multicast: Option<&Figures>,
    meanwhile: Option<&Meanwhile>,
) -> Result<Ratio, String> {
    let multicast = multicast.ok_or("there are no figures of kernel multicast")?;
    let meanwhile = meanwhile.ok_or(
        "/proc/stat or the clocks of processes cannot be read here, so what else the machine did is unknown",
    )?;
    if meanwhile.is_too_much() {
        let Meanwhile { disturbed_pairs, pairs, .. } = meanwhile;
        return Err(format!(
            "other programs and the hypervisor had more than {:.0} % of the CPUs' time in {disturbed_pairs} of {pairs} \
             pairs of turns, and a comparison stands for at most {:.0}",
            TOLERATED * 100.0,
            (*pairs as f64 * MOST_DISTURBED).floor()
        ));
    }
    let of = |mine: Option<Percentiles>, theirs: Option<Percentiles>| {
        Some(theirs?.p50 as f64 / mine?.p50.max(1) as f64)
    };
    let of_both =
        of(shm.publish_ns, multicast.publish_ns).zip(of(shm.last_reader_ns, multicast.last_reader_ns));
    let (publish_p50, last_reader_p50) = of_both.ok_or("no message reached all readers")?;
    Ok(Ratio { publish_p50, last_reader_p50 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(publish: u64, last: u64) -> Figures {
        let of = |p50| Some(Percentiles { p50, p99: p50, p999: p50, max: p50 });
        let (publish_ns, last_reader_ns) = (of(publish), of(last));
        let (published, delivered, lost, stalls) = (1, 1, 0, Stalls::default());
        Figures { name: "", published, delivered, lost, publish_ns, last_reader_ns, stalls }
    }

    /// Returns the load of two CPUs during twenty pairs of turns. In one turn of each of the first `disturbed` pairs, other programs use
    /// one of the CPUs.
    fn meanwhile(disturbed: usize) -> Meanwhile {
        let load = |others_ns| Load { cpus_ns: 500, others_ns, stolen_ns: 0, ready: 1 };
        let pair = |at: usize| vec![load(10), load(if at < disturbed { 250 } else { 20 })];
        Meanwhile::of(&(0..20).map(pair).collect::<Vec<_>>(), 2, Stalls::default())
    }

    #[test]
    fn a_comparison_stands_for_a_quarter_of_disturbed_pairs_and_for_no_more() {
        let (shm, multicast) = (figures(100, 50_000), figures(200_000, 200_000));
        let stands = ratio(&shm, Some(&multicast), Some(&meanwhile(5))).unwrap();
        assert_eq!(stands, Ratio { publish_p50: 2000.0, last_reader_p50: 4.0 });
        let why = ratio(&shm, Some(&multicast), Some(&meanwhile(6))).unwrap_err();
        assert!(why.contains("6 of 20 pairs") && why.contains("at most 5"), "{why}");
    }

    #[test]
    fn an_unknown_load_is_not_taken_for_none() {
        let (shm, multicast) = (figures(100, 50_000), figures(200_000, 200_000));
        assert!(ratio(&shm, Some(&multicast), None).unwrap_err().contains("unknown"));
        assert!(ratio(&shm, None, Some(&meanwhile(0))).unwrap_err().contains("multicast"));
        let nobody = Figures { last_reader_ns: None, ..figures(100, 0) };
        assert!(ratio(&shm, Some(&nobody), Some(&meanwhile(0))).unwrap_err().contains("no message"));
    }

    #[test]
    fn loads_are_told_in_cpus() {
        let busy = meanwhile(20);
        assert!((busy.others_cpus - 0.52).abs() < 1e-9, "{busy:?}");
        assert_eq!((busy.stolen_cpus, busy.ready_tasks, busy.disturbed_pairs), (0.0, 1.0, 20));
    }
}
