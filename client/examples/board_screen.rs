//! A screen of last values that starts late: `cargo run --example board_screen`, beside `--example board_publisher` or after it.

use shmcast::{Event, Start, Subscriber};
use std::collections::BTreeMap;
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // If the screen cannot keep up, it gets the newest price of each symbol that changed, and not each price.
    let builder = Subscriber::builder("board-prices").start(Start::Board).conflate();
    let mut prices = builder.wait_for_channel(Duration::from_secs(5)).open()?;
    let (mut screen, mut left_out) = (BTreeMap::new(), 0);
    loop {
        match prices.recv()? {
            // First each symbol once, then every message.
            Event::Message(m) => {
                let (symbol, price) = m.payload.split_at(8);
                let price = f64::from_le_bytes(price.try_into()?);
                screen.insert(symbol.escape_ascii().to_string(), price);
                left_out += m.conflated.unwrap_or(0);
            }
            Event::Live { sequence } => println!("{} symbols; message {sequence} is next", screen.len()),
            Event::Lapped(l) => println!("missed {} messages", l.missed),
            Event::End => break, // the publisher has closed the channel
            other => println!("{other:?}"),
        }
    }
    println!("{left_out} prices were not the newest any more, and left out");
    for (symbol, price) in screen.iter().take(3) {
        println!("{symbol} {price:.2}");
    }
    Ok(())
}
