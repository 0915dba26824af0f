//! Runs the product's commands and logs their output. Each command has a time limit.

use super::World;
use crate::log::Deed;
use anyhow::{Context, Result};
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The time limit of a tool.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs a command and logs its output. If the command does not end in time, kills it and logs no exit code.
pub(super) fn run(host: usize, mut command: Command, logs: &Path) -> Result<Deed> {
    let started = Instant::now();
    let arguments: Vec<String> = command.get_args().map(|a| a.to_string_lossy().into_owned()).collect();
    let [out, err] = ["tool.out", "tool.err"].map(|name| logs.join(name));
    command.stdin(Stdio::null()).stdout(File::create(&out)?).stderr(File::create(&err)?);
    let mut child = command.spawn().context("start a tool")?;
    let code = loop {
        match child.try_wait()? {
            Some(status) => break status.code(),
            None if started.elapsed() > PATIENCE => {
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    let text = |path| std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let took_ms = started.elapsed().as_millis() as u64;
    Ok(Deed::Ran { host, arguments, code, out: text(out)?, err: text(err)?, took_ms })
}

impl World<'_> {
    /// Fetches the metrics of a host's daemon from this port.
    pub(super) fn scrape(&self, host: usize, port: u16) -> Result<Deed> {
        match &self.network {
            Some(network) => network.at(host, || scrape(host, port)),
            None => Ok(scrape(host, port)),
        }
    }
}

/// Fetches the metrics of the daemon at this port.
fn scrape(host: usize, port: u16) -> Deed {
    let started = Instant::now();
    let fetched = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&([127, 0, 0, 1], port).into(), PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    let (code, out, err) = match fetched() {
        Ok(out) => (Some(0), out, String::new()),
        Err(e) => (Some(1), String::new(), e.to_string()),
    };
    let took_ms = started.elapsed().as_millis() as u64;
    Deed::Ran { host, arguments: vec!["GET /metrics".into()], code, out, err, took_ms }
}
