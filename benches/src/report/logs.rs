//! Files for HdrHistogram's own viewers.
//!
//! - `.hgrm`: percentile tables, one for each case and contestant
//! - `.hlog`: interval logs, one for each question. Each round (or each window of a soak) has a line for its
//!   distribution, and a line for its hiccups.

use crate::rig::plan::Answer;
use crate::rig::round::Outcome;
use crate::rig::spec::Contestant;
use crate::rig::stats::{Distribution, HiccupLog, histogram};
use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};
use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// The line of column titles that the log format requires before the first interval.
const LEGEND: &str = r#""StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram""#;

/// Returns the distribution that a question is about, and its name.
fn subject(question: &str) -> (&'static str, fn(&Outcome) -> &Distribution) {
    match question {
        "fanout" | "oversubscribed" | "churn" => ("last", |o| &o.last),
        "bridge" => ("one-way", |o| &o.one_way),
        _ => ("response", |o| &o.response),
    }
}

/// Returns a name that contains only letters, digits and dashes, for files and tags.
pub fn plain(name: &str) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
    let name: String = name.chars().map(letter).collect();
    name.split('-').filter(|part| !part.is_empty()).collect::<Vec<_>>().join("-")
}

/// Returns the distribution of all comparable rounds together.
fn together(
    answer: &Answer,
    case: &str,
    who: &Contestant,
    of: fn(&Outcome) -> &Distribution,
) -> Result<Histogram<u64>> {
    let mut all = histogram();
    for (_, outcome) in answer.comparable(case, who) {
        let distribution = of(outcome);
        if distribution.count > 0 {
            all.add(distribution.decode()?).context("add a round's histogram")?;
        }
    }
    Ok(all)
}

/// Writes the files of an answer into `dir`. Their names begin with `stem`. Returns the number of files.
///
/// # Errors
/// The file system's error, or a histogram that cannot be read.
pub fn write(answer: &Answer, stem: &str, dir: &Path) -> Result<usize> {
    std::fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    let (what, of) = subject(&answer.question);
    let mut files = 0;
    for case in answer.cases() {
        for who in &answer.contestants(&case) {
            let mut parts = vec![(what, together(answer, &case, who, of)?)];
            if answer.question == "fanout" {
                parts.push(("send", together(answer, &case, who, |o| &o.cost)?));
            }
            for (what, histogram) in parts.into_iter().filter(|(_, histogram)| !histogram.is_empty()) {
                let name = format!("{stem}-{}-{}-{what}.hgrm", plain(&case), plain(&who.name()));
                let path = dir.join(name);
                std::fs::write(&path, hgrm(&histogram))
                    .with_context(|| format!("write {}", path.display()))?;
                files += 1;
            }
        }
    }
    let log = hlog(answer, of)?;
    let path = dir.join(format!("{stem}.hlog"));
    std::fs::write(&path, log).with_context(|| format!("write {}", path.display()))?;
    Ok(files + 1)
}

/// Makes the table that HdrHistogram prints: value, percentile, total count, 1 / (1 - percentile).
fn hgrm(histogram: &Histogram<u64>) -> String {
    let mut out =
        format!("{:>12} {:>14} {:>10} {:>14}\n\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)");
    let mut total = 0;
    for step in histogram.iter_quantiles(5) {
        total += step.count_since_last_iteration();
        let (value, q) = (step.value_iterated_to() as f64, step.quantile_iterated_to());
        // The last line has no fourth column, because its value would be infinite.
        let _ = if q < 1.0 {
            writeln!(out, "{value:12.3} {q:2.12} {total:10} {:14.2}", 1.0 / (1.0 - q))
        } else {
            writeln!(out, "{value:12.3} {q:2.12} {total:10}")
        };
    }
    let _ = writeln!(
        out,
        "#[Mean    = {:12.3}, StdDeviation   = {:12.3}]\n#[Max     = {:12.3}, Total count    = {:12}]\n\
         #[Buckets = {:12}, SubBuckets     = {:12}]",
        histogram.mean(),
        histogram.stdev(),
        histogram.max() as f64,
        histogram.len(),
        histogram.buckets(),
        2048 // what three significant digits take
    );
    out
}

/// One interval of a log.
struct Interval {
    start: Duration,
    length: Duration,
    tag: String,
    histogram: Histogram<u64>,
}

/// Returns the intervals of an answer's rounds, sorted by start. Each start counts from `asked`, the time when the question was asked.
fn intervals(answer: &Answer, asked: Duration, of: fn(&Outcome) -> &Distribution) -> Result<Vec<Interval>> {
    let mut intervals = Vec::new();
    for round in &answer.rounds {
        let Ok(outcome) = &round.outcome else { continue };
        let tag = format!("{}/{}", plain(&round.case), plain(&outcome.spec.contestant.name()));
        let length = Duration::from_nanos(outcome.spec.messages * outcome.spec.interval_ns)
            .max(Duration::from_secs(1));
        let start = Duration::from_secs(outcome.ended_at).saturating_sub(asked).saturating_sub(length);
        if outcome.series.is_empty() {
            if of(outcome).count > 0 {
                intervals.push(Interval {
                    start,
                    length,
                    tag: tag.clone(),
                    histogram: of(outcome).decode()?,
                });
            }
        } else {
            let window = Duration::from_nanos(outcome.spec.window_ns);
            for (at, moment) in (0..).zip(&outcome.series).filter(|(_, moment)| moment.response.count > 0) {
                let histogram = moment.response.decode()?;
                intervals.push(Interval {
                    start: start + window * at,
                    length: window,
                    tag: tag.clone(),
                    histogram,
                });
            }
        }
        let sides = [("publisher", &outcome.published.hiccups), ("receivers", &outcome.received.hiccups)];
        for (side, log) in sides.into_iter().filter(|(_, log)| !log.longest.is_empty()) {
            intervals.push(Interval {
                start,
                length,
                tag: format!("hiccups/{side}/{tag}"),
                histogram: lengths(log),
            });
        }
    }
    intervals.sort_by_key(|interval| interval.start);
    Ok(intervals)
}

fn hlog(answer: &Answer, of: fn(&Outcome) -> &Distribution) -> Result<Vec<u8>> {
    let asked = Duration::from_secs(answer.asked_at);
    let intervals = intervals(answer, asked, of)?;
    let start = SystemTime::UNIX_EPOCH + asked;
    let (mut out, mut serializer) = (Vec::new(), V2DeflateSerializer::new());
    IntervalLogWriterBuilder::new()
        .add_comment(&format!("[shmcast-bench {}, nanoseconds]", answer.question))
        .add_comment("[Histogram log format version 1.3]")
        .with_start_time(start)
        .with_base_time(start)
        .begin_log_with(&mut out, &mut serializer)
        .context("write to memory")?;
    out.extend_from_slice(LEGEND.as_bytes());
    out.push(b'\n');
    // A builder without settings writes no header, so the log continues after the legend.
    let mut log = IntervalLogWriterBuilder::new()
        .begin_log_with(&mut out, &mut serializer)
        .context("write to memory")?;
    for interval in &intervals {
        let tag = Tag::new(&interval.tag).context("a tag without comma, space or line end")?;
        log.write_histogram(&interval.histogram, interval.start, interval.length, Some(tag))
            .map_err(|e| anyhow::anyhow!("encode a histogram: {e:?}"))?;
    }
    Ok(out)
}

fn lengths(log: &HiccupLog) -> Histogram<u64> {
    let mut lengths = histogram();
    log.longest.iter().for_each(|(_, length)| lengths.saturating_record(*length));
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected lines are those of the format's description.
    #[test]
    fn a_table_that_the_viewers_read() {
        let mut histogram = histogram();
        (1..=1000).for_each(|i| histogram.record(i).unwrap());
        let text = hgrm(&histogram);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0].split_whitespace().collect::<Vec<_>>(),
            ["Value", "Percentile", "TotalCount", "1/(1-Percentile)"]
        );
        assert!(text.contains("     500.000 0.500000000000        500           2.00\n"), "{text}");
        let last = lines.iter().rfind(|line| !line.starts_with('#')).unwrap();
        assert_eq!(last.split_whitespace().collect::<Vec<_>>(), ["1000.000", "1.000000000000", "1000"]);
        assert!(lines.iter().any(|line| line.starts_with("#[Mean    =")));
    }

    #[test]
    fn names_fit_files_and_tags() {
        assert_eq!(plain("256 B beside UDP"), "256-B-beside-UDP");
        assert_eq!(plain("shmcast@/a/b c/spin"), "shmcast-a-b-c-spin");
        assert!(Tag::new(&plain("a, b\n")).is_some());
    }
}
