//! The questions: which rounds to play, and the table that answers.

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

/// The answer's table, if the question is one of these.
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
