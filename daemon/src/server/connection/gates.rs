//! Lends the pages of gates to publishers and readers.

use super::sending::may_other_read;
use super::{Connection, End};
use shmcast::control::{Request, Response};
use std::os::fd::AsFd;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Before a publisher gets its gates, the daemon looks up the names of the gates' readers. This is the longest time for the look-ups. The
/// publisher itself waits 5 s for the answer.
const PATIENCE: Duration = Duration::from_secs(1);

impl Connection<'_> {
    /// Answers a request for gates.
    pub(super) async fn lend(&mut self, request: Request) -> Result<(), End> {
        match request {
            Request::Gate { gate } => self.lend_gate(&gate).await,
            _ => self.lend_gates().await,
        }
    }

    /// Sends the publisher a packet for each gate, and then the page in which the publisher counts its waits.
    async fn lend_gates(&mut self) -> Result<(), End> {
        self.withdraw_gates().await;
        let lent = self.shared.registry().lend_gates(self.id);
        let lent = match lent {
            Ok(lent) => lent,
            Err(refused) => return self.refuse(refused, None).await,
        };
        for (terms, page) in lent.gates {
            self.send(&Response::Gate(terms), &[page.as_fd()]).await?;
        }
        self.send(&Response::Done {}, &[lent.figures.as_fd()]).await
    }

    /// Takes gates from readers that are no longer allowed to read the channel. The publisher needs this now, because the connections of
    /// such readers might be closed only later. All look-ups of names together take at most [`PATIENCE`]. A reader whose names are not
    /// known by then keeps its gates.
    async fn withdraw_gates(&self) {
        let holders = self.shared.registry().gate_holders(self.id);
        let until = Instant::now() + PATIENCE;
        for (reader, channel, who) in holders {
            let may_read = timeout_at(until, may_other_read(self.shared, who, &channel)).await;
            if may_read == Ok(false) {
                self.shared.registry().withdraw_gates(reader, &channel);
            }
        }
    }

    /// Sends the reader the page of a gate as two descriptors: one to lock, and one to map.
    async fn lend_gate(&mut self, gate: &str) -> Result<(), End> {
        let lent = self.shared.registry().lend_gate(self.id, &self.who, gate);
        match lent {
            Ok((terms, [lock, page])) => {
                self.send(&Response::Gate(terms), &[lock.as_fd(), page.as_fd()]).await
            }
            Err(refused) => self.refuse(refused, None).await,
        }
    }
}
