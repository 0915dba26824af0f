//! A local channel that has the messages of another host, under the same sequences as on that host.

use shmcast::hosting::fault;
use shmcast::{Mark, PublishError, Publisher};

use super::proto::wire::Meta;
use super::times::OriginTimes;

/// The local channel of a receiving end.
#[derive(Debug)]
pub struct Local {
    /// The channel's publisher; `None` between the end of a session and the beginning of the next one.
    pub publisher: Option<Publisher>,
    /// Decides which times messages get: the times of their publication on the other host, or the times of their arrival here.
    pub times: OriginTimes,
    /// The error after which the channel accepts no more messages.
    pub error: Option<String>,
    /// Counts of the messages so far.
    pub counts: LocalCounts,
}

/// The messages of a local channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LocalCounts {
    /// Messages published.
    pub published: u64,
    /// Messages that were reported to readers as lost.
    pub missing: u64,
    /// Messages that are longer than the channel allows. `missing` includes them.
    pub too_large: u64,
    /// Messages that the channel already had.
    pub behind: u64,
}

impl Local {
    /// Makes the local channel of a publisher that was just opened.
    pub fn new(publisher: Publisher, mut times: OriginTimes) -> Local {
        times.begin(publisher.clock());
        Local { publisher: Some(publisher), times, error: None, counts: LocalCounts::default() }
    }

    /// Publishes one message. If earlier messages have not arrived, first tells readers that these messages are lost. Leaves out a message
    /// that the channel already has. Does nothing while the channel is closed.
    #[inline]
    pub fn publish(&mut self, sequence: u64, data: &[u8], meta: Meta) {
        self.skip_to(sequence);
        let Some(publisher) = &mut self.publisher else { return };
        if publisher.next_sequence() > sequence {
            self.counts.behind += 1;
            return;
        }
        let (mark, time_ns) = match fault!("marks_stay_behind") {
            true => (Mark::default(), 0),
            false => (Mark { tag: meta.tag, key: meta.key }, meta.time_ns),
        };
        let published = match self.times.ticks_of(time_ns) {
            Some(time) => publisher.publish_at(data, mark, time),
            None => publisher.publish_with(data, mark),
        };
        match published {
            Ok(_) => self.counts.published += 1,
            // The message is larger than the local channel allows. It is reported to readers like any other loss.
            Err(PublishError::TooLarge(_)) => {
                let told = publisher.gap(sequence);
                self.counts.too_large += 1;
                self.counts.missing += 1;
                self.check(told);
            }
            Err(error) => self.fail(&error),
        }
    }

    /// If messages before `next` have not arrived, tells readers that these messages are lost.
    #[inline]
    pub fn skip_to(&mut self, next: u64) {
        let Some(publisher) = &mut self.publisher else { return };
        if publisher.next_sequence() < next {
            let missing = next - publisher.next_sequence();
            let told = publisher.gap(next - 1);
            self.counts.missing += missing;
            self.check(told);
        }
    }

    /// Notes an error that the publisher returned.
    #[inline]
    pub fn check(&mut self, told: Result<(), PublishError>) {
        if let Err(error) = told {
            self.fail(&error);
        }
    }

    /// Notes that the channel accepts no more messages: another publisher took it, or its sequences are used up.
    #[cold]
    fn fail(&mut self, error: &PublishError) {
        self.error.get_or_insert_with(|| error.to_string());
        self.publisher = None;
    }
}
