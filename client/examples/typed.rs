//! Messages with a type: a channel for one type, whose ends agree on its schema, and single messages of any serde type.

use serde::{Deserialize, Serialize};
use shmcast::typed::{self, Schema};
use shmcast::{Event, Publisher, Subscriber};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Fixed layout: its bytes are the message.
#[derive(Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Quote {
    instrument: u64,
    bid: i64,
    ask: i64,
}

impl Schema for Quote {
    const ID: u64 = 1;
    const NAME: &'static str = "quote/1";
}

/// Any serde type; strings may borrow from the message.
#[derive(Debug, Serialize, Deserialize)]
enum News<'a> {
    Halted { instrument: u64, reason: &'a str },
    Resumed { instrument: u64 },
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let mut publisher = Publisher::builder("quotes").dir(dir.path()).capacity(1 << 20).open_pod::<Quote>()?;
    // One that asks for another schema is refused here.
    let mut quotes = Subscriber::builder("quotes").dir(dir.path()).open_pod::<Quote>()?;
    publisher.publish(&Quote { instrument: 7, bid: 10_025, ask: 10_030 })?;
    publisher.close();
    loop {
        match quotes.recv()? {
            typed::Event::Message(m) => {
                let Quote { instrument, bid, ask } = m.payload;
                println!("instrument {instrument}: {bid} to {ask}");
            }
            typed::Event::End => break,
            other => println!("{other:?}"),
        }
    }

    let mut publisher = Publisher::builder("news").dir(dir.path()).capacity(1 << 20).open()?;
    let mut news = Subscriber::builder("news").dir(dir.path()).open()?;
    publisher.publish_serde(&News::Halted { instrument: 7, reason: "volatility" })?;
    publisher.publish_serde(&News::Resumed { instrument: 7 })?;
    publisher.close();
    loop {
        match news.recv()? {
            Event::Message(m) => match m.decode()? {
                News::Halted { instrument, reason } => println!("instrument {instrument}: halted, {reason}"),
                News::Resumed { instrument } => println!("instrument {instrument}: resumed"),
            },
            Event::End => break,
            other => report(other),
        }
    }
    Ok(())
}

/// Events of a stream that are no messages. None of them ends the stream.
fn report(event: Event<'_>) {
    match event {
        Event::Lapped(lapped) => println!("too slow: {} messages missed", lapped.missed),
        Event::Gap { from, to } => println!("messages {from} to {to} never reached this host"),
        Event::NewEpoch { epoch } => println!("publisher {epoch} took over"),
        Event::NewSession { .. } => println!("the remote publisher began a new session"),
        Event::Restarted => println!("sequences count from 1 again"),
        other => println!("{other:?}"),
    }
}
