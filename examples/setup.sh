# Shared by the demo and the examples: the binaries, one temporary directory, servers and agents in it, and the cleanup.
# It is sourced by scripts that set -euo pipefail themselves.
#
# BDNFS_BIN names a directory with the binaries `bdnfs` and `s3-server`; without it they are built, as the PROFILE (release
# or debug) says.

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
# Shows a command without the long paths of the binary and the temporary directory.
show() { printf '$ %s\n' "$*" | sed -e "s|$bdnfs|bdnfs|g" -e "s|$home/||g"; }
run() { show "$@" && "$@"; }
fail() { echo "$0: $*" >&2; exit 1; }
# expect TEXT FILE: fails unless FILE holds TEXT.
expect() { grep -qF -- "$1" "$2" || fail "expected \"$1\", but got: $(cat "$2")"; }

[ "$(id -u)" = 0 ] || [ -n "${NEEDS_NO_ROOT:-}" ] || fail "run it as root (sudo $0): it mounts, and jobs have mount namespaces of their own"
[ -e /dev/fuse ] || fail "/dev/fuse not found: run modprobe fuse, or start the container with --device /dev/fuse"
for tool in curl pgrep sha256sum; do
    command -v "$tool" >/dev/null || fail "$tool is missing: install it (on Debian: apt install curl procps coreutils)"
done

if [ -z "${BDNFS_BIN:-}" ]; then
    profile=${PROFILE:-release}
    command -v cc >/dev/null || fail "cc is missing: install a C compiler (on Debian: apt install build-essential)"
    (cd "$repository" && cargo build --quiet --locked --profile "${profile/debug/dev}" \
        --package bdnfs-cli --package bdnfs-tests --bin bdnfs --bin s3-server)
    BDNFS_BIN=${CARGO_TARGET_DIR:-$repository/target}/$profile
fi
bdnfs=$BDNFS_BIN/bdnfs
home=$(mktemp -d)

# Ends every process that names the directory, unmounts what is mounted below it, removes it.
cleanup() {
    status=$?
    if [ "$status" != 0 ]; then
        for log in "$home"/*.log; do [ -s "$log" ] && { echo "--- ${log##*/}"; tail -n 20 "$log"; } >&2; done
    fi
    cd /
    pgrep -f -- "$home" | xargs -r kill -9 2>/dev/null || true
    awk -v below="$home/" 'index($2, below) == 1 { print $2 }' /proc/self/mounts | xargs -r -n 1 umount -l 2>/dev/null || true
    rm -rf "$home"
    exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# until_true SECONDS COMMAND..: waits until COMMAND succeeds.
until_true() {
    local tries=$(($1 * 20))
    shift
    until "$@" >/dev/null 2>&1; do
        ((tries-- > 0)) || fail "timed out waiting for: $*"
        sleep 0.05
    done
}

# s3_server NAME: serves the directories below $home/NAME as buckets on this machine, sets $url, and $server to its pid. With
# SERVER_KEY="ACCESS SECRET" requests must be signed with that key; without it the server accepts any.
s3_server() {
    local access secret
    read -r access secret <<<"${SERVER_KEY:-}"
    mkdir -p "$home/$1"
    mkfifo "$home/$1.ask"
    (
        unset AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN
        if [ -n "$secret" ]; then export AWS_ACCESS_KEY_ID=$access AWS_SECRET_ACCESS_KEY=$secret; fi
        exec "$BDNFS_BIN/s3-server" --port 0 --root "$home/$1" <>"$home/$1.ask" >"$home/$1.log" 2>&1
    ) &
    server=$!
    disown
    until_true 10 grep -q '^http' "$home/$1.log"
    url=$(head -n 1 "$home/$1.log" | cut -d ' ' -f 1)
}

# served NAME: prints how many bytes the server NAME has sent so far.
served() {
    local before
    before=$(grep -c '^served' "$home/$1.log" || true)
    echo >"$home/$1.ask"
    until_true 10 served_again "$1" "$before"
    tail -n 1 "$home/$1.log" | sed 's/.* \([0-9]*\) bytes/\1/'
}
served_again() { [ "$(grep -c '^served' "$home/$1.log")" -gt "$2" ]; }

# model DIRECTORY MIB: makes a directory that is shaped like a model, with as many MiB of weights, and its SHA256SUMS.
model() {
    mkdir -p "$1/tokenizer"
    head -c "$2M" /dev/urandom >"$1/model.safetensors"
    echo '{"hidden_size": 64}' >"$1/config.json"
    for i in {1..200}; do echo "token $i" >"$1/tokenizer/$i.txt"; done
    (cd "$1" && find . -type f ! -name SHA256SUMS -printf '%P\0' | sort -z | xargs -0 sha256sum >SHA256SUMS)
}

# check_model DIRECTORY: compares every file with its SHA256SUMS.
check_model() { (cd "$1" && sha256sum --quiet --check SHA256SUMS); }

# start_agent NAME: starts an agent with the configuration $home/NAME.toml, waits until it is ready, sets $agent to its pid.
start_agent() {
    "$bdnfs" agent --config "$home/$1.toml" >>"$home/$1.log" 2>&1 &
    agent=$!
    disown
    until_true 20 curl --fail --silent --unix-socket "$home/$1.sock" http://bdnfs/readyz
}
