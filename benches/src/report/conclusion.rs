//! The conclusion of the report: one paragraph and one picture, which are computed from the answers.

use super::contests::{Contest, Standing, contests, times};
use super::svg::{Group, Span, gains};
use crate::questions::table::Unit;
use crate::rig::names::{BRIDGE, BRIDGE_INVOKED_UNICAST, SHMCAST, WIRE_UDP};
use crate::rig::plan::Answer;
use crate::rig::spec::{Contestant, Wait};

/// The title of the picture.
pub const PICTURE: &str = "How many times better shmcast is than the best other transport. A dot is the median over the laps of \
one case, and its line spans all laps; cases stand in the order of the tables. Green is ahead in every lap, red is behind in every \
lap, brown is open because the laps disagree, grey is level. A hollow dot stands for too few laps.";

/// Returns the paragraph as plain text.
pub fn paragraph(answers: &[(String, Answer)]) -> String {
    if answers.iter().any(|(_, answer)| answer.quick) {
        return "Some of this was asked with --quick, which checks delivery only: nothing can be concluded from its times \
                and rates."
            .into();
    }
    let sentences = [
        verdicts(answers),
        latency(find(answers, "latency")),
        throughput(find(answers, "throughput")),
        fanout(find(answers, "fanout")),
        bridge(find(answers, "bridge")),
    ];
    sentences.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// Returns the picture as SVG. Returns `None` if there is nothing to compare.
pub fn picture(answers: &[(String, Answer)]) -> Option<String> {
    let mut groups: Vec<Group> = Vec::new();
    for contest in answers.iter().flat_map(|(_, answer)| contests(answer)) {
        let Some(value) = contest.gain() else { continue };
        let figure = &contest.figure;
        let name = format!("{}: {}", figure.question, figure.name);
        let span = Span {
            name: format!("{}, {}: {} times better", name, contest.case, times(value)),
            class: contest.standing.class().into(),
            value,
            range: contest.spread().unwrap_or((value, value)),
        };
        match groups.iter_mut().find(|group| group.name == name) {
            Some(group) => group.spans.push(span),
            None => groups.push(Group { name, spans: vec![span] }),
        }
    }
    (!groups.is_empty()).then(|| gains(PICTURE, ("the other is better", "shmcast is better"), &groups))
}

fn find<'a>(answers: &'a [(String, Answer)], question: &str) -> Option<&'a Answer> {
    answers.iter().map(|(_, answer)| answer).find(|answer| answer.question == question)
}

/// Returns the case `name`, or the first case if no case has this name.
fn case_of(answer: &Answer, name: &str) -> Option<String> {
    let cases = answer.cases();
    cases.iter().find(|case| *case == name).or(cases.first()).cloned()
}

fn latency(answer: Option<&Answer>) -> Option<String> {
    let case = case_of(answer?, "256 B")?;
    let value = answer?.median(&case, &Contestant::new(SHMCAST, Wait::Spin), |o| o.response.p50 as f64)?;
    let value = Unit::Ns.show(value);
    Some(format!("A message of {case} reaches a spinning receiver on another CPU after {value} ns (median)."))
}

fn throughput(answer: Option<&Answer>) -> Option<String> {
    let ours = Contestant::new(SHMCAST, Wait::Burst);
    let rate = |case: String| Some((answer?.median(&case, &ours, |o| o.rate / 1e6)?, case));
    let rates = answer?.cases().into_iter().filter_map(rate);
    let (rate, case) = rates.max_by(|a, b| a.0.total_cmp(&b.0))?;
    Some(format!("Back to back it brings {rate:.0} million messages of {case} a second to one receiver."))
}

fn fanout(answer: Option<&Answer>) -> Option<String> {
    let (case, cpus) = (answer?.cases().pop()?, answer?.machine.cpus);
    let ours = Contestant::new(SHMCAST, Wait::Yield);
    let value = Unit::Us.show(answer?.median(&case, &ours, |o| o.last.p50 as f64)?);
    let case = case.trim_end_matches(" receivers");
    Some(format!(
        "The last of {case} receivers, which share {cpus} CPUs, has a message {value} us after its send."
    ))
}

fn bridge(answer: Option<&Answer>) -> Option<String> {
    let case = answer?.cases().into_iter().next()?;
    let value = |transport: &str, wait| {
        let who = Contestant::new(transport, wait);
        Some(Unit::Us.show(answer?.median(&case, &who, |o| o.one_way.p50 as f64)?))
    };
    let (invoked, threads) = (value(BRIDGE_INVOKED_UNICAST, Wait::Spin)?, value(BRIDGE, Wait::Yield)?);
    let udp = value(WIRE_UDP, Wait::Spin)?;
    Some(format!(
        "From host to host ({case}) a message takes {invoked} us with one thread at each end and {threads} us with the \
         bridge's own threads; bare UDP takes {udp} us."
    ))
}

/// Describes how many figures are better or worse, and which figure is worst.
fn verdicts(answers: &[(String, Answer)]) -> Option<String> {
    let all: Vec<Contest> = answers.iter().flat_map(|(_, answer)| contests(answer)).collect();
    let contested: Vec<&Contest> = all.iter().filter(|c| c.standing != Standing::Alone).collect();
    let count = |standing| contested.iter().filter(|contest| contest.standing == standing).count();
    if contested.is_empty() {
        return None;
    }
    let behind = contested.iter().filter(|contest| contest.standing == Standing::Behind);
    let worst = behind.filter_map(|c| Some((c.gain()?, c))).min_by(|a, b| a.0.total_cmp(&b.0));
    let worst = worst.and_then(|(_, contest)| {
        let (who, value) = contest.best.as_ref()?;
        let (figure, measure) = (&contest.figure, contest.figure.measure);
        let [ours, value] = [contest.ours, *value].map(|value| measure.show(value));
        let unit = measure.unit();
        Some(format!(
            " It is furthest behind in {} ({}, {}): {ours} {unit}, where {who} has {value} {unit}.",
            figure.question, contest.case, figure.name
        ))
    });
    Some(format!(
        "Beside the best other transport of each case, shmcast is ahead in {1} of {0} figures, level in {2}, and behind in {3}; \
         in {4} the laps disagree, and {5} have too few undisturbed laps.{6}",
        contested.len(),
        count(Standing::Ahead),
        count(Standing::Level),
        count(Standing::Behind),
        count(Standing::Open),
        count(Standing::TooFew),
        worst.unwrap_or_default()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_concluded_from_nothing() {
        let empty = |quick| vec![("latency".to_owned(), Answer::begin("latency", quick))];
        assert_eq!(paragraph(&empty(false)), "");
        assert!(paragraph(&empty(true)).contains("--quick"));
        assert!(picture(&empty(false)).is_none());
    }
}
