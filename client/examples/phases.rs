//! Publishes or receives, and says on stderr where each phase begins. `.ci/syscalls.py` traces it to make and to
//! check `daemon/docs/syscalls.md`.
//!
//! `phases publisher|reader CHANNEL MESSAGES DIR WAIT [OPTION...]`
//!
//! DIR is a directory, `default` for the default directory, or `-` for the daemon at `$SHMCAST_SOCKET`. WAIT is `spin`, `yield` or `sleep`,
//! and with a daemon also `park` or `async`. `$SHMCAST_FILTER` names a filter of system calls, under which the program runs from then on.
//!
//! | option | of | effect |
//! |---|---|---|
//! | `small` | publishers | a ring of 1 MiB instead of one of the default size |
//! | `gate=NAME` | both | the publisher makes this gate; the reader takes it, and is slow |
//! | `journal=DIR` | both | the publisher continues after this journal; the reader reads it from its beginning |
//! | `past` | readers | the reader begins with the oldest message |
//! | `prepared` | publishers | every step of [`Preparation`] is done before the first message, on one CPU |
//! | `dies` | publishers | the program ends without an end of the channel |
//! | `aborts` | both | the program aborts at the end |

use shmcast::{Client, Event, Gate, History, Preparation, Publisher, Start, Subscriber, Wait};
use std::error::Error;
use std::io::Write as _;
use std::time::{Duration, Instant};

/// A publisher's pace.
const PACE: Duration = Duration::from_micros(20);
/// The time that the reader of a gate spends on a message, and on each hundredth one. Its publisher first yields, and sleeps after 2 ms.
const SLOWNESS: [Duration; 2] = [Duration::from_micros(200), Duration::from_millis(5)];
/// The longest wait for the reader of a gate.
const GATE_WAIT: Duration = Duration::from_millis(20);
/// Messages before the steady state: a publisher prepares its ring meanwhile.
const EARLIER: u64 = 1000;

const USAGE: &str =
    "usage: phases publisher|reader CHANNEL MESSAGES DIR|default|- spin|yield|sleep|park|async [OPTION...]";

/// The options of the command line.
struct Args<'a> {
    channel: &'a str,
    messages: u64,
    dir: &'a str,
    wait: &'a str,
    options: &'a [String],
    client: Option<Client>,
}

impl Args<'_> {
    fn has(&self, option: &str) -> bool {
        self.options.iter().any(|word| word == option)
    }

    fn value(&self, option: &str) -> Option<&str> {
        self.options.iter().find_map(|word| word.strip_prefix(option)?.strip_prefix('='))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [role, channel, messages, dir, wait, options @ ..] = words.as_slice() else {
        return Err(USAGE.into());
    };
    let mut args = Args { channel, messages: messages.parse()?, dir, wait, options, client: None };
    if let Some(path) = std::env::var_os("SHMCAST_FILTER") {
        restrict(std::fs::File::open(path)?)?;
        do_what_programs_do()?;
    }
    phase("attach");
    if dir == "-" {
        args.client = Some(Client::connect()?);
    }
    match role.as_str() {
        "publisher" => publish(&args)?,
        "reader" => receive(&args)?,
        other => return Err(format!("{other}: a role is publisher or reader").into()),
    }
    if args.has("aborts") {
        std::process::abort();
    }
    Ok(())
}

/// Applies a filter that `shmcast seccomp --json` printed.
fn restrict(filter: std::fs::File) -> Result<(), Box<dyn Error>> {
    let mut filters = seccompiler::compile_from_json(filter, std::env::consts::ARCH.try_into()?)?;
    let filter = filters.remove("main").ok_or("the filter has no thread `main`")?;
    Ok(seccompiler::apply_filter_all_threads(&filter)?)
}

/// Does under a filter what a program does without the library: it uses much memory, threads, a CPU of its choice, pauses and backtraces.
fn do_what_programs_do() -> Result<(), Box<dyn Error>> {
    let mut bytes = Vec::new();
    for size in 1..64 {
        bytes.resize(size << 20, size as u8);
    }
    drop(std::hint::black_box(bytes));
    // A process may be kept from this CPU.
    let pinned = std::thread::spawn(|| shmcast::pin_current_thread(0)).join().expect("no panic");
    let trace = std::backtrace::Backtrace::force_capture().to_string();
    std::thread::sleep(Duration::from_millis(1));
    eprintln!("pinned: {pinned:?}; a backtrace of {} lines", trace.lines().count());
    Ok(())
}

/// One call of `write` for the whole line, so that a trace has the mark in one piece.
fn phase(name: &str) {
    let line = format!("phase {name}\n");
    std::io::stderr().write_all(line.as_bytes()).expect("stderr is open");
}

/// Spends time without a system call.
fn spin(time: Duration) {
    let next = Instant::now() + time;
    while Instant::now() < next {
        std::hint::spin_loop();
    }
}

fn publish(args: &Args<'_>) -> Result<(), Box<dyn Error>> {
    let mut builder = Publisher::builder(args.channel);
    if let Some(gate) = args.value("gate") {
        builder = builder.gate(Gate::new(gate).wait(GATE_WAIT));
    }
    builder = match (&args.client, args.dir) {
        (Some(client), _) => builder.client(client),
        (None, "default") => builder,
        (None, dir) => builder.dir(dir),
    };
    if args.has("small") {
        builder = builder.capacity(1 << 20);
    }
    if let Some(journal) = args.value("journal") {
        builder = builder.continue_from(journal);
    }
    if args.has("prepared") {
        // A process may be kept from this CPU, and a kernel without NUMA refuses the node.
        let _ = shmcast::pin_current_thread(0);
        builder = builder.prepare(Preparation { numa_node: Some(0), ..Preparation::FULL });
    }
    let mut publisher = builder.open()?;
    for number in 0..args.messages + EARLIER {
        if number == EARLIER {
            phase("steady");
        }
        spin(PACE);
        publisher.publish(&number.to_le_bytes())?;
    }
    phase("end");
    if args.has("dies") {
        std::process::exit(0);
    }
    publisher.close();
    Ok(())
}

/// Whether a reader begins with messages that only the journal has.
fn is_past(args: &Args<'_>) -> bool {
    args.has("past") || args.value("journal").is_some()
}

fn subscribe(args: &Args<'_>) -> Result<Subscriber, Box<dyn Error>> {
    let mut builder = Subscriber::builder(args.channel);
    if let Some(gate) = args.value("gate") {
        builder = builder.gate(gate);
    }
    if let Some(journal) = args.value("journal") {
        builder = builder.history(History::Dir(journal.into()));
    }
    builder = builder.start(if is_past(args) { Start::Oldest } else { Start::Latest });
    builder = builder.wait_for_channel(Duration::from_secs(60)).wait(match args.wait {
        "spin" => Wait::Spin,
        "yield" => Wait::Yield,
        "sleep" => Wait::Sleep(Duration::from_micros(50)),
        "park" | "async" => Wait::Park,
        other => return Err(format!("{other}: no way to wait").into()),
    });
    Ok(match (&args.client, args.dir) {
        (Some(client), _) => builder.client(client),
        (None, "default") => builder,
        (None, dir) => builder.dir(dir),
    }
    .open()?)
}

fn receive(args: &Args<'_>) -> Result<(), Box<dyn Error>> {
    let mut subscriber = subscribe(args)?;
    let is_slow = args.value("gate").is_some();
    let mut received = Received { messages: 0, is_behind: is_past(args) };
    if args.wait == "async" {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            while received.of(subscriber.recv_async().await?, args.messages) {}
            Ok::<(), Box<dyn Error>>(())
        })?;
    } else {
        while received.of(subscriber.recv()?, args.messages) {
            if is_slow {
                spin(SLOWNESS[usize::from(received.messages.is_multiple_of(100))]);
            }
        }
    }
    phase("end");
    drop(subscriber);
    if received.messages < args.messages {
        return Err(format!("{} of {} messages", received.messages, args.messages).into());
    }
    Ok(())
}

struct Received {
    messages: u64,
    /// Whether the reader is still reading the journal for the first time.
    is_behind: bool,
}

impl Received {
    /// Counts an event. Returns whether more are wanted.
    fn of(&mut self, event: Event<'_>, wanted: u64) -> bool {
        match event {
            Event::Message(_) => {
                if self.messages == 0 {
                    phase("steady");
                }
                self.messages += 1;
                self.is_behind || self.messages < wanted
            }
            Event::Live { .. } => {
                self.is_behind = false;
                self.messages < wanted
            }
            Event::End => false,
            _ => true,
        }
    }
}
