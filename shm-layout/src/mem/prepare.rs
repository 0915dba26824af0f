//! Making a map ready: huge pages, no first-touch faults, no swapping. Each step may be refused; each refusal is
//! reported with its reason and stops nothing.

use super::Map;
use crate::layout::geometry::HUGE_PAGE;
use memmap2::Advice;
use nix::libc;
use std::fmt;
use std::io;

/// What to do to a map before use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preparation {
    /// Collapse into huge pages what can be.
    pub huge_pages: bool,
    /// Touch every page now rather than at the first message.
    pub prefault: bool,
    /// Forbid the kernel to swap it out.
    pub lock: bool,
}

impl Preparation {
    /// Nothing at all: pages arrive as they are touched.
    pub const NONE: Self = Self { huge_pages: false, prefault: false, lock: false };
    /// Everything that can be had.
    pub const FULL: Self = Self { huge_pages: true, prefault: true, lock: true };
}

/// One step of a preparation and how it went.
#[derive(Debug)]
pub struct Step {
    /// "prefault", "lock" or "huge pages".
    pub name: &'static str,
    /// `Err` carries what the system said.
    pub result: io::Result<()>,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.result, self.name) {
            (Ok(()), name) => write!(f, "{name}: yes"),
            (Err(e), "lock") => {
                write!(
                    f,
                    "lock: refused ({e}); pages may be swapped: raise the limit with `ulimit -l` or LimitMEMLOCK="
                )
            }
            (Err(e), "huge pages") => write!(f, "huge pages: refused ({e}); 4 KiB pages are used"),
            (Err(e), name) => write!(f, "{name}: refused ({e}); first touches will fault"),
        }
    }
}

/// Prepares `map`; returns one [`Step`] for each thing asked for.
pub fn prepare(map: &Map, wanted: Preparation) -> Vec<Step> {
    let mut steps = Vec::new();
    // Huge pages come after the pages exist, since collapsing fills holes at a higher cost than populating.
    if wanted.prefault {
        let advice = if map.writable { Advice::PopulateWrite } else { Advice::PopulateRead };
        steps.push(Step { name: "prefault", result: map.map.advise(advice) });
    }
    if wanted.huge_pages && map.writable {
        steps.push(Step { name: "huge pages", result: collapse(map) });
    }
    if wanted.lock {
        steps.push(Step { name: "lock", result: map.map.lock() });
    }
    steps
}

fn collapse(map: &Map) -> io::Result<()> {
    const HUGE: usize = HUGE_PAGE as usize;
    let start = (map.map.as_mut_ptr() as usize).next_multiple_of(HUGE);
    let end = (map.map.as_mut_ptr() as usize + map.map.len()) & !(HUGE - 1);
    if start >= end {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the map holds no aligned 2 MiB"));
    }
    let first = map.map.as_mut_ptr().wrapping_add(start - map.map.as_mut_ptr() as usize);
    // SAFETY: the range lies inside the map, which we hold. Collapsing changes which physical pages back it, not what
    // it holds; concurrent access by others stays valid.
    let refused = unsafe { libc::madvise(first.cast(), end - start, libc::MADV_COLLAPSE) } != 0;
    if refused { Err(io::Error::last_os_error()) } else { Ok(()) }
}
