#!/usr/bin/env bash
# Builds the wheel of a release: for every CPython from 3.11 on, on every Linux with glibc 2.28 or newer.
#
#   client/python/release.sh TOOLS OUT      prints the wheel's path as its last line
#
# TOOLS is a venv with maturin, ziglang and auditwheel. $PYTHON is an interpreter from 3.11 on, by default the first one in $PATH.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tools=$1 out=$2
export PATH=$tools/bin:$PATH CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$tools/target}
maturin build --quiet --locked --profile dist --zig --compatibility manylinux_2_28 --manifest-path "$here/Cargo.toml" \
    --interpreter "${PYTHON:-python3}" --out "$out" >&2
wheel=$(echo "$out"/*.whl)
auditwheel show "$wheel" >&2
[[ $wheel == *-manylinux_2_28_*.whl ]] || { echo "not for glibc 2.28: $wheel" >&2; exit 1; }
echo "$wheel"
