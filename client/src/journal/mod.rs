//! Files that keep what a channel published.

pub use shmcast_layout::journal as format;
