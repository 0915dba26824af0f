//! The files that the process sees, and those that it can write: systemd.exec(5), "Sandboxing". A mount namespace determines which files
//! these are.

use crate::identity::{User, mask_modes, octal, runtime_directory};
use crate::settings::Settings;
use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::Mode;
use nix::unistd::chown;
use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Trees that `ProtectSystem=strict` leaves as they are.
const API_TREES: [&str; 3] = ["/dev", "/proc", "/sys"];
/// Device nodes that `PrivateDevices=` leaves in `/dev`.
const NODES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
/// Directories of `/dev` that hold no devices.
const NO_DEVICES: [&str; 4] = ["shm", "pts", "mqueue", "hugepages"];

const NOTHING: Option<&str> = None;

/// Applies the settings about files to the mount namespace of the calling thread.
pub(crate) fn apply(settings: &Settings, runtime: &Path, user: &User) -> Result<()> {
    // Mounts made in this namespace must not appear outside of it.
    mount(NOTHING, "/", NOTHING, MsFlags::MS_REC | MsFlags::MS_SLAVE, NOTHING).context("keep mounts here")?;
    let shown_at = runtime_directory(settings);
    give(runtime, settings.value("RuntimeDirectoryMode"), user)?;
    show(runtime, &shown_at)?;
    let state = settings.value("StateDirectory").map(|name| Path::new("/var/lib").join(name));
    if let Some(state) = &state {
        // The state directory is beside the runtime directory, and exists as long as the runtime directory.
        let kept = runtime.with_file_name("state");
        fs::create_dir_all(&kept).with_context(|| format!("create {}", kept.display()))?;
        give(&kept, settings.value("StateDirectoryMode"), user)?;
        show(&kept, state)?;
    }

    if settings.is_set("PrivateTmp") {
        for dir in ["/tmp", "/var/tmp"] {
            memory(Path::new(dir), "mode=1777")?;
        }
    }
    if settings.is_set("PrivateDevices") {
        private_devices()?;
    }
    if settings.is_set("ProtectHome") {
        ["/home", "/root", "/run/user"].into_iter().try_for_each(hide)?;
    }
    if settings.is_set("ProtectKernelModules") {
        ["/lib/modules", "/usr/lib/modules"].into_iter().try_for_each(hide)?;
    }
    if settings.is_set("ProtectKernelLogs") {
        ["/proc/kmsg", "/dev/kmsg"].into_iter().try_for_each(hide)?;
    }
    if settings.is_set("ProtectKernelTunables") {
        ["/proc/kallsyms", "/proc/kcore"].into_iter().try_for_each(hide)?;
        let trees =
            ["/sys", "/proc/sys", "/proc/acpi", "/proc/bus", "/proc/fs", "/proc/irq", "/proc/sysrq-trigger"];
        trees.into_iter().try_for_each(read_only_copy)?;
    }
    if settings.is_set("ProtectControlGroups") {
        read_only_below(Path::new("/sys/fs/cgroup"), &[])?;
    }
    // ProtectSystem=strict, the only value that this crate supports. This step comes last, because it must also change the mounts that were
    // made above.
    let mut writable: Vec<PathBuf> = API_TREES.map(PathBuf::from).into();
    writable.push(shown_at);
    writable.extend(state);
    if settings.is_set("PrivateTmp") {
        writable.extend(["/tmp", "/var/tmp"].map(PathBuf::from));
    }
    read_only_below(Path::new("/"), &writable)?;
    mask_modes(settings)
}

/// Gives a directory to the user.
fn give(directory: &Path, mode: Option<&str>, user: &User) -> Result<()> {
    let what = || format!("give {} to the unit's user", directory.display());
    chown(directory, Some(user.uid), Some(user.gid)).with_context(what)?;
    let mode = octal(mode.unwrap_or("0755"))?;
    fs::set_permissions(directory, fs::Permissions::from_mode(mode.bits())).with_context(what)
}

/// Mounts a directory also at the path `at`, and creates that path if it does not exist.
fn show(directory: &Path, at: &Path) -> Result<()> {
    fs::create_dir_all(at).with_context(|| format!("create {}", at.display()))?;
    bind(directory, at)
}

fn bind(source: &Path, target: &Path) -> Result<()> {
    mount(Some(source), target, NOTHING, MsFlags::MS_BIND | MsFlags::MS_REC, NOTHING)
        .with_context(|| format!("show {} at {}", source.display(), target.display()))
}

fn memory(target: &Path, options: &str) -> Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("tmpfs"), target, Some("tmpfs"), flags, Some(options))
        .with_context(|| format!("mount memory at {}", target.display()))
}

/// Hides a file or directory behind an empty one, which has no permissions.
fn hide(path: &str) -> Result<()> {
    let path = Path::new(path);
    match fs::metadata(path) {
        Err(_) => Ok(()),
        Ok(found) if found.is_dir() => memory(path, "mode=000,size=4k"),
        Ok(_) => {
            let empty = tempfile_without_rights()?;
            bind(&empty, path)?;
            fs::remove_file(&empty).context("remove what hides files")
        }
    }
}

fn tempfile_without_rights() -> Result<PathBuf> {
    let path = PathBuf::from(format!("/tmp/under-unit.{}", std::process::id()));
    let file = File::create(&path).with_context(|| format!("create {}", path.display()))?;
    file.set_permissions(fs::Permissions::from_mode(0o000))?;
    Ok(path)
}

/// Mounts a new `/dev` with only [`NODES`] and the directories that hold no devices.
fn private_devices() -> Result<()> {
    let dev = Path::new("/dev");
    let kept = NODES.into_iter().chain(NO_DEVICES).filter_map(|name| {
        // The descriptor still reaches the node when the new tree hides it.
        let file = open(&dev.join(name), OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).ok()?;
        Some((dev.join(name), file))
    });
    let kept: Vec<(PathBuf, OwnedFd)> = kept.collect();
    // MS_NODEV is not set, because the nodes must work.
    mount(Some("tmpfs"), dev, Some("tmpfs"), MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC, Some("mode=755"))
        .context("mount memory for the devices")?;
    for (path, file) in kept {
        let source = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        if fs::metadata(&source)?.is_dir() {
            fs::create_dir(&path)?;
        } else {
            File::create(&path)?;
        }
        bind(&source, &path)?;
    }
    for (name, to) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
        ("ptmx", "pts/ptmx"),
        ("log", "/run/systemd/journal/dev-log"),
    ] {
        symlink(to, dev.join(name)).with_context(|| format!("make /dev/{name}"))?;
    }
    Ok(())
}

/// Makes a tree or a file read-only. Binds it onto itself first, because only a mount can be made read-only.
fn read_only_copy(path: &str) -> Result<()> {
    let path = Path::new(path);
    if !path.exists() {
        return Ok(());
    }
    bind(path, path)?;
    read_only_below(path, &[])
}

/// Makes each mount at or below `root` read-only, except those at or below a path of `but`.
fn read_only_below(root: &Path, but: &[PathBuf]) -> Result<()> {
    let table = fs::read_to_string("/proc/self/mountinfo").context("read the list of mounts")?;
    for line in table.lines() {
        // The fields, by proc(5): id, parent, device, root, mount point, options.
        let mut fields = line.split(' ').skip(4);
        let (Some(point), Some(options)) = (fields.next(), fields.next()) else { continue };
        let point = PathBuf::from(unescaped(point));
        if !point.starts_with(root) || but.iter().any(|tree| point.starts_with(tree)) {
            continue;
        }
        let kept = [
            ("nosuid", MsFlags::MS_NOSUID),
            ("nodev", MsFlags::MS_NODEV),
            ("noexec", MsFlags::MS_NOEXEC),
            ("noatime", MsFlags::MS_NOATIME),
            ("nodiratime", MsFlags::MS_NODIRATIME),
            ("relatime", MsFlags::MS_RELATIME),
        ];
        let mut flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        for (name, flag) in kept {
            flags.set(flag, options.split(',').any(|option| option == name));
        }
        match mount(NOTHING, &point, NOTHING, flags, NOTHING) {
            // Another mount covers this one, or a directory on its path.
            Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => {}
            Err(e) => return Err(e).with_context(|| format!("make {} read-only", point.display())),
        }
    }
    Ok(())
}

/// Decodes a path of the mount table, in which white space and backslashes are octal numbers (proc(5)).
fn unescaped(path: &str) -> String {
    path.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}
