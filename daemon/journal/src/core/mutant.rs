//! Planted mistakes, which the simulation must find. Ordinary builds have none.

/// A mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code, reason = "only the simulation makes mistakes"))]
pub(super) enum Mutant {
    /// Recovery reads files without syncing them first.
    NoSyncBeforeReading,
    /// A sync is assumed to cover everything that was written before the sync ended.
    DurableAtTheEnd,
    /// A file counts as durable before its name is durable.
    NoDirectorySync,
    /// A failed sync is repeated.
    RetryAfterFailedSync,
    /// The number of a repaired file is used for another file.
    WritesOverMended,
    /// Recovery uses the reserve in each unfinished file. Only the reserve in the last file that is not empty is correct.
    HearsAll,
    /// Frames of another file count as frames of this file.
    NoSalt,
    /// A frame after a hole is accepted although the next frame's chain value does not match it.
    NoChain,
    /// Everything after the first bad frame is dropped.
    TruncateAtFirstBad,
    /// A reserve counts as durable as soon as it is written, before a sync.
    ReserveNotSynced,
    /// The recorder writes a clean record (the stream's end) although a publisher can still continue.
    CleanWithoutLock,
}

#[cfg(test)]
thread_local! {
    pub(super) static CHOSEN: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// Whether this mistake must be made.
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
