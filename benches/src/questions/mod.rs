//! The questions. Each has a list of rounds, and makes a table of the answer.

use crate::rig::plan::Answer;

#[cfg(feature = "bindings")]
pub mod bindings;
pub mod bridge;
pub mod churn;
pub mod fanout;
#[cfg(feature = "journal")]
pub mod journal;
pub mod latency;
pub mod oversubscribed;
mod rounds;
pub mod soak;
pub mod table;
pub mod throughput;

/// Returns the table of the answer. Returns `None` if no question here has this name.
pub fn sheet(answer: &Answer) -> Option<table::Sheet> {
    let sheet = match answer.question.as_str() {
        "latency" => latency::sheet,
        "throughput" => throughput::sheet,
        "fanout" => fanout::sheet,
        "oversubscribed" => oversubscribed::sheet,
        "churn" => churn::sheet,
        "soak" => soak::sheet,
        "bridge" => bridge::sheet,
        _ => return None,
    };
    Some(sheet(answer))
}
