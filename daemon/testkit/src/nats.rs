//! Servers of NATS that belong to a test: alone, as a cluster of three, and behind a relay.

use crate::place::{free_port, skip};
use crate::process::Process;
use crate::turn::{Turn, turn};
use crate::wait::wait_until;
use nix::sys::signal::Signal;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Returns the path of the server's program. Without one, returns `None`, which is printed once for each test.
pub fn program(test: &str) -> Option<&'static Path> {
    static PROGRAM: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let found = PROGRAM.get_or_init(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.ci/nats-server");
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
            skip(test, why);
            None
        }
    }
}

/// A server, killed at the end of the test.
pub struct Server {
    program: PathBuf,
    dir: PathBuf,
    pub port: u16,
    process: Option<Process>,
}

/// Starts a server with its store in a temporary directory, and takes a turn. Returns `None` without a program, which is printed once for
/// each test.
pub fn alone(test: &str) -> Option<(Turn, TempDir, Server)> {
    let (turn, program) = (turn(), program(test)?);
    let dir = tempfile::tempdir().unwrap();
    let server = Server::alone(program, dir.path());
    Some((turn, dir, server))
}

impl Server {
    /// Starts a single server, with its store below `dir`.
    pub fn alone(program: &Path, dir: &Path) -> Server {
        Server::with(program, dir, "")
    }

    /// Starts a server with additional lines in its configuration.
    pub fn with(program: &Path, dir: &Path, more: &str) -> Server {
        fs::create_dir_all(dir).unwrap();
        let port = free_port();
        let store = dir.join("store");
        let text = format!(
            "listen: \"127.0.0.1:{port}\"\njetstream {{ store_dir: \"{}\" }}\n{more}\n",
            store.display()
        );
        fs::write(dir.join("server.conf"), text).unwrap();
        let mut server = Server { program: program.to_owned(), dir: dir.to_owned(), port, process: None };
        server.start();
        server
    }

    pub fn start(&mut self) {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.dir.join("log")).unwrap();
        let mut command = Command::new(&self.program);
        command.arg("-c").arg(self.dir.join("server.conf")).stdout(Stdio::null()).stderr(log);
        let mut process = Process::start(&mut command);
        wait_until("a server of NATS that listens", || {
            assert!(process.is_alive(), "the server has ended: {}", self.log());
            TcpStream::connect(("127.0.0.1", self.port)).is_ok()
        });
        self.process = Some(process);
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Returns the address with an account in it, for a configuration.
    pub fn url_of(&self, account: &str) -> String {
        self.url().replace("nats://", &format!("nats://{account}@"))
    }

    /// Returns the address, and the option with a file that contains the account `USER:PASSWORD`, for a command.
    pub fn address_of(&self, account: &str) -> String {
        format!("{} {}", self.url(), self.account(account))
    }

    /// Returns the option with a file that contains an account.
    pub fn account(&self, account: &str) -> String {
        let user = account.split(':').next().unwrap_or_default();
        let file = self.dir.join(format!("account-{user}"));
        fs::write(&file, account).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        format!("--set nats.account={}", file.display())
    }

    pub fn signal(&self, signal: Signal) {
        if let Some(process) = &self.process {
            process.signal(signal);
        }
    }

    pub fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            process.kill();
        }
    }

    /// Changes the configuration, which the server reads again.
    pub fn rewrite(&self, change: impl FnOnce(String) -> String) {
        let path = self.dir.join("server.conf");
        fs::write(&path, change(fs::read_to_string(&path).unwrap())).unwrap();
        self.signal(Signal::SIGHUP);
    }

    /// Removes everything that the server has stored. The server must not run.
    pub fn empty(&self) {
        assert!(self.process.is_none());
        fs::remove_dir_all(self.dir.join("store")).unwrap();
    }
}

/// Three servers, each of which keeps a copy.
pub struct Cluster {
    pub servers: Vec<Server>,
}

impl Cluster {
    pub fn new(program: &Path, dir: &Path) -> Cluster {
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
    pub fn urls(&self) -> String {
        self.servers.iter().map(Server::url).collect::<Vec<_>>().join(",")
    }

    /// The server of this name, as streams name their leader.
    pub fn named(&mut self, name: &str) -> &mut Server {
        &mut self.servers[name.strip_prefix('s').unwrap().parse::<usize>().unwrap()]
    }
}

/// A relay to a server. It delays everything for a while, and breaks its connections on request.
pub struct Relay {
    pub port: u16,
    breaks: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
}

impl Relay {
    pub fn new(to: u16, delay: Duration) -> Relay {
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

    pub fn cut(&self) {
        self.breaks.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.cut();
        // This wakes the listening thread.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

/// Carries one direction of a connection: one thread reads, another writes bytes that are old enough.
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
        // Half of a record may have been sent: this is how a connection breaks.
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
