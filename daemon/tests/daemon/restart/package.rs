//! The Debian package on a machine of its own: installed, configured, upgraded while messages flow, removed and purged.

use super::manager::Manager;
use super::traffic::{Traffic, config};
use shmcast_testkit::turn::turn;
use shmcast_testkit::{skip, wait_for};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// The later version.
const UPGRADED: &str = "0.1.0-99";

/// Lists all places in which a package can leave files. Leaves out dpkg's own records, and the backups of tools that manage accounts.
const FILES: &str = "find /etc /usr /var /run/shmcast /run/systemd/system -xdev 2>/dev/null | sort \\
    | grep -v -e ^/var/lib/dpkg/ -e ^/var/log/ -e ^/var/cache/ -e '^/etc/[a-z]*-$' -e ^/etc/.pwd.lock$ || true";
const ACCOUNTS: &str = "cat /etc/passwd /etc/group /etc/shadow /etc/gshadow";

#[test]
#[ignore = "a step of CI: package"]
fn a_package_is_installed_upgraded_under_traffic_and_purged() {
    let test = "a_package_is_installed_upgraded_under_traffic_and_purged";
    let Some(package) = std::env::var_os("SHMCAST_DEB") else {
        return skip(test, "SHMCAST_DEB names no package; `.ci/run package` builds one");
    };
    let _turn = turn();
    let machine = match Manager::boot_without_daemon() {
        Ok(machine) => machine,
        Err(reason) => return skip(test, reason),
    };
    let (first, second) = (machine.shared("first.deb"), machine.shared("second.deb"));
    std::fs::copy(package, &first).unwrap();
    repack(&first, &second, &machine.shared("unpacked"));
    // An earlier daemon under the unit without systemd leaves this empty directory. The purge removes it, too, so it must not count.
    machine.sh("rmdir /var/lib/shmcast 2>/dev/null || true");
    let lines = |text: String| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let (files, accounts) = (lines(machine.sh(FILES)), machine.sh(ACCOUNTS));

    // After the installation, the daemon runs, is enabled, and answers. It has no channels yet.
    install(&machine, &first);
    machine.wait_for_another("0");
    assert_eq!(machine.sh("systemctl is-enabled shmcastd.service shmcastd.socket"), "enabled\nenabled\n");
    assert_eq!(machine.sh("stat -c %U /run/shmcast"), "shmcast\n");
    assert_eq!(machine.sh("shmcast ls --json").trim(), "[]");
    machine.sh("shmcast check /etc/shmcast/shmcast.toml");

    // The daemon is configured as its documentation says.
    let own = machine.shared("own.toml");
    std::fs::write(&own, config("takeover")).unwrap();
    machine.sh(&format!("cp {} /etc/shmcast/shmcast.toml", own.display()));
    machine.sh("shmcast check /etc/shmcast/shmcast.toml && systemctl reload shmcastd");
    wait_for("the channel", || machine.sh("shmcast ls --json").contains("ticks").then_some(()));

    // The package is upgraded under traffic. The daemon has another process and version, but the same memory, and no message is lost.
    let mut traffic = Traffic::start(&machine.socket(), 2);
    for _ in 0..2 {
        let old = machine.property("MainPID");
        install(&machine, &second);
        machine.wait_for_another(&old);
        traffic.wait_until_all_are_back();
        traffic.assert_that_nobody_remapped();
        traffic.wait_for_more(2_000);
        let installed = machine.sh("dpkg-query -W -f '${Version} ${Status}' shmcast-daemon");
        assert_eq!(installed, format!("{UPGRADED} install ok installed"));
    }
    assert!(machine.log().matches("kept=1").count() >= 2, "{}", machine.log());
    assert_eq!(machine.sh("cat /etc/shmcast/shmcast.toml"), config("takeover"), "the administrator's file");
    traffic.end("a package upgraded twice under systemd");

    // A unit that was disabled stays disabled after an upgrade.
    machine.sh("systemctl disable shmcastd.service shmcastd.socket 2>&1");
    install(&machine, &second);
    let enabled = machine.run("systemctl", &["is-enabled", "shmcastd.service", "shmcastd.socket"]);
    assert_eq!(String::from_utf8_lossy(&enabled.stdout), "disabled\ndisabled\n");

    // After the removal, the daemon has stopped and the configuration stays. After the purge, no file is left.
    machine.sh("dpkg --remove shmcast-daemon 2>&1");
    assert_ne!(machine.property("ActiveState"), "active");
    assert!(!machine.socket().exists());
    machine.sh("test -e /etc/shmcast/shmcast.toml && test ! -e /usr/bin/shmcastd");
    machine.sh("dpkg --purge shmcast-daemon 2>&1");
    let left = lines(machine.sh(FILES));
    let differs: Vec<&String> = files.symmetric_difference(&left).collect();
    assert!(differs.is_empty(), "left behind, or taken along: {differs:#?}");
    assert_eq!(machine.sh(ACCOUNTS), accounts);
    println!("installed, upgraded twice under traffic, removed and purged; {} files as before", left.len());
}

fn install(machine: &Manager, package: &Path) {
    let package = package.display();
    machine.sh(&format!("DEBIAN_FRONTEND=noninteractive dpkg --force-confold --install {package} 2>&1"));
}

/// Makes the same package with a later version.
fn repack(package: &Path, later: &Path, dir: &Path) {
    let script = r#"
        dpkg-deb --raw-extract "$1" "$3"
        sed -i "s/^Version: .*/Version: $4/" "$3/DEBIAN/control"
        dpkg-deb -Zgzip -z1 --root-owner-group --build "$3" "$2"
    "#;
    let mut command = Command::new("sh");
    command.args(["-euc", script, "sh"]).arg(package).arg(later).arg(dir).arg(UPGRADED);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
