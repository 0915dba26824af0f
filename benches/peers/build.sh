#!/usr/bin/env bash
# Builds the peers' program and prints its path, and nothing else, to stdout:
#
#   benches/peers/build.sh              bcast, ringfire, iceoryx2, and Aeron where it can be built
#   benches/peers/build.sh --no-aeron   without Aeron
#   benches/peers/build.sh --plain      in the profile `release`, for rounds of programs that set nothing; also with --no-aeron
#
# Aeron brings its C source, which needs a C compiler, cmake 3.30 or later, libclang, and libuuid's and libbsd's
# development files. cmake and libclang are installed from PyPI into a directory beside the build if they are missing; that
# needs python3 with venv. Other tools that are missing are named, and the rest is built without Aeron. Nothing outside the build's
# directory is changed: $CARGO_TARGET_DIR/peers if that is set, or target/peers in the repository.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

say() { echo "build.sh: $*" >&2; }
has() { command -v "$1" >/dev/null 2>&1; }

aeron=yes profile=dist
for option; do
    case $option in
    --no-aeron) aeron=no ;;
    --plain) profile=release ;;
    *)
        sed -n '2,/^set/s/^# \{0,1\}//p' "$(basename "$0")" >&2
        exit 2
        ;;
    esac
done

mkdir -p "${CARGO_TARGET_DIR:-../../target}"
CARGO_TARGET_DIR=$(realpath "${CARGO_TARGET_DIR:-../../target}")/peers
export CARGO_TARGET_DIR
tools=$CARGO_TARGET_DIR/tools
mkdir -p "$tools"

# Whether a C program that uses these linker arguments can be built.
links() { echo 'int main(void) { return 0; }' | cc -x c - -o "$tools/probe" "$@" 2>/dev/null; }

# Whether cmake is there and is 3.30 or later.
cmake_is_new() {
    local version
    version=$(cmake --version 2>/dev/null | sed -n '1s/.*version //p')
    [ -n "$version" ] && [ "$(printf '%s\n' 3.30 "$version" | sort -V | head -n 1)" = 3.30 ]
}

# cmake and libclang from PyPI, once.
python_tools() {
    local venv=$tools/python
    if [ ! -e "$venv/complete" ]; then
        say "installing cmake and libclang from PyPI into $venv"
        python3 -m venv "$venv" && "$venv/bin/pip" install --quiet --disable-pip-version-check \
            'cmake>=3.30,<4' 'libclang==18.1.1' >&2 && touch "$venv/complete" || return 1
    fi
    export PATH=$venv/bin:$PATH
    LIBCLANG_PATH=$(dirname "$(find "$venv" -name 'libclang.so' | head -n 1)")
    export LIBCLANG_PATH
}

# Prepares what Aeron needs; prints what is missing otherwise.
prepare_aeron() {
    has cc || { say "no C compiler (Debian: build-essential)"; return 1; }
    links -luuid || { say "no libuuid to link with (Debian: uuid-dev)"; return 1; }
    if ! cmake_is_new || [ -z "${LIBCLANG_PATH:-}" ]; then
        has python3 || { say "no python3 to install cmake 3.30 and libclang with"; return 1; }
        python_tools || { say "cmake 3.30 and libclang cannot be installed from PyPI"; return 1; }
    fi
    # libclang from PyPI has no headers of its own; the compiler's do.
    export BINDGEN_EXTRA_CLANG_ARGS="${BINDGEN_EXTRA_CLANG_ARGS:-} -isystem $(cc -print-file-name=include)"
    # Without libbsd Aeron takes its random numbers from the kernel, but its binding names the library all the same: an
    # archive with nothing in it will do.
    if ! links -lbsd; then
        ar rcs "$tools/libbsd.a"
        export LIBRARY_PATH=$tools${LIBRARY_PATH:+:$LIBRARY_PATH}
    fi
}

features=()
if [ $aeron = yes ]; then
    if prepare_aeron; then
        features=(--features aeron)
    else
        say "SKIPPED Aeron; the others are built"
    fi
fi
say "building in $CARGO_TARGET_DIR"
# Not --locked: a dependency that the rig gained since is added, and all that is locked stays as it is.
cargo build --profile $profile "${features[@]}" >&2
say "use it: cargo run --profile $profile -p shmcast-bench -- latency --peers $CARGO_TARGET_DIR/$profile/shmcast-peers"
echo "$CARGO_TARGET_DIR/$profile/shmcast-peers"
