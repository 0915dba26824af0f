# What the steps of CI share. Each file of `steps` begins with it, and runs at the root of the tree.
# shellcheck shell=bash
set -euo pipefail
name=$(basename "$0")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never} CARGO_INCREMENTAL=0
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
# Tools that are built or fetched once for all clones of this machine, by version.
cache=${SHMCAST_CI_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/shmcast-ci}
# In `.ci/run nightly` a step does what takes long.
nightly=${SHMCAST_NIGHTLY:-}

# Outputs and channels of this step alone. Outputs may take 700 MB, which /dev/shm may not have.
scratch=$(mktemp -d "${TMPDIR:-/tmp}/shmcast-ci.XXXXXX")
channels=$scratch/channels
if [ -w /dev/shm ] && [ "$(df --output=avail -k /dev/shm | tail -n 1)" -ge 200000 ]; then
    channels=$(mktemp -d /dev/shm/shmcast-ci.XXXXXX)
fi
mkdir -p "$channels"
at_exit=: # a step may set it
# shellcheck disable=SC2046 # one word for each process
trap 'kill $(jobs -p) 2>/dev/null || true; eval "$at_exit"; rm -rf "$scratch" "$channels"' EXIT

has() { command -v "$1" >/dev/null 2>&1; }
# REASON: ends a step that cannot run here.
skip() { echo "SKIPPED $name: $*"; exit 77; }
# REASON: ends a step that has found a mistake.
fail() { echo "$name: $*"; exit 1; }

# The Nth command of the README, as it stands there.
readme_command() { sed -n '/^```sh$/,/^```$/p' README.md | grep -v '^```' | sed -n "$1p"; }

# The programs, examples and libraries as the tests have built them: the whole workspace, so that nothing is built with other features.
debug_programs() { cargo build --workspace --lib --bins --examples --locked; }

# The programs that most steps run, in $bin: those of the tests, and in `nightly` those that are packaged.
bin=$target/$([ "$nightly" ] && echo dist || echo debug)
programs() {
    if [ "$nightly" ]; then
        cargo build --profile dist -p shmcast-daemon -p shmcast-conformance -p shmcast-bench --bins --locked
    else
        debug_programs
    fi
    export SHMCAST_BIN=$bin
}

# WHAT SECONDS RESULT: adds the time for which something was played to the table of hours, which is to be committed. Only `nightly` does so.
add_hours() {
    [ "$nightly" ] || return 0
    printf '| %s | %s | %s, %s CPUs | %s | %s | %s |\n' "$(date -u +%F)" "$(git rev-parse --short HEAD)" "$(uname -m)" "$(nproc)" "$1" \
        "$(awk "BEGIN { printf \"%.2f\", $2 / 3600 }")" "$3" >>daemon/docs/hours.md
    echo "daemon/docs/hours.md has this run: commit it"
}

# install.sh takes the C library that the tests have built. In `nightly` it builds the library as it is packaged.
c_archive() {
    [ -z "$nightly" ] || return 0
    debug_programs
    export SHMCAST_C_ARCHIVE=$target/debug/libshmcast_c.a
}

# The C library below $prefix: the one that the tests have built, and in `nightly` as it is packaged.
prefix=$scratch/prefix
c_library() {
    has pkg-config && has cc || skip "pkg-config or cc is not installed"
    c_archive
    client/c/install.sh "$prefix"
    export PKG_CONFIG_PATH=$prefix/lib/pkgconfig LD_LIBRARY_PATH=$prefix/lib
    # Go keeps what pkg-config said when it built a package last, and does not ask again. This variable it does look at.
    export CGO_LDFLAGS=-L$prefix/lib
}

# DIRECTORY REQUIREMENT...: a virtual environment of Python there, with these packages. What is there already is not asked for again.
venv() {
    local dir=$1
    shift
    [ "$(cat "$dir/has" 2>/dev/null)" != "$*" ] || return 0
    [ -x "$dir/bin/pip" ] || "${interpreter:-python3}" -m venv "$dir" || return 1
    # What is imported is compiled then.
    "$dir/bin/pip" install --quiet --disable-pip-version-check --no-compile "$@" || return 1
    echo "$*" >"$dir/has"
}

# PROGRAM VERSION [WHEEL SHA256]: puts a program into $PATH: the one that is installed, a wheel that has it, or one that cargo builds.
tool() {
    local dir=$cache/$1-$2 lock
    ! has "$1" || return 0
    export PATH=$PATH:$dir/bin
    ! has "$1" || return 0
    mkdir -p "$dir"
    exec {lock}>"$dir/lock"
    flock "$lock"
    if [ $# = 4 ]; then
        echo "$3==$2 --hash=sha256:$4" >"$dir/requirements"
        python3 -m venv "$dir" && "$dir/bin/pip" install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
            --require-hashes -r "$dir/requirements" && hash -r && has "$1" && return 0
    fi
    cargo install "$1" --version "$2" --locked --quiet --debug --root "$dir" --target-dir "$dir/build" && rm -rf "$dir/build"
}

# PACKAGE...: Debian's judge of packages finds no error.
judged() {
    if has lintian; then
        lintian --fail-on error --allow-root "$@"
    else
        echo "SKIPPED lintian: not installed"
    fi
}

# Sets `jdk` to the last one in the order of names that has 22 or more, or to nothing.
find_jdk() {
    local home
    jdk=
    for home in "${JAVA_HOME:-}" /usr/lib/jvm/*-2[2-9]* /usr/lib/jvm/*-[3-9][0-9]*; do
        [ -x "$home/bin/javac" ] && [ "$("$home/bin/javac" --version | grep -o '[0-9]*' | sed -n 1p)" -ge 22 ] && jdk=$home
    done
    return 0
}

# Options of a JVM that lives for seconds: it begins sooner, and its compiler and collector have no threads that work beside it. In `nightly`
# each JVM is as a user starts it.
brief=$([ "$nightly" ] || echo "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
[ -z "$brief" ] || export MAVEN_OPTS="${MAVEN_OPTS:-} $brief"

# [OPTION...] TESTEE: the conformance suite. Its races are short, except in `nightly`.
conform() { "$bin/conform" --seconds "$([ "$nightly" ] && echo 0.5 || echo 0.1)" "$@"; }

# PUBLISHER SUBSCRIBER: the 40 prices that one example publishes are those that the other receives.
prices() {
    local published=$scratch/published received=$scratch/received
    # shellcheck disable=SC2086 # commands with their arguments
    { timeout 60 $2 >"$received" & timeout 60 $1 >"$published"; }
    wait $!
    cmp "$published" "$received"
    [ "$(wc -l <"$received")" = 40 ]
}
