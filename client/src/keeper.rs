//! Staying attached: one quiet thread a process that holds the sockets of all attachments, and registers them again
//! when a daemon has been replaced.
//!
//! Publishing and receiving never touch it. It sleeps in `poll` unless a daemon is gone; then it knocks every tenth of
//! a second at first and every second later.

use crate::connect::Conversation;
use crate::error::ChannelError;
use crate::park;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{Shutdown, shutdown};
use shmcast_layout::control::{Refusal, Reply, Request, decode};
use shmcast_layout::mem::handoff;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

const FIRST_KNOCK: Duration = Duration::from_millis(20);
const LAST_KNOCK: Duration = Duration::from_secs(1);

/// A place at a daemon's table. Dropping it leaves.
#[derive(Debug)]
pub(crate) struct Attachment {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    daemon: PathBuf,
    /// What to say to a daemon that does not know us.
    resume: Request,
    /// What to show it: the segment and its lock; then a reader's page, and its bell if it parks.
    descriptors: Mutex<Vec<File>>,
    socket: Mutex<Option<OwnedFd>>,
    connected: AtomicBool,
    left: AtomicBool,
    /// The channel has been given to another publisher.
    cut_off: AtomicBool,
    /// The segment in which the channel goes on.
    moved: Mutex<Option<File>>,
    has_moved: AtomicBool,
}

impl Attachment {
    /// Hands an attached socket to the keeper.
    pub(crate) fn new(daemon: PathBuf, socket: OwnedFd, resume: Request, descriptors: Vec<File>) -> Self {
        let shared = Arc::new(Shared {
            daemon,
            resume,
            descriptors: Mutex::new(descriptors),
            socket: Mutex::new(Some(socket)),
            connected: AtomicBool::new(true),
            left: AtomicBool::new(false),
            cut_off: AtomicBool::new(false),
            moved: Mutex::new(None),
            has_moved: AtomicBool::new(false),
        });
        keeper().adopt(shared.clone());
        Self { shared }
    }

    /// Whether a daemon knows of us at the moment. One load.
    pub(crate) fn is_connected(&self) -> bool {
        self.shared.connected.load(Ordering::Relaxed)
    }

    /// Whether the channel has been given to another publisher. One load.
    #[inline]
    pub(crate) fn is_cut_off(&self) -> bool {
        self.shared.cut_off.load(Ordering::Relaxed)
    }

    /// The segment in which the channel goes on, once. One load if there is none.
    pub(crate) fn moved(&self) -> Option<File> {
        let moved = &self.shared.has_moved;
        // Asked by every reader that has nothing to read: a load as long as there is nothing.
        if !moved.load(Ordering::Relaxed) || !moved.swap(false, Ordering::Acquire) {
            return None;
        }
        lock(&self.shared.moved).take()
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.shared.left.store(true, Ordering::Release);
        // The keeper may be polling the socket, which keeps it open: say goodbye aloud.
        if let Some(socket) = lock(&self.shared.socket).take() {
            let _ = shutdown(&socket, Shutdown::Both);
        }
        keeper().wake();
    }
}

/// Whatever panicked while holding one of these left a plain value behind.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Keeper {
    attachments: Mutex<Vec<Arc<Shared>>>,
    bell: OwnedFd,
}

fn keeper() -> &'static Keeper {
    static KEEPER: OnceLock<Keeper> = OnceLock::new();
    static STARTED: OnceLock<()> = OnceLock::new();
    let keeper = KEEPER.get_or_init(|| Keeper {
        attachments: Mutex::new(Vec::new()),
        bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .expect("an eventfd can be had while descriptors can: we have just received some"),
    });
    STARTED.get_or_init(|| {
        std::thread::Builder::new()
            .name("shmcast-keeper".into())
            .spawn(|| keeper.run())
            .map(drop)
            .expect("a process that attaches can start a thread");
    });
    keeper
}

impl Keeper {
    fn adopt(&self, shared: Arc<Shared>) {
        lock(&self.attachments).push(shared);
        self.wake();
    }

    fn wake(&self) {
        // Full means that it rings already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    fn run(&self) {
        let mut buffer = vec![0; handoff::MAX_PACKET];
        let mut pause = FIRST_KNOCK;
        let mut knocked = Instant::now();
        loop {
            let attachments: Vec<Arc<Shared>> = {
                let mut all = lock(&self.attachments);
                all.retain(|shared| !shared.left.load(Ordering::Acquire));
                all.clone()
            };
            let lost = attachments.iter().any(|shared| !shared.connected.load(Ordering::Relaxed));
            let ready = self.wait(&attachments, lost.then(|| pause.saturating_sub(knocked.elapsed())));
            for shared in ready {
                shared.listen(&mut buffer);
            }
            if !lost {
                pause = FIRST_KNOCK;
            } else if knocked.elapsed() >= pause {
                for shared in attachments.iter().filter(|shared| !shared.connected.load(Ordering::Relaxed)) {
                    shared.knock();
                }
                knocked = Instant::now();
                pause = (pause * 2).min(LAST_KNOCK);
            }
        }
    }

    /// Sleeps until a daemon speaks or hangs up, the list changes, or `patience` is over.
    fn wait(&self, attachments: &[Arc<Shared>], patience: Option<Duration>) -> Vec<Arc<Shared>> {
        // Duplicates, so that a socket closed meanwhile is not another's by the time we look at it.
        let sockets: Vec<(OwnedFd, &Arc<Shared>)> = attachments
            .iter()
            .filter_map(|shared| Some((lock(&shared.socket).as_ref()?.try_clone().ok()?, shared)))
            .collect();
        let mut fds = vec![PollFd::new(&self.bell, PollFlags::IN)];
        fds.extend(sockets.iter().map(|(socket, _)| PollFd::new(socket, PollFlags::IN)));
        let timeout = patience.map(|p| Timespec::try_from(p).expect("a second at most"));
        // An error here (EINTR, ENOMEM) is answered by looking again.
        let _ = poll(&mut fds, timeout.as_ref());
        let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
        let ready: Vec<bool> = fds.iter().skip(1).map(|fd| !fd.revents().is_empty()).collect();
        let ready = sockets.iter().zip(ready).filter(|(_, ready)| *ready);
        ready.map(|((_, shared), _)| Arc::clone(shared)).collect()
    }
}

impl Shared {
    fn listen(&self, buffer: &mut [u8]) {
        let mut socket = lock(&self.socket);
        let Some(open) = socket.as_ref() else { return };
        match handoff::receive(open, buffer) {
            Ok(packet) if packet.length > 0 => match decode(&buffer[..packet.length]) {
                Ok(Reply::Moved {}) => self.follow(packet.descriptors),
                Ok(Reply::CutOff {}) => {
                    *socket = None;
                    self.connected.store(false, Ordering::Relaxed);
                    self.give_up();
                }
                _ => {}
            },
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
            _ => {
                *socket = None;
                self.connected.store(false, Ordering::Relaxed);
                self.rouse();
            }
        }
    }

    /// Goes on in the segment that comes first in what the daemon sent, with its lock.
    fn follow(&self, sent: Vec<File>) {
        let mut sent = sent.into_iter();
        let (Some(segment), Some(its_lock)) = (sent.next(), sent.next()) else { return };
        if let Ok(shown) = segment.try_clone() {
            lock(&self.descriptors)[..2].swap_with_slice(&mut [shown, its_lock]);
        }
        *lock(&self.moved) = Some(segment);
        self.has_moved.store(true, Ordering::Release);
        self.rouse();
    }

    /// The channel has gone on with another publisher: it will not have us back.
    fn give_up(&self) {
        self.cut_off.store(true, Ordering::Relaxed);
        self.left.store(true, Ordering::Release);
    }

    /// Has a parked reader look: its daemon's waker does not see what happened here.
    fn rouse(&self) {
        if let Some(bell) = lock(&self.descriptors).get(3) {
            park::ring(bell);
        }
    }

    /// Tries to attach again. Whatever goes wrong is tried again later: the data flows without it.
    fn knock(&self) {
        let Ok(mut conversation) = Conversation::open(&self.daemon) else { return };
        let granted = {
            let shown = lock(&self.descriptors);
            let shown: Vec<BorrowedFd<'_>> = shown.iter().map(AsFd::as_fd).collect();
            match conversation.ask(&self.resume, &shown) {
                Ok((_, granted)) => granted,
                Err(ChannelError::Refused { code: Refusal::Busy, .. }) => return self.give_up(),
                Err(_) => return,
            }
        };
        let Ok(attached) = conversation.into_socket() else { return };
        let mut socket = lock(&self.socket);
        if self.left.load(Ordering::Acquire) {
            return;
        }
        if let Request::Subscribe { .. } = self.resume {
            let is_same = granted.first().is_some_and(|file| is_same(file, &lock(&self.descriptors)[0]));
            if !is_same {
                self.follow(granted);
            }
        }
        *socket = Some(attached);
        self.connected.store(true, Ordering::Relaxed);
    }
}

fn is_same(one: &File, other: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (one.metadata(), other.metadata()) {
        (Ok(one), Ok(other)) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
        _ => false,
    }
}
