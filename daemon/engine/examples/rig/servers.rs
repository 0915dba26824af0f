//! Servers of NATS that belong to a measurement.

use shmcast_bridge::spec::server::ServerAddress;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// One server alone, or three in a cluster, killed at the end.
pub(crate) struct Servers {
    program: PathBuf,
    dir: PathBuf,
    cpu: Option<usize>,
    children: Vec<Child>,
    ports: Vec<u16>,
}

impl Servers {
    /// Starts `count` servers with their stores below `dir`, bound to `cpu` if one is given.
    pub(crate) fn start(program: &Path, count: usize, dir: &Path, cpu: Option<usize>) -> Servers {
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let (ports, routes): (Vec<u16>, Vec<u16>) = (0..count).map(|_| (free(), free())).unzip();
        let all: Vec<String> = routes.iter().map(|route| format!("\"nats://127.0.0.1:{route}\"")).collect();
        for (n, (port, route)) in ports.iter().zip(&routes).enumerate() {
            let store = dir.join(format!("store-{n}"));
            let mut text = format!(
                "listen: \"127.0.0.1:{port}\"\nserver_name: s{n}\njetstream {{ store_dir: {store:?} }}\n"
            );
            if count > 1 {
                let all = all.join(", ");
                text += &format!("cluster {{ name: c, listen: \"127.0.0.1:{route}\", routes: [{all}] }}\n");
            }
            std::fs::write(dir.join(format!("{n}.conf")), text).unwrap();
        }
        let mut servers =
            Servers { program: program.to_owned(), dir: dir.to_owned(), cpu, children: Vec::new(), ports };
        servers.go_on();
        servers
    }

    /// Starts them again.
    pub(crate) fn go_on(&mut self) {
        for n in 0..self.ports.len() {
            let mut command = on_cpu(self.cpu, &self.program);
            command.arg("-c").arg(self.dir.join(format!("{n}.conf")));
            self.children.push(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        }
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.ports.iter().any(|port| std::net::TcpStream::connect(("127.0.0.1", *port)).is_err()) {
            assert!(Instant::now() < deadline, "the servers do not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn kill(&mut self) {
        for mut child in self.children.drain(..) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.ports.iter().map(|port| format!("nats://127.0.0.1:{port}")).collect()
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A command that runs on one CPU, if one is given.
pub(crate) fn on_cpu(cpu: Option<usize>, program: &Path) -> Command {
    let Some(cpu) = cpu else { return Command::new(program) };
    let mut command = Command::new("taskset");
    command.args(["-c", &cpu.to_string()]).arg(program);
    command
}

/// The addresses of servers, for a spec.
pub(crate) fn addresses(urls: &[String]) -> Vec<ServerAddress> {
    urls.iter().map(|url| url.parse().expect("the rig names its servers")).collect()
}
