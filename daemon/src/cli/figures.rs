//! The format of figures: that of the demo, and sizes.

use bytesize::ByteSize;

pub(super) use shmcast_demo::figures::{Ns, grouped, table};

/// A size in binary units.
pub(super) fn size(bytes: u64) -> String {
    ByteSize::b(bytes).to_string()
}
