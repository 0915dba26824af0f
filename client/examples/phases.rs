//! Publishes or receives, and says on stderr where each phase begins. `.ci/syscalls.py` traces it to make and to
//! check `daemon/docs/syscalls.md`.
//!
//! `phases publisher|reader CHANNEL MESSAGES DIR spin|yield|sleep`, or with a daemon, if `$SHMCAST_SOCKET` is set and DIR is `-`, also `park`
//! and `async`. `$SHMCAST_GATE` names a gate: a publisher makes it, and its reader takes it and is slow. `$SHMCAST_FILTER` names a filter of system calls, under which the program runs from then on.

use shmcast::{Client, Event, Gate, Publisher, Start, Subscriber, Wait};
use std::error::Error;
use std::io::Write as _;
use std::time::{Duration, Instant};

/// A publisher's pace.
const PACE: Duration = Duration::from_micros(20);
/// The time that the reader of a gate spends on a message.
const SLOWNESS: Duration = Duration::from_micros(200);
/// Messages before the steady state: a publisher prepares its ring meanwhile.
const EARLIER: u64 = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [role, channel, messages, dir, wait] = words.as_slice() else {
        return Err(
            "usage: phases publisher|reader CHANNEL MESSAGES DIR|- spin|yield|sleep|park|async".into()
        );
    };
    let messages = messages.parse()?;
    if let Some(path) = std::env::var_os("SHMCAST_FILTER") {
        restrict(std::fs::File::open(path)?)?;
    }
    phase("attach");
    let client = if dir == "-" { Some(Client::connect()?) } else { None };
    match role.as_str() {
        "publisher" => publish(channel, messages, client.as_ref(), dir),
        "reader" => receive(channel, messages, client.as_ref(), dir, wait),
        other => Err(format!("{other}: a role is publisher or reader").into()),
    }
}

/// Applies a filter that `shmcast seccomp --json` printed.
fn restrict(filter: std::fs::File) -> Result<(), Box<dyn Error>> {
    let mut filters = seccompiler::compile_from_json(filter, std::env::consts::ARCH.try_into()?)?;
    let filter = filters.remove("main").ok_or("the filter has no thread `main`")?;
    Ok(seccompiler::apply_filter_all_threads(&filter)?)
}

/// One call of `write` for the whole line, so that a trace has the mark in one piece.
fn phase(name: &str) {
    let line = format!("phase {name}\n");
    std::io::stderr().write_all(line.as_bytes()).expect("stderr is open");
}

fn publish(channel: &str, messages: u64, client: Option<&Client>, dir: &str) -> Result<(), Box<dyn Error>> {
    let mut builder = Publisher::builder(channel);
    if let Ok(gate) = std::env::var("SHMCAST_GATE") {
        builder = builder.gate(Gate::new(gate).wait(Duration::from_millis(1)));
    }
    let mut publisher = match client {
        Some(client) => builder.client(client).open()?,
        None => builder.dir(dir).capacity(1 << 20).open()?,
    };
    for number in 0..messages + EARLIER {
        if number == EARLIER {
            phase("steady");
        }
        let next = Instant::now() + PACE;
        while Instant::now() < next {
            std::hint::spin_loop();
        }
        publisher.publish(&number.to_le_bytes())?;
    }
    phase("end");
    publisher.close();
    Ok(())
}

fn receive(
    channel: &str,
    messages: u64,
    client: Option<&Client>,
    dir: &str,
    wait: &str,
) -> Result<(), Box<dyn Error>> {
    let mut builder = Subscriber::builder(channel).start(Start::Latest);
    let gate = std::env::var("SHMCAST_GATE");
    if let Ok(gate) = &gate {
        builder = builder.gate(gate);
    }
    let builder = builder.wait_for_channel(Duration::from_secs(60)).wait(match wait {
        "spin" => Wait::Spin,
        "yield" => Wait::Yield,
        "sleep" => Wait::Sleep(Duration::from_micros(50)),
        "park" | "async" => Wait::Park,
        other => return Err(format!("{other}: no way to wait").into()),
    });
    let mut subscriber = match client {
        Some(client) => builder.client(client).open()?,
        None => builder.dir(dir).open()?,
    };
    let mut received = Received::default();
    if wait == "async" {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            while received.of(subscriber.recv_async().await?, messages) {}
            Ok::<(), Box<dyn Error>>(())
        })?;
    } else {
        while received.of(subscriber.recv()?, messages) {
            let next = Instant::now() + if gate.is_ok() { SLOWNESS } else { Duration::ZERO };
            while Instant::now() < next {
                std::hint::spin_loop();
            }
        }
    }
    phase("end");
    drop(subscriber);
    if received.messages < messages {
        return Err(format!("{} of {messages} messages", received.messages).into());
    }
    Ok(())
}

#[derive(Default)]
struct Received {
    messages: u64,
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
                self.messages < wanted
            }
            Event::End => false,
            _ => true,
        }
    }
}
