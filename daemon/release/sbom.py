#!/usr/bin/env python3
"""Writes the software bill of materials of an artifact, in the form CycloneDX 1.5, beside the artifact.

    sbom.py ARTIFACT LOCK [CARGO TREE'S ARGUMENTS...]

Each crate of the lock file LOCK is a component. Its scope is "required" if `cargo tree` with these arguments has it among what is built into the
artifact, else "excluded": tests and other packages of the workspace need it. Without arguments nothing is required. LOCK is named by its last part.
"""

import hashlib
import json
import pathlib
import subprocess
import sys
import tomllib


def built_in(arguments: list[str]) -> set[tuple[str, str]]:
    if not arguments:
        return set()
    tree = ["cargo", "tree", "--locked", "--prefix", "none", "--edges", "normal,build", "--format", "{p}", *arguments]
    lines = subprocess.run(tree, check=True, capture_output=True, text=True).stdout.splitlines()
    words = [line.split() for line in lines if line.strip()]
    return {(name, version.removeprefix("v")) for name, version, *_ in words}


def component(package: dict[str, str], required: set[tuple[str, str]]) -> dict[str, object]:
    name, version = package["name"], package["version"]
    part: dict[str, object] = {
        "type": "library",
        "bom-ref": f"{name}@{version}",
        "name": name,
        "version": version,
        "scope": "required" if (name, version) in required else "excluded",
        "purl": f"pkg:cargo/{name}@{version}",
    }
    if "checksum" in package:
        part["hashes"] = [{"alg": "SHA-256", "content": package["checksum"]}]
    return part


def main() -> None:
    artifact, lock = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    required = built_in(sys.argv[3:])
    packages = tomllib.loads(lock.read_text())["package"]
    missing = required - {(package["name"], package["version"]) for package in packages}
    if missing:
        sys.exit(f"{lock} does not have {sorted(missing)}, which are built into {artifact.name}")
    version = next(package["version"] for package in packages if package["name"] == "shmcast")
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "file",
                "bom-ref": artifact.name,
                "name": artifact.name,
                "version": version,
                "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(artifact.read_bytes()).hexdigest()}],
            },
            "properties": [{"name": "shmcast:lock", "value": lock.name}],
        },
        "components": [component(package, required) for package in packages],
    }
    artifact.with_name(artifact.name + ".cdx.json").write_text(json.dumps(bill, indent=1) + "\n")


main()
