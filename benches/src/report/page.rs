//! report.html: one page that needs nothing else. No script; colours follow the reader's light or dark; tables scroll
//! by themselves on a phone.

use super::contests::{HEADER, Standing, rows};
use super::plots::{Plot, class, plots};
use super::svg::escape;
use super::text::{HOW, machines};
use super::{day, provenance};
use crate::questions::sheet;
use crate::rig::plan::{Answer, Played};
use crate::rig::spec::Contestant;
use crate::transport::{IDEAL, SHMCAST};
use anyhow::Result;
use std::fmt::Write;

const STYLE: &str = include_str!("style.css");

/// The whole page.
///
/// # Errors
/// When a histogram cannot be read.
pub fn page(answers: &[(String, Answer)]) -> Result<String> {
    let date = answers.iter().map(|(_, answer)| answer.asked_at).max().map_or(String::new(), day);
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>shmcast measured, {date}</title>\n\
         <style>\n{STYLE}</style>\n<body>\n<header><h1>shmcast, measured</h1>\n<p>{}</p></header>\n",
        code(HOW)
    );
    if answers.iter().any(|(_, answer)| answer.quick) {
        out += "<p class=\"warning\">Some of this was asked with <code>--quick</code>, which checks delivery: times and \
                rates there mean nothing.</p>\n";
    }
    nav(&mut out, answers);
    machine(&mut out, answers);
    standings(&mut out, answers);
    for (name, answer) in answers {
        section(&mut out, name, answer)?;
    }
    Ok(out + "</body>\n</html>\n")
}

/// Words in backticks as code, and the rest escaped.
fn code(text: &str) -> String {
    let part = |(i, part): (usize, &str)| {
        if i % 2 == 1 { format!("<code>{}</code>", escape(part)) } else { escape(part) }
    };
    text.split('`').enumerate().map(part).collect()
}

fn nav(out: &mut String, answers: &[(String, Answer)]) {
    let link = |name: &str| format!("<a href=\"#{0}\">{0}</a>", escape(name));
    let links: Vec<String> = answers.iter().map(|(name, _)| link(name)).collect();
    let _ = writeln!(out, "<nav><a href=\"#standings\">ahead and behind</a> {}</nav>", links.join(" "));
}

fn machine(out: &mut String, answers: &[(String, Answer)]) {
    let machines = machines(answers);
    for (questions, rows) in &machines {
        let of = if machines.len() > 1 { format!(" for {}", escape(questions)) } else { String::new() };
        let _ = writeln!(out, "<section class=\"machine\"><h2>Machine{of}</h2>\n<dl>");
        for (name, value) in rows {
            let _ = writeln!(out, "<div><dt>{name}</dt><dd>{}</dd></div>", escape(value));
        }
        *out += "</dl></section>\n";
    }
}

fn standings(out: &mut String, answers: &[(String, Answer)]) {
    let all: Vec<_> = answers.iter().flat_map(|(_, answer)| rows(answer)).collect();
    let contested: Vec<_> = all.iter().filter(|(cells, _)| cells[4] != "-").collect();
    let count = |standing| contested.iter().filter(|(_, s)| *s == standing).count();
    let _ = writeln!(
        out,
        "<section id=\"standings\"><h2>Ahead and behind</h2>\n<p>Of {} figures that others have too, shmcast is ahead in \
         {}, level in {} and behind in {}; for {} there are too few undisturbed laps to say. Ahead or behind is what is so in every lap; the ideal ring is a bound and \
         does not count as another.</p>",
        contested.len(),
        count(Standing::Ahead),
        count(Standing::Level),
        count(Standing::Behind),
        count(Standing::Unclear)
    );
    let rows = all.iter().map(|(cells, standing)| {
        let class = if cells[4] == "-" { "alone" } else { standing.name() };
        (cells.to_vec(), class)
    });
    table(out, &HEADER.map(String::from), 3, rows);
    *out += "</section>\n";
}

fn section(out: &mut String, name: &str, answer: &Answer) -> Result<()> {
    let sheet = sheet(answer);
    let title = sheet.as_ref().map_or(answer.question.as_str(), |sheet| sheet.title.as_str());
    let heading = format!("<h2>{}</h2>\n<p class=\"what\">{}.</p>", escape(name), escape(title));
    let _ =
        writeln!(out, "<section id=\"{}\">{heading}\n<p>{}</p>", escape(name), escape(&provenance(answer)));
    let plots = plots(answer)?;
    legend(out, &plots);
    *out += "<div class=\"plots\">\n";
    for plot in &plots {
        let _ = writeln!(out, "<figure>{}</figure>", plot.svg);
    }
    *out += "</div>\n";
    if let Some(sheet) = sheet {
        let rows = sheet.rows.into_iter().map(|row| {
            let class = match row.transport.as_str() {
                SHMCAST => "ours",
                IDEAL => "bound",
                _ => "",
            };
            (row.cells, class)
        });
        table(out, &sheet.header, 2, rows);
    }
    rounds(out, answer);
    *out += "</section>\n";
    Ok(())
}

/// Everybody who is in one of the plots.
fn legend(out: &mut String, plots: &[Plot]) {
    let mut all: Vec<&Contestant> = Vec::new();
    for who in plots.iter().flat_map(|plot| &plot.who) {
        if !all.contains(&who) {
            all.push(who);
        }
    }
    if all.is_empty() {
        return;
    }
    *out += "<ul class=\"legend\">\n";
    for who in all {
        let _ = writeln!(
            out,
            "<li><svg viewBox=\"0 0 34 10\"><g class=\"line {}\"><polyline points=\"1,5 33,5\"/></g></svg>{}</li>",
            class(who),
            escape(&who.name())
        );
    }
    *out += "</ul>\n";
}

/// A table whose columns from `figures` on are figures.
fn table<'a>(
    out: &mut String,
    header: &[String],
    figures: usize,
    rows: impl Iterator<Item = (Vec<String>, &'a str)>,
) {
    let cells = |out: &mut String, tag: &str, cells: &[String]| {
        for (i, cell) in cells.iter().enumerate() {
            let class = if i < figures { "" } else { " class=\"n\"" };
            let _ = write!(out, "<{tag}{class}>{}</{tag}>", escape(cell));
        }
    };
    *out += "<div class=\"scroll\"><table>\n<thead><tr>";
    cells(out, "th", header);
    *out += "</tr></thead>\n<tbody>\n";
    let mut before = String::new();
    for (row, class) in rows {
        // A line between groups of the same first cell.
        let group = if row[0] == before { "" } else { " group" };
        before.clone_from(&row[0]);
        let _ = write!(out, "<tr class=\"{class}{group}\">");
        cells(out, "td", &row);
        *out += "</tr>\n";
    }
    *out += "</tbody></table></div>\n";
}

/// Every round that was played, so that nobody has to take our word for which ones count.
fn rounds(out: &mut String, answer: &Answer) {
    let _ = writeln!(out, "<details><summary>All {} rounds, and which count</summary>", answer.rounds.len());
    let header = [
        "case",
        "lap",
        "contestant",
        "counts",
        "line there and back, before",
        "after",
        "others",
        "steal",
        "hiccups of the publisher",
        "of receivers",
        "context switches",
        "lost",
        "retries",
    ];
    table(out, &header.map(String::from), 3, answer.rounds.iter().map(|round| (round_cells(round), "")));
    *out += "</details>\n";
}

fn round_cells(round: &Played) -> Vec<String> {
    let mut cells = vec![round.case.clone(), round.lap.to_string()];
    match &round.outcome {
        Err(why) => cells.extend(["-".into(), format!("failed: {why}")]),
        Ok(o) => {
            let share = |share: f64| format!("{:.1} %", share * 100.0);
            let usage = o.received.usage.sum(&o.published.usage);
            cells.extend([
                o.spec.contestant.name(),
                if round.counts { "yes" } else { "no" }.into(),
                format!("{} ns", o.quiet.before_ns),
                format!("{} ns", o.quiet.after_ns),
                share(o.quiet.others),
                share(o.quiet.steal),
                o.published.hiccups.count.to_string(),
                o.received.hiccups.count.to_string(),
                (usage.voluntary_switches + usage.involuntary_switches).to_string(),
                o.received.lost.to_string(),
                o.published.retries.to_string(),
            ]);
        }
    }
    cells
}
