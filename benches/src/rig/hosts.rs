//! Two hosts on one machine: network namespaces with a pair of virtual Ethernet interfaces between them. A datagram passes through the
//! kernel's whole network stack of both hosts. Only the card and the cable are missing. To make the hosts, the rig needs root, and `ip` of
//! iproute2.

use crate::rig::spec::{Task, Wire};
use anyhow::{Context, Result, bail};
use nix::sched::{CloneFlags, setns};
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;

/// The sending host's address and interface.
pub const NEAR: (Ipv4Addr, &str) = (Ipv4Addr::new(10, 79, 0, 1), "near0");
/// The receiving host's address and interface.
pub const FAR: (Ipv4Addr, &str) = (Ipv4Addr::new(10, 79, 0, 2), "far0");
/// The time in microseconds for which blocking calls poll the interface, in rounds with busy polling.
pub const BUSY_POLL_US: u32 = 50;
/// The file of the kernel setting for busy polling. The setting is the time in microseconds for which a `poll` call polls the network
/// interfaces.
const BUSY_POLL_SETTING: &str = "/proc/sys/net/core/busy_poll";

/// Returns the name of the host on which the task runs.
pub fn name_of<'a>(wire: &'a Wire, task: &Task) -> &'a str {
    match task {
        Task::Publish(_) => &wire.near,
        Task::Receive(..) => &wire.far,
    }
}

/// Moves this thread to the host on which the task runs. Processes that the thread starts later also run there.
///
/// # Errors
/// If this process is not root, or if the hosts no longer exist.
pub fn enter(wire: &Wire, task: &Task) -> Result<()> {
    let file =
        File::open(format!("/run/netns/{}", name_of(wire, task))).context("find the host's namespace")?;
    setns(file, CloneFlags::CLONE_NEWNET).context("enter the host's namespace")
}

/// Two hosts. Dropping this value removes the hosts.
#[derive(Debug)]
pub struct Hosts {
    /// The names of the hosts, and the path of `shmcast`.
    pub wire: Wire,
    /// The reason why the kernel cannot poll the receiving interface; `None` if it can.
    pub no_busy_poll: Option<String>,
}

impl Hosts {
    /// Makes both hosts and the wire between them.
    ///
    /// # Errors
    /// The reason why this is not possible: no root, no namespaces, or no `ip`.
    pub fn new(shmcast: PathBuf) -> Result<Self> {
        let [near, far] = ["near", "far"].map(|end| format!("shmcast-{end}-{}", std::process::id()));
        let mut hosts = Self { wire: Wire { near, far, shmcast }, no_busy_poll: None };
        hosts.join()?;
        // A virtual interface can be polled only while it merges packets, and while its peer sends it whole packets.
        let set = |host: &str, words: &str| run("ip", &format!("netns exec {host} ethtool -K {words}"));
        let polls = set(&hosts.wire.far, &format!("{} gro on", FAR.1))
            .and_then(|()| set(&hosts.wire.near, &format!("{} tso off gso off", NEAR.1)))
            .and_then(|()| fs::read_to_string(BUSY_POLL_SETTING).map(drop).context(BUSY_POLL_SETTING));
        hosts.no_busy_poll = polls.err().map(|e| format!("{e:#}"));
        Ok(hosts)
    }

    fn join(&self) -> Result<()> {
        let Wire { near, far, .. } = &self.wire;
        for name in [near, far] {
            run("ip", &format!("netns add {name}"))?;
            run("ip", &format!("-n {name} link set lo up"))?;
        }
        run("ip", &format!("link add {} netns {near} type veth peer name {} netns {far}", NEAR.1, FAR.1))?;
        for (name, (address, interface)) in [(near, NEAR), (far, FAR)] {
            run("ip", &format!("-n {name} addr add {address}/24 dev {interface}"))?;
            run("ip", &format!("-n {name} link set {interface} up"))?;
        }
        Ok(())
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in [&self.wire.near, &self.wire.far] {
            let _ = run("ip", &format!("netns del {name}")); // it may not have been made
        }
    }
}

fn run(program: &str, words: &str) -> Result<()> {
    let output = Command::new(program)
        .args(words.split(' '))
        .output()
        .with_context(|| format!("no command {program}: install iproute2"))?;
    if output.status.success() {
        return Ok(());
    }
    bail!("{program} {words}: {}", String::from_utf8_lossy(&output.stderr).trim())
}

/// The machine's setting for `poll`, which one round changes. Dropping this value restores the setting.
#[derive(Debug)]
pub(super) struct BusyPolling(String);

impl BusyPolling {
    pub(super) fn begin() -> Result<Self> {
        let before = fs::read_to_string(BUSY_POLL_SETTING).context(BUSY_POLL_SETTING)?;
        fs::write(BUSY_POLL_SETTING, BUSY_POLL_US.to_string()).context(BUSY_POLL_SETTING)?;
        Ok(Self(before))
    }
}

impl Drop for BusyPolling {
    fn drop(&mut self) {
        let _ = fs::write(BUSY_POLL_SETTING, &self.0); // it could be written before
    }
}
