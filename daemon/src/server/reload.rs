//! A reload of the configuration while the daemon runs.

use super::registry::{Changes, Registry};
use super::state::ServerState;
use super::{Carriers, Options, journals, warn, without_file};
use crate::config::Config;
use anyhow::Result;

/// Reads the configuration again, on another thread, because a file system can delay its readers for any time. An error is returned as
/// text.
async fn load_again(options: &Options) -> Result<Config, String> {
    let Some(path) = options.config_path.clone() else { return Ok(without_file()) };
    let loaded = tokio::task::spawn_blocking(move || Config::load_again(&path).map_err(|e| e.to_string()));
    loaded.await.map_err(|e| e.to_string())?
}

/// Returns the names of the settings that apply only after a restart of the daemon, and that differ from those at its start.
fn settings_of_start(options: &Options, started: &Config, wanted: &Config) -> Vec<&'static str> {
    let (before, now) = (&started.daemon, &wanted.daemon);
    let differs = [
        ("socket", options.socket.is_none() && before.socket != now.socket),
        ("socket_mode", before.socket_mode != now.socket_mode),
        ("http", before.http != now.http),
        ("events_queue", started.limits.events_queue != wanted.limits.events_queue),
    ];
    differs.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
}

/// Reads the configuration again, and applies it. `started` is the configuration with which the daemon started. After an error, nothing
/// has changed.
pub(super) async fn reload(
    options: &Options,
    shared: &ServerState,
    carriers: &mut Carriers,
    started: &Config,
) {
    let wanted = match load_again(options).await {
        Ok(wanted) => wanted,
        Err(e) => return shared.events.reloaded(Err(&e)),
    };
    match apply(shared, &wanted).await {
        Ok(changes) => {
            shared.limits().reload(wanted.limits.clone());
            let mut detail = format!(
                "added {:?}, removed {:?}, kept as made until the next publisher {:?}",
                changes.added, changes.removed, changes.kept
            );
            let waiting = settings_of_start(options, started, &wanted);
            if !waiting.is_empty() {
                detail += &format!(", not in force until the daemon restarts {waiting:?}");
                tracing::warn!(
                    "configuration: not in force until the daemon restarts: {}",
                    waiting.join(", ")
                );
            }
            shared.events.reloaded(Ok(&detail));
            warn(&wanted, true);
            carriers.apply(&wanted);
        }
        Err(e) => shared.events.reloaded(Err(&format!("{e:#}"))),
    }
}

/// Makes the memory that a configuration needs, on another thread. Then applies the whole configuration. After an error, nothing has
/// changed.
async fn apply(shared: &ServerState, wanted: &Config) -> Result<Changes> {
    let missing = shared.registry().missing(wanted)?;
    let channels = wanted.channels.clone();
    let made = tokio::task::spawn_blocking(move || {
        journals::note_written(&channels);
        Registry::make_missing(missing)
    });
    let made = made.await??;
    let changes = shared.registry().apply(wanted, made)?;
    shared.events.admit(wanted);
    Ok(changes)
}
