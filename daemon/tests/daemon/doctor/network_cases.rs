//! Cases for the checks of the network and its cards.

use super::{
    Case,
    Status::{Fail, Pass, Unknown, Warn},
    case,
};

const UP: (&str, &str) = ("/sys/class/net/eth0/operstate", "up");
const DEVICE: (&str, &str) = ("/sys/class/net/eth0/device/vendor", "0x15b3");
const RX_OK: (&str, &str) = ("/sys/class/net/eth0/statistics/rx_fifo_errors", "0");

pub(super) const CASES: &[Case] = &[
    case(
        "rmem-max",
        "a large buffer is refused",
        Pass,
        "64 MiB",
        &[("/proc/sys/net/core/rmem_max", "67108864")],
    ),
    case(
        "rmem-max",
        "what a bridge asks for is too little",
        Pass,
        "4 MiB",
        &[("/proc/sys/net/core/rmem_max", "4194304")],
    ),
    case("rmem-max", "a middling one passes", Warn, "2 MiB", &[("/proc/sys/net/core/rmem_max", "2097152")]),
    case(
        "rmem-max",
        "the default is only a warning",
        Fail,
        "208 KiB",
        &[("/proc/sys/net/core/rmem_max", "212992")],
    ),
    case(
        "netdev-backlog",
        "a long one is refused",
        Pass,
        "16384",
        &[("/proc/sys/net/core/netdev_max_backlog", "16384")],
    ),
    case(
        "netdev-backlog",
        "the default passes",
        Warn,
        "1000",
        &[("/proc/sys/net/core/netdev_max_backlog", "1000")],
    ),
    case(
        "softnet-drops",
        "hex is read as decimal",
        Pass,
        "none in 27 packets",
        &[("/proc/net/softnet_stat", "00000010 00000000 00000000\n0000000b 00000000 00000000\n")],
    ),
    case(
        "softnet-drops",
        "a short budget passes",
        Warn,
        "2 times",
        &[("/proc/net/softnet_stat", "00000010 00000000 00000002\n")],
    ),
    case(
        "softnet-drops",
        "a drop on the second CPU is overlooked",
        Fail,
        "3 of 32",
        &[("/proc/net/softnet_stat", "00000010 00000000 00000000\n00000010 00000003 00000000\n")],
    ),
    case(
        "udp-drops",
        "none is refused",
        Pass,
        "none in 9",
        &[("/proc/net/snmp", "Udp: InDatagrams NoPorts RcvbufErrors\nUdp: 9 5 0\n")],
    ),
    case(
        "udp-drops",
        "another column is read, or UDP-Lite's",
        Warn,
        "4 datagrams lost",
        &[(
            "/proc/net/snmp",
            "Tcp: A\nTcp: 1\nUdp: InDatagrams NoPorts InErrors RcvbufErrors\nUdp: 9 0 0 4\nUdpLite: RcvbufErrors\nUdpLite: 0\n",
        )],
    ),
    case(
        "rp-filter",
        "loose is refused",
        Pass,
        "not strict",
        &[("/proc/sys/net/ipv4/conf/all/rp_filter", "2"), ("/proc/sys/net/ipv4/conf/eth0/rp_filter", "1")],
    ),
    case(
        "rp-filter",
        "a strict port passes",
        Warn,
        "strict on eth1",
        &[
            ("/proc/sys/net/ipv4/conf/all/rp_filter", "0"),
            ("/proc/sys/net/ipv4/conf/lo/rp_filter", "1"),
            ("/proc/sys/net/ipv4/conf/eth0/rp_filter", "0"),
            ("/proc/sys/net/ipv4/conf/eth1/rp_filter", "1"),
        ],
    ),
    case(
        "nic-coalescing",
        "no delay is refused",
        Pass,
        "at once",
        &[
            UP,
            DEVICE,
            (
                "/commands/ethtool -c eth0",
                "Coalesce parameters for eth0:\nAdaptive RX: off  TX: off\nrx-usecs: 0\nrx-frames: n/a\n",
            ),
        ],
    ),
    case(
        "nic-coalescing",
        "a delay passes",
        Warn,
        "eth0: holds packets for 8 us",
        &[UP, DEVICE, ("/commands/ethtool -c eth0", "Adaptive RX: off  TX: on\nrx-usecs:\t8\n")],
    ),
    case(
        "nic-coalescing",
        "the adaptive mode passes",
        Warn,
        "adaptive",
        &[UP, DEVICE, ("/commands/ethtool -c eth0", "Adaptive RX: on  TX: off\nrx-usecs: 0\n")],
    ),
    case(
        "nic-coalescing",
        "a card that tells nothing passes",
        Unknown,
        "coalescing settings",
        &[UP, DEVICE, ("/commands/ethtool -c eth0", "Adaptive RX: n/a  TX: n/a\nrx-usecs: n/a\n")],
    ),
    case(
        "nic-coalescing",
        "a card that is down is judged",
        Unknown,
        "no network card is up",
        &[("/sys/class/net/eth0/operstate", "down"), DEVICE],
    ),
    case(
        "nic-offloads",
        "off is refused",
        Pass,
        "no receive merging",
        &[
            UP,
            DEVICE,
            (
                "/commands/ethtool -k eth0",
                "generic-receive-offload: off\nlarge-receive-offload: off [fixed]\n",
            ),
        ],
    ),
    case(
        "nic-offloads",
        "GRO passes",
        Warn,
        "generic-receive-offload on",
        &[
            UP,
            DEVICE,
            (
                "/commands/ethtool -k eth0",
                "Features for eth0:\ngeneric-receive-offload: on\nlarge-receive-offload: off [fixed]\n",
            ),
        ],
    ),
    case(
        "nic-rings",
        "the longest is refused",
        Pass,
        "as long",
        &[
            UP,
            DEVICE,
            (
                "/commands/ethtool -g eth0",
                "Pre-set maximums:\nRX:\t\t4096\nRX Mini: n/a\nTX: 4096\nCurrent hardware settings:\nRX: 4096\nTX: 512\n",
            ),
        ],
    ),
    case(
        "nic-rings",
        "maximum and current are mixed up",
        Warn,
        "512 of 4096",
        &[
            UP,
            DEVICE,
            (
                "/commands/ethtool -g eth0",
                "Pre-set maximums:\nRX: 4096\nTX: 4096\nCurrent hardware settings:\nRX: 512\nTX: 4096\n",
            ),
        ],
    ),
    case(
        "nic-drops",
        "none is refused",
        Pass,
        "none since",
        &[UP, DEVICE, RX_OK, ("/sys/class/net/eth0/statistics/rx_missed_errors", "0")],
    ),
    case(
        "nic-drops",
        "missed packets pass",
        Warn,
        "rx_missed_errors 12",
        &[UP, DEVICE, RX_OK, ("/sys/class/net/eth0/statistics/rx_missed_errors", "12")],
    ),
    case(
        "nic-drops",
        "a virtual port is judged",
        Unknown,
        "no network card",
        &[("/sys/class/net/veth0/operstate", "up")],
    ),
    case(
        "nic-deferral",
        "off is refused",
        Pass,
        "no interrupt",
        &[
            UP,
            DEVICE,
            ("/sys/class/net/eth0/gro_flush_timeout", "0"),
            ("/sys/class/net/eth0/napi_defer_hard_irqs", "0"),
        ],
    ),
    case(
        "nic-deferral",
        "a deferral passes",
        Warn,
        "up to 200 us",
        &[
            UP,
            DEVICE,
            ("/sys/class/net/eth0/gro_flush_timeout", "200000"),
            ("/sys/class/net/eth0/napi_defer_hard_irqs", "2"),
        ],
    ),
    case(
        "nic-numa",
        "a near card is refused",
        Pass,
        "near",
        &[
            UP,
            ("/sys/class/net/eth0/device/numa_node", "0"),
            ("/sys/devices/system/node/node0/cpulist", "0-1"),
        ],
    ),
    case(
        "nic-numa",
        "no node is taken for a far one",
        Pass,
        "near",
        &[UP, ("/sys/class/net/eth0/device/numa_node", "-1")],
    ),
    case(
        "nic-numa",
        "a far card passes",
        Warn,
        "far from CPUs 1",
        &[UP, ("/sys/class/net/eth0/device/numa_node", "0"), ("/sys/devices/system/node/node0/cpulist", "0")],
    )
    .on("1"),
];
