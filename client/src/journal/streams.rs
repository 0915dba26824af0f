//! The streams in a journal's directory. Each stream has a folder, whose name is the stream's id:
//!
//! ```text
//! DIR/
//!   holds.lock                          locked while holds are noted or files removed
//!   0123456789abcdef0123456789abcdef/   one stream: its files, its recorder's lock, its holds
//! ```
//! A channel whose sequences begin at 1 again has another stream, and so another folder. Nothing is renamed.

use super::error::JournalError;
use super::list::Journal;
use crate::directory::{Folder, is_same_file};
use crate::error::is_absent;
use rustix::fs::FileType;
use shmcast_layout::journal::parse_file_name;
use shmcast_layout::layout::stream::StreamId;
use std::path::{Path, PathBuf};

/// The folder of a stream in the journal's directory at `path`.
///
/// ```
/// use shmcast::{StreamId, journal::folder_of};
/// let folder = folder_of("/var/lib/shmcast/ticks", StreamId::from_words([1, 2]));
/// assert_eq!(folder.to_str(), Some("/var/lib/shmcast/ticks/00000000000000010000000000000002"));
/// ```
pub fn folder_of(path: impl AsRef<Path>, stream: StreamId) -> PathBuf {
    path.as_ref().join(stream.to_string())
}

/// The journals in a directory, one for each stream, in their state at the last refresh.
#[derive(Debug)]
pub struct Streams {
    folder: Folder,
    journals: Vec<Journal>,
}

impl Streams {
    /// Reads all streams in the directory at `path`, if there are any. Follows links in the path, but no links in the directory.
    ///
    /// # Errors
    /// [`JournalError`] if the directory or a stream's folder cannot be read. [`JournalError::Flat`] if files of a journal lie in the
    /// directory itself. [`JournalError::Link`] if a link has the name of a stream's folder.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// let streams = shmcast::journal::Streams::open(dir.path())?;
    /// assert!(streams.journals().is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(path: impl AsRef<Path>) -> Result<Self, JournalError> {
        let path = path.as_ref();
        let folder = Folder::named(path).map_err(JournalError::os("open the directory", path))?;
        let mut streams = Self { folder, journals: Vec::new() };
        streams.refresh()?;
        Ok(streams)
    }

    /// Reads the directory and all streams again.
    ///
    /// # Errors
    /// The same as for [`open`](Self::open).
    ///
    /// ```no_run
    /// # let mut streams = shmcast::journal::Streams::open("/var/lib/shmcast/ticks")?;
    /// streams.refresh()?;
    /// # Ok::<(), shmcast::journal::JournalError>(())
    /// ```
    pub fn refresh(&mut self) -> Result<(), JournalError> {
        let path = self.folder.path().to_owned();
        let names = self.folder.names().map_err(JournalError::os("list", &path))?;
        let names: Vec<&str> = names.iter().filter_map(|name| name.to_str()).collect();
        if names.iter().any(|name| parse_file_name(name).is_some()) {
            return Err(Journal::flat(&path));
        }
        let (mut known, mut failed) = (std::mem::take(&mut self.journals), None);
        // If one stream cannot be listed, the other streams stay in the list.
        for stream in names.iter().filter_map(|name| StreamId::parse(name)) {
            let at = known.iter().position(|journal| journal.stream().is_some_and(|own| own.is(stream)));
            let known = at.map(|at| known.swap_remove(at)).filter(|journal| self.is_named(journal));
            match known.map_or_else(|| Journal::in_folder(&self.folder, stream), Ok) {
                Ok(mut journal) => {
                    failed = journal.refresh().err().or(failed);
                    self.journals.push(journal);
                }
                Err(e) if e.kind() == std::io::ErrorKind::NotADirectory && self.is_link(stream) => {
                    failed = Some(JournalError::Link { path: folder_of(&path, stream) });
                }
                Err(e) if is_absent(&e) || e.kind() == std::io::ErrorKind::NotADirectory => {}
                Err(e) => failed = Some(JournalError::os("open the folder of a stream in", &path)(e)),
            }
        }
        self.journals.sort_by_key(|journal| (journal.newest_number(), journal.newest_ns()));
        failed.map_or(Ok(()), Err)
    }

    /// The number of the first file of a new stream in this directory. This number is above all numbers in names of files in the folders of
    /// the directory's streams. So the stream that began last has the highest number, even if the wall clock was set back meanwhile.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// let streams = shmcast::journal::Streams::open(dir.path())?;
    /// assert_eq!(streams.first_number(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn first_number(&self) -> u64 {
        self.journals.iter().map(Journal::highest_number).max().unwrap_or(0) + 1
    }

    /// Whether a link has the name of a stream's folder. Readers follow no link, so they would not find the files behind it.
    fn is_link(&self, stream: StreamId) -> bool {
        let named = self.folder.stat(stream.to_string());
        named.is_ok_and(|named| FileType::from_raw_mode(named.st_mode).is_symlink())
    }

    /// Whether the name of a stream's folder still leads to the folder that is open here.
    fn is_named(&self, journal: &Journal) -> bool {
        let named = journal.path().file_name().map(|name| self.folder.stat(name));
        let own = journal.folder().own_stat();
        matches!((named, own), (Some(Ok(named)), Ok(own)) if is_same_file(&named, &own))
    }

    /// The journals, in the order in which their streams began. A journal can have no file.
    ///
    /// ```no_run
    /// # let streams = shmcast::journal::Streams::open("/var/lib/shmcast/ticks")?;
    /// for journal in streams.journals() {
    ///     println!("{:?}: {} files", journal.stream(), journal.files().len());
    /// }
    /// # Ok::<(), shmcast::journal::JournalError>(())
    /// ```
    pub fn journals(&self) -> &[Journal] {
        &self.journals
    }

    /// The journal of a stream, in its present state. If `stream` is `None` or has no folder, the result is the journal of the stream that
    /// began last. The result is `None` if there is no file at all.
    ///
    /// Cost: reads the stream's folder if it is known, and otherwise all folders.
    ///
    /// # Errors
    /// The same as for [`open`](Self::open).
    ///
    /// ```no_run
    /// # let mut streams = shmcast::journal::Streams::open("/var/lib/shmcast/ticks")?;
    /// if let Some(newest) = streams.find(None)? {
    ///     println!("{:?}", newest.stream());
    /// }
    /// # Ok::<(), shmcast::journal::JournalError>(())
    /// ```
    pub fn find(&mut self, stream: Option<StreamId>) -> Result<Option<&mut Journal>, JournalError> {
        let mut at = self.position(stream);
        match at {
            Some(at) if self.is_named(&self.journals[at]) => self.journals[at].refresh()?,
            _ => {
                self.refresh()?;
                at = self.position(stream);
            }
        }
        let at = at.or_else(|| self.journals.iter().rposition(Journal::has_any));
        Ok(at.map(|at| &mut self.journals[at]))
    }

    fn position(&self, stream: Option<StreamId>) -> Option<usize> {
        let stream = stream?;
        self.journals.iter().position(|journal| journal.stream().is_some_and(|own| own.is(stream)))
    }

    /// Returns an error if the directory contains the journal of a channel with another name.
    ///
    /// # Errors
    /// [`JournalError::OtherChannel`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("ticks").dir(dir.path()).capacity(1 << 20).open()?;
    /// use shmcast::journal::{Streams, create};
    /// let path = dir.path().join("journal");
    /// create(&path, publisher.header())?;
    /// let streams = Streams::open(&path)?;
    /// assert!(streams.check_channel("ticks").is_ok() && streams.check_channel("quotes").is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn check_channel(&self, channel: &str) -> Result<(), JournalError> {
        let headers = self.journals.iter().filter_map(|journal| journal.files().last());
        match headers.map(|file| &file.header.channel).find(|found| *found != channel) {
            None => Ok(()),
            Some(found) => {
                let (path, found, channel) = (self.path().to_owned(), found.clone(), channel.to_owned());
                Err(JournalError::OtherChannel { path, found, channel })
            }
        }
    }

    /// The directory.
    ///
    /// ```no_run
    /// # let streams = shmcast::journal::Streams::open("/var/lib/shmcast/ticks")?;
    /// println!("{}", streams.path().display());
    /// # Ok::<(), shmcast::journal::JournalError>(())
    /// ```
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The journals, in the order of [`journals`](Self::journals).
    ///
    /// ```no_run
    /// # let streams = shmcast::journal::Streams::open("/var/lib/shmcast/ticks")?;
    /// println!("{} streams", streams.into_journals().len());
    /// # Ok::<(), shmcast::journal::JournalError>(())
    /// ```
    pub fn into_journals(self) -> Vec<Journal> {
        self.journals
    }
}

impl Journal {
    /// The number of the last file of the stream. If no file has a valid header, this is the highest number in a name. It is 0 if there is
    /// no file. A file of another stream does not count.
    fn newest_number(&self) -> u64 {
        self.files().last().map_or(self.highest_unread, |file| file.header.file)
    }

    /// The highest number in the name of a file in the folder, whatever the file contains; 0 if there is no file.
    fn highest_number(&self) -> u64 {
        let problems = self.problems().iter().filter_map(|problem| parse_file_name(&problem.name)).max();
        self.newest_number().max(problems.unwrap_or(0))
    }

    /// The wall clock when the last file was begun; 0 if there is no file.
    fn newest_ns(&self) -> u64 {
        self.files().last().map_or(0, |file| file.header.wall_ns)
    }

    /// Reads the headers and trailers of all files of the newest stream in the journal's directory at `path`. If `path` is the folder of
    /// one stream, reads that stream. Follows links in the path, but no links in the directory.
    ///
    /// # Errors
    /// [`JournalError`] if the directory cannot be read, or has no file of a journal. Files that cannot be used are
    /// [`problems`](Self::problems).
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use shmcast::journal::{Journal, JournalError};
    /// assert!(matches!(Journal::open(dir.path()), Err(JournalError::Empty { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(path: impl AsRef<Path>) -> Result<Self, JournalError> {
        let path = path.as_ref();
        let mut journal = Self::unlisted(path)?;
        journal.refresh()?;
        if journal.has_any() {
            return Ok(journal);
        }
        let empty = || JournalError::Empty { path: path.to_owned() };
        match Streams::open(path) {
            // The directory is the folder of one stream, and its files do not name the stream yet.
            Err(JournalError::Flat { .. }) => Err(empty()),
            streams => streams?.into_journals().into_iter().rev().find(Self::has_any).ok_or_else(empty),
        }
    }

    /// Does the same as [`open`](Self::open) for one stream in the directory.
    ///
    /// # Errors
    /// The same as for [`open`](Self::open), and [`JournalError::OtherStream`] if the directory has only other streams.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("ticks").dir(dir.path()).capacity(1 << 20).open()?;
    /// use shmcast::{StreamId, journal::{Journal, JournalError, create}};
    /// let (path, stream) = (dir.path().join("journal"), publisher.header().stream);
    /// create(&path, publisher.header())?;
    /// assert_eq!(Journal::open_stream(&path, stream)?.files().len(), 1);
    /// let other = Journal::open_stream(&path, StreamId::default());
    /// assert!(matches!(other, Err(JournalError::OtherStream { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open_stream(path: impl AsRef<Path>, stream: StreamId) -> Result<Self, JournalError> {
        let path = path.as_ref();
        let journal = Self::open_for(path, stream)?;
        match journal.stream() {
            Some(found) if !found.is(stream) => {
                Err(JournalError::OtherStream { path: path.to_owned(), found, wanted: stream })
            }
            _ if !journal.has_any() => Err(JournalError::Empty { path: journal.path().to_owned() }),
            _ => Ok(journal),
        }
    }

    /// Returns the journal of a stream in the directory at `path`. The journal can have no file yet. If the stream has no folder, returns
    /// the newest journal, because the recorder of that journal might be about to begin a folder for this stream.
    pub(crate) fn open_for(path: &Path, stream: StreamId) -> Result<Self, JournalError> {
        let folder = Folder::named(path).map_err(JournalError::os("open the directory", path))?;
        match Self::in_folder(&folder, stream) {
            Ok(mut journal) => journal.refresh().map(|()| journal),
            Err(e) if is_absent(&e) => Self::open(path),
            Err(e) => Err(JournalError::os("open", folder_of(path, stream))(e)),
        }
    }

    /// Makes the error for a directory whose files are not in the folder of their stream.
    fn flat(path: &Path) -> JournalError {
        let found = Self::unlisted(path).and_then(|mut journal| journal.refresh().map(|()| journal));
        let stream = found.ok().and_then(|journal| journal.stream());
        JournalError::Flat { path: path.to_owned(), stream }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Publisher;
    use crate::journal::create;
    use shmcast_layout::journal::file_name;

    /// A test for an earlier mistake: the number in the name of another stream's file made an old stream the newest one.
    #[test]
    fn a_file_of_another_stream_does_not_make_a_stream_the_newest() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let [old, new] = ["old", "new"].map(|place| {
            let publisher = Publisher::builder("ticks").dir(dir.path().join(place)).capacity(64 << 10).open();
            let publisher = publisher.unwrap();
            create(&path, publisher.header()).unwrap();
            publisher.header().stream
        });
        let newest = || Journal::open(&path).unwrap().stream();
        assert_eq!(newest(), Some(new));
        let of_new = folder_of(&path, new).join(file_name(2, 1));
        std::fs::copy(&of_new, folder_of(&path, old).join(file_name(99, 1))).unwrap();
        assert_eq!(newest(), Some(new));
        // A new stream gets a higher number than all files, so that older releases, which go by the names, find it.
        assert_eq!(Streams::open(&path).unwrap().first_number(), 100);
        // A file whose header is damaged counts by its name, if there is no other.
        std::fs::write(&of_new, [1; 8192]).unwrap();
        assert_eq!(newest(), Some(new));
    }
}
