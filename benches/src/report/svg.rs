//! Charts as SVG text: lines, stems, bars and spans on linear, logarithmic and percentile axes.
//!
//! Colours and fonts come from classes of the page's style sheet, so the same drawing serves light and dark pages. Screen readers read a
//! chart's title aloud. The page itself shows the title above the drawing.

use std::fmt::{self, Write};

/// The rule that gives each value a place on an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Equal differences between values have equal distances.
    Linear,
    /// Equal ratios of values have equal distances.
    Log,
    /// A percentile axis: the position of a quantile `q` is log(1 / (1 - q)), as in HdrHistogram's plots.
    Nines,
}

/// The kind of numbers on an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Nanoseconds, shown in a suitable unit.
    Time,
    /// Numbers of seconds.
    Seconds,
    /// Plain numbers.
    Count,
    /// Quantiles, shown as percentages.
    Quantile,
}

/// One axis.
#[derive(Debug, Clone)]
pub struct Axis {
    /// The axis's title; empty for none.
    pub label: String,
    /// The rule that gives each value a place.
    pub scale: Scale,
    /// The kind of numbers.
    pub unit: Unit,
    /// The value at the beginning of the axis.
    pub low: f64,
    /// The value at the end of the axis, which is more than `low`.
    pub high: f64,
}

impl Axis {
    /// Makes a logarithmic axis of times in ns. The axis covers whole decades around the values.
    pub fn times(label: &str, values: impl IntoIterator<Item = f64>) -> Self {
        let values = values.into_iter().filter(|value| *value > 0.0);
        let (low, high) = values.fold((f64::INFINITY, 0.0f64), |(low, high), v| (low.min(v), high.max(v)));
        let low = if low.is_finite() { 10f64.powf(low.log10().floor()) } else { 1.0 };
        let high = 10f64.powf(high.max(low * 1.01).log10().ceil());
        Self { label: label.into(), scale: Scale::Log, unit: Unit::Time, low, high }
    }

    /// Returns the place of a value, from 0 to 1.
    fn place(&self, value: f64) -> f64 {
        let along = |f: fn(f64) -> f64| (f(value) - f(self.low)) / (f(self.high) - f(self.low));
        let place = match self.scale {
            Scale::Linear => along(|v| v),
            Scale::Log => along(|v| v.max(f64::MIN_POSITIVE).log10()),
            Scale::Nines => along(|q| -(1.0 - q).max(1e-12).log10()),
        };
        place.clamp(0.0, 1.0)
    }

    fn ticks(&self) -> Vec<f64> {
        let inside = |value: &f64| (self.low * 0.999..=self.high * 1.001).contains(value);
        match self.scale {
            Scale::Log => {
                let decades = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
                decades.map(|n| 10f64.powi(n)).filter(inside).collect()
            }
            Scale::Nines => [0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999, 0.9999999]
                .into_iter()
                .filter(|q| *q <= self.high)
                .collect(),
            Scale::Linear => {
                let step = nice((self.high - self.low) / 4.0);
                let first = (self.low / step).ceil() as i64;
                (first..first + 8).map(|n| n as f64 * step).filter(inside).collect()
            }
        }
    }

    fn name(&self, value: f64) -> String {
        match self.unit {
            Unit::Time => time(value),
            Unit::Seconds => format!("{} s", trimmed(value)),
            Unit::Count => trimmed(value),
            Unit::Quantile => format!("{}%", trimmed(value * 100.0)),
        }
    }
}

/// Returns the least of the numbers 1, 2, 5, 10 and so on that is not below `value`.
fn nice(value: f64) -> f64 {
    let decade = 10f64.powf(value.max(1e-9).log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|n| n * decade).into_iter().find(|n| *n >= value).unwrap_or(10.0 * decade)
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.5}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats nanoseconds in a suitable unit.
pub fn time(ns: f64) -> String {
    match ns {
        ..1e3 => format!("{} ns", trimmed(ns)),
        ..1e6 => format!("{} us", trimmed(ns / 1e3)),
        ..1e9 => format!("{} ms", trimmed(ns / 1e6)),
        _ => format!("{} s", trimmed(ns / 1e9)),
    }
}

/// Escapes text for use between tags and in attributes.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A line through points.
#[derive(Debug, Clone)]
pub struct Line {
    /// The contestant's name, which a browser shows for the line under the pointer.
    pub name: String,
    /// A text beside the last point; empty for none.
    pub label: String,
    /// Style classes.
    pub class: String,
    /// The points in order of x.
    pub points: Vec<(f64, f64)>,
    /// Whether each point gets a dot.
    pub dots: bool,
}

/// A chart of lines and stems.
#[derive(Debug, Clone)]
pub struct Chart {
    /// The title, which is not drawn.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The lines. They are drawn in order, so the last one is on top.
    pub lines: Vec<Line>,
    /// Values of y that get a horizontal line and a text.
    pub marks: Vec<(f64, String)>,
    /// Vertical lines from the axis to a value, each with a style class.
    pub stems: Vec<(f64, f64, String)>,
    /// The height of the drawing. Its width is 420 in the same unit.
    pub height: f64,
}

const WIDTH: f64 = 420.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 10.0;
/// The estimated width of a letter of the smaller font. The exact width depends on the font.
const LETTER: f64 = 7.0;
const BOTTOM: f64 = 40.0;

impl Chart {
    /// Makes a chart with axes but without lines.
    pub fn new(title: String, x: Axis, y: Axis, height: f64) -> Self {
        Self { title, x, y, lines: Vec::new(), marks: Vec::new(), stems: Vec::new(), height }
    }

    /// Returns the place of a point in the drawing.
    fn at(&self, x: f64, y: f64) -> (f64, f64) {
        let height = self.height - TOP - BOTTOM;
        let across = LEFT + self.x.place(x) * (WIDTH - LEFT - RIGHT);
        (across, TOP + (1.0 - self.y.place(y)) * height)
    }

    fn frame(&self, out: &mut String) -> fmt::Result {
        let (left, bottom) = (LEFT, self.height - BOTTOM);
        let right = WIDTH - RIGHT;
        for tick in self.y.ticks() {
            let (_, y) = self.at(self.x.low, tick);
            writeln!(out, r#"<line class="grid" x1="{left}" y1="{y:.1}" x2="{right}" y2="{y:.1}"/>"#)?;
            let name = self.y.name(tick);
            writeln!(
                out,
                r#"<text class="tick" x="{:.1}" y="{:.1}" text-anchor="end">{name}</text>"#,
                left - 5.0,
                y + 4.0
            )?;
        }
        // If a name would touch the previous name, it is left out. Its grid line stays.
        let mut free_from = 0.0;
        for tick in self.x.ticks() {
            let (x, _) = self.at(tick, self.y.low);
            writeln!(out, r#"<line class="grid" x1="{x:.1}" y1="{TOP}" x2="{x:.1}" y2="{bottom:.1}"/>"#)?;
            let name = self.x.name(tick);
            let width = LETTER * name.len() as f64;
            // The last name must not go beyond the edge of the drawing.
            let (at, anchor, start) = if x + width / 2.0 > WIDTH - 4.0 {
                (WIDTH - 2.0, "end", WIDTH - 2.0 - width)
            } else {
                (x, "middle", x - width / 2.0)
            };
            if start >= free_from {
                let y = bottom + 15.0;
                writeln!(
                    out,
                    r#"<text class="tick" x="{at:.1}" y="{y:.1}" text-anchor="{anchor}">{name}</text>"#
                )?;
                free_from = start + width + LETTER;
            }
        }
        writeln!(out, r#"<path class="axis" d="M{left} {TOP}V{bottom:.1}H{right}"/>"#)?;
        writeln!(
            out,
            r#"<text class="label" x="{:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
            (left + right) / 2.0,
            self.height - 7.0,
            escape(&self.x.label)
        )
    }

    fn draw(&self, out: &mut String) -> fmt::Result {
        writeln!(out, "{}", open(&self.title, self.height))?;
        self.frame(out)?;
        for (value, _) in &self.marks {
            let ((left, y), (right, _)) = (self.at(self.x.low, *value), self.at(self.x.high, *value));
            writeln!(out, r#"<line class="mark" x1="{left:.1}" y1="{y:.1}" x2="{right:.1}" y2="{y:.1}"/>"#)?;
        }
        for (x, y, class) in &self.stems {
            let ((x, top), (_, bottom)) = (self.at(*x, *y), self.at(*x, self.y.low));
            writeln!(
                out,
                r#"<line class="stem {class}" x1="{x:.1}" y1="{bottom:.1}" x2="{x:.1}" y2="{top:.1}"/>"#
            )?;
        }
        for line in &self.lines {
            let points: Vec<(f64, f64)> = line.points.iter().map(|(x, y)| self.at(*x, *y)).collect();
            let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            write!(
                out,
                r#"<g class="line {}"><title>{}</title><polyline points="{}"/>"#,
                line.class,
                escape(&line.name),
                path.join(" ")
            )?;
            if line.dots {
                points
                    .iter()
                    .try_for_each(|(x, y)| write!(out, r#"<circle cx="{x:.1}" cy="{y:.1}" r="2.6"/>"#))?;
            }
            out.write_str("</g>\n")?;
        }
        for (value, name) in &self.marks {
            let (left, y) = self.at(self.x.low, *value);
            let (left, y) = (left + 4.0, y - 4.0);
            writeln!(out, r#"<text class="mark" x="{left:.1}" y="{y:.1}">{}</text>"#, escape(name))?;
        }
        self.labels(out)?;
        out.write_str("</svg>")
    }

    /// Writes each line's label beside the last point of the line. If the label would cover something there, moves it to
    /// the nearest free place.
    fn labels(&self, out: &mut String) -> fmt::Result {
        let ends = self.lines.iter().filter_map(|line| {
            let (x, y) = *line.points.last()?;
            (!line.label.is_empty()).then(|| (line, self.at(x, y)))
        });
        let ends: Vec<_> = ends.collect();
        let mut taken: Vec<Place> = ends.iter().map(|(_, end)| Place::of_point(*end)).collect();
        for (line, (x, y)) in &ends {
            let width = LETTER * line.label.len() as f64;
            // A label is to the right of its point, or to the left at the edge of the drawing.
            let is_left = x + 6.0 + width > WIDTH;
            let left = if is_left { x - 6.0 - width } else { x + 6.0 };
            let around = (0..60).flat_map(|step| [f64::from(step) * 2.0, f64::from(step) * -2.0]);
            let places = around.map(|down| Place { left, right: left + width, middle: y + down, half: 5.0 });
            let bottom = self.height - BOTTOM;
            let mut places = places.filter(|place| (TOP..bottom).contains(&place.middle));
            let Some(place) = places.find(|place| !taken.iter().any(|other| other.meets(place))) else {
                continue;
            };
            let (at, anchor) = if is_left { (x - 6.0, "end") } else { (left, "start") };
            let (class, label, base) = (&line.class, escape(&line.label), place.middle + 4.0);
            writeln!(
                out,
                r#"<text class="dot {class}" x="{at:.1}" y="{base:.1}" text-anchor="{anchor}">{label}</text>"#
            )?;
            taken.push(place);
        }
        Ok(())
    }
}

/// The part of a drawing that a dot or a label covers.
#[derive(Debug, Clone, Copy)]
struct Place {
    left: f64,
    right: f64,
    middle: f64,
    /// Half of the height of this part.
    half: f64,
}

impl Place {
    fn of_point((x, y): (f64, f64)) -> Self {
        Self { left: x - 3.0, right: x + 3.0, middle: y, half: 3.0 }
    }

    fn meets(&self, other: &Self) -> bool {
        self.left < other.right
            && other.left < self.right
            && (self.middle - other.middle).abs() < self.half + other.half
    }
}

impl fmt::Display for Chart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        self.draw(&mut text)?;
        f.write_str(&text)
    }
}

/// One horizontal bar.
#[derive(Debug, Clone)]
pub struct Bar {
    /// The contestant's name.
    pub name: String,
    /// Style classes.
    pub class: String,
    /// The value that the bar's length shows.
    pub value: f64,
    /// The least and the greatest figure from which the value was computed.
    pub range: (f64, f64),
}

/// Draws horizontal bars from 0 in the given order. Each bar has a whisker for its range.
pub fn bars(title: &str, bars: &[Bar]) -> String {
    const VALUES: f64 = 52.0;
    const STEP: f64 = 24.0;
    let letters = bars.iter().map(|bar| bar.name.chars().count()).max().unwrap_or(0);
    let names = 12.0 + LETTER * letters as f64;
    let most = bars.iter().map(|bar| bar.value.max(bar.range.1)).fold(f64::MIN_POSITIVE, f64::max);
    let along = |value: f64| names + value / most * (WIDTH - names - VALUES);
    let mut out = open(title, TOP + STEP * bars.len() as f64);
    for (i, bar) in bars.iter().enumerate() {
        let y = TOP + STEP * i as f64;
        let (end, low, high) = (along(bar.value), along(bar.range.0), along(bar.range.1));
        let (middle, text) = (y + 8.0, y + 12.0);
        out += &format!(
            r#"<text class="tick" x="{:.1}" y="{text:.1}" text-anchor="end">{}</text><rect class="bar {}" x="{names:.1}" y="{y:.1}" width="{:.1}" height="16"/><path class="whisker" d="M{low:.1} {middle:.1}H{high:.1}"/><text class="tick" x="{:.1}" y="{text:.1}">{:.2}</text>"#,
            names - 5.0,
            escape(&bar.name),
            bar.class,
            end - names,
            end.max(high) + 4.0,
            bar.value,
        );
        out.push('\n');
    }
    out + "</svg>"
}

fn open(title: &str, height: f64) -> String {
    let title = escape(title);
    format!(r#"<svg class="chart" viewBox="0 0 {WIDTH} {height:.0}" role="img"><title>{title}</title>"#)
}

/// A value and its range.
#[derive(Debug, Clone)]
pub struct Span {
    /// The name, which a browser shows for the span under the pointer.
    pub name: String,
    /// Style classes.
    pub class: String,
    /// The value.
    pub value: f64,
    /// The least and the greatest figure from which the value was computed.
    pub range: (f64, f64),
}

/// Spans under one heading.
#[derive(Debug, Clone)]
pub struct Group {
    /// The heading.
    pub name: String,
    /// The spans, from top to bottom.
    pub spans: Vec<Span>,
}

/// Draws horizontal spans of ratios on a logarithmic axis. A line at 1 separates worse from better.
pub fn gains(title: &str, (worse, better): (&str, &str), groups: &[Group]) -> String {
    const HEADING: f64 = 16.0;
    const STEP: f64 = 7.0;
    const HEAD: f64 = 32.0;
    const MARGIN: f64 = 12.0;
    let ends = |span: &Span| [span.range.0, span.range.1, span.value];
    let values: Vec<f64> = groups.iter().flat_map(|group| &group.spans).flat_map(ends).collect();
    let low = values.iter().copied().fold(0.5, f64::min).log10();
    let high = values.iter().copied().fold(2.0, f64::max).log10();
    let along = |value: f64| MARGIN + (value.log10() - low) / (high - low) * (WIDTH - 2.0 * MARGIN);
    let spans: usize = groups.iter().map(|group| group.spans.len()).sum();
    let height = HEAD + groups.len() as f64 * (HEADING + 6.0) + spans as f64 * STEP;
    let (mut out, one) = (open(title, height + 22.0), along(1.0));
    for decade in low.ceil() as i32..=high.floor() as i32 {
        let (x, name) = (along(10f64.powi(decade)), trimmed(10f64.powi(decade)));
        let class = if decade == 0 { "axis" } else { "grid" };
        out += &format!(r#"<path class="{class}" d="M{x:.1} 20V{height:.1}"/>"#);
        out += &format!(
            r#"<text class="tick" x="{x:.1}" y="{:.1}" text-anchor="middle">{name}x</text>"#,
            height + 15.0
        );
    }
    let head = |x: f64, anchor: &str, text: &str| {
        format!(r#"<text class="title" x="{x:.1}" y="13" text-anchor="{anchor}">{}</text>"#, escape(text))
    };
    out += &(head(one - 8.0, "end", worse) + &head(one + 8.0, "start", better) + "\n");
    let mut y = HEAD;
    for group in groups {
        y += HEADING;
        out += &format!(r#"<text class="name" x="2" y="{:.1}">{}</text>"#, y - 5.0, escape(&group.name));
        for span in &group.spans {
            let (from, to, at) = (along(span.range.0), along(span.range.1), along(span.value));
            out += &format!(
                r#"<g class="span {}"><title>{}</title><path d="M{from:.1} {y:.1}H{to:.1}"/><circle cx="{at:.1}" cy="{y:.1}" r="3"/></g>"#,
                span.class,
                escape(&span.name)
            );
            out.push('\n');
            y += STEP;
        }
        y += 6.0;
    }
    out + "</svg>"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nines_are_evenly_apart() {
        let axis =
            Axis { label: String::new(), scale: Scale::Nines, unit: Unit::Quantile, low: 0.0, high: 0.9999 };
        let places: Vec<f64> = [0.0, 0.9, 0.99, 0.999, 0.9999].map(|q| axis.place(q)).into();
        for (place, expected) in places.iter().zip([0.0, 0.25, 0.5, 0.75, 1.0]) {
            assert!((place - expected).abs() < 1e-6, "{places:?}");
        }
        assert_eq!(axis.place(1.0), 1.0);
        assert_eq!(axis.ticks().len(), 6);
        assert_eq!(axis.name(0.999), "99.9%");
    }

    #[test]
    fn times_span_whole_decades_even_of_one_value_or_none() {
        let axis = Axis::times("", [94.0, 13_000.0, 0.0]);
        assert_eq!((axis.low.round(), axis.high.round()), (10.0, 100_000.0));
        let one = Axis::times("", [100.0]);
        assert!(one.high > one.low);
        let none = Axis::times("", []);
        assert!(none.high > none.low && none.place(0.0) == 0.0);
        assert_eq!([time(94.0), time(1e5), time(2.5e6)], ["94 ns", "100 us", "2.5 ms"]);
    }

    #[test]
    fn labels_of_dots_at_one_place() {
        let axis =
            || Axis { label: String::new(), scale: Scale::Linear, unit: Unit::Count, low: 0.0, high: 1.0 };
        let line = |name: &str| Line {
            name: name.into(),
            label: name.into(),
            class: String::new(),
            points: vec![(0.5, 0.5)],
            dots: true,
        };
        let lines = ["a", "b", "c"].map(line).into();
        let chart = Chart { lines, ..Chart::new("t".into(), axis(), axis(), 200.0) }.to_string();
        let heights: Vec<&str> = chart
            .lines()
            .filter(|line| line.contains("class=\"dot "))
            .filter_map(|line| line.split(" y=\"").nth(1)?.split('"').next())
            .collect();
        assert_eq!(heights, ["89.0", "99.0", "79.0"]);
    }

    #[test]
    fn names_cannot_break_out_of_the_drawing() {
        let bar = Bar { name: "</svg><b".into(), class: String::new(), value: 1.0, range: (1.0, 1.0) };
        assert!(!bars("t", &[bar]).contains("<b"));
        assert_eq!(nice(0.3), 0.5);
    }
}
