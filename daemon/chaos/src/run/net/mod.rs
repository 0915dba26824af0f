//! The network of a story with several hosts: a namespace for each host, a switch for each line, and the configurations of the bridges.
//!
//! The interface `v<l>` of host `h` for line `l` has the addresses 10.77.`l`.`h+1` and fd77:`l`::`h+1`. The daemon and the senders of a
//! host run in the host's namespace. Publishers and readers need no namespace, because they use files to reach channels and daemons.

mod forger;
mod frames;
mod hub;
mod steps;
mod tables;

use crate::story::{Net, Story};
use anyhow::{Context, Result, bail};
use hub::{Hub, open_port};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};

/// The prefix of the names of senders that are separate processes.
pub const SENDER: &str = "sender";
/// The names of the hosts' daemons.
pub const DAEMONS: [&str; 4] = ["daemon", "far", "third", "fourth"];
/// The key file's first line: the number and the key.
const KEY: &str = "1 000102030405060708090a0b0c0d0e0f\n";

/// The network.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) net: Net,
    dir: PathBuf,
    /// The names of the hosts' namespaces. The last name is that of the switches' namespace.
    names: Vec<String>,
    hubs: Vec<Hub>,
    /// The first host's second sender, if it runs, and the number of its starts.
    sender: Option<Child>,
    senders: u32,
    is_sender_stopped: bool,
    keys: u32,
    /// For each line, two values at the latest packet that `forge_one` sent: the number of datagrams that the line had carried, and the
    /// time.
    forged_at: [(u64, u64); 2],
    /// Whether the second host's channel was promoted.
    pub(super) is_promoted: bool,
}

/// Whether this process is allowed to make network namespaces.
pub fn is_possible() -> bool {
    let name = format!("shmcast-chaos-probe-{}", std::process::id());
    let made = ip(&format!("netns add {name}"));
    let _ = ip(&format!("netns del {name}"));
    made.is_ok()
}

fn ip(words: &str) -> Result<()> {
    let output = Command::new("ip").args(words.split(' ')).output().context("start the command ip")?;
    if !output.status.success() {
        bail!("ip {words}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Runs a function in a network namespace. Sockets that the function makes stay in the namespace.
fn in_namespace<T: Send>(name: &str, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let file = File::open(Path::new("/run/netns").join(name)).context("open a namespace")?;
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                .context("enter a network namespace")?;
            work()
        });
        worker.join().map_err(|_| anyhow::anyhow!("a thread in a namespace panicked"))?
    })
}

impl Network {
    pub(super) fn new(net: &Net, story: &Story, dir: &Path) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let id = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let names = (0..=net.hosts()).map(|host| format!("shmcast-chaos-{id}-{host}")).collect();
        let mut network = Self {
            net: net.clone(),
            dir: dir.to_owned(),
            names,
            hubs: Vec::new(),
            sender: None,
            senders: 0,
            is_sender_stopped: false,
            keys: 1,
            forged_at: [(0, 0); 2],
            is_promoted: false,
        };
        for name in &network.names {
            ip(&format!("netns add {name}")).context("stories of hosts need root")?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        for line in 0..usize::from(net.lines) {
            let ports = (0..net.hosts()).map(|host| network.plug(host, line)).collect::<Result<_>>()?;
            network.hubs.push(Hub::new(ports, story.seed ^ line as u64));
        }
        network.write_keys(KEY)?;
        Ok(network)
    }

    /// Returns the name of the switches' namespace.
    fn switch(&self) -> &str {
        &self.names[self.net.hosts()]
    }

    /// Connects a host to a line by an interface. Returns the switch's port.
    fn plug(&self, host: usize, line: usize) -> Result<std::os::fd::OwnedFd> {
        let (name, switch, port) = (&self.names[host], self.switch(), format!("p{line}{host}"));
        // A host keeps its hardware address when it is plugged in again, because other hosts remember the address.
        let address = format!("02:77:00:00:{line:02x}:{host:02x}");
        ip(&format!(
            "link add v{line} address {address} netns {name} type veth peer name {port} netns {switch}"
        ))?;
        // The switch passes only packets that fit a wire. So the kernel must split larger ones before the switch gets them.
        ip(&format!("-n {name} link set v{line} gso_max_segs 1"))?;
        ip(&format!("-n {name} addr add 10.77.{line}.{}/24 dev v{line}", host + 1))?;
        ip(&format!("-n {name} addr add fd77:{line}::{}/64 dev v{line} nodad", host + 1))?;
        ip(&format!("-n {name} link set v{line} up"))?;
        ip(&format!("-n {switch} link set {port} up"))?;
        in_namespace(switch, || open_port(&port))
    }

    fn unplug(&self, host: usize, line: usize) -> Result<()> {
        self.hubs[line].replace(host, None);
        ip(&format!("-n {} link del v{line}", self.names[host]))
    }

    fn keys_path(&self) -> PathBuf {
        self.dir.join("keys")
    }

    fn write_keys(&self, text: &str) -> Result<()> {
        let part = self.dir.join("keys.part");
        fs::write(&part, text)?;
        fs::set_permissions(&part, fs::Permissions::from_mode(0o600))?;
        fs::rename(&part, self.keys_path()).context("write the keys")
    }

    /// Returns the first words of a command that runs on a host.
    pub(super) fn on(&self, host: usize) -> Vec<String> {
        ["ip", "netns", "exec", &self.names[host]].map(str::to_owned).to_vec()
    }

    /// Runs a function on a host.
    pub(super) fn at<T: Send>(&self, host: usize, work: impl FnOnce() -> T + Send) -> Result<T> {
        in_namespace(&self.names[host], || Ok(work()))
    }

    /// Ends all faults of the lines. A host that was cut off for a promotion stays cut off.
    pub(super) fn heal(&self) {
        for hub in &self.hubs {
            hub.set(0, 0, 0);
            (0..self.net.hosts()).for_each(|host| hub.cut(host, 0));
            if self.is_promoted {
                hub.cut(0, u64::MAX);
            }
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if let Some(sender) = &mut self.sender {
            let _ = sender.kill();
            let _ = sender.wait();
        }
        self.hubs.clear();
        for name in &self.names {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}
