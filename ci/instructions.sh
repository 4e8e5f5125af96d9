#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# Counts the instructions of a pair (one map and one unmap, or one allocation and one free; of the
# device IOTLB's cases one lookup, or one invalidation and one update) for each case of
# ci/instructions.budget, and compares. No clock is read: the same program counts the same on any
# day.
#
#   ci/instructions.sh           exit status 1: a case is over 3 % over budget, or does not run
#   ci/instructions.sh --renew   writes what it counts into the budget
#
# What 2 N pairs take beyond N is what N pairs take: start, filling and warm-up are the same in both
# runs.
set -euo pipefail
cd "$(dirname "$0")/.."
budget=ci/instructions.budget
pairs=5000
tolerated=103 # per cent

case ${1-} in
'' | --renew) ;;
*) sed -n '3,9s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
esac
command -v valgrind >/dev/null || ci/install-valgrind.sh >&2
cargo build --release --quiet -p ioatlas-bench --bin pairs
cargo build --release --quiet -p ioatlas-vhost --example count

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# without debugging information, which valgrind would read at every start
strip -o "$work/pairs" "${CARGO_TARGET_DIR:-target}/release/pairs"
strip -o "$work/count" "${CARGO_TARGET_DIR:-target}/release/examples/count"

# count CASE PAIRS FILE: the instructions of a whole run. Without an environment, whose size would
# count.
count() {
    local program=pairs
    case $1 in iotlb/*) program=count ;; esac
    env -i valgrind --tool=callgrind --callgrind-out-file=/dev/null "$work/$program" "${1#iotlb/}" "$2" >"$3" 2>&1
}
total() {
    sed -nE 's/^==[0-9]+== Collected : ([0-9]+)$/\1/p' "$1"
}

# pair CASE: hundredths of instructions of a pair, rounded.
pair() {
    local one two
    count "$1" "$pairs" "$work/one" &
    one=$!
    count "$1" $((2 * pairs)) "$work/two" &
    two=$!
    # both, whatever the first says
    if ! wait $one || ! wait $two; then
        wait
        cat "$work/one" "$work/two" >&2
        return 1
    fi
    echo $(((($(total "$work/two") - $(total "$work/one")) * 100 + pairs / 2) / pairs))
}
hundredths() {
    awk -v number="$1" 'BEGIN { printf "%d", number * 100 + 0.5 }'
}
decimal() {
    printf '%d.%02d' $(($1 / 100)) $(($1 % 100))
}

passed=0 failed=0 lower=0
row() {
    printf '%-52s %10s %10s %10s  %s\n' "$@"
}
row 'instructions of a pair' now budget limit ''
while read -r name allowed; do
    budgeted=$(hundredths "$allowed")
    limit=$((budgeted * tolerated / 100))
    said=
    if ! now=$(pair "$name"); then
        row "$name" - "$allowed" "$(decimal $limit)" FAILED
        failed=$((failed + 1))
        continue
    fi
    echo "$name $(decimal "$now")" >>"$work/renewed"
    if [ "${1-}" != --renew ] && [ "$now" -gt "$limit" ]; then
        said=FAILED failed=$((failed + 1))
    else
        passed=$((passed + 1))
        if [ $((now * tolerated / 100)) -lt "$budgeted" ]; then
            said=less lower=$((lower + 1))
        fi
    fi
    row "$name" "$(decimal "$now")" "$allowed" "$(decimal $limit)" "$said"
done < <(grep -Ev '^(#|$)' "$budget")

compiler=$(rustc --version)
if [ "${1-}" = --renew ] && [ "$failed" -eq 0 ]; then
    {
        grep '^#' "$budget" | sed "s/^# Counted with .*/# Counted with $compiler./"
        cat "$work/renewed"
    } >"$work/budget"
    cp "$work/budget" "$budget"
    echo "the budget is what was counted now"
else
    [ "$failed" -eq 0 ] ||
        echo "counted with $compiler; $(sed -n 's/^# Counted with/the budget, with/p' "$budget")"
    [ "$lower" -eq 0 ] ||
        echo "$lower cases take over 3 % less than their budget, which can be lowered: ci/instructions.sh --renew"
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
