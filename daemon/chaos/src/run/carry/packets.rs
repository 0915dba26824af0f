//! Makes MoldUDP64 packets byte by byte, without the bridge. A packet has the session's name in 10 bytes, a sequence in 8 bytes, and a
//! count in 2 bytes. Each message follows after its length, which has 2 bytes.

use super::super::wire::{HEADER, Wire, local, socket};
use super::CHANNEL;
use anyhow::{Context, Result};
use shmcast::{Event, Start, Subscriber};
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// The number of kinds of forged packets.
pub(super) const KINDS: usize = 10;
/// The name of a session that belongs to no channel.
const STRANGER: [u8; 10] = *b"STRANGER  ";
/// The count in a packet that ends a session.
const END: u16 = 0xFFFF;
/// A sequence beyond the sequences of all channels.
const BEYOND: u64 = 1 << 62;
/// The number of messages in the first packet of an answer of another vendor's server. Each later packet has twice as many messages.
const A_PACKET: usize = 2;

type Name = [u8; 10];

/// Threads that end when this value is dropped.
pub(super) struct Running {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn bare(name: Name, sequence: u64, count: u16) -> Vec<u8> {
    [&name[..], &sequence.to_be_bytes(), &count.to_be_bytes()].concat()
}

fn data(name: Name, sequence: u64, messages: &[Vec<u8>]) -> Vec<u8> {
    let mut packet = bare(name, sequence, messages.len() as u16);
    for message in messages {
        packet.extend((message.len() as u16).to_be_bytes());
        packet.extend(message);
    }
    packet
}

fn false_message() -> Vec<Vec<u8>> {
    vec![b"this was never published".to_vec()]
}

/// Returns the name of the feed's session. Returns `None` before the feed's first packet.
fn name(wire: &Wire) -> Option<Name> {
    wire.header().and_then(|header| header[..10].try_into().ok())
}

/// Returns the name of a later session, whose epoch is higher by `by`. The last six characters of a name are its epoch in base 36.
fn later(mut name: Name, by: u8) -> Name {
    let digit = name[9];
    let value = if digit.is_ascii_digit() { digit - b'0' } else { digit.wrapping_sub(b'A').wrapping_add(10) };
    let value = value.wrapping_add(by) % 36;
    name[9] = if value < 10 { b'0' + value } else { b'A' + value - 10 };
    name
}

fn send(wire: &Wire, from: Ipv4Addr, packet: &[u8]) -> Result<()> {
    let socket = UdpSocket::bind((from, 0)).context("send as somebody else")?;
    socket.send_to(packet, local(wire.hears_at[0]))?;
    Ok(())
}

/// Sends packets of a session that no channel can have.
pub(super) fn send_prelude(wire: &Wire) -> Result<()> {
    send(wire, Ipv4Addr::LOCALHOST, &bare(STRANGER, BEYOND, 0))?;
    send(wire, Ipv4Addr::LOCALHOST, &data(STRANGER, BEYOND, &false_message()))
}

/// Sends one well-formed packet with false content. `next` is the feed's next sequence.
pub(super) fn send_forged(wire: &Wire, kind: usize, next: u64) -> Result<()> {
    let Some(name) = name(wire) else { return Ok(()) };
    send(wire, Ipv4Addr::LOCALHOST, &forged(name, kind, next))
}

/// Makes a well-formed packet of the session `name` with false content. `next` is the session's next sequence.
pub(in super::super) fn forged(name: Name, kind: usize, next: u64) -> Vec<u8> {
    match kind {
        0 => bare(name, next + 10_000, 0),
        1 => bare(name, next + (1 << 20), 0),
        2 => bare(name, next, END),
        3 => bare(name, next + 5_000, END),
        4 => data(name, next + 5_000, &false_message()),
        5 => data(name, next + (1 << 30), &false_message()),
        6 => data(later(name, 3), 1, &false_message()),
        7 => bare(later(name, 5), 1, 0),
        8 => data(later(name, 35), next, &false_message()),
        _ => data(STRANGER, 1, &false_message()),
    }
}

/// Sends packets with false messages from the address of another host. The sequences in these packets are a little ahead of the feed.
pub(super) fn send_as_impostor(wire: &Wire, next: u64) -> Result<()> {
    let Some(name) = name(wire) else { return Ok(()) };
    for ahead in 2..8 {
        send(wire, Ipv4Addr::new(127, 0, 0, 2), &data(name, next + ahead, &false_message()))?;
    }
    Ok(())
}

/// Asks the server for messages repeatedly, in several threads.
pub(super) fn ask_for_ever(wire: &Wire, threads: usize) -> Result<Running> {
    let is_over = Arc::new(AtomicBool::new(false));
    let request = bare(name(wire).unwrap_or(STRANGER), 1, 50);
    let server = local(wire.serves_at);
    let ask = |is_over: Arc<AtomicBool>, request: Vec<u8>| {
        let socket = UdpSocket::bind(local(0));
        move || {
            while let (Ok(socket), false) = (&socket, is_over.load(Ordering::Relaxed)) {
                let _ = socket.send_to(&request, server);
            }
        }
    };
    let threads = (0..threads).map(|_| std::thread::spawn(ask(is_over.clone(), request.clone()))).collect();
    Ok(Running { is_over, threads })
}

/// Runs a server that answers each request with several packets. All packets of an answer have the sequence of the first message.
pub(super) fn serve_as_another_make(dir: &Path, wire: &Wire) -> Result<Running> {
    let (socket, dir) = (socket(wire.serves_at)?, dir.to_owned());
    let is_over = Arc::new(AtomicBool::new(false));
    let stop = is_over.clone();
    let serve = move || {
        let mut buffer = [0; 64];
        while !stop.load(Ordering::Relaxed) {
            let Ok((HEADER, client)) = socket.recv_from(&mut buffer) else { continue };
            let Some((name, rest)) = buffer.split_first_chunk::<10>() else { continue };
            let Some((sequence, rest)) = rest.split_first_chunk::<8>() else { continue };
            let first = u64::from_be_bytes(*sequence);
            let count = u16::from_be_bytes([rest[0], rest[1]]);
            let messages = messages(&dir, first, count.min(60));
            let (beginning, rest) = messages.split_at(messages.len().min(A_PACKET));
            for messages in [beginning].into_iter().chain(rest.chunks(2 * A_PACKET)) {
                let _ = socket.send_to(&data(*name, first, messages), client);
            }
        }
    };
    Ok(Running { is_over, threads: vec![std::thread::spawn(serve)] })
}

/// Returns messages of the channel, from `first` on.
fn messages(dir: &Path, first: u64, count: u16) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    let reader = Subscriber::builder(CHANNEL).dir(dir).start(Start::Sequence(first)).page(false).open();
    if let Ok(mut reader) = reader {
        while let (true, Ok(Some(event))) = (messages.len() < usize::from(count), reader.try_recv()) {
            if let Event::Message(message) = event {
                messages.push(message.payload.to_vec());
            }
        }
    }
    messages
}
