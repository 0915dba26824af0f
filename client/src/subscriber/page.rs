//! The page that a subscriber shows to tools. The page has a name only as long as its reader lives.

use crate::clock::Clock;
use crate::directory::{ChannelFiles, Folder, unique};
use crate::error::{ChannelError, is_absent};
use crate::lock::{self, Held};
use rustix::fs::OFlags;
use shmcast_layout::error::OpenError;
use shmcast_layout::fault;
use shmcast_layout::layout::header::Header;
use shmcast_layout::layout::reader_page::Role;
use shmcast_layout::layout::record::NO_TIME;
use shmcast_layout::reader_page::ReaderPage;
use shmcast_layout::ring::locate::Place;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;

/// This subscriber's page. Tools see it under a name for as long as the subscriber lives.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) page: ReaderPage,
    /// The page's entry in a directory. It is removed when this value is dropped. A page from a daemon has no entry.
    #[expect(dead_code, reason = "it is there to be dropped")]
    pub(super) shown: Option<Box<Shown>>,
}

/// A page in a directory.
#[derive(Debug)]
pub(super) struct Shown {
    pages: Folder,
    name: String,
    /// The lock that proves that this reader lives. The page is mapped through another open file than the lock's. If the mapping shared the
    /// lock's open file, a forked child's copy of the mapping would keep the lock after the reader has died.
    lock: Held,
}

impl Drop for Shown {
    fn drop(&mut self) {
        // A forked child's copy must not remove the page of its parent.
        if !self.lock.is_a_childs() {
            // If the page cannot be removed, the next program that lists the readers removes it, because the page's lock is gone.
            let _ = self.pages.unlink(&self.name);
        }
    }
}

/// The reason why a subscriber has no page.
pub(super) enum NoPage {
    /// The file system has no room, or this user has no permission to write there. The subscriber can still receive messages.
    Refused(io::Error),
    /// The folder of the pages is not there. Somebody has removed the channel, or only the folder.
    Absent(io::Error),
    Failed(ChannelError),
}

impl From<ChannelError> for NoPage {
    fn from(e: ChannelError) -> Self {
        match e {
            ChannelError::Os { source, .. }
            | ChannelError::Segment { source: OpenError::Os { source, .. }, .. }
                if is_refusal(&source) && !fault!("a_page_is_required") =>
            {
                Self::Refused(source)
            }
            ChannelError::Os { what, path, source } if is_absent(&source) => {
                let text = format!("{what} {}: {source}", path.display());
                Self::Absent(io::Error::new(source.kind(), text))
            }
            other => Self::Failed(other),
        }
    }
}

fn is_refusal(e: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(e.kind(), FileTooLarge | PermissionDenied | QuotaExceeded | ReadOnlyFilesystem | StorageFull)
}

/// Makes a page under a hidden name, and locks it. Only after that, renames the page to its final name, because a page without a lock
/// counts as dead.
pub(super) fn show_page(
    files: &ChannelFiles,
    role: Role,
    header: &Header,
    place: Place,
) -> Result<Page, NoPage> {
    let pid = std::process::id();
    let pages = files.readers()?;
    let name = format!("{pid}-{}", unique());
    let hidden = format!(".{name}");
    let path = pages.path_of(&hidden);
    let os = |what| ChannelError::os(what, &path);
    let file = pages.create(&hidden, 0o600).map_err(os("create the reader page"))?;
    let show = || {
        let locked = pages.file(&hidden, OFlags::RDWR).map_err(os("open the reader page"))?;
        lock::try_lock(&locked).map_err(os("lock the reader page"))?;
        // This sets the mode regardless of the umask. If the channel's owner could not read the page, the page would not prevent the
        // removal of the channel.
        file.set_permissions(Permissions::from_mode(0o644)).map_err(os("set the mode of"))?;
        let page = ReaderPage::create(&file, pid, role, header.uuid, place)
            .map_err(|source| ChannelError::Segment { path: path.clone(), source })?;
        pages.rename(&hidden, &name).map_err(os("show the reader page"))?;
        Ok((page, Held::new(locked)))
    };
    let (page, lock) = show().inspect_err(|_: &ChannelError| drop(pages.unlink(&hidden)))?;
    // Without this sweep, a reader that crashes and restarts again and again would leave a page each time.
    files.sweep_dead_readers();
    Ok(Page { page, shown: Some(Box::new(Shown { pages, name, lock })) })
}

/// Counts the latency of a message that was just received, if the message has a time. `time` is the message's time.
#[inline(never)]
pub(super) fn note_latency(page: &ReaderPage, clock: &Clock, time: u64) {
    let now = clock.now();
    page.heartbeat(now);
    if time != NO_TIME {
        page.latency(clock.latency_ns(time, now));
    }
}
