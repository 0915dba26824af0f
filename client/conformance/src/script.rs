//! A scripted daemon that follows CONTROL.md. A test case sets the packets that this daemon sends, and reads the requests that it received.

use crate::stage::{nameless, scratch};
use anyhow::{Context, Result, bail};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
};
use serde_json::Value;
use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The longest wait for a client.
pub const PATIENCE: Duration = Duration::from_secs(10);
const MOST: usize = 8;

/// A packet: its text, and the files that are sent with it.
#[derive(Debug, Clone)]
pub struct Packet {
    /// The bytes of the text.
    pub text: Vec<u8>,
    /// The files.
    pub files: Vec<Arc<File>>,
}

impl Packet {
    /// Makes a packet with only a text.
    pub fn text(text: impl Into<Vec<u8>>) -> Self {
        Self { text: text.into(), files: Vec::new() }
    }
}

/// The daemon's answers. If no answer is left for a request, the daemon ends the connection.
#[derive(Debug, Clone, Default)]
pub struct Scene {
    /// The answers to the `hello` requests of a connection, in turn.
    pub hello: Vec<Packet>,
    /// The answers to `subscribe`.
    pub subscribe: Vec<Packet>,
    /// The answers to `gate`.
    pub gate: Vec<Packet>,
}

/// A request that the daemon received, with the identities of the files that came with it.
#[derive(Debug, Clone)]
pub struct Heard {
    /// The request.
    pub request: Value,
    /// The device and the inode of each file.
    pub files: Vec<(u64, u64)>,
}

#[derive(Debug, Default)]
struct State {
    scene: Scene,
    heard: Vec<Heard>,
    attached: Vec<Arc<OwnedFd>>,
    is_over: bool,
}

/// The scripted daemon. Dropping this value ends the daemon.
#[derive(Debug)]
pub struct Script {
    /// The directory of the daemon's socket.
    pub dir: TempDir,
    state: Arc<Mutex<State>>,
}

/// Returns the identity of a file.
///
/// # Errors
/// If the system refuses.
pub fn identity(file: &File) -> Result<(u64, u64)> {
    let meta = file.metadata()?;
    Ok((meta.dev(), meta.ino()))
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Script {
    /// Starts the daemon.
    ///
    /// # Errors
    /// If it cannot listen.
    pub fn start(scene: Scene) -> Result<Self> {
        let dir = scratch()?;
        let state = Arc::new(Mutex::new(State { scene, ..State::default() }));
        let this = Self { dir, state };
        let flags = SocketFlags::CLOEXEC;
        let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::net::bind(&listener, &SocketAddrUnix::new(this.socket())?)?;
        rustix::net::listen(&listener, 64)?;
        let state = Arc::clone(&this.state);
        std::thread::spawn(move || {
            while let Ok(connection) = rustix::net::accept_with(&listener, flags) {
                if lock(&state).is_over {
                    return;
                }
                let state = Arc::clone(&state);
                std::thread::spawn(move || serve(&Arc::new(connection), &state));
            }
        });
        Ok(this)
    }

    /// The daemon's socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("control.sock")
    }

    /// Sets the daemon's answers from now on.
    pub fn set(&self, scene: Scene) {
        lock(&self.state).scene = scene;
    }

    /// Returns the requests that have arrived since the last call.
    pub fn heard(&self) -> Vec<Heard> {
        std::mem::take(&mut lock(&self.state).heard)
    }

    /// Waits for a `subscribe`, and returns it.
    ///
    /// # Errors
    /// If no `subscribe` arrives in time.
    pub fn wait_for_subscribe(&self) -> Result<Heard> {
        let until = Instant::now() + PATIENCE;
        loop {
            let heard = self.heard();
            if let Some(found) = heard.into_iter().find(|heard| heard.request["request"] == "subscribe") {
                return Ok(found);
            }
            if Instant::now() > until {
                bail!("nobody subscribes");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends a packet to the attached client.
    ///
    /// # Errors
    /// If no client is attached.
    pub fn push(&self, packet: &Packet) -> Result<()> {
        let attached = lock(&self.state).attached.last().cloned().context("nobody is attached")?;
        send(&attached, packet)
    }

    /// Ends all connections of attached clients, as a dying daemon does.
    pub fn hang_up(&self) {
        for connection in lock(&self.state).attached.drain(..) {
            let _ = rustix::net::shutdown(&*connection, Shutdown::Both);
        }
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        lock(&self.state).is_over = true;
        self.hang_up();
        // This connection wakes the thread that listens.
        let _ = SocketAddrUnix::new(self.socket()).map(|address| {
            let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None);
            socket.map(|socket| rustix::net::connect(&socket, &address))
        });
    }
}

/// Answers one connection until the connection ends.
fn serve(connection: &Arc<OwnedFd>, state: &Mutex<State>) -> Option<()> {
    let mut hellos = 0;
    loop {
        let heard = receive(connection)?;
        let mut state = lock(state);
        let name = heard.request["request"].as_str().unwrap_or_default().to_owned();
        state.heard.push(heard);
        let answer = if name == "hello" {
            hellos += 1;
            state.scene.hello.get(hellos - 1).cloned()
        } else if name == "gate" {
            state.scene.gate.first().cloned()
        } else {
            let answer = state.scene.subscribe.first().cloned();
            if answer.as_ref().is_some_and(|answer| answer.text.starts_with(br#"{"reply":"subscribed""#)) {
                state.attached.push(Arc::clone(connection));
            }
            answer
        };
        // While this lock is held, no other packet goes to this client. So the answer is the first packet.
        if answer.is_none_or(|answer| send(connection, &answer).is_err()) {
            let _ = rustix::net::shutdown(connection, Shutdown::Both);
            return None;
        }
    }
}

fn send(connection: &OwnedFd, packet: &Packet) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let files: Vec<_> = packet.files.iter().map(|file| file.as_fd()).collect();
    if !files.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&files));
    }
    rustix::net::sendmsg(connection, &[IoSlice::new(&packet.text)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive(connection: &OwnedFd) -> Option<Heard> {
    let mut bytes = vec![0; 65_536];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got =
        rustix::net::recvmsg(connection, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags).ok()?;
    let mut files = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            files.extend(descriptors.map(File::from).filter_map(|file| identity(&file).ok()));
        }
    }
    if got.bytes == 0 {
        return None;
    }
    Some(Heard { request: serde_json::from_slice(&bytes[..got.bytes]).ok()?, files })
}

/// A charter: the daemon's decisions about the generations of a channel (SPEC.md 4.2).
#[derive(Debug, Clone)]
pub struct Charter(pub Arc<File>);

/// A decision of a charter about one generation.
#[derive(Debug, Clone, Copy)]
pub enum Word {
    /// All messages are valid.
    Open,
    /// Readers of a strict channel must not return any message until the next decision.
    Closing,
    /// Only the messages below this sequence are valid.
    Cut(u64),
    /// Only the messages below this sequence are valid, and the stream ends there.
    Ended(u64),
}

impl Charter {
    /// Makes a charter that has no decision about any generation yet.
    ///
    /// # Errors
    /// If the file cannot be made.
    pub fn new() -> Result<Self> {
        let file = nameless()?;
        file.set_len(8192)?;
        file.write_all_at(b"SHMCHRT1\x02", 0)?;
        let (length, name) = (1_u64.to_le_bytes(), b"t");
        file.write_all_at(&length, 40)?;
        file.write_all_at(name, 48)?;
        Ok(Self(Arc::new(file)))
    }

    /// Stores a decision.
    ///
    /// # Errors
    /// If the file cannot be written to.
    pub fn set(&self, generation: u64, word: Word) -> Result<()> {
        let bits = match word {
            Word::Open => 1 << 62,
            Word::Closing => 2 << 62,
            Word::Cut(cut) => 3 << 62 | cut,
            Word::Ended(cut) => 3 << 62 | 1 << 61 | cut,
        };
        let word: u64 = bits | (generation & 0x1fff) << 48;
        Ok(self.0.write_all_at(&word.to_le_bytes(), 8 * (512 + 16 * (generation % 32)))?)
    }
}
