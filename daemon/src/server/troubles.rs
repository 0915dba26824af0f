//! Limits how often a lasting problem is reported.

use std::time::{Duration, Instant};

/// Pause before a lasting problem is reported again.
const EVERY: Duration = Duration::from_secs(60);

/// The problem that was reported last.
#[derive(Debug, Default)]
pub(super) struct Troubles {
    /// The problem's text, the time of the report, and how often the problem has occurred since the report.
    last: Option<(String, Instant, u64)>,
}

impl Troubles {
    /// Returns the text to report now, if a report is due. A new problem is reported immediately, and a lasting problem once a minute.
    pub(super) fn news(&mut self, trouble: String) -> Option<String> {
        let more = match &mut self.last {
            Some((last, told, more)) if *last == trouble && told.elapsed() < EVERY => {
                *more += 1;
                return None;
            }
            Some((last, _, more)) if *last == trouble => *more,
            _ => 0,
        };
        let often = if more > 0 { format!(" ({more} times more since it was told)") } else { String::new() };
        let news = format!("{trouble}{often}");
        self.last = Some((trouble, Instant::now(), 0));
        Some(news)
    }
}

/// Returns the text of an error with its causes. A cause is left out if the text before it ends with the same words.
pub(super) fn text_of(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |text, cause| {
        if text.is_empty() {
            cause
        } else if text.ends_with(&cause) {
            text
        } else {
            format!("{text}: {cause}")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;
    use shmcast_journal::RecordError;

    #[test]
    fn no_cause_is_given_twice() {
        let source = std::io::Error::other("full");
        let error = RecordError::Os { path: "/j".into(), source };
        let error = Err::<(), _>(error).context("ticks").unwrap_err();
        assert_eq!(text_of(&error), "ticks: /j: full");
    }

    #[test]
    fn a_trouble_that_lasts_is_told_once_and_another_at_once() {
        let mut troubles = Troubles::default();
        let mut news = |trouble: &str| troubles.news(trouble.to_owned()).is_some();
        assert_eq!(
            [news("full"), news("full"), news("full"), news("gone"), news("full")],
            [true, false, false, true, true]
        );
    }
}
