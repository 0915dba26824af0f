//! Opens a channel that is a file: makes it, takes it over, or replaces it.

use super::behind::next_of;
use super::{DEFAULT_CAPACITY, Publisher, PublisherBuilder};
use crate::board::BoardSpec;
use crate::clock::{Clock, begin_measuring};
use crate::directory::{ChannelFiles, DEFAULT_MODE, Locked};
use crate::error::{ChannelError, SchemaId};
use crate::gate::settle;
use crate::hosting::new_header;
use rustix::fs::OFlags;
use shmcast_layout::error::OpenError;
use shmcast_layout::fault;
use shmcast_layout::layout::geometry::Geometry;
use shmcast_layout::layout::header::{Header, State};
use shmcast_layout::layout::stream::StreamId;
use shmcast_layout::mem::reserve;
use shmcast_layout::segment::{Access, Segment};
use std::fs::File;
use std::io;

/// Number of attempts to open a channel if other processes remove it again and again.
const ATTEMPTS: u32 = 1000;

impl PublisherBuilder {
    pub(super) fn open_file(self) -> Result<Publisher, ChannelError> {
        begin_measuring();
        let wanted = Geometry::new(self.capacity.unwrap_or(DEFAULT_CAPACITY), self.max_message)?;
        self.board_bytes()?;
        let (files, lock) = self.locked_files()?;
        match files.segment(OFlags::RDWR).inspect_err(|_| files.undo(lock.is_new))? {
            Some(file) if self.anew => self.replace(&files, &file, lock),
            Some(file) => self.take_over(&files, &file, wanted, lock),
            None => self.make(&files, wanted, lock, 1),
        }
    }

    /// Makes the channel's directory if necessary, and takes the writer lock. Tries again if another process removes the channel
    /// meanwhile. In a directory that was removed itself, no attempt succeeds.
    fn locked_files(&self) -> Result<(ChannelFiles, Locked), ChannelError> {
        for _ in 0..ATTEMPTS {
            let Some(files) = self.directory.create(&self.name, self.file_mode())? else { continue };
            if let Some(lock) = self.lock(&files).inspect_err(|_| files.leave())? {
                return Ok((files, lock));
            }
        }
        Err(self.directory.unusable(&self.name))
    }

    /// Takes the writer lock, after all checks that write nothing. Returns `None` if the channel no longer exists.
    fn lock(&self, files: &ChannelFiles) -> Result<Option<Locked>, ChannelError> {
        files.check_usable()?;
        if let Some(mode) = self.mode
            && !fault!("mode_is_ignored")
        {
            files.check_mode(mode)?;
        }
        files.lock(true)
    }

    fn take_over(
        self,
        files: &ChannelFiles,
        file: &File,
        wanted: Geometry,
        lock: Locked,
    ) -> Result<Publisher, ChannelError> {
        let segment = Segment::open(file, Access::Write)
            .map_err(|source| ChannelError::Segment { path: files.segment_path(), source })?;
        if matches!(segment.state(), Some((_, State::Superseded))) {
            // The process that removed the channel died before it had removed the files.
            return self.make(files, wanted, lock, next_of(&segment));
        }
        self.check(&segment)?;
        let gates = settle(&self.name, &self.gates, &segment.header().geometry)?;
        files.make_readers(self.file_mode())?;
        let gates = files.open_gates(&gates)?;
        // The journal is changed last, because a failed call must not use up sequences of the journal.
        self.tell_journal(&segment)?;
        let mut publisher = self.start(segment, lock.held, gates)?;
        publisher.place = files.place_of_segment();
        Ok(publisher)
    }

    fn replace(mut self, files: &ChannelFiles, file: &File, lock: Locked) -> Result<Publisher, ChannelError> {
        let old = Segment::open(file, Access::Write)
            .map_err(|source| ChannelError::Segment { path: files.segment_path(), source })?;
        let Header { geometry, clock, schema_id, schema, labels, .. } = old.header();
        let capacity = self.capacity.unwrap_or(geometry.capacity);
        let max_message =
            self.max_message.or((capacity == geometry.capacity).then_some(geometry.max_message));
        if self.schema.0 == 0 {
            if self.is_untyped {
                SchemaId { id: 0, name: String::new() }.check(&self.name, SchemaId::of(old.header()))?;
            }
            self.schema = (*schema_id, schema.clone());
        }
        self.clock = self.clock.or(Some(*clock));
        self.board = self.board.or(old.board_spec().map(BoardSpec));
        if self.labels.is_empty() {
            self.labels.clone_from(labels);
        }
        let publisher = self.make(files, Geometry::new(capacity, max_message)?, lock, next_of(&old))?;
        // This store is the last step: a reader that notices the store and attaches again must find the new segment.
        old.supersede();
        Ok(publisher)
    }

    /// Makes the channel. If it continues after a journal, its first sequence is at least `least`.
    fn make(
        self,
        files: &ChannelFiles,
        geometry: Geometry,
        lock: Locked,
        least: u64,
    ) -> Result<Publisher, ChannelError> {
        let made = settle(&self.name, &self.gates, &geometry).and_then(|gates| {
            let past = self.find_past()?;
            let segment = self.make_segment(files, geometry, past.stream())?;
            let gates = files.open_gates(&gates)?;
            // The journal is changed last, because a failed call must not use up sequences of the journal.
            self.go_on_behind(past, &segment, least)?;
            Ok((segment, gates))
        });
        let (segment, gates) = made.inspect_err(|_| files.undo(lock.is_new))?;
        let mut publisher = self.start(segment, lock.held, gates)?;
        // From here on the channel is visible. All steps that can fail have succeeded.
        files.finish().inspect_err(|_| files.undo(lock.is_new))?;
        publisher.place = files.place_of_segment();
        Ok(publisher)
    }

    fn make_segment(
        &self,
        files: &ChannelFiles,
        geometry: Geometry,
        stream: Option<StreamId>,
    ) -> Result<Segment, ChannelError> {
        let bytes = geometry.bytes_with(self.board_bytes()?);
        let no_room = || {
            let dir = self.directory.path().to_owned();
            ChannelError::NoRoom { name: self.name.clone(), dir, bytes }
        };
        let file = files.make_unfinished(self.file_mode())?;
        // The memory is reserved before the clock is used, because the clock is measured meanwhile.
        reserve(&file, bytes).map_err(|source| match source {
            source if is_full(&source) => no_room(),
            source => ChannelError::os("reserve memory for", files.unfinished_path())(source),
        })?;
        let clock = Clock::of_kind(self.clock);
        let (schema, labels) = (self.schema.clone(), self.labels.clone());
        let header = new_header(&self.name, geometry, clock, schema, labels, stream);
        Segment::create_with_board(&file, header, self.board.map(|board| board.0)).map_err(|source| {
            match source {
                OpenError::Os { source, .. } if is_full(&source) => no_room(),
                source => ChannelError::Segment { path: files.unfinished_path(), source },
            }
        })
    }

    fn board_bytes(&self) -> Result<u64, ChannelError> {
        self.board.map_or(Ok(0), |board| board.bytes())
    }

    fn file_mode(&self) -> u32 {
        self.mode.unwrap_or(DEFAULT_MODE)
    }
}

fn is_full(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
