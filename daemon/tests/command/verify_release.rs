//! `shmcast verify-release` on a release that this test signs, and on changed copies of it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use blake2::{Blake2b512, Digest as _};
use ring::digest::{SHA256, digest};
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};
use shmcast_testkit::command::{Host, text};
use std::fs;
use std::path::PathBuf;

const LOCK: &str = "version = 4\n\n[[package]]\nname = \"nix\"\nversion = \"0.31.0\"\nchecksum = \"ab\"\n\n\
    [[package]]\nname = \"shmcast\"\nversion = \"0.1.0\"\n";

/// A key of minisign: its number, and the pair.
struct Key([u8; 8], Ed25519KeyPair);

impl Key {
    fn of(seed: u8) -> Self {
        Self([seed; 8], Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap())
    }

    fn public(&self) -> String {
        BASE64.encode([b"Ed", &self.0[..], self.1.public_key().as_ref()].concat())
    }

    /// The file of a signature, as minisign writes it.
    fn sign(&self, content: &[u8], comment: &str) -> String {
        let signature = self.1.sign(&Blake2b512::digest(content));
        let whole = self.1.sign(&[signature.as_ref(), comment.as_bytes()].concat());
        let first = BASE64.encode([b"ED", &self.0[..], signature.as_ref()].concat());
        format!(
            "untrusted comment: signature\n{first}\ntrusted comment: {comment}\n{}\n",
            BASE64.encode(whole)
        )
    }
}

fn sum(content: &[u8]) -> String {
    digest(&SHA256, content).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

struct Release {
    host: Host,
    dir: PathBuf,
    key: Key,
}

impl Release {
    fn new() -> Self {
        let host = Host::new();
        let dir = host.file("key.pub", b"").with_file_name("release");
        fs::create_dir(&dir).unwrap();
        let release = Self { host, dir, key: Key::of(1) };
        release.put("shmcast_0.1.0.deb", "the package");
        release.put("Cargo.lock", LOCK);
        release.bill(|_| {});
        release.sign(&release.key);
        release
    }

    fn put(&self, name: &str, content: &str) {
        fs::write(self.dir.join(name), content).unwrap();
    }

    /// Writes the SBOM after a change.
    fn bill(&self, change: impl FnOnce(&mut Value)) {
        let package = fs::read(self.dir.join("shmcast_0.1.0.deb")).unwrap();
        let hashes = |sum: &str| json!([{"alg": "SHA-256", "content": sum}]);
        let mut bill = json!({
            "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
            "metadata": {
                "component": {"type": "file", "name": "shmcast_0.1.0.deb", "version": "0.1.0", "hashes": hashes(&sum(&package))},
                "properties": [{"name": "shmcast:lock", "value": "Cargo.lock"}],
            },
            "components": [
                {"type": "library", "name": "nix", "version": "0.31.0", "scope": "required", "hashes": hashes("ab")},
                {"type": "library", "name": "shmcast", "version": "0.1.0", "scope": "required"},
            ],
        });
        change(&mut bill);
        self.put("shmcast_0.1.0.deb.cdx.json", &bill.to_string());
    }

    /// Writes the sums of the files that are there, and the signature of the sums.
    fn sign(&self, key: &Key) {
        self.sign_as(key, "shmcast 0.1.0, commit 0123abc");
    }

    fn sign_as(&self, key: &Key, comment: &str) {
        let mut sums = String::new();
        for name in ["Cargo.lock", "shmcast_0.1.0.deb", "shmcast_0.1.0.deb.cdx.json"] {
            sums += &format!("{}  {name}\n", sum(&fs::read(self.dir.join(name)).unwrap()));
        }
        self.put("SHA256SUMS.minisig", &key.sign(sums.as_bytes(), comment));
        self.put("SHA256SUMS", &sums);
    }

    fn verify(&self, key: &str, more: &str) -> std::process::Output {
        self.host.run(&format!("verify-release {} --key {key} {more}", self.dir.display()))
    }

    fn refused(&self, why: &str) {
        self.refused_with("", why);
    }

    fn refused_with(&self, more: &str, why: &str) {
        let output = self.verify(&self.key.public(), more);
        let said = text(&output.stderr);
        assert!(
            output.status.code() == Some(1) && said.contains(why) && output.stdout.is_empty(),
            "{why}: {output:?}"
        );
    }
}

#[test]
fn a_release_is_sound_or_refused_with_what_differs() {
    let release = Release::new();
    let output = release.verify(&release.key.public(), "--json");
    assert!(output.status.success(), "{output:?}");
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&said["signed"], &said["artifacts"][0]["crates"]),
        (&json!("shmcast 0.1.0, commit 0123abc"), &json!(2)),
        "{said}"
    );
    let file = release
        .host
        .file("key.pub", format!("untrusted comment: ours\n{}\n", release.key.public()).as_bytes());
    let output = release.verify(&file.display().to_string(), "");
    assert!(output.status.success() && text(&output.stdout).contains("shmcast_0.1.0.deb"), "{output:?}");

    release.put("shmcast_0.1.0.deb", "the packagf"); // a bit
    release.refused("shmcast_0.1.0.deb is not the file that was signed");
    release.put("shmcast_0.1.0.deb", "the package");
    release.put("another.deb", "");
    release.refused("does not stand in SHA256SUMS");
    fs::remove_file(release.dir.join("another.deb")).unwrap();
    release.sign(&Key::of(2));
    release.refused("not by this key");
    release.sign(&release.key);
    let sums = fs::read_to_string(release.dir.join("SHA256SUMS")).unwrap();
    release.put("SHA256SUMS", &sums.replacen('a', "b", 1));
    release.refused("changed after it was signed");
    release.put("SHA256SUMS", &sums);
    fs::remove_file(release.dir.join("SHA256SUMS.minisig")).unwrap();
    release.refused("SHA256SUMS.minisig");
}

#[test]
fn an_sbom_that_says_too_little_is_refused_although_it_is_signed() {
    type Change = fn(&mut Value);
    let release = Release::new();
    let changes: [(Change, &str); 7] = [
        (|bill| drop(bill["components"].as_array_mut().unwrap().remove(0)), "does not list nix 0.31.0"),
        (|bill| bill["components"][0]["version"] = json!("0.30.0"), "does not list nix 0.31.0"),
        (|bill| bill["components"][0]["hashes"][0]["content"] = json!("cd"), "does not list nix 0.31.0"),
        (|bill| bill["metadata"]["component"]["hashes"][0]["content"] = json!("00"), "is about another file"),
        (
            |bill| bill["metadata"]["properties"][0]["value"] = json!("../Cargo.lock"),
            "no lock file of the release",
        ),
        (
            |bill| {
                let components = bill["components"].as_array_mut().unwrap();
                components.iter_mut().for_each(|part| part["scope"] = json!("excluded"));
            },
            "no crate is built into shmcast_0.1.0.deb",
        ),
        (|bill| *bill = json!({"bomFormat": "CycloneDX"}), "no SBOM that this release can have"),
    ];
    for (change, why) in changes {
        release.bill(change);
        release.sign(&release.key);
        release.refused(why);
    }
    release.bill(|bill| {
        let more = json!({"type": "library", "name": "another", "version": "1.0.0", "scope": "required"});
        bill["components"].as_array_mut().unwrap().push(more);
    });
    release.sign(&release.key);
    release.refused("lists another 1.0.0, which Cargo.lock does not have so");
    fs::remove_file(release.dir.join("shmcast_0.1.0.deb.cdx.json")).unwrap();
    release.refused("cdx.json");
}

/// An earlier mistake: an older release that the same key had signed was accepted in place of the wanted one.
#[test]
fn an_older_release_of_the_same_key_is_refused() {
    let release = Release::new();
    let output = release.verify(&release.key.public(), "--version 0.1.0");
    assert!(output.status.success(), "{output:?}");
    for wanted in ["0.2.0", "0.1", "0.1.0,", "0.1.00"] {
        release.refused_with(&format!("--version {wanted}"), &format!("is not version {wanted}"));
    }
    // The comment of a new release over the files of an old one.
    release.sign_as(&release.key, "shmcast 0.2.0, commit 4567def");
    release.refused_with("--version 0.2.0", "is about version \"0.1.0\"");
    release.sign_as(&release.key, "0.1.0");
    release.refused_with("--version 0.1.0", "is not version 0.1.0");
}
