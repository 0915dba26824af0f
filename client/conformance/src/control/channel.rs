//! One generation of a daemon's channel.

use super::{open, welcome};
use crate::model::Model;
use crate::scribe::{STATE, Scribe, Sort, checksum, empty};
use crate::script::{Charter, Packet, Scene, Script, Word};
use crate::stage::{Failure, Stage, nameless, same};
use crate::testee::{Answer, Testee};
use anyhow::Result;
use std::fs::File;
use std::sync::Arc;

/// One generation of a channel, with the messages that were published in it.
pub(crate) struct Channel {
    pub(crate) generation: u64,
    pub(crate) is_strict: bool,
    pub(crate) first: u64,
    pub(crate) restarted: u64,
    pub(crate) stage: Stage,
    pub(crate) model: Model,
    pub(crate) scribe: Scribe,
    pub(crate) charter: Charter,
    pub(crate) page: Arc<File>,
    pub(crate) lock: Arc<File>,
}

impl Channel {
    /// Makes a channel with the messages 1 to 10.
    pub(crate) fn new(generation: u64, is_strict: bool) -> Result<Self> {
        let charter = Charter::new()?;
        charter.set(generation, Word::Open)?;
        Self::after(generation, is_strict, 1, 1, charter)
    }

    /// Makes a second or later generation of the channel, with ten new messages.
    pub(crate) fn after(
        generation: u64,
        is_strict: bool,
        first: u64,
        restarted: u64,
        charter: Charter,
    ) -> Result<Self> {
        let mut words = empty();
        words[8] = words[8].wrapping_add(generation);
        checksum(&mut words);
        (words[56], words[57]) = (first, generation);
        words[48] = first - 1;
        // The epoch continues, unless the sequences restart.
        words[STATE] = (generation - restarted) << 8;
        let mut model = Model::new(words.clone());
        let mut scribe = Scribe::take(words, (0, first), 1000);
        for i in 0..10 {
            scribe.publish(&[generation as u8; 48], i, false, 2000 + u64::from(i));
        }
        scribe.stores.drain(..).for_each(|store| model.apply(&store));
        let stage = Stage::of(&model.words)?;
        let new = || nameless().map(Arc::new);
        let (page, lock) = (new()?, new()?);
        Ok(Self { generation, is_strict, first, restarted, stage, model, scribe, charter, page, lock })
    }

    /// Makes the next generation, which begins with the sequence `first`. Messages of the present generation stay valid only below `first`.
    pub(crate) fn succeeded(&self, first: u64) -> Result<Self> {
        let next =
            Self::after(self.generation + 1, self.is_strict, first, self.restarted, self.charter.clone())?;
        self.charter.set(next.generation, Word::Open)?;
        self.charter.set(self.generation, Word::Cut(first))?;
        Ok(next)
    }

    pub(crate) fn segment(&self) -> Result<Arc<File>> {
        Ok(Arc::new(File::open(self.stage.path().join("t/segment"))?))
    }

    pub(crate) fn said(&self, reply: &str) -> String {
        let (generation, first, restarted, strict) =
            (self.generation, self.first, self.restarted, self.is_strict);
        format!(
            r#"{{"reply":"{reply}","generation":{generation},"first":{first},"restarted":{restarted},"strict":{strict}}}"#
        )
    }

    pub(crate) fn scene(&self) -> Result<Scene> {
        let files = vec![
            self.segment()?,
            Arc::clone(&self.lock),
            Arc::clone(&self.page),
            Arc::clone(&self.charter.0),
        ];
        let subscribed = Packet { text: self.said("subscribed").into(), files };
        Ok(Scene { hello: vec![welcome()], subscribe: vec![subscribed], gate: Vec::new() })
    }

    pub(crate) fn moved(&self) -> Result<Packet> {
        Ok(Packet { text: self.said("moved").into(), files: vec![self.segment()?, Arc::clone(&self.lock)] })
    }

    /// Publishes one more message.
    pub(crate) fn publish(&mut self) -> Result<()> {
        self.scribe.publish(b"one more", 99, false, 3000);
        for store in self.scribe.stores.drain(..) {
            self.stage.apply(&store)?;
            self.model.apply(&store);
        }
        Ok(())
    }

    /// Returns the events for the messages from the sequence `from` to the sequence before `below`.
    pub(crate) fn events(&self, from: u64, below: u64) -> Vec<String> {
        let told =
            self.model.records.iter().filter(|record| record.sequence >= from && record.sequence < below);
        told.filter_map(|record| match &record.sort {
            Sort::Event(text) => Some(text.clone()),
            Sort::Epoch(epoch) => Some(format!("epoch {epoch}")),
            _ => None,
        })
        .collect()
    }

    /// Starts a scripted daemon with this channel, and lets the testee open the channel at its oldest
    /// message.
    pub(crate) fn opened(
        &self,
        testee: &mut Testee,
        watch: bool,
    ) -> Result<std::result::Result<Script, Failure>> {
        let script = Script::start(self.scene()?)?;
        let answer = open(testee, &script, "oldest", watch)?;
        Ok(same("open".into(), &Answer::done(), &answer).map(|()| script))
    }
}
