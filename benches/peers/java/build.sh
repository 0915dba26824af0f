#!/usr/bin/env bash
# Builds the program that has Aeron, by IPC beside our client in Java and over UDP beside our bridge, and prints the launcher's path, and nothing else, to stdout:
#
#   benches/peers/java/build.sh
#
# Needs a JDK 22 or later in $JAVA_HOME or /usr/lib/jvm, Maven, which brings Aeron, and cargo for the C library. Nothing outside the build's
# directory is changed but Maven's own repository of libraries: $CARGO_TARGET_DIR/peers/java if that is set, or target/peers/java in the repository.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

say() { echo "build.sh: $*" >&2; }
has() { command -v "$1" >/dev/null 2>&1; }

[ $# = 0 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$(basename "$0")" >&2; exit 2; }
has mvn || { say "Maven is not installed (Debian: maven)"; exit 1; }
jdk=
for home in "${JAVA_HOME:-}" /usr/lib/jvm/*; do
    [ -x "$home/bin/javac" ] && [ "$("$home/bin/javac" --version | grep -o '[0-9]*' | sed -n 1p)" -ge 22 ] && jdk=$home
done
[ -n "$jdk" ] || { say "no JDK 22 or later in JAVA_HOME or /usr/lib/jvm"; exit 1; }

target=${CARGO_TARGET_DIR:-../../../target}/peers/java
mkdir -p "$target"
target=$(realpath "$target")
say "building in $target, with $jdk"
export JAVA_HOME=$jdk
../../../client/c/install.sh "$target/prefix" >&2
(cd ../../../client/java && mvn -q -B -DskipTests clean install) >&2
mvn -q -B -Dpeers.target="$target" package >&2

cat >"$target/java-peers" <<LAUNCHER
#!/usr/bin/env bash
# Written by build.sh.
exec $(printf %q "$jdk/bin/java") @$(printf %q "$PWD/jvm.options") -Dshmcast.native=$(printf %q "$target/prefix/lib/libshmcast.so.0") \\
    -cp $(printf %q "$target/shmcast-java-peers-0.1.0.jar:$(cat "$target/classpath")") shmcast.peers.Main "\$@"
LAUNCHER
chmod +x "$target/java-peers"
say "use it: $target/java-peers --sizes 32,256 --laps 7"
echo "$target/java-peers"
