//! Structs of options. Each begins with its size in bytes. A program built with an older header passes a smaller struct, and the missing
//! options are zero. A program built with a newer header passes a larger struct. The larger struct is accepted if the additional options
//! are zero.

use crate::codes::option as given;
use crate::error::Failure;
use crate::guard::{numbers, text};
use shmcast::{
    Board, BoardSpec, Client, ClockKind, EndWatch, History, Preparation, Publisher, PublisherBuilder, Resume,
    Start, Subscriber, SubscriberBuilder, Wait,
};
use std::ffi::c_char;
use std::time::{Duration, UNIX_EPOCH};

/// The C type `shmcast_publish_options`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[allow(missing_docs, reason = "the header explains each")]
pub struct PublishOptions {
    pub size: u32,
    pub flags: u32,
    pub dir: *const c_char,
    pub socket: *const c_char,
    pub capacity: u64,
    pub max_message: u64,
    pub mode: u32,
    pub prepare: u32,
    pub schema_id: u64,
    pub schema_name: *const c_char,
    pub labels: *const c_char,
    pub continue_from: *const c_char,
    pub numa_node: u32,
    pub reserved: u32,
    pub board_start: u32,
    pub board_stop: u32,
    pub board_keys: u64,
    pub board_value: u64,
    pub board_remove_tag: u16,
    pub board_reserved: [u16; 3],
    pub gates: *const Gate,
    pub gate_count: usize,
}

/// The C type `shmcast_gate`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[allow(missing_docs, reason = "the header explains each")]
pub struct Gate {
    pub name: *const c_char,
    pub flags: u32,
    pub lag_percent: u32,
    pub lag_bytes: u64,
    pub wait_ns: u64,
    pub reserved: u64,
}

/// The C type `shmcast_subscribe_options`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[allow(missing_docs, reason = "the header explains each")]
pub struct SubscribeOptions {
    pub size: u32,
    pub flags: u32,
    pub dir: *const c_char,
    pub socket: *const c_char,
    pub start: u32,
    pub wait: u32,
    pub resume: u32,
    pub prepare: u32,
    pub start_sequence: u64,
    pub spins: u32,
    pub reserved: u32,
    pub sleep_ns: u64,
    pub longest_nap_ns: u64,
    pub wait_for_channel_ns: u64,
    pub schema_id: u64,
    pub start_time_ns: u64,
    pub journal: *const c_char,
    pub tags: *const u16,
    pub tag_count: usize,
    pub conflate_behind: u64,
    pub gate: *const c_char,
}

/// The least size of options: their own size and the flags.
const SMALLEST: u32 = 2 * size_of::<u32>() as u32;

/// Structs for which each bit pattern is a valid value, even all zeros.
///
/// # Safety
/// Each bit pattern must be a valid value, and the struct must begin with its size as a `u32`.
unsafe trait Options: Copy {}
// SAFETY: all fields are integers and raw pointers, and the first field is the size.
unsafe impl Options for PublishOptions {}
// SAFETY: all fields are integers and raw pointers, and the first field is the size.
unsafe impl Options for SubscribeOptions {}

/// Copies the caller's options. Options that the caller's struct lacks are zero, which is the default of every option.
///
/// # Safety
/// `options` is null, or points to readable memory whose first four bytes are its size in bytes, as a `u32`.
unsafe fn copy<T: Options>(options: *const T) -> Result<T, Failure> {
    // SAFETY: by the trait's contract, all zeros are a value.
    let mut ours: T = unsafe { std::mem::zeroed() };
    if options.is_null() {
        return Ok(ours);
    }
    // SAFETY: by this function's contract, the size can be read. `read_unaligned` needs no alignment.
    let size = unsafe { options.cast::<u32>().read_unaligned() };
    // Every version's structs have a multiple of 8 bytes. Another size would cut a pointer.
    if !(SMALLEST..=4096).contains(&size) || !size.is_multiple_of(SMALLEST) {
        return Err(Failure::argument(format_args!(
            "options of {size} B are none: begin with SHMCAST_PUBLISH_OPTIONS or SHMCAST_SUBSCRIBE_OPTIONS, which set the size"
        )));
    }
    let given = size as usize;
    // SAFETY: by this function's contract, `given` bytes can be read.
    let bytes = unsafe { std::slice::from_raw_parts(options.cast::<u8>(), given) };
    let known = given.min(size_of::<T>());
    if bytes[known..].iter().any(|byte| *byte != 0) {
        return Err(Failure::argument(format_args!(
            "options of {size} B ask for something that this library, version {}, does not have: install that of the program's header",
            env!("CARGO_PKG_VERSION")
        )));
    }
    // SAFETY: each of the two buffers has at least `known` bytes, and they do not overlap. By the trait's contract, any bytes are a
    // valid value.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), (&raw mut ours).cast::<u8>(), known) };
    Ok(ours)
}

/// The place of a channel.
enum Place<'a> {
    Default,
    Directory(&'a str),
    Daemon(Client),
}

/// Returns the place of a channel that `dir` or `socket` names.
///
/// # Safety
/// `dir` and `socket` are null or texts that end with a zero.
unsafe fn place<'a>(dir: *const c_char, socket: *const c_char) -> Result<Place<'a>, Failure> {
    // SAFETY: by this function's contract.
    let dir = unsafe { text("dir", dir) }?;
    // SAFETY: by this function's contract.
    let socket = unsafe { text("socket", socket) }?;
    Ok(match (dir, socket) {
        (None, None) => Place::Default,
        (Some(dir), None) => Place::Directory(dir),
        (None, Some("")) => Place::Daemon(Client::connect()?),
        (None, Some(socket)) => Place::Daemon(Client::at(socket)?),
        (Some(_), Some(_)) => {
            return Err(Failure::argument(
                "a channel lies in a directory or belongs to a daemon: give dir or socket, not both",
            ));
        }
    })
}

/// Returns the steps of preparation that `flags` selects. `numa_node` is `None` if the options have no field for a node.
fn preparation(flags: u32, numa_node: Option<u32>) -> Result<Option<Preparation>, Failure> {
    let has = |flag| flags & flag != 0;
    let mut steps = given::PREPARE_PREFAULT | given::PREPARE_HUGE_PAGES | given::PREPARE_LOCK;
    if numa_node.is_some() {
        steps |= given::PREPARE_NUMA_NODE;
    }
    match flags {
        0 => Ok(None),
        given::PREPARE_NOTHING => Ok(Some(Preparation::NONE)),
        _ if flags & !steps == 0 => Ok(Some(Preparation {
            numa_node: numa_node.filter(|_| has(given::PREPARE_NUMA_NODE)),
            huge_pages: has(given::PREPARE_HUGE_PAGES),
            prefault: has(given::PREPARE_PREFAULT),
            lock: has(given::PREPARE_LOCK),
        })),
        _ => Err(unknown("prepare", flags)),
    }
}

fn unknown(what: &str, value: u32) -> Failure {
    Failure::argument(format_args!("{what} {value} is not defined: see the values in shmcast.h"))
}

fn known_flags(flags: u32, known: u32) -> Result<(), Failure> {
    if flags & !known == 0 { Ok(()) } else { Err(unknown("flags", flags)) }
}

fn is_zero(reserved: u32) -> Result<(), Failure> {
    if reserved == 0 { Ok(()) } else { Err(unknown("reserved", reserved)) }
}

/// Returns a channel's name, which is required.
///
/// # Safety
/// `name` is null or a text that ends with a zero.
unsafe fn channel<'a>(name: *const c_char) -> Result<&'a str, Failure> {
    // SAFETY: by this function's contract.
    unsafe { text("the channel's name", name) }?
        .ok_or_else(|| Failure::argument("the channel's name is NULL: give it"))
}

/// Opens a publisher as the options say.
///
/// # Safety
/// - `name` is null or ends with a zero; the same holds for each text of the options
/// - `options` is as [`copy`] requires
/// - the field `gates` of the options is null or points to `gate_count` gates
pub(crate) unsafe fn publisher(
    name: *const c_char,
    options: *const PublishOptions,
) -> Result<Publisher, Failure> {
    // SAFETY: by this function's contract.
    let options = unsafe { copy(options) }?;
    known_flags(options.flags, given::ANEW | given::MONOTONIC | given::REMOVE_BY_TAG)?;
    is_zero(options.reserved)?;
    // SAFETY: by this function's contract.
    let mut builder = Publisher::builder(unsafe { channel(name) }?);
    // SAFETY: by this function's contract.
    builder = match unsafe { place(options.dir, options.socket) }? {
        Place::Default => builder,
        Place::Directory(dir) => builder.dir(dir),
        Place::Daemon(client) => builder.client(&client),
    };
    // SAFETY: by this function's contract.
    let schema_name = unsafe { text("schema_name", options.schema_name) }?;
    // SAFETY: by this function's contract.
    if let Some(labels) = unsafe { text("labels", options.labels) }? {
        builder = builder.labels(labels);
    }
    // SAFETY: by this function's contract.
    if let Some(journal) = unsafe { text("continue_from", options.continue_from) }? {
        builder = builder.continue_from(journal);
    }
    if options.schema_id != 0 || schema_name.is_some() {
        builder = builder.schema(options.schema_id, schema_name.unwrap_or_default());
    }
    if let Some(preparation) = preparation(options.prepare, Some(options.numa_node))? {
        builder = builder.prepare(preparation);
    }
    if let Some(board) = board(&options)? {
        builder = builder.board(board);
    }
    // SAFETY: by this function's contract.
    for gate in unsafe { gates(options.gates, options.gate_count) }? {
        builder = builder.gate(gate);
    }
    Ok(sized(builder, &options).open()?)
}

/// Converts the gates of the options.
///
/// # Safety
/// `gates` is null or points to `count` gates, whose names end with a zero byte.
unsafe fn gates(gates: *const Gate, count: usize) -> Result<Vec<shmcast::Gate>, Failure> {
    let is_sound = gates.is_null() == (count == 0) && gates.is_aligned() && count <= 1 << 10;
    if !is_sound {
        return Err(Failure::argument("gates and gate_count do not fit each other: give both or none"));
    }
    let mut found = Vec::new();
    for at in 0..count {
        // SAFETY: by this function's contract.
        let gate = unsafe { gates.add(at) };
        // SAFETY: as above; it was checked to be aligned.
        let gate = unsafe { gate.read() };
        // SAFETY: by this function's contract.
        let name = unsafe { text("a gate's name", gate.name) }?;
        let name = name.ok_or_else(|| Failure::argument("a gate's name is NULL: give it"))?;
        found.push(one_gate(name, &gate)?);
    }
    Ok(found)
}

fn one_gate(name: &str, gate: &Gate) -> Result<shmcast::Gate, Failure> {
    known_flags(gate.flags, given::GATE_REFUSES | given::GATE_NEVER_WAITS)?;
    let mut made = shmcast::Gate::new(name);
    made = match (gate.lag_percent, gate.lag_bytes) {
        (0, 0) => made,
        (0, bytes) => made.lag_bytes(bytes),
        (percent @ 1..=100, 0) => made.lag_percent(percent as u8),
        _ => return Err(Failure::argument("lag_percent is 1 to 100, or lag_bytes is given: not both")),
    };
    if gate.reserved != 0 {
        return Err(Failure::argument("a gate's reserved is not 0: set the whole struct to zeros first"));
    }
    made = match (gate.flags & given::GATE_NEVER_WAITS != 0, gate.wait_ns) {
        (false, 0) => made,
        (false, ns) => made.wait(Duration::from_nanos(ns)),
        (true, 0) => made.wait(Duration::ZERO),
        (true, _) => return Err(Failure::argument("a gate with SHMCAST_GATE_NEVER_WAITS has no wait_ns")),
    };
    Ok(if gate.flags & given::GATE_REFUSES != 0 { made.refuse() } else { made })
}

fn board(options: &PublishOptions) -> Result<Option<BoardSpec>, Failure> {
    let has_tag = options.flags & given::REMOVE_BY_TAG != 0;
    if options.board_reserved != [0; 3] {
        return Err(Failure::argument("board_reserved is not 0: begin with SHMCAST_PUBLISH_OPTIONS"));
    }
    if options.board_stop == 0 {
        let is_none =
            options.board_start == 0 && options.board_keys == 0 && options.board_value == 0 && !has_tag;
        let todo = "a board has a key: set board_start and board_stop, the byte after it";
        return if is_none { Ok(None) } else { Err(Failure::argument(todo)) };
    }
    let mut board = BoardSpec::new(options.board_start as usize..options.board_stop as usize);
    if options.board_keys != 0 {
        board = board.keys(options.board_keys);
    }
    if options.board_value != 0 {
        board = board.value(options.board_value);
    }
    if has_tag {
        board = board.remove_tag(options.board_remove_tag);
    }
    Ok(Some(board))
}

fn sized(mut builder: PublisherBuilder, options: &PublishOptions) -> PublisherBuilder {
    if options.capacity != 0 {
        builder = builder.capacity(options.capacity);
    }
    if options.max_message != 0 {
        builder = builder.max_message(options.max_message);
    }
    if options.mode != 0 {
        builder = builder.mode(options.mode);
    }
    if options.flags & given::MONOTONIC != 0 {
        builder = builder.clock_kind(ClockKind::Monotonic);
    }
    if options.flags & given::ANEW != 0 { builder.anew() } else { builder }
}

/// Opens a subscriber as the options say.
///
/// # Safety
/// The same as for [`receiving`].
pub(crate) unsafe fn subscriber(
    name: *const c_char,
    options: *const SubscribeOptions,
) -> Result<(Subscriber, EndWatch), Failure> {
    // SAFETY: by this function's contract.
    let (builder, start) = unsafe { receiving(name, options) }?;
    let subscriber = builder.open()?;
    let end = EndWatch::of(&subscriber, start);
    Ok((subscriber, end))
}

/// Opens the board of a channel.
///
/// # Safety
/// The same as for [`receiving`].
pub(crate) unsafe fn open_board(
    name: *const c_char,
    options: *const SubscribeOptions,
) -> Result<Board, Failure> {
    // SAFETY: by this function's contract.
    let (builder, _) = unsafe { receiving(name, options) }?;
    Ok(builder.open_board()?)
}

/// Reads the options that say how a select waits.
///
/// # Safety
/// `options` is as [`copy`] requires.
pub(crate) unsafe fn select_wait(options: *const SubscribeOptions) -> Result<Wait, Failure> {
    // SAFETY: by this function's contract.
    wait(&unsafe { copy(options) }?)
}

/// Reads the options of a subscriber or a board.
///
/// # Safety
/// The same as for [`publisher`]. `tags` of the options is null or points to `tag_count` numbers.
unsafe fn receiving(
    name: *const c_char,
    options: *const SubscribeOptions,
) -> Result<(SubscriberBuilder, Start), Failure> {
    // SAFETY: by this function's contract.
    let options = unsafe { copy(options) }?;
    let flags = given::HIDDEN | given::RECORD_LATENCY | given::WATCH_PUBLISHER | given::CONFLATE;
    known_flags(options.flags, flags)?;
    is_zero(options.reserved)?;
    // SAFETY: by this function's contract.
    let mut builder = Subscriber::builder(unsafe { channel(name) }?);
    let start = start(&options)?;
    builder = builder.start(start).wait(wait(&options)?).resume(resume(&options)?);
    // SAFETY: by this function's contract.
    builder = match unsafe { place(options.dir, options.socket) }? {
        Place::Default => builder,
        Place::Directory(dir) => builder.dir(dir),
        Place::Daemon(client) => builder.client(&client),
    };
    // SAFETY: by this function's contract.
    builder = match unsafe { text("journal", options.journal) }? {
        None => builder,
        Some("") => builder.history(History::Never),
        Some(dir) => builder.history(History::Dir(dir.into())),
    };
    if !options.tags.is_null() {
        // SAFETY: by this function's contract.
        builder = builder.tags(unsafe { numbers(options.tags, options.tag_count) }?.iter().copied());
    } else if options.tag_count != 0 {
        return Err(Failure::argument("tags is NULL, and tag_count is not 0: give both or none"));
    }
    // SAFETY: by this function's contract.
    if let Some(gate) = unsafe { text("gate", options.gate) }? {
        builder = builder.gate(gate);
    }
    if let Some(preparation) = preparation(options.prepare, None)? {
        builder = builder.prepare(preparation);
    }
    builder = match (options.flags & given::CONFLATE != 0, options.conflate_behind) {
        (false, 0) => builder,
        (false, _) => {
            return Err(Failure::argument(
                "conflate_behind is for readers with SHMCAST_CONFLATE: set the flag",
            ));
        }
        (true, 0) => builder.conflate(),
        (true, bytes) => builder.conflate_behind(bytes),
    };
    Ok((minor(builder, &options), start))
}

fn minor(mut builder: SubscriberBuilder, options: &SubscribeOptions) -> SubscriberBuilder {
    if options.longest_nap_ns != 0 {
        builder = builder.longest_nap(Duration::from_nanos(options.longest_nap_ns));
    }
    if options.wait_for_channel_ns != 0 {
        builder = builder.wait_for_channel(Duration::from_nanos(options.wait_for_channel_ns));
    }
    if options.schema_id != 0 {
        builder = builder.schema(options.schema_id);
    }
    let has = |flag| options.flags & flag != 0;
    builder
        .page(!has(given::HIDDEN))
        .record_latency(has(given::RECORD_LATENCY))
        .watch_publisher(has(given::WATCH_PUBLISHER))
}

fn start(options: &SubscribeOptions) -> Result<Start, Failure> {
    Ok(match options.start {
        given::START_LATEST => Start::Latest,
        given::START_OLDEST => Start::Oldest,
        given::START_SEQUENCE => Start::Sequence(options.start_sequence),
        given::START_TIME => Start::Time(UNIX_EPOCH + Duration::from_nanos(options.start_time_ns)),
        given::START_KEY => Start::Key,
        given::START_BOARD => Start::Board,
        other => return Err(unknown("start", other)),
    })
}

fn wait(options: &SubscribeOptions) -> Result<Wait, Failure> {
    Ok(match options.wait {
        given::WAIT_YIELD => Wait::Yield,
        given::WAIT_SPIN => Wait::Spin,
        given::WAIT_BURST => Wait::Burst,
        given::WAIT_SPIN_THEN_YIELD => Wait::SpinThenYield(options.spins),
        given::WAIT_BACKOFF => Wait::Backoff,
        given::WAIT_SLEEP if options.sleep_ns == 0 => {
            return Err(Failure::argument("SHMCAST_WAIT_SLEEP sleeps for sleep_ns, which is 0: set it"));
        }
        given::WAIT_SLEEP => Wait::Sleep(Duration::from_nanos(options.sleep_ns)),
        given::WAIT_PARK => Wait::Park,
        other => return Err(unknown("wait", other)),
    })
}

fn resume(options: &SubscribeOptions) -> Result<Resume, Failure> {
    Ok(match options.resume {
        given::RESUME_OLDEST => Resume::Oldest,
        given::RESUME_LATEST => Resume::Latest,
        given::RESUME_KEY => Resume::Key,
        other => return Err(unknown("resume", other)),
    })
}
