//! NATS servers for a test: alone, as a cluster of three, and behind a relay.

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

/// Returns the path of the server's program. If there is no such program, prints that `test` is skipped, and returns `None`.
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

/// The directories and the address of a server, and additional lines of its configuration.
#[derive(Debug, Clone)]
pub struct Site {
    /// The directory of the server's configuration and log.
    pub dir: PathBuf,
    /// The directory in which the server stores its streams.
    pub store: PathBuf,
    pub host: String,
    pub port: u16,
    /// The network namespace in which the server runs. `None` means the namespace of the test.
    pub namespace: Option<String>,
    /// Additional settings of the section `jetstream`.
    pub jetstream: String,
    /// Additional lines of the configuration.
    pub more: String,
}

impl Site {
    /// Makes a site on a free port of the loopback interface, with all files below `dir`.
    pub fn below(dir: &Path) -> Site {
        Site {
            dir: dir.to_owned(),
            store: dir.join("store"),
            host: "127.0.0.1".to_owned(),
            port: free_port(),
            namespace: None,
            jetstream: String::new(),
            more: String::new(),
        }
    }

    fn config(&self) -> String {
        let Site { host, port, jetstream, more, .. } = self;
        let store = self.store.display();
        format!("listen: \"{host}:{port}\"\njetstream {{ store_dir: \"{store}\"{jetstream} }}\n{more}\n")
    }
}

/// A server of NATS. Dropping this value kills the server.
pub struct Server {
    program: PathBuf,
    site: Site,
    pub port: u16,
    process: Option<Process>,
    /// The number of bytes of the log that earlier runs of the server have written.
    logged: usize,
}

/// Takes a permit from [`turn`], and starts a server with its store in a temporary directory. If the server's program is not there, prints
/// that `test` is skipped, and returns `None`.
pub fn alone(test: &str) -> Option<(Turn, TempDir, Server)> {
    let (turn, program) = (turn(), program(test)?);
    let dir = tempfile::tempdir().unwrap();
    let server = Server::alone(program, dir.path());
    Some((turn, dir, server))
}

/// Returns the version that the server's program prints.
pub fn version(program: &Path) -> String {
    let said = Command::new(program).arg("--version").output().unwrap().stdout;
    String::from_utf8_lossy(&said).trim().trim_start_matches("nats-server: ").to_owned()
}

impl Server {
    /// Starts a single server, with its store below `dir`.
    pub fn alone(program: &Path, dir: &Path) -> Server {
        Server::with(program, dir, "")
    }

    /// Starts a server with additional lines in its configuration.
    pub fn with(program: &Path, dir: &Path, more: &str) -> Server {
        let mut server = Server::at(program, Site { more: more.to_owned(), ..Site::below(dir) });
        server.start();
        server
    }

    /// Writes the configuration of a server, without starting the server.
    pub fn at(program: &Path, site: Site) -> Server {
        fs::create_dir_all(&site.dir).unwrap();
        fs::write(site.dir.join("server.conf"), site.config()).unwrap();
        let port = site.port;
        Server { program: program.to_owned(), site, port, process: None, logged: 0 }
    }

    pub fn start(&mut self) {
        self.start_soon();
        wait_until("a server of NATS that listens", || {
            assert!(self.is_alive(), "the server has ended: {}", self.log());
            self.listens()
        });
    }

    /// Starts the server without waiting until it listens.
    pub fn start_soon(&mut self) {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.site.dir.join("log")).unwrap();
        self.logged = self.log().len();
        let mut command = match &self.site.namespace {
            None => Command::new(&self.program),
            Some(name) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", name]).arg(&self.program);
                command
            }
        };
        command.arg("-c").arg(self.site.dir.join("server.conf")).stdout(Stdio::null()).stderr(log);
        self.process = Some(Process::start(&mut command));
    }

    /// Whether the server runs.
    pub fn is_alive(&mut self) -> bool {
        self.process.as_mut().is_some_and(Process::is_alive)
    }

    fn listens(&self) -> bool {
        match self.site.namespace {
            None => TcpStream::connect((&self.site.host[..], self.port)).is_ok(),
            Some(_) => self.log()[self.logged..].contains("Server is ready"),
        }
    }

    /// Everything that the server has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.site.dir.join("log")).unwrap_or_default()
    }

    /// The directory in which the server stores its streams.
    pub fn store(&self) -> &Path {
        &self.site.store
    }

    pub fn url(&self) -> String {
        format!("nats://{}:{}", self.site.host, self.port)
    }

    /// Returns the server's URL with `account` in it, for a configuration.
    pub fn url_of(&self, account: &str) -> String {
        self.url().replace("nats://", &format!("nats://{account}@"))
    }

    /// Returns arguments for a command: the server's URL, and the option that names a file with the account `USER:PASSWORD`.
    pub fn address_of(&self, account: &str) -> String {
        format!("{} {}", self.url(), self.account(account))
    }

    /// Writes an account into a file. Returns the option that names this file.
    pub fn account(&self, account: &str) -> String {
        let user = account.split(':').next().unwrap_or_default();
        let file = self.site.dir.join(format!("account-{user}"));
        fs::write(&file, account).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        format!("--set nats.account={}", file.display())
    }

    pub fn signal(&self, signal: Signal) {
        if let Some(process) = &self.process {
            process.signal(signal);
        }
    }

    /// Pauses the server, and waits until all its threads have stopped.
    pub fn pause(&self) {
        if let Some(process) = &self.process {
            process.pause();
        }
    }

    /// Ends the server by SIGTERM, as an operator does, so that the server first saves its state.
    pub fn end(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.signal(Signal::SIGTERM);
            process.wait();
        }
    }

    pub fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            process.kill();
        }
    }

    /// Changes the configuration, and makes the server read it again.
    pub fn rewrite(&self, change: impl FnOnce(String) -> String) {
        let path = self.site.dir.join("server.conf");
        fs::write(&path, change(fs::read_to_string(&path).unwrap())).unwrap();
        self.signal(Signal::SIGHUP);
    }

    /// Removes everything that the server has stored. The server must not run.
    pub fn empty(&self) {
        assert!(self.process.is_none());
        fs::remove_dir_all(&self.site.store).unwrap();
    }
}

/// A cluster of three servers, each of which keeps a copy of the streams.
pub struct Cluster {
    pub servers: Vec<Server>,
}

impl Cluster {
    pub fn new(program: &Path, dir: &Path) -> Cluster {
        let below = |n: usize| Site::below(&dir.join(format!("s{n}")));
        let mut cluster = Cluster::at(program, [below(0), below(1), below(2)], [0; 3].map(|_| free_port()));
        cluster.servers.iter_mut().for_each(Server::start);
        cluster
    }

    /// Writes the configurations of three servers, without starting the servers. `routes` are the ports for the connections between the
    /// servers.
    pub fn at(program: &Path, sites: [Site; 3], routes: [u16; 3]) -> Cluster {
        let all = sites.iter().zip(routes).map(|(site, port)| format!("\"nats://{}:{port}\"", site.host));
        let all = all.collect::<Vec<_>>().join(", ");
        let server = |(n, (site, port)): (usize, (Site, u16))| {
            let (host, more) = (&site.host, &site.more);
            let more = format!(
                "server_name: s{n}\ncluster {{ name: c, listen: \"{host}:{port}\", routes: [{all}] }}\n{more}"
            );
            Server::at(program, Site { more, ..site })
        };
        Cluster { servers: sites.into_iter().zip(routes).enumerate().map(server).collect() }
    }

    /// Makes a cluster of one server.
    pub fn of_one(server: Server) -> Cluster {
        Cluster { servers: vec![server] }
    }

    /// The addresses of all servers.
    pub fn urls(&self) -> String {
        self.servers.iter().map(Server::url).collect::<Vec<_>>().join(",")
    }

    /// Returns the server with this name. The information about a stream names the stream's leader in the same way.
    pub fn named(&mut self, name: &str) -> &mut Server {
        &mut self.servers[name.strip_prefix('s').unwrap().parse::<usize>().unwrap()]
    }
}

/// A relay to a server. The relay delays all data by a fixed time, and breaks its connections on request.
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

/// Relays one direction of a connection. One thread reads, and another writes each piece of data after `delay`.
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
        // Half of a record might have been sent, as when a real connection breaks.
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
