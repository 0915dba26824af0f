//! A subscriber in an event loop, which does something else while nothing comes:
//! `cargo run --example async --features tokio -- ticks`, with a daemon running.

use shmcast::{Client, Event, Subscriber, Wait};
use std::time::Duration;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let channel = std::env::args().nth(1).unwrap_or_else(|| "ticks".to_owned());
    let mut ticks = Subscriber::builder(channel).client(&Client::connect()?).wait(Wait::Park).open()?;
    let mut second = tokio::time::interval(Duration::from_secs(1));
    let mut received = 0u64;
    loop {
        // Whichever comes first; the other is dropped, and loses nothing.
        tokio::select! {
            event = ticks.recv_async() => match event? {
                Event::Message(_) => received += 1,
                Event::End => break,
                other => eprintln!("{other:?}"),
            },
            _ = second.tick() => eprintln!("{received} messages so far"),
        }
    }
    println!("{received} messages");
    Ok(())
}
