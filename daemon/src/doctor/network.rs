//! Checks of sockets and of the kernel's receive path. `nic` has the checks of single cards.

use super::{
    Area, Check, Unread,
    finding::{Mend, Verdict},
    kib,
    probe::Probe,
    root::malformed,
};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "rmem-max",
        area: Area::Network,
        why: "A bridge without CAP_NET_ADMIN gets no larger receive buffer than this, and a burst beyond it is lost.",
        examine: rmem_max,
    },
    Check {
        id: "netdev-backlog",
        area: Area::Network,
        why: "Packets that wait for a CPU's receive loop are dropped beyond this number.",
        examine: netdev_backlog,
    },
    Check {
        id: "softnet-drops",
        area: Area::Network,
        why: "Each drop here is a packet that the card delivered and the kernel threw away for lack of room.",
        examine: softnet_drops,
    },
    Check {
        id: "udp-drops",
        area: Area::Network,
        why: "Each receive-buffer error is a datagram that arrived and was lost because its socket was full.",
        examine: udp_drops,
    },
    Check {
        id: "rp-filter",
        area: Area::Network,
        why: "The strict reverse-path filter silently drops multicast that arrives on another port than the route back.",
        examine: rp_filter,
    },
];

/// The receive buffer that a bridge requests by default. At 10 Gbit/s it covers a stall of about 3 ms.
const RMEM_BYTES: u64 = 4 << 20;
/// A smaller buffer fails the check, because it does not hold even a small burst of packets.
const SMALL_BYTES: u64 = 1 << 20;

fn rmem_max(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    let bytes: u64 = p.number("/proc/sys/net/core/rmem_max")?;
    let mend = Mend::sysctl("net.core.rmem_max", 64 << 20);
    Ok(match bytes {
        ..SMALL_BYTES => Verdict::fail(kib(bytes / 1024), mend),
        SMALL_BYTES..RMEM_BYTES => Verdict::warn(kib(bytes / 1024), mend),
        _ => Verdict::pass(kib(bytes / 1024)),
    })
}

fn netdev_backlog(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    match p.number("/proc/sys/net/core/netdev_max_backlog")? {
        packets @ 5000_u32.. => Ok(Verdict::pass(format!("{packets} packets"))),
        packets => Ok(Verdict::warn(
            format!("{packets} packets"),
            Mend::sysctl("net.core.netdev_max_backlog", 16384),
        )),
    }
}

fn softnet_drops(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    const PATH: &str = "/proc/net/softnet_stat";
    let table = p.quiet(PATH)?;
    // Each CPU has one line in hex: processed, dropped, and how often the loop ran out of its budget.
    let mut sum = [0_u64; 3];
    let mut cpus = 0;
    for line in table.lines() {
        let fields: Vec<u64> =
            line.split_whitespace().map_while(|field| u64::from_str_radix(field, 16).ok()).collect();
        let &[processed, dropped, squeezed, ..] = fields.as_slice() else {
            return Err(malformed(PATH, line, "hex counters"));
        };
        sum = [sum[0] + processed, sum[1] + dropped, sum[2] + squeezed];
        cpus += 1;
    }
    if cpus == 0 {
        return Err(malformed(PATH, &table, "hex counters"));
    }
    let [processed, dropped, squeezed] = sum;
    p.note(PATH, format!("processed {processed}, dropped {dropped}, squeezed {squeezed}"));
    Ok(match (dropped, squeezed) {
        (0, 0) => Verdict::pass(format!("none in {processed} packets since boot")),
        (0, _) => {
            let mend = Mend::sysctl("net.core.netdev_budget", 600);
            Verdict::warn(format!("none, but the loop ran out of budget {squeezed} times"), mend)
        }
        _ => Verdict::fail(
            format!("{dropped} of {processed} since boot"),
            Mend::sysctl("net.core.netdev_max_backlog", 16384),
        ),
    })
}

fn udp_drops(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    const PATH: &str = "/proc/net/snmp";
    let text = p.quiet(PATH)?;
    // Each protocol has two lines: names, then values.
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else {
        return Err(malformed(PATH, &text, "UDP counters"));
    };
    let counter = |wanted| {
        let (_, value) = names.split(' ').zip(values.split(' ')).find(|(name, _)| *name == wanted)?;
        value.parse::<u64>().ok()
    };
    let (Some(received), Some(dropped)) = (counter("InDatagrams"), counter("RcvbufErrors")) else {
        return Err(malformed(PATH, values, "UDP counters"));
    };
    p.note(PATH, format!("InDatagrams {received}, RcvbufErrors {dropped}"));
    if dropped == 0 {
        return Ok(Verdict::pass(format!("none in {received} datagrams since boot")));
    }
    let mend = Mend::new(
        "ss -uamn",
        "enlarge the buffers of the sockets whose d column is not 0, and net.core.rmem_max before",
    );
    Ok(Verdict::warn(format!("{dropped} datagrams lost since boot, {received} received"), mend))
}

fn rp_filter(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    const DIR: &str = "/proc/sys/net/ipv4/conf";
    // The kernel uses the larger of "all" and the port's own value.
    let all: u8 = p.number(&format!("{DIR}/all/rp_filter"))?;
    let mut strict = Vec::new();
    for port in p.names(DIR)?.iter().filter(|name| !matches!(name.as_str(), "all" | "default" | "lo")) {
        let own: u8 = p.number(&format!("{DIR}/{port}/rp_filter"))?;
        if own.max(all) == 1 {
            strict.push(port.clone());
        }
    }
    match (all, strict.len()) {
        (3.., _) => Err(malformed(&format!("{DIR}/all/rp_filter"), &all.to_string(), "0, 1 or 2")),
        (_, 0) => Ok(Verdict::pass("not strict on any port")),
        _ => Ok(Verdict::warn(
            format!("strict on {}", strict.join(", ")),
            Mend::sysctl("net.ipv4.conf.all.rp_filter", 2),
        )),
    }
}
