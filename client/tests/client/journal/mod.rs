//! Reading journals: in order, by sequence, by time, damaged, and by a stranger's program.

mod book;
mod lookup;
mod merge;
mod rot;
mod stranger;
