//! `shmcast bridge send` and `recv` with `--nats`: sends or receives a channel through servers of NATS JetStream.

use super::{Alarm, Interrupted, LOOK, Stop, held, left_early, missed, outcome, progress, tell_away};
use crate::cli::figures::{Ns, grouped, size};
use crate::cli::say::{note, print_json};
use crate::cli::waiting::{Waiting, rest};
use anyhow::{Result, bail};
use serde_json::json;
use shmcast::{PublisherBuilder, SubscriberBuilder};
use shmcast_bridge::spec::BridgeSpec;
use shmcast_bridge::status::{Latency, Life, Phase};
use shmcast_engine::status::{ReceiveCounters, SendCounters};
use shmcast_engine::{EngineError, Receiver, ReceiverOptions, Sender, SenderOptions};
use std::collections::HashSet;
use std::process::ExitCode;
use std::time::Duration;

/// Pause between two searches for a stream that does not exist yet.
const RETRY: Duration = Duration::from_millis(500);

/// Options of a sender.
pub(super) struct Sending {
    pub(super) until_end: bool,
    /// Whether the sender waits for a channel that does not exist yet.
    pub(super) waits: bool,
    pub(super) json: bool,
}

pub(super) fn send(
    spec: &BridgeSpec,
    channel: &SubscriberBuilder,
    how: &Sending,
    waiting: &mut Waiting<'_>,
) -> Result<ExitCode> {
    if !cfg!(feature = "nats") {
        return Err(EngineError::NotBuilt.into());
    }
    let stop = waiting.stop;
    let Some(is_channel_new) = wait_for(channel, how.waits, waiting)? else {
        return left_early(&spec.channel, how.until_end, stop);
    };
    let options = SenderOptions {
        ends_with_channel: how.until_end,
        is_channel_new,
        stop: stop.signal(),
        ..SenderOptions::default()
    };
    let mut sender = match Sender::start(spec, channel.clone(), options) {
        Err(EngineError::Stopped) => return left_early(&spec.channel, how.until_end, stop),
        started => started?,
    };
    let (name, progress) = (&spec.channel, progress());
    let (mut missed, mut lost) = (Alarm { told: 0 }, Alarm { told: 0 });
    let (mut link, mut session, mut is_fenced, mut interrupted) = (LinkReport::default(), None, 0, None);
    let mut is_away = false;
    while !sender.is_finished() {
        std::thread::sleep(LOOK);
        if stop.is_set() {
            if sender.life().phase() == Phase::Running && how.until_end {
                interrupted = Some(early(name, stop));
            }
            sender.leave();
        }
        let counters = sender.counters();
        if let Some(now) = sender.life().session().filter(|now| session != Some(*now)) {
            session = Some(now);
            progress.suspend(|| note!("{name}: sending session {now}"));
        }
        link.look(&progress, name, counters.is_connected == 1, sender.trouble());
        tell_away(name, sender.life(), &progress, &mut is_away);
        if counters.is_fenced != is_fenced {
            is_fenced = counters.is_fenced;
            let what =
                if is_fenced == 1 { "another bridge writes the stream: waiting" } else { "writing again" };
            progress.suspend(|| note!("{name}: {what}"));
        }
        progress.set_message(sent(&counters));
        progress.tick();
        missed.look(&progress, counters.messages_missed, |more| {
            format!("{name}: overtaken by the publisher: {} messages were not sent", grouped(more))
        });
        lost.look(&progress, counters.lost_by_engine, |more| {
            format!(
                "{name}: the servers lost {} messages that they had acknowledged; they are sent again",
                grouped(more)
            )
        });
    }
    sender.join();
    progress.finish_and_clear();
    let (counters, acks) = (sender.counters(), Latency::from(&sender.acks()));
    report_sent(how.json, name, sender.life(), &counters, &acks)?;
    outcome(name, sender.life(), counters.messages_missed, interrupted)
}

/// Returns the text of the progress line.
fn sent(counters: &SendCounters) -> String {
    let behind = counters.behind().map(|behind| format!("{} behind", grouped(behind)));
    format!(
        "sent {} messages in {} blocks, {}",
        grouped(counters.messages),
        grouped(counters.blocks),
        behind.unwrap_or_else(|| "no answer yet".to_owned()),
    )
}

fn early(name: &str, stop: &Stop) -> Interrupted {
    stop.interrupted(format!("{name}: INTERRUPTED before the channel's end"))
}

/// Waits for the channel if `waits` is set. Returns whether the channel did not exist at first; `None` after a signal.
fn wait_for(channel: &SubscriberBuilder, waits: bool, waiting: &mut Waiting<'_>) -> Result<Option<bool>> {
    let mut is_new = false;
    loop {
        match channel.clone().page(false).open() {
            Ok(_) => return Ok(Some(is_new)),
            Err(e) if e.is_unknown_channel() && !waits => bail!("{e} (--wait-channel)"),
            Err(e) if !(waits && (e.is_unknown_channel() || e.is_passing())) => return Err(e.into()),
            Err(e) if !waiting.goes_on(&e) => return Ok(None),
            Err(e) => is_new |= e.is_unknown_channel(),
        }
        rest(waiting.stop);
    }
}

fn report_sent(
    as_json: bool,
    name: &str,
    life: &Life,
    counters: &SendCounters,
    acks: &Latency,
) -> Result<()> {
    if as_json {
        let session = life.session().map(|session| session.to_string());
        return print_json(&json!({
            "channel": name, "direction": "send", "engine": "nats", "session": session, "send": counters.shown(), "acks": acks,
        }));
    }
    note!(
        "{name}: sent {} messages; stored {} blocks ({}) up to sequence {}, {} missed; answers p50 {}, p99 {}, max {}",
        grouped(counters.messages),
        grouped(counters.blocks),
        size(counters.bytes),
        counters.stored.saturating_sub(1),
        grouped(counters.messages_missed),
        Ns(acks.p50_ns),
        Ns(acks.p99_ns),
        Ns(acks.max_ns),
    );
    Ok(())
}

pub(super) fn receive(
    spec: &BridgeSpec,
    channel: PublisherBuilder,
    until_end: bool,
    as_json: bool,
    stop: &Stop,
) -> Result<ExitCode> {
    let Some(mut receiver) = start_receiver(spec, &channel, stop)? else {
        return left_early(&spec.channel, until_end, stop);
    };
    let (name, progress) = (&spec.channel, progress());
    let (mut missing, mut holes) = (Alarm { told: 0 }, Alarm { told: 0 });
    let (mut link, mut session, mut interrupted) = (LinkReport::default(), None, None);
    let mut held_by = HashSet::new();
    while !receiver.is_finished() {
        std::thread::sleep(LOOK);
        if until_end && receiver.life().phase() == Phase::Ending {
            receiver.stop();
        } else if stop.is_set() {
            if receiver.life().phase() == Phase::Running && until_end {
                interrupted = Some(early(name, stop));
            }
            receiver.stop();
        }
        let counters = receiver.counters();
        if let Some(now) = receiver.life().session().filter(|now| session != Some(*now)) {
            session = Some(now);
            progress.suspend(|| note!("{name}: receiving session {now}{}", receiver.life().beginning()));
        }
        link.look(&progress, name, counters.is_connected == 1, receiver.trouble_of_servers());
        // Each gate is reported once, even if it holds messages up again.
        if let Some(held) = receiver.life().held_up().filter(|held| held_by.insert(held.clone())) {
            progress.suspend(|| note!("{name}: {held}"));
        }
        progress.set_message(format!(
            "published {} messages, {} for ever missing",
            grouped(counters.messages_published),
            grouped(counters.messages_missing)
        ));
        progress.tick();
        holes.look(&progress, counters.holes, |_| {
            format!("{name}: the stream lacks messages; asking its writer")
        });
        missing.look(&progress, counters.messages_missing, |more| {
            missed(name, counters.messages_too_large, more)
        });
    }
    receiver.join();
    progress.finish_and_clear();
    report_received(as_json, name, receiver.life(), &receiver.counters())?;
    outcome(name, receiver.life(), receiver.counters().messages_missing, interrupted)
}

/// Starts the receiver. If the stream does not exist yet, waits until the sender creates it. The wait continues even if the servers cannot
/// be reached for a time. Returns `None` after a signal.
fn start_receiver(spec: &BridgeSpec, channel: &PublisherBuilder, stop: &Stop) -> Result<Option<Receiver>> {
    let mut said = None;
    while !stop.is_set() {
        let options = ReceiverOptions { stop: stop.signal(), ..ReceiverOptions::default() };
        let missing = match Receiver::start(spec, channel.clone(), options) {
            Err(EngineError::Stopped) => return Ok(None),
            Err(e @ EngineError::NoStream { .. }) => e,
            Err(e @ EngineError::Connect { .. }) if said.is_some() => e,
            started => return Ok(Some(started?)),
        };
        let missing = missing.to_string();
        if said.as_ref() != Some(&missing) {
            note!("{missing}; waiting for it");
            said = Some(missing);
        }
        std::thread::sleep(RETRY);
    }
    Ok(None)
}

fn report_received(as_json: bool, name: &str, life: &Life, counters: &ReceiveCounters) -> Result<()> {
    if as_json {
        let session = life.session().map(|session| session.to_string());
        return print_json(&json!({
            "channel": name, "direction": "receive", "engine": "nats", "session": session, "receive": counters,
        }));
    }
    note!(
        "{name}: published {} messages up to sequence {}, {} missing{}; {} blocks, {} messages mended",
        grouped(counters.messages_published),
        counters.next_sequence.saturating_sub(1),
        grouped(counters.messages_missing),
        held(counters.messages_held),
        grouped(counters.blocks),
        grouped(counters.mended),
    );
    Ok(())
}

/// The state of the connection that was reported last.
struct LinkReport {
    is_connected: bool,
    why: Option<String>,
}

impl Default for LinkReport {
    fn default() -> LinkReport {
        LinkReport { is_connected: true, why: None }
    }
}

impl LinkReport {
    fn look(
        &mut self,
        progress: &indicatif::ProgressBar,
        name: &str,
        is_connected: bool,
        why: Option<String>,
    ) {
        // The state is reported only when it has changed. Digits are ignored in the comparison, because a count that has grown in the text
        // is no change of the state.
        let words =
            |why: &Option<String>| why.as_deref().map(|why| why.replace(|c: char| c.is_ascii_digit(), ""));
        if (is_connected, words(&why)) == (self.is_connected, words(&self.why)) {
            return;
        }
        let text = match (is_connected, &why) {
            (true, None) => "connected again".to_owned(),
            (true, Some(why)) => why.clone(),
            (false, None) => {
                "the connection to the servers broke: what is published waits in the ring".to_owned()
            }
            (false, Some(why)) => format!("no connection to the servers: {why}"),
        };
        progress.suspend(|| note!("{name}: {text}"));
        (self.is_connected, self.why) = (is_connected, why);
    }
}
