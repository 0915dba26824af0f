//! Lists the losses that a stream's settings make possible.
//!
//! If the servers lose messages, the sender sends the messages again from its ring or journal. Messages that are in neither ring nor
//! journal become a gap.

use async_nats::jetstream::stream::{Config, PersistenceMode};
use std::time::Duration;

use crate::results::{Finding, Verdict};

/// The longest time that servers need to elect a leader. A stream that keeps blocks for a shorter time might drop blocks before anybody can
/// read them.
const ELECTION: Duration = Duration::from_secs(15);

/// Returns the losses that a stream with these settings can have, one finding for each cause.
pub(crate) fn losses_of(config: &Config) -> Vec<Finding> {
    let mut losses = vec![of_copies(config.num_replicas), of_power(config.num_replicas)];
    if config.persist_mode == Some(PersistenceMode::Async) {
        let says = "a server acknowledges blocks before it has written them, and loses these when it is killed: \
                    persist_mode = default";
        losses.push(Finding::new("loss by writing", Verdict::Doubtful, says));
    }
    losses.push(of_limits(config));
    losses
}

fn of_copies(copies: usize) -> Finding {
    let (verdict, says) = match copies {
        0 | 1 => (Verdict::Ok, "one copy: damage to its disk, or the loss of it, takes blocks".to_owned()),
        2 => (
            Verdict::Doubtful,
            "two copies: the feed stands still while one of them is away, and three cost no more than one server".to_owned(),
        ),
        _ => {
            let most = (copies - 1) / 2;
            let says = format!("{copies} copies: damage to the disks of {most} takes nothing, damage to more takes blocks");
            (Verdict::Ok, says)
        }
    };
    Finding::new("loss of a copy", verdict, says)
}

/// Returns the finding about a loss of power. The finding names a setting of the servers as a condition, because clients cannot see whether
/// the servers sync each write.
fn of_power(copies: usize) -> Finding {
    let whose = if copies <= 1 {
        "its server".to_owned()
    } else {
        format!("{} of its servers at once", copies / 2 + 1)
    };
    let says = format!(
        "a power cut of {whose} takes what was acknowledged since the last sync, by default up to two minutes of it, unless \
         their configuration has sync_interval: always, which cannot be seen from here"
    );
    Finding::new("loss of power", Verdict::Ok, says)
}

fn of_limits(config: &Config) -> Finding {
    let mut limits = Vec::new();
    if config.max_bytes > 0 {
        limits.push(format!("max_bytes = {}", config.max_bytes));
    }
    if config.max_messages > 0 {
        limits.push(format!("max_msgs = {}", config.max_messages));
    }
    if !config.max_age.is_zero() {
        limits.push(format!("max_age = {:?}", config.max_age));
    }
    let about = "loss by limits";
    if limits.is_empty() {
        let says = "no limits: blocks stay until the disk is full, and then the feed stands still";
        return Finding::new(about, Verdict::Ok, says);
    }
    let limits = limits.join(", ");
    if !config.max_age.is_zero() && config.max_age < ELECTION {
        let says = format!(
            "{limits}: the servers drop blocks sooner than they may elect a leader, which takes up to {ELECTION:?}: keep them longer"
        );
        return Finding::new(about, Verdict::Doubtful, says);
    }
    let says = format!("{limits}: a receiver that is away for longer lacks the blocks that were dropped");
    Finding::new(about, Verdict::Ok, says)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(config: &Config, about: &str) -> Option<(Verdict, String)> {
        let losses = losses_of(config);
        losses.into_iter().find(|loss| loss.about == about).map(|loss| (loss.verdict, loss.says))
    }

    #[test]
    fn each_number_of_copies_has_its_loss() {
        for (copies, verdict, words) in [
            (1, Verdict::Ok, "one copy"),
            (2, Verdict::Doubtful, "stands still"),
            (3, Verdict::Ok, "the disks of 1 takes nothing"),
            (5, Verdict::Ok, "the disks of 2 takes nothing"),
        ] {
            let config = Config { num_replicas: copies, ..Config::default() };
            let (of, says) = found(&config, "loss of a copy").unwrap();
            assert!(of == verdict && says.contains(words), "{copies}: {says}");
        }
    }

    #[test]
    fn a_power_cut_of_most_copies_is_named() {
        for (copies, words) in
            [(1, "of its server takes"), (3, "of 2 of its servers"), (5, "of 3 of its servers")]
        {
            let config = Config { num_replicas: copies, ..Config::default() };
            let (_, says) = found(&config, "loss of power").unwrap();
            assert!(says.contains(words) && says.contains("sync_interval: always"), "{says}");
        }
    }

    #[test]
    fn a_stream_that_acknowledges_before_it_writes_is_doubtful() {
        let of = |persist_mode| found(&Config { persist_mode, ..Config::default() }, "loss by writing");
        assert_eq!(of(None), None);
        assert_eq!(of(Some(PersistenceMode::Default)), None);
        let (verdict, says) = of(Some(PersistenceMode::Async)).unwrap();
        assert!(verdict == Verdict::Doubtful && says.contains("persist_mode = default"), "{says}");
    }

    #[test]
    fn each_limit_is_named_and_one_shorter_than_an_election_is_doubtful() {
        let of = |config: Config| found(&config, "loss by limits").unwrap();
        let none = of(Config { max_bytes: -1, max_messages: -1, ..Config::default() });
        assert!(none.0 == Verdict::Ok && none.1.contains("no limits"), "{}", none.1);
        let (verdict, says) = of(Config {
            max_bytes: 7,
            max_messages: 8,
            max_age: Duration::from_secs(60),
            ..Config::default()
        });
        assert_eq!(verdict, Verdict::Ok);
        for words in ["max_bytes = 7", "max_msgs = 8", "max_age = 60s"] {
            assert!(says.contains(words), "{says}");
        }
        let (verdict, says) = of(Config { max_age: Duration::from_secs(5), ..Config::default() });
        assert!(verdict == Verdict::Doubtful && says.contains("max_age = 5s"), "{says}");
    }
}
