//! Prepares a map. Its memory is then on the right NUMA node, in huge pages, present before the first touch, and never swapped out. If the
//! kernel refuses a step, the result has the reason, and the other steps are still done.

use super::Map;
use crate::fault;
use crate::layout::geometry::HUGE_PAGE;
use memmap2::Advice;
use nix::libc;
use std::fmt;
use std::io;
use std::time::{Duration, Instant};

/// The time limit for making huge pages: after this time, no further huge page is begun. Each huge page (2 MiB) takes some 5 ms. A huge
/// page takes much longer if real-time threads leave the kernel no time on a core, or if memory is fragmented.
const PATIENCE: Duration = Duration::from_secs(1);

/// The steps that prepare a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preparation {
    /// Take memory from this NUMA node as long as the node has some. For a file in memory, this also applies to pages that other processes
    /// touch first.
    pub numa_node: Option<u32>,
    /// Collapse pages into huge pages. This is by far the slowest step, at some 2.5 ms per MiB. After one second, no further huge page is
    /// begun. Leave this step out if opening must be quick beside real-time threads.
    pub huge_pages: bool,
    /// Touch every page now, and not at the first message.
    pub prefault: bool,
    /// Forbid the kernel to swap the memory out.
    pub lock: bool,
}

impl Preparation {
    /// No step at all. The kernel provides each page when the page is first touched.
    pub const NONE: Self = Self { numa_node: None, huge_pages: false, prefault: false, lock: false };
    /// Every step except the NUMA node, which the kernel chooses.
    pub const FULL: Self = Self { numa_node: None, huge_pages: true, prefault: true, lock: true };
}

/// One step of a preparation and its result.
#[derive(Debug)]
pub struct Step {
    /// "NUMA node", "prefault", "lock" or "huge pages".
    pub name: &'static str,
    /// `Err` holds the system's error.
    pub result: io::Result<()>,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.result, self.name) {
            (Ok(()), name) => write!(f, "{name}: yes"),
            (Err(e), "lock") if e.raw_os_error().is_some() => {
                write!(
                    f,
                    "lock: refused ({e}); pages may be swapped: raise the limit with `ulimit -l` or LimitMEMLOCK="
                )
            }
            (Err(e), "huge pages") => write!(f, "huge pages: refused ({e}); 4 KiB pages are used"),
            (Err(e), "NUMA node") => write!(f, "NUMA node: refused ({e}); the kernel chooses the memory"),
            (Err(e), name) => write!(f, "{name}: refused ({e}); first touches will fault"),
        }
    }
}

/// The number of bytes that one system call of [`Pieces`] touches. The call takes some 40 us. During this time, no other thread of the
/// process can map or unmap memory.
const PIECE: usize = 64 << 10;

/// An iterator that touches the pages of a map piece by piece. Each call of `next` touches [`PIECE_BYTES`](Self::PIECE_BYTES) on the
/// calling thread, and returns the result. If the memory is new, a call takes about 40 us.
#[derive(Debug)]
pub struct Pieces {
    map: Map,
    next: usize,
}

impl Pieces {
    /// Number of bytes that one call touches. The last piece can be shorter.
    pub const PIECE_BYTES: u64 = PIECE as u64;

    /// Iterates over all pages of `map`. The map must be writable, because touching allocates the pages that the file lacks.
    ///
    /// # Panics
    /// When the map is for reading only.
    pub(crate) fn of(map: &Map) -> Self {
        assert!(map.writable, "a reader makes no pages");
        Self { map: map.clone(), next: 0 }
    }
}

impl Iterator for Pieces {
    type Item = io::Result<()>;

    fn next(&mut self) -> Option<io::Result<()>> {
        let length = PIECE.min(self.map.map.len() - self.next);
        if length == 0 {
            return None;
        }
        let touched = loop {
            match self.map.map.advise_range(Advice::PopulateWrite, self.next, length) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                touched => break touched,
            }
        };
        self.next += length;
        Some(touched)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.map.map.len() - self.next).div_ceil(PIECE);
        (left, Some(left))
    }
}

impl ExactSizeIterator for Pieces {}

/// Makes the kernel lock each page of `map` into memory when the page is touched. This call touches no page. It takes microseconds if no
/// page is touched yet.
pub(crate) fn lock_on_fault(map: &Map) -> Step {
    // SAFETY: the range is the whole of a map that we hold. Locking changes nothing that is in it.
    let refused = unsafe { libc::mlock2(map.map.as_ptr().cast(), map.map.len(), libc::MLOCK_ONFAULT) } != 0;
    let result = if refused { Err(io::Error::last_os_error()) } else { Ok(()) };
    Step { name: "lock", result }
}

/// Whether the calling thread has a real-time policy (`SCHED_FIFO`, `SCHED_RR` or `SCHED_DEADLINE`). Threads that it starts inherit the
/// policy.
pub fn is_real_time() -> bool {
    // SAFETY: no memory is handed over; 0 is the calling thread.
    let policy = unsafe { libc::sched_getscheduler(0) } & !libc::SCHED_RESET_ON_FORK;
    matches!(policy, libc::SCHED_FIFO | libc::SCHED_RR | libc::SCHED_DEADLINE)
}

/// Prepares `map`. Returns one [`Step`] for each requested step. On a map for reading only, the steps for the NUMA node and for huge pages
/// are left out.
pub fn prepare(map: &Map, wanted: Preparation) -> Vec<Step> {
    let mut steps = Vec::new();
    // The node is set before any page is touched, because an existing page stays on its node.
    if let Some(node) = wanted.numa_node.filter(|_| map.writable) {
        steps.push(Step { name: "NUMA node", result: prefer(map, node) });
    }
    // Huge pages are made after the pages exist, because filling a hole by collapsing costs more than by touching. In a file system in
    // memory, even a reader that touches a hole allocates a page, and locking touches every page. Only the file's maker must fill holes, so
    // a reader of a file with holes neither touches nor locks pages.
    let holes = map.has_holes && !fault!("readers_fill_holes");
    let unless_holes = |step: &dyn Fn() -> io::Result<()>| if holes { Err(full_of_holes()) } else { step() };
    if wanted.prefault {
        let advice = if map.writable { Advice::PopulateWrite } else { Advice::PopulateRead };
        steps.push(Step { name: "prefault", result: unless_holes(&|| map.map.advise(advice)) });
    }
    if wanted.huge_pages && map.writable {
        steps.push(Step { name: "huge pages", result: collapse(map) });
    }
    if wanted.lock {
        steps.push(Step { name: "lock", result: unless_holes(&|| map.map.lock()) });
    }
    steps
}

fn full_of_holes() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "parts of the file have no memory yet")
}

/// Takes pages of `node` if possible. If the node has none left, takes pages of other nodes.
fn prefer(map: &Map, node: u32) -> io::Result<()> {
    const NODES: usize = 1024;
    let mut nodes = [0_u64; NODES / 64];
    let Some(word) = nodes.get_mut(node as usize / 64) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "nodes are numbered from 0 to 1023"));
    };
    *word = 1 << (node % 64);
    // The count is one too high, because the kernel subtracts one (mbind(2), under BUGS).
    let count = NODES + 1;
    // SAFETY: the range is the whole of a map that we hold, and `nodes` has as many bits as the kernel reads. A policy decides where pages
    // that do not exist yet will come from, and does not change existing pages.
    let refused = unsafe {
        let (first, bytes) = (map.map.as_mut_ptr(), map.map.len());
        libc::syscall(libc::SYS_mbind, first, bytes, libc::MPOL_PREFERRED, nodes.as_ptr(), count, 0)
    } != 0;
    if refused { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn collapse(map: &Map) -> io::Result<()> {
    const HUGE: usize = HUGE_PAGE as usize;
    /// `MADV_COLLAPSE` of Linux, which `libc` lacks for musl.
    const COLLAPSE: libc::c_int = 25;
    let start = (map.map.as_mut_ptr() as usize).next_multiple_of(HUGE);
    let end = (map.map.as_mut_ptr() as usize + map.map.len()) & !(HUGE - 1);
    if start >= end {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the map holds no aligned 2 MiB"));
    }
    let first = map.map.as_mut_ptr().wrapping_add(start - map.map.as_mut_ptr() as usize);
    collapse_each((0..end - start).step_by(HUGE), Instant::now() + PATIENCE, |offset| {
        // SAFETY: the range lies inside the map, which we hold. Collapsing changes which physical pages back it, not
        // what it holds; concurrent access by others stays valid.
        let refused = unsafe { libc::madvise(first.wrapping_add(offset).cast(), HUGE, COLLAPSE) } != 0;
        if refused { Err(io::Error::last_os_error()) } else { Ok(()) }
    })
}

/// Collapses one huge page per call, because a single call for all of them could not be stopped at the deadline. Reports the first refusal,
/// and still tries the other pages. If this kernel cannot collapse pages at all, stops after the first attempt.
fn collapse_each(
    pieces: impl ExactSizeIterator<Item = usize>,
    deadline: Instant,
    mut collapse: impl FnMut(usize) -> io::Result<()>,
) -> io::Result<()> {
    let count = pieces.len();
    let mut result = Ok(());
    for (done, offset) in pieces.enumerate() {
        if Instant::now() >= deadline {
            let why = format!("out of time after {done} of {count} huge pages");
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
        let collapsed = collapse(offset);
        if collapsed.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::EINVAL)) {
            return collapsed;
        }
        result = result.and(collapsed);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::memfd;
    use std::fs;

    /// Prepares a new map with `node` as its NUMA node. Returns the steps, and the line about the map in `/proc/self/numa_maps`.
    fn preferring(node: u32) -> (Vec<Step>, String) {
        let name = format!("prefers-{node}-{}", std::process::id());
        let file = memfd::create(&name).unwrap();
        file.set_len(1 << 20).unwrap();
        let map = Map::read_write(&file, 1 << 20).unwrap();
        let wanted = Preparation { numa_node: Some(node), prefault: true, ..Preparation::NONE };
        let steps = prepare(&map, wanted);
        let maps = fs::read_to_string("/proc/self/numa_maps").unwrap_or_default();
        let own = maps.lines().find(|line| line.contains(&name)).unwrap_or_default();
        (steps, own.to_owned())
    }

    fn has_node(node: u32) -> bool {
        fs::exists(format!("/sys/devices/system/node/node{node}")).unwrap()
    }

    #[test]
    fn memory_from_another_node_than_the_one_asked_for() {
        let test = "memory_from_another_node_than_the_one_asked_for";
        if !has_node(0) || !fs::exists("/proc/self/numa_maps").unwrap() {
            println!("SKIPPED {test}: this kernel knows no NUMA nodes");
            return;
        }
        for node in [0, 1] {
            if !has_node(node) {
                println!("SKIPPED {test}, node {node}: this host has one node");
                continue;
            }
            let (steps, own) = preferring(node);
            assert!(steps.iter().all(|step| step.result.is_ok()), "{steps:?}");
            assert!(
                own.contains(&format!("prefer:{node} ")) && own.contains(&format!("N{node}=256")),
                "{own}"
            );
        }
    }

    /// Bytes of memory that a file takes.
    fn memory(file: &fs::File) -> u64 {
        std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap()) * 512
    }

    #[test]
    fn a_reader_makes_the_pages_that_a_file_says_it_has() {
        let file = memfd::create("sparse").unwrap();
        file.set_len(64 << 20).unwrap();
        let map = Map::read_only(&file, 64 << 20).unwrap();
        let steps = prepare(&map, Preparation::FULL);
        assert_eq!(memory(&file), 0, "of a file that is one hole");
        assert!(steps.iter().all(|step| step.result.is_err()), "{steps:?}");
        assert_eq!(
            steps[0].to_string(),
            "prefault: refused (parts of the file have no memory yet); first touches will fault"
        );
        // A file with a single hole is not prepared either.
        nix::fcntl::posix_fallocate(&file, 0, (64 << 20) - 4096).unwrap();
        prepare(&Map::read_only(&file, 64 << 20).unwrap(), Preparation::FULL);
        assert_eq!(memory(&file), (64 << 20) - 4096);
        // A file whose whole memory exists is prepared, whether the memory was written or only reserved.
        nix::fcntl::posix_fallocate(&file, 0, 64 << 20).unwrap();
        let steps = prepare(&Map::read_only(&file, 64 << 20).unwrap(), Preparation::FULL);
        assert!(steps[0].result.is_ok(), "{steps:?}");
    }

    /// Returns how many kilobytes of the map with this name are in memory, and how many are locked in memory, according to the kernel.
    fn resident_and_locked(name: &str) -> [u64; 2] {
        let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
        let own = smaps.split_once(name).expect("the map is there").1;
        ["Rss:", "Locked:"].map(|field| {
            let line = own.lines().find_map(|line| line.strip_prefix(field)).expect("smaps has it");
            line.trim().trim_end_matches(" kB").parse().expect("a number")
        })
    }

    #[test]
    fn pieces_leave_a_part_of_the_map_untouched() {
        let name = format!("pieces-{}", std::process::id());
        let file = memfd::create(&name).unwrap();
        let bytes = 3 * PIECE as u64 + 4096;
        file.set_len(bytes).unwrap();
        let map = Map::read_write(&file, bytes).unwrap();
        let locked = lock_on_fault(&map);
        let is_locked = u64::from(locked.result.is_ok());
        assert_eq!(resident_and_locked(&name), [0, 0], "{locked}");
        let mut pieces = Pieces::of(&map);
        assert_eq!(pieces.len(), 4);
        assert!(pieces.next().unwrap().is_ok());
        assert_eq!(resident_and_locked(&name), [64, 64 * is_locked]);
        assert_eq!(pieces.len(), 3);
        assert!(pieces.collect::<io::Result<()>>().is_ok());
        assert_eq!(resident_and_locked(&name), [196, 196 * is_locked]);
        assert_eq!(memory(&file), bytes);
    }

    #[test]
    fn collapsing_that_stalls_is_given_up_and_one_that_fails_is_not() {
        let tried = |patience, error: fn() -> io::Result<()>| {
            let mut tried = 0;
            let result = collapse_each((0..5).step_by(1), Instant::now() + patience, |_| {
                tried += 1;
                error()
            });
            (tried, result.map_err(|e| e.kind()))
        };
        let long = Duration::from_secs(1000);
        assert_eq!(tried(long, || Ok(())), (5, Ok(())));
        assert_eq!(tried(Duration::ZERO, || Ok(())), (0, Err(io::ErrorKind::TimedOut)));
        let failing = || Err(io::Error::from_raw_os_error(libc::ENOMEM));
        assert_eq!(tried(long, failing), (5, Err(io::ErrorKind::OutOfMemory)));
        let unknown = || Err(io::Error::from_raw_os_error(libc::EINVAL));
        assert_eq!(tried(long, unknown), (1, Err(io::ErrorKind::InvalidInput)));
        let slow = || {
            std::thread::sleep(Duration::from_millis(30));
            Ok(())
        };
        assert_eq!(tried(Duration::from_millis(20), slow), (1, Err(io::ErrorKind::TimedOut)));
    }

    #[test]
    fn a_node_that_there_is_not_is_refused_and_stops_nothing() {
        for node in [1023, 1024, u32::MAX] {
            let (steps, _) = preferring(node);
            assert!(steps[0].result.is_err() && steps[1].result.is_ok(), "{node}: {steps:?}");
            assert!(steps[0].to_string().contains("the kernel chooses"), "{}", steps[0]);
        }
    }
}
