#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# Lets the schedule explorer (crates/viommu/tests/explorer) look for each planted bug of crates/dma/src/mutant.rs, and prints how many seeds
# it took.
#
# The budget is the same for each, and without any bug it must show nothing.
# Exit status 1: a bug that is not found within the budget, or a find that names no safety property (P1 to P14), or one without any bug.
set -u
cd "$(dirname "$0")/.." || exit 2

budget=${IOATLAS_EXPLORE_SEEDS:-1000} # seeds

. ci/planted-bugs.sh
IOATLAS_EXPLORE_SEEDS=$budget
export IOATLAS_EXPLORE_SEEDS
unset IOATLAS_EXPLORE_SEED

# mutant              killed instead by (ci/mutants.sh)      since no schedule shows it:
invisible='
drop-retire-fence     loom domain::unmap_against_a_flush     memory is sequentially consistent in the simulation, so no fence is missed
skip-write-back       suite writeback::                      memory is coherent with the unit in the simulation, so no write-back is missed
'

# What the explorer drives: a bug that is planted nowhere in these is not looked for, and has to be killed by ci/mutants.sh.
driven='crates/dma/src crates/vtd/src'
# Parts of them that no domain of the explorer has: bounce buffers.
undriven='^crates/dma/src/(bounce|dma_api)/|^crates/dma/src/mutant\.rs$'

# is_driven VARIANT: whether the bug is planted where the explorer comes by.
is_driven() {
    # shellcheck disable=SC2086 # the folders are words
    grep -rlw "Mutant::$1" $driven | grep -Evq "$undriven"
}

# explore: runs the explorer into the log.
explore() {
    timeout 300 cargo test --quiet -p ioatlas-viommu --test it -- --exact explorer::no_seed_shows_a_violation --nocapture >"$log" 2>&1
}
explored() {
    sed -n 's/^seeds explored: \([0-9]*\).*/\1/p' "$log" | tail -n 1
}

if ! cargo test --quiet -p ioatlas-viommu --test it --no-run >"$log" 2>&1; then
    broken "the explorer does not build"
fi
if ! explore; then
    broken "the explorer finds something without any planted bug"
fi
echo "no planted bug: nothing found in $(explored) seeds"

printf '%-26s | %8s | %s\n' mutant seeds 'found in these words'
for bug in $(bugs); do
    mutant=${bug#*=}
    if ! is_driven "${bug%=*}"; then
        if grep -q "^$mutant " ci/mutants.sh; then
            printf '%-26s | %8s | %s\n' "$mutant" - 'not looked for: planted in what the explorer does not drive; see ci/mutants.sh'
        else
            printf '%-26s | %8s | %s\n' "$mutant" - 'NOT LISTED: planted in what the explorer does not drive, and no row of ci/mutants.sh'
            failed=$((failed + 1))
        fi
        continue
    fi
    if row=$(echo "$invisible" | grep "^$mutant "); then
        printf '%-26s | %8s | %s\n' "$mutant" - "not looked for: ${row#"$mutant" }" | tr -s ' '
        continue
    fi
    if IOATLAS_MUTANT=$mutant explore; then
        words='NOT FOUND'
    else
        words=$(said 'NOT FOUND: it fails, and names no safety property')
    fi
    count "$words"
    printf '%-26s | %8s | %s\n' "$mutant" "$(explored)" "$words"
done

echo "of $((passed + failed)) planted bugs, $passed found within $budget seeds each"
closing
