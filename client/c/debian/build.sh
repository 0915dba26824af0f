#!/usr/bin/env bash
# Builds the Debian packages libshmcast0 and libshmcast-dev, and prints their paths:
#
#   client/c/debian/build.sh [DIRECTORY, by default target/debian]
#
# Needs what install.sh needs, and dpkg-dev. $SHMCAST_PREFIX can name a tree that install.sh has made. Programs that use the packages need
# no cargo.
set -euo pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
out=$(realpath -m "${1:-$here/../../../target/debian}")
mkdir -p "$out"
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
prefix=${SHMCAST_PREFIX:-$made/prefix}
[ -n "${SHMCAST_PREFIX:-}" ] || "$here/../install.sh" "$prefix" >&2

version=$(basename "$prefix"/lib/libshmcast.so.*.*.*)
version=${version#libshmcast.so.}
major=${version%%.*}
triple=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
arch=$(dpkg-architecture -qDEB_HOST_ARCH)
maintainer=$(sed -n 's/^ -- \(.*>\)  .*/\1/p' "$here/changelog" | head -n 1)
lib=usr/lib/$triple

# Begins a package: makes the files that every package has.
begin() {
    local root=$made/$1
    install -d "$root/DEBIAN" "$root/usr/share/doc/$1"
    install -m 644 "$here/../../../daemon/debian/copyright" "$root/usr/share/doc/$1/copyright"
    gzip -9nc "$here/changelog" >"$root/usr/share/doc/$1/changelog.Debian.gz"
}

# The KiB of a package's files as Debian counts them: each file rounded up, and 1 for each other entry, whatever the file system.
installed_size() { find "$1" -mindepth 1 -path "$1/DEBIAN" -prune -o -printf '%y %s\n' | awk '{ sum += $1 == "f" ? int(($2 + 1023) / 1024) : 1 } END { print sum }'; }

# Writes the control file, the sums, and the package. The rest of the control file comes from stdin.
finish() {
    local root=$made/$1
    {
        printf 'Package: %s\nSource: shmcast\nVersion: %s-1\nArchitecture: %s\nMaintainer: %s\n' "$1" "$version" "$arch" "$maintainer"
        printf 'Installed-Size: %s\nPriority: optional\n' "$(installed_size "$root")"
        cat
    } >"$root/DEBIAN/control"
    (cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
    find "$root" -type d -exec chmod 755 {} +
    dpkg-deb --root-owner-group --build "$root" "$out/$1_$version-1_$arch.deb" >&2
    echo "$out/$1_$version-1_$arch.deb"
}

runtime=libshmcast$major
begin "$runtime"
root=$made/$runtime
install -d "$root/$lib"
install -m 644 "$prefix/lib/libshmcast.so.$version" "$root/$lib/"
strip --strip-unneeded --remove-section=.comment "$root/$lib/libshmcast.so.$version"
ln -s "libshmcast.so.$version" "$root/$lib/libshmcast.so.$major"
echo "libshmcast $major $runtime (>= $version)" >"$root/DEBIAN/shlibs"
echo "activate-noawait ldconfig" >"$root/DEBIAN/triggers"
finish "$runtime" <<CONTROL
Section: libs
Multi-Arch: same
Depends: libc6 (>= 2.34), libgcc-s1
Description: publish to and receive from shared memory, from C and C++
 One publisher sends messages to a hundred reader processes of the same host
 through shared memory. This package has the library that programs in C and
 C++ run with.
CONTROL

begin libshmcast-dev
root=$made/libshmcast-dev
install -d "$root/$lib/pkgconfig" "$root/$lib/cmake/shmcast" "$root/usr/include"
install -m 644 "$prefix"/include/* "$root/usr/include/"
install -m 644 "$prefix/lib/libshmcast.a" "$root/$lib/"
ln -s "libshmcast.so.$major" "$root/$lib/libshmcast.so"
sed -e 's|^prefix=.*|prefix=/usr|' -e "s|-L\${prefix}/lib|-L\${prefix}/lib/$triple|" "$prefix/lib/pkgconfig/shmcast.pc" \
    >"$root/$lib/pkgconfig/shmcast.pc"
# This file lies one directory deeper than in a tree of install.sh.
sed -e 's|/\.\./\.\./\.\." ABSOLUTE|/../../../.." ABSOLUTE|' -e "s|_shmcast_prefix}/lib/|_shmcast_prefix}/lib/$triple/|" \
    "$prefix/lib/cmake/shmcast/shmcastConfig.cmake" >"$root/$lib/cmake/shmcast/shmcastConfig.cmake"
install -m 644 "$prefix/lib/cmake/shmcast/shmcastConfigVersion.cmake" "$root/$lib/cmake/shmcast/"
finish libshmcast-dev <<CONTROL
Section: libdevel
Multi-Arch: same
Depends: $runtime (= $version-1), libc6-dev
Description: publish to and receive from shared memory, for C and C++ programs
 One publisher sends messages to a hundred reader processes of the same host
 through shared memory. This package has the headers for C and C++, the static
 library, and what pkg-config and CMake ask for.
CONTROL
