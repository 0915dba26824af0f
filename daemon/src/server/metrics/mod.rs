//! The daemon's HTTP server for Prometheus and other programs: `/metrics`, `/healthz` and `/channels.json`.
//!
//! All metrics are read from the registry and the reader pages when a request arrives. So no value is counted twice, and measured programs
//! do no additional work. The server runs on the daemon's event loop. It blocks the loop only while it reads all channels once.

use crate::server::state::ServerState;
use anyhow::{Context, Result};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;

mod bridges;
mod buckets;
mod exposition;
mod families;
mod gates;
mod hiccups;
mod http;
mod journals;
mod snapshot;
mod text;

pub use hiccups::Hiccups;
pub use snapshot::{ChannelFigures, MAX_READERS, OTHERS, ReaderFigures, Snapshot};
pub use text::render;

/// Listens at `address`, and serves metrics from now on. Port 0 means any free port, which the log names.
///
/// # Errors
/// If it cannot listen at `address`.
pub async fn spawn(address: SocketAddr, shared: Arc<ServerState>) -> Result<()> {
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("serve metrics at {address}: set daemon.http to an address that is free"))?;
    let hiccups = Arc::new(Hiccups::default());
    tracing::info!(address = %listener.local_addr()?, "metrics");
    tokio::spawn(hiccups::watch(hiccups.clone()));
    tokio::spawn(http::serve(listener, shared, hiccups));
    Ok(())
}
