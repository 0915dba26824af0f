#!/usr/bin/env bash
# Builds a release twice, from two clones of HEAD in directories of other names and depths, with other target directories, time zones, locales,
# masks and, where /dev/shm has 1 GB, file systems of temporary files, and says which files differ:
#
#   daemon/release/twice.sh OUT [PART...]      the parts of build.sh; the release is left in the new directory OUT
#
# The exit code is 0 only if every file has the same bytes. If diffoscope is installed, it shows what differs.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | head -n -1 >&2; exit 2; }
tree=$(realpath "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/../..")
out=$(realpath -m "$1")
shift
work=$(mktemp -d)
temporary=$work/temporary
mkdir "$temporary"
if [ -w /dev/shm ] && [ "$(df --output=avail -k /dev/shm | tail -n 1)" -ge 1000000 ]; then temporary=$(mktemp -d /dev/shm/shmcast-release.XXXXXX); fi
trap 'rm -rf "$work" "$temporary"' EXIT
first=$work/a second=$work/another/place/that/is/deeper
for clone in "$first" "$second"; do git clone --quiet "$tree" "$clone/tree"; done
(umask 022 && TZ=UTC "$first/tree/daemon/release/build.sh" "$first/release" "$@")
(umask 077 && TMPDIR=$temporary TZ=Asia/Tokyo LC_ALL=C.UTF-8 CARGO_TARGET_DIR=$second/built "$second/tree/daemon/release/build.sh" "$second/release" "$@")
differ=0
for file in "$first"/release/*; do
    name=$(basename "$file")
    if cmp --silent "$file" "$second/release/$name"; then
        echo "same     $(sha256sum <"$file" | cut -c 1-16)  $name"
    else
        echo "DIFFERS  $name"
        differ=1
        ! command -v diffoscope >/dev/null || diffoscope --max-report-size 20000 "$file" "$second/release/$name" || true
    fi
done
[ "$(ls "$first/release")" = "$(ls "$second/release")" ] || { echo "the releases do not have the same files"; differ=1; }
cp -r "$first/release" "$out"
exit $differ
