//! Publishes prices of a thousand symbols for about two seconds, on a channel with a board: `cargo run --example board_publisher`.
//! Start `--example board_screen` in another terminal, at any time.

use shmcast::{BoardSpec, Publisher};
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A message is a symbol of 8 bytes, which is its key, and a price of 8 bytes.
    let board = BoardSpec::new(0..8).keys(1000).value(16);
    let mut prices = Publisher::builder("board-prices").capacity(1 << 20).board(board).open()?;
    for tick in 0..200_000_u64 {
        let symbol = format!("SYM{:05}", tick * 7919 % 1000);
        let price = 100.0 + (tick * 31 % 997) as f64 / 100.0;
        let mut message = [0; 16];
        message[..8].copy_from_slice(symbol.as_bytes());
        message[8..].copy_from_slice(&price.to_le_bytes());
        prices.publish(&message)?;
        if tick % 1000 == 999 {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    prices.close(); // the board stays, and readers see the end of the stream
    Ok(())
}
