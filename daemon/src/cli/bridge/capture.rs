//! `--pcap`: the capture of a bridge's packets.

use crate::cli::figures::grouped;
use crate::cli::say::note;
use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use shmcast_bridge::pcap::{CaptureFile, Tap};
use shmcast_bridge::spec::BridgeSpec;
use std::path::PathBuf;
use std::process::ExitCode;

/// The option `--pcap`.
#[derive(Debug, clap::Args)]
pub(super) struct CaptureArg {
    /// Copy every packet to this file, for Wireshark
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
}

impl CaptureArg {
    /// Begins the capture, if the user asked for one.
    pub(super) fn begin(&self, spec: &BridgeSpec, json: bool) -> Result<Capture> {
        let Some(path) = &self.pcap else { return Ok(Capture { file: None, is_told: false }) };
        if json && CaptureFile::is_stdout(path) {
            bail!(
                "--json prints the counters on stdout, to which --pcap writes the packets: give --pcap a file"
            );
        }
        Ok(Capture { file: Some(CaptureFile::create(path, spec.payload_bytes)?), is_told: false })
    }

    /// Refuses `--pcap` for a bridge through an engine, which sends no packets of its own.
    pub(super) fn refuse(&self) -> Result<()> {
        match &self.pcap {
            Some(_) => bail!("--pcap is for lines: what goes through servers is no packet of ours"),
            None => Ok(()),
        }
    }
}

/// The capture of a running bridge, if there is one.
pub(super) struct Capture {
    file: Option<CaptureFile>,
    is_told: bool,
}

impl Capture {
    pub(super) fn tap(&self) -> Option<Tap> {
        self.file.as_ref().map(|file| file.tap.clone())
    }

    /// Reports once that the file takes no more packets.
    pub(super) fn look(&mut self, progress: &ProgressBar, channel: &str) {
        let broken = self.file.as_ref().filter(|_| !self.is_told).and_then(CaptureFile::broken);
        if let Some(broken) = broken {
            self.is_told = true;
            progress.suspend(|| {
                note!(
                    "{channel}: {broken}: the bridge goes on without the capture; free space, or start the capture's reader, \
                     and start the bridge again"
                )
            });
        }
    }

    /// Closes the capture. Reports how many packets were left out, if there are any.
    pub(super) fn finish(self) -> Result<()> {
        let Some(file) = self.file else { return Ok(()) };
        let captured = file.finish().context("write the capture --pcap")?;
        if captured.dropped > 0 {
            let (packets, dropped) = (grouped(captured.packets), grouped(captured.dropped));
            note!("capture: {packets} packets written, {dropped} left out: the disk was too slow");
        }
        Ok(())
    }
}

/// Combines the outcome of a bridge with that of its capture. If one of the two failed, returns this error. If both failed, reports the
/// capture's error and returns the bridge's error.
pub(super) fn outcome_of(captured: Result<()>, outcome: Result<ExitCode>) -> Result<ExitCode> {
    match (outcome, captured) {
        (Ok(_), Err(error)) => Err(error),
        (Err(error), Err(of_capture)) => {
            note!("{of_capture:#}");
            Err(error)
        }
        (outcome, Ok(())) => outcome,
    }
}
