#!/usr/bin/env bash
# Builds the files of a release into the new directory OUT, with an SBOM for each and SHA256SUMS over all:
#
#   daemon/release/build.sh OUT [PART...]
#
# Parts: crates, daemon (Debian package), c (Debian packages), jar, wheel; all of them if none is named. The same commit and the same tools give
# the same bytes, whatever the directory, the time and the user; `daemon/release/twice.sh` shows it. `shmcast.buildinfo` names the commit and the
# tools. Needs cargo-deb, dpkg-dev, Maven with a JDK from 22 on in $JAVA_HOME, and for the wheel $TOOLS, a venv as client/python/release.sh wants
# it. A tool that is missing is named before anything is built.
#
# The last step is the holder's of the key: minisign -S -m OUT/SHA256SUMS -t "shmcast VERSION, commit COMMIT"
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | head -n -1 >&2; exit 2; }
cd "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/../.."
out=$(realpath -m "$1")
shift
parts=("$@")
[ $# -gt 0 ] || parts=(crates daemon c jar wheel)

fail() { echo "build.sh: $*" >&2; exit 2; }
needs() { command -v "$1" >/dev/null || fail "$2 is not installed"; }
for part in "${parts[@]}"; do
    case $part in
    crates) ;;
    daemon) needs cargo-deb cargo-deb ;;
    c) needs dpkg-deb dpkg-dev; needs cc "a compiler of C" ;;
    jar)
        needs mvn Maven
        javac=$("${JAVA_HOME:?a JDK from 22 on}/bin/javac" --version)
        javac=${javac#javac }
        [ "${javac%%.*}" -ge 22 ] || fail "\$JAVA_HOME has a JDK of version $javac: the jar needs 22 or a later one"
        ;;
    wheel) for tool in maturin auditwheel; do needs "${TOOLS:?a venv with maturin, ziglang and auditwheel}/bin/$tool" "$tool in \$TOOLS"; done ;;
    *) fail "no part $part: crates, daemon, c, jar, wheel" ;;
    esac
done
mkdir "$out"
umask 022
export LC_ALL=C TZ=UTC SOURCE_DATE_EPOCH CARGO_INCREMENTAL=0
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
CARGO_TARGET_DIR=$(realpath -m "$CARGO_TARGET_DIR")
home=${CARGO_HOME:-$HOME/.cargo}
# Directories of this machine have no place in a file of a release.
export RUSTFLAGS="--remap-path-prefix=$PWD=/shmcast --remap-path-prefix=$CARGO_TARGET_DIR=/target --remap-path-prefix=$home=/cargo"
export CFLAGS="-ffile-prefix-map=$CARGO_TARGET_DIR=/target -ffile-prefix-map=$home=/cargo -ffile-prefix-map=$PWD=/shmcast"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# ARTIFACT LOCK [ARGUMENTS OF CARGO TREE...]: takes a file into the release, with its SBOM.
take() {
    cp "$1" "$out/"
    cp "$2" "$out/${lock:=$(basename "$2")}"
    daemon/release/sbom.py "$out/$(basename "$1")" "$out/$lock" "${@:3}"
    lock=
}

for part in "${parts[@]}"; do
    case $part in
    crates)
        crates=(shmcast-layout shmcast shmcast-demo shmcast-bridge shmcast-journal shmcast-engine shmcast-daemon)
        rm -rf "$CARGO_TARGET_DIR/package"
        cargo package --quiet --locked --no-verify "${crates[@]/#/--package=}" >&2
        version=$(cargo pkgid --locked -p shmcast | sed 's/.*[#@]//')
        for crate in "${crates[@]}"; do
            take "$CARGO_TARGET_DIR/package/$crate-$version.crate" Cargo.lock -p "$crate"
        done
        ;;
    daemon) take "$(daemon/debian/build.sh | tail -n 1)" Cargo.lock -p shmcast-daemon ;;
    c)
        client/c/debian/build.sh "$work/c" >"$work/packages"
        mapfile -t packages <"$work/packages"
        [ ${#packages[@]} = 2 ] || fail "client/c/debian/build.sh made ${#packages[@]} packages, not 2"
        for package in "${packages[@]}"; do take "$package" Cargo.lock -p shmcast-c; done
        ;;
    jar)
        mkdir "$work/java"
        cp -r client/java/pom.xml client/java/src "$work/java"
        (cd "$work/java" && mvn -q -B package -DskipTests "-Dproject.build.outputTimestamp=$SOURCE_DATE_EPOCH") >&2
        # Nothing of Rust is in it.
        take "$(echo "$work"/java/target/shmcast-*.jar)" Cargo.lock
        ;;
    wheel)
        client/python/release.sh "${TOOLS:?a venv with maturin, ziglang and auditwheel}" "$work/wheel" >&2
        lock=python.lock take "$(echo "$work"/wheel/*.whl)" client/python/Cargo.lock --manifest-path client/python/Cargo.toml
        ;;
    esac
done
# The versions that decide the bytes. Somebody who builds the commit again compares them first.
{
    git log -1 --format='commit %H%ncommitted %cI'
    echo "parts ${parts[*]}"
    rustc -vV | sed 's/^/rustc /'
    cargo --version
    for tool in cc dpkg-deb gzip; do ! command -v $tool >/dev/null || echo "$tool: $($tool --version | head -n 1)"; done
    for part in "${parts[@]}"; do
        case $part in
        daemon) echo "cargo-deb $(cargo-deb --version)" ;;
        jar) echo "javac $javac"; mvn --version | head -n 1 ;;
        wheel) "$TOOLS/bin/pip" list --disable-pip-version-check --format=freeze ;;
        esac
    done
} >"$out/shmcast.buildinfo"
(cd "$out" && sha256sum -- * >"$work/SHA256SUMS" && cp "$work/SHA256SUMS" .)
echo "$out"
