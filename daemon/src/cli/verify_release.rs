//! `shmcast verify-release`: checks a directory of release files, without a network.

use super::figures::table;
use super::say::{note, print, print_json};
use anyhow::{Context, Result, bail, ensure};
use minisign_verify::{PublicKey, Signature};
use ring::digest::{Context as Hashing, SHA256};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Check that a directory holds a release, whole and unchanged, before it is installed
///
/// Checks the signature of SHA256SUMS and the checksum of each file, and that the directory has no other file. Checks the software bill of
/// materials (SBOM) of each artifact: it must have the artifact's own checksum, and every crate of the lock file with which the artifact
/// was built. Needs no network.
///
/// An older release has a valid signature, too. With --version, a release of any other version is refused.
///
/// Exit code 0: the holder of the key signed exactly this release. Exit code 1: the release differs, and the error names the difference.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: shmcast verify-release ./shmcast-0.1.0 --key ./shmcast.pub --version 0.1.0 && apt install ./shmcast-0.1.0/*.deb"
)]
pub(super) struct Args {
    /// The directory of the release
    dir: PathBuf,

    /// The public key: a file of minisign, or the second line of such a file. Do not take it from the place from which you got the release
    #[arg(long, value_name = "KEY")]
    key: String,

    /// The version that the release must have. Without it, the signature's comment is shown and not compared
    #[arg(long, value_name = "X.Y.Z")]
    version: Option<String>,

    /// Print as JSON
    #[arg(long)]
    json: bool,
}

const SUMS: &str = "SHA256SUMS";
const SIGNATURE: &str = "SHA256SUMS.minisig";
/// The suffix that makes the name of an SBOM from the name of its artifact.
const SBOM: &str = ".cdx.json";
/// Suffixes of files that describe artifacts and are not artifacts themselves.
const ABOUT: [&str; 3] = [SBOM, ".lock", ".buildinfo"];
/// The suffix of the artifacts without crates. A JAR has no crates, because it calls the C library and does not contain it.
const WITHOUT_RUST: &str = ".jar";
/// The size limit for a text file of a release, in bytes.
const LARGEST_TEXT: u64 = 16 << 20;

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let shown = args.dir.display();
    let key = key(&args.key)?;
    let signed_text = text(&args.dir, SUMS)?;
    let signature = Signature::decode(&text(&args.dir, SIGNATURE)?)
        .with_context(|| format!("{shown}/{SIGNATURE} is no signature of minisign"))?;
    let said = key.verify(signed_text.as_bytes(), &signature, false);
    said.with_context(|| {
        format!(
            "{shown}/{SUMS}: the signature is not by this key, or the file was changed after it was signed"
        )
    })?;
    let sums = sums(&signed_text).with_context(|| format!("{shown}/{SUMS}"))?;
    if let Some(wanted) = &args.version {
        let comment = signature.trusted_comment();
        ensure!(
            version_in(comment) == Some(wanted.as_str()),
            "{shown} is not version {wanted}: it is signed with the comment {comment:?}. Fetch the release that you want, or name this version"
        );
    }
    nothing_else(&args.dir, &sums)?;
    for (name, sum) in &sums {
        let found = sum_of(&args.dir.join(name))?;
        ensure!(
            found == *sum,
            "{shown}/{name} is not the file that was signed: its sum is {found}, not {sum}"
        );
    }
    let artifacts: Vec<Artifact> = sums
        .iter()
        .filter(|(name, _)| !ABOUT.iter().any(|end| name.ends_with(end)))
        .map(|(name, sum)| artifact(args, name, sum))
        .collect::<Result<_>>()?;
    ensure!(!artifacts.is_empty(), "{shown} has no artifact");
    tell(args, &artifacts, signature.trusted_comment())
}

/// An artifact and the result of its check.
#[derive(Debug, Serialize)]
struct Artifact {
    name: String,
    bytes: u64,
    sha256: String,
    /// Number of crates that are built into the artifact.
    crates: usize,
    /// Number of crates in the artifact's lock file.
    locked: usize,
}

fn tell(args: &Args, artifacts: &[Artifact], comment: &str) -> Result<ExitCode> {
    if args.json {
        print_json(&serde_json::json!({"signed": comment, "artifacts": artifacts}))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = table(["artifact", "bytes", "crates in it", "of the lock file", "SHA-256"], 1);
    for artifact in artifacts {
        rows.add_row([
            artifact.name.clone(),
            artifact.bytes.to_string(),
            artifact.crates.to_string(),
            artifact.locked.to_string(),
            artifact.sha256.chars().take(16).collect(),
        ]);
    }
    print(rows.trim_fmt())?;
    note!("{}: sound, and signed with the comment {comment:?}", args.dir.display());
    Ok(ExitCode::SUCCESS)
}

/// Returns the version in a signature's comment. RELEASING.md gives the comment the form `shmcast X.Y.Z, commit C`.
fn version_in(comment: &str) -> Option<&str> {
    comment.strip_prefix("shmcast ")?.split(',').next()
}

/// Returns the public key that `given` is, or that the file with the name `given` contains.
fn key(given: &str) -> Result<PublicKey> {
    if let Ok(key) = PublicKey::from_base64(given) {
        return Ok(key);
    }
    let text = fs::read_to_string(given).with_context(|| {
        format!("--key {given:?} is neither a public key of minisign nor a file that can be read")
    })?;
    PublicKey::decode(&text).with_context(|| format!("{given} is no public key of minisign"))
}

/// Opens a file of the release. Refuses everything else, such as a pipe, which would block a reader.
fn open(path: &Path) -> Result<File> {
    let shown = || format!("read {}", path.display());
    let mut options = File::options();
    let file = options.read(true).custom_flags(nix::libc::O_NONBLOCK).open(path).with_context(shown)?;
    let is_file = file.metadata().with_context(shown)?.is_file();
    ensure!(is_file, "{} is no regular file: fetch the release again", path.display());
    Ok(file)
}

fn text(dir: &Path, name: &str) -> Result<String> {
    let path = dir.join(name);
    let mut text = String::new();
    let file = open(&path)?;
    file.take(LARGEST_TEXT).read_to_string(&mut text).with_context(|| format!("read {}", path.display()))?;
    Ok(text)
}

/// Parses the lines of SHA256SUMS. Names must not contain directories, and must not occur twice.
fn sums(text: &str) -> Result<BTreeMap<String, String>> {
    let mut sums = BTreeMap::new();
    for (at, line) in text.lines().enumerate() {
        let (sum, name) = line.split_once("  ").with_context(|| format!("line {} is no sum", at + 1))?;
        let is_sum = sum.len() == 64 && sum.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c));
        ensure!(is_sum, "line {}: {sum:?} is no SHA-256", at + 1);
        let is_name = !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0']);
        ensure!(is_name, "line {}: {name:?} is no name of a file in the release", at + 1);
        ensure!(
            sums.insert(name.to_owned(), sum.to_owned()).is_none(),
            "line {}: {name} a second time",
            at + 1
        );
    }
    Ok(sums)
}

/// Refuses a directory that has other files than the signed ones, because somebody might install them.
fn nothing_else(dir: &Path, sums: &BTreeMap<String, String>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))? {
        let entry = entry?;
        let name = entry.file_name();
        let is_known =
            name.to_str().is_some_and(|name| [SUMS, SIGNATURE].contains(&name) || sums.contains_key(name));
        ensure!(
            is_known,
            "{} does not stand in {SUMS}: remove it, or fetch the release again",
            entry.path().display()
        );
    }
    Ok(())
}

fn sum_of(path: &Path) -> Result<String> {
    let shown = || format!("read {}", path.display());
    let mut file = open(path)?;
    let mut hashing = Hashing::new(&SHA256);
    let mut buffer = vec![0; 1 << 16];
    loop {
        match file.read(&mut buffer).with_context(shown)? {
            0 => break,
            count => hashing.update(&buffer[..count]),
        }
    }
    Ok(hashing.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The checked fields of an SBOM in the format CycloneDX 1.5.
#[derive(Debug, Deserialize)]
struct Bill {
    #[serde(rename = "bomFormat")]
    form: String,
    metadata: Metadata,
    components: Vec<Component>,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    component: Subject,
    properties: Vec<Property>,
}

#[derive(Debug, Deserialize)]
struct Subject {
    version: String,
    hashes: Vec<Hash>,
}

#[derive(Debug, Deserialize)]
struct Property {
    name: String,
    value: String,
}

#[derive(Debug, Deserialize)]
struct Hash {
    alg: String,
    content: String,
}

#[derive(Debug, Deserialize)]
struct Component {
    name: String,
    version: String,
    scope: String,
    #[serde(default)]
    hashes: Vec<Hash>,
}

/// A crate of a lock file. A crate from outside the workspace has the checksum of its source.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
struct Crate {
    name: String,
    version: String,
    checksum: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Lock {
    package: Vec<Crate>,
}

fn sha256(hashes: &[Hash]) -> Option<&str> {
    hashes.iter().find(|hash| hash.alg == "SHA-256").map(|hash| hash.content.as_str())
}

/// Checks an artifact's SBOM against the artifact and its lock file.
fn artifact(args: &Args, name: &str, sum: &str) -> Result<Artifact> {
    let dir = args.dir.as_path();
    let file = format!("{name}{SBOM}");
    let bill: Bill = serde_json::from_str(&text(dir, &file)?)
        .with_context(|| format!("{file} is no SBOM that this release can have"))?;
    ensure!(bill.form == "CycloneDX", "{file} is of the form {:?}, not CycloneDX", bill.form);
    ensure!(
        sha256(&bill.metadata.component.hashes) == Some(sum),
        "{file} is about another file: it does not name the sum of {name}"
    );
    let version = &bill.metadata.component.version;
    ensure!(
        args.version.as_ref().is_none_or(|wanted| wanted == version),
        "{file} is about version {version:?} of {name}, not {}",
        args.version.as_deref().unwrap_or_default()
    );
    let lock = bill.metadata.properties.iter().find(|property| property.name == "shmcast:lock");
    let lock = &lock.with_context(|| format!("{file} names no lock file"))?.value;
    ensure!(
        !lock.contains('/') && lock.ends_with(".lock"),
        "{file}: {lock:?} is no lock file of the release"
    );
    let locked: Lock =
        toml::from_str(&text(dir, lock)?).with_context(|| format!("{lock} is no lock file of cargo"))?;
    let wanted: BTreeSet<Crate> = locked.package.into_iter().collect();
    let crates = bill.components.iter().filter(|part| part.scope == "required").count();
    ensure!(
        crates > 0 || name.ends_with(WITHOUT_RUST),
        "{file} says that no crate is built into {name}, which is a program or a library of Rust"
    );
    let listed: BTreeSet<Crate> = bill.components.into_iter().map(listed).collect();
    if let Some(missing) = wanted.difference(&listed).next() {
        bail!("{file} does not list {} {}, which stands in {lock}", missing.name, missing.version);
    }
    if let Some(other) = listed.difference(&wanted).next() {
        bail!("{file} lists {} {}, which {lock} does not have so", other.name, other.version);
    }
    let bytes = fs::metadata(dir.join(name))?.len();
    Ok(Artifact { name: name.to_owned(), bytes, sha256: sum.to_owned(), crates, locked: wanted.len() })
}

fn listed(part: Component) -> Crate {
    let checksum = sha256(&part.hashes).map(str::to_owned);
    Crate { name: part.name, version: part.version, checksum }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An earlier mistake: a pipe in the directory blocked the check for ever.
    #[test]
    fn what_is_no_regular_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::os::unix::fs::symlink("/dev/zero", at("link")).unwrap();
        for name in ["pipe", "link"] {
            for error in [text(dir.path(), name).unwrap_err(), sum_of(&at(name)).unwrap_err()] {
                assert!(error.to_string().contains("is no regular file"), "{name}: {error}");
            }
        }
    }

    #[test]
    fn sums_have_names_of_the_directory_itself_and_each_once() {
        let sum = "a".repeat(64);
        assert_eq!(sums(&format!("{sum}  a.deb\n")).unwrap().len(), 1);
        for (text, what) in [
            (format!("{sum}  ../a.deb\n"), "no name of a file"),
            (format!("{sum}  .hidden\n"), "no name of a file"),
            (format!("{sum}  a.deb\n{sum}  a.deb\n"), "line 2: a.deb a second time"),
            (format!("{}  a.deb\n", "A".repeat(64)), "is no SHA-256"),
            (format!("{sum} a.deb\n"), "line 1 is no sum"),
        ] {
            let error = sums(&text).unwrap_err().to_string();
            assert!(error.contains(what), "{text:?}: {error}");
        }
    }
}
