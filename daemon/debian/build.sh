#!/bin/sh
# Builds the Debian package and prints its path. Manuals and completions in it are written by the very command in it.
# Needs `cargo install cargo-deb`. $SHMCAST_PACKAGED may name a directory with programs that are built already. Their package is compressed less,
# because it is for tests.
set -eu
cd "$(dirname "$0")/../.."
built=${CARGO_TARGET_DIR:-target}/dist
made=$built/package

if [ -n "${SHMCAST_PACKAGED:-}" ]; then
    mkdir -p "$built"
    cp "$SHMCAST_PACKAGED/shmcast" "$SHMCAST_PACKAGED/shmcastd" "$built/"
else
    cargo build --profile dist -p shmcast-daemon --locked
fi
rm -rf "$made"
mkdir -p "$made"
"$built/shmcast" man "$made/man"
gzip -9nr "$made/man"
for program in shmcast shmcastd; do
    for shell in bash zsh fish; do
        "$built/shmcast" completions "$shell" "$program" >"$made/$program.$shell"
    done
done
cargo deb -p shmcast-daemon --profile dist --no-build --locked ${SHMCAST_PACKAGED:+--fast}
