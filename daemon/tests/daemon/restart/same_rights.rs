//! The rights of a program under the shipped unit must be the same when systemd runs it and when `shmcast_under_unit`
//! does.

use super::manager::Manager;
use shmcast_testkit::turn::turn;
use shmcast_testkit::{skip, unit, wait_for};
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

/// Tries one operation after another, and prints which ones are refused. Its output has no numbers or paths that differ between systemd and
/// `shmcast_under_unit`.
const PROBE: &str = r#"
grep -E '^(Cap|NoNewPrivs|Seccomp:|Umask)' /proc/self/status
echo "coredump filter: $(cat /proc/self/coredump_filter)"
echo "environment: $RUNTIME_DIRECTORY $USER $LOGNAME"
[ "$(id -u)" != 0 ] && [ "$(id -g)" = "$(id -u)" ] && [ "$(id -G)" = "$(id -g)" ] && echo "one user, one group"
ulimit -n
ulimit -l
try() {
    if "$@" >/dev/null 2>&1 </dev/null; then echo "may: $*"; else echo "may not: $*"; fi
}
in_runtime=/run/shmcast/probe
try touch $in_runtime
try mkdir -m 0700 $in_runtime.dir
for file in /etc/probe /usr/probe /var/probe /run/probe /probe /dev/probe /sys/probe /proc/sys/kernel/hostname; do
    try touch "$file"
    try test -w "$file"
done
for dir in /tmp /var/tmp /dev/shm; do
    # Another run of this may be on the host.
    probe=$(mktemp -u "$dir/under-unit-probe.XXXXXXXX")
    if touch "$probe" 2>/dev/null; then echo "may: touch in $dir"; else echo "may not: touch in $dir"; fi
    if rm "$probe" 2>/dev/null; then echo "may: rm in $dir"; else echo "may not: rm in $dir"; fi
done
for dir in /home /root /lib/modules /sys/fs/cgroup /dev/shm /etc; do
    [ ! -e "$dir" ] || try ls "$dir"
done
for node in null zero full random urandom tty kmsg mem vda sda console net; do try test -e /dev/$node; done
try head -c 1 /dev/urandom
try head -c 1 /proc/kmsg
try head -c 1 /proc/kcore
try dmesg
try hostname probe
try date -s 2020-01-01
try chmod u+s $in_runtime
try chmod g+s $in_runtime
try chmod 0600 $in_runtime
try chown 0 $in_runtime
try mknod $in_runtime.node c 1 3
try mkfifo $in_runtime.fifo
try unshare --user true
try unshare --mount true
try unshare --net true
try chrt --fifo 1 true
try chrt --other 0 true
try chrt --batch 0 true
try nice -n 5 true
try nice -n -5 true
try taskset 1 true
try setarch --addr-no-randomize true
try ip link
try ping -c 1 127.0.0.1
try bash -c 'exec 3<>/dev/udp/127.0.0.1/9'
try perl -MSocket -e 'socket(my $s, AF_INET, SOCK_DGRAM, 0) or exit 1'
try perl -MSocket -e 'socket(my $s, AF_INET6, SOCK_STREAM, 0) or exit 1'
try perl -MSocket -e 'socket(my $s, AF_UNIX, SOCK_SEQPACKET, 0) or exit 1'
# By their errors: families that are not allowed; memory that can be written and executed; system calls that are allowed,
# refused, hidden and unknown. Those of keyrings are left out: the launcher refuses them, and systemd gives a keyring.
perl -MSocket -e 'for my $f (16, 17, 38) { socket(my $s, $f, SOCK_DGRAM, 0) or print "family $f: ", $!+0, "\n" }'
[ "$(uname -m)" = x86_64 ] || exit 0
perl -e 'my $r = syscall(9, 0, 4096, 7, 0x22, -1, 0); print "write and execute: ", $r == -1 ? $!+0 : "may", "\n"'
perl -e 'for my $call (@ARGV) { my $r = syscall($call, -1, 0, 0, 0, 0, 0); print "call $call: ", $r, " ", $!+0, "\n" }' \
    92 101 105 135 153 155 161 165 169 172 173 175 246 272 298 304 308 310 321 323 424 425 428 434 435 437 447 449 452 999
"#;

/// The output of the probe under systemd.
fn under_systemd() -> Result<String, String> {
    let manager = Manager::boot("", "")?;
    let [probe, said] = ["probe.sh", "probe.said"].map(|name| manager.shared(name));
    fs::write(&probe, PROBE).unwrap();
    // The manager opens the probe's input and output, so these files can be outside of the unit's view.
    manager.sh(&format!(
        "mkdir -p /etc/systemd/system/shmcastd.service.d && cat >/etc/systemd/system/shmcastd.service.d/probe.conf <<END\n\
         [Service]\nType=oneshot\nRestart=no\nWatchdogSec=0\nExecStart=\nExecStart=/bin/bash -s\n\
         StandardInput=file:{}\nStandardOutput=file:{}\nEND\nsystemctl daemon-reload",
        probe.display(),
        said.display()
    ));
    manager.systemctl(&["start", "shmcastd.service"]);
    wait_for("the probe under systemd", || {
        ["inactive", "failed"].contains(&manager.property("ActiveState").as_str()).then_some(())
    });
    Ok(fs::read_to_string(&said).unwrap_or_else(|e| panic!("{}: {e}\n{}", said.display(), manager.log())))
}

/// The output of the probe under the launcher.
fn under_launcher(unit: &Path) -> String {
    let dir = tempfile::tempdir().unwrap();
    let (probe, runtime) = (dir.path().join("probe.sh"), dir.path().join("runtime"));
    fs::write(&probe, PROBE).unwrap();
    fs::create_dir(&runtime).unwrap();
    let mut command: Command = unit::command(unit, &runtime, Path::new("/bin/bash"));
    let output = command.arg("-s").stdin(File::open(&probe).unwrap()).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    // The first lines come from the test harness.
    let from =
        said.find("Umask").unwrap_or_else(|| panic!("{said}{}", String::from_utf8_lossy(&output.stderr)));
    said[from..].to_owned()
}

#[test]
fn tests_under_the_unit_have_the_rights_that_systemd_gives() {
    let test = "tests_under_the_unit_have_the_rights_that_systemd_gives";
    let _turn = turn();
    let Some(unit) = unit::shipped_for(test) else { return };
    let by_systemd = match under_systemd() {
        Ok(said) => said,
        Err(reason) => return skip(test, reason),
    };
    let by_launcher = under_launcher(&unit);
    assert!(by_systemd.lines().count() > 60, "{by_systemd}");
    let (more, less) = (lines_of_only(&by_launcher, &by_systemd), lines_of_only(&by_systemd, &by_launcher));
    assert!(more.is_empty() && less.is_empty(), "by the launcher: {more:#?}\nby systemd: {less:#?}");
}

fn lines_of_only(of: &str, not: &str) -> Vec<String> {
    of.lines().filter(|line| !not.lines().any(|other| other == *line)).map(str::to_owned).collect()
}

/// Settings that no other setting implies for a program without root's rights.
const SEEN: [(&str, &str); 8] = [
    ("MemoryDenyWriteExecute=yes", "write and execute"),
    ("LockPersonality=yes", "setarch"),
    ("PrivateDevices=yes", "/dev/kmsg"),
    ("ProtectHome=yes", "ls /home"),
    ("RestrictSUIDSGID=yes", "chmod u+s"),
    ("RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6", "family"),
    ("SystemCallFilter=~@privileged", "call 92"),
    ("UMask=0077", "Umask"),
];

/// This shows that the comparison can fail. If a setting is removed from the unit, the launcher grants the right again.
#[test]
fn a_setting_that_is_taken_out_of_the_unit_is_seen() {
    let test = "a_setting_that_is_taken_out_of_the_unit_is_seen";
    let _turn = turn();
    let Some(unit) = unit::shipped_for(test) else { return };
    let dir = tempfile::tempdir().unwrap();
    let changed = dir.path().join("changed.service");
    let (shipped, whole) = (fs::read_to_string(&unit).unwrap(), under_launcher(&unit));
    for (setting, word) in SEEN {
        let without = shipped.replace(&format!("{setting}\n"), "");
        assert_ne!(without, shipped, "{setting} is not in the unit");
        fs::write(&changed, without).unwrap();
        let differs = lines_of_only(&under_launcher(&changed), &whole);
        assert!(differs.iter().any(|line| line.contains(word)), "without {setting}: {differs:#?}");
    }
}
