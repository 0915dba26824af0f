//! An attacker who can send to the group or to the server. Each packet has a wrong header, and most packets have the feed's own session. No
//! packet must be accepted.

use serde_json::json;
use shmcast::sys::datagrams::{self, BATCH};
use shmcast_bridge::proto::wire::HEADER_BYTES;
use shmcast_bridge::socket::open_sender;
use shmcast_bridge::spec::LineSpec;

/// The role's words are `COUNT GROUP-OR-HOST INTERFACE SESSION`, with `_` for spaces in the session.
pub fn run(words: &[&str]) {
    let [count, group, interface, session] = words else { panic!("{words:?}") };
    let count: u64 = count.parse().unwrap();
    let interface = Some((*interface).to_owned());
    let line = LineSpec { interface, ..LineSpec::to(group.parse().unwrap()) };
    let socket = open_sender(&line, 1, true).unwrap();
    let mut own = [b' '; 10];
    own[..session.len()].copy_from_slice(session.replace('_', " ").as_bytes());
    let mut rng = fastrand::Rng::with_seed(11);
    let (mut made, mut sent) = (0, 0);
    let mut batch: Vec<Vec<u8>> = Vec::with_capacity(BATCH);
    while made < count {
        batch.clear();
        while batch.len() < BATCH && made < count {
            batch.push(malformed(made, &own, &mut rng));
            made += 1;
        }
        // On a blocking socket, a datagram is refused only if there is no memory for it.
        let done = datagrams::send(&socket, line.group, batch.iter().map(Vec::as_slice));
        sent += batch.len() as u64 - done.refused;
    }
    println!("\n{}", json!({ "sent": sent }));
}

fn packet(session: &[u8; 10], sequence: u64, count: u16, rest: &[u8]) -> Vec<u8> {
    [session.as_slice(), &sequence.to_be_bytes(), &count.to_be_bytes(), rest].concat()
}

fn malformed(number: u64, own: &[u8; 10], rng: &mut fastrand::Rng) -> Vec<u8> {
    let sequence = rng.u64(1..1_000_000);
    let mut noise = [0; 80];
    rng.fill(&mut noise);
    match number % 6 {
        0 => noise[..rng.usize(0..HEADER_BYTES)].to_vec(),
        1 => packet(own, 0, 1, &[0, 0]),
        2 => packet(own, u64::MAX, 2, &[0, 0, 0, 0]),
        // A length that reaches beyond the end, in the first or in the second message.
        3 if noise[0] & 1 == 0 => packet(own, sequence, 1, &[0, 9, b'x']),
        3 => packet(own, sequence, 2, &[0, 1, b'x', 0xff, 0xff, b'y']),
        4 => packet(own, sequence, 1, &[0, 1, b'x', b'y', b'z']),
        // A packet of another session, with any content.
        _ => packet(&[b'~'; 10], sequence, noise[0].into(), &noise[..rng.usize(0..noise.len())]),
    }
}
