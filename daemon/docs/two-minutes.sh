#!/usr/bin/env bash
# A daemon, a publisher and a hundred readers in two minutes: what two-minutes.md shows, run and checked.
#
#   daemon/docs/two-minutes.sh [DIRECTORY OF shmcast AND shmcastd]      default: target/release
#
# Runs as an ordinary user; started by root, it becomes nobody first. Leaves nothing behind.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
programs=${1:-${CARGO_TARGET_DIR:-$root/target}/release}
readers=${READERS:-100}
messages=${MESSAGES:-200000}

for program in shmcast shmcastd; do
    [ -x "$programs/$program" ] || { echo "no $programs/$program: cargo build --release -p shmcast-daemon" >&2; exit 2; }
done

if [ "$(id -u)" = 0 ]; then
    # Nobody need not be able to reach the tree.
    stage=$(mktemp -d)
    trap 'rm -rf "$stage"' EXIT
    install -m 755 "$programs/shmcast" "$programs/shmcastd" "$stage"
    install -m 755 "${BASH_SOURCE[0]}" "$stage/two-minutes.sh"
    chmod 755 "$stage"
    cd /
    setpriv --reuid=65534 --regid=65534 --clear-groups bash "$stage/two-minutes.sh" "$stage"
    exit
fi

scratch=$(mktemp -d)
cleanup() {
    local pids
    pids=$(jobs -p)
    # shellcheck disable=SC2086 # one word for each process
    [ -z "$pids" ] || kill $pids 2>/dev/null || true
    wait
    rm -rf "$scratch"
}
trap cleanup EXIT
export PATH=$programs:$PATH
# Without these two the socket is $XDG_RUNTIME_DIR/shmcast/control.sock, unless the system's daemon runs here too.
export XDG_RUNTIME_DIR=$scratch SHMCAST_SOCKET=$scratch/shmcast/control.sock

has() { command -v "$1" >/dev/null 2>&1; }
show() { echo; echo "\$ $*"; "$@"; }
fail() { echo "two-minutes: $*" >&2; [ ! -s "$scratch/daemon.log" ] || tail -n 20 "$scratch/daemon.log" >&2; exit 1; }
is_free() { ! (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

port=9464
until is_free $port; do port=$((port + 1)); done
cat >"$scratch/shmcast.toml" <<END
[daemon]
http = "127.0.0.1:$port"

[[channel]]
name = "ticks"
capacity = "64MiB"
mlock = false
labels = { venue = "XETR" }
END

echo "# As $(id -un), on $(nproc) CPUs, Linux $(uname -r)"
show cat "$scratch/shmcast.toml"
show shmcast check "$scratch/shmcast.toml"

echo
echo "\$ shmcastd --config $scratch/shmcast.toml &"
shmcastd --config "$scratch/shmcast.toml" 2>"$scratch/daemon.log" &
daemon=$!
for ((i = 0; i < 300; i++)); do
    ! shmcast ls >/dev/null 2>&1 || break
    kill -0 $daemon 2>/dev/null || fail "the daemon ended"
    sleep 0.1
done

echo
echo "\$ shmcast sub ticks --wait sleep:20000 --framing none --summary --json &      # $readers times"
subscribers=()
for ((i = 0; i < readers; i++)); do
    shmcast sub ticks --wait sleep:20000 --wait-channel --framing none --summary --json 2>"$scratch/reader.$i" &
    subscribers+=($!)
done
echo "\$ seq $messages | shmcast pub ticks --rate 20000/s --wait-readers $readers --json &"
seq "$messages" >"$scratch/input"
shmcast pub ticks --input "$scratch/input" --rate 20000/s --wait-readers "$readers" --json >"$scratch/publisher" &
publisher=$!
are_there() { shmcast ls | grep -Eq "ticks +active .* $readers +"; }
for ((i = 0; i < 600; i++)); do
    ! are_there || break
    sleep 0.1
done

show shmcast ls
are_there || fail "not all $readers readers are there"
echo
echo "\$ shmcast stat ticks | head -n 24"
shmcast stat ticks >"$scratch/stat"
head -n 24 "$scratch/stat"

if shmcast top --help >/dev/null 2>&1; then
    shmcast top --json >"$scratch/top"
    echo
    echo "\$ shmcast top --json | head -c 600"
    head -c 600 "$scratch/top"
    echo
    ! has jq || jq -e . "$scratch/top" >/dev/null || fail "top --json is no JSON"
else
    echo "SKIPPED top: this build has no such verb"
fi

if ! has curl; then
    echo "SKIPPED metrics: curl is not installed"
elif curl -sf "http://127.0.0.1:$port/healthz" >/dev/null; then
    echo
    echo "\$ curl http://127.0.0.1:$port/metrics | grep -m 12 'channel=\"ticks\"'"
    curl -sSf "http://127.0.0.1:$port/metrics" >"$scratch/metrics"
    grep -m 12 'channel="ticks"' "$scratch/metrics" || fail "no metrics of the channel"
else
    echo "SKIPPED metrics: this build serves none"
fi

wait $publisher || fail "the publisher failed"
echo
echo "# The publisher at its end"
cat "$scratch/publisher"
missed=0
for ((i = 0; i < readers; i++)); do
    code=0
    wait "${subscribers[$i]}" || code=$?
    summary=$(tail -n 1 "$scratch/reader.$i")
    case $code in
    0) [[ $summary == *"\"received\":$messages,"* ]] || fail "reader $i has not all: $summary" ;;
    3) missed=$((missed + 1)) ;;
    *) fail "reader $i ended with $code: $summary" ;;
    esac
done
echo "# Reader 0 at its end"
tail -n 1 "$scratch/reader.0"
echo "# $((readers - missed)) of $readers readers have all $messages messages; $missed were lapped and said so"

show kill -TERM $daemon
wait $daemon || fail "the daemon ended with an error"
trap 'rm -rf "$scratch"' EXIT
echo
echo "# What the daemon said, from beginning and end"
head -n 3 "$scratch/daemon.log"
tail -n 2 "$scratch/daemon.log"
