//! Checks of the disks with journals: the file system, and the drive's own cache.
//!
//! The directories come from the configuration that the systemd unit names. If no channel has a journal, the checks examine the directory
//! in which the unit allows journals.

use super::{
    Area, Check, Unread,
    finding::{Mend, Verdict},
    probe::Probe,
    root::malformed,
};
use crate::config::Config;
use std::{collections::BTreeSet, path::Path};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "journal-fs",
        area: Area::Storage,
        why: "A journal survives a power cut only on a file system of this host that is on a disk.",
        examine: file_system,
    },
    Check {
        id: "journal-cache",
        area: Area::Storage,
        why: "A drive with a volatile cache must flush it for each sync; one that does not obey loses what was told to be durable.",
        examine: cache,
    },
];

const CONFIG: &str = "/etc/shmcast/shmcast.toml";
const MOUNTS: &str = "/proc/self/mounts";
/// The place where the shipped unit lets journals lie.
const USUAL: &str = "/var/lib/shmcast";
/// File systems whose files are lost when the power fails.
const IN_MEMORY: [&str; 3] = ["tmpfs", "ramfs", "devtmpfs"];
/// Types of network file systems, and of file systems that do not themselves promise anything about `fsync`.
const ELSEWHERE: [&str; 8] = ["nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "ceph", "overlay"];

/// A mounted file system, and a journal's directory in it.
struct Place {
    dir: String,
    device: String,
    kind: String,
}

/// The directories that are judged.
fn directories(p: &mut Probe<'_>) -> Result<BTreeSet<String>, Unread> {
    let usual = || BTreeSet::from([USUAL.to_owned()]);
    if !p.exists(CONFIG) {
        return Ok(usual());
    }
    let text = p.quiet(CONFIG)?;
    let config = Config::parse(&text, CONFIG).map_err(|why| {
        p.note(CONFIG, why);
        malformed(CONFIG, &text, "a configuration")
    })?;
    let journals = config.channels.iter().filter_map(|channel| channel.journal.as_ref());
    let dirs: BTreeSet<String> = journals.map(|journal| journal.dir.display().to_string()).collect();
    p.note(CONFIG, format!("{} channels with a journal", dirs.len()));
    Ok(if dirs.is_empty() { usual() } else { dirs })
}

/// Finds the file system of each directory: the one whose mount point is above the directory and has the longest path. If several have the
/// same mount point, the last one counts.
fn places(p: &mut Probe<'_>) -> Result<Vec<Place>, Unread> {
    let dirs = directories(p)?;
    let table = p.quiet(MOUNTS)?;
    let mut mounts = Vec::new();
    for line in table.lines() {
        let mut fields = line.split(' ');
        if let (Some(device), Some(point), Some(kind)) = (fields.next(), fields.next(), fields.next())
            && point.starts_with('/')
        {
            mounts.push((device, point.replace("\\040", " "), kind));
        }
    }
    let mut places = Vec::new();
    for dir in dirs {
        let above = mounts.iter().filter(|(_, point, _)| Path::new(&dir).starts_with(point));
        let found = above.max_by_key(|(_, point, _)| point.len());
        let (device, point, kind) = found.ok_or_else(|| malformed(MOUNTS, &table, "a table with a root"))?;
        p.note(MOUNTS, format!("{dir}: {kind} at {point}"));
        places.push(Place { dir, device: (*device).to_owned(), kind: (*kind).to_owned() });
    }
    Ok(places)
}

fn elsewhere(dir: &str) -> Mend {
    let does = format!("{dir}: mount a disk of this host there, or name another directory");
    Mend::new(format!("findmnt --target {dir}"), format!("{does}: journal.dir of the channel in {CONFIG}"))
}

fn file_system(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    let places = places(p)?;
    let find = |is_it: fn(&str) -> bool| places.iter().find(|place| is_it(&place.kind));
    if let Some(Place { dir, kind, .. }) = find(|kind| IN_MEMORY.contains(&kind)) {
        return Ok(Verdict::fail(format!("{dir} is in memory ({kind})"), elsewhere(dir)));
    }
    if let Some(Place { dir, kind, .. }) = find(|kind| ELSEWHERE.contains(&kind) || kind.starts_with("fuse"))
    {
        return Ok(Verdict::warn(
            format!("{dir} is on {kind}: a sync promises what that does"),
            elsewhere(dir),
        ));
    }
    let kinds: BTreeSet<&str> = places.iter().map(|place| place.kind.as_str()).collect();
    Ok(Verdict::pass(kinds.into_iter().collect::<Vec<_>>().join(", ")))
}

fn cache(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    let mut unseen = None;
    let mut told = Vec::new();
    for place in places(p)? {
        let Some(drive) = place.device.strip_prefix("/dev/") else {
            unseen = Some(format!("{} is on {}, which is no drive", place.dir, place.device));
            continue;
        };
        let own = format!("/sys/class/block/{drive}/queue/write_cache");
        // A partition has no queue of its own. In this case, the path leads to the queue of the whole drive.
        let path =
            if p.exists(&own) { own } else { format!("/sys/class/block/{drive}/../queue/write_cache") };
        match p.text(&path)?.trim() {
            "write through" => told.push(drive.to_owned()),
            "write back" => {
                return Ok(Verdict::warn(
                    format!("{drive} has a volatile cache"),
                    Mend::new(
                        format!("hdparm -W /dev/{drive} || nvme get-feature /dev/{drive} -f 6"),
                        "a drive whose cache survives a power cut costs a sync nothing and keeps its word",
                    ),
                ));
            }
            other => return Err(malformed(&path, other, "write through or write back")),
        }
    }
    Ok(match unseen {
        Some(says) => Verdict::unknown(says),
        None => Verdict::pass(format!("{} has none", told.join(", "))),
    })
}
