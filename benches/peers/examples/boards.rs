//! What does it cost to keep the last value of each key, here and with the peers?
//!
//! A message of 64 bytes with its key in the first eight, to keys in random order, in turns in one process, without readers. For shmcast it is
//! `publish` with a board and without, and the difference of both: the message is on the stream as well. The peers have the value alone:
//! ringfire's key is the number of a slot, iceoryx2's is a handle that was looked up before. Nanoseconds a message, the median of the turns.
//!
//! `cargo run --release --example boards`, in this directory.
#![allow(clippy::print_stdout, reason = "it prints what it measured")]

use anyhow::{Context, Result};
use iceoryx2::port::writer::EntryHandleMut;
use iceoryx2::prelude::*;
use ringfire::BlackboardProducer;
use shmcast::{BoardSpec, Preparation, Publisher};
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

const TURNS: usize = 40;
const MESSAGES: u64 = 200_000;

fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Nanoseconds for each of so many messages.
fn turn(keys: u64, mut put: impl FnMut(u64, &[u8; 64]) -> Result<()>) -> Result<f64> {
    let mut message = [7; 64];
    let start = Instant::now();
    for i in 0..MESSAGES {
        let key = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % keys;
        message[..8].copy_from_slice(&key.to_le_bytes());
        put(key, black_box(&message))?;
    }
    Ok(start.elapsed().as_nanos() as f64 / MESSAGES as f64)
}

fn publisher(dir: &Path, name: String, board: Option<BoardSpec>) -> Result<Publisher> {
    let builder = Publisher::builder(name).dir(dir).capacity(16 << 20).prepare(Preparation::FULL);
    Ok(board.into_iter().fold(builder, |builder, board| builder.board(board)).open()?)
}

fn rows(dir: &Path, keys: u64) -> Result<()> {
    let mut plain = publisher(dir, format!("plain-{keys}"), None)?;
    let mut with = publisher(dir, format!("with-{keys}"), Some(BoardSpec::new(0..8).keys(keys).value(64)))?;
    let mut ringfire =
        BlackboardProducer::<[u8; 64]>::create(dir.join(format!("ringfire-{keys}")), keys as usize)
            .context("make ringfire's blackboard")?;
    let node =
        NodeBuilder::new().signal_handling_mode(SignalHandlingMode::Disabled).create::<ipc::Service>()?;
    let name = ServiceName::new(&format!("{}-{keys}", dir.display()))?;
    let creator = node.service_builder(&name).blackboard_creator::<u64>();
    let service = (0..keys).fold(creator, |creator, key| creator.add::<[u8; 64]>(key, [0; 64])).create()?;
    let writer = service.writer_builder().create()?;
    let handles = (0..keys).map(|key| Ok(writer.entry::<[u8; 64]>(&key)?));
    let handles: Vec<EntryHandleMut<ipc::Service, u64, [u8; 64]>> = handles.collect::<Result<_>>()?;
    let mut found = [const { Vec::new() }; 4];
    for _ in 0..TURNS {
        found[0].push(turn(keys, |_, message| Ok(plain.publish(message).map(drop)?))?);
        found[1].push(turn(keys, |_, message| Ok(with.publish(message).map(drop)?))?);
        found[2].push(turn(keys, |key, message| Ok(ringfire.write(key as usize, message)?))?);
        found[3].push(turn(keys, |key, message| {
            handles[key as usize].update_with_copy(*message);
            Ok(())
        })?);
    }
    let [plain, with, ringfire, iceoryx2] = found.each_mut().map(|figures| median(figures));
    println!(
        "{keys} keys, 64 B: publish {plain:.1} ns, with a board {with:.1} ns ({:+.1}); ringfire's blackboard {ringfire:.1} ns, \
         iceoryx2's {iceoryx2:.1} ns",
        with - plain
    );
    Ok(())
}

fn main() -> Result<()> {
    set_log_level(LogLevel::Error);
    let dir = tempfile::tempdir_in("/dev/shm")?;
    rows(dir.path(), 100)?;
    rows(dir.path(), 10_000)
}
