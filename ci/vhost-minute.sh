#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# ci/vhost-minute.sh [SECONDS]: drives `ioatlas vhost-net` with `ioatlas vhost-bench` in every mode,
# notified and polling, for SECONDS (60) in all. A mode fails where a frame comes back corrupt, or
# does not come back, or the generator says that the back end did something wrong; a back end where
# it fails at its end, or finds its IOTLB damaged. A line each; the last line is "N passed, N
# failed".
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
case $seconds in
'' | *[!0-9]*)
    echo "usage: ci/vhost-minute.sh [SECONDS]" >&2
    exit 2
    ;;
esac

modes='
--map off
--map off --scattered --pages 1000
--map off --ring packed --frame-bytes 1500
--map static --leaf 1g
--map static --leaf 2m --pages 4096
--map static --leaf 4k --answers range
--map static --leaf 4k --scattered --pages 8
--map static --leaf 4k --scattered --pages 1000
--map static --leaf 4k --scattered --pages 20000 --ring packed
--map static --leaf 4k --scattered --straddling
--map static --leaf 4k --scattered --straddling --ring packed --frame-bytes 1500
--map dynamic --batch 1
--map dynamic --batch 32 --pages 1000
--map dynamic --batch 32 --pages 1000 --scattered --straddling
--map dynamic --batch 1 --answers range
--map dynamic --batch 32 --pages 1000 --answers range
--map dynamic --batch 32 --pages 1000 --answers range --ring packed --frame-bytes 1500
--map dynamic --batch 256 --pages 4096 --answers range --scattered
'
count=$(grep -c . <<<"$modes")
each=$(awk -v s="$seconds" -v n="$count" 'BEGIN { printf "%.2f", (s / (2 * n) > 0.05) ? s / (2 * n) : 0.05 }')

cargo build --release --quiet --package ioatlas-cli
ioatlas=${CARGO_TARGET_DIR:-target}/release/ioatlas
scratch=$(mktemp -d)
back=
end() {
    if [ -n "$back" ]; then
        local pid=$back
        back=
        kill -INT "$pid" 2>/dev/null || true
        wait "$pid"
    fi
}
trap 'end || true; rm -rf "$scratch"' EXIT
trap 'exit 1' INT TERM

# number NAME: of the report.
number() {
    sed -nE "s/^ *\"$1\": ([0-9.]+),?\$/\1/p" "$scratch/report" | head -n 1
}

passed=0 failed=0
for wakeup in notify poll; do
    socket=$scratch/$wakeup
    "$ioatlas" vhost-net --socket-path "$socket" --mode macswap --wakeup "$wakeup" --miss-timeout 120000 >"$scratch/said" 2>&1 &
    back=$!
    for _ in $(seq 300); do
        [ -S "$socket" ] && break
        sleep 0.1
    done
    if [ ! -S "$socket" ]; then
        failed=$((failed + 1))
        echo "FAILED  $wakeup: the back end does not listen: $(tail -n 1 "$scratch/said")"
        end || true
        continue
    fi
    while read -r -a options; do
        [ ${#options[@]} -gt 0 ] || continue
        name="$wakeup ${options[*]}"
        # A machine may be busy: either end has two minutes for what it owes.
        if ! "$ioatlas" vhost-bench "$socket" "${options[@]}" --seconds "$each" --warm-up 0.05 --patience 120 --json >"$scratch/report" 2>"$scratch/why"; then
            failed=$((failed + 1))
            echo "FAILED  $name: $(tail -n 1 "$scratch/why")"
            continue
        fi
        corrupt=$(number frames_corrupt) lost=$(number frames_lost) early=$(number warm_up_lost)
        result="$(number frames_returned) frames, $corrupt corrupt, $lost lost, $early lost in the warm-up, $(number misses) misses"
        if [ "$corrupt" = 0 ] && [ "$lost" = 0 ] && [ "$early" = 0 ] && [ "$(number frames_returned)" -gt 0 ]; then
            passed=$((passed + 1))
            echo "ok      $name: $result"
        else
            failed=$((failed + 1))
            echo "FAILED  $name: $result"
        fi
    done <<<"$modes"
    if ! end; then
        failed=$((failed + 1))
        echo "FAILED  $wakeup: the back end: $(tail -n 1 "$scratch/said")"
    fi
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
