//! Writes stalls as an HdrHistogram interval log (format 1.3, V2 deflate). Viewers for that format can open it.
//!
//! The log has one line for each CPU and interval, tagged `cpu0`, `cpu1` and so on. Times are in seconds since the log began; values are in
//! nanoseconds. Each line is written as soon as it is complete, so the log of a killed run can still be opened.

use std::{
    fs::File,
    io::{self, LineWriter, Write},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use hdrhistogram::serialization::{
    V2DeflateSerializeError, V2DeflateSerializer,
    interval_log::{IntervalLogWriterBuilder, IntervalLogWriterError, Tag},
};

use super::Stalls;
use crate::cpu_list::CpuList;

/// The column titles that the format puts before the first interval.
const LEGEND: &str = r#""StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram""#;

/// The reason why the log is incomplete.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The file could not be created.
    #[error("cannot create the log {path}: {cause}")]
    Create {
        /// The file.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// A write to the file failed. All lines are complete, except perhaps the last line.
    #[error("cannot write the log {path}: {cause}; is the disk full?")]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
}

/// An interval log that is being written.
pub struct Log {
    path: PathBuf,
    file: LineWriter<File>,
    serializer: V2DeflateSerializer,
}

impl Log {
    /// Creates the file, or empties it, and writes the header. The log begins now.
    ///
    /// # Errors
    /// [`LogError`] if the file cannot be created or written.
    pub fn create(path: &Path, cpus: &CpuList, threshold_ns: u64) -> Result<Self, LogError> {
        let file = File::create(path).map_err(|cause| LogError::Create { path: path.to_owned(), cause })?;
        let mut log = Self {
            path: path.to_owned(),
            file: LineWriter::new(file),
            serializer: V2DeflateSerializer::new(),
        };
        let now = SystemTime::now();
        let about = format!("[shmcast hiccups: stalls above {threshold_ns} ns on CPUs {cpus}, in ns]");
        IntervalLogWriterBuilder::new()
            .add_comment(&about)
            .add_comment("[Histogram log format version 1.3]")
            .with_start_time(now)
            .with_base_time(now)
            .begin_log_with(&mut log.file, &mut log.serializer)
            .map(drop)
            .and_then(|()| writeln!(log.file, "{LEGEND}"))
            .map_err(|cause| log.failed(cause))?;
        Ok(log)
    }

    /// Adds the stalls of one interval. The interval began `begun` after the start of the log, and lasted `length`.
    ///
    /// # Errors
    /// [`LogError::Write`] if the file cannot be written.
    pub fn write(
        &mut self,
        begun: Duration,
        length: Duration,
        stalls: &[(usize, Stalls)],
    ) -> Result<(), LogError> {
        for (cpu, stalls) in stalls {
            let tag = format!("cpu{cpu}");
            let tag = Tag::new(&tag).expect("a tag without comma, space or line end");
            // A new builder is made for each line. This is possible because a builder without settings writes no header.
            let written = IntervalLogWriterBuilder::new()
                .begin_log_with(&mut self.file, &mut self.serializer)
                .map_err(IntervalLogWriterError::IoError)
                .and_then(|mut log| log.write_histogram(&stalls.histogram, begun, length, Some(tag)));
            written.map_err(|error| self.failed(plain(error)))?;
        }
        Ok(())
    }

    fn failed(&self, cause: io::Error) -> LogError {
        LogError::Write { path: self.path.clone(), cause }
    }
}

fn plain(error: IntervalLogWriterError<V2DeflateSerializeError>) -> io::Error {
    match error {
        IntervalLogWriterError::IoError(error)
        | IntervalLogWriterError::SerializeError(V2DeflateSerializeError::IoError(error)) => error,
        IntervalLogWriterError::SerializeError(error) => io::Error::other(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use hdrhistogram::{
        Histogram,
        serialization::{
            Deserializer,
            interval_log::{IntervalLogIterator, LogEntry},
        },
    };

    use super::*;

    #[test]
    fn a_log_that_does_not_read_back() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("stalls.hlog");
        let cpus = CpuList::from_iter([0, 3]);
        let mut log = Log::create(&path, &cpus, 1000).expect("a log");
        let mut stalls = Stalls::none();
        for gap_ns in [1_500, 1_500, 40_000, 2_000_000] {
            stalls.record(gap_ns);
        }
        let second = Duration::from_secs(1);
        log.write(Duration::ZERO, second, &[(0, Stalls::none()), (3, stalls.clone())]).expect("written");
        log.write(second, second, &[(3, stalls.clone())]).expect("written");

        // The file is read while the log is still open: all that was written must be there already.
        let bytes = std::fs::read(&path).expect("the log");
        let mut read = Vec::new();
        for entry in IntervalLogIterator::new(&bytes) {
            if let LogEntry::Interval(interval) = entry.expect("a line of the format") {
                let encoded = base64_decode(interval.encoded_histogram());
                let histogram: Histogram<u64> =
                    Deserializer::new().deserialize(&mut encoded.as_slice()).expect("a histogram");
                let tag = interval.tag().expect("a tag").as_str().to_owned();
                read.push((tag, interval.start_timestamp().as_secs(), histogram));
            }
        }
        let tags: Vec<_> = read.iter().map(|(tag, at, _)| (tag.as_str(), *at)).collect();
        assert_eq!(tags, [("cpu0", 0), ("cpu3", 0), ("cpu3", 1)]);
        assert!(read[0].2.is_empty());
        assert_eq!(read[1].2, stalls.histogram);
        assert_eq!(read[2].2, stalls.histogram);
    }

    #[test]
    fn a_full_disk_taken_for_success() {
        let full = Path::new("/dev/full");
        let log = Log::create(full, &CpuList::default(), 1000);
        assert!(matches!(log, Err(LogError::Write { .. })));
        let nowhere = Path::new("/no/such/directory/a.hlog");
        let log = Log::create(nowhere, &CpuList::default(), 1000);
        assert!(matches!(log, Err(LogError::Create { .. })));
    }

    /// Decodes standard base 64 with padding, so that a test can read the log without another dependency.
    fn base64_decode(text: &str) -> Vec<u8> {
        let six_bits = |symbol: u8| match symbol {
            b'A'..=b'Z' => symbol - b'A',
            b'a'..=b'z' => symbol - b'a' + 26,
            b'0'..=b'9' => symbol - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            other => panic!("{other} is no base 64"),
        };
        let (mut bits, mut held, mut bytes) = (0_u32, 0, Vec::new());
        for symbol in text.bytes().filter(|&symbol| symbol != b'=') {
            bits = bits << 6 | u32::from(six_bits(symbol));
            held += 6;
            if held >= 8 {
                held -= 8;
                bytes.push((bits >> held & 0xff) as u8);
            }
        }
        bytes
    }
}
