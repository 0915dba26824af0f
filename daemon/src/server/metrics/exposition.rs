//! Writes Prometheus's text format: families, samples and histograms.

use std::fmt::Write;

/// Names and values of a sample's labels.
pub(super) type Labels<'a> = [(&'a str, &'a str)];

#[derive(Default)]
pub(super) struct Text(pub(super) String);

impl Text {
    pub(super) fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {}", help.replace('\\', "\\\\").replace('\n', "\\n")));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    pub(super) fn sample(&mut self, name: &str, labels: &Labels<'_>, value: impl std::fmt::Display) {
        self.0.push_str(name);
        for (i, (key, label)) in labels.iter().enumerate() {
            let label = label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let open = if i == 0 { '{' } else { ',' };
            self.put(format_args!("{open}{key}=\"{label}\""));
        }
        let close = if labels.is_empty() { "" } else { "}" };
        self.line(format_args!("{close} {value}"));
    }

    pub(super) fn histogram(
        &mut self,
        name: &str,
        labels: &Labels<'_>,
        cumulative: impl Iterator<Item = (f64, u64)>,
        count: u64,
        sum: f64,
    ) {
        let bucket = format!("{name}_bucket");
        let ends = cumulative.map(|(end, count)| (end.to_string(), count));
        for (end, count) in ends.chain([("+Inf".to_owned(), count)]) {
            self.sample(&bucket, &[labels, &[("le", &end)]].concat(), count);
        }
        self.sample(&format!("{name}_sum"), labels, sum);
        self.sample(&format!("{name}_count"), labels, count);
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        self.put(line);
        self.0.push('\n');
    }

    fn put(&mut self, text: std::fmt::Arguments<'_>) {
        self.0.write_fmt(text).expect("writing to a string does not fail");
    }
}
