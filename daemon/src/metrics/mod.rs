//! What the daemon tells Prometheus and other programs over HTTP: `/metrics`, `/healthz` and `/channels.json`.
//!
//! Everything is looked up when it is asked for, from the registry and the reader pages: nothing is counted twice, and
//! nobody who is measured takes part in it. It relies on the event loop of the daemon, and never holds it for longer
//! than one look at the channels.

use crate::server::Shared;
use anyhow::{Context, Result};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;

mod bridges;
mod buckets;
mod hiccups;
mod http;
mod snapshot;
mod text;

pub use hiccups::Hiccups;
pub use snapshot::{ChannelFigures, MAX_READERS, OTHERS, ReaderFigures, Snapshot};
pub use text::render;

/// Listens at `address` and serves metrics from now on. Port 0 takes a free one; the log says which.
///
/// # Errors
/// When nobody can listen there.
pub async fn spawn(address: SocketAddr, shared: Arc<Shared>) -> Result<()> {
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("serve metrics at {address}: set daemon.http to an address that is free"))?;
    let hiccups = Arc::new(Hiccups::default());
    tracing::info!(address = %listener.local_addr()?, "metrics");
    tokio::spawn(hiccups::watch(hiccups.clone()));
    tokio::spawn(http::serve(listener, shared, hiccups));
    Ok(())
}
