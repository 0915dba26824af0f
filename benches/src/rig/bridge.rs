//! The bridge of a round: `shmcast bridge send` on the publisher's host, and `shmcast bridge recv` on the receivers' host. The rig measures
//! the CPU time of one thread of each program.
//!
//! The two programs start after the publisher, because `bridge send` reads the publisher's channel. They start before the receivers,
//! because the receivers attach to the channel of `bridge recv`.

use crate::rig::hosts::{BUSY_POLL_US, BusyPolling, FAR, NEAR};
use crate::rig::names::{
    BRIDGE, BRIDGE_BUSY_POLL, BRIDGE_DEFAULT, BRIDGE_NATIVE, BRIDGE_SEALED, BRIDGE_TO_RING, BRIDGE_UNBOUND,
    CHANNEL,
};
use crate::rig::spec::{Contestant, Spec, Wait, Wire};
use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The multicast group of the rig's bridges.
pub const GROUP: &str = "239.79.0.1:30002";
/// The port at which the sending end answers requests for repairs.
pub const REPAIR_PORT: u16 = 30_003;
/// The largest message in bytes that fits into a packet of the bridge's default size.
pub const PAYLOAD_MAX: u64 = 1_378;
/// The time limit for the start and for the end of a bridge.
const PATIENCE: Duration = Duration::from_secs(20);

/// The way in which the bridge of a contestant runs.
#[derive(Debug, Clone, Copy)]
pub struct BridgeMode {
    /// Whether the bridge's receiving thread is bound to a CPU.
    pub pinned: bool,
    /// Whether the kernel polls the network interface for the receiving thread.
    pub busy_poll: bool,
    /// Whether the sending end and the receiving end have the default settings. With these settings, each end chooses how to wait, and on
    /// which CPU to run.
    pub defaults: bool,
    /// Whether a latency ends with the time stamp that the bridge writes into the receiving ring. Otherwise it ends at the reader.
    pub to_ring: bool,
    /// The format of the bridge's packets.
    pub form: Form,
}

/// The format of a bridge's packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// MoldUDP64.
    Plain,
    /// The native format without keys.
    Native,
    /// The native format with keys: each packet is sealed.
    Sealed,
}

impl BridgeMode {
    /// Returns how the contestant's bridge runs; `None` for a contestant without a bridge program.
    pub fn of(contestant: &Contestant) -> Option<Self> {
        let mode = |pinned, busy_poll, to_ring| {
            Some(Self { pinned, busy_poll, defaults: false, to_ring, form: Form::Plain })
        };
        let of_form = |form| mode(true, false, false).map(|mode| Self { form, ..mode });
        match contestant.transport_name() {
            BRIDGE => of_form(Form::Plain),
            BRIDGE_NATIVE => of_form(Form::Native),
            BRIDGE_SEALED => of_form(Form::Sealed),
            BRIDGE_TO_RING => mode(true, false, true),
            BRIDGE_UNBOUND => mode(false, false, true),
            BRIDGE_DEFAULT => mode(false, false, true).map(|mode| Self { defaults: true, ..mode }),
            BRIDGE_BUSY_POLL => mode(true, true, true),
            _ => None,
        }
    }
}

/// Returns the directory of the sending host's channels.
pub fn near_dir(spec: &Spec) -> PathBuf {
    spec.dir.join("near")
}

/// Returns the directory of the receiving host's channels.
pub fn far_dir(spec: &Spec) -> PathBuf {
    spec.dir.join("far")
}

/// Makes a file with the keys that both ends share, and returns its path. The keys need not be secret.
///
/// # Errors
/// When the file cannot be written.
pub fn keys_of(spec: &Spec) -> Result<PathBuf> {
    let path = spec.dir.join("keys");
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(false).mode(0o600).open(&path);
    let written = file.and_then(|mut file| file.write_all(b"7 000102030405060708090a0b0c0d0e0f\n"));
    written.with_context(|| format!("write {}", path.display()))?;
    Ok(path)
}

/// The resources that one thread of the bridge used while messages were sent.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct ThreadUse {
    /// CPU time in ns, in user mode and in the kernel together.
    pub cpu_ns: u64,
    /// Wall time in ns.
    pub wall_ns: u64,
    /// The number of times that the thread slept.
    pub voluntary_switches: u64,
    /// The number of times that the thread lost its CPU. The kernel also counts a yield.
    pub involuntary_switches: u64,
}

/// The bridge's reports of a round, and the resources that its threads used.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct BridgeReport {
    /// The resources of the sending thread.
    pub egress: ThreadUse,
    /// The resources of the receiving thread.
    pub ingress: ThreadUse,
    /// The number of packets with messages.
    pub packets: u64,
    /// The number of messages that were sent again.
    pub repaired: u64,
    /// The number of messages that never arrived.
    pub missing: u64,
    /// Settings that the system refused, in words.
    pub refusals: Vec<String>,
}

/// One process of the bridge.
#[derive(Debug)]
struct End {
    child: Child,
    thread: &'static str,
    out: PathBuf,
    log: PathBuf,
    before: ThreadUse,
}

/// A running bridge.
#[derive(Debug)]
pub(super) struct BridgeProcesses {
    send: End,
    recv: End,
    began: Instant,
    _polling: Option<BusyPolling>,
}

impl BridgeProcesses {
    /// Starts the bridge if the round needs one. Waits until each end has received packets from the other end.
    pub(super) fn of(spec: &Spec) -> Result<Option<Self>> {
        let (Some(wire), Some(mode)) = (&spec.wire, BridgeMode::of(&spec.contestant)) else {
            return Ok(None);
        };
        let polling = mode.busy_poll.then(BusyPolling::begin).transpose()?;
        let wait = |wait: Wait| match wait {
            Wait::Spin => "spin",
            Wait::Block => "block",
            _ => "yield",
        };
        let (near, capacity) = (NEAR.0, spec.ring_bytes);
        let mut recv = format!(
            "recv {CHANNEL} --from {GROUP} --interface {} --server {near}:{REPAIR_PORT} --set receive.from=1 --json \
             --set max_message={PAYLOAD_MAX}B --capacity {capacity}B",
            FAR.1,
        );
        if mode.pinned {
            recv += " --set cpu=1";
        }
        if mode.busy_poll {
            recv += &format!(" --set busy_poll_us={BUSY_POLL_US}");
        }
        let mut send = format!(
            "send {CHANNEL} --to {GROUP} --interface {} --set send.from=oldest --repair {near}:{REPAIR_PORT} --allow {near}/24 \
             --set send.linger_ms=200 --json",
            NEAR.1,
        );
        if !mode.defaults {
            recv += &format!(" --set wait={}", wait(spec.contestant.wait));
            send += " --set wait=yield --set cpu=0";
        }
        let form = match mode.form {
            Form::Plain => String::new(),
            Form::Native => " --set profile=native".to_owned(),
            Form::Sealed => format!(" --set profile=native --set keys={}", keys_of(spec)?.display()),
        };
        (recv, send) = (recv + &form, send + &form);
        let recv = End::start(wire, &wire.far, &far_dir(spec), &recv, "recv-")?;
        let send = End::start(wire, &wire.near, &near_dir(spec), &send, "send-")?;
        let mut bridge = Self { send, recv, began: Instant::now(), _polling: polling };
        bridge.send.expect("sending session")?;
        bridge.recv.expect("receiving session")?;
        Ok(Some(bridge))
    }

    pub(super) fn ids(&self) -> [u32; 2] {
        [self.send.child.id(), self.recv.child.id()]
    }

    /// Notes the resources that the bridge has used before the first message. Call this when messages begin to flow.
    pub(super) fn begin(&mut self) -> Result<()> {
        self.began = Instant::now();
        for end in [&mut self.send, &mut self.recv] {
            end.before = end.used()?;
        }
        Ok(())
    }

    /// Ends both processes, and returns their reports and the resources that they used. Call this when the last message has been received.
    pub(super) fn end(mut self) -> Result<BridgeReport> {
        let wall_ns = self.began.elapsed().as_nanos() as u64;
        let [egress, ingress] = [&self.send, &self.recv].map(|end| {
            let now = end.used()?;
            anyhow::Ok(ThreadUse {
                cpu_ns: now.cpu_ns.saturating_sub(end.before.cpu_ns),
                wall_ns,
                voluntary_switches: now.voluntary_switches - end.before.voluntary_switches,
                involuntary_switches: now.involuntary_switches - end.before.involuntary_switches,
            })
        });
        let (sent, received) = (self.send.end()?, self.recv.end()?);
        let texts = |report: &serde_json::Value| -> Vec<String> {
            let refusals = report["refusals"].as_array().into_iter().flatten();
            refusals.filter_map(|text| Some(text.as_str()?.to_owned())).collect()
        };
        let number = |report: &serde_json::Value, part: &str, name: &str| {
            report[part][name].as_u64().with_context(|| format!("the bridge says no {part}.{name}: {report}"))
        };
        Ok(BridgeReport {
            egress: egress?,
            ingress: ingress?,
            packets: number(&sent, "send", "packets")?,
            repaired: number(&received, "receive", "recovered_by_servers")?,
            missing: number(&received, "receive", "messages_missing")?,
            refusals: texts(&sent).into_iter().chain(texts(&received)).collect(),
        })
    }
}

impl End {
    fn start(wire: &Wire, host: &str, dir: &Path, words: &str, thread: &'static str) -> Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
        let [out, log] = ["json", "log"].map(|kind| dir.with_extension(kind));
        let child = Command::new("ip")
            .args(["netns", "exec", host])
            .arg(&wire.shmcast)
            .arg("bridge")
            .args(words.split_whitespace())
            .env("SHMCAST_DIR", dir)
            .stdin(Stdio::null())
            .stdout(File::create(&out).context("make a file for the bridge's report")?)
            .stderr(File::create(&log).context("make a file for the bridge's log")?)
            .spawn()
            .with_context(|| format!("start {}", wire.shmcast.display()))?;
        Ok(Self { child, thread, out, log, before: ThreadUse::default() })
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn expect(&mut self, words: &str) -> Result<()> {
        let started = Instant::now();
        while !self.said().contains(words) {
            if self.child.try_wait()?.is_some() || started.elapsed() > PATIENCE {
                bail!("the bridge is not {words}: {}", self.said().trim());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Returns the resources that the bridge's thread has used so far.
    fn used(&self) -> Result<ThreadUse> {
        let tasks =
            fs::read_dir(format!("/proc/{}/task", self.child.id())).context("the bridge has ended")?;
        for task in tasks {
            let read = |name: &str| fs::read_to_string(task.as_ref().map(|t| t.path().join(name)).ok()?).ok();
            if !read("comm").is_some_and(|name| name.starts_with(self.thread)) {
                continue;
            }
            let status = read("status").unwrap_or_default();
            let count = |key: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(key));
                line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
            };
            let cpu_ns = read("schedstat").and_then(|text| text.split_whitespace().next()?.parse().ok());
            return Ok(ThreadUse {
                cpu_ns: cpu_ns.unwrap_or(0),
                wall_ns: 0,
                voluntary_switches: count("voluntary_ctxt_switches:"),
                involuntary_switches: count("nonvoluntary_ctxt_switches:"),
            });
        }
        bail!("the bridge has no thread {}*: {}", self.thread, self.said().trim())
    }

    /// Ends the process, and returns its report.
    fn end(&mut self) -> Result<serde_json::Value> {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGINT).context("end the bridge")?;
        let started = Instant::now();
        while self.child.try_wait()?.is_none() {
            anyhow::ensure!(started.elapsed() < PATIENCE, "the bridge does not end: {}", self.said().trim());
            std::thread::sleep(Duration::from_millis(5));
        }
        let text = fs::read_to_string(&self.out).context("read the bridge's report")?;
        serde_json::from_str(&text)
            .with_context(|| format!("the bridge's report: {text} {}", self.said().trim()))
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it has ended already unless the round failed
        let _ = self.child.wait();
    }
}
