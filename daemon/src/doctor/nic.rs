//! Checks of each network card. They examine the delays of the card's interrupts, the merging of its packets, its losses, and its NUMA
//! node.
//!
//! Only cards that have a device and are up are checked. Network bridges, tunnels and loopback have no interrupts.

use super::{
    Area, Check, Unread,
    finding::{Mend, Verdict},
    probe::Probe,
    root::malformed,
};
use crate::cpu_list::CpuList;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "nic-coalescing",
        area: Area::Nic,
        why: "A card that coalesces interrupts holds the first packet back for as long as this says.",
        examine: coalescing,
    },
    Check {
        id: "nic-offloads",
        area: Area::Nic,
        why: "Receive merging (LRO, GRO) holds the first packet of a batch until the batch has been gathered.",
        examine: offloads,
    },
    Check {
        id: "nic-rings",
        area: Area::Nic,
        why: "A receive ring shorter than the card allows drops packets when its CPU is stalled for a moment.",
        examine: rings,
    },
    Check {
        id: "nic-drops",
        area: Area::Nic,
        why: "Packets the card itself had to drop were lost before any program could see them.",
        examine: drops,
    },
    Check {
        id: "nic-deferral",
        area: Area::Nic,
        why: "Deferred interrupts leave packets in the ring until a timer, unless a busy-polling reader fetches them.",
        examine: deferral,
    },
    Check {
        id: "nic-numa",
        area: Area::Nic,
        why: "Packets from a card on another node cross the socket link before the reader sees them.",
        examine: nic_numa,
    },
];

const NET: &str = "/sys/class/net";
const NO_CARD: &str = "no network card is up";

fn cards(p: &mut Probe<'_>) -> Result<Vec<String>, Unread> {
    let mut up = Vec::new();
    for card in p.names(NET)? {
        if p.exists(&format!("{NET}/{card}/device")) && p.quiet(&format!("{NET}/{card}/operstate"))? == "up" {
            up.push(card);
        }
    }
    p.note(NET, if up.is_empty() { "no card is up".to_owned() } else { up.join(" ") });
    Ok(up)
}

/// Runs `judge` on every card. If `judge` complains about any card, the result is a warning, and `mend` is called for each of these cards.
fn each_card(
    p: &mut Probe<'_>,
    fine: &str,
    judge: impl Fn(&mut Probe<'_>, &str) -> Result<Option<String>, Unread>,
    mend: impl Fn(&str) -> Mend,
) -> Result<Verdict, Unread> {
    let mut complaints = Vec::new();
    let mut mends: Option<Mend> = None;
    let cards = cards(p)?;
    for card in &cards {
        let Some(complaint) = judge(p, card)? else {
            continue;
        };
        complaints.push(format!("{card}: {complaint}"));
        let next = mend(card);
        mends = Some(match mends {
            None => next,
            Some(before) => Mend::new(format!("{}; {}", before.command, next.command), before.persist),
        });
    }
    Ok(match mends {
        _ if cards.is_empty() => Verdict::unknown(NO_CARD),
        None => Verdict::pass(format!("{}: {fine}", cards.join(", "))),
        Some(mend) => Verdict::warn(complaints.join("; "), mend),
    })
}

/// Returns the value after `name:` in the output of ethtool; `None` for "n/a".
fn ethtool_field<'a>(printed: &'a str, name: &str) -> Option<&'a str> {
    let value = printed.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'))?.trim();
    (!value.is_empty() && value != "n/a").then_some(value)
}

fn at_boot(options: &str) -> String {
    format!("/etc/network/interfaces: post-up ethtool {options} (or a systemd .link file)")
}

fn coalescing(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    let judge = |p: &mut Probe<'_>, card: &str| {
        let command = format!("ethtool -c {card}");
        let printed = p.command("ethtool", &["-c", card])?;
        // "Adaptive RX: on  TX: off" is one line with two values.
        let adaptive = ethtool_field(&printed, "Adaptive RX")
            .and_then(|value| value.split_whitespace().next())
            .filter(|&value| value != "n/a");
        let delay = ethtool_field(&printed, "rx-usecs");
        let frames = ethtool_field(&printed, "rx-frames");
        if adaptive.is_none() && delay.is_none() && frames.is_none() {
            return Err(malformed(&command, &printed, "coalescing settings"));
        }
        let (adaptive, delay) = (adaptive.unwrap_or("n/a"), delay.unwrap_or("n/a"));
        p.note(
            command,
            format!("adaptive-rx {adaptive}, rx-usecs {delay}, rx-frames {}", frames.unwrap_or("n/a")),
        );
        Ok(match (adaptive, delay) {
            ("on", _) => Some("adaptive, varies with load".to_owned()),
            (_, "0" | "n/a") => None,
            (_, delay) => Some(format!("holds packets for {delay} us")),
        })
    };
    each_card(p, "interrupts at once", judge, |card| {
        let options = format!("-C {card} adaptive-rx off rx-usecs 0");
        Mend::new(format!("ethtool {options}"), at_boot(&options))
    })
}

fn offloads(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    let judge = |p: &mut Probe<'_>, card: &str| {
        let command = format!("ethtool -k {card}");
        let printed = p.command("ethtool", &["-k", card])?;
        let mut on = Vec::new();
        for name in ["large-receive-offload", "generic-receive-offload"] {
            let value = ethtool_field(&printed, name)
                .ok_or_else(|| malformed(&command, &printed, "a list of offloads"))?;
            p.note(command.clone(), format!("{name}: {value}"));
            // "on [fixed]" means that the feature is on and cannot be switched off.
            if value.starts_with("on") {
                on.push(name);
            }
        }
        Ok((!on.is_empty()).then(|| format!("{} on", on.join(", "))))
    };
    each_card(p, "no receive merging", judge, |card| {
        let options = format!("-K {card} lro off gro off");
        Mend::new(format!("ethtool {options}"), at_boot(&options))
    })
}

fn rings(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    let judge = |p: &mut Probe<'_>, card: &str| {
        let command = format!("ethtool -g {card}");
        let printed = p.command("ethtool", &["-g", card])?;
        // ethtool prints the maxima first. The current sizes follow under the same names.
        let mut sizes =
            printed.lines().filter_map(|line| line.trim().strip_prefix("RX:")?.trim().parse::<u32>().ok());
        let (Some(most), Some(now)) = (sizes.next(), sizes.next()) else {
            return Err(malformed(&command, &printed, "ring sizes"));
        };
        p.note(command, format!("RX {now} of {most}"));
        Ok((now < most).then(|| format!("{now} of {most} receive entries")))
    };
    each_card(p, "receive rings as long as they go", judge, |card| {
        Mend::new(
            format!("ethtool -G {card} rx $(ethtool -g {card} | awk '/^RX:/{{print $2; exit}}')"),
            at_boot(&format!("-G {card} rx MAXIMUM")),
        )
    })
}

fn drops(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    let judge = |p: &mut Probe<'_>, card: &str| {
        let mut lost = Vec::new();
        for name in ["rx_missed_errors", "rx_fifo_errors"] {
            let count: u64 = p.number(&format!("{NET}/{card}/statistics/{name}"))?;
            if count > 0 {
                lost.push(format!("{name} {count}"));
            }
        }
        Ok((!lost.is_empty()).then(|| lost.join(", ")))
    };
    each_card(p, "none since it came up", judge, |card| {
        Mend::new(
            format!("ethtool -G {card} rx $(ethtool -g {card} | awk '/^RX:/{{print $2; exit}}')"),
            at_boot(&format!("-G {card} rx MAXIMUM")),
        )
    })
}

fn deferral(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    let judge = |p: &mut Probe<'_>, card: &str| {
        let timeout_ns: u64 = p.number(&format!("{NET}/{card}/gro_flush_timeout"))?;
        let deferred: u64 = p.number(&format!("{NET}/{card}/napi_defer_hard_irqs"))?;
        Ok((deferred > 0 && timeout_ns > 0)
            .then(|| format!("interrupts deferred by up to {} us", timeout_ns / 1000)))
    };
    each_card(p, "no interrupt is deferred", judge, |card| {
        Mend::new(
            format!("echo 0 >{NET}/{card}/napi_defer_hard_irqs; echo 0 >{NET}/{card}/gro_flush_timeout"),
            format!("/etc/tmpfiles.d/shmcast-host.conf: w {NET}/{card}/napi_defer_hard_irqs - - - - 0"),
        )
    })
}

fn nic_numa(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    let cpus = p.cpus()?;
    let judge = |p: &mut Probe<'_>, card: &str| {
        let node: i32 = p.number(&format!("{NET}/{card}/device/numa_node"))?;
        // The node is -1 if the device is equally far from all nodes, as on a host with one node.
        if node < 0 {
            return Ok(None);
        }
        let path = format!("/sys/devices/system/node/node{node}/cpulist");
        let near: CpuList = p.cpu_list(&path)?;
        let far = cpus.minus(&near);
        Ok((!far.is_empty()).then(|| format!("on node {node}, far from CPUs {far}")))
    };
    each_card(p, "near the judged CPUs", judge, |card| {
        Mend::new(
            format!("numactl --cpunodebind=netdev:{card} --membind=netdev:{card} COMMAND"),
            format!("systemd: CPUAffinity= with the CPUs near {card}"),
        )
    })
}
