//! The peers: other projects that send messages from one process to many on a host. Each peer is a transport of shmcast's
//! rig.
//!
//! The rig starts this program with `play TASK` for each process of a round, and with `list` to get the names of the transports. The rig's
//! library does pacing, payloads, checks, clocks, binding to CPUs, and the gate. This program contains only the calls to each peer's API,
//! with the best settings known to us. README.md has the settings and their reasons.
#![deny(unsafe_code)]

/// Defines `play` for a peer whose slots have a type of fixed size. The module must have `NAME`, and must have `Sending` and `Receiving`
/// for each size.
macro_rules! play_by_size {
    () => {
        /// Plays a task. Each message size that the questions use has its own type of slot, exactly as large as the message.
        pub(crate) fn play(task: &Task) -> Result<()> {
            match task.spec().size {
                32 => play_sized::<32>(task),
                64 => play_sized::<64>(task),
                256 => play_sized::<256>(task),
                1024 => play_sized::<1024>(task),
                1400 => play_sized::<1400>(task),
                other => bail!(
                    "{NAME}'s slots are types of this program: 32, 64, 256, 1024 and 1400 B, not {other}"
                ),
            }
        }

        fn play_sized<const N: usize>(task: &Task) -> Result<()> {
            match task {
                Task::Publish(spec) => publish::play(spec, || Sending::<N>::open(spec)),
                Task::Receive(spec, me) => receive::play(spec, *me, || Receiving::<N>::open(spec)),
            }
        }
    };
}
pub(crate) use play_by_size;

#[cfg(feature = "aeron")]
mod aeron;
mod broadcast;
mod iceoryx;
mod shaq;
mod slots;

use anyhow::{Context, Result, bail};
use shmcast_bench::rig::spec::Task;
use shmcast_bench::rig::{publish, receive};
use shmcast_bench::transport::peers::Peer;

const USAGE: &str = "usage: shmcast-peers list | play TASK
The rig starts this program: shmcast-bench latency --peers PATH_OF_THIS_PROGRAM";

fn peers() -> Vec<Peer> {
    let all = [
        (broadcast::NAME, broadcast::VERSION),
        (slots::NAME, slots::VERSION),
        (iceoryx::NAME, iceoryx::VERSION),
        (shaq::NAME, shaq::VERSION),
        #[cfg(feature = "aeron")]
        (aeron::NAME, aeron::VERSION),
    ];
    all.map(|(name, version)| Peer { name: name.into(), version: version.into() }).into()
}

fn play(task: &Task) -> Result<()> {
    let spec = task.spec();
    match (task, spec.contestant.transport_name()) {
        (Task::Publish(_), name) if broadcast::NAMES.contains(&name) => {
            publish::play(spec, || broadcast::Sending::open(spec))
        }
        (Task::Receive(_, me), name) if broadcast::NAMES.contains(&name) => {
            receive::play(spec, *me, || broadcast::Receiving::open(spec))
        }
        (_, slots::NAME | slots::PLAIN) => slots::play(task),
        (_, shaq::NAME) => shaq::play(task),
        (Task::Publish(_), iceoryx::NAME) => publish::play(spec, || iceoryx::Sending::open(spec)),
        (Task::Receive(_, me), iceoryx::NAME) => receive::play(spec, *me, || iceoryx::Receiving::open(spec)),
        #[cfg(feature = "aeron")]
        (Task::Publish(_), aeron::NAME) => publish::play(spec, || aeron::Sending::open(spec)),
        #[cfg(feature = "aeron")]
        (Task::Receive(_, me), aeron::NAME) => receive::play(spec, *me, || aeron::Receiving::open(spec)),
        (_, other) => bail!("no peer {other} is built in; there are: {}", names()),
    }
}

fn names() -> String {
    peers()
        .into_iter()
        .map(|peer| peer.name)
        .chain([broadcast::UNGATED, broadcast::BULK, broadcast::PLAIN, slots::PLAIN].map(String::from))
        .collect::<Vec<_>>()
        .join(", ")
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["list"] => println!("{}", serde_json::to_string(&peers())?),
        ["play", task] => play(&serde_json::from_str(task).context("the rig's task")?)?,
        ["--help" | "-h"] => println!("{USAGE}"),
        _ => bail!("{USAGE}"),
    }
    Ok(())
}
