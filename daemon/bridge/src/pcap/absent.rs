//! Replaces the types of captures if the feature `captures` is off. No value of these types can exist.

use super::results::{CaptureCounters, Captured, Datagram, Protocols};
use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::path::Path;

/// The error that every capture of this build returns.
#[derive(Debug, thiserror::Error)]
#[error(
    "this build has no captures: it was built without the feature `captures`, which `cargo build -p shmcast-daemon --features \
     captures` has"
)]
pub struct CaptureError;

/// The error that every capture file of this build returns.
pub type CaptureFileError = CaptureError;

/// Replaces the type that reads a capture.
#[derive(Debug)]
pub struct Capture<'a> {
    /// The counters so far.
    pub counters: CaptureCounters,
    /// The number of packets of each protocol that were read so far.
    pub protocols: Protocols,
    never: Infallible,
    from: PhantomData<&'a ()>,
}

impl Capture<'_> {
    /// Refuses to read.
    ///
    /// # Errors
    /// [`CaptureError`].
    pub fn open(_from: impl Read + Send, _ports: &[u16]) -> Result<Self, CaptureError> {
        Err(CaptureError)
    }

    /// Cannot be called.
    ///
    /// # Errors
    /// None.
    pub fn read(&mut self) -> Result<Option<Datagram<'_>>, CaptureError> {
        match self.never {}
    }
}

/// Replaces the handle over which a bridge's threads pass packets to a capture.
#[derive(Debug, Clone)]
pub struct Tap(Infallible);

impl Tap {
    /// Cannot be called.
    pub fn record(&self, _time_ns: u64, _from: SocketAddr, _to: SocketAddr, _payload: &[u8]) {
        match self.0 {}
    }
}

/// Replaces the type of a capture that a separate thread writes.
#[derive(Debug)]
pub struct CaptureFile {
    /// The tap of the file, to be cloned for each thread.
    pub tap: Tap,
}

impl CaptureFile {
    /// Refuses to write.
    ///
    /// # Errors
    /// [`CaptureFileError`].
    pub fn create(_path: &Path, _payload_bytes: usize) -> Result<CaptureFile, CaptureFileError> {
        Err(CaptureError)
    }

    /// Returns false, because there are no captures.
    pub fn is_stdout(_path: &Path) -> bool {
        false
    }

    /// Cannot be called.
    pub fn broken(&self) -> Option<String> {
        match self.tap.0 {}
    }

    /// Cannot be called.
    ///
    /// # Errors
    /// None.
    pub fn finish(self) -> Result<Captured, CaptureFileError> {
        match self.tap.0 {}
    }
}

/// Replaces the type of a capture that the caller's thread writes.
#[derive(Debug)]
pub struct PacketFile<W: Write>(Infallible, PhantomData<W>);

impl<W: Write> PacketFile<W> {
    /// Always refuses to write, because captures are not built in.
    ///
    /// # Errors
    /// An error that contains [`CaptureError`].
    pub fn begin(_out: W) -> io::Result<Self> {
        Err(io::Error::other(CaptureError))
    }

    /// Cannot be called.
    ///
    /// # Errors
    /// None.
    pub fn write(
        &mut self,
        _time_ns: u64,
        _from: SocketAddr,
        _to: SocketAddr,
        _payload: &[u8],
    ) -> io::Result<()> {
        match self.0 {}
    }

    /// Cannot be called.
    ///
    /// # Errors
    /// None.
    pub fn finish(self) -> io::Result<()> {
        match self.0 {}
    }
}
