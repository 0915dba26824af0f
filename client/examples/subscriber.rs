//! Prints prices until their publisher ends: `cargo run --example subscriber`, in as many terminals as you like.

use shmcast::{Event, Start, Subscriber};
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let builder = Subscriber::builder("prices").start(Start::Oldest);
    let mut prices = builder.wait_for_channel(Duration::from_secs(5)).open()?;
    loop {
        match prices.recv()? {
            Event::Message(m) => println!("{}: {}", m.sequence, m.payload.escape_ascii()),
            Event::Lapped(l) => println!("too slow: missed {} messages", l.missed),
            Event::End => return Ok(()),
            other => println!("{other:?}"),
        }
    }
}
