//! A client that can break the rules: it sends any packet to a daemon.

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use serde_json::{Value, json};
use shmcast::sys::handoff;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// A connection on which a test can send any packet.
pub struct Raw {
    pub socket: OwnedFd,
}

impl Raw {
    pub fn connect(socket: &Path) -> Self {
        let socket = handoff::connect(socket).unwrap();
        set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_secs(20))).unwrap();
        set_socket_timeout(&socket, Timeout::Send, Some(Duration::from_secs(20))).unwrap();
        Self { socket }
    }

    /// Connects to a daemon, and sends the greeting.
    pub fn greeted(socket: &Path) -> Self {
        let raw = Self::connect(socket);
        assert_eq!(raw.ask(&json!({"request": "hello", "version": 2}), &[])["reply"], "welcome");
        raw
    }

    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        handoff::send(&self.socket, bytes, descriptors)
    }

    pub fn ask(&self, request: &Value, descriptors: &[BorrowedFd<'_>]) -> Value {
        self.ask_for_files(request, descriptors).0
    }

    pub fn ask_for_files(&self, request: &Value, descriptors: &[BorrowedFd<'_>]) -> (Value, Vec<File>) {
        self.send(request.to_string().as_bytes(), descriptors).unwrap();
        self.receive().expect("an answer")
    }

    /// The next packet; `None` when the daemon has hung up.
    pub fn receive(&self) -> Option<(Value, Vec<File>)> {
        let mut buffer = vec![0; handoff::MAX_PACKET];
        match handoff::receive(&self.socket, &mut buffer) {
            Ok(packet) if packet.length == 0 => None,
            Ok(packet) => {
                let value = serde_json::from_slice(&buffer[..packet.length]).expect("the daemon speaks JSON");
                Some((value, packet.descriptors))
            }
            // The daemon hung up before it had read all our packets. Its last reply, if there is one, still follows.
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => self.receive(),
            Err(e) => panic!("the daemon neither answered nor hung up: {e}"),
        }
    }

    /// Reads all packets until the daemon closes the connection. The last packet must be a refusal with `code`.
    pub fn assert_cut_off(&self, code: &str) {
        let mut last = Value::Null;
        while let Some((said, _)) = self.receive() {
            last = said;
        }
        assert_eq!((&last["reply"], &last["code"]), (&json!("refused"), &json!(code)), "{last}");
        assert!(last["why"].as_str().is_some_and(|why| why.len() > 5), "{last}");
    }

    /// Sends a request that the daemon must refuse with `code`. After that, the connection must stay open. Returns the daemon's reason.
    pub fn assert_refused(&self, request: &Value, descriptors: &[BorrowedFd<'_>], code: &str) -> String {
        let answer = self.ask(request, descriptors);
        assert_eq!((&answer["reply"], &answer["code"]), (&json!("refused"), &json!(code)), "{answer}");
        assert_eq!(self.ask(&json!({"request": "mapped"}), &[])["reply"], "done", "after {request}");
        answer["why"].as_str().unwrap().to_owned()
    }

    /// Attaches as a reader: segment, lock, page and charter.
    pub fn subscribe(&self, channel: &str) -> [File; 4] {
        let (answer, files) = self.ask_for_files(&subscribe(channel, false), &[]);
        assert_eq!(answer["reply"], "subscribed", "{answer}");
        files.try_into().unwrap()
    }
}

pub fn subscribe(channel: &str, resume: bool) -> Value {
    json!({"request": "subscribe", "channel": channel, "resume": resume, "park": false})
}

pub fn publish(channel: &str, resume: bool) -> Value {
    json!({"request": "publish", "channel": channel, "resume": resume, "anew": false})
}

pub fn fds(files: &[File]) -> Vec<BorrowedFd<'_>> {
    files.iter().map(AsFd::as_fd).collect()
}
