//! The faults of the table. Each function plays one fault once. It returns the time from the moment when the servers could serve again
//! until the far end had the messages that were published by then.

use super::scar::{Place, Scar, wound};
use super::stage::{Needs, Plan, ROOMY, Stage};
use fastrand::Rng;
use nix::sys::signal::Signal;
use shmcast_testkit::disk::Disk;
use shmcast_testkit::hosts::{Host, ip};
use shmcast_testkit::nats::Server;
use shmcast_testkit::wait_until;
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The directions that a partition cuts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    ClientAndServer,
    ServerAndServer,
    OneWay,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cell {
    /// The power of all servers is cut.
    Power {
        always: bool,
    },
    /// The power of all servers is cut, and the outage lasts longer than the ring.
    Overrun,
    /// The files of one of three servers are damaged.
    Minority(Scar),
    /// The files of the only server are damaged.
    Only(Scar),
    /// Blocks in the middle of the stream are removed. There is a single server, and it does not report this.
    Hole,
    /// The leader is stopped for longer than the election, and the next one is killed.
    Leaders,
    Partition(Cut),
    /// A sender is stopped until its rival has taken over.
    Writers {
        three: bool,
    },
}

/// All rows of the table.
pub(super) const CELLS: [Cell; 16] = [
    Cell::Power { always: false },
    Cell::Power { always: true },
    Cell::Overrun,
    Cell::Minority(Scar::Bit),
    Cell::Minority(Scar::Byte),
    Cell::Minority(Scar::Page),
    Cell::Only(Scar::Bit),
    Cell::Only(Scar::Byte),
    Cell::Only(Scar::Page),
    Cell::Hole,
    Cell::Leaders,
    Cell::Partition(Cut::ClientAndServer),
    Cell::Partition(Cut::ServerAndServer),
    Cell::Partition(Cut::OneWay),
    Cell::Writers { three: false },
    Cell::Writers { three: true },
];

impl Cell {
    pub(super) fn name(self) -> String {
        match self {
            Cell::Power { always: false } => "power cut of all servers, `sync_interval` default".to_owned(),
            Cell::Power { always: true } => "power cut of all servers, `sync_interval: always`".to_owned(),
            Cell::Overrun => "power cut of all servers, and an outage longer than the ring".to_owned(),
            Cell::Minority(scar) => format!("{} in a file of one of three servers", scar.name()),
            Cell::Only(scar) => format!("{} in a block file of the only server", scar.name()),
            Cell::Hole => "blocks gone from the middle of the stream of the only server".to_owned(),
            Cell::Leaders => "leader stopped for longer than the election, the next one killed".to_owned(),
            Cell::Partition(Cut::ClientAndServer) => "partition of bridges and a server".to_owned(),
            Cell::Partition(Cut::ServerAndServer) => "partition of a server and the others".to_owned(),
            Cell::Partition(Cut::OneWay) => "partition in one direction".to_owned(),
            Cell::Writers { three: false } => "sender stopped, its rival takes over; one server".to_owned(),
            Cell::Writers { three: true } => "sender stopped, its rival takes over; three servers".to_owned(),
        }
    }

    pub(super) fn plan(self) -> Plan {
        let plan = Plan { needs: Needs::Three, burst: 10, capacity: ROOMY, rivals: false, planted: None };
        match self {
            Cell::Power { always } => Plan { needs: Needs::Disks { always }, ..plan },
            Cell::Overrun => Plan { needs: Needs::Disks { always: false }, capacity: 8 << 20, ..plan },
            Cell::Minority(_) | Cell::Leaders => plan,
            Cell::Only(_) | Cell::Hole => Plan { needs: Needs::One, ..plan },
            Cell::Partition(_) => Plan { needs: Needs::Hosts, ..plan },
            Cell::Writers { three: false } => Plan { needs: Needs::One, burst: 40, rivals: true, ..plan },
            Cell::Writers { three: true } => Plan { burst: 40, rivals: true, ..plan },
        }
    }

    /// Returns the number of runs of this cell, if other cells have `runs` runs.
    pub(super) fn share(self, runs: u64) -> u64 {
        // Writers get three times as many runs, because the table of three hundred runs needs both kinds of writers.
        if matches!(self, Cell::Writers { .. }) && runs > 1 { 3 * runs } else { runs }
    }

    /// The number of runs after which the servers are made anew.
    pub(super) fn lasts(self) -> u64 {
        if matches!(self, Cell::Writers { .. }) { 30 } else { 6 }
    }

    /// Whether the fault needs servers that all have whole copies.
    pub(super) fn needs_whole(self) -> bool {
        matches!(self, Cell::Minority(_) | Cell::Leaders | Cell::Partition(_))
    }

    /// Plays the run of a seed. The seed alone decides what happens.
    pub(super) fn play(self, stage: &mut Stage, seed: u64, rng: &mut Rng) -> Result<Duration, String> {
        stage.flow(rng.u64(200..600))?;
        match self {
            Cell::Power { .. } => power(stage, seed, rng, 0),
            Cell::Overrun => power(stage, seed, rng, 100_000),
            Cell::Minority(scar) => minority(stage, scar, seed, rng),
            Cell::Only(scar) => only(stage, scar, seed, rng),
            Cell::Hole => hole(stage, rng),
            Cell::Leaders => leaders(stage, seed, rng),
            Cell::Partition(cut) => partition(stage, cut, rng),
            Cell::Writers { .. } => writers(stage, rng),
        }
    }
}

/// A pause of this many milliseconds.
fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// In every second run, the receiver is away meanwhile. So it gets only the messages that the servers have afterwards.
fn power(stage: &mut Stage, seed: u64, rng: &mut Rng, flood: u64) -> Result<Duration, String> {
    // The beginning of the stream is on the disks, as for every stream older than two minutes. In every fourth run, the stream can be a new
    // one.
    if seed % 4 != 3 {
        assert!(stage.disks.iter().all(Disk::sync), "the disks take what was written");
        stage.flow(rng.u64(100..800))?;
    }
    let is_away = seed % 2 == 1;
    if is_away {
        stage.leave_behind(rng.u64(200..800));
    }
    stage.cluster.servers.iter().for_each(Server::pause);
    assert!(stage.disks.iter().all(Disk::cut), "the power is cut");
    stage.cluster.servers.iter_mut().for_each(Server::kill);
    let until = stage.line.next() + flood;
    stage.line.owe(flood);
    wait_until("messages of the outage", || stage.line.next() >= until);
    assert!(stage.disks.iter_mut().all(Disk::mount_again), "what the disks had is mounted");
    let mut order = [0, 1, 2];
    rng.shuffle(&mut order);
    for n in order {
        stage.cluster.servers[n].start_soon();
        pause(*rng.choice(&[0, 0, 300, 1_500]).unwrap_or(&0));
    }
    let since = Instant::now();
    if is_away {
        stage.begin_receive();
    }
    stage.goes_on(since)
}

/// The six orders in which three servers start.
const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

/// Stops all servers, damages a file of one server, and starts them. Eighteen seeds combine each kind of file with each order.
fn minority(stage: &mut Stage, scar: Scar, seed: u64, rng: &mut Rng) -> Result<Duration, String> {
    let place = [Place::Blocks, Place::Index, Place::Snapshot][((seed + scar as u64) % 3) as usize];
    let is_away = rng.bool();
    if is_away {
        stage.leave_behind(rng.u64(200..800));
    }
    // Chance chooses the damaged server. The orders are those of the damaged server and the two others.
    let mut servers = [0, 1, 2];
    rng.shuffle(&mut servers);
    let is_killed = place == Place::Blocks && rng.bool();
    for server in &mut stage.cluster.servers {
        if is_killed { server.kill() } else { server.end() }
    }
    wound(stage.cluster.servers[servers[0]].store(), place, scar, rng)?;
    for n in ORDERS[(seed / 3 % 6) as usize] {
        stage.cluster.servers[servers[n]].start_soon();
        pause(*rng.choice(&[0, 300, 2_000]).unwrap_or(&0));
    }
    let since = Instant::now();
    if is_away {
        stage.begin_receive();
    }
    stage.goes_on(since)
}

/// Damages the only server's files, so that only the sender still has their messages.
fn only(stage: &mut Stage, scar: Scar, seed: u64, rng: &mut Rng) -> Result<Duration, String> {
    stage.leave_behind(rng.u64(500..2_000));
    let server = &mut stage.cluster.servers[0];
    if seed.is_multiple_of(2) {
        server.kill()
    } else {
        server.end()
    }
    wound(server.store(), Place::End, scar, rng)?;
    server.start_soon();
    let since = Instant::now();
    stage.begin_receive();
    stage.goes_on(since)
}

/// Removes some of the blocks that the receiver has not read, as an operator of the servers can do.
fn hole(stage: &mut Stage, rng: &mut Rng) -> Result<Duration, String> {
    let numbers = |stage: &Stage| {
        let info = stage.info(&stage.nats());
        let number = |name: &str| info[name].as_u64().unwrap_or(0);
        (number("last_entry"), number("entries"))
    };
    let (first, _) = numbers(stage);
    stage.leave_behind(rng.u64(500..2_000));
    // Before this hole, the stream has no holes, or only those of earlier runs.
    let (last, entries) = numbers(stage);
    let gone = last - entries;
    let from = first + (last - first) / 2;
    let count = rng.u64(1..=(last - from).clamp(1, 20));
    let mut client =
        TcpStream::connect(("127.0.0.1", stage.cluster.servers[0].port)).map_err(|e| e.to_string())?;
    let mut words = "CONNECT {\"verbose\":false}\r\n".to_owned();
    for entry in from..from + count {
        let body = format!("{{\"seq\":{entry}}}");
        words += &format!("PUB $JS.API.STREAM.MSG.DELETE.SHMCAST_ticks {}\r\n{body}\r\n", body.len());
    }
    client.write_all(words.as_bytes()).map_err(|e| e.to_string())?;
    wait_until("the end of some blocks", || {
        let (last, entries) = numbers(stage);
        last.checked_sub(entries) == Some(gone + count)
    });
    let since = Instant::now();
    stage.begin_receive();
    stage.goes_on(since)
}

fn leaders(stage: &mut Stage, seed: u64, rng: &mut Rng) -> Result<Duration, String> {
    let first = stage.leader().ok_or("the servers had no whole copies before the fault")?;
    stage.cluster.named(&first).pause();
    let second = stage.next_leader(&first)?;
    pause(rng.u64(0..1_500));
    stage.cluster.named(&second).kill();
    pause(rng.u64(0..1_500));
    // The servers get a majority again when the first leader, which was stopped, or the second one, which was killed, comes back.
    let since = Instant::now();
    let took = if seed.is_multiple_of(2) {
        stage.cluster.named(&first).signal(Signal::SIGCONT);
        let took = stage.goes_on(since);
        stage.cluster.named(&second).start_soon();
        took
    } else {
        stage.cluster.named(&second).start_soon();
        let took = stage.goes_on(since);
        stage.cluster.named(&first).signal(Signal::SIGCONT);
        took
    }?;
    stage.flow(500)?;
    Ok(took)
}

const HOSTS: [Host; 4] = [Host::A, Host::B, Host::C, Host::D];

/// Sets whether packets from `from` to `to` are lost. To lose them, `from` gets a false hardware address for `to`.
fn lose(stage: &Stage, (from, to): (Host, Host), is_lost: bool) -> Result<(), String> {
    let hosts = stage.hosts.as_ref().ok_or("the cell has no hosts")?;
    let letter = ["a", "b", "c", "d"][from as usize];
    let neighbour = format!("10.77.0.{} dev v{letter}0", to as usize + 1);
    let name = hosts.name(from);
    match is_lost {
        true => ip(&format!("-n {name} neigh replace {neighbour} lladdr 02:00:00:00:00:ff nud permanent")),
        false => ip(&format!("-n {name} neigh del {neighbour}")),
    }
}

/// Cuts off the leader or another server for some seconds. The time counts from the end of the cut.
fn partition(stage: &mut Stage, cut: Cut, rng: &mut Rng) -> Result<Duration, String> {
    let leader = stage.leader().ok_or("the servers had no whole copies before the fault")?;
    let leader = HOSTS[1 + leader[1..].parse::<usize>().map_err(|e| e.to_string())?];
    let others: Vec<Host> = HOSTS[1..].iter().copied().filter(|host| *host != leader).collect();
    let server = if rng.bool() { leader } else { others[rng.usize(..2)] };
    let rest = HOSTS[1..].iter().copied().filter(|host| *host != server);
    let mut ways = Vec::new();
    match cut {
        Cut::ClientAndServer => ways.extend([(Host::A, server), (server, Host::A)]),
        Cut::ServerAndServer => ways.extend(rest.flat_map(|other| [(server, other), (other, server)])),
        Cut::OneWay => match rng.u8(0..4) {
            0 => ways.push((Host::A, server)),
            1 => ways.push((server, Host::A)),
            2 => ways.extend(rest.map(|other| (server, other))),
            _ => ways.extend(rest.map(|other| (other, server))),
        },
    }
    ways.iter().try_for_each(|way| lose(stage, *way, true))?;
    pause(rng.u64(1_000..12_000));
    ways.iter().try_for_each(|way| lose(stage, *way, false))?;
    let took = stage.goes_on(Instant::now())?;
    stage.flow(500)?;
    Ok(took)
}

/// In every second run, the servers stand still just before, so that blocks wait in the sender's queue and in its socket. The blocks in the
/// socket reach the servers before the rival's blocks, and those in the queue after them.
fn writers(stage: &mut Stage, rng: &mut Rng) -> Result<Duration, String> {
    let stands_still = rng.bool();
    if stands_still {
        stage.cluster.servers.iter().for_each(Server::pause);
        pause(rng.u64(1..60));
    }
    // One sender took over in the previous run, and now writes.
    let stopped = [&stage.send, &stage.rival][usize::from(stage.rival_writes)];
    stopped.as_ref().ok_or("the cell has no rivals")?.pause();
    stage.rival_writes = !stage.rival_writes;
    let since = Instant::now();
    if stands_still {
        stage.cluster.servers.iter().for_each(|server| server.signal(Signal::SIGCONT));
    }
    let took = stage.goes_on(since);
    // The stopped sender believes that it still owns the log.
    let both = [&stage.send, &stage.rival];
    both.into_iter().flatten().for_each(crate::feed::Bridge::resume);
    let took = took?;
    stage.flow(rng.u64(100..1_000))?;
    Ok(took)
}
