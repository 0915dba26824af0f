//! report.html: one page without other files and without a script. The conclusion comes first, and the machine last. The colours are light
//! or dark, as the browser is set. On a narrow screen, verdicts become cards, and each wide table gets a scroll bar.

use super::contests::{Contest, HEADER, contests};
use super::palette::{Family, Palette};
use super::plots::{Figure, Plots};
use super::provenance::{day, machine, provenance};
use super::svg::escape;
use super::text::HOW;
use super::{conclusion, text};
use crate::questions::sheet;
use crate::questions::table::{Row, Sheet};
use crate::rig::names::{IDEAL, is_shmcast};
use crate::rig::plan::{Answer, Played};
use std::fmt::Write;

const STYLE: &str = include_str!("style.css");

/// Returns the whole page.
pub fn page(answers: &[(String, Answer)]) -> String {
    let date = answers.iter().map(|(_, answer)| answer.asked_at).max().map_or(String::new(), day);
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>shmcast measured, {date}</title>\n\
         <style>\n{STYLE}</style>\n<body>\n<header><h1>shmcast, measured on {date}</h1></header>\n"
    );
    conclude(&mut out, answers);
    verdicts(&mut out, answers);
    for (name, answer) in answers {
        section(&mut out, name, answer);
    }
    provenances(&mut out, answers);
    out + "</body>\n</html>\n"
}

/// Formats words in backticks as code, and escapes the rest.
fn code(text: &str) -> String {
    let part = |(i, part): (usize, &str)| {
        if i % 2 == 1 { format!("<code>{}</code>", escape(part)) } else { escape(part) }
    };
    text.split('`').enumerate().map(part).collect()
}

fn conclude(out: &mut String, answers: &[(String, Answer)]) {
    let warning = if answers.iter().any(|(_, answer)| answer.quick) { " class=\"warning\"" } else { "" };
    let paragraph = escape(&conclusion::paragraph(answers));
    let _ = writeln!(out, "<section id=\"conclusion\">\n<div><p{warning}>{paragraph}</p>");
    nav(out, answers);
    *out += "</div>\n";
    if let Some(picture) = conclusion::picture(answers) {
        let caption = escape(conclusion::PICTURE);
        let _ = writeln!(out, "<figure><figcaption>{caption}</figcaption>\n{picture}</figure>");
    }
    *out += "</section>\n";
}

fn nav(out: &mut String, answers: &[(String, Answer)]) {
    let link = |name: &str| format!("<a href=\"#{0}\">{0}</a>", escape(name));
    let links: Vec<String> = answers.iter().map(|(name, _)| link(name)).collect();
    let links = links.join(" ");
    let _ = writeln!(
        out,
        "<nav><a href=\"#verdicts\">verdicts</a> {links} <a href=\"#machine\">machine and method</a></nav>"
    );
}

fn verdicts(out: &mut String, answers: &[(String, Answer)]) {
    let _ = writeln!(out, "<section id=\"verdicts\"><h2>Verdicts</h2>\n<p>{}</p>", code(text::VERDICTS));
    for (name, answer) in answers {
        let contests = contests(answer);
        let Some(first) = contests.first() else { continue };
        let unit = first.figure.measure.unit();
        let _ = writeln!(out, "<h3>{} <small>figures in {unit}</small></h3>", escape(name));
        verdict_table(out, &contests);
    }
    *out += "</section>\n";
}

/// Writes a table of verdicts. On a narrow screen each row becomes a card, in which each cell shows the title of its
/// column.
fn verdict_table(out: &mut String, contests: &[Contest]) {
    *out += "<table class=\"verdicts\">\n<thead><tr>";
    for (i, title) in HEADER.iter().enumerate() {
        let _ = write!(out, "<th{}>{title}</th>", verdict_class(i));
    }
    *out += "</tr></thead>\n<tbody>\n";
    for contest in contests {
        let _ = write!(out, "<tr class=\"{}\">", contest.standing.class());
        for (i, (title, cell)) in HEADER.iter().zip(contest.cells()).enumerate() {
            let class = verdict_class(i);
            let _ = write!(out, "<td{class} data-title=\"{title}\">{}</td>", escape(&cell));
        }
        *out += "</tr>\n";
    }
    *out += "</tbody></table>\n";
}

/// Returns the style class of a column in a table of verdicts. The column of the best other transport has words, and all others have
/// figures.
fn verdict_class(column: usize) -> String {
    if HEADER[column] == "best other" { String::new() } else { column_class(column, 3) }
}

/// Returns the style class of a column. Columns from `figures` on are aligned to the right.
fn column_class(column: usize, figures: usize) -> String {
    if column < figures { String::new() } else { " class=\"n\"".into() }
}

fn section(out: &mut String, name: &str, answer: &Answer) {
    let sheet = sheet(answer);
    let title = sheet.as_ref().map_or(answer.question.as_str(), |sheet| sheet.title.as_str());
    let name = escape(name);
    let _ = writeln!(out, "<section id=\"{name}\"><h2>{name}</h2>\n<p class=\"what\">{}.</p>", escape(title));
    let palette = Palette::of(answer);
    let figures = Plots::new(answer, &palette).draw();
    if !figures.is_empty() {
        legend(out, &palette);
        draw(out, &figures);
    }
    if let Some(sheet) = sheet {
        figures_table(out, &sheet);
    }
    let _ = writeln!(out, "<p>{}</p>", escape(&provenance(answer)));
    rounds(out, answer);
    *out += "</section>\n";
}

fn draw(out: &mut String, figures: &[Figure]) {
    *out += "<div class=\"plots\">\n";
    for figure in figures {
        *out += "<figure>";
        for plot in figure {
            let _ = writeln!(out, "<figcaption>{}</figcaption>\n{}", escape(&plot.title), plot.svg);
        }
        *out += "</figure>\n";
    }
    *out += "</div>\n";
}

/// Writes the legend: every contestant with its line, grouped by family.
fn legend(out: &mut String, palette: &Palette) {
    *out += "<dl class=\"legend\">\n";
    for family in Family::ALL {
        let mut members = palette.members(family).peekable();
        if members.peek().is_none() {
            continue;
        }
        let _ = write!(out, "<div><dt>{}</dt><dd>", family.name());
        for who in members {
            let _ = write!(
                out,
                "<span><svg viewBox=\"0 0 34 10\"><g class=\"line {}\"><polyline points=\"1,5 33,5\"/></g></svg>{}</span> ",
                palette.class(who),
                escape(&who.name())
            );
        }
        *out += "</dd></div>\n";
    }
    *out += "</dl>\n";
}

/// Writes a table of figures. The name of a case stands on a line of its own, so that a narrow screen has space for the figures.
fn figures_table(out: &mut String, sheet: &Sheet) {
    let columns = sheet.header.len() - 1;
    *out += "<div class=\"scroll\"><table>\n<thead><tr>";
    for (i, title) in sheet.header.iter().skip(1).enumerate() {
        let _ = write!(out, "<th{}>{}</th>", column_class(i, 1), escape(title));
    }
    *out += "</tr></thead>\n<tbody>\n";
    let mut before = "";
    for Row { cells, transport } in &sheet.rows {
        if cells[0] != before {
            let _ = writeln!(
                out,
                "<tr class=\"case\"><th colspan=\"{columns}\"><span>{}</span></th></tr>",
                escape(&cells[0])
            );
            before = &cells[0];
        }
        let class = match transport.as_str() {
            name if is_shmcast(name) => "ours",
            IDEAL => "bound",
            _ => "",
        };
        let _ = write!(out, "<tr class=\"{class}\">");
        for (i, cell) in cells.iter().skip(1).enumerate() {
            let _ = write!(out, "<td{}>{}</td>", column_class(i, 1), escape(cell));
        }
        *out += "</tr>\n";
    }
    *out += "</tbody></table></div>\n";
}

/// The columns of the table of rounds, with the unit of each.
const ROUND: [&str; 13] = [
    "contestant",
    "case",
    "lap",
    "counts",
    "cache line there and back before, ns",
    "after, ns",
    "other programs, % CPU",
    "host, % CPU",
    "hiccups of the publisher",
    "hiccups of receivers",
    "context switches",
    "lost",
    "retries",
];

/// Writes a table of all rounds. The table shows which rounds count.
fn rounds(out: &mut String, answer: &Answer) {
    *out += "<details><summary>Every round, and which count</summary>\n<div class=\"scroll\"><table>\n<thead><tr>";
    for (i, title) in ROUND.iter().enumerate() {
        let _ = write!(out, "<th{}>{title}</th>", column_class(i, 2));
    }
    *out += "</tr></thead>\n<tbody>\n";
    for round in &answer.rounds {
        *out += "<tr>";
        for (i, cell) in round_cells(round).iter().enumerate() {
            let _ = write!(out, "<td{}>{}</td>", column_class(i, 2), escape(cell));
        }
        *out += "</tr>\n";
    }
    *out += "</tbody></table></div></details>\n";
}

fn round_cells(round: &Played) -> Vec<String> {
    let (case, lap) = (round.case.clone(), round.lap.to_string());
    let o = match &round.outcome {
        Err(why) => return vec!["-".into(), case, lap, format!("failed: {why}")],
        Ok(outcome) => outcome,
    };
    let percent = |share: f64| format!("{:.1}", share * 100.0);
    let usage = o.received.usage.sum(&o.published.usage);
    vec![
        o.spec.contestant.name(),
        case,
        lap,
        if round.counts { "yes" } else { "no" }.into(),
        o.quiet.before_ns.to_string(),
        o.quiet.after_ns.to_string(),
        percent(o.quiet.others),
        percent(o.quiet.steal),
        o.published.hiccups.count.to_string(),
        o.received.hiccups.count.to_string(),
        (usage.voluntary_switches + usage.involuntary_switches).to_string(),
        o.received.lost.to_string(),
        o.published.retries.to_string(),
    ]
}

fn provenances(out: &mut String, answers: &[(String, Answer)]) {
    let _ = writeln!(
        out,
        "<section id=\"machine\"><h2>Machine and method</h2>\n<p>{}</p>\n<dl class=\"machine\">",
        code(HOW)
    );
    for (name, value) in machine(answers) {
        let _ = writeln!(out, "<div><dt>{name}</dt><dd>{}</dd></div>", escape(&value));
    }
    *out += "</dl></section>\n";
}
