//! The page that a subscriber shows to tools: made, locked and named so that it is there exactly as long as its reader.

use crate::directory::{ChannelFiles, unique};
use crate::error::ChannelError;
use crate::lock;
use shmcast_layout::layout::header::Header;
use shmcast_layout::reader_page::ReaderPage;
use shmcast_layout::ring::locate::Place;
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;

/// This subscriber's page, shown to tools under a name for as long as it lives.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) page: ReaderPage,
    /// Where it is shown, and the lock that says that this reader lives. A daemon's page needs neither.
    pub(super) shown: Option<(PathBuf, File)>,
}

impl Drop for Page {
    fn drop(&mut self) {
        // A page that cannot be removed is swept by the next who lists the readers: its lock is gone.
        if let Some((path, _)) = &self.shown {
            let _ = fs::remove_file(path);
        }
    }
}

/// Makes a page under a hidden name, locks it, and only then shows it: a page without a lock is a dead one.
pub(super) fn show_page(files: &ChannelFiles, header: &Header, place: Place) -> Result<Page, ChannelError> {
    let pid = std::process::id();
    let name = format!("{pid}-{}", unique());
    let (hidden, path) = (files.readers.join(format!(".{name}")), files.readers.join(name));
    let os = |what| ChannelError::os(what, &hidden);
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&hidden);
    let file = file.map_err(os("create the reader page"))?;
    let show = || {
        lock::try_lock(&file).map_err(os("lock the reader page"))?;
        // Whatever the umask: a page that the channel's owner cannot read would not keep the channel from removal.
        file.set_permissions(Permissions::from_mode(0o644)).map_err(os("set the mode of"))?;
        let page = ReaderPage::create(&file, pid, header.uuid, place)
            .map_err(|source| ChannelError::Segment { path: hidden.clone(), source })?;
        fs::rename(&hidden, &path).map_err(os("show the reader page"))?;
        Ok(page)
    };
    let page = show().inspect_err(|_: &ChannelError| drop(fs::remove_file(&hidden)))?;
    Ok(Page { page, shown: Some((path, file)) })
}
