#!/usr/bin/env bash
# Builds the targets with libFuzzer and lets it breed inputs: all of them, or those that are named.
#
#   daemon/fuzz/run.sh [TARGET]...
#   daemon/fuzz/run.sh --build        only builds them
#
# SHMCAST_FUZZ_SECONDS says how long each runs [default: 45]; as many run at a time as there are CPUs, two at most. Needs a C++
# compiler, and no nightly toolchain: RUSTC_BOOTSTRAP lets the stable compiler take the flags of cargo-fuzz. An input that
# breaks a target is put into daemon/fuzz/regressions/TARGET/, where daemon/tests/command/fuzz plays it from then on.
# Exits with 77 where the targets cannot be built.
set -euo pipefail
tree=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
built=$(realpath -m "${CARGO_TARGET_DIR:-$tree/target}")/fuzz
cd "$tree/daemon/fuzz"

all=(wire native block control pcap socket config journal receiver)
targets=("$@")
[ $# -gt 0 ] && [ "$1" != --build ] || targets=("${all[@]}")
seconds=${SHMCAST_FUZZ_SECONDS:-45}
triple=$(rustc -vV | sed -n 's/^host: //p')

cannot() { echo "SKIPPED fuzz: $*"; exit 77; }
command -v c++ >/dev/null || cannot "no C++ compiler, which libFuzzer is built with (Debian package g++)"
[ -f "$(rustc --print sysroot)/lib/rustlib/$triple/lib/librustc-stable_rt.asan.a" ] ||
    cannot "this toolchain has no address sanitizer for $triple"

# The flags are those of cargo-fuzz: coverage in the way that libFuzzer reads it, and the address sanitizer.
flags=(-Cpasses=sancov-module -Zsanitizer=address -Ccodegen-units=1 -Cdebug-assertions --cfg fuzzing)
for option in level=4 inline-8bit-counters pc-table trace-compares; do
    flags+=("-Cllvm-args=-sanitizer-coverage-$option")
done
RUSTC_BOOTSTRAP=1 RUSTFLAGS="${flags[*]}" CARGO_TARGET_DIR=$built \
    cargo build --release --locked --target "$triple" "${targets[@]/#/--bin=}"

[ "${1:-}" != --build ] || exit 0

work=$(mktemp -d "${TMPDIR:-/tmp}/shmcast-fuzz.XXXXXX")
trap 'rm -rf "$work"' EXIT

# Everything that libFuzzer finds goes to `work`; the corpus of the tree is read and left as it is.
play() {
    local target=$1 seeds=("$work/$1.corpus") line number=0
    [ "$target" != pcap ] || seeds+=(../tests/command/fuzz/samples)
    mkdir -p "$work/$target" "$work/$target.corpus" "regressions/$target"
    while read -r line; do
        base64 -d <<<"$line" >"$work/$target.corpus/$((number += 1))"
    done <"corpus/$target.base64"
    if ! "$built/$triple/release/$target" "$work/$target" "${seeds[@]}" -max_total_time="$seconds" -max_len=4096 -timeout=20 \
        -rss_limit_mb=2048 -artifact_prefix="regressions/$target/" >"$work/$target.log" 2>&1; then
        tail -n 40 "$work/$target.log"
        echo "$target: an input breaks it: see daemon/fuzz/regressions/$target/"
        return 1
    fi
    echo "$target: $number inputs, then $(grep -E 'DONE +cov' "$work/$target.log" | tail -n 1)"
}

failed=0
running=()
at_a_time=$(($(nproc) < 2 ? 1 : 2))
finish() { wait "${running[0]}" || failed=1; running=("${running[@]:1}"); }
for target in "${targets[@]}"; do
    [ ${#running[@]} -lt "$at_a_time" ] || finish
    play "$target" &
    running+=($!)
done
while [ ${#running[@]} -gt 0 ]; do finish; done
exit "$failed"
