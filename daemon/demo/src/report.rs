//! The report of the demo, as text and as JSON.

use crate::args::Args;
use crate::figures::{Ns, Percentiles, grouped, table};
use crate::machine::Machine;
use crate::plan::Plan;
use crate::play::Played;
use crate::side::Figures;
use crate::verdict::{Meanwhile, Ratio, ratio};
use serde::Serialize;

#[derive(Debug, Serialize)]
struct Unavailable {
    name: &'static str,
    error: String,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Transport {
    Ran(Figures),
    CouldNot(Unavailable),
}

/// All measurements, and the conclusions from them.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    machine: Machine,
    readers: u32,
    size: u32,
    interval_us: u64,
    /// Turns of each transport.
    turns: u64,
    messages_a_turn: u64,
    transports: Vec<Transport>,
    load: Option<Meanwhile>,
    ratio: Option<Ratio>,
    /// The reason why there is no ratio.
    why_no_ratio: Option<String>,
}

impl Report {
    pub(crate) fn new(args: &Args, plan: &Plan, machine: Machine, played: Played) -> Self {
        let Played { shm, multicast, meanwhile } = played;
        let ran = multicast.as_ref().and_then(|multicast| multicast.as_ref().ok());
        let (ratio, why_no_ratio) = match ratio(&shm, ran, meanwhile.as_ref()) {
            Ok(ratio) => (Some(ratio), None),
            Err(why) => (None, Some(why)),
        };
        let multicast = multicast.map(|multicast| match multicast {
            Ok(figures) => Transport::Ran(figures),
            Err(e) => Transport::CouldNot(Unavailable { name: "multicast", error: format!("{e:#}") }),
        });
        let Args { readers, size, interval_us, .. } = *args;
        Self {
            machine,
            readers,
            size,
            interval_us,
            turns: plan.turns(),
            messages_a_turn: plan.messages_a_turn,
            transports: [Some(Transport::Ran(shm)), multicast].into_iter().flatten().collect(),
            load: meanwhile,
            ratio,
            why_no_ratio,
        }
    }

    /// The report as a table and sentences.
    pub(crate) fn for_eyes(&self) -> String {
        let Self { machine, readers, size, interval_us, turns, .. } = self;
        let plural = if *readers == 1 { "" } else { "s" };
        let mut text = format!(
            "{machine}\n{readers} reader{plural}, {size} B, one message each {interval_us} us, in {turns} turns\n\n"
        );
        text += &self.table();
        for transport in &self.transports {
            if let Transport::CouldNot(u) = transport {
                text += &format!("\n\n{} could not run here: {}", u.name, u.error);
            }
        }
        text += "\n\n";
        text += &match &self.load {
            Some(load) => meanwhile(load),
            None => "What else the machine did cannot be measured here.".to_owned(),
        };
        text += &self.comparison();
        text += &self.shared_cpus();
        text
    }

    fn table(&self) -> String {
        let header = ["", "", "p50", "p99", "p99.9", "max", "published", "delivered", "lost"];
        let mut rows = table(header, 2);
        for f in self.ran() {
            let name = if f.name == "shm" { "shared memory" } else { "kernel multicast" };
            let counts = [f.published, f.delivered, f.lost].map(grouped);
            let mut row = vec![name.to_owned(), "publish".to_owned()];
            row.extend(Percentiles::cells(f.publish_ns));
            row.extend(counts);
            rows.add_row(row);
            let mut row = vec![String::new(), "last reader".to_owned()];
            row.extend(Percentiles::cells(f.last_reader_ns));
            rows.add_row(row);
        }
        rows.trim_fmt()
    }

    fn ran(&self) -> impl Iterator<Item = &Figures> {
        self.transports.iter().filter_map(|transport| match transport {
            Transport::Ran(figures) => Some(figures),
            Transport::CouldNot(_) => None,
        })
    }

    /// Returns a sentence with the ratio. If there is no ratio, the sentence says why, and what the user can do. Returns an empty text if
    /// only one transport ran.
    fn comparison(&self) -> String {
        let Some(ratio) = &self.ratio else {
            let why = self.why_no_ratio.as_ref().filter(|_| self.ran().count() == 2);
            return why.map_or_else(String::new, |why| {
                format!(
                    "\nNo comparison: {why}.\nRun it again when the machine does less, or let it wait for that: --wait 300"
                )
            });
        };
        let (times, when) = match ratio.last_reader_p50 {
            sooner if sooner >= 1.0 => (sooner, "sooner"),
            later => (1.0 / later, "later"),
        };
        format!(
            "\nBy the medians, publishing is {:.0} times cheaper and the last reader is served {times:.1} times {when}.",
            ratio.publish_p50
        )
    }

    fn shared_cpus(&self) -> String {
        let (readers, cpus) = (self.readers, self.machine.cpus);
        if (readers as usize) < cpus {
            return String::new();
        }
        let longest = self.ran().next().and_then(|shm| shm.last_reader_ns).map_or(0, |p| p.max);
        format!(
            "\n{readers} readers share {cpus} CPUs here, so the last one waits for the scheduler to reach it; with a core\n\
             each it waits for one cache line. Longest wait seen: {}.",
            Ns(longest)
        )
    }
}

/// Describes the load by other programs in one line.
fn meanwhile(load: &Meanwhile) -> String {
    let stolen = match load.stolen_cpus {
        stolen if stolen < 0.01 => String::new(),
        stolen => format!(", the hypervisor took {stolen:.2}"),
    };
    let stalls = match load.stalls.count {
        0 => "the publisher never woke more than 1 ms late".to_owned(),
        count => format!(
            "the publisher woke {} times more than 1 ms late, at most {}",
            grouped(count),
            Ns(load.stalls.max_ns)
        ),
    };
    format!(
        "Meanwhile other programs used {:.2} of {} CPUs{stolen}, and {stalls}.",
        load.others_cpus, load.cpus
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Load;
    use crate::side::Stalls;
    use clap::Parser;
    use serde_json::Value;

    #[derive(Debug, clap::Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn figures(name: &'static str, publish: u64, last: u64) -> Figures {
        let of = |p50| Some(Percentiles { p50, p99: p50, p999: p50, max: p50 });
        let (publish_ns, last_reader_ns) = (of(publish), of(last));
        let (published, delivered, lost, stalls) = (5000, 250_000, 0, Stalls::default());
        Figures { name, published, delivered, lost, publish_ns, last_reader_ns, stalls }
    }

    /// Makes the report of a demo during which other programs used this share of the CPUs' time.
    fn report(others_share: f64) -> Report {
        let others_ns = (500.0 * others_share) as u64;
        let pair = vec![Load { cpus_ns: 500, others_ns, stolen_ns: 0, ready: 0 }; 2];
        let played = Played {
            shm: figures("shm", 140, 49_000),
            multicast: Some(Ok(figures("multicast", 200_000, 220_000))),
            meanwhile: Some(Meanwhile::of(&vec![pair; 20], 2, Stalls::default())),
        };
        let args = Cli::parse_from(["demo"]).args;
        let plan = Plan::new(args.messages, std::time::Duration::from_millis(1));
        Report::new(&args, &plan, Machine::read(), played)
    }

    #[test]
    fn beside_others_figures_are_shown_and_not_compared() {
        let quiet = report(0.01);
        let text = quiet.for_eyes();
        assert!(text.contains("publishing is 1429 times cheaper"), "{text}");
        assert!(text.contains("other programs used 0.02 of 2 CPUs"), "{text}");
        let spoilt = report(0.7);
        let text = spoilt.for_eyes();
        assert!(text.contains("kernel multicast") && text.contains("used 1.40 of 2 CPUs"), "{text}");
        assert!(text.contains("No comparison") && text.contains("--wait"), "{text}");
        assert!(!text.contains("cheaper") && !text.contains("sooner"), "{text}");
    }

    #[test]
    fn programs_are_told_why_there_is_no_ratio() {
        let json = |report: &Report| serde_json::to_value(report).unwrap();
        let quiet = json(&report(0.01));
        assert!(quiet["ratio"]["publish_p50"].as_f64().unwrap() > 1000.0, "{quiet}");
        assert_eq!(quiet["why_no_ratio"], Value::Null);
        let spoilt = json(&report(0.7));
        assert_eq!(spoilt["ratio"], Value::Null);
        assert!(spoilt["why_no_ratio"].as_str().unwrap().contains("20 of 20 pairs"), "{spoilt}");
        assert_eq!((&spoilt["load"]["cpus"], &spoilt["load"]["disturbed_pairs"]), (&2.into(), &20.into()));
    }
}
