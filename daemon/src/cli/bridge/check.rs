//! `shmcast bridge check`: checks whether the bridges of a configuration can work on this host and in its network.

use super::heard::Heard;
use crate::cli::MISSED;
use crate::cli::figures::table;
use crate::cli::say::{note, print, print_json};
use crate::cli::units::parse_duration;
use crate::config::Config;
use anyhow::{Context, Result, bail};
use comfy_table::ContentArrangement;
use serde::Serialize;
use shmcast::sys::{clock, interfaces};
use shmcast_bridge::proto::control::{CONTROL_MAX_BYTES, ControlDatagram};
use shmcast_bridge::proto::wire::MAX_DATAGRAM_BYTES;
use shmcast_bridge::read_keys;
use shmcast_bridge::socket::{
    RefusedSettings, SocketError, Tuning, anywhere, header_bytes, open_line, open_sender, wait_for_any,
};
use shmcast_bridge::spec::{BridgeSpec, Direction, LineSpec, ReceiveSpec, SendSpec, TimeMode};
use shmcast_engine::check::{Verdict, check};
use std::fs;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const EXAMPLE: &str = "\
Example: shmcast bridge check /etc/shmcast/shmcast.toml --listen 5s

For each [[bridge]]: can the keys be read, is the clock good enough for native lines, are the interfaces there and wide enough for a packet, can the groups be
joined, do packets arrive on them that the bridge can use, does each server answer. Of a bridge through servers of NATS: can the files be read, does each
server answer, is the stream there with the right settings, and may the account do what the bridge does. It joins groups and asks servers
as a bridge does, publishes nothing and sends no feed. Run it as the daemon's user, since keys are that user's alone. A server that is not
shmcast's does not answer this question.

Exit codes: 0 all can work, 3 something is doubtful, 1 something cannot work.";

/// The longest wait for a server's answer.
const PATIENCE: Duration = Duration::from_millis(500);

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    /// The configuration file
    file: PathBuf,
    /// Check only the bridge that has this name
    bridge: Option<String>,
    /// How long to listen to lines that are received
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    listen: Duration,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Ok,
    Doubtful,
    Fails,
}

impl From<Verdict> for Status {
    fn from(verdict: Verdict) -> Status {
        match verdict {
            Verdict::Ok => Status::Ok,
            Verdict::Doubtful => Status::Doubtful,
            Verdict::Fails => Status::Fails,
        }
    }
}

#[derive(Debug, Serialize)]
struct Finding {
    bridge: String,
    about: String,
    status: Status,
    says: String,
}

/// The findings about one bridge.
struct Findings<'a> {
    spec: &'a BridgeSpec,
    found: Vec<Finding>,
}

impl Findings<'_> {
    fn note(&mut self, about: impl ToString, status: impl Into<Status>, says: impl ToString) {
        let status = status.into();
        let (bridge, about, says) = (self.spec.title().to_owned(), about.to_string(), says.to_string());
        self.found.push(Finding { bridge, about, status, says });
    }
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let config = Config::load(&args.file)?;
    let is_wanted = |spec: &&BridgeSpec| args.bridge.as_ref().is_none_or(|name| name == spec.title());
    let specs: Vec<&BridgeSpec> = config.bridges.iter().filter(is_wanted).collect();
    if specs.is_empty() {
        let names: Vec<&str> = config.bridges.iter().map(BridgeSpec::title).collect();
        match &args.bridge {
            Some(name) => bail!("no bridge {name:?} in {}: it has {names:?}", args.file.display()),
            None => bail!("no [[bridge]] in {}: nothing to check", args.file.display()),
        }
    }
    let found: Vec<Finding> = specs.into_iter().flat_map(|spec| look_at(spec, args.listen)).collect();
    let worst = found.iter().map(|finding| finding.status).max().unwrap_or(Status::Ok);
    if args.json {
        print_json(&found)?;
    } else {
        let mut rows = table(["BRIDGE", "ABOUT", "STATUS", "FOUND"], 4);
        rows.set_content_arrangement(ContentArrangement::Dynamic);
        for Finding { bridge, about, status, says } in &found {
            let status = format!("{status:?}").to_lowercase();
            rows.add_row([bridge, about, &status, says]);
        }
        print(rows.trim_fmt())?;
        let failed = found.iter().filter(|finding| finding.status == Status::Fails).count();
        note!("{}: {} findings, {failed} that cannot work", args.file.display(), found.len());
    }
    Ok(match worst {
        Status::Ok => ExitCode::SUCCESS,
        Status::Doubtful => ExitCode::from(MISSED),
        Status::Fails => ExitCode::FAILURE,
    })
}

fn look_at(spec: &BridgeSpec, listen: Duration) -> Vec<Finding> {
    let mut findings = Findings { spec, found: Vec::new() };
    if let Some(keys) = &spec.keys {
        look_at_keys(keys, &mut findings);
    }
    if spec.is_any_native() || spec.nats().is_some() {
        look_at_clock(&mut findings);
    }
    if spec.nats().is_some() {
        look_at_stream(&mut findings);
        return findings.found;
    }
    match spec.direction() {
        Some(Direction::Send(send)) => look_at_sender(send, &mut findings),
        Some(Direction::Receive(receive)) => {
            look_at_receiver(receive, listen, &mut findings);
        }
        None => {}
    }
    findings.found
}

/// Looks at the servers of NATS and the stream there.
fn look_at_stream(findings: &mut Findings<'_>) {
    for found in check(findings.spec) {
        findings.note(found.about, found.verdict, found.says);
    }
}

fn look_at_keys(path: &Path, findings: &mut Findings<'_>) {
    let now = wall_ns();
    match read_keys(path) {
        Err(e) => findings.note("keys", Status::Fails, e),
        Ok(ring) => {
            let count = ring.keys().len();
            match ring.sealing(now) {
                Some(key) if key.from_ns <= now => {
                    findings.note("keys", Status::Ok, format!("{count} keys, {} seals now", key.id));
                }
                Some(key) => {
                    let says =
                        format!("{count} keys, none is due yet by this host's clock: {} seals", key.id);
                    findings.note("keys", Status::Doubtful, says);
                }
                None => findings.note("keys", Status::Fails, "the file has no key"),
            }
        }
    }
}

/// Checks whether the clock is accurate enough for the times of messages on native lines and in an engine's blocks.
fn look_at_clock(findings: &mut Findings<'_>) {
    let limit_us = match &findings.spec.receive {
        Some(receive) if receive.time == TimeMode::Arrival => return,
        receive => receive.as_ref().map(|receive| receive.clock_limit_us),
    };
    let (status, says) = judge_clock(clock::error_ns(), limit_us);
    findings.note("clock", status, says);
}

/// Compares the clock's error, which the kernel reports, with the limit that the receiver sets. A sender has no limit.
fn judge_clock(error_ns: io::Result<Option<u64>>, limit_us: Option<u32>) -> (Status, String) {
    let known = match error_ns {
        _ if limit_us == Some(0) => return (Status::Ok, "clock_limit_us = 0 believes any clock".to_owned()),
        Err(e) => return (Status::Doubtful, format!("the system does not say how wrong it is: {e}")),
        Ok(known) => known.map(|ns| ns.div_ceil(1_000)),
    };
    let good = "the kernel admits an error of";
    match (known, limit_us) {
        (None, _) => {
            let says =
                "nobody synchronises it, so messages get the time of their arrival: run chronyd or ptp4l";
            (Status::Doubtful, says.to_owned())
        }
        (Some(us), None) => {
            (Status::Ok, format!("{good} {us} us, which receivers compare with their clock_limit_us"))
        }
        (Some(us), Some(limit_us)) if us <= u64::from(limit_us) => {
            (Status::Ok, format!("{good} {us} us, within clock_limit_us = {limit_us}"))
        }
        (Some(us), Some(limit_us)) => {
            let says = format!(
                "{good} {us} us, more than clock_limit_us = {limit_us}: messages get the time of their arrival; \
                 synchronise it better, or raise the limit"
            );
            (Status::Doubtful, says)
        }
    }
}

fn wall_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}

fn look_at_sender(send: &SendSpec, findings: &mut Findings<'_>) {
    let spec = findings.spec;
    for line in &spec.lines {
        let about = format!("line {}", line.group);
        match open_sender(line, send.ttl, send.loopback) {
            Err(e) => findings.note(about, Status::Fails, e),
            Ok(socket) => look_at_width(&about, line, &socket, findings),
        }
    }
    for other in send.repair.iter().map(|repair| repair.bind) {
        let about = format!("repair {other}");
        match UdpSocket::bind(other) {
            Ok(_) => findings.note(about, Status::Ok, "the port is free"),
            Err(e) if e.kind() == ErrorKind::AddrInUse => {
                findings.note(about, Status::Doubtful, "the port is taken, as by this bridge where it runs");
            }
            Err(e) if e.kind() == ErrorKind::AddrNotAvailable => {
                let says = format!("{e}: bind must be an address of this host, and `ip address` lists them");
                findings.note(about, Status::Fails, says);
            }
            Err(e) => findings.note(about, Status::Fails, e),
        }
    }
}

/// Compares the size of the bridge's packets with the MTU of the line's interface.
fn look_at_width(about: &str, line: &LineSpec, socket: &UdpSocket, findings: &mut Findings<'_>) {
    let headers = header_bytes(&line.group);
    let needed = findings.spec.payload_bytes + headers;
    let Some((name, mtu)) = interface_to(line, socket) else {
        findings.note(about, Status::Doubtful, "no interface is found by which packets would leave");
        return;
    };
    if needed > mtu {
        let says = format!(
            "{name} takes {mtu} bytes in one piece, and a packet has up to {needed}: it is sent in fragments, and one \
             that is lost loses the packet; give payload_bytes = {}",
            mtu.saturating_sub(headers)
        );
        findings.note(about, Status::Doubtful, says);
    } else {
        findings.note(about, Status::Ok, format!("leaves by {name}, {needed} of its {mtu} bytes"));
    }
}

/// Returns the interface through which a line's packets leave, and its MTU.
fn interface_to(line: &LineSpec, socket: &UdpSocket) -> Option<(String, usize)> {
    socket.connect(line.group).ok()?;
    let own = socket.local_addr().ok()?.ip();
    let all = interfaces::addresses(socket).ok()?;
    let by_name = || all.iter().find(|(name, _)| line.interface.as_ref() == Some(name));
    let (name, _) = by_name().or_else(|| all.iter().find(|(_, address)| *address == own))?;
    let mtu = fs::read_to_string(format!("/sys/class/net/{name}/mtu")).ok()?.trim().parse().ok()?;
    Some((name.clone(), mtu))
}

fn look_at_receiver(receive: &ReceiveSpec, listen: Duration, findings: &mut Findings<'_>) {
    let mut open = Vec::new();
    for line in &findings.spec.lines {
        let tuning = Tuning { buffer_bytes: receive.buffer_bytes, busy_poll_us: 0 };
        let mut refused = RefusedSettings::default();
        match open_line(line, tuning, &mut refused) {
            Err(e) => {
                let is_taken =
                    matches!(&e, SocketError::Os { source, .. } if source.kind() == ErrorKind::AddrInUse);
                let status = if is_taken { Status::Doubtful } else { Status::Fails };
                findings.note(format!("line {}", line.group), status, e);
            }
            Ok(socket) => open.push((line, socket)),
        }
        for refusal in refused.0 {
            findings.note(format!("line {}", line.group), Status::Doubtful, refusal);
        }
    }
    let heard = hear(&open, listen, Heard::new(findings.spec));
    for (line, _) in &open {
        let (verdict, says) = heard.judge(&line.group, listen);
        findings.note(format!("line {}", line.group), verdict, says);
    }
    for server in &receive.servers {
        let (status, says) = ask(*server);
        findings.note(format!("server {server}"), status, says);
    }
}

/// Counts the packets of each line.
fn hear(lines: &[(&LineSpec, UdpSocket)], listen: Duration, mut heard: Heard) -> Heard {
    let until = Instant::now() + listen;
    let mut packet = vec![0; MAX_DATAGRAM_BYTES];
    while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        if lines.is_empty() {
            break;
        }
        wait_for_any(lines.iter().map(|(_, socket)| socket.as_fd()), left);
        for (line, socket) in lines {
            if socket.set_nonblocking(true).is_ok()
                && let Ok(size) = socket.recv(&mut packet)
            {
                heard.note(wall_ns(), line.group, &packet[..size]);
            }
        }
    }
    heard
}

/// Requests a cookie from a server, as a receiver does before its first lease.
fn ask(server: SocketAddr) -> (Status, String) {
    match question(server) {
        Ok(Some(after)) => (Status::Ok, format!("answers after {after:?}")),
        Ok(None) => {
            let says = format!(
                "no answer in {PATIENCE:?}: it is away, a filter drops requests, or it is not shmcast's"
            );
            (Status::Doubtful, says)
        }
        Err(e) => (Status::Fails, format!("{e:#}")),
    }
}

fn question(server: SocketAddr) -> Result<Option<Duration>> {
    let socket = UdpSocket::bind(anywhere(&server)).context("open a socket")?;
    socket.connect(server).context("reach it")?;
    let nonce = wall_ns();
    let (mut bytes, mut answer) = ([0; CONTROL_MAX_BYTES], [0; 2048]);
    let length = ControlDatagram::Hello { nonce }.encode(&mut bytes);
    let started = Instant::now();
    socket.send(&bytes[..length]).context("ask it")?;
    while let Some(left) = PATIENCE.checked_sub(started.elapsed()).filter(|left| !left.is_zero()) {
        socket.set_read_timeout(Some(left))?;
        match socket.recv(&mut answer) {
            Ok(length) => {
                let told = ControlDatagram::parse(&answer[..length]);
                if matches!(told, Ok(ControlDatagram::Cookie { nonce: of, .. }) if of == nonce) {
                    return Ok(Some(started.elapsed()));
                }
            }
            Err(e) if e.kind() == ErrorKind::ConnectionRefused => {
                bail!(
                    "nobody listens there: is the sender's [bridge.send.repair] up, and is the address right?"
                )
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return Ok(None),
            Err(e) => return Err(e).context("hear its answer"),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_judged_by_the_receivers_limit() {
        let status = |error_ns, limit_us| judge_clock(error_ns, limit_us).0;
        assert_eq!(status(Ok(Some(900_000)), Some(1_000)), Status::Ok);
        assert_eq!(status(Ok(Some(1_000_001)), Some(1_000)), Status::Doubtful);
        assert_eq!(status(Ok(Some(16_000_000)), None), Status::Ok);
        for limit_us in [None, Some(1_000)] {
            assert_eq!(status(Ok(None), limit_us), Status::Doubtful);
            assert_eq!(status(Err(ErrorKind::PermissionDenied.into()), limit_us), Status::Doubtful);
        }
        assert_eq!(status(Ok(None), Some(0)), Status::Ok);
        assert_eq!(status(Err(ErrorKind::PermissionDenied.into()), Some(0)), Status::Ok);
    }
}
