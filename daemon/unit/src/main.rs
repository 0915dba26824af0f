//! The program `under-unit UNIT RUNTIME_DIR PROGRAM [ARGUMENT]...` runs a program with the restrictions of a
//! systemd unit, without systemd.
#![forbid(unsafe_code)]

use anyhow::{Context, Result, bail};
use shmcast_under_unit::{Settings, exec};
use std::convert::Infallible;
use std::ffi::OsString;
use std::path::Path;

fn main() -> Result<Infallible> {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let [unit, runtime, program @ ..] = words.as_slice() else {
        bail!("usage: under-unit UNIT RUNTIME_DIR PROGRAM [ARGUMENT]...");
    };
    let text = std::fs::read_to_string(unit).with_context(|| format!("read {}", unit.display()))?;
    exec(&Settings::read(&text)?, Path::new(runtime), program)
}
