//! Publishes twenty prices a second for two seconds: `cargo run --example publisher`, beside `--example subscriber`.

use shmcast::Publisher;
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Files in /dev/shm/shmcast-UID, this user's alone. If they are there from earlier, the sequence goes on.
    let mut prices = Publisher::builder("prices").capacity(1 << 20).open()?;
    for tick in 0..40 {
        let price = format!("bid {}", 10_000 + tick * 7 % 13);
        let sequence = prices.publish(price.as_bytes())?;
        println!("{sequence}: {price}");
        std::thread::sleep(Duration::from_millis(50));
    }
    prices.close(); // readers see the end of the stream
    Ok(())
}
