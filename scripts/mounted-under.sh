#!/usr/bin/env bash
# Runs the tests that mount, those of crates/fuse and of crates/cowshed, under another Linux
# (scripts/with-kernel.sh): each module of tests by itself, for a bounded time.
#
#   scripts/mounted-under.sh [--limit SECONDS] [--threads N] --out DIR KERNEL-DIR [MODULE...]
#
# KERNEL-DIR is an unpacked package of a kernel. MODULE: `mount::`, `survival::` ...; unless given,
# all of crates/fuse, and of crates/cowshed those of mounts. DIR gets `summary`, with a line for
# each module, and for each module what its tests and the kernel printed. The exit status is 1 where
# a module failed or was cut.
set -euo pipefail

if [ "${1-}" = --inside ]; then # LIMIT THREADS MODULE..., in the virtual machine
  limit=$2 threads=$3; shift 3; ulimit -c 0; failed=0
  run() { # LOG DIRECTORY PROGRAM ARGUMENT...
    local log=/run/out/$1 begin=$SECONDS status=0; cd "$2"; shift 2
    timeout -k 10 "$limit" "$@" --nocapture --test-threads "$threads" >"$log.log" 2>&1 || { status=$?; failed=1; }
    echo "$(basename "$log"): status $status, $((SECONDS - begin)) s; $(grep '^test result' "$log.log" || echo 'no result')" >>/run/out/summary
    # Servers that a cut test has left.
    for pid in $(pidof cowshed); do kill -9 "$pid"; done
    dmesg -c >"$log.dmesg"
  }
  : >/run/out/summary
  run fuse "$ROOT/crates/fuse" "$MOUNTED"
  for module; do run "${module//::/-}" "$ROOT/crates/cowshed" "$COMMAND" "$module"; done
  exit "$failed"
fi

limit=600 threads=3 out=''
while [ $# -gt 0 ]; do
  case $1 in
    --limit) limit=$2; shift 2 ;;
    --threads) threads=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    *) break ;;
  esac
done
[ $# -ge 1 ] && [ -n "$out" ] && [ "${1#-}" = "$1" ] || { sed -n '2,12s/^# \{0,1\}//p' "$0" >&2; exit 125; }
dir=$1; shift
[ $# -gt 0 ] || set -- mount:: subvolume:: survival:: many_mounts:: bad_calls:: btrfs_ioctls:: atomic:: handles:: \
  no_open:: clone_tree:: exchange:: extents:: files:: flushes:: moves:: seek:: receive:: send:: usage:: workspaces:: \
  discard:: device:: compsize:: diff:: full:: btrfs:: xfs:: attributes::

root=$(realpath "$(dirname "$0")/.."); cd "$root"
# The checks of a debug build, at the speed of the other one: the machine is emulated.
export CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true
built=$(cargo test --release --no-run -p cowshed-fuse -p cowshed --test mounted --test command 2>&1) || { echo "$built" >&2; exit 125; }
program() { realpath "$(sed -n "s|.*tests/$1/main.rs (\(.*\))|\1|p" <<<"$built")"; }
mkdir -p "$out"
# One processor: with two emulated ones on a busy machine threads stall for tens of seconds.
exec scripts/with-kernel.sh --mem 8000 --cpus 1 --out "$out" "$dir" env "ROOT=$root" "MOUNTED=$(program mounted)" \
  "COMMAND=$(program command)" bash "$root/scripts/mounted-under.sh" --inside "$limit" "$threads" "$@"
