//! Servers of NATS that belong to a test: alone, as a cluster of three, and behind a relay.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The server's program; `None`, said once for each test, without one.
pub(crate) fn program(test: &str) -> Option<&'static Path> {
    static PROGRAM: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let found = PROGRAM.get_or_init(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.ci/nats-server");
        let output = Command::new(script).output().map_err(|e| e.to_string())?;
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        match output.status.success() {
            true => Ok(PathBuf::from(said(&output.stdout))),
            false => Err(said(&output.stderr)),
        }
    });
    match found {
        Ok(program) => Some(program),
        Err(why) => {
            eprintln!("SKIPPED {test}: {why}");
            None
        }
    }
}

/// A port that nobody has at the moment.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A server, killed at the end of the test.
pub(crate) struct Server {
    program: PathBuf,
    dir: PathBuf,
    pub(crate) port: u16,
    child: Option<Child>,
}

/// A server with its store in a temporary directory, while no other test has one; `None`, said once for each test, without a program.
pub(crate) fn alone(test: &str) -> Option<(MutexGuard<'static, ()>, TempDir, Server)> {
    let (turn, program) = (crate::turn(), program(test)?);
    let dir = tempfile::tempdir().unwrap();
    let server = Server::alone(program, dir.path());
    Some((turn, dir, server))
}

impl Server {
    /// A server alone, with its store below `dir`.
    pub(crate) fn alone(program: &Path, dir: &Path) -> Server {
        Server::with(program, dir, "")
    }

    /// A server with more in its configuration.
    pub(crate) fn with(program: &Path, dir: &Path, more: &str) -> Server {
        fs::create_dir_all(dir).unwrap();
        let port = free_port();
        let store = dir.join("store");
        let text = format!(
            "listen: \"127.0.0.1:{port}\"\njetstream {{ store_dir: \"{}\" }}\n{more}\n",
            store.display()
        );
        fs::write(dir.join("server.conf"), text).unwrap();
        let mut server = Server { program: program.to_owned(), dir: dir.to_owned(), port, child: None };
        server.start();
        server
    }

    pub(crate) fn start(&mut self) {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.dir.join("log")).unwrap();
        let mut command = Command::new(&self.program);
        command.arg("-c").arg(self.dir.join("server.conf")).stdout(Stdio::null()).stderr(log);
        self.child = Some(command.spawn().unwrap());
        let deadline = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(Instant::now() < deadline, "the server does not listen: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    pub(crate) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(child) = &self.child {
            kill(Pid::from_raw(child.id() as i32), signal).unwrap();
        }
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Changes the configuration, which the server reads again.
    pub(crate) fn rewrite(&self, change: impl FnOnce(String) -> String) {
        let path = self.dir.join("server.conf");
        fs::write(&path, change(fs::read_to_string(&path).unwrap())).unwrap();
        self.signal(Signal::SIGHUP);
    }

    /// Removes all that the server has stored. It must not run.
    pub(crate) fn empty(&self) {
        assert!(self.child.is_none());
        fs::remove_dir_all(self.dir.join("store")).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Three servers that keep a copy each.
pub(crate) struct Cluster {
    pub(crate) servers: Vec<Server>,
}

impl Cluster {
    pub(crate) fn new(program: &Path, dir: &Path) -> Cluster {
        let ports = [free_port(), free_port(), free_port()];
        let routes: Vec<String> = ports.iter().map(|port| format!("\"nats://127.0.0.1:{port}\"")).collect();
        let server = |n: usize| {
            let more = format!(
                "server_name: s{n}\ncluster {{ name: c, listen: \"127.0.0.1:{}\", routes: [{}] }}",
                ports[n],
                routes.join(", ")
            );
            Server::with(program, &dir.join(format!("s{n}")), &more)
        };
        Cluster { servers: (0..3).map(server).collect() }
    }

    /// The addresses of all three.
    pub(crate) fn urls(&self) -> String {
        self.servers.iter().map(Server::url).collect::<Vec<_>>().join(",")
    }

    /// The server of this name, as streams name their leader.
    pub(crate) fn named(&mut self, name: &str) -> &mut Server {
        &mut self.servers[name.strip_prefix('s').unwrap().parse::<usize>().unwrap()]
    }
}

/// A relay to a server that holds everything back for a while, and breaks its connections when told to.
pub(crate) struct Relay {
    pub(crate) port: u16,
    breaks: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
}

impl Relay {
    pub(crate) fn new(to: u16, delay: Duration) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let relay = Relay { port, breaks: Arc::default(), is_over: Arc::default() };
        let (breaks, is_over) = (relay.breaks.clone(), relay.is_over.clone());
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(far) = TcpStream::connect(("127.0.0.1", to)) else { continue };
                for (from, to) in [(&near, &far), (&far, &near)] {
                    carry(from.try_clone().unwrap(), to.try_clone().unwrap(), delay, breaks.clone());
                }
            }
        });
        relay
    }

    pub(crate) fn cut(&self) {
        self.breaks.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.cut();
        // Wakes the listening thread.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

/// Carries one direction of a connection: one thread reads, another writes what is old enough.
fn carry(mut from: TcpStream, mut to: TcpStream, delay: Duration, breaks: Arc<AtomicUsize>) {
    let (give, take) = std::sync::mpsc::channel::<(Instant, Vec<u8>)>();
    let begun = breaks.load(Ordering::Relaxed);
    from.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let (from_too, to_too) = (from.try_clone().unwrap(), to.try_clone().unwrap());
    std::thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while breaks.load(Ordering::Relaxed) == begun {
            match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(size) => drop(give.send((Instant::now() + delay, buffer[..size].to_vec()))),
                Err(e)
                    if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
                Err(_) => break,
            }
        }
        // Half of a record may have gone: that is what a broken connection is like.
        let _ = from_too.shutdown(Shutdown::Both);
        let _ = to_too.shutdown(Shutdown::Both);
    });
    std::thread::spawn(move || {
        for (due, bytes) in take {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                return;
            }
        }
    });
}
