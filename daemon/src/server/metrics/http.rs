//! A small HTTP server for a few local clients. It serves GET and HEAD of three paths, one request per connection.
//!
//! No client can block other clients. A connection lasts at most ten seconds, and if there are too many connections, the oldest one is
//! closed. Requests must be small, and their bodies are not read. Each page is computed at most ten times a second.

use super::{Hiccups, Snapshot, render};
use crate::server::state::ServerState;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

/// The limit for simultaneous connections. One more connection closes the oldest one.
const MAX_CONNECTIONS: usize = 64;
/// Time limit of a whole connection.
const PATIENCE: Duration = Duration::from_secs(10);
/// Largest head of a request in bytes.
const MAX_HEAD: usize = 16 << 10;
/// A page that is younger than this is sent again, and not computed anew.
const FRESH: Duration = Duration::from_millis(100);

struct Server {
    shared: Arc<ServerState>,
    hiccups: Arc<Hiccups>,
    metrics: Mutex<Option<(Instant, Bytes)>>,
    channels: Mutex<Option<(Instant, Bytes)>>,
}

/// Serves for ever.
pub(super) async fn serve(listener: TcpListener, shared: Arc<ServerState>, hiccups: Arc<Hiccups>) {
    let server = Arc::new(Server { shared, hiccups, metrics: Mutex::default(), channels: Mutex::default() });
    let mut connections: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(e) => {
                tracing::error!("cannot accept an HTTP connection: {e}");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        connections.retain(|connection| !connection.is_finished());
        if connections.len() >= MAX_CONNECTIONS
            && let Some(oldest) = connections.pop_front()
        {
            oldest.abort();
        }
        connections.push_back(tokio::spawn(converse(stream, server.clone())).abort_handle());
    }
}

async fn converse(stream: TcpStream, server: Arc<Server>) {
    let answer = service_fn(|request| {
        let response = server.answer(&request);
        async { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), answer);
    match timeout(PATIENCE, connection).await {
        Ok(Ok(())) => {}
        // The daemon's operator cannot correct the errors of clients, so they are logged only at the level `debug`.
        Ok(Err(e)) => tracing::debug!("HTTP: {e}"),
        Err(_) => tracing::debug!("HTTP: too slow, cut off"),
    }
}

impl Server {
    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        const TEXT: &str = "text/plain; charset=utf-8";
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut response = respond(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD\n".into());
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        match request.uri().path() {
            "/metrics" => {
                let text =
                    fresh(&self.metrics, || render(&Snapshot::take(&self.shared, self.hiccups.clone())));
                respond(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text)
            }
            "/channels.json" => {
                let json = fresh(&self.channels, || {
                    let channels = self.shared.registry().report_all();
                    serde_json::to_string(&channels)
                        .expect("statuses have string keys and no failing serializers")
                });
                respond(StatusCode::OK, "application/json", json)
            }
            "/healthz" => respond(StatusCode::OK, TEXT, "ok\n".into()),
            _ => respond(StatusCode::NOT_FOUND, TEXT, "try /metrics, /healthz or /channels.json\n".into()),
        }
    }
}

fn respond(status: StatusCode, content_type: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Returns the stored answer if it is younger than [`FRESH`], and otherwise a new one.
fn fresh(kept: &Mutex<Option<(Instant, Bytes)>>, make: impl FnOnce() -> String) -> Bytes {
    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    match &*kept {
        Some((made, text)) if made.elapsed() < FRESH => text.clone(),
        _ => {
            let text = Bytes::from(make());
            *kept = Some((Instant::now(), text.clone()));
            text
        }
    }
}
