//! `shmcast doctor`: shows the results of the checks of this host. The checks are in [`crate::doctor`].

use std::{fmt::Write as _, io::IsTerminal, path::PathBuf, process::ExitCode};

use clap::builder::PossibleValuesParser;
use comfy_table::{Attribute, Cell, Color, ColumnConstraint, ContentArrangement, Table, Width, presets};

use crate::{
    cpu_list::CpuList,
    doctor::{self, Area, Finding, Host, Report, Root, Status},
};

/// Check this host for settings that cost latency, and show the commands that correct them
///
/// Reads settings and changes nothing. On a terminal it prints a table. For each finding that is not a pass, it also prints why the finding
/// matters and which command corrects it. Into a pipe it prints one line per check: status, area, id, finding and command, separated by
/// tabs.
///
/// Exits with 0 when nothing failed (warnings and unknowns count as no failure), and 1 when a check failed or the checks could not be run.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Read a copy of a host's files below DIR instead of this host
    ///
    /// The output of each tool on that host is read from DIR/commands, for example "DIR/commands/ethtool -c eth0".
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,

    /// Run only these checks, in full detail; with the word all, run every check [default: every check, with details of those that do not
    /// pass]
    #[arg(value_name = "CHECK", hide_possible_values = true,
          value_parser = PossibleValuesParser::new(doctor::ids().into_iter().chain(["all"])))]
    checks: Vec<String>,

    /// Check these CPUs, on which the publisher and its readers run [default: the isolated ones, or all if none is isolated]
    #[arg(long, value_name = "LIST")]
    cpu: Option<CpuList>,

    /// Group by status, worst first, rather than by area
    #[arg(long)]
    worst_first: bool,

    /// Print everything as one JSON object
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  shmcast doctor --worst-first           what to mend first
  shmcast doctor --cpu 2-7               for a publisher and readers on CPUs 2 to 7
  shmcast doctor swap                    one check with all it read
  shmcast doctor --json | jq '.checks[] | select(.status == \"fail\")'";

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let host = Host::new(Root::at(&args.root)?, args.cpu.clone())?;
    let only = if args.checks.iter().any(|check| check == "all") { &[] } else { &args.checks[..] };
    let report = doctor::examine(&host, only);
    let text = if args.json {
        serde_json::to_string_pretty(&report)?
    } else if std::io::stdout().is_terminal() {
        for_eyes(&report, args.worst_first, !args.checks.is_empty(), columns(), is_colour_wanted())
    } else {
        for_pipes(&report, args.worst_first)
    };
    super::say::print(text)?;
    Ok(if report.count.fail > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Width of the table in columns: the terminal's own, or 80 if there is none.
fn columns() -> u16 {
    Table::new().width().filter(|&columns| columns >= 60).unwrap_or(80)
}

/// Whether to use colour: on a terminal, unless `NO_COLOR` is set (<https://no-color.org>).
fn is_colour_wanted() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Returns the findings in groups with headings, in the order of the table.
fn groups(report: &Report, worst_first: bool) -> Vec<(&'static str, Vec<&Finding>)> {
    let group = |word, belongs: &dyn Fn(&Finding) -> bool| {
        (word, report.checks.iter().filter(|f| belongs(f)).collect::<Vec<_>>())
    };
    let groups = match worst_first {
        true => Status::WORST_FIRST.map(|status| group(status.word(), &|f| f.status == status)).to_vec(),
        false => Area::ALL.map(|area| group(area.word(), &|f| f.area == area)).to_vec(),
    };
    groups.into_iter().filter(|(_, findings)| !findings.is_empty()).collect()
}

fn for_pipes(report: &Report, worst_first: bool) -> String {
    let mut out = String::new();
    for finding in groups(report, worst_first).into_iter().flat_map(|(_, findings)| findings) {
        let command = finding.mend.as_ref().map_or("", |mend| &mend.command);
        let fields = [finding.status.word(), finding.area.word(), finding.id, &finding.says, command];
        // A value read from the host could contain anything. A tab or newline in it must not shift the
        // columns.
        let fields = fields.map(|field| field.replace(['\t', '\n'], " "));
        out.push_str(&fields.join("\t"));
        out.push('\n');
    }
    out
}

fn for_eyes(report: &Report, worst_first: bool, detailed: bool, columns: u16, colour: bool) -> String {
    let mut out = String::new();
    let groups = groups(report, worst_first);
    for (heading, findings) in &groups {
        let _ = writeln!(out, "{heading}\n{}", table(findings, columns, colour).trim_fmt());
    }
    let explained =
        |f: &&&Finding| detailed || matches!(f.status, Status::Fail | Status::Warn) || f.mend.is_some();
    let explained: Vec<&&Finding> =
        groups.iter().flat_map(|(_, findings)| findings).filter(explained).collect();
    if !explained.is_empty() {
        out.push_str("\nwhat to do\n");
    }
    for finding in explained {
        explain(&mut out, finding, detailed, usize::from(columns));
    }
    let count = report.count;
    let cpus = report.cpus.as_ref().map_or_else(|| "unknown".to_owned(), ToString::to_string);
    let _ = writeln!(
        out,
        "\n{} fail, {} warn, {} unknown, {} pass; CPUs judged: {cpus}; kernel {}",
        count.fail,
        count.warn,
        count.unknown,
        count.pass,
        report.kernel.as_deref().unwrap_or("unknown")
    );
    out
}

/// Widths of the status and id columns with their padding. All groups have the same widths, so that the columns are aligned.
const STATUS_COLUMNS: u16 = 11;
const ID_COLUMNS: u16 = 21;

fn table(findings: &[&Finding], columns: u16, colour: bool) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(columns);
    if colour {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    for finding in findings {
        let paint = match finding.status {
            Status::Fail => Color::Red,
            Status::Warn => Color::Yellow,
            Status::Unknown => Color::DarkGrey,
            Status::Pass => Color::Green,
        };
        let status = Cell::new(format!("  {}", finding.status.word())).fg(paint);
        let status =
            if finding.status == Status::Fail { status.add_attribute(Attribute::Bold) } else { status };
        table.add_row([status, Cell::new(finding.id), Cell::new(shorten(&finding.says))]);
    }
    table.set_constraints([
        ColumnConstraint::Absolute(Width::Fixed(STATUS_COLUMNS)),
        ColumnConstraint::Absolute(Width::Fixed(ID_COLUMNS)),
        ColumnConstraint::LowerBoundary(Width::Fixed(20)),
    ]);
    table
}

/// The longest path that the table shows whole. A longer path would make the table wider than 80 columns. The list of readings shows each
/// path whole.
const LONG_PATH_CHARS: usize = 34;

/// Returns `says` with each long path cut to its last two names.
fn shorten(says: &str) -> String {
    let short = |word: &str| match word.rsplit('/').nth(1) {
        Some(parent) if word.starts_with('/') && word.len() > LONG_PATH_CHARS => {
            format!(".../{parent}/{}", word.rsplit('/').next().unwrap_or_default())
        }
        _ => word.to_owned(),
    };
    says.split(' ').map(short).collect::<Vec<_>>().join(" ")
}

fn explain(out: &mut String, finding: &Finding, detailed: bool, columns: usize) {
    let _ = writeln!(out, "\n  {} ({})", finding.id, finding.status.word());
    paragraph(out, "why ", finding.why, columns);
    if detailed {
        for reading in &finding.read {
            paragraph(
                out,
                "read",
                &format!("{} = {}", reading.path, reading.value.replace('\n', "; ")),
                columns,
            );
        }
    }
    if let Some(mend) = &finding.mend {
        // The command is never wrapped: it must survive copy and paste.
        let _ = writeln!(out, "    run  {}", mend.command);
        paragraph(out, "keep", &mend.persist, columns);
        #[cfg(feature = "tune")]
        if crate::tune::MEASURED.iter().any(|measured| measured.check == finding.id) {
            let _ = writeln!(out, "    or   sudo shmcast tune --apply (--persist), which --undo takes back");
        }
    }
}

/// Writes `text` in lines of at most `columns`, indented below `label`. A word that is too long stays whole.
fn paragraph(out: &mut String, label: &str, text: &str, columns: usize) {
    let mut line = format!("    {label}");
    for word in text.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > columns && !line.trim().is_empty() {
            let _ = writeln!(out, "{line}");
            line = " ".repeat(8);
        }
        line.push(' ');
        line.push_str(word);
    }
    let _ = writeln!(out, "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let dir = tempfile::tempdir().expect("a temporary directory");
        std::fs::create_dir(dir.path().join("proc")).expect("a directory");
        let swaps = "Filename Type Size Used Priority\n/dev/sda2 partition 4096 1024 -2\n";
        std::fs::write(dir.path().join("proc/swaps"), swaps).expect("a file");
        let root = Root::at(dir.path()).expect("a root");
        doctor::examine(&Host::new(root, None).expect("no CPU named"), &[])
    }

    #[test]
    fn a_table_wider_than_the_terminal() {
        for columns in [80, 60, 200] {
            let text = for_eyes(&report(), false, false, columns, false);
            let table = text.split("what to do").next().expect("the part before it");
            let widest = table.lines().map(|line| line.trim_end().chars().count()).max();
            assert!(widest <= Some(usize::from(columns)), "{columns} columns:\n{table}");
        }
    }

    #[test]
    fn a_failure_hidden_below_passes() {
        let text = for_eyes(&report(), true, false, 80, false);
        assert!(text.starts_with("fail\n"), "{text}");
        let first = for_pipes(&report(), true);
        assert!(first.starts_with("fail\tmemory\tswap\t1 MiB in use on 1 devices\tswapoff -a\n"), "{first}");
    }

    #[test]
    fn a_check_left_out_of_some_output() {
        let report = report();
        let lines = for_pipes(&report, false);
        assert_eq!(lines.lines().count(), doctor::ids().len());
        assert!(lines.lines().all(|line| line.split('\t').count() == 5), "{lines}");
        let table = for_eyes(&report, false, false, 80, false);
        for id in doctor::ids() {
            assert!(table.contains(&format!("  {id}  ")), "{id} is not in the table");
        }
    }

    #[test]
    fn colour_codes_in_plain_output() {
        assert!(!for_eyes(&report(), false, true, 80, false).contains('\u{1b}'));
        assert!(for_eyes(&report(), false, true, 80, true).contains('\u{1b}'));
    }

    #[test]
    fn a_command_broken_by_wrapping() {
        let text = for_eyes(&report(), false, false, 60, false);
        let swapoff = text.lines().find(|line| line.contains("run  swapoff"));
        assert_eq!(swapoff, Some("    run  swapoff -a"));
        let long = paragraphed("a word and anotherwordthatislongerthanthelineitself end");
        assert!(long.contains("anotherwordthatislongerthanthelineitself"), "{long}");
    }

    fn paragraphed(text: &str) -> String {
        let mut out = String::new();
        paragraph(&mut out, "why ", text, 30);
        out
    }
}
