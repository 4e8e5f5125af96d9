#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# Whether the simulated multiprocessor is blind: distinct shared cache lines that pairs of map and
# unmap touch in the simulator, beside those in a memory trace of the same sequence on this machine
# (valgrind's lackey). `magazine,deferred-percpu`, a ring of 256 single pages, one CPU.
#
#   ci/lines-check.sh            exit status 1: the numbers differ by more than 10 %
#   ci/lines-check.sh --lines    the lines as well
#
# A shared line, on both sides: it lies in an allocated block or in a page-table frame, and
# something has written it since the ring was full. Not counted: the stack, code, static and
# thread-local data, which are private or constant; and lines of blocks that were not written
# since ("constant" here), which no CPU can lose. The last line is "N passed, N failed".
set -euo pipefail
cd "$(dirname "$0")/.."
skip=2048
pairs=256
tolerated=10 # per cent

command -v valgrind >/dev/null || ci/install-valgrind.sh >&2
cargo build --release --quiet -p ioatlas-sim --example lines
lines=${CARGO_TARGET_DIR:-target}/release/examples/lines
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# without debugging information, which valgrind would read at the start
strip -o "$work/lines" "$lines"

"$lines" simulated $skip $pairs >"$work/simulated"
env -i valgrind --tool=lackey --trace-mem=yes --log-file="$work/trace" "$work/lines" native $skip $pairs >"$work/places"
"$lines" traced "$work/places" "$work/trace" >"$work/native"

# counts FILE: lines of a pair, summed over all; of all together; constant ones
counts() {
    sed -nE "s/^pairs $pairs each ([0-9]+) all ([0-9]+) constant ([0-9]+)$/\1 \2 \3/p" "$1"
}
read -r simulated_each simulated_all simulated_constant < <(counts "$work/simulated")
read -r native_each native_all native_constant < <(counts "$work/native")

passed=0 failed=0
# compare WHAT SIMULATED NATIVE
compare() {
    local difference=$((($2 - $3) * 100)) said
    if [ "$3" -gt 0 ] && [ "${difference#-}" -le $(($3 * tolerated)) ]; then
        said=ok passed=$((passed + 1))
    else
        said=DIFFERENT failed=$((failed + 1))
    fi
    printf '%-40s %10d %10d   %s\n' "$1" "$2" "$3" "$said"
}
printf '%-40s %10s %10s\n' 'distinct shared lines of' simulated native
compare "one pair, summed over $pairs" "$simulated_each" "$native_each"
compare "$pairs pairs together" "$simulated_all" "$native_all"
printf '%-40s %10d %10d   not compared\n' 'constant lines touched' "$simulated_constant" "$native_constant"
if [ "${1-}" = --lines ]; then
    echo 'in the simulator:' && sed 1d "$work/simulated"
    echo 'in the trace:' && sed 1d "$work/native"
fi
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
