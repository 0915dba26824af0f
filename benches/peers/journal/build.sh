#!/usr/bin/env bash
# Builds the program that measures other projects' recorders, and prints the launcher's path, and nothing else, to stdout:
#
#   benches/peers/journal/build.sh
#
# Needs a JDK 17 or later and Maven, which brings the libraries. Nothing outside the build's directory is changed but
# Maven's own repository of libraries: $CARGO_TARGET_DIR/peers/journal if that is set, or target/peers/journal in the repository.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

say() { echo "build.sh: $*" >&2; }
has() { command -v "$1" >/dev/null 2>&1; }

[ $# = 0 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$(basename "$0")" >&2; exit 2; }
has mvn || { say "Maven is not installed (Debian: maven)"; exit 1; }
has javac || { say "no JDK is installed (Debian: openjdk-17-jdk-headless)"; exit 1; }

target=${CARGO_TARGET_DIR:-../../../target}/peers/journal
mkdir -p "$target"
target=$(realpath "$target")
say "building in $target"
mvn -q -B -Dpeers.target="$target" package >&2
java=$(realpath "$(command -v java)")

cat >"$target/journal-peers" <<LAUNCHER
#!/usr/bin/env bash
# Written by build.sh.
exec $(printf %q "$java") @$(printf %q "$PWD/jvm.options") \\
    -cp $(printf %q "$target/shmcast-journal-peers-0.1.0.jar:$(cat "$target/classpath")") shmcast.peers.Main "\$@"
LAUNCHER
chmod +x "$target/journal-peers"
say "use it: $target/journal-peers aeron0 --size 256 --seconds 5 --dir /tmp"
echo "$target/journal-peers"
