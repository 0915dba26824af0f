//! Planted mistakes, which the simulation must find. Ordinary builds have none.

/// The mistakes that can be planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code, reason = "only the simulation makes mistakes"))]
pub(super) enum Mutant {
    /// A planted mistake: recovery reads files without syncing them first.
    NoSyncBeforeReading,
    /// A planted mistake: a sync counts for all frames that were written before it ended. It covers only those written before it began.
    DurableAtTheEnd,
    /// A planted mistake: a file counts as durable before its name is durable.
    NoDirectorySync,
    /// A planted mistake: a failed sync is repeated. The file should be abandoned.
    RetryAfterFailedSync,
    /// A planted mistake: another file gets the number of a repaired file.
    WritesOverMended,
    /// A planted mistake: recovery uses the reserves in all unfinished files. It should use only that of the last file that is not empty.
    HearsAll,
    /// A planted mistake: frames of another file count as frames of this file.
    NoSalt,
    /// A planted mistake: a frame after a hole is accepted, although the next frame's chain value does not match it.
    NoChain,
    /// A planted mistake: recovery drops all frames after the first bad frame.
    TruncateAtFirstBad,
    /// A planted mistake: a reserve counts as durable as soon as it is written, before a sync.
    ReserveNotSynced,
    /// A planted mistake: the recorder writes a clean record, which says that nothing follows, although a publisher can still publish.
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
