//! Wakes parked readers, so that publishers need not do it. One thread checks the rings of the readers that sleep.
//!
//! The pause between two checks is a fraction of the time since the thread last woke a reader. So after a silence, a message is late only
//! by a small part of the silence. If no reader has slept for some time, the thread blocks until a reader sends it a message (rings its
//! bell).
//!
//! No reader can block the thread. A reader that always claims to sleep costs no more checks than a busy channel.

use super::access::ConnectionId;
use crate::config::WakerConfig;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::prctl;
use nix::unistd::Pid;
use shmcast::hosting::{Bell, HostedSegment, ParkedReader, Sight};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The pause between two checks is the time since a reader was last woken, divided by this number. The configured limits also apply.
const SILENCE_SHARE: u32 = 16;

/// The waker and its parked readers. Its thread starts with the first reader, and ends when this value is dropped.
#[derive(Debug)]
pub struct Waker {
    shared: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    /// A socket pair with which other threads interrupt the wait of the waker's thread. `knock` writes to the second socket. The thread
    /// waits for the first socket and for the readers' bells.
    door: (UnixStream, UnixStream),
}

#[derive(Debug)]
struct State {
    config: WakerConfig,
    readers: BTreeMap<ConnectionId, ParkedReader>,
    is_running: bool,
    has_ended: bool,
}

/// The result of one check of all readers.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Round {
    asleep: usize,
    woken: usize,
}

impl Waker {
    /// Makes a waker without readers.
    ///
    /// # Errors
    /// The error of `socketpair`.
    pub fn new(config: WakerConfig) -> std::io::Result<Self> {
        let door = UnixStream::pair()?;
        door.0.set_nonblocking(true)?;
        door.1.set_nonblocking(true)?;
        let state = State { config, readers: BTreeMap::new(), is_running: false, has_ended: false };
        Ok(Self { shared: Arc::new(Inner { state: Mutex::new(state), door }) })
    }

    /// Takes over changed pauses and a changed CPU.
    pub fn reload(&self, config: WakerConfig) {
        self.shared.state().config = config;
        self.shared.knock();
    }

    /// Starts to wake `reader` whenever its ring has something to read.
    ///
    /// # Errors
    /// The system's error if the thread cannot be started.
    pub fn park(&self, id: ConnectionId, reader: ParkedReader) -> std::io::Result<()> {
        let mut state = self.shared.state();
        if !state.is_running {
            let shared = Arc::clone(&self.shared);
            thread::Builder::new().name("shmcast-waker".into()).spawn(move || shared.run())?;
            state.is_running = true;
        }
        state.readers.insert(id, reader);
        drop(state);
        self.shared.knock();
        Ok(())
    }

    /// Tells the waker that `readers` continue in `segment`. Readers that are not parked are skipped.
    pub fn watch<'a>(&self, readers: impl Iterator<Item = &'a ConnectionId>, segment: &HostedSegment) {
        let mut state = self.shared.state();
        for id in readers {
            if let Some(reader) = state.readers.get_mut(id) {
                reader.watch(segment);
            }
        }
    }

    /// Forgets a reader, if it is one of this waker's readers.
    pub fn forget(&self, id: ConnectionId) {
        // The thread might be blocked while it holds the reader's bell. So the thread is woken, and drops the bell.
        if self.shared.state().readers.remove(&id).is_some() {
            self.shared.knock();
        }
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        self.shared.state().has_ended = true;
        self.shared.knock();
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        // The lock is used even if it is poisoned: the state is maps and numbers, which are consistent after a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn knock(&self) {
        // If the socket is full, a knock is already waiting there.
        let _ = (&self.door.1).write(&[1]);
    }

    fn run(&self) {
        let unpinned = sched_getaffinity(Pid::from_raw(0));
        let mut placed = None;
        // The default timer slack makes each pause up to 50 us longer.
        let _ = prctl::set_timerslack(1);
        let mut busy = Instant::now();
        loop {
            let (pause, bells) = {
                let mut state = self.state();
                if state.has_ended {
                    return;
                }
                if placed != state.config.cpu {
                    placed = state.config.cpu;
                    place(placed, unpinned);
                }
                let round = state.round();
                if round.woken > 0 {
                    busy = Instant::now();
                }
                let pause = pause(busy.elapsed(), &state.config);
                let is_idle = round == Round::default() && pause >= longest(&state.config);
                (pause, is_idle.then(|| state.bells()))
            };
            if let Some((ids, bells)) = bells {
                self.block(&ids, &bells);
            }
            thread::sleep(pause);
        }
    }

    /// Blocks until a reader rings its bell, or until `knock`.
    fn block(&self, ids: &[ConnectionId], bells: &[Bell]) {
        match Bell::wait(&self.door.0, bells) {
            Ok(broken) => {
                let mut state = self.state();
                for id in broken.into_iter().map(|i| ids[i]) {
                    if state.readers.remove(&id).is_some() {
                        tracing::debug!(
                            connection = id,
                            "its bell is shut: it has left, or is woken no more"
                        );
                    }
                }
            }
            // The caller pauses after this error, so that the thread does not try again at once.
            Err(e) => tracing::error!("cannot wait for parked readers: {e}"),
        }
        let _ = (&self.door.0).read(&mut [0; 64]);
    }
}

impl State {
    fn round(&mut self) -> Round {
        let mut round = Round::default();
        for reader in self.readers.values_mut() {
            match reader.look() {
                Sight::Awake => {}
                Sight::Asleep => round.asleep += 1,
                Sight::Woken => round.woken += 1,
            }
        }
        round
    }

    fn bells(&self) -> (Vec<ConnectionId>, Vec<Bell>) {
        self.readers.iter().map(|(id, reader)| (*id, reader.bell())).unzip()
    }
}

/// Pins this thread to `cpu`. If `cpu` is `None`, the thread gets back the CPUs that it had at its start.
fn place(cpu: Option<usize>, unpinned: nix::Result<CpuSet>) {
    let placed = match (cpu, unpinned) {
        (Some(cpu), _) => shmcast::pin_current_thread(cpu),
        (None, unpinned) => {
            unpinned.and_then(|cpus| sched_setaffinity(Pid::from_raw(0), &cpus)).map_err(std::io::Error::from)
        }
    };
    if let Err(e) = placed {
        tracing::warn!(cpu, "the waker runs where it ran before: {e}; choose another waker.cpu");
    }
}

fn longest(config: &WakerConfig) -> Duration {
    Duration::from_micros(config.longest_us.max(config.shortest_us).into())
}

/// The pause after a time of `silence`.
fn pause(silence: Duration, config: &WakerConfig) -> Duration {
    let shortest = Duration::from_micros(config.shortest_us.into());
    (silence / SILENCE_SHARE).clamp(shortest, longest(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_late_by_a_small_share_of_the_silence_before_it() {
        let config = WakerConfig { shortest_us: 20, longest_us: 1000, cpu: None };
        let after = |us| pause(Duration::from_micros(us), &config).as_micros();
        assert_eq!([0, 320, 1600, 16_000, u64::MAX].map(after), [20, 20, 100, 1000, 1000]);
        let unlikely = WakerConfig { shortest_us: 50, longest_us: 10, cpu: None };
        assert_eq!(pause(Duration::ZERO, &unlikely).as_micros(), 50, "no panic whatever is configured");
    }

    #[test]
    fn the_thread_ends_with_the_waker() {
        let waker = Waker::new(WakerConfig::default()).unwrap();
        let shared = Arc::downgrade(&waker.shared);
        let thread = Arc::clone(&waker.shared);
        let thread = thread::spawn(move || thread.run());
        drop(waker);
        thread.join().unwrap();
        assert_eq!(shared.strong_count(), 0);
    }
}
