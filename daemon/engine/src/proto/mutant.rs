//! Mistakes that the simulation must find. In ordinary builds there are none.

/// A mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code, reason = "only the simulation makes mistakes"))]
pub(super) enum Mutant {
    /// Blocks are appended whatever the last one is.
    NoExpectation,
    /// After trouble the writer goes on where it was, not where the log is.
    GoesOn,
    /// A log that has less than it acknowledged is not noticed.
    LossUnseen,
    /// A block is appended after an entry by its number alone.
    NumbersAlone,
    /// A writer that takes over does not say so.
    SaysNothing,
    /// A last block that does not open is passed over.
    PassesOver,
    /// The reader takes a block after a hole.
    TakesHoles,
    /// The reader takes what it has already.
    TakesTwice,
    /// The reader gives up what the log lacks without asking a writer.
    AsksNobody,
    /// The reader does not notice that the log's end has moved back.
    TrustsTheEnd,
    /// The reader does not ask whether entries were lost on their way to it.
    TrustsTheWay,
    /// The reader does not look for its place again when a block does not fit.
    NeverLooksAgain,
}

#[cfg(test)]
thread_local! {
    pub(super) static CHOSEN: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// Whether this mistake is to be made.
#[inline]
pub(super) fn is(mutant: Mutant) -> bool {
    #[cfg(test)]
    return CHOSEN.get() == Some(mutant);
    #[cfg(not(test))]
    {
        let _ = mutant;
        false
    }
}
