//! Planted mistakes, which the simulation or the tests with real servers must find. Release builds have none.
//!
//! A build with debug assertions makes the mistake that the variable `SHMCAST_ENGINE_MISTAKE` names.

/// The mistakes that can be planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code, reason = "only tests make mistakes"))]
pub(crate) enum Mutant {
    /// A planted mistake: an append does not name the previous entry, so the log stores the block after any entry.
    NoExpectation,
    /// A planted mistake: after an error, the writer continues after the last message that it had sent. It should continue after the last
    /// message in the log.
    GoesOn,
    /// A planted mistake: the writer does not notice that the log lost acknowledged blocks, and it answers no requests for messages.
    LossUnseen,
    /// A planted mistake: an append names only the number of the previous entry. It should also give the entry's name.
    NumbersAlone,
    /// A planted mistake: a writer that takes over appends no takeover block.
    SaysNothing,
    /// A planted mistake: the writer skips a last block that it cannot open.
    PassesOver,
    /// A planted mistake: the reader accepts a block after a hole.
    TakesHoles,
    /// A planted mistake: the reader accepts messages that it already has.
    TakesTwice,
    /// A planted mistake: the reader reports missing messages as lost, without asking a writer.
    AsksNobody,
    /// A planted mistake: the reader asks only the writers, although the log's leader can have messages that the reader's copy lacks.
    AsksNoLeader,
    /// A planted mistake: a sender answers all repetitions of a request in order. It should answer only the newest one.
    AnswersInOrder,
    /// A planted mistake: if no writer has the first missing message of a hole, the reader gives up all missing messages of the hole.
    GivesUpAll,
    /// A planted mistake: the reader gives up messages that no writer has. It should first search the log again.
    TrustsTheCopy,
    /// A planted mistake: the reader does not notice that the log's end has moved back.
    TrustsTheEnd,
    /// A planted mistake: the reader does not check whether entries were lost between the log and itself.
    TrustsTheWay,
    /// A planted mistake: the reader does not search the log again when a block's sequences do not follow the previous ones.
    NeverLooksAgain,
}

#[cfg(test)]
thread_local! {
    pub(super) static CHOSEN: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// Whether this mistake must be made.
#[inline]
pub(crate) fn is(mutant: Mutant) -> bool {
    #[cfg(test)]
    return CHOSEN.get() == Some(mutant);
    #[cfg(all(not(test), debug_assertions))]
    return *PLANTED == Some(mutant);
    #[cfg(not(any(test, debug_assertions)))]
    {
        let _ = mutant;
        false
    }
}

/// The mistake that this process makes on purpose. An unknown name panics, so a misspelt name makes its test fail.
#[cfg(all(not(test), debug_assertions))]
static PLANTED: std::sync::LazyLock<Option<Mutant>> = std::sync::LazyLock::new(|| {
    let name = std::env::var_os("SHMCAST_ENGINE_MISTAKE")?;
    match name.to_str() {
        Some("LossUnseen") => Some(Mutant::LossUnseen),
        Some("TakesHoles") => Some(Mutant::TakesHoles),
        _ => panic!("SHMCAST_ENGINE_MISTAKE names no mistake: {}", name.display()),
    }
});
