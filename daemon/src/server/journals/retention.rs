//! Removes old files as configured. If that does not free enough space, reports it.

use super::{Recording, Work};
use crate::config::{ChannelConfig, JournalConfig};
use anyhow::{Context, Result};
use bytesize::ByteSize;
use shmcast::StreamId;
use shmcast::journal::{Journal, Streams};
use shmcast_journal::{Recorder, Trimmed};
use std::fs;
use std::path::Path;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Most programs that an event names.
const NAMED: usize = 3;
/// A large step of the wall clock is accepted after this time. Until then, the ages of files are computed from the old clock.
const BELIEVED_AFTER: Duration = Duration::from_secs(3600);
/// The largest step of the wall clock that is accepted immediately.
const UNNOTICED: Duration = Duration::from_secs(1);

/// Whether free space is lacking on the file system, and whether this was reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Room {
    #[default]
    Enough,
    /// The last check found too little free space, and this is not reported yet. A removed file still takes space until the last reader has
    /// closed it, so the next check might find enough free space.
    Little,
    /// The last check found too little free space, and this was reported.
    Told,
}

impl Work {
    /// Removes the oldest files as configured, and counts the remaining ones.
    pub(super) fn trim(&self, recorder: &Recorder, room: &mut Room) -> Result<()> {
        let wall_ns = believed(SettledClock::now).as_nanos() as u64;
        let stream = self.recording.state().stream;
        let counted = self.recording.with_files(|streams| {
            let mut trimmed = Trimmed::default();
            streams.refresh()?;
            let keep = *self.recording.keep.lock().unwrap_or_else(PoisonError::into_inner);
            let result = recorder.trim(&keep, streams, stream, wall_ns, &mut trimmed);
            if !trimmed.gone.is_empty() {
                streams.refresh()?;
            }
            let bytes = streams.journals().iter().flat_map(Journal::files).map(|file| file.bytes).sum();
            let oldest = streams.find(stream)?.and_then(|own| own.first_sequence());
            let left = oldest_left(streams.journals(), stream);
            Ok((trimmed, result, bytes, oldest.unwrap_or(0), left))
        })?;
        let Some((trimmed, result, bytes, oldest, left)) = counted else { return Ok(()) };
        {
            let mut state = self.recording.state();
            (state.size_bytes, state.oldest) = (bytes, oldest);
        }
        if !trimmed.gone.is_empty() {
            let what = format!("{} old files; {left}", trimmed.gone.len());
            self.tell("journal-trimmed", &what);
        }
        for name in &trimmed.broken {
            let what =
                format!("hold {name}: files that it keeps were removed, since less than keep_free was free");
            self.tell("journal-hold-broken", &what);
        }
        *room = match (*room, trimmed.lacking) {
            (_, 0) => Room::Enough,
            (Room::Enough, _) => Room::Little,
            (Room::Little, _) => {
                self.tell("journal-no-room", &self.recording.no_room(&trimmed));
                Room::Told
            }
            (Room::Told, _) => Room::Told,
        };
        result.with_context(|| self.recording.shown())
    }
}

impl Recording {
    /// Whether the recording can continue with these settings. It can if at most the limits for old files differ. If so, the recording uses
    /// the new limits from now on. The recorder is not stopped, because a stopped recorder releases its gate.
    pub(super) fn goes_on_with(&self, config: &JournalConfig) -> bool {
        let JournalConfig { keep_bytes, keep_age, keep_free, .. } = self.config;
        let is_same = JournalConfig { keep_bytes, keep_age, keep_free, ..config.clone() } == self.config;
        if is_same {
            *self.keep.lock().unwrap_or_else(PoisonError::into_inner) = config.keep();
        }
        is_same
    }
}

/// Describes the oldest file that is left. `stream` is the present stream.
fn oldest_left(journals: &[Journal], stream: Option<StreamId>) -> String {
    let left = journals.iter().find_map(|journal| Some((journal.stream()?, journal.first_sequence()?)));
    match left {
        None => "no file is left".to_owned(),
        Some((own, first)) if stream.is_none_or(|stream| stream.is(own)) => {
            format!("the oldest sequence is {first} now")
        }
        Some((other, first)) => format!("the oldest sequence is {first} of the earlier stream {other} now"),
    }
}

/// Calls `run` with the one [`SettledClock`], from which all journals compute the ages of files. `run` also gets the time since the first
/// call of this function, and the time that the system's wall clock shows.
fn believed<T>(run: impl FnOnce(&mut SettledClock, Duration, Duration) -> T) -> T {
    static CLOCK: Mutex<Option<SettledClock>> = Mutex::new(None);
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let mono = START.elapsed();
    let wall = since_1970(SystemTime::now());
    let mut clock = CLOCK.lock().unwrap_or_else(PoisonError::into_inner);
    run(clock.get_or_insert_default(), mono, wall)
}

fn since_1970(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A wall clock that accepts a large step only when the system's clock has shown it for an hour. So a clock that is wrong for a short time
/// causes no removal of files.
#[derive(Debug, Default)]
struct SettledClock {
    /// The accepted wall clock minus the time since the daemon's start. It was computed when a wall clock was last accepted.
    believed: Option<Duration>,
    /// `None` while the system's wall clock agrees with the accepted one.
    other: Option<Other>,
}

/// A wall clock that is not accepted yet.
#[derive(Debug, Clone, Copy)]
struct Other {
    /// This wall clock minus the time since the daemon's start.
    ahead: Duration,
    /// The moment at which the system's clock began to show this wall clock, as the time since the daemon's start.
    since: Duration,
}

impl SettledClock {
    /// Takes note of a journal that was last written at `written`. A daemon cannot know whether it starts with a wrong clock. So in its
    /// first hour it accepts no clock that is later than `written` plus `mono`, the time since its start.
    fn note(&mut self, mono: Duration, wall: Duration, written: Duration) {
        if mono < BELIEVED_AFTER {
            let believed = self.believed.unwrap_or_else(|| wall.saturating_sub(mono));
            self.believed = Some(believed.min(written.saturating_sub(mono)));
        }
    }

    /// Returns the accepted wall clock. `mono` is the time since the daemon's start. `wall` is the time that the system's wall clock shows.
    fn now(&mut self, mono: Duration, wall: Duration) -> Duration {
        let ahead = wall.saturating_sub(mono);
        let believed = *self.believed.get_or_insert(ahead);
        if ahead.abs_diff(believed) <= UNNOTICED {
            (self.believed, self.other) = (Some(ahead), None);
            return wall;
        }
        let same = self.other.filter(|other| ahead.abs_diff(other.ahead) <= UNNOTICED);
        let since = same.map_or(mono, |other| other.since);
        if mono.saturating_sub(since) < BELIEVED_AFTER {
            self.other = Some(Other { ahead, since });
            return mono + believed;
        }
        (self.believed, self.other) = (Some(ahead), None);
        wall
    }
}

/// Takes note of when the journals of these channels were last written. Call this before anything is written to them. In the daemon's
/// first hour, the ages of files are computed from this time. The call reads from the disk.
pub fn note_written(channels: &[ChannelConfig]) {
    let journals = channels.iter().filter_map(|channel| channel.journal.as_ref());
    let written = journals.filter(|journal| journal.keep_age.is_some()).filter_map(|it| written_at(&it.dir));
    for written in written {
        believed(|clock, mono, wall| clock.note(mono, wall, since_1970(written)));
    }
}

/// Returns when the last file of the newest stream of a journal was last written.
fn written_at(dir: &Path) -> Option<SystemTime> {
    let streams = Streams::open(dir).ok()?;
    let newest =
        streams.journals().iter().rev().find_map(|own| Some(own.path().join(&own.files().last()?.name)));
    fs::symlink_metadata(newest?).ok()?.modified().ok()
}

impl Recording {
    /// Explains why removing files frees no space, and what to do.
    fn no_room(&self, trimmed: &Trimmed) -> String {
        let lacking = format!("{} are lacking of what keep_free keeps free", ByteSize(trimmed.lacking));
        let dir = self.shown();
        let holders = holders(&self.config.dir);
        let named = match &holders[..] {
            [] => format!("sudo fuser -v {dir}/*/* names the programs that have them open"),
            all => {
                let more = all.len().saturating_sub(NAMED);
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                format!("they are open in {}{more}", all[..all.len().min(NAMED)].join(", "))
            }
        };
        match trimmed.vain {
            0 => format!(
                "{lacking}, and no file of {dir} is left that could go: make room, or lower keep_free"
            ),
            files => format!(
                "{lacking}, and it would free too little to remove the oldest files, since most are in use ({files} stay): \
                 {named}; end these programs, or make room"
            ),
        }
    }
}

/// Lists the programs that have files of a journal open, including removed files. Leaves out programs that the daemon is not allowed to
/// inspect.
fn holders(dir: &Path) -> Vec<String> {
    let dir = fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned());
    let own = std::process::id();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let holds = |pid: &u32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut files = open.filter_map(|descriptor| fs::read_link(descriptor.path()).ok());
        *pid != own && files.any(|file| file.starts_with(&dir) && file != dir)
    };
    let shown = |pid| {
        let command = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        format!("pid {pid} ({})", command.trim())
    };
    pids.filter(holds).map(shown).collect()
}

#[cfg(test)]
mod tests {
    //! A test for an earlier mistake: files were removed because the wall clock was years ahead for a minute.

    use super::*;

    /// A stream without files has no oldest sequence, and was once said to begin at 0.
    #[test]
    fn the_oldest_file_that_is_left_is_named_with_its_stream() {
        let room = tempfile::tempdir().unwrap();
        let dir = room.path().join("journal");
        let open = |name: &str| {
            shmcast::Publisher::builder(name).dir(room.path()).capacity(64 << 10).open().unwrap()
        };
        let (own, other) = (open("a"), open("b"));
        let own = own.header().stream;
        fs::create_dir(&dir).unwrap();
        let journals = || shmcast::journal::Streams::open(&dir).unwrap().into_journals();
        assert_eq!(oldest_left(&journals(), Some(own)), "no file is left");
        shmcast::journal::create(&dir, other.header()).unwrap();
        let earlier = format!("the oldest sequence is 1 of the earlier stream {} now", other.header().stream);
        assert_eq!(oldest_left(&journals(), Some(own)), earlier);
        assert_eq!(oldest_left(&journals(), Some(other.header().stream)), "the oldest sequence is 1 now");
    }

    #[test]
    fn a_clock_that_was_set_removes_nothing_for_an_hour() {
        let (minute, year) = (Duration::from_secs(60), Duration::from_secs(365 * 86_400));
        let mut clock = SettledClock::default();
        let begun = 56 * year;
        let mut mono = Duration::ZERO;
        assert_eq!(clock.now(mono, begun), begun);
        for _ in 0..59 {
            mono += minute;
            assert_eq!(clock.now(mono, begun + mono + year), begun + mono, "it leapt ahead");
        }
        mono += minute;
        assert_eq!(clock.now(mono, begun + mono), begun + mono, "it was set right again");
        let set = mono + minute;
        let set_back = begun - year;
        assert_eq!(clock.now(set, set_back + set), begun + set);
        mono = set + BELIEVED_AFTER;
        assert_eq!(clock.now(mono, set_back + mono), set_back + mono, "it stays so");
        assert_eq!(clock.now(mono, set_back + mono + UNNOTICED), set_back + mono + UNNOTICED, "a small step");
    }

    /// The host's clock is a year ahead when the daemon starts, and is corrected later. An earlier version accepted the first clock
    /// immediately.
    #[test]
    fn the_first_clock_counts_after_an_hour() {
        let (minute, year) = (Duration::from_secs(60), Duration::from_secs(365 * 86_400));
        let written = 56 * year;
        let mut clock = SettledClock::default();
        for of_other in [written + year * 2, written, written + minute] {
            clock.note(minute, written + year, of_other);
        }
        let begun = written - minute;
        for minutes in 1..=30 {
            let mono = minutes * minute;
            assert_eq!(clock.now(mono, written + year + mono), begun + mono, "the oldest journal counts");
        }
        // The clock is set right. The host was off for ten minutes.
        let right = written + 10 * minute;
        for minutes in 31..=90 {
            let mono = minutes * minute;
            assert_eq!(clock.now(mono, right + mono), begun + mono, "{minutes}");
        }
        let mono = 91 * minute;
        assert_eq!(clock.now(mono, right + mono), right + mono);
        clock.note(mono, right + mono, written);
        assert_eq!(clock.now(mono, right + mono), right + mono, "a later journal changes nothing");
        let mut clock = SettledClock::default();
        clock.note(minute, written, written + year);
        assert_eq!(clock.now(minute, written), written, "its last write was with a clock that was ahead");
    }
}
