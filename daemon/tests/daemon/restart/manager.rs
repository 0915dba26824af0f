//! A machine for one test: systemd as PID 1 of its own namespaces, with the shipped units.
//!
//! The machine does not change the host: files that systemd and packages change are on layers in memory, and the control groups are below a
//! group of the test. The machine starts nothing of the host, because the host's units and unit generators are hidden.

use shmcast_testkit::place::program;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use shmcast_testkit::wait_for;

/// Targets that units name, without the units that a distribution adds to them.
const TARGETS: [&str; 6] = ["basic", "multi-user", "shutdown", "sockets", "sysinit", "umount"];

/// The script that runs in the new namespaces before systemd. It mounts layers in memory over all directories that can change, and removes
/// all units of the host that systemd would start.
const BOOT: &str = r#"
set -eu
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/kept
mount --bind "$1" /run/kept
# In /dev/shm, RemoveIPC= takes away what the unit's user has, whichever tests run as the same user out there.
for dir in /tmp /var/tmp /dev/shm; do
    mount -t tmpfs -o mode=1777 tmpfs $dir
done
mkdir -p "$1"
mount --move /run/kept "$1"
for dir in etc usr var; do
    mkdir -p /run/layers/$dir/upper /run/layers/$dir/work
    mount -t overlay -o "lowerdir=/$dir,upperdir=/run/layers/$dir/upper,workdir=/run/layers/$dir/work" overlay /$dir
done
for dir in /usr/lib/systemd/system /etc/systemd/system /usr/lib/systemd/system-generators; do
    mkdir -p $dir
    mount -t tmpfs -o mode=755 tmpfs $dir
done
# Images for containers forbid packages to start anything.
rm -f /usr/sbin/policy-rc.d
cp -r "$1"/units/* /usr/lib/systemd/system/
umount -R /sys/fs/cgroup 2>/dev/null || true
mount -t cgroup2 cgroup2 /sys/fs/cgroup
. "$1/setup.sh"
export container=shmcast-test
exec /usr/lib/systemd/systemd --system --unit=multi-user.target --log-target=console
"#;

/// Installs the daemon from the tree.
const SETUP: &str = r#"
cp "$1/shmcastd" /usr/bin/
mkdir -p /etc/shmcast
cp "$1/shmcast.toml" /etc/shmcast/
systemd-sysusers "$1/shmcast.sysusers"
systemd-tmpfiles --create "$1/shmcast.tmpfiles"
"#;

/// The number of machines that have booted. Each has a control group of its own.
static BOOTED: AtomicU32 = AtomicU32::new(0);

/// A running service manager.
pub(crate) struct Manager {
    dir: tempfile::TempDir,
    group: PathBuf,
    unshare: Child,
    pid: u32,
}

impl Manager {
    /// Boots a machine. `config` is the daemon's configuration, and `drop_in` changes its unit. `Err` is the reason why this host cannot
    /// boot a machine.
    pub(crate) fn boot(config: &str, drop_in: &str) -> Result<Self, String> {
        Self::boot_with(drop_in, |at| {
            let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../systemd");
            fs::copy(program("shmcastd"), at("shmcastd")).unwrap();
            fs::write(at("shmcast.toml"), config).unwrap();
            for name in ["shmcast.sysusers", "shmcast.tmpfiles"] {
                fs::copy(shipped.join(name), at(name)).unwrap();
            }
            for name in ["shmcastd.service", "shmcastd.socket"] {
                fs::copy(shipped.join(name), at("units").join(name)).unwrap();
            }
            fs::write(at("setup.sh"), SETUP).unwrap();
        })
    }

    /// Boots a machine without a daemon, for the installation of a package.
    pub(crate) fn boot_without_daemon() -> Result<Self, String> {
        Self::boot_with("", |at| fs::write(at("setup.sh"), "").unwrap())
    }

    fn boot_with(drop_in: &str, prepare: impl FnOnce(&dyn Fn(&str) -> PathBuf)) -> Result<Self, String> {
        if !nix::unistd::geteuid().is_root() {
            return Err("only root may make the namespaces".into());
        }
        if !Path::new("/usr/lib/systemd/systemd").exists() {
            return Err("systemd is not installed".into());
        }
        let hierarchy = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(PathBuf::from);
        let hierarchy = hierarchy.into_iter().find(|path| path.join("cgroup.controllers").exists());
        let group = hierarchy.ok_or("no cgroup2 hierarchy")?.join(format!(
            "shmcast-test-{}-{}",
            std::process::id(),
            BOOTED.fetch_add(1, Ordering::Relaxed)
        ));
        fs::create_dir(&group).map_err(|e| format!("create {}: {e}", group.display()))?;

        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("units/shmcastd.service.d")).unwrap();
        prepare(&at);
        for target in TARGETS {
            let unit = format!("[Unit]\nDescription={target}\nDefaultDependencies=no\n");
            fs::write(at("units").join(format!("{target}.target")), unit).unwrap();
        }
        // There is no systemd journal here.
        let log = at("daemon.log");
        fs::write(
            at("units/shmcastd.service.d/test.conf"),
            format!("[Service]\nStandardError=append:{}\n{drop_in}\n", log.display()),
        )
        .unwrap();
        fs::write(at("boot.sh"), BOOT).unwrap();

        let join = format!(
            "echo 0 > {}/cgroup.procs && exec unshare -pmCiun --fork --kill-child \"$@\"",
            group.display()
        );
        let console = fs::File::create(at("console.log")).unwrap();
        let unshare = Command::new("sh")
            .args(["-c", &join, "sh", "sh"])
            .arg(at("boot.sh"))
            .arg(dir.path())
            .stdin(std::process::Stdio::null())
            .stdout(console.try_clone().unwrap())
            .stderr(console)
            .spawn()
            .map_err(|e| format!("unshare: {e}"))?;
        let mut manager = Self { dir, group, unshare, pid: 0 };
        manager.pid = manager.first_process()?;
        // If a mount is not possible here, the process ends within moments.
        for _ in 0..300 {
            if manager.unshare.try_wait().unwrap().is_some() {
                break;
            }
            let state = manager.systemctl(&["is-system-running"]).stdout;
            if state.starts_with(b"running") || state.starts_with(b"degraded") {
                return Ok(manager);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Err(format!("systemd does not start in namespaces here: {}", manager.console()))
    }

    /// Returns the process that is PID 1 on the machine.
    fn first_process(&mut self) -> Result<u32, String> {
        let path = format!("/proc/{0}/task/{0}/children", self.unshare.id());
        for _ in 0..600 {
            let children = fs::read_to_string(&path).unwrap_or_default();
            if let Some(pid) = children.split_whitespace().next() {
                return Ok(pid.parse().unwrap());
            }
            if self.unshare.try_wait().unwrap().is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(format!("unshare: {}", self.console()))
    }

    fn console(&self) -> String {
        fs::read_to_string(self.dir.path().join("console.log")).unwrap_or_default()
    }

    /// The path of the control socket as seen from outside.
    pub(crate) fn socket(&self) -> PathBuf {
        format!("/proc/{}/root/run/shmcast/control.sock", self.pid).into()
    }

    /// Runs a command on the machine.
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new("nsenter");
        command
            .args(["-t", &self.pid.to_string(), "-p", "-m", "-C", "-i", "-u", "-n", program])
            .args(arguments);
        command.output().unwrap()
    }

    pub(crate) fn systemctl(&self, arguments: &[&str]) -> Output {
        self.run("systemctl", arguments)
    }

    /// Runs a script on the machine. The script must succeed. Returns its stdout.
    pub(crate) fn sh(&self, script: &str) -> String {
        let output = self.run("sh", &["-euc", script]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{script}\n{said}{}\n{}", stderr(&output), self.log());
        said
    }

    /// A path that is the same on the machine and on the host.
    pub(crate) fn shared(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A property of the daemon's unit.
    pub(crate) fn property(&self, name: &str) -> String {
        let output = self.systemctl(&["show", "--value", "-p", name, "shmcastd.service"]);
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Runs `systemctl` with a verb and a unit. The command must succeed.
    pub(crate) fn must(&self, verb: &str, unit: &str) {
        let output = self.systemctl(&[verb, unit]);
        assert!(output.status.success(), "systemctl {verb} {unit}: {}\n{}", stderr(&output), self.log());
    }

    /// Sends a signal to the daemon's main process only.
    pub(crate) fn signal(&self, signal: &str) {
        let output = self.systemctl(&["kill", "--kill-whom=main", "--signal", signal, "shmcastd.service"]);
        assert!(output.status.success(), "{}", stderr(&output));
    }

    /// Waits until the daemon is ready as a process other than `old`. Returns the process id.
    pub(crate) fn wait_for_another(&self, old: &str) -> String {
        wait_for("another daemon", || {
            let pid = self.property("MainPID");
            (pid != "0" && pid != old && self.property("ActiveState") == "active").then_some(pid)
        })
    }

    /// The daemon's log so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("daemon.log")).unwrap_or_else(|_| self.console())
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        // All processes of the machine end with its PID 1.
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
        for _ in 0..100 {
            if remove_groups(&self.group).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        eprintln!("cannot remove {}", self.group.display());
    }
}

fn remove_groups(group: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(group)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_groups(&entry.path())?;
        }
    }
    fs::remove_dir(group)
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
