//! Mistakes that the simulation must find. In ordinary builds there are none.

/// A mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code, reason = "only the simulation makes mistakes"))]
pub(super) enum Mutant {
    /// Recovery reads files without a sync before.
    NoSyncBeforeReading,
    /// A sync is taken to cover what was written until its end.
    DurableAtTheEnd,
    /// A file counts as durable before its name does.
    NoDirectorySync,
    /// A failed sync is done again.
    RetryAfterFailedSync,
    /// A mended file's number is used again.
    WritesOverMended,
    /// Recovery takes in the reserve of a frame that a later file has again, or has not.
    HearsAll,
    /// Frames of another file are taken for this one's.
    NoSalt,
    /// A frame behind a hole is not compared with the one after it.
    NoChain,
    /// Whatever stands after the first bad frame is dropped.
    TruncateAtFirstBad,
    /// A reserve counts as soon as it is written.
    ReserveNotSynced,
    /// A clean record is written although a publisher may go on.
    CleanWithoutLock,
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
