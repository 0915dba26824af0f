//! The logs in sorted form: publications with their messages, subscriptions with their events, and actions of the runner.

use crate::log::{Deed, Entry, Fact, Found, GateFigures, Time, read};
use crate::payload::{Identity, Sizes};
use crate::story::{Net, Profile, Shape, Start};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Everything that happened in a story.
#[derive(Debug, Default)]
pub struct History {
    /// The profile of the story.
    pub profile: Option<Profile>,
    /// Whether the channels are files although the profile can have a daemon.
    pub files: bool,
    /// The channels that were strict from the beginning. On these, each publisher had its own segment.
    pub strict: Vec<String>,
    /// The networks of the hosts, if the story has several hosts.
    pub net: Option<Net>,
    /// The names of all channels.
    pub channels: Vec<String>,
    /// The channels that a daemon records at the end.
    pub recorded: Vec<String>,
    /// The runner's actions.
    pub deeds: Vec<Entry<Deed>>,
    /// Channels that were opened for publishing, in order of time.
    pub publications: Vec<Publication>,
    /// Subscriptions.
    pub subscriptions: Vec<Subscription>,
    /// Failed openings.
    pub failed: Vec<Failure>,
    /// The channels of readers that were killed while they subscribed.
    pub unfinished: Vec<String>,
    /// The boards and gates that the channels have at the beginning, by the name of the channel.
    pub shapes: BTreeMap<String, Shape>,
    /// The searches for keys on boards.
    pub looks: Vec<Look>,
}

/// An opening that failed.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The actor.
    pub actor: String,
    /// Whether the actor wanted to publish.
    pub is_publisher: bool,
    /// The channel.
    pub channel: String,
    /// The time when the opening began.
    pub began: Time,
    /// The kind of the error.
    pub kind: String,
    /// The text of the error.
    pub why: String,
}

/// A search for a key on a channel's board.
#[derive(Debug, Clone)]
pub struct Look {
    /// The actor.
    pub actor: String,
    /// The channel.
    pub channel: String,
    /// The times at which the search began and had ended.
    pub began: Time,
    pub ended: Time,
    /// The number of the key.
    pub key: u32,
    /// The result; `None` if the key is not on the board.
    pub found: Option<Found>,
    /// The kind of the error, if the search failed.
    pub error: Option<String>,
}

/// Messages of a publisher that a gate refused.
#[derive(Debug, Clone)]
pub struct Refusals {
    /// The gate.
    pub gate: String,
    /// Whether the refused calls were calls that never wait.
    pub tried: bool,
    /// The number of refused messages.
    pub count: u32,
    /// The time at which the last refused call began, and a time after its end.
    pub last: Time,
    pub until: Time,
}

/// One opening of a channel for publishing, and the messages that were published after that.
#[derive(Debug, Clone)]
pub struct Publication {
    /// The publication's number, which is in each of its messages.
    pub number: u32,
    /// The actor.
    pub actor: String,
    /// The channel.
    pub channel: String,
    /// The time when opening began.
    pub opening: Time,
    /// Whether the channel was certainly opened. Otherwise the opening failed, or the actor was killed during the call.
    pub is_open: bool,
    /// The first sequence that the publication can use.
    pub next: u64,
    /// The epoch.
    pub epoch: u64,
    /// Size of the ring.
    pub capacity: u64,
    /// Largest message.
    pub largest: usize,
    /// The published messages and gaps, in order.
    pub sends: Vec<Send>,
    /// The sessions that the publisher announced.
    pub sessions: Vec<String>,
    /// The time when the publisher began to close; `None` if it did not close.
    pub closing: Option<Time>,
    /// The mode that the publisher asked for, and the mode of the channel that it got. `None` if the publisher asked for no mode.
    pub mode: Option<[u32; 2]>,
    /// Errors of the publisher's calls, each with its time, the call and the text.
    pub errors: Vec<(Time, &'static str, String)>,
    /// The reports of the publisher about its gates, in order of time.
    pub gates: Vec<Entry<Vec<GateFigures>>>,
    /// The messages that gates refused.
    pub refusals: Vec<Refusals>,
    /// Calls that took long.
    pub late: Vec<Entry<Fact>>,
}

/// A run of sequences that a publisher used.
#[derive(Debug, Clone)]
pub struct Send {
    /// The first sequence.
    pub next: u64,
    /// The greatest number of sequences that the publisher could have used.
    pub most: u64,
    /// The number of sequences that the publisher certainly used.
    pub least: u64,
    /// The time when the call began.
    pub began: Time,
    /// The time by which the messages were certainly sent. `None` if the actor was killed before that.
    pub done: Option<Time>,
    /// The messages; `None` for a gap.
    pub messages: Option<(Identity, Sizes)>,
    /// Whether the publish times of the messages are long past.
    pub old: bool,
}

/// One subscription, and the events that it received.
#[derive(Debug, Clone)]
pub struct Subscription {
    /// The actor.
    pub actor: String,
    /// The channel.
    pub channel: String,
    /// The place at which the subscription should begin.
    pub start: Start,
    /// Whether the reader is on the far host, to which a bridge sends the channel.
    pub far: bool,
    /// The number of the reader's host.
    pub host: usize,
    /// Whether tools should see the reader.
    pub has_page: bool,
    /// Whether the reader is allowed to read from a journal.
    pub history: bool,
    /// Whether the reader continues at the latest message after a lap.
    pub skip: bool,
    /// The journal's directory, if an actor read only a journal. The oracle judges the contents of a journal like the events of a reader.
    pub journal: Option<String>,
    /// The time when subscribing began.
    pub subscribing: Time,
    /// The time when the subscription was open.
    pub at: Time,
    /// The first sequence of the subscription.
    pub next: u64,
    /// The actor's observations and actions.
    pub seen: Vec<Entry<Fact>>,
    /// Whether an error ended the subscription.
    pub has_failed: bool,
    /// The gate that the reader took.
    pub gate: Option<String>,
    /// Whether the reader skips old messages of a key when it is too far behind.
    pub conflates: bool,
    /// The time when the subscription certainly ended; `None` if it lasted until the actor's end.
    pub ended: Option<Time>,
}

impl History {
    /// Reads the logs in a directory.
    ///
    /// # Errors
    /// The reason why a log cannot be read.
    pub fn read(logs: &Path) -> Result<Self> {
        let runner = logs.join("runner");
        let mut history =
            Self { deeds: read(&runner).with_context(|| runner.display().to_string())?, ..Self::default() };
        if let Ok(story) = crate::story::Story::load(&logs.join("story")) {
            history.profile = Some(story.profile);
            history.files = !story.setup.has_daemon(story.profile);
            history.net = story.setup.net;
            for channel in story.setup.channels {
                let name = channel.name;
                history.shapes.extend(channel.shape.map(|shape| (name.clone(), shape)));
                history.strict.extend(channel.strict.then(|| name.clone()));
                history.recorded.extend(channel.journal.map(|_| name.clone()));
                history.channels.push(name);
            }
        }
        let mut actors = BTreeMap::new();
        for entry in fs::read_dir(logs).with_context(|| logs.display().to_string())? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "actor") {
                let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                actors.insert(name, read(&path).with_context(|| path.display().to_string())?);
            }
        }
        for (actor, entries) in actors {
            history.add_actor(&actor, entries);
        }
        Ok(history)
    }

    /// Adds the log of an actor.
    pub fn add_actor(&mut self, actor: &str, entries: Vec<Entry<Fact>>) {
        let mut publishing: Option<Publication> = None;
        let mut reading: Option<Subscription> = None;
        for Entry { at, what } in entries {
            let Some(what) = self.take_of_board(actor, at, what, reading.as_mut()) else { continue };
            match what {
                Fact::Opening { channel, publisher } => {
                    self.publications.extend(publishing.take());
                    publishing = Some(Publication::new(publisher, actor, channel, at));
                }
                Fact::Subscribing { channel, host, start, page, history, skip } => {
                    self.subscriptions.extend(reading.take());
                    let (far, host, has_page) = (host > 0, host.into(), page);
                    let begun = Subscription::new(actor, channel, at);
                    reading = Some(Subscription { start, far, host, has_page, history, skip, ..begun });
                }
                Fact::Reading { channel, dir, next } => {
                    self.subscriptions.extend(reading.take());
                    reading = Some(Subscription::of_journal(actor, channel, dir, (at, next)));
                }
                Fact::OpenFailed { kind, why } => {
                    let of = publishing.as_ref().map(|it| (it.channel.clone(), it.opening));
                    let of = of.or(reading.as_ref().map(|it| (it.channel.clone(), it.subscribing)));
                    let (channel, began) = of.unwrap_or_default();
                    let (actor, is_publisher) = (actor.to_owned(), publishing.is_some());
                    self.failed.push(Failure { actor, is_publisher, channel, began, kind, why });
                    (publishing, reading) = (None, None);
                }
                Fact::Subscribed { next, refused } => {
                    if let Some(reading) = &mut reading {
                        (reading.at, reading.next) = (at, next);
                        reading.has_page &= !refused;
                    }
                }
                Fact::Closing => {
                    if let Some(publishing) = &mut publishing {
                        publishing.closing = Some(at);
                    }
                }
                Fact::Closed => {
                    self.publications.extend(publishing.take());
                    self.subscriptions.extend(reading.take());
                }
                other => {
                    if let Some(publishing) = &mut publishing {
                        publishing.note(at, other);
                    } else if let Some(reading) = &mut reading {
                        reading.has_failed |=
                            matches!(&other, Fact::RecvFailed { kind, .. } if kind != "Unmapped");
                        reading.seen.push(Entry { at, what: other });
                    }
                }
            }
        }
        self.publications.extend(publishing);
        self.subscriptions.extend(reading);
        self.publications.sort_by_key(|publication| publication.opening);
        self.unfinished
            .extend(self.subscriptions.iter().filter(|it| it.at == 0).map(|it| it.channel.clone()));
        self.subscriptions.retain(|subscription| subscription.at > 0);
    }

    /// Takes a fact about a board or a gate from the log of an actor. Also notes the end of the subscription `reading`. Returns any other
    /// fact.
    fn take_of_board(
        &mut self,
        actor: &str,
        at: Time,
        what: Fact,
        reading: Option<&mut Subscription>,
    ) -> Option<Fact> {
        match (what, reading) {
            (Fact::Looked { channel, began, key, found, error }, _) => {
                let actor = actor.to_owned();
                self.looks.push(Look { actor, channel, began, ended: at, key, found, error });
                None
            }
            (Fact::Joined { gate, conflates }, Some(reading)) => {
                (reading.gate, reading.conflates) = (gate, conflates);
                None
            }
            (what, Some(reading)) if ends_a_subscription(&what) => {
                reading.ended = reading.ended.or(Some(at));
                Some(what)
            }
            (what, _) => Some(what),
        }
    }

    /// Returns a channel's publications in order of time. A publication is one opening of a channel for publishing, with the messages that
    /// follow. Openings that might have failed are left out.
    pub fn on<'a>(&'a self, channel: &'a str) -> impl Iterator<Item = &'a Publication> {
        self.publications
            .iter()
            .filter(move |publication| publication.is_open && publication.channel == channel)
    }

    /// Returns the publication with this number.
    pub fn publication(&self, number: u32) -> Option<&Publication> {
        self.publications.iter().find(|publication| publication.number == number)
    }
}

/// Whether a subscription of the actor has ended at this action.
fn ends_a_subscription(fact: &Fact) -> bool {
    match fact {
        Fact::Closing | Fact::Closed | Fact::Subscribing { .. } => true,
        Fact::RecvFailed { kind, .. } => kind != "Unmapped",
        _ => false,
    }
}

impl Subscription {
    /// Makes a subscription that stands for the reading of a journal. `at` is the time at which the journal was read, and `next` is the
    /// journal's first sequence.
    fn of_journal(actor: &str, channel: String, dir: String, (at, next): (Time, u64)) -> Self {
        Self { history: true, journal: Some(dir), at, next, ..Self::new(actor, channel, at) }
    }

    /// Makes a subscription that is not open yet. An actor began to open it at `subscribing`.
    fn new(actor: &str, channel: String, subscribing: Time) -> Self {
        Self {
            actor: actor.to_owned(),
            channel,
            start: Start::Oldest,
            far: false,
            host: 0,
            has_page: false,
            history: false,
            skip: false,
            journal: None,
            subscribing,
            at: 0,
            next: 0,
            seen: Vec::new(),
            has_failed: false,
            gate: None,
            conflates: false,
            ended: None,
        }
    }
}

impl Publication {
    fn new(number: u32, actor: &str, channel: String, opening: Time) -> Self {
        Self {
            number,
            actor: actor.to_owned(),
            channel,
            opening,
            is_open: false,
            next: 0,
            epoch: 0,
            capacity: 0,
            largest: 0,
            sends: Vec::new(),
            sessions: Vec::new(),
            closing: None,
            mode: None,
            errors: Vec::new(),
            gates: Vec::new(),
            refusals: Vec::new(),
            late: Vec::new(),
        }
    }

    fn note(&mut self, at: Time, fact: Fact) {
        match fact {
            Fact::Opened { next, epoch, capacity, largest } => {
                (self.next, self.epoch, self.capacity, self.largest) = (next, epoch, capacity, largest);
                self.is_open = true;
            }
            Fact::Publishing { first, count, sizes, next, old } => {
                let (messages, done) = (Some((first, sizes)), None);
                self.sends.push(Send { next, most: count.into(), least: 0, began: at, done, messages, old });
            }
            Fact::Gapping { to, next } => {
                let most = (to + 1).saturating_sub(next);
                let (messages, done, old) = (None, None, false);
                self.sends.push(Send { next, most, least: 0, began: at, done, messages, old });
            }
            Fact::Published { count, error, .. } => {
                self.close_send(at, count.into());
                self.errors.extend(error.map(|error| (at, "publish", error)));
            }
            Fact::Gapped { next, error } => {
                let first = self.sends.last().map_or(next, |send| send.next);
                self.close_send(at, next.saturating_sub(first));
                self.errors.extend(error.map(|error| (at, "gap", error)));
            }
            Fact::Gates { gates } => self.gates.push(Entry { at, what: gates }),
            Fact::Refused { gate, tried, count, last } => {
                self.refusals.push(Refusals { gate, tried, count, last, until: at });
            }
            late @ Fact::Late { .. } => self.late.push(Entry { at, what: late }),
            Fact::Mode { wanted, found } => self.mode = Some([wanted, found]),
            Fact::Session { identity, error } => {
                self.sessions.push(identity);
                self.errors.extend(error.map(|error| (at, "session", error)));
            }
            _ => {}
        }
    }

    fn close_send(&mut self, at: Time, count: u64) {
        if let Some(send) = self.sends.last_mut() {
            (send.least, send.most, send.done) = (count, count, Some(at));
        }
    }

    /// Returns the sequence after the last sequence that was certainly used before `time`.
    pub fn surely_before(&self, time: Time) -> u64 {
        let done = self.sends.iter().filter(|send| send.done.is_some_and(|done| done < time));
        done.map(|send| send.next + send.least).max().unwrap_or(self.next).max(self.next)
    }

    /// Returns the first sequence from which on all sequences are certainly unused.
    pub fn perhaps(&self) -> u64 {
        self.sends
            .iter()
            .map(|send| send.next.saturating_add(send.most))
            .max()
            .unwrap_or(self.next)
            .max(self.next)
    }

    /// Returns the sequence of the publisher's message with this number, if the message could have been published.
    pub fn sequence_of(&self, counter: u32) -> Option<u64> {
        self.sends.iter().find_map(|send| {
            let (first, _) = send.messages?;
            let at = u64::from(counter.checked_sub(first.counter)?);
            (at < send.most).then_some(send.next + at)
        })
    }

    /// Returns the message that could have this sequence, and its size class.
    pub fn message_at(&self, sequence: u64) -> Option<(Identity, Sizes)> {
        self.sends.iter().find_map(|send| {
            let (first, sizes) = send.messages?;
            let at = sequence.checked_sub(send.next).filter(|at| *at < send.most)?;
            Some((Identity { counter: first.counter + at as u32, ..first }, sizes))
        })
    }

    /// Returns the size class of the message with this counter.
    pub fn sizes_of(&self, counter: u32) -> Option<Sizes> {
        self.send_of(counter)?.messages.map(|(_, sizes)| sizes)
    }

    /// Returns the run of sequences that has the message with this counter.
    pub fn send_of(&self, counter: u32) -> Option<&Send> {
        self.sends.iter().find(|send| {
            send.messages.is_some_and(|(first, _)| {
                counter.checked_sub(first.counter).is_some_and(|at| u64::from(at) < send.most)
            })
        })
    }
}

/// Returns the last sequence and the epoch of a channel, and the mode that the channel should have.
pub(super) fn last<'a>(history: &'a History, channel: &str) -> Option<(u64, u64, Option<&'a str>)> {
    history.deeds.iter().find_map(|entry| match &entry.what {
        Deed::Last { channel: name, sequence, epoch, mode, .. } if name == channel => {
            Some((*sequence, *epoch, mode.as_deref()))
        }
        _ => None,
    })
}
