//! Keeps this process attached to its daemons. A process has one keeper for each daemon: a thread that holds the sockets of all attachments
//! to this daemon. So a daemon that hangs delays only its own keeper.
//!
//! While the daemon lives, the keeper sleeps in `poll`. When the daemon is gone, the keeper tries again and again to attach to the next
//! daemon: first after 20 ms, then after longer and longer pauses, up to 250 ms. The keeper ends one second after the last attachment has
//! ended. Publishing and receiving do not use the keeper.

#[cfg(test)]
mod tests;

use crate::attach::connect::{Conversation, Line};
use crate::attach::park;
use crate::error::ChannelError;
use crate::lock::Owner;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{Shutdown, shutdown};
use shmcast_layout::control::{Generation, RefusalCode, Request, Response, decode};
use shmcast_layout::fault;
use shmcast_layout::mem::{Preparation, Step};
use shmcast_layout::segment::{Access, Segment};
use shmcast_layout::sys::fork::ParentsOnly;
use shmcast_layout::sys::handoff;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The largest number of segments that are kept for a slow reader. A reader that falls further behind misses the older segments, and counts
/// the lost messages.
pub(crate) const MOST_WAITING: usize = 8;
const FIRST_KNOCK: Duration = Duration::from_millis(20);
/// The longest pause between two attempts to attach again. A daemon that replaces a crashed daemon waits two seconds for the programs that
/// were attached before the crash. A short pause gives each program several attempts in these two seconds.
const LAST_KNOCK: Duration = Duration::from_millis(250);
/// The pause after a refusal whose reason does not pass soon. Without the pause, the keeper would be refused again and again.
const AFTER_REFUSAL: Duration = Duration::from_secs(1);
/// Time after which a keeper without attachments ends.
const LINGER: Duration = Duration::from_secs(1);

/// An attachment to a daemon. Dropping this value detaches.
#[derive(Debug)]
pub(crate) struct Attachment {
    shared: Arc<Inner>,
    keeper: Arc<Keeper>,
}

#[derive(Debug)]
struct Inner {
    daemon: PathBuf,
    /// The request that registers this attachment with a new daemon. A new daemon does not know the attachments of the earlier daemon.
    resume: Request,
    /// The steps that prepare the memory of a segment. The keeper does these steps for each segment in which the channel continues.
    preparation: Preparation,
    /// The descriptors that are sent with `resume`: the segment and its lock. A reader also sends its page. If the reader parks (sleeps
    /// until the daemon wakes it), it also sends its bell.
    descriptors: Mutex<Vec<Arc<ParentsOnly<File>>>>,
    /// The channel's charter: the file in which the daemon says which segments are valid.
    charter: Mutex<File>,
    /// The process that attached. The daemon takes the socket and the lock as signs that this process lives, so no forked child of the
    /// process keeps the socket or the lock.
    owner: Owner,
    socket: Mutex<Option<Arc<ParentsOnly<OwnedFd>>>>,
    connected: AtomicBool,
    /// The time at which the pause after a refusal ends; `None` if there is no pause.
    paused: Mutex<Option<Instant>>,
    left: AtomicBool,
    /// Whether the daemon has given the channel to another publisher.
    cut_off: AtomicBool,
    /// The channel's later segments that the reader has not taken yet, oldest first.
    moved: Mutex<VecDeque<Successor>>,
    has_moved: AtomicBool,
    /// Generation and epoch of the last publisher that the daemon reported as dead.
    dead: Mutex<(u64, u64)>,
    /// Whether `dead` must be checked. False if no publisher has died, or if the reader has reached messages of a publisher after `dead`.
    has_died: AtomicBool,
}

/// A segment in which a channel continues, as the daemon sent it.
#[derive(Debug)]
pub(crate) struct Successor {
    pub(crate) segment: Arc<ParentsOnly<File>>,
    /// The segment, mapped and prepared by the keeper, so that its reader can continue without delay; `None` if the keeper could not map
    /// it.
    pub(crate) ready: Option<(Segment, Vec<Step>)>,
    pub(crate) generation: Generation,
    /// A new charter (the file in which the daemon says which segments are valid). `None` if the daemon still uses the earlier charter.
    pub(crate) charter: Option<File>,
}

impl Successor {
    /// Maps the segment, if it is not mapped yet. If this fails, the segment stays unmapped.
    pub(crate) fn map(&mut self) {
        if self.ready.is_none() {
            self.ready = Segment::open(&self.segment, Access::Read).ok().map(|segment| (segment, Vec::new()));
        }
    }
}

impl Attachment {
    /// Gives an attached connection to the keeper.
    pub(crate) fn new(
        keeper: Arc<Keeper>,
        line: Line,
        resume: Request,
        preparation: Preparation,
        charter: File,
        descriptors: Vec<File>,
    ) -> Self {
        let Line { daemon, socket, early } = line;
        let shared = Arc::new(Inner::new(daemon, Some(socket), resume, preparation, charter, descriptors));
        for (notice, descriptors) in early {
            shared.note(&notice, descriptors);
        }
        keeper.adopt(shared.clone());
        Self { shared, keeper }
    }

    /// Whether a daemon knows this attachment now. Costs one load.
    pub(crate) fn is_connected(&self) -> bool {
        self.shared.connected.load(Ordering::Acquire)
    }

    /// Whether the daemon has given the channel to another publisher. Costs one load.
    #[inline]
    pub(crate) fn is_cut_off(&self) -> bool {
        self.shared.cut_off.load(Ordering::Relaxed)
    }

    /// Whether the daemon reported the death of the publisher with this generation and epoch. Costs one load as long as no publisher has
    /// died.
    pub(crate) fn has_died(&self, generation: u64, epoch: u64) -> bool {
        let has_died = &self.shared.has_died;
        if !has_died.load(Ordering::Acquire) {
            return false;
        }
        let dead = lock(&self.shared.dead);
        // If another publisher has succeeded the dead one, later calls need not check this death again.
        let is_old = dead.0 == generation && dead.1 < epoch;
        has_died.store(!is_old, Ordering::Relaxed);
        *dead == (generation, epoch)
    }

    /// Whether the channel continues in a segment that the reader has not taken yet. Costs one load.
    pub(crate) fn has_moved(&self) -> bool {
        self.shared.has_moved.load(Ordering::Acquire)
    }

    /// Takes the next segment in which the channel continues. Costs one load if there is no such segment.
    pub(crate) fn moved(&self) -> Option<Successor> {
        let moved = &self.shared.has_moved;
        // Every reader calls this function when the ring has no message for it. So without a new segment, the function costs only one load.
        if !moved.load(Ordering::Acquire) {
            return None;
        }
        let mut waiting = lock(&self.shared.moved);
        let next = waiting.pop_front();
        moved.store(!waiting.is_empty(), Ordering::Relaxed);
        next
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        if !self.shared.owner.is_this_process() {
            return;
        }
        self.shared.left.store(true, Ordering::Release);
        // While the keeper polls the socket, dropping this reference does not close it. So the connection is shut down here.
        if let Some(socket) = lock(&self.shared.socket).take() {
            let _ = shutdown(&**socket, Shutdown::Both);
        }
        self.keeper.wake();
    }
}

/// Locks a mutex, even if a panic has poisoned it. The value is plain data, so a panic cannot leave it invalid.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The keepers of this process, with the paths of their daemons' sockets.
static KEEPERS: Mutex<Vec<(Owner, PathBuf, Weak<Keeper>)>> = Mutex::new(Vec::new());

/// A keeper's thread and its attachments.
#[derive(Debug)]
pub(crate) struct Keeper {
    attachments: Mutex<Vec<Arc<Inner>>>,
    bell: OwnedFd,
}

/// Returns this process's keeper for the daemon at `socket`. Starts a keeper if this process has none for the daemon.
///
/// # Errors
/// [`ChannelError::Os`] if there is no descriptor or thread for the keeper.
pub(crate) fn keeper(socket: &Path) -> Result<Arc<Keeper>, ChannelError> {
    let os = |what| ChannelError::os(what, "the thread that keeps attachments");
    let mut known = lock(&KEEPERS);
    // A forked child has no thread of its parent, so it gets keepers of its own.
    known.retain(|(owner, _, keeper)| owner.is_this_process() && keeper.strong_count() > 0);
    if let Some(keeper) = known.iter().find(|(_, path, _)| path == socket).and_then(|(.., it)| it.upgrade()) {
        return Ok(keeper);
    }
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let bell = bell.map_err(|e| os("make a bell for")(e.into()))?;
    let keeper = Arc::new(Keeper { attachments: Mutex::new(Vec::new()), bell });
    let running = keeper.clone();
    let started = std::thread::Builder::new().name("shmcast-keeper".into()).spawn(move || running.run());
    drop(started.map_err(os("start"))?);
    known.push((Owner::this_process(), socket.to_owned(), Arc::downgrade(&keeper)));
    Ok(keeper)
}

impl Keeper {
    fn adopt(&self, shared: Arc<Inner>) {
        lock(&self.attachments).push(shared);
        self.wake();
    }

    fn wake(&self) {
        // If the counter is full, the bell rings already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    fn run(self: &Arc<Self>) {
        let mut buffer = vec![0; handoff::MAX_PACKET];
        let mut pause = FIRST_KNOCK;
        let mut knocked = Instant::now();
        loop {
            let attachments: Vec<Arc<Inner>> = {
                let mut all = lock(&self.attachments);
                all.retain(|shared| !shared.left.load(Ordering::Acquire));
                all.clone()
            };
            let lost = attachments.iter().any(|shared| !shared.connected.load(Ordering::Relaxed));
            let patience = match attachments.is_empty() {
                true => Some(LINGER),
                false => lost.then(|| pause.saturating_sub(knocked.elapsed())),
            };
            let began = Instant::now();
            let ready = self.wait(&attachments, patience);
            if attachments.is_empty() && began.elapsed() >= LINGER && self.is_over() {
                return;
            }
            for shared in ready {
                shared.listen(&mut buffer);
            }
            if !lost {
                pause = FIRST_KNOCK;
            } else if knocked.elapsed() >= pause {
                attachments.iter().filter(|shared| shared.is_due()).for_each(|shared| shared.knock());
                knocked = Instant::now();
                pause = (pause * 2).min(LAST_KNOCK);
            }
        }
    }

    /// Removes the keeper from the list if it has no users, so that no caller can get it any more. Returns whether the keeper was removed.
    fn is_over(self: &Arc<Self>) -> bool {
        let mut known = lock(&KEEPERS);
        let is_over = Arc::strong_count(self) == 1 && lock(&self.attachments).is_empty();
        known.retain(|(.., keeper)| !is_over || !std::ptr::eq(keeper.as_ptr(), Arc::as_ptr(self)));
        is_over
    }

    /// Sleeps until a daemon sends a packet or hangs up, the list changes, or `patience` has passed. Returns the attachments whose sockets
    /// are ready.
    fn wait(&self, attachments: &[Arc<Inner>], patience: Option<Duration>) -> Vec<Arc<Inner>> {
        // `sockets` keeps each socket open during `poll`. Without it, an attachment could give up its socket meanwhile, the kernel could
        // give the socket's number to a new socket, and the result of `poll` would be about the new socket.
        let is_deaf = |socket: &Arc<ParentsOnly<OwnedFd>>| {
            fault!("without_a_spare_descriptor_nobody_listens") && socket.try_clone().is_err()
        };
        let socket = |shared: &Inner| lock(&shared.socket).clone().filter(|socket| !is_deaf(socket));
        let sockets: Vec<(Arc<ParentsOnly<OwnedFd>>, &Arc<Inner>)> =
            attachments.iter().filter_map(|shared| Some((socket(shared)?, shared))).collect();
        let mut fds = vec![PollFd::new(&self.bell, PollFlags::IN)];
        fds.extend(sockets.iter().map(|(socket, _)| PollFd::new(&***socket, PollFlags::IN)));
        let timeout = patience.map(|p| Timespec::try_from(p).expect("a second at most"));
        // After an error (EINTR, ENOMEM) the loop polls again.
        let _ = poll(&mut fds, timeout.as_ref());
        let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
        let ready: Vec<bool> = fds.iter().skip(1).map(|fd| !fd.revents().is_empty()).collect();
        let ready = sockets.iter().zip(ready).filter(|(_, ready)| *ready);
        ready.map(|((_, shared), _)| Arc::clone(shared)).collect()
    }
}

impl Inner {
    /// Makes the state of an attachment. Without a `socket`, no daemon knows the attachment.
    fn new(
        daemon: PathBuf,
        socket: Option<OwnedFd>,
        resume: Request,
        preparation: Preparation,
        charter: File,
        descriptors: Vec<File>,
    ) -> Self {
        Self {
            daemon,
            resume,
            preparation,
            descriptors: Mutex::new(descriptors.into_iter().map(shown).collect()),
            charter: Mutex::new(charter),
            owner: Owner::this_process(),
            connected: AtomicBool::new(socket.is_some()),
            socket: Mutex::new(socket.map(shown)),
            paused: Mutex::new(None),
            left: AtomicBool::new(false),
            cut_off: AtomicBool::new(false),
            moved: Mutex::new(VecDeque::new()),
            has_moved: AtomicBool::new(false),
            dead: Mutex::new((0, 0)),
            has_died: AtomicBool::new(false),
        }
    }

    fn listen(&self, buffer: &mut [u8]) {
        let mut socket = lock(&self.socket);
        let Some(open) = socket.as_ref() else { return };
        let packet = match handoff::receive(&***open, buffer) {
            Ok(packet) if packet.length > 0 => Some(packet),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return,
            _ => None,
        };
        let reply = packet.as_ref().map(|packet| decode(&buffer[..packet.length]));
        match (reply, packet) {
            (Some(Ok(notice @ Response::Moved(_))), Some(packet)) if packet.descriptors.len() == 2 => {
                // Mapping takes a while. A thread that drops the attachment meanwhile needs this lock, and must not wait for the mapping.
                drop(socket);
                return self.note(&notice, packet.descriptors);
            }
            (Some(Ok(notice @ Response::PublisherGone { .. })), _) => return self.note(&notice, Vec::new()),
            (Some(Ok(Response::CutOff {})), _) => self.give_up(),
            // The end of the connection follows.
            (Some(Ok(Response::Refused { code, .. })), _) => return self.pause_after(code),
            // Either the connection has ended, or this process had no room for the descriptors of a new segment. In both cases the keeper
            // attaches again, and the daemon then sends the current segment.
            (Some(Ok(Response::Moved(_))) | None, _) => {}
            _ => return,
        }
        *socket = None;
        // The store comes before the reader is woken. In the other order, the reader could wake, still rely on the daemon's waker, and
        // sleep again, and no process would wake it.
        self.connected.store(false, Ordering::Release);
        self.rouse();
    }

    /// Takes a notice to a reader: the channel has moved, or its publisher has died.
    fn note(&self, notice: &Response, descriptors: Vec<File>) {
        match *notice {
            Response::Moved(generation) => self.note_generation(generation, descriptors, None),
            Response::PublisherGone { generation, epoch } => {
                *lock(&self.dead) = (generation, epoch);
                self.has_died.store(true, Ordering::Release);
                self.rouse();
            }
            _ => {}
        }
    }

    /// Continues in the segment that the daemon sent. In `sent`, the first descriptor is the segment, and the second its lock.
    fn note_generation(&self, generation: Generation, sent: Vec<File>, charter: Option<File>) {
        let mut sent = sent.into_iter().map(shown);
        let (Some(segment), Some(its_lock)) = (sent.next(), sent.next()) else { return };
        lock(&self.descriptors)[..2].clone_from_slice(&[segment.clone(), its_lock]);
        if charter.is_some() {
            // A new charter (the file of the daemon's verdicts) counts generations from 1 again.
            *lock(&self.dead) = (0, 0);
        }
        let ready = Segment::open(&segment, Access::Read).ok().map(|segment| {
            let steps = segment.prepare(self.preparation);
            (segment, steps)
        });
        {
            let mut waiting = lock(&self.moved);
            let is_full = waiting.len() == MOST_WAITING || fault!("a_late_reader_is_led_to_the_last_segment");
            let dropped = if is_full { waiting.pop_front() } else { None };
            waiting.push_back(Successor { segment, ready, generation, charter });
            // The charter of the dropped segment is also valid for the later segments, and the daemon does not send it again. So the next
            // segment takes the charter over.
            let charter = dropped.and_then(|dropped| dropped.charter);
            if let Some(next) = waiting.front_mut() {
                next.charter = next.charter.take().or(charter);
            }
            self.has_moved.store(true, Ordering::Release);
        }
        self.rouse();
    }

    /// If `charter` is not the stored charter, stores it and returns it. Otherwise returns `None`.
    ///
    /// # Errors
    /// If this process has no room for another descriptor. Then nothing has changed.
    fn note_charter(&self, charter: File) -> io::Result<Option<File>> {
        let mut ours = lock(&self.charter);
        if is_same(&charter, &ours) {
            return Ok(None);
        }
        *ours = charter.try_clone()?;
        Ok(Some(charter))
    }

    /// Gives up the channel, because another publisher has it. After this call, the keeper does not attach again.
    fn give_up(&self) {
        self.cut_off.store(true, Ordering::Relaxed);
        self.left.store(true, Ordering::Release);
    }

    /// Wakes a parked reader, so that it checks its state. The daemon's waker cannot do this, because only this process knows that the
    /// state has changed.
    fn rouse(&self) {
        if let Some(bell) = lock(&self.descriptors).get(3) {
            park::ring(&***bell);
        }
    }

    /// Whether the keeper must attach again now: no daemon knows the attachment, and no pause after a refusal is running.
    fn is_due(&self) -> bool {
        let is_paused = || lock(&self.paused).is_some_and(|until| Instant::now() < until);
        !self.connected.load(Ordering::Relaxed) && !is_paused()
    }

    /// Tries to attach again. After a failure the keeper tries again later. Data flows meanwhile.
    fn knock(&self) {
        match self.resume() {
            Ok((attached, reply, granted)) => self.settle(attached, &reply, granted),
            Err(ChannelError::Refused { code: RefusalCode::Busy, .. }) => self.give_up(),
            Err(ChannelError::Refused { code, .. }) => self.pause_after(code),
            Err(_) => {}
        }
    }

    /// Pauses after a refusal, but not if the reason of the refusal can pass soon. For example, a daemon that replaces a crashed daemon can
    /// lack a free descriptor at first. This daemon waits only two seconds for each publisher, so a publisher that paused might come too
    /// late.
    fn pause_after(&self, code: RefusalCode) {
        if !matches!(code, RefusalCode::Failed | RefusalCode::Limit) {
            *lock(&self.paused) = Some(Instant::now() + AFTER_REFUSAL);
        }
    }

    /// Asks the daemon to attach this process again. Returns the socket, and the daemon's answer with its descriptors.
    fn resume(&self) -> Result<(OwnedFd, Response, Vec<File>), ChannelError> {
        let mut conversation = Conversation::open(&self.daemon)?;
        let (reply, granted) = {
            let shown = lock(&self.descriptors).clone();
            let shown: Vec<BorrowedFd<'_>> = shown.iter().map(|file| file.as_fd()).collect();
            conversation.ask(&self.resume, &shown)?
        };
        Ok((conversation.into_line()?.socket, reply, granted))
    }

    /// Completes an attachment: keeps the socket, and for a reader also a new segment and a new charter. If this process has no room for
    /// the descriptors, changes nothing.
    fn settle(&self, attached: OwnedFd, reply: &Response, mut granted: Vec<File>) {
        if let Response::Subscribed(generation) = *reply {
            // If fewer than four descriptors have arrived, or if the charter cannot be stored, this process has no room for descriptors at
            // the moment.
            let charter = if granted.len() == 4 { granted.pop() } else { None };
            let Some(Ok(charter)) = charter.map(|charter| self.note_charter(charter)) else { return };
            let ours = lock(&self.descriptors)[0].clone();
            if charter.is_some() || !granted.first().is_some_and(|segment| is_same(segment, &ours)) {
                self.note_generation(generation, granted, charter);
            }
        }
        let mut socket = lock(&self.socket);
        if !self.left.load(Ordering::Acquire) {
            *socket = Some(shown(attached));
            self.connected.store(true, Ordering::Relaxed);
        }
    }
}

/// Wraps a descriptor by which the daemon knows that this process lives. Forked children do not keep the descriptor.
fn shown<T: AsFd>(inner: T) -> Arc<ParentsOnly<T>> {
    Arc::new(ParentsOnly::new(inner))
}

fn is_same(one: &File, other: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (one.metadata(), other.metadata()) {
        (Ok(one), Ok(other)) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
        _ => false,
    }
}
