#!/usr/bin/env bash
# Builds the C library and installs it below PREFIX, with both headers and the files for pkg-config and CMake:
#
#   client/c/install.sh PREFIX [cargo's PROFILE, by default compact]
#
# Needs cargo, a C compiler and the requirements of both. $SHMCAST_C_ARCHIVE can name a libshmcast_c.a that cargo has built. Programs that use the library need no cargo. The tree below PREFIX can be moved.
set -euo pipefail
[ $# -ge 1 ] && [ $# -le 2 ] || { echo "usage: install.sh PREFIX [PROFILE]" >&2; exit 2; }
mkdir -p "$1"
prefix=$(realpath "$1") profile=${2:-compact}
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
cd "$here"
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"$/\1/p' ../../Cargo.toml)
[ -n "$version" ] || { echo "install.sh: no version in Cargo.toml" >&2; exit 1; }
major=${version%%.*}

whole=${SHMCAST_C_ARCHIVE:-}
if [ -z "$whole" ]; then
    cargo rustc -p shmcast-c --lib --locked --profile "$profile" --crate-type staticlib
    target=${CARGO_TARGET_DIR:-../../target}
    [ "$profile" = dev ] && target=$target/debug || target=$target/$profile
    whole=$target/libshmcast_c.a
fi

lib=$prefix/lib
mkdir -p "$lib/pkgconfig" "$lib/cmake/shmcast" "$prefix/include"
# rustc gives the symbols of a library no versions, so the linker adds them. The thread that keeps a daemon's channels attached runs code of
# this library, so the library stays loaded (nodelete).
symbols=$(sed -n 's/^SHMCAST_API .*\b\(shmcast_[a-z_]*\)(.*/\1/p' include/shmcast.h | tr '\n' ' ')
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
sed "s/@SYMBOLS@/$(printf '%s; ' $symbols)/" shmcast.map.in >"$made/map"
"${CC:-cc}" -shared -o "$lib/libshmcast.so.$version" \
    -Wl,--whole-archive "$whole" -Wl,--no-whole-archive -Wl,--gc-sections \
    -Wl,--version-script="$made/map" -Wl,-soname,"libshmcast.so.$major" -Wl,-z,defs -Wl,-z,nodelete \
    -lgcc_s -lpthread -lm -ldl -lc
# Makes one object in which only our names are global. Otherwise libraries of two versions of rustc could not be linked into one program.
printf '%s\n' $symbols >"$made/symbols"
ld -r --force-group-allocation --whole-archive "$whole" -o "$made/shmcast.o"
objcopy --strip-debug -R .llvmbc -R .llvmcmd "$made/shmcast.o"
objcopy --keep-global-symbols="$made/symbols" "$made/shmcast.o"
rm -f "$lib/libshmcast.a"
ar rcs "$lib/libshmcast.a" "$made/shmcast.o"
ln -sf "libshmcast.so.$version" "$lib/libshmcast.so.$major"
ln -sf "libshmcast.so.$major" "$lib/libshmcast.so"
cp include/shmcast.h ../cpp/include/shmcast.hpp "$prefix/include/"
sed "s/@VERSION@/$version/" shmcast.pc.in >"$lib/pkgconfig/shmcast.pc"
sed "s/@MAJOR@/$major/" cmake/shmcastConfig.cmake.in >"$lib/cmake/shmcast/shmcastConfig.cmake"
sed "s/@VERSION@/$version/" cmake/shmcastConfigVersion.cmake.in >"$lib/cmake/shmcast/shmcastConfigVersion.cmake"
echo "installed shmcast $version below $prefix"
