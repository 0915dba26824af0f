//! Measures channels through servers of NATS on this machine. Nothing here passes or fails by speed.
//!
//! ```sh
//! cargo build --profile dist -p shmcast-engine --features nats --example rig
//! server=$(.ci/nats-server)
//! target/dist/examples/rig rate --server "$server" [--servers 3] [--size 1024] [--apart]
//! target/dist/examples/rig latency --server "$server"
//! target/dist/examples/rig publish --server "$server" --shmcast target/dist/shmcast
//! ```
//! `rate`: a full ring beside the bare client of the servers, in turns; `--apart` gives the servers a CPU of their own.
//! `latency`: from a publication to a reader of the far ring.
//! `publish`: the cost of a publication beside an engine that runs, that has no server, and whose server's disk is full.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement that cannot be taken is to end")]

mod latency;
mod publish;
mod rate;
mod servers;

use std::path::PathBuf;
use std::str::FromStr;

/// The words behind the command.
pub(crate) struct Words(Vec<String>);

impl Words {
    pub(crate) fn value(&self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|word| word == name)?;
        Some(self.0.get(at + 1).unwrap_or_else(|| panic!("{name} needs a value")).clone())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|word| word == name)
    }

    pub(crate) fn number<T: FromStr>(&self, name: &str, usual: T) -> T {
        self.value(name)
            .map_or(usual, |text| text.parse().unwrap_or_else(|_| panic!("{name} {text:?}: a number")))
    }

    pub(crate) fn server(&self) -> PathBuf {
        self.value("--server").expect("--server PROGRAM, such as \"$(.ci/nats-server)\"").into()
    }
}

/// The value below which this share of the sorted samples lies.
pub(crate) fn quantile(sorted: &[u64], share: f64) -> u64 {
    sorted[((sorted.len() - 1) as f64 * share) as usize]
}

pub(crate) fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn main() {
    let words = Words(std::env::args().skip(1).collect());
    match words.0.first().map(String::as_str) {
        Some("rate") => rate::run(&words),
        Some("latency") => latency::run(&words),
        Some("publish") => publish::run(&words),
        Some("play") => publish::play(&words),
        other => panic!("{other:?}: write rate, latency or publish"),
    }
}
