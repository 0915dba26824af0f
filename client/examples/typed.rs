//! Messages with a type, both ways: a fixed layout that is read in place, and any serde type.

use serde::{Deserialize, Serialize};
use shmcast::{Event, Publisher, Subscriber};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Fixed layout: its bytes are the message.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Quote {
    instrument: u64,
    bid: i64,
    ask: i64,
}

/// Any serde type; strings may borrow from the message.
#[derive(Debug, Serialize, Deserialize)]
enum News<'a> {
    Halted { instrument: u64, reason: &'a str },
    Resumed { instrument: u64 },
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let open = |channel: &str| -> Result<_, shmcast::ChannelError> {
        let publisher = Publisher::builder(channel).dir(dir.path()).capacity(1 << 20).open()?;
        Ok((publisher, Subscriber::builder(channel).dir(dir.path()).open()?))
    };
    let (mut publisher, mut quotes) = open("quotes")?;
    publisher.publish_pod(&Quote { instrument: 7, bid: 10_025, ask: 10_030 })?;
    publisher.close();
    loop {
        match quotes.recv()? {
            Event::Message(m) => {
                let Quote { instrument, bid, ask } = m.pod::<Quote>()?;
                println!("instrument {instrument}: {bid} to {ask}");
            }
            Event::End => break,
            other => report(other),
        }
    }

    let (mut publisher, mut news) = open("news")?;
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
