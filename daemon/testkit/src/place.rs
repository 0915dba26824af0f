//! Directories, ports and addresses for a test, and checks of what this machine supports.

use std::fmt::Display;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;

/// Makes a directory for one test. It is in memory if the machine has `/dev/shm`, and is removed when dropped.
pub fn scratch() -> TempDir {
    let mut builder = tempfile::Builder::new();
    builder.prefix("shmcast-test-");
    builder.tempdir_in("/dev/shm").or_else(|_| builder.tempdir()).expect("a directory for scratch files")
}

/// Prints that a test cannot run here, and the reason. CI counts these lines.
pub fn skip(test: &str, reason: impl Display) {
    eprintln!("SKIPPED {test}: {reason}");
}

/// Whether this process runs as root.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Whether a command exists and succeeds.
pub fn works(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Returns a number that this program uses only once. The number depends on the process id, so it is unlikely that another test program
/// uses it at the same time.
fn own_number() -> u32 {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    std::process::id().wrapping_mul(64).wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Returns a TCP port of the loopback interface that is unused, and that no other test of this program gets. For outgoing connections, the
/// system chooses ports from a higher range. So no connection takes this port before the test does.
pub fn free_port() -> u16 {
    const FIRST: u32 = 10_000;
    const PORTS: u32 = 20_000;
    for _ in 0..PORTS {
        let port = (FIRST + own_number() % PORTS) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no port is free on the loopback interface");
}

/// Returns a UDP address of this host that no other test uses. Its IP address depends on this process and a count.
pub fn own_address() -> SocketAddr {
    let own = own_number();
    // The address is from 127.64.0.1 to 127.127.255.254. Tests use no other addresses in this range.
    let [.., a, b] = (own / 254).to_be_bytes();
    let address = Ipv4Addr::new(127, 64 | a & 63, b, (1 + own % 254) as u8);
    UdpSocket::bind((address, 0)).unwrap().local_addr().unwrap()
}

/// Returns the path of a program of this workspace, as cargo built it for the profile of the running test.
///
/// # Panics
/// If the program does not exist. Cargo builds the programs of the tested package before its tests. It builds programs of other packages
/// only if they are named, or with `--workspace`.
pub fn program(name: &str) -> PathBuf {
    let this = std::env::current_exe().expect("this program's own path");
    let profile = this.parent().and_then(|deps| deps.parent()).expect("tests lie in the directory deps");
    let program = profile.join(name);
    assert!(program.exists(), "{} is not built: cargo build -p shmcast-daemon", program.display());
    program
}
