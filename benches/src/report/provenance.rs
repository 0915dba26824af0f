//! The origin of an answer's figures: the day, the rounds, and the machine.

use crate::rig::plan::Answer;
use crate::rig::probe::Quiet;

/// Converts a time in seconds since 1970 to a date in UTC, such as `2026-11-21`.
pub(super) fn day(seconds: u64) -> String {
    // Howard Hinnant's `civil_from_days`: days since 1 March of year 0, in eras of 400 years.
    let days = seconds / 86_400 + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02}")
}

/// Describes the measurement behind an answer: the played rounds, the rounds that count, and the load of the machine.
pub(super) fn provenance(answer: &Answer) -> String {
    let played = answer.rounds.len();
    let counted = answer.rounds.iter().filter(|round| round.counts).count();
    let failed = answer.rounds.iter().filter(|round| round.outcome.is_err()).count();
    let complete = answer.passed_and_failed().0;
    let outcomes = || answer.rounds.iter().filter_map(|round| round.outcome.as_ref().ok());
    let most = |share: fn(&Quiet) -> f64| outcomes().map(|o| share(&o.quiet)).fold(0.0f64, f64::max) * 100.0;
    let mut text = format!(
        "{}. Rounds: {played} played, {counted} count, {complete} complete (every receiver got every message), {failed} \
         failed. In the worst round other programs used {:.1} % of the CPUs, and the host took {:.1} %.",
        day(answer.asked_at),
        most(|q| q.others),
        most(|q| q.steal),
    );
    if answer.quick {
        text += " This was asked with --quick, which checks delivery only: its times and rates mean nothing.";
    }
    text
}

/// Returns the rows of the machine's sheet. If a row differs between the answers, it lists each value, followed by the names of the
/// questions whose answers have this value.
pub(super) fn machine(answers: &[(String, Answer)]) -> Vec<(&'static str, String)> {
    let sheets: Vec<_> = answers.iter().map(|(name, answer)| (name, answer.machine.rows())).collect();
    let Some((_, first)) = sheets.first() else { return Vec::new() };
    let row = |(i, (name, value)): (usize, &(&'static str, String))| {
        let mut values: Vec<(&str, Vec<&str>)> = Vec::new();
        for (question, sheet) in &sheets {
            match values.iter_mut().find(|(known, _)| *known == sheet[i].1) {
                Some((_, questions)) => questions.push(question),
                None => values.push((&sheet[i].1, vec![question])),
            }
        }
        let text = |(value, questions): &(&str, Vec<&str>)| format!("{value} ({})", questions.join(", "));
        let differ = || values.iter().map(text).collect::<Vec<_>>().join("; ");
        (*name, if values.len() == 1 { value.clone() } else { differ() })
    };
    first.iter().enumerate().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_around_leaps() {
        assert_eq!(day(0), "1970-01-01");
        assert_eq!(day(951_782_400), "2000-02-29");
        assert_eq!(day(4_107_542_400), "2100-03-01");
        assert_eq!(day(1_795_262_400), "2026-11-21");
    }

    #[test]
    fn a_machine_that_changed_between_two_questions() {
        let answer = |question: &str, kernel: &str| {
            let mut answer = Answer::begin(question, true);
            answer.machine.kernel = kernel.into();
            (question.to_owned(), answer)
        };
        let rows = machine(&[answer("a", "6.1"), answer("b", "6.2"), answer("c", "6.1")]);
        let kernel = &rows.iter().find(|(name, _)| *name == "kernel").unwrap().1;
        let arch = std::env::consts::ARCH;
        assert_eq!(*kernel, format!("6.1 {arch} (a, c); 6.2 {arch} (b)"));
        assert!(!rows.iter().find(|(name, _)| *name == "CPUs").unwrap().1.contains("(a"));
    }
}
